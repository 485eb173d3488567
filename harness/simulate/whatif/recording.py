"""A recorded run as a replay needs it: the calls of each part, read from its spans, and the rollouts.

Every lane takes one call after the other: publish, update, checkpoint and save its policy the Learner; load, generate
and evaluate a Generator; score and evaluate a Scorer. What writes a checkpoint begins when that is copied. A call's
stages follow each other. What lies between the end of a wait and the first stage is the call's way to the part, what
lies between the last stage and the next wait is its answer's way back; where two calls follow each other without a
wait, the recorded ``wait_for_call`` spans divide the time between them, and in runs of before these were written each
gets half.

A replay has the recorded rollouts in their order. With other batch or group sizes the recorded groups follow each other
into the new batches, round and round; a smaller group takes the first responses of a recorded one, a larger one draws
the missing ones from it again.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby, pairwise

from harness.compare.checkpoints import has_kept_steps
from harness.core.errors import UserError
from harness.core.intervals import clip, total
from harness.core.seeds import derive_seed
from harness.core.trace import Span, Stage
from harness.core.types import Metric, Metrics, Purpose, RolloutGroup, ScoredBatch, WorkItem
from harness.results import BatchRow, Run, ShardRow, StepRow, lane_kind, natural_order
from harness.results.occupancy import loop_window, part_spans
from harness.results.rows import SPANS
from harness.simulate.features import Group
from harness.simulate.parts import Sampled, with_rewards


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


_WORK = {
    Stage.PREPARE_BATCH: Work.UPDATE,
    Stage.OLD_LOGPROBS: Work.UPDATE,
    Stage.REFERENCE_LOGPROBS: Work.UPDATE,
    Stage.UPDATE: Work.UPDATE,
    Stage.WEIGHT_PUBLISH: Work.PUBLISH,
    Stage.WEIGHT_TRANSFER: Work.LOAD,
    Stage.WEIGHT_LOAD: Work.LOAD,
    Stage.GENERATE: Work.GENERATE,
    Stage.SCORE: Work.SCORE,
    Stage.EVALUATE: Work.EVALUATE,
    Stage.CHECKPOINT: Work.CHECKPOINT,
    Stage.CHECKPOINT_WRITE: Work.CHECKPOINT_WRITE,
    Stage.SAVE_POLICY: Work.SAVE_POLICY,
}
_ONE_SPAN = (Work.GENERATE, Work.SCORE, Work.EVALUATE, Work.SAVE_POLICY)
_BETWEEN = (Stage.WAIT_FOR_CALL, Stage.WAIT_FOR_RECORDER, Stage.WAIT_FOR_RANKS)


@dataclass(frozen=True, slots=True)
class RecordedStage:
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
        """When the work began."""
        return self.stages[0].start_ns

    @property
    def end_ns(self) -> int:
        """When the work ended."""
        return self.stages[-1].end_ns

    def seconds(self, stage: Stage | None = None) -> float:
        """Return the seconds of the work, or of one stage of it."""
        return sum(each.seconds for each in self.stages if stage is None or each.stage is stage)


@dataclass(frozen=True)
class Recording:
    """What a replay needs of a run.

    Attributes:
        calls: of every lane, in order of time.
        record_s: seconds that the driver spent on its own bookkeeping after each training step.
        rows: of the training steps.
        shards: the rollouts of each scored shard by (purpose, step, shard); empty in runs of before they were written.
        batches: the groups that each step trained on under replay, as (batch, prompt id).
    """

    calls: tuple[RecordedCall, ...]
    record_s: Mapping[int, float]
    rows: tuple[StepRow, ...]
    shards: Mapping[tuple[str, int, int], ShardRow] = field(default_factory=dict)
    batches: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def lanes(self, kind: str) -> list[str]:
        """Return the names of the lanes of a kind, such as ``generator``, in order."""
        return sorted({call.lane for call in self.calls if lane_kind(call.lane) == kind}, key=natural_order)

    def with_calls(self, calls: Iterable[RecordedCall]) -> Recording:
        """Return the same recording with other calls."""
        return replace(self, calls=tuple(calls))


def read_recording(run: Run, one_thread: bool = False) -> Recording:
    """Read what a replay needs of a run.

    Args:
        run: as read from its folder.
        one_thread: whether all parts took turns on one thread: then a part's delay while another works is no latency.

    Raises:
        UserError: the run has no spans or no training steps, did not finish, or a part of it died.
    """
    spans = _checked_spans(run)
    origin_ns, _ = loop_window(spans, None)
    calls: list[RecordedCall] = []
    record_s: dict[int, float] = {}
    by_lane = {lane: list(own) for lane, own in groupby(sorted(spans, key=lambda span: span.lane), lambda s: s.lane)}
    for lane, own in by_lane.items():
        rows = (
            [(origin_ns + round(row.elapsed_s * 1e9), row.step) for row in run.steps]
            if lane_kind(lane) == "learner"
            else []
        )
        busy = [(s.start_ns, s.end_ns) for s in spans if s.lane != lane and not s.stage.is_wait] if one_thread else []
        reader = _LaneReader(lane, own, origin_ns, rows, busy)
        calls += reader.calls()
        record_s |= reader.bookkeeping()
    rows_read = run.groups()
    shards = {(row.purpose, row.step, row.shard): row for row in rows_read if isinstance(row, ShardRow)}
    batches = {row.step: row.groups for row in rows_read if isinstance(row, BatchRow)}
    return Recording(tuple(sorted(calls, key=lambda call: call.start_ns)), record_s, run.steps, shards, batches)


def _checked_spans(run: Run) -> list[Span]:
    where = str(run.folder)
    if run.syncs:
        what = f"{where!r} is a transport sweep, which trains nothing, so there is nothing to replay"
        raise UserError(what, where, "name a training run")
    if not run.steps or run.tail is None:
        raise UserError(f"the run {where!r} did not get to its end ({run.status})", where, "name a completed run")
    if run.setting("dynamic_sampling.attempts"):
        what = f"the run {where!r} sampled groups again (dynamic_sampling), which a replay does not do"
        raise UserError(what, where, "name a run without it")
    if run.setting("learner.overlapped_publish"):
        what = f"the run {where!r} published weights while it trained (learner.overlapped_publish), and no replay does"
        raise UserError(what, where, "name a run without it")
    if run.setting("learner.stream"):
        what = f"the run {where!r} trained on parts of a batch (learner.stream), which a replay does not do"
        raise UserError(what, where, "name a run without it")
    spans = part_spans(run.spans())
    if not spans:
        raise UserError(
            f"the run {where!r} has no spans, so there is nothing to replay",
            str(run.folder / SPANS),
            "name another run",
        )
    if any(run.replaced.values()):
        died = ", ".join(f"{lane} {times} times" for lane, times in run.replaced.items() if times)
        raise UserError(
            f"parts of the run {where!r} died and were replaced ({died}): their calls cannot be told apart",
            where,
            "name a run in which nothing died",
        )
    if has_kept_steps(run):
        raise UserError(
            f"the run {where!r} kept training steps, whose saves cannot be told from those of checkpoints",
            where,
            "name a run without checkpoint.keep_steps",
        )
    if run.setting("checkpoint.every") is None:  # the stage's name before runs made checkpoints
        return [s._replace(stage=Stage.SAVE_POLICY) if s.stage is Stage.CHECKPOINT else s for s in spans]
    return spans


class _LaneReader:
    """The calls of one lane.

    Args:
        lane: its name.
        spans: of this lane.
        origin_ns: when the loop began.
        rows: (end, step) of each training step, on the Learner's lane.
        busy: when other parts held the only thread.
    """

    def __init__(
        self, lane: str, spans: Sequence[Span], origin_ns: int, rows: list[tuple[int, int]], busy: list[tuple[int, int]]
    ) -> None:
        self._lane, self._rows, self._busy = lane, rows, busy
        under_way = [s for s in spans if s.stage is Stage.WAIT_FOR_CALL]
        self._requests = {s.end_ns: s for s in under_way}
        self._responses = {s.start_ns: s for s in under_way}
        self._recorder = {s.step: s for s in spans if s.stage is Stage.WAIT_FOR_RECORDER}
        self._waits = sorted((s.start_ns, s.end_ns) for s in spans if s.stage.is_wait and s.stage not in _BETWEEN)
        work = [s for s in spans if not s.stage.is_wait and s.stage is not Stage.STARTUP]
        self._bodies = sorted(self._grouped(work), key=lambda call: call.start_ns)
        self._origin_ns = origin_ns
        bodies = [(call.start_ns, call.end_ns) for call in self._bodies]
        self._begun, self._ended = {start for start, _ in bodies}, {end for _, end in bodies}
        # what the loop's own coroutine of this lane went through
        points = [*self._waits, *bodies, *((at, at) for at, _ in rows)]
        self._starts = sorted(start for start, _ in points)
        self._ends = sorted([end for _, end in points] + [span.end_ns for span in self._recorder.values()])

    def calls(self) -> Iterator[RecordedCall]:
        """Yield the calls with their latencies."""
        latest_ns = self._origin_ns
        for index, call in enumerate(self._bodies):
            if call.work is Work.CHECKPOINT_WRITE:  # nobody waits for it
                yield call
                continue
            inside = call.start_ns < latest_ns  # weights that came in the middle of a batch
            latest_ns = max(latest_ns, call.end_ns)
            overlapped = index + 1 < len(self._bodies) and self._bodies[index + 1].start_ns < call.end_ns
            if inside or overlapped:
                yield replace(call, request_s=self._recorded_request(call), response_s=self._recorded_response(call))
            else:
                yield replace(call, request_s=self._request(call), response_s=self._response(call))

    def bookkeeping(self) -> dict[int, float]:
        """Return by training step the seconds from its end until the Learner's coroutine went on."""
        spent = {}
        for end_ns, step in self._rows:
            start_ns = self._next_start(end_ns, True)
            if step in self._recorder:
                spent[step] = (self._recorder[step].end_ns - end_ns) / 1e9
            elif start_ns is not None and start_ns not in self._begun:
                spent[step] = (start_ns - end_ns) / 1e9
        return {step: max(0.0, seconds) for step, seconds in spent.items()}

    def _grouped(self, work: Sequence[Span]) -> Iterator[RecordedCall]:
        """Yield the calls without latencies: the spans of one kind of work and step that follow each other."""
        tracks: dict[bool, list[Span]] = {}
        for span in sorted(work, key=lambda span: span.start_ns):
            tracks.setdefault(self._work(span) is Work.LOAD, []).append(span)
        for track in tracks.values():
            for (kind, key), members in groupby(track, lambda span: (self._work(span), span.step)):
                for body in self._apart(kind, list(members)):
                    yield RecordedCall(self._lane, kind, key, tuple(_stages(body)))

    def _apart(self, kind: Work, spans: list[Span]) -> Iterator[list[Span]]:
        """Cut where one call ends: after its only span, or where the loop waited in between."""
        starts = [start for start, _ in self._waits]
        body = spans[:1]
        for before, after in pairwise(spans):
            waited = bisect_left(starts, before.end_ns) != bisect_left(starts, after.start_ns)
            if waited or kind in _ONE_SPAN:
                yield body
                body = []
            body.append(after)
        yield body

    def _work(self, span: Span) -> Work:
        if span.stage is Stage.WEIGHT_VERIFY:
            return Work.PUBLISH if self._lane == "learner" else Work.LOAD
        return _WORK[span.stage]

    def _request(self, call: RecordedCall) -> float:
        start_ns = self._ends[place - 1] if (place := bisect_right(self._ends, call.start_ns)) else self._origin_ns
        start_ns = max(start_ns, self._origin_ns)
        if start_ns in self._ended:  # another call, whose answer was on its way first
            answer = self._responses.get(start_ns)
            start_ns = min(answer.end_ns, call.start_ns) if answer else (start_ns + call.start_ns) // 2
        return self._free_s(start_ns, call.start_ns)

    def _response(self, call: RecordedCall) -> float:
        end_ns, answer = self._next_start(call.end_ns, call.start_ns == call.end_ns), self._responses.get(call.end_ns)
        if end_ns is None:
            return self._recorded_response(call)
        if end_ns in self._begun:  # another call, at once
            end_ns = min(answer.end_ns, end_ns) if answer else (call.end_ns + end_ns) // 2
        return self._free_s(call.end_ns, end_ns)

    def _recorded_request(self, call: RecordedCall) -> float:
        way = self._requests.get(call.start_ns)
        return (way.end_ns - way.start_ns) / 1e9 if way else 0.0

    def _recorded_response(self, call: RecordedCall) -> float:
        answer = self._responses.get(call.end_ns)
        return (answer.end_ns - answer.start_ns) / 1e9 if answer else 0.0

    def _free_s(self, start_ns: int, end_ns: int) -> float:
        """Seconds between two moments in which no other part held the only thread."""
        return (end_ns - start_ns - total(clip(self._busy, (start_ns, end_ns)))) / 1e9

    def _next_start(self, time_ns: int, is_itself: bool) -> int | None:
        """When the next thing began at or after this moment, apart from the one in question if it began then too."""
        place = bisect_left(self._starts, time_ns) + is_itself
        return self._starts[place] if place < len(self._starts) else None


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


