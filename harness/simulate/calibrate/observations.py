"""From recorded runs to observations: one for each span of a stage, with what its time may depend on counted.

Totals of training steps are never looked at: a fit to them could be right for wrong reasons.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

from harness.compare.experiment import arm_labels
from harness.core.errors import UserError
from harness.core.intervals import Interval, total
from harness.core.trace import Span, Stage
from harness.results import Run, find_runs, lane_kind
from harness.results.rows import ShardRow
from harness.simulate.cost_model import cost_key, model_name, placement_of
from harness.simulate.features import Features, Group, Workload, sync_features
from harness.simulate.machine import Lengths
from harness.simulate.recorded_run import TRAIN, UNTOLD, RecordedCall, RecordedRun, Work, run_label

CHECKPOINTING = (Stage.CHECKPOINT, Stage.CHECKPOINT_WRITE)
TOUCHED = 0.02
"""Share of a span in which others worked, from which on it tells of contention and not of its own cost."""
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


def observe(run: Run) -> list[Observation]:
    """Return the observations of a training run; those of warm-up and of profiled steps are left out.

    The first weight sync of a run is kept, and counted as first.

    Raises:
        UserError: the run's scenario cannot be read, or the shape of its model is not known.
    """
    return list(ObservedRun(run).observations())


def observe_sweep(run: Run) -> list[Observation]:
    """Return the observations of a transport sweep; verification is told as the sum over both ends."""
    label = run_label(run)
    return [
        Observation(
            stage=f"weight_{part}",
            where={"transport": row.transport},
            model="",
            units=sync_features(row.num_bytes, row.tensors, row.receivers, first=row.repeat == 0),
            seconds=seconds,
            run=label,
            arm=row.transport,
            step=row.repeat,
            others=0.0 if part == "publish" else float(row.receivers - 1),
        )
        for row in run.syncs
        for part in ("publish", "transfer", "load", "verify")
        if (seconds := float(getattr(row, f"{part}_s"))) > 0
    ]


class ObservedRun(RecordedRun):
    """A training run whose work is counted.

    Raises:
        UserError: see ``observe``.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.label = run_label(run)
        self._arm = arm_labels([(run.manifest.arm, run.manifest.point)], run.manifest.scenario)[0]
        self.work = Workload(self.scenario)
        if self.work.shape is None:
            what = f"{self.label}: {self.work.shape_missing}, so its work cannot be counted"
            raise UserError(what, str(run.folder), "leave it out: name the folders of other runs with --from")
        self._machine = int(run.manifest.machine.get("cores") or 1), bool(run.manifest.machine.get("gpus"))
        self._left_out = {row.step for row in run.steps if row.warmup or row.profiled}

    def observations(self) -> Iterator[Observation]:
        """Yield one observation for each span whose work is known; those of several ranks are no one process'."""
        one_process = self.scenario.placement.learner.ranks == 1
        for span in filter(self.counts, self.spans):
            kind = lane_kind(span.lane)
            if one_process or kind != "learner":
                yield from self._stage(span, kind)
        for observation in self._way_of_calls() if placement_of(self.scenario) == "actors" else self._between_calls():
            if one_process or observation.where["call"] not in ("update", "publish", "save_policy"):
                yield observation
        if one_process and not self.scenario.checkpoint.keeps_any:  # whose saves cannot be told from checkpoints
            yield from self._checkpoints()

    def counts(self, span: Span) -> bool:
        """Whether a span is of a stage and a step that are looked at."""
        if span.stage is Stage.STARTUP or span.end_ns <= span.start_ns:
            return False
        return (span.stage in SYNC and span.step == 0) or span.step not in self._left_out

    def _stage(self, span: Span, kind: str) -> Iterator[Observation]:
        if span.stage in SYNC:
            part = {"part": kind} if span.stage is Stage.WEIGHT_VERIFY else {}
            units = self.work.sync_stage(span.stage, kind, first=span.step == 0)
            yield self._observation(span, span.stage.value, units, part)
        elif span.stage is Stage.SAVE_POLICY:
            yield self._observation(span, "save_policy", self.work.sync(first=False))
        elif span.stage is Stage.WAIT_FOR_RECORDER:
            if kind == "learner" and (groups := self.behind(span)):
                yield replace(self._observation(span, "record", self.work.batch(groups)), others=0.0)
        elif groups := self.behind(span):
            if kind == "learner":
                stage, count = span.stage.value, self.work.training.get(span.stage, self.work.log_probs)
            else:
                sampling = kind == "generator"
                stage, count = ("generate", self.work.generate) if sampling else ("score", self.work.batch)
            yield self._observation(span, stage, count(groups))

    def _checkpoints(self) -> Iterator[Observation]:
        """Each checkpoint as one: what the Learner stood still for, and what was written beside training."""
        spans: dict[tuple[Stage, int], list[Span]] = defaultdict(list)
        for span in filter(self.counts, self.spans):
            if span.stage in CHECKPOINTING:
                spans[span.stage, span.step].append(span)
        asynchronous = self.scenario.checkpoint.asynchronous
        for (stage, _), own in sorted(spans.items()):
            units = self.work.checkpoint(copied=asynchronous and stage is Stage.CHECKPOINT)
            seconds = total((span.start_ns, span.end_ns) for span in own) / 1e9
            yield replace(self._observation(own[0], stage.value, units), seconds=seconds, others=0.0)

    def _way_of_calls(self) -> Iterator[Observation]:
        """Each way of a call: a recorded wait that ends where its work begins, or begins where that ends."""
        begun, ended = ({(c.lane, c.start_ns): c for c in self.works}, {(c.lane, c.end_ns): c for c in self.works})
        for span in self.spans:
            if span.stage is Stage.WAIT_FOR_CALL and self.counts(span):
                there = begun.get((span.lane, span.end_ns))
                call, way = (there, "there") if there else (ended.get((span.lane, span.start_ns)), "back")
                if call is not None and (name := _name(call)) is not None:
                    groups = self._carried(call) if (name, way) in CARRIES_GROUPS else []
                    where = {"call": name, "way": way}
                    yield replace(self._observation(span, "call", self.work.call(groups), where), step=call.key)

    def _carried(self, call: RecordedCall) -> list[Group]:
        places = {(each.stage, each.start_ns, call.key) for each in call.stages}
        own = (span for span in self.by_lane[call.lane] if (span.stage, span.start_ns, span.step) in places)
        return next(filter(None, map(self.behind, own)), [])

    def _between_calls(self) -> Iterator[Observation]:
        """Calls to threads leave no spans: what lies between the stages of two calls is counted as the second's way."""
        others = (Stage.WAIT_FOR_RECORDER, *CHECKPOINTING)
        recorded = [(s.start_ns, s.end_ns) for s in self.spans if s.stage in others]
        for before, after in pairwise(self.works):
            name, (start, end) = _name(after), (before.end_ns, after.start_ns)
            span = Span(after.lane, after.stages[0].stage or Stage.WAIT_FOR_CALL, start, end, after.key, -1)
            beside = any(first < end and start < last for first, last in recorded)
            if name is not None and _name(before) is not None and self.counts(span) and not beside:
                yield self._observation(span, "call", self.work.call(), {"call": name, "way": "there"})

    def _observation(
        self, span: Span, stage: str, units: Features, told: Mapping[str, str] | None = None
    ) -> Observation:
        return Observation(
            stage=stage,
            where=cost_key(self.scenario, stage, *self._machine) | dict(told or {}),
            model=model_name(self.scenario),
            units=units,
            seconds=(span.end_ns - span.start_ns) / 1e9,
            run=self.label,
            arm=self._arm,
            step=span.step,
            others=self._others(span),
        )

    def _others(self, span: Span) -> float:
        """Mean number of other lanes at work during the span."""
        window = span.start_ns, span.end_ns
        beside = sum(_overlap(busy, window) for lane, busy in self.busy.items() if lane != span.lane)
        return beside / max(1, span.end_ns - span.start_ns)


