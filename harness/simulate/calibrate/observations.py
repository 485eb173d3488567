"""From recorded runs to observations: one for each span of a stage, with what its time may depend on counted.

Totals of training steps are never looked at: a fit to them could be right for wrong reasons.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

from harness.compare.experiment import arm_labels
from harness.core.errors import UserError
from harness.core.intervals import Interval, merge, total
from harness.core.trace import Span, Stage
from harness.results import Run, find_runs, lane_kind
from harness.results.occupancy import part_spans
from harness.results.rows import BatchRow, ShardRow
from harness.results.writer import SCENARIO
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.cost_model import cost_key, model_name, placement_of
from harness.simulate.features import Features, Group, Workload, sync_features
from harness.simulate.machine import Lengths

OF_A_BATCH = (Stage.PREPARE_BATCH, Stage.OLD_LOGPROBS, Stage.REFERENCE_LOGPROBS, Stage.UPDATE)
"""Stages of the Learner that work on what a training step trains on."""
CHECKPOINTING = (Stage.CHECKPOINT, Stage.CHECKPOINT_WRITE)


class Rollouts:
    """The rollouts of one run.

    Args:
        run: that was recorded.
        spans: of it, by their start.
    """

    def __init__(self, run: Run, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._shards: dict[tuple[str, int], list[ShardRow]] = defaultdict(list)
        self._batches: dict[int, BatchRow] = {}
        for row in run.groups():
            if isinstance(row, BatchRow):
                self._batches[row.step] = row
            else:
                self._shards[row.purpose, row.step].append(row)

    def behind(self, span: Span) -> list[Group]:
        """Return the groups that a span worked on; none where they are not known."""
        if span.stage in OF_A_BATCH:
            return self.trained_on(span.step)
        if span.stage is Stage.EVALUATE:
            return _sizes(self._shards.get(("evaluate", span.step), ()))
        if span.stage not in (Stage.GENERATE, Stage.SCORE):
            return []
        shards = self._shards.get(("train", span.step), [])
        number = self._turns[span.stage, span.step].index(span)
        if number >= len(shards):
            return []
        shard = self._shard_order(span, shards)[number]
        return _sizes([shard])

    def _shard_order(self, span: Span, shards: list[ShardRow]) -> list[ShardRow]:
        """Shards in the order of this stage's spans: orders are taken one after the other, and scored as they end."""
        by_number = sorted(shards, key=lambda row: row.shard)
        if span.stage is Stage.GENERATE or len(shards) == 1:
            return by_number
        generated = self._turns.get((Stage.GENERATE, span.step), [])
        if len(generated) != len(shards):
            return by_number
        ends = [item.end_ns for item in generated]
        return [by_number[index] for index in sorted(range(len(ends)), key=ends.__getitem__)]

    @cached_property
    def _turns(self) -> dict[tuple[Stage, int], list[Span]]:
        """The generate and score spans of each batch, by start."""
        turns: dict[tuple[Stage, int], list[Span]] = defaultdict(list)
        for span in self._spans:
            if span.stage in (Stage.GENERATE, Stage.SCORE):
                turns[span.stage, span.step].append(span)
        return turns

    def trained_on(self, step: int) -> list[Group]:
        """Return the groups that a training step trained on; none where they are not known."""
        batch = self._batches.get(step)
        if batch is None:
            return _sizes(sorted(self._shards.get(("train", step), ()), key=lambda row: row.shard))
        return [self._by_group[key] for key in batch.groups if key in self._by_group]

    @cached_property
    def _by_group(self) -> dict[tuple[int, int], Group]:
        """Sizes by batch number and prompt id."""
        found: dict[tuple[int, int], Group] = {}
        for (purpose, step), shards in self._shards.items():
            if purpose == "train":
                for row in shards:
                    sizes = zip(row.prompt_ids, row.prompt_tokens, row.lengths, strict=True)
                    found |= {(step, key): (tokens or 0, lengths) for key, tokens, lengths in sizes}
        return found


