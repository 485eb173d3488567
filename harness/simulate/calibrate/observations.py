"""From a recorded run to observations: one for each span of a stage, with what its time may depend on counted.

Totals of training steps are never looked at: a fit to them could be right for wrong reasons.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from harness.compare.experiments import variant_labels
from harness.core.errors import UserError
from harness.core.intervals import Interval, merge
from harness.core.trace import Span, Stage
from harness.results import Run, lane_kind
from harness.results.writer import SCENARIO
from harness.scenario import Scenario, load_scenario
from harness.simulate.calibrate.rollouts import Rollouts
from harness.simulate.circumstances import circumstances, model_name, placement_of
from harness.simulate.terms import Group, Terms, sync_terms
from harness.simulate.workload import Workload

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
    ("learner", Stage.CHECKPOINT): "checkpoint",
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
        where: its circumstances, all of them; see ``harness.simulate.circumstances``.
        model: name of the model.
        units: what was counted, by term.
        seconds: it took.
        run: label of its run.
        arm: of that run, with what it has of a sweep; repeats share it.
        step: training step or policy version.
        others: mean number of other parts at work during the span.
    """

    stage: str
    where: Mapping[str, str]
    model: str
    units: Terms
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
    variant = variant_labels([(manifest.arm, manifest.point)], "")[0]
    seed = f"seed={manifest.point['seed']}" if "seed" in manifest.point else ""
    block = "" if manifest.block is None else f"block{manifest.block}"
    return "/".join(part for part in (manifest.scenario, manifest.experiment, variant, seed, block) if part)


def observe(run: Run) -> list[Observation]:
    """Return the observations of a training run; those of warm-up and of profiled steps are left out.

    The first weight sync of a run is kept, and counted as first.

    Raises:
        UserError: the run's scenario cannot be read, or the shape of its model is not known.
    """
    return list(_Reading(run).observations())


def observe_sweep(run: Run) -> list[Observation]:
    """Return the observations of a transport sweep; verification is told as the sum over both ends."""
    label = run_label(run)
    found = []
    for row in run.syncs:
        units = sync_terms(row.num_bytes, row.tensors, row.receivers, first=row.repeat == 0)
        for stage in ("publish", "transfer", "load", "verify"):
            seconds = float(getattr(row, f"{stage}_s"))
            others = 0.0 if stage == "publish" else float(row.receivers - 1)
            where = {"transport": row.transport}
            name = f"weight_{stage}"
            found.append(Observation(name, where, "", units, seconds, label, row.transport, row.repeat, others))
    return [item for item in found if item.seconds > 0]


class _Reading:
    """One run, and what its spans worked on.

    Raises:
        UserError: see ``observe``.
    """

    def __init__(self, run: Run) -> None:
        manifest = run.manifest
        self.run, self.label = run, run_label(run)
        self.arm = variant_labels([(manifest.arm, manifest.point)], manifest.scenario)[0]
        self.scenario: Scenario = load_scenario(run.folder / SCENARIO)
        self.work = Workload(self.scenario)
        if self.work.shape is None:
            what = f"{self.label}: {self.work.shape_missing}, so its work cannot be counted"
            raise UserError(what, str(run.folder), "leave it out: name the folders of other runs with --from")
        self.cores = int(run.manifest.machine.get("cores") or 1)
        self.has_gpu = bool(run.manifest.machine.get("gpus"))
        self.spans = sorted(run.spans(), key=lambda span: (span.start_ns, span.end_ns))
        self.left_out = {row.step for row in run.steps if row.warmup or row.profiled}
        self.rollouts = Rollouts(run, self.spans)

    def observations(self) -> Iterator[Observation]:
        """Yield one observation for each span whose work is known."""
        for span in self.spans:
            if not self._counts(span):
                continue
            kind = lane_kind(span.lane)
            if span.stage is Stage.WAIT_FOR_CALL:
                yield from self._call(span, kind)
            elif span.stage is Stage.WAIT_FOR_RECORDER:
                yield from self._record(span, kind)
            elif not span.stage.is_wait:
                yield from self._work(span, kind)
        if placement_of(self.scenario) == "in_process":
            yield from self._in_process_calls()

    def _counts(self, span: Span) -> bool:
        if span.stage is Stage.STARTUP or span.end_ns <= span.start_ns:
            return False
        first_sync = span.stage in SYNC and span.step == 0
        return first_sync or span.step not in self.left_out

    def _work(self, span: Span, kind: str) -> Iterator[Observation]:
        if span.stage in SYNC:
            part = {"part": kind} if span.stage is Stage.WEIGHT_VERIFY else {}
            yield self._observation(span, span.stage.value, self.work.sync(first=span.step == 0), part)
        elif span.stage is Stage.CHECKPOINT:
            yield self._observation(span, "checkpoint", self.work.sync(first=False))
        elif groups := self.rollouts.behind(span):
            stage, units = self._units(span, kind, groups)
            yield self._observation(span, stage, units)

    def _units(self, span: Span, kind: str, groups: Sequence[Group]) -> tuple[str, Terms]:
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
            if same or None in pair or gap[0] >= gap[1] or not self._counts(after):
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

    def _observation(self, span: Span, stage: str, units: Terms, told: Mapping[str, str] | None = None) -> Observation:
        return Observation(
            stage=stage,
            where=circumstances(self.scenario, stage, self.cores, self.has_gpu) | dict(told or {}),
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
