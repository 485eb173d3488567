"""A recorded run as the simulator reads it: the calls of each part, and the rollouts that they worked on.

Every lane takes one call after the other: publish, update, checkpoint and save its policy the Learner; load, generate
and evaluate a Generator; score and evaluate a Scorer. What writes a checkpoint begins when that is copied. A call's
stages follow each other. What lies between the end of a wait and the first stage is the call's way to the part, what
lies between the last stage and the next wait is its answer's way back; where two calls follow each other without a
wait, the recorded ``wait_for_call`` spans divide the time between them, and in runs of before these were written each
gets half.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

from harness.compare.checkpoints import has_kept_steps
from harness.compare.experiment import arm_labels
from harness.core.errors import UserError
from harness.core.intervals import Interval, clip, merge, total
from harness.core.trace import Span, Stage
from harness.core.types import Purpose
from harness.results import BatchRow, Run, ShardRow, find_run_folders, lane_kind, load_run, read_manifest
from harness.results.occupancy import loop_window, part_spans
from harness.results.rows import SPANS
from harness.results.writer import SCENARIO
from harness.scenario.axes import check_variant
from harness.scenario.problems import as_user_error
from harness.scenario.schema import Scenario
from harness.scenario.tree import Tree
from harness.simulate.features import Group

TRAIN, EVALUATE = Purpose.TRAIN.value, Purpose.EVALUATE.value
SHOWN = 12
UNTOLD = {
    "dynamic_sampling.attempts": "sampled groups again (dynamic_sampling)",
    "learner.overlapped_publish": "published weights while it trained (learner.overlapped_publish)",
    "learner.stream": "trained on parts of a batch (learner.stream)",
}
"""Settings under which it cannot be told which call, or which rollouts, a span belongs to; what a run did with them."""


class Work(StrEnum):
    """What a part is asked for."""

    PUBLISH = "publish"
    UPDATE = "update"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_WRITE = "checkpoint_write"
    SAVE_POLICY = "save_policy"
    LOAD = "load"
    GENERATE = "generate"
    SCORE = "score"
    EVALUATE = "evaluate"


OF_A_BATCH = (Stage.PREPARE_BATCH, Stage.OLD_LOGPROBS, Stage.REFERENCE_LOGPROBS, Stage.UPDATE)
"""Stages of the Learner that work on what a training step trains on."""
_WORK = dict.fromkeys(OF_A_BATCH, Work.UPDATE) | {
    Stage.WEIGHT_PUBLISH: Work.PUBLISH,
    Stage.WEIGHT_TRANSFER: Work.LOAD,
    Stage.WEIGHT_LOAD: Work.LOAD,
    **{stage: Work(stage) for stage in Stage if stage.value in list(Work)},
}
"""What a part is asked for when it goes through a stage; those that are not here are part of the call beside them."""
_ONE_SPAN = (Work.GENERATE, Work.SCORE, Work.EVALUATE, Work.SAVE_POLICY)
_BETWEEN = (Stage.WAIT_FOR_CALL, Stage.WAIT_FOR_RECORDER, Stage.WAIT_FOR_RANKS)


class RecordedStage(NamedTuple):
    """A stage of a call: its seconds; where ``stage`` is None, what lies between two."""

    stage: Stage | None
    seconds: float
    start_ns: int = -1
    end_ns: int = -1


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a part.

    Attributes:
        key: training step, or policy version, or number of the rollout batch.
        request_s: from the moment the loop made the call until the part began to work.
        response_s: from the end of the work until the loop went on.
    """

    lane: str
    work: Work
    key: int
    stages: tuple[RecordedStage, ...]
    request_s: float = 0.0
    response_s: float = 0.0

    @property
    def start_ns(self) -> int:
        return self.stages[0].start_ns

    @property
    def end_ns(self) -> int:
        return self.stages[-1].end_ns

    @property
    def seconds(self) -> float:
        """Seconds of the work."""
        return sum(each.seconds for each in self.stages)


class RecordedGroup(NamedTuple):
    """One recorded group: tokens of the prompt (None: not known) and of each response, and the rewards."""

    prompt: int | None
    lengths: tuple[int, ...]
    rewards: tuple[float, ...]

    @property
    def group(self) -> Group:
        """As costs count it."""
        return self.prompt or 0, self.lengths