def _sizes(shards: Iterable[ShardRow]) -> list[Group]:
    """Prompt and response tokens of every group; none where tokens are behind none of them."""
    groups: list[Group] = []
    for shard in shards:
        for tokens, lengths in zip(shard.prompt_tokens, shard.lengths, strict=True):
            groups.append((tokens or 0, lengths))
    return groups if any(prompt for prompt, _ in groups) else []


TOUCHED = 0.02
"""Share of a span in which others worked, from which on it tells of contention and not of its own cost."""
CALL_OF = {
    ("generator", Stage.GENERATE): "generate",
    ("generator", Stage.EVALUATE): "generate",
    ("generator", Stage.WEIGHT_TRANSFER): "load",
    ("generator", Stage.WEIGHT_LOAD): "load",
    ("generator", Stage.WEIGHT_VERIFY): "load",
    ("scorer", Stage.SCORE): "score",
    ("scorer", Stage.EVALUATE): "score",
    ("learner", Stage.PREPARE_BATCH): "update",
    ("learner", Stage.OLD_LOGPROBS): "update",
    ("learner", Stage.REFERENCE_LOGPROBS): "update",
    ("learner", Stage.UPDATE): "update",
    ("learner", Stage.WEIGHT_PUBLISH): "publish",
    ("learner", Stage.WEIGHT_VERIFY): "publish",
    ("learner", Stage.SAVE_POLICY): "save_policy",
}
"""The call that a stage belongs to, by kind of lane."""
SYNC = (Stage.WEIGHT_PUBLISH, Stage.WEIGHT_TRANSFER, Stage.WEIGHT_LOAD, Stage.WEIGHT_VERIFY)
CARRIES_GROUPS = (("generate", "back"), ("score", "there"), ("score", "back"), ("update", "there"))
"""Ways of calls on which rollouts, or handles of them, travel."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The time of one span.

    Attributes:
        stage: as a profile names it: a Generator's evaluation is ``generate``, a Scorer's ``score``.
        where: its circumstances, all of them; see ``harness.simulate.cost_model``.
        model: name of the model.
        units: what was counted, by feature.
        seconds: it took.
        run: label of its run.
        arm: of that run, with what it has of a sweep; repeats share it.
        step: training step or policy version.
        others: mean number of other parts at work during the span.
    """

    stage: str
    where: Mapping[str, str]
    model: str
    units: Features
    seconds: float
    run: str
    arm: str
    step: int
    others: float = 0.0

    @property
    def is_alone(self) -> bool:
        """Whether nobody else worked meanwhile."""
        return self.others < TOUCHED


def run_label(run: Run) -> str:
    """Return what a profile calls a run: scenario, experiment, and its arm, point, seed and block where it has them."""
    manifest = run.manifest
    variant = arm_labels([(manifest.arm, manifest.point)], "")[0]
    seed = f"seed={manifest.point['seed']}" if "seed" in manifest.point else ""
    block = "" if manifest.block is None else f"block{manifest.block}"
    return "/".join(part for part in (manifest.scenario, manifest.experiment, variant, seed, block) if part)


def observe(run: Run) -> list[Observation]:
    """Return the observations of a training run; those of warm-up and of profiled steps are left out.

    The first weight sync of a run is kept, and counted as first.

    Raises:
        UserError: the run's scenario cannot be read, or the shape of its model is not known.
    """
    return list(Reading(run).observations())


def observe_sweep(run: Run) -> list[Observation]:
    """Return the observations of a transport sweep; verification is told as the sum over both ends."""
    label = run_label(run)
    found = []
    for row in run.syncs:
        units = sync_features(row.num_bytes, row.tensors, row.receivers, first=row.repeat == 0)
        for stage in ("publish", "transfer", "load", "verify"):
            seconds = float(getattr(row, f"{stage}_s"))
            others = 0.0 if stage == "publish" else float(row.receivers - 1)
            where = {"transport": row.transport}
            name = f"weight_{stage}"
            found.append(Observation(name, where, "", units, seconds, label, row.transport, row.repeat, others))
    return [item for item in found if item.seconds > 0]