def _name(call: RecordedCall) -> str | None:
    """Return the method of a part by which a profile knows a call; None where it knows none."""
    if call.work is Work.EVALUATE:
        return "generate" if lane_kind(call.lane) == "generator" else "score"
    return None if call.work in (Work.CHECKPOINT, Work.CHECKPOINT_WRITE) else call.work.value


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
    sampled: dict[tuple[str, str, str, int], list[Sampled]] = defaultdict(list)
    for run in runs:
        scenario = RecordedRun(run).scenario
        for row in run.groups() if scenario.sampling.pinned_lengths is None else ():
            if isinstance(row, ShardRow):
                own = sampled[scenario.task.type, model_name(scenario), row.purpose, scenario.sampling.max_tokens]
                for prompt, lengths, (oldest, _) in zip(row.prompt_tokens, row.lengths, row.versions, strict=True):
                    if prompt is not None and lengths:
                        own.append((oldest * scenario.optimizer_steps_per_batch, (prompt, lengths)))
    for (task, model, purpose, cap), groups in sorted(sampled.items()):
        if not groups:
            continue
        groups.sort(key=itemgetter(0))
        count = max(1, min(len(groups), MOST_RESPONSES[purpose] // max(len(lengths) for _, (_, lengths) in groups)))
        spaced = [groups[place * len(groups) // count] for place in range(count)]
        yield Lengths(
            task=task,
            model=model,
            purpose="train" if purpose == TRAIN else "evaluate",
            cap=cap,
            prompts=tuple(prompt for _, (prompt, _) in spaced),
            groups=tuple(tuple(lengths) for _, (_, lengths) in spaced),
            trained=tuple(trained for trained, _ in spaced),
        )


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
            here, damaged = find_runs(path)
        except UserError:
            if any(path.rglob(COLLECTIVES_FILE)):  # measured collectives, and no runs
                continue
            raise
        if damaged:
            first = damaged[0].error
            raise UserError(first.what, first.where, "take that folder away, or name others with --from")
        runs |= {(run_label(run), run.manifest.started_at): run for run in here}
    return list(runs.values())


def check_runs(
    runs: Sequence[Run], exclude_models: Collection[str] = (), fewest_steps: int = FEWEST_STEPS
) -> tuple[list[Run], list[Run]]:
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
    for key, did in UNTOLD.items():
        why = f"{did}, so that its stages cannot be told from their rollouts"
        _refuse([run for run in training if run.setting(key)], why)
    _check_alike([*training, *sweeps])
    models = {model_of(run) for run in training}
    there_are = f"there are: {', '.join(sorted(models))}"
    if unknown := [name for name in exclude_models if name not in models]:
        raise UserError(f"no run is of the model {unknown[0]!r}", "exclude_models", there_are)
    if not models - set(exclude_models):
        raise UserError(f"without {', '.join(exclude_models)} no run is left", "exclude_models", there_are)
    steps = {
        run.folder: sum(not (row.warmup or row.profiled) for row in run.steps)
        for run in training
        if model_of(run) not in exclude_models
    }
    enough = [run for run in training if steps.get(run.folder, 0) >= fewest_steps]
    if not enough:
        what = f"no run has {fewest_steps} training steps beyond warm-up; the longest has {max(steps.values())}"
        raise UserError(what, "--from", "calibrate from longer runs: --set steps=16")
    return enough, sweeps


def _refuse(runs: Sequence[Run], why: str) -> None:
    if runs:
        others = f" (and {len(runs) - 1} more)" if len(runs) > 1 else ""
        what = f"the run {run_label(runs[0])}{others} {why}"
        raise UserError(what, str(runs[0].folder), f"leave it out, or {_AGAIN}")


def _check_alike(runs: Sequence[Run]) -> None:
    """Refuse runs of several machines, or of several versions of a package."""
    seen: dict[str, dict[str, str]] = defaultdict(dict)
    for run in runs:
        seen[""][str(run.manifest.machine.get("fingerprint"))] = run_label(run)
        for package, version in run.manifest.versions.items():
            if version:
                seen[package][version] = run_label(run)
    for package, values in sorted(seen.items()):
        if len(values) > 1:
            told = "; ".join(f"{value} ({label})" for value, label in list(values.items())[:SHOWN])
            what = f"used several versions of {package}" if package else f"are of {len(values)} machines"
            fix = f"name runs of one {'version' if package else 'machine'}"
            raise UserError(f"the runs {what}: {told}", "--from", fix)


def model_of(run: Run) -> str:
    """Return the name of a run's model, as ``harness.simulate.cost_model.model_name`` has it."""
    named = run.setting("model.preset") or run.setting("model.path") or run.setting("model.type")
    return str(named).rstrip("/").rsplit("/", 1)[-1]