class RecordedRun:
    """One run, read when asked.

    Attributes:
        spans: by their start, those of a Learner's ranks as one lane.
        batches: the groups that each step trained on under replay, as (batch, prompt id).
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.spans = sorted(part_spans(run.spans()), key=lambda span: (span.start_ns, span.end_ns))
        if run.setting("checkpoint.every") is None and not has_kept_steps(run):  # its name before there were any
            save = Stage.SAVE_POLICY
            self.spans = [s._replace(stage=save) if s.stage is Stage.CHECKPOINT else s for s in self.spans]
        self._shards: dict[tuple[str, int], list[ShardRow]] = defaultdict(list)
        self.batches: dict[int, tuple[tuple[int, int], ...]] = {}
        for row in run.groups():
            if isinstance(row, BatchRow):
                self.batches[row.step] = row.groups
            else:
                self._shards[row.purpose, row.step].append(row)

    @cached_property
    def scenario(self) -> Scenario:
        """What the run was made from.

        Raises:
            UserError: it is not in the run's folder, or of a form that this version does not read.
        """
        where = str(self.run.folder / SCENARIO)
        if not self.run.settings:
            raise UserError(f"the run {str(self.run.folder)!r} has no {SCENARIO}", where, "name a run that has one")
        return checked(Tree.of(self.run.settings, where), where)

    # ---- rollouts

    @cached_property
    def has_lengths(self) -> bool:
        """Whether it was recorded how long rollouts were."""
        return bool(self._shards)

    def shards(self, number: int, purpose: str = TRAIN) -> list[list[RecordedGroup]]:
        """Return the groups of each shard of a rollout batch, or of an evaluation; none where they are not known."""
        return list(map(groups_of, sorted(self._shards.get((purpose, number), ()), key=lambda row: row.shard)))

    @cached_property
    def sampled(self) -> dict[str, dict[int, list[RecordedGroup]]]:
        """The groups of every rollout batch and every evaluation, by purpose and number."""
        found: dict[str, dict[int, list[RecordedGroup]]] = {TRAIN: {}, EVALUATE: {}}
        for purpose, number in sorted(self._shards):
            found[purpose][number] = [group for shard in self.shards(number, purpose) for group in shard]
        return found

    def trained_on(self, step: int) -> list[Group]:
        """Return the groups that a training step trained on; none where they are not known."""
        return self._trained.get(step, [])

    @cached_property
    def _trained(self) -> dict[int, list[Group]]:
        rows = [row for (purpose, _), rows in self._shards.items() if purpose == TRAIN for row in rows]
        if self.batches:
            known = {
                (row.step, key): each.group
                for row in rows
                for key, each in zip(row.prompt_ids, groups_of(row), strict=True)
            }
            return {step: [known[key] for key in keys if key in known] for step, keys in self.batches.items()}
        steps = [row.step for row in self.run.steps]
        if not steps or len(rows) % len(steps):
            return {number: [each.group for each in groups] for number, groups in self.sampled[TRAIN].items()}
        shards = len(rows) // len(steps)  # of a step; under `drop` a step may take any batch
        return {
            step: [each.group for row in rows[index * shards : (index + 1) * shards] for each in groups_of(row)]
            for index, step in enumerate(steps)
        }

    def behind(self, span: Span) -> list[Group]:
        """Return the groups that a span worked on; none where they, or the tokens of their prompts, are not known."""
        groups: list[Group] = []
        if span.stage in OF_A_BATCH or span.stage is Stage.WAIT_FOR_RECORDER:
            groups = self.trained_on(span.step)
        elif span.stage is Stage.EVALUATE:
            groups = [group.group for group in self.sampled[EVALUATE].get(span.step, ())]
        elif span.stage in (Stage.GENERATE, Stage.SCORE):
            shards, number = self.shards(span.step), self._turns[span.stage, span.step].index(span)
            if number < len(shards):
                groups = [group.group for group in shards[self._turn_order(span, len(shards))[number]]]
        return groups if any(prompt for prompt, _ in groups) else []

    def _turn_order(self, span: Span, shards: int) -> Sequence[int]:
        """The shards of this stage's spans: orders are taken one after the other, and scored as they end."""
        ends = [each.end_ns for each in self._turns.get((Stage.GENERATE, span.step), ())]
        if span.stage is Stage.GENERATE or len(ends) != shards:
            return range(shards)
        return sorted(range(shards), key=ends.__getitem__)

    @cached_property
    def _turns(self) -> dict[tuple[Stage, int], list[Span]]:
        """The generate and score spans of each batch, by start."""
        turns: dict[tuple[Stage, int], list[Span]] = defaultdict(list)
        for span in self.spans:
            if span.stage in (Stage.GENERATE, Stage.SCORE):
                turns[span.stage, span.step].append(span)
        return turns

    # ---- who was at work, and what for

    @cached_property
    def busy(self) -> dict[str, list[Interval]]:
        """When each lane was at work."""
        lanes: dict[str, list[Interval]] = defaultdict(list)
        for span in filter(_is_work, self.spans):
            lanes[span.lane].append((span.start_ns, span.end_ns))
        return {lane: merge(times) for lane, times in lanes.items()}

    @cached_property
    def works(self) -> list[RecordedCall]:
        """The calls of all lanes by their start, without their ways."""
        calls = [call for lane, spans in self.by_lane.items() for call in _calls(lane, spans)]
        return sorted(calls, key=lambda call: call.start_ns)

    @cached_property
    def by_lane(self) -> dict[str, list[Span]]:
        """The spans of each lane, by name."""
        lanes: dict[str, list[Span]] = defaultdict(list)
        for span in self.spans:
            lanes[span.lane].append(span)
        return dict(sorted(lanes.items()))

    def calls(self, one_thread: bool = False) -> tuple[list[RecordedCall], dict[int, float]]:
        """Return the calls by their start, and by training step the seconds of the driver's own bookkeeping after it.

        Args:
            one_thread: whether all parts took turns on one: then a part's delay while another works is no latency.
        """
        origin_ns, _ = loop_window(self.spans, None)
        rows = [(origin_ns + round(row.elapsed_s * 1e9), row.step) for row in self.run.steps]
        calls: list[RecordedCall] = []
        record_s: dict[int, float] = {}
        for name, spans in self.by_lane.items():
            busy = [time for lane, times in self.busy.items() if lane != name and one_thread for time in times]
            lane = _Lane(name, spans, origin_ns, rows if lane_kind(name) == "learner" else [], busy)
            calls += lane.calls()
            record_s |= lane.bookkeeping()
        return sorted(calls, key=lambda call: call.start_ns), record_s