class Reading:
    """One run, and what its spans worked on.

    Raises:
        UserError: see ``observe``.
    """

    def __init__(self, run: Run) -> None:
        manifest = run.manifest
        self.run, self.label = run, run_label(run)
        self.arm = arm_labels([(manifest.arm, manifest.point)], manifest.scenario)[0]
        self.scenario: Scenario = load_scenario(run.folder / SCENARIO)
        self.work = Workload(self.scenario)
        if self.work.shape is None:
            what = f"{self.label}: {self.work.shape_missing}, so its work cannot be counted"
            raise UserError(what, str(run.folder), "leave it out: name the folders of other runs with --from")
        self.cores = int(run.manifest.machine.get("cores") or 1)
        self.has_gpu = bool(run.manifest.machine.get("gpus"))
        self.spans = sorted(part_spans(run.spans()), key=lambda span: (span.start_ns, span.end_ns))
        self.left_out = {row.step for row in run.steps if row.warmup or row.profiled}
        self.rollouts = Rollouts(run, self.spans)

    def observations(self) -> Iterator[Observation]:
        """Yield one observation for each span whose work is known; those of several ranks are no one process'."""
        several = self.scenario.placement.learner.ranks > 1
        for span in self.spans:
            kind = lane_kind(span.lane)
            if not self.counts(span) or (several and kind == "learner"):
                continue
            if span.stage is Stage.WAIT_FOR_CALL:
                yield from self._call(span, kind)
            elif span.stage is Stage.WAIT_FOR_RECORDER:
                yield from self._record(span, kind)
            elif not span.stage.is_wait and span.stage not in CHECKPOINTING:
                yield from self._work(span, kind)
        if placement_of(self.scenario) == "in_process":
            yield from self._in_process_calls()
        if not several:
            yield from self._checkpoints()

    def _checkpoints(self) -> Iterator[Observation]:
        """Each checkpoint as one: what the Learner stood still for, and what was written beside training."""
        settings = self.scenario.checkpoint
        if settings.keeps_any:
            return  # their saves cannot be told from those of checkpoints
        found: dict[tuple[Stage, int], list[Span]] = defaultdict(list)
        for span in self.spans:
            if span.stage in CHECKPOINTING and self.counts(span):
                found[span.stage, span.step].append(span)
        asynchronous = settings.asynchronous
        for (stage, _), own in sorted(found.items()):
            units = self.work.checkpoint(copied=asynchronous and stage is Stage.CHECKPOINT)
            seconds = total((span.start_ns, span.end_ns) for span in own) / 1e9
            yield replace(self._observation(own[0], stage.value, units), seconds=seconds, others=0.0)

    def counts(self, span: Span) -> bool:
        """Whether a span is of a stage and a step that are looked at."""
        if span.stage is Stage.STARTUP or span.end_ns <= span.start_ns:
            return False
        first_sync = span.stage in SYNC and span.step == 0
        return first_sync or span.step not in self.left_out

    def _work(self, span: Span, kind: str) -> Iterator[Observation]:
        if span.stage in SYNC:
            part = {"part": kind} if span.stage is Stage.WEIGHT_VERIFY else {}
            yield self._observation(span, span.stage.value, self.work.sync(first=span.step == 0), part)
        elif span.stage is Stage.SAVE_POLICY:
            yield self._observation(span, "save_policy", self.work.sync(first=False))
        elif groups := self.rollouts.behind(span):
            stage, units = self._units(span, kind, groups)
            yield self._observation(span, stage, units)

    def _units(self, span: Span, kind: str, groups: Sequence[Group]) -> tuple[str, Features]:
        work = self.work
        if kind == "generator":
            return "generate", work.generate(groups)
        if kind == "scorer":
            return "score", work.batch(groups)
        if span.stage is Stage.UPDATE:
            return "update", work.update(groups)
        if span.stage is Stage.PREPARE_BATCH:
            return "prepare_batch", work.batch(groups)
        if span.stage is Stage.REFERENCE_LOGPROBS:
            return "reference_logprobs", work.reference_log_probs(groups)
        return span.stage.value, work.log_probs(groups)

    def _record(self, span: Span, kind: str) -> Iterator[Observation]:
        if kind == "learner" and (groups := self.rollouts.trained_on(span.step)):
            yield replace(self._observation(span, "record", self.work.batch(groups)), others=0.0)

    def _call(self, span: Span, kind: str) -> Iterator[Observation]:
        """One way of a call: on its far side lies the first or the last stage that the actor worked on for it."""
        begun, ended = self._starts.get((span.lane, span.end_ns)), self._ends.get((span.lane, span.start_ns))
        if begun is not None:
            yield from self._way(span, begun, kind, "there")
        elif ended is not None:
            yield from self._way(span, ended, kind, "back")

    def _way(self, span: Span, worked: Span, kind: str, way: str) -> Iterator[Observation]:
        call = CALL_OF.get((kind, worked.stage))
        if call is None:
            return
        carried = self.rollouts.behind(worked) if (call, way) in CARRIES_GROUPS else []
        told = {"call": call, "way": way}
        yield replace(self._observation(span, "call", self.work.call(carried), told), step=worked.step)

    def _in_process_calls(self) -> Iterator[Observation]:
        """Calls to threads leave no spans: what lies between the stages of two calls is counted as the second's way."""
        worked = [span for span in self.spans if not span.stage.is_wait and span.stage is not Stage.STARTUP]
        recorded = [(s.start_ns, s.end_ns) for s in self.spans if s.stage is Stage.WAIT_FOR_RECORDER]
        for before, after in pairwise(worked):
            gap = (before.end_ns, after.start_ns)
            pair = [CALL_OF.get((lane_kind(span.lane), span.stage)) for span in (before, after)]
            same = pair[0] == pair[1] and before.lane == after.lane and before.step == after.step
            if same or None in pair or gap[0] >= gap[1] or not self.counts(after):
                continue
            if any(start < gap[1] and gap[0] < end for start, end in recorded):
                continue
            told = {"call": str(pair[1]), "way": "there"}
            span = after._replace(start_ns=gap[0], end_ns=gap[1])
            yield self._observation(span, "call", self.work.call(), told)

    @cached_property
    def _starts(self) -> dict[tuple[str, int], Span]:
        return {(s.lane, s.start_ns): s for s in self.spans if not s.stage.is_wait}

    @cached_property
    def _ends(self) -> dict[tuple[str, int], Span]:
        return {(s.lane, s.end_ns): s for s in self.spans if not s.stage.is_wait}

    def _observation(
        self, span: Span, stage: str, units: Features, told: Mapping[str, str] | None = None
    ) -> Observation:
        return Observation(
            stage=stage,
            where=cost_key(self.scenario, stage, self.cores, self.has_gpu) | dict(told or {}),
            model=model_name(self.scenario),
            units=units,
            seconds=(span.end_ns - span.start_ns) / 1e9,
            run=self.label,
            arm=self.arm,
            step=span.step,
            others=self._others(span),
        )

    def _others(self, span: Span) -> float:
        """Mean number of other lanes at work during the span."""
        length = span.end_ns - span.start_ns
        return sum(
            _overlap(busy, (span.start_ns, span.end_ns)) for lane, busy in self._busy.items() if lane != span.lane
        ) / max(1, length)

    @cached_property
    def _busy(self) -> dict[str, list[Interval]]:
        lanes: dict[str, list[Interval]] = defaultdict(list)
        for span in self.spans:
            if not span.stage.is_wait and span.stage is not Stage.STARTUP:
                lanes[span.lane].append((span.start_ns, span.end_ns))
        return {lane: merge(times) for lane, times in lanes.items()}