UNKNOWN_REWARD = 0.5


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """One recorded group: tokens of the prompt (None: not known) and of each response, and the rewards."""

    prompt: int | None
    lengths: tuple[int, ...]
    rewards: tuple[float, ...]

    @property
    def group(self) -> Group:
        """As costs count it."""
        return self.prompt or 0, self.lengths


Batch = dict[int, RecordedGroup]
"""Groups by their place: one prompt may be in a batch twice."""


class Rollouts:
    """What the Generators of a replay return.

    Args:
        recording: the run.
        prompts_per_batch, group_size: of the replay.
        recorded_shape: the same two of the run.
        validation: prompts of an evaluation, where none is recorded.
        seed: of the responses drawn again.

    Attributes:
        known: whether lengths were recorded at all.
        validation_ids: of every evaluation.
    """

    def __init__(
        self,
        recording: Recording,
        prompts_per_batch: int,
        group_size: int,
        recorded_shape: tuple[int, int],
        validation: int,
        seed: int = 0,
    ) -> None:
        self._prompts, self._size, self._seed = prompts_per_batch, group_size, seed
        self._same_shape = (prompts_per_batch, group_size) == recorded_shape
        self._recorded = recorded_batches(recording)
        self._evaluated = {key[1]: _sampled([row]) for key, row in recording.shards.items() if key[0] == "evaluate"}
        self._groups = [sampled for number in sorted(self._recorded) for sampled in self._recorded[number].values()]
        self.known = bool(self._recorded)
        self._some_evaluation = next(iter(self._evaluated.values()), _unknown(validation, 1))
        self.validation_ids = tuple(self._some_evaluation)
        self._made: dict[int, Batch] = {}

    def batch_prompts(self, number: int) -> tuple[int, ...]:
        """Return what stands for the prompts of a rollout batch: their places."""
        return tuple(self.batch(number))

    def sample(self, item: WorkItem) -> list[Sampled]:
        """Return what a Generator samples; see ``harness.simulate.parts.Sample``."""
        batch = self._of(item)
        return [(batch[prompt_id].prompt, batch[prompt_id].lengths) for prompt_id in item.prompt_ids]

    def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """Return the groups with their recorded rewards; see ``harness.simulate.parts.Score``."""
        batch = self._of(item)
        scored = tuple(with_rewards(group, batch[group.prompt_id].rewards) for group in groups)
        rewards = [reward for group in scored for reward in group.rewards or ()]
        name = "validation/reward" if item.purpose is Purpose.EVALUATE else "reward/total"
        metrics: Metrics = {name: Metric(sum(rewards) / len(rewards), count=len(rewards))} if rewards else {}
        return ScoredBatch(item, scored, metrics)

    def _of(self, item: WorkItem) -> Batch:
        if item.purpose is Purpose.TRAIN:
            return self.batch(item.step)
        return self._evaluated.get(item.step) or self._some_evaluation

    def batch(self, number: int) -> Batch:
        """Return the groups of a rollout batch."""
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def _make(self, number: int) -> Batch:
        if not self.known:
            return _unknown(self._prompts, self._size)
        first = number * self._prompts
        following = {place: self._following(first + place) for place in range(self._prompts)}
        if not self._same_shape:
            return following
        numbers = sorted(self._recorded)
        recorded = self._recorded.get(number) or self._recorded[numbers[number % len(numbers)]]
        return following | recorded  # where groups got no reward, others stand in

    def _following(self, place: int) -> RecordedGroup:
        """Return the recorded group that comes at this place of all, with as many responses as are asked for."""
        sampled = self._groups[place % len(self._groups)]
        missing = self._size - len(sampled.lengths)
        rng = random.Random(derive_seed(self._seed, "whatif", place))
        again = [rng.randrange(len(sampled.lengths)) for _ in range(missing)]
        chosen = [*range(len(sampled.lengths)), *again][: self._size]
        lengths, rewards = (tuple(values[index] for index in chosen) for values in (sampled.lengths, sampled.rewards))
        return RecordedGroup(sampled.prompt, lengths, rewards)