def groups_of(row: ShardRow) -> list[RecordedGroup]:
    """Return the groups of a shard."""
    return list(map(RecordedGroup, row.prompt_tokens, row.lengths, row.rewards))


def checked(tree: Tree, subject: str) -> Scenario:
    """Return the scenario of one run.

    Raises:
        UserError: with every rule that it breaks.
    """
    scenario, problems = check_variant(tree)
    if scenario is None or problems:
        raise as_user_error([problem.located(tree.origins) for problem in problems], subject)
    return scenario


def _is_work(span: Span) -> bool:
    return not span.stage.is_wait and span.stage is not Stage.STARTUP


def _calls(lane: str, spans: Iterable[Span]) -> Iterator[RecordedCall]:
    """Yield the calls of a lane, without their ways: spans of one kind of work and step that follow each other.

    One ends after its only span, or where the loop waited in between. Loads may lie within others.

    Raises:
        UserError: nothing that the lane did is known.
    """
    spans = list(spans)
    waits = sorted(s.start_ns for s in spans if s.stage.is_wait and s.stage not in _BETWEEN)

    def waited(before: Span, after: Span) -> bool:
        return bisect_left(waits, before.end_ns) != bisect_left(waits, after.start_ns)

    tracks: dict[bool, list[tuple[Work, int, Span]]] = defaultdict(list)
    for work, key, span in _asked_for(lane, filter(_is_work, spans), waited):
        tracks[work is Work.LOAD].append((work, key, span))
    for track in tracks.values():
        for (work, key), members in groupby(track, lambda each: each[:2]):
            own = [span for *_, span in members]
            body = own[:1]
            for before, after in pairwise(own):
                is_whole = after.stage in _WORK and any(each.stage in _WORK for each in body)
                if waited(before, after) or (work in _ONE_SPAN and is_whole):
                    yield RecordedCall(lane, work, key, tuple(_stages(body)))
                    body = []
                body.append(after)
            yield RecordedCall(lane, work, key, tuple(_stages(body)))