def _overlap(busy: Sequence[Interval], window: Interval) -> int:
    """Length of the sorted, disjoint intervals inside the window."""
    place = max(0, bisect_right(busy, (window[0], window[0])) - 1)
    length = 0
    for start, end in busy[place:]:
        if start >= window[1]:
            break
        length += max(0, min(end, window[1]) - max(start, window[0]))
    return length


MOST_RESPONSES = {"train": 2048, "evaluate": 512}
"""Responses that a profile keeps of one task and model, by purpose."""

Sampled = tuple[int, Group]
"""Optimizer steps behind the policy that sampled a group, and the group."""


def recorded_lengths(runs: Sequence[Run]) -> Iterator[Lengths]:
    """Yield the lengths of the runs in which they were not pinned, from the least trained policy to the most trained.

    Policies that learn change how long their responses are, so it is kept how far each had come.
    """
    found: dict[tuple[str, str, str, int], list[Sampled]] = defaultdict(list)
    for run in runs:
        scenario = load_scenario(run.folder / SCENARIO)
        if scenario.sampling.pinned_lengths is None:
            for purpose, sampled in _of_run(run, scenario):
                found[scenario.task.type, model_name(scenario), purpose, scenario.sampling.max_tokens].append(sampled)
    for (task, model, purpose, cap), groups in sorted(found.items()):
        kept = _evenly(sorted(groups, key=itemgetter(0)), MOST_RESPONSES[purpose])
        yield Lengths(
            task=task,
            model=model,
            purpose="train" if purpose == "train" else "evaluate",
            cap=cap,
            prompts=tuple(prompt for _, (prompt, _) in kept),
            groups=tuple(tuple(lengths) for _, (_, lengths) in kept),
            trained=tuple(trained for trained, _ in kept),
        )