def _unknown(groups: int, size: int) -> Batch:
    sampled = RecordedGroup(None, (1,) * size, (UNKNOWN_REWARD,) * size)
    return dict.fromkeys(range(groups), sampled)


def recorded_batches(recording: Recording) -> dict[int, Batch]:
    """Return the recorded rollout batches by number."""
    shards: dict[int, list[ShardRow]] = {}
    for purpose, number, shard in sorted(recording.shards):
        if purpose == Purpose.TRAIN.value:
            shards.setdefault(number, []).append(recording.shards[purpose, number, shard])
    return {number: _sampled(rows) for number, rows in shards.items()}


def trained_groups(recording: Recording) -> dict[int, tuple[Group, ...]]:
    """Return by training step the groups that it trained on; empty where no lengths were recorded."""
    rows = [row for (purpose, _, _), row in recording.shards.items() if purpose == Purpose.TRAIN.value]
    if recording.batches:
        known = {(row.step, prompt_id): sampled.group for row in rows for prompt_id, sampled in _groups_of(row)}
        return {step: tuple(known[key] for key in keys if key in known) for step, keys in recording.batches.items()}
    if not recording.rows or len(rows) % len(recording.rows):
        return {number: _groups(batch) for number, batch in recorded_batches(recording).items()}
    shards = len(rows) // len(recording.rows)  # of a step; under `drop` a step may take any batch
    return {
        step.step: _groups(_sampled(rows[index * shards : (index + 1) * shards]))
        for index, step in enumerate(recording.rows)
    }


def _groups(batch: Batch) -> tuple[Group, ...]:
    return tuple(sampled.group for sampled in batch.values())


def _sampled(rows: Sequence[ShardRow]) -> Batch:
    return dict(enumerate(sampled for row in rows for _, sampled in _groups_of(row)))


def _groups_of(row: ShardRow) -> Iterator[tuple[int, RecordedGroup]]:
    """Yield each group of a shard with the id of its prompt."""
    for prompt_id, prompt, lengths, rewards in zip(
        row.prompt_ids, row.prompt_tokens, row.lengths, row.rewards, strict=True
    ):
        yield prompt_id, RecordedGroup(prompt, lengths, rewards)