def _asked_for(
    lane: str, spans: Iterable[Span], waited: Callable[[Span, Span], bool]
) -> Iterator[tuple[Work, int, Span]]:
    """Yield each span of a lane with the work and the step of its call.

    A stage that is not in ``_WORK``, as memory that is moved or one of another version, is part of the call before it;
    after a wait, of the one that follows.
    """
    call: tuple[Work, int] | None = None
    beginning: list[Span] = []
    for span in spans:
        work = _WORK.get(span.stage)
        if span.stage is Stage.WEIGHT_VERIFY:
            work = Work.PUBLISH if lane == "learner" else Work.LOAD
        if work is not None:
            call, asked = (work, span.step), span
            yield from ((*call, each) for each in (*beginning, span))
            beginning.clear()
        elif call is not None and not waited(asked, span):
            yield *call, span
        else:
            beginning.append(span)
    if beginning and call is None:
        what = f"{lane} is never in a stage that the loop asks for, but in {beginning[0].stage.value}"
        raise UserError(what, SPANS, "name another run")
    if call is not None:
        yield from ((*call, each) for each in beginning)


def _stages(spans: Sequence[Span]) -> Iterator[RecordedStage]:
    """Yield the stages of one call and what lies between them."""
    now_ns = spans[0].start_ns
    for span in spans:
        if span.start_ns > now_ns:
            yield RecordedStage(None, (span.start_ns - now_ns) / 1e9, now_ns, span.start_ns)
        start_ns = max(now_ns, span.start_ns)
        if span.end_ns >= start_ns:
            yield RecordedStage(span.stage, (span.end_ns - start_ns) / 1e9, start_ns, span.end_ns)
            now_ns = span.end_ns