def _of_run(run: Run, scenario: Scenario) -> Iterator[tuple[str, Sampled]]:
    """Yield purpose and group of every group whose prompt is known."""
    for row in run.groups():
        if isinstance(row, ShardRow):
            for prompt, lengths, (oldest, _) in zip(row.prompt_tokens, row.lengths, row.versions, strict=True):
                if prompt is not None and lengths:
                    yield row.purpose, (oldest * scenario.optimizer_steps_per_batch, (prompt, lengths))


def _evenly(groups: Sequence[Sampled], responses: int) -> list[Sampled]:
    """Return as many groups as make so many responses, evenly spaced over what there is."""
    each = max(len(lengths) for _, (_, lengths) in groups)
    count = max(1, min(len(groups), responses // each))
    return [groups[place * len(groups) // count] for place in range(count)]


COLLECTIVES_FILE = "collectives.json"
FEWEST_STEPS = 5
"""Training steps beyond warm-up that a run must have, or it is left out."""
SHOWN = 3
_AGAIN = "measure again: python -m harness calibrate --name NAME"


def find_sources(paths: Sequence[Path]) -> list[Run]:
    """Read every run at or below the paths, each once: a folder may be named twice, and an experiment may have a copy.

    Raises:
        UserError: there is no run there, or one is damaged.
    """
    runs: dict[tuple[str, str], Run] = {}
    for path in paths:
        try:
            found, damaged = find_runs(path)
        except UserError:
            if any(path.rglob(COLLECTIVES_FILE)):  # measured collectives, and no runs
                continue
            raise
        if damaged:
            first = damaged[0].error
            raise UserError(first.what, first.where, "take that folder away, or name others with --from")
        runs |= {(run_label(run), run.manifest.started_at): run for run in found}
    return list(runs.values())


def check_runs(runs: Sequence[Run], exclude_models: Collection[str] = ()) -> tuple[list[Run], list[Run]]:
    """Return the training runs and the transport sweeps that a profile can be fitted to.

    Raises:
        UserError: none is left, one was simulated, slowed down, or knows no lengths, they are of
            several machines or versions, or none is of a model that is to be left out.
    """
    finished = [run for run in runs if run.status == "completed"]
    if not finished:
        raise UserError(f"none of {len(runs)} runs was completed", "--from", _AGAIN)
    _refuse([run for run in finished if run.manifest.simulated], "was simulated, and teaches nothing of a machine")
    sweeps = [run for run in finished if run.syncs]
    training = [run for run in finished if not run.syncs]
    if not training:
        raise UserError("only transport sweeps were given, and they train nothing", "--from", "add training runs")
    _refuse([run for run in training if not run.groups()], "was recorded before lengths were (it has no groups.jsonl)")
    delayed = [run for run in training if any((run.setting("faults.delays") or {}).values())]
    _refuse(delayed, "was slowed down on purpose (faults.delays)")
    again = [run for run in training if run.setting("dynamic_sampling.attempts")]
    _refuse(again, "sampled groups again (dynamic_sampling), so that its stages cannot be told from their rollouts")
    beside = [run for run in training if run.setting("learner.overlapped_publish")]
    _refuse(beside, "published weights while it trained (learner.overlapped_publish), so that each slowed the other")
    streamed = [run for run in training if run.setting("learner.stream")]
    _refuse(
        streamed, "trained on parts of a batch (learner.stream), so that its stages cannot be told from their rollouts"
    )
    _check_alike([*training, *sweeps])
    _check_models(exclude_models, {model_of(run) for run in training})
    kept = [run for run in training if model_of(run) not in exclude_models]
    enough = [run for run in kept if _steps(run) >= FEWEST_STEPS]
    if not enough:
        most = max(map(_steps, kept))
        what = f"no run has {FEWEST_STEPS} training steps beyond warm-up; the longest has {most}"
        raise UserError(what, "--from", "calibrate from longer runs: --set steps=16")
    return enough, sweeps


def _check_models(excluded: Collection[str], there: Collection[str]) -> None:
    unknown = [name for name in excluded if name not in there]
    there_are = f"there are: {', '.join(sorted(there))}"
    if unknown:
        raise UserError(f"no run is of the model {unknown[0]!r}", "--exclude-model", there_are)
    if not set(there) - set(excluded):
        raise UserError(f"without {', '.join(excluded)} no run is left", "--exclude-model", there_are)


def _refuse(runs: Sequence[Run], why: str) -> None:
    if runs:
        others = f" (and {len(runs) - 1} more)" if len(runs) > 1 else ""
        raise UserError(
            f"the run {run_label(runs[0])}{others} {why}", str(runs[0].folder), f"leave it out, or {_AGAIN}"
        )


def _check_alike(runs: Sequence[Run]) -> None:
    machines = {str(run.manifest.machine.get("fingerprint")): run_label(run) for run in runs}
    if len(machines) > 1:
        told = "; ".join(f"{mark} ({label})" for mark, label in list(machines.items())[:SHOWN])
        raise UserError(f"the runs are of {len(machines)} machines: {told}", "--from", "name runs of one machine")
    for package in sorted({name for run in runs for name in run.manifest.versions}):
        found = {version: run_label(run) for run in runs if (version := run.manifest.versions.get(package))}
        if len(found) > 1:
            told = "; ".join(f"{version} ({label})" for version, label in list(found.items())[:SHOWN])
            raise UserError(
                f"the runs used several versions of {package}: {told}", "--from", "name runs of one version"
            )


def _steps(run: Run) -> int:
    return sum(not (row.warmup or row.profiled) for row in run.steps)


def model_of(run: Run) -> str:
    """Return the name of a run's model, as ``harness.simulate.cost_model.model_name`` has it."""
    named = run.setting("model.preset") or run.setting("model.path") or run.setting("model.type")
    return str(named).rstrip("/").rsplit("/", 1)[-1]