class _Lane:
    """The calls of one lane with their ways.

    Args:
        rows: (end, step) of each training step, on the Learner's lane.
        busy: when other parts held the only thread.
    """

    def __init__(
        self, lane: str, spans: Sequence[Span], origin_ns: int, rows: list[tuple[int, int]], busy: list[Interval]
    ) -> None:
        self._rows, self._busy, self._origin_ns = rows, busy, origin_ns
        under_way = [s for s in spans if s.stage is Stage.WAIT_FOR_CALL]
        self._requests, self._answers = {s.end_ns: s for s in under_way}, {s.start_ns: s for s in under_way}
        self._recorder = {s.step: s.end_ns for s in spans if s.stage is Stage.WAIT_FOR_RECORDER}
        self._calls = sorted(_calls(lane, spans), key=lambda call: call.start_ns)
        self._begun, self._ended = {call.start_ns for call in self._calls}, {call.end_ns for call in self._calls}
        # what the loop's own coroutine of this lane went through
        points = [(s.start_ns, s.end_ns) for s in spans if s.stage.is_wait and s.stage not in _BETWEEN]
        points += [(call.start_ns, call.end_ns) for call in self._calls] + [(at, at) for at, _ in rows]
        self._starts = sorted(start for start, _ in points)
        self._ends = sorted([*(end for _, end in points), *self._recorder.values()])

    def calls(self) -> Iterator[RecordedCall]:
        """Yield the calls with their latencies."""
        latest_ns = self._origin_ns
        for index, call in enumerate(self._calls):
            if call.work is Work.CHECKPOINT_WRITE:  # nobody waits for it
                yield call
                continue
            inside = call.start_ns < latest_ns  # weights that came in the middle of a batch
            latest_ns = max(latest_ns, call.end_ns)
            overlapped = index + 1 < len(self._calls) and self._calls[index + 1].start_ns < call.end_ns
            if inside or overlapped:
                ways = _lasted(self._requests.get(call.start_ns)), _lasted(self._answers.get(call.end_ns))
            else:
                ways = self._request(call), self._response(call)
            yield replace(call, request_s=ways[0], response_s=ways[1])

    def bookkeeping(self) -> dict[int, float]:
        """Return by training step the seconds from its end until the Learner's coroutine went on."""
        ends_ns: dict[int, int] = {}
        for row_ns, step in self._rows:
            start_ns = self._next_start(row_ns, True)
            if step in self._recorder:
                ends_ns[step] = self._recorder[step] - row_ns
            elif start_ns is not None and start_ns not in self._begun:
                ends_ns[step] = start_ns - row_ns
        return {step: max(0.0, ns / 1e9) for step, ns in ends_ns.items()}

    def _request(self, call: RecordedCall) -> float:
        place = bisect_right(self._ends, call.start_ns)
        start_ns = max(self._ends[place - 1] if place else self._origin_ns, self._origin_ns)
        if start_ns in self._ended:  # another call, whose answer was on its way first
            answer = self._answers.get(start_ns)
            start_ns = min(answer.end_ns, call.start_ns) if answer else (start_ns + call.start_ns) // 2
        return self._free_s(start_ns, call.start_ns)

    def _response(self, call: RecordedCall) -> float:
        end_ns, answer = self._next_start(call.end_ns, call.start_ns == call.end_ns), self._answers.get(call.end_ns)
        if end_ns is None:
            return _lasted(answer)
        if end_ns in self._begun:  # another call, at once
            end_ns = min(answer.end_ns, end_ns) if answer else (call.end_ns + end_ns) // 2
        return self._free_s(call.end_ns, end_ns)

    def _free_s(self, start_ns: int, end_ns: int) -> float:
        """Seconds between two moments in which no other part held the only thread."""
        return (end_ns - start_ns - total(clip(self._busy, (start_ns, end_ns)))) / 1e9

    def _next_start(self, time_ns: int, is_itself: bool) -> int | None:
        """When the next thing began at or after this moment, apart from the one in question if it began then too."""
        place = bisect_left(self._starts, time_ns) + is_itself
        return self._starts[place] if place < len(self._starts) else None


def _lasted(span: Span | None) -> float:
    return 0.0 if span is None else (span.end_ns - span.start_ns) / 1e9


def run_label(run: Run) -> str:
    """Return what a profile calls a run: scenario, experiment, and its arm, point, seed and block where it has them."""
    manifest = run.manifest
    variant = arm_labels([(manifest.arm, manifest.point)], "")[0]
    seed = f"seed={manifest.point['seed']}" if "seed" in manifest.point else ""
    block = "" if manifest.block is None else f"block{manifest.block}"
    return "/".join(part for part in (manifest.scenario, manifest.experiment, variant, seed, block) if part)


def choose_run(path: Path, name: str | None = None) -> Run:
    """Return the run at or below a folder.

    Args:
        path: a run's folder, or one above.
        name: of the run's folder, that folder's way from ``path``, or the run's arm; None where there is one run only.

    Raises:
        UserError: there is no run, none of that name, or more than one that fits.
    """
    folders = find_run_folders(path)
    fitting = folders if name is None else [folder for folder in folders if _is_called(folder, path, name)]
    if len(fitting) == 1:
        return load_run(fitting[0])
    names = [folder.name if folder != path else str(folder) for folder in fitting or folders]
    if len(set(names)) < len(names):  # of several experiments
        names = [str(folder.relative_to(path)) for folder in fitting or folders]
    listed = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    if not fitting:
        raise UserError(f"no run in {str(path)!r} is called {name!r}; there are {listed}", "--run", "name one of them")
    called = "" if name is None else f" called {name!r}"
    what = f"{len(fitting)} runs in {str(path)!r}{called}: {listed}"
    raise UserError(what, "--run", "name one with --run, or its folder")


def _is_called(folder: Path, path: Path, name: str) -> bool:
    if name in (folder.name, str(folder.relative_to(path))):
        return True
    try:
        return read_manifest(folder).arm == name
    except UserError:  # a damaged run beside the one that is asked for
        return False
