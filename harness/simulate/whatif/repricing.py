"""What recorded calls would take: alone on their cores, and with other work to do.

**Alone.** A recorded stage took as long as it did because of what ran beside it. Its work, in seconds of a machine that
it has to itself, is the integral over its span of the speed at which everything went just then; the model of that speed
is the one of ``harness.simulate.timeline.SharedCores``. A replay shares the cores anew, as it overlaps.

**With other work.** Recorded x predicted (new) / predicted (old). Both predictions come from a machine profile, for the
work of the recorded call and for that of the replayed one. What is particular about a call (a slow moment, a cache that
was warm) stays in it that way, and what the profile is off by for this run cancels. A stage that the run did not have
takes the profile's prediction itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import fmean

import numpy as np

from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.core.types import RolloutGroup
from harness.results import lane_kind
from harness.scenario.derived import on_one_thread, threads_on
from harness.scenario.schema import Scenario
from harness.simulate.cost_model import CostModel, model_name
from harness.simulate.features import Features, Workload
from harness.simulate.machine import Contention, MachineProfile
from harness.simulate.parts import ProfileCosts
from harness.simulate.recorded_run import RecordedCall, RecordedRun, RecordedStage, Work
from harness.simulate.simulated_run import CALL_CORES
from harness.simulate.timeline import CallPlan

BEYOND_NS = 10**12
"""How far beyond the first and the last stage a call's way may reach."""


def contention_of(scenario: Scenario, machine: MachineProfile | None) -> Contention | None:
    """Return what parts cost each other, or None where they share nothing or it is not known.

    Paced parts only sleep, parts on one thread take turns, and GPUs are taken to be the parts' own.
    """
    paced = scenario.engine.type == "paced"
    if machine is None or paced or on_one_thread(scenario) or scenario.uses_gpu(machine.has_gpu):
        return None
    return machine.contention


def cores_of(scenario: Scenario, contention: Contention | None) -> Callable[[str], float]:
    """Return what says how many cores the work of a lane would like to have."""
    if contention is None:
        return lambda lane: 1.0
    parts = {"generator": scenario.placement.generator, "learner": scenario.placement.learner}
    wanted = {kind: float(threads_on(contention.cores, scenario, part)) for kind, part in parts.items()}
    return lambda lane: wanted.get(lane_kind(lane), 1.0)


def transit_cores_of(scenario: Scenario) -> float:
    """Return what a call in transit would like to have."""
    return CALL_CORES if scenario.uses_ray else 0.0


def undisturbed(
    calls: Sequence[RecordedCall], contention: Contention | None, scenario: Scenario
) -> Sequence[RecordedCall]:
    """Return the calls with each stage, and each transit, at the seconds that it would take alone."""
    if contention is None:
        return calls
    cores, transit_cores = cores_of(scenario, contention), transit_cores_of(scenario)
    edges = []
    for call in calls:
        for each in call.stages:
            if each.stage is not None:
                edges += [(each.start_ns, 1, cores(call.lane)), (each.end_ns, -1, -cores(call.lane))]
    edges.sort()
    at_work = list(accumulate(change for _, change, _ in edges))
    wanted = list(accumulate(further for _, _, further in edges))

    def speed(wanted: float, others: int) -> float:
        share = min(1.0, contention.cores / wanted) if wanted > 0 else 1.0
        return share / (1 + contention.slowdown * max(0, others))

    times = np.array([time for time, _, _ in edges])
    work = _Progress(times, [speed(*each) for each in zip(wanted, (count - 1 for count in at_work), strict=True)])
    beside = [speed(each + transit_cores, count) for each, count in zip(wanted, at_work, strict=True)]
    transit = _Progress(times, beside if transit_cores else [1.0] * len(times))

    def alone(call: RecordedCall) -> RecordedCall:
        start, end = call.start_ns, call.end_ns
        stages = [
            each if each.stage is None else each._replace(seconds=work.between(each.start_ns, each.end_ns))
            for each in call.stages
        ]
        return replace(
            call,
            stages=tuple(stages),
            request_s=transit.between(start - round(call.request_s * 1e9), start),
            response_s=transit.between(end, end + round(call.response_s * 1e9)),
        )

    return list(map(alone, calls))


class _Progress:
    """The integral of a speed that changes from time to time; 1 before the first change."""

    def __init__(self, times_ns: np.ndarray, speeds: Sequence[float]) -> None:
        self._times = np.concatenate(([times_ns[0] - BEYOND_NS], times_ns, [times_ns[-1] + BEYOND_NS]))
        self._done = np.cumsum(np.diff(self._times, prepend=self._times[0]) * [1.0, 1.0, *speeds])

    def between(self, start_ns: int, end_ns: int) -> float:
        """Return seconds of undisturbed work that were done between two moments."""
        first, last = np.interp((start_ns, end_ns), self._times, self._done)
        return float(last - first) / 1e9


OF_TRAINING = (Work.GENERATE, Work.SCORE, Work.UPDATE)


class Repricing:
    """How the calls of a replay differ whose work is not that of the recorded ones.

    Args:
        run: with the recorded lengths, where lengths matter.
        after: the changed scenario.
        machine: the profile.
        keys: settings that differ.
    """

    def __init__(self, run: RecordedRun, after: Scenario, machine: MachineProfile, keys: Sequence[str]) -> None:
        self._run = run
        self._works = Workload(run.scenario), Workload(after)
        self._models = _Known(run.scenario, machine), _Known(after, machine)
        keys = [key for key in keys if key != "placement.colocated"]
        self._syncs_differ = any(key.split(".")[0] in ("transport", "placement") for key in keys)
        self._work_differs = any(key.split(".")[0] != "transport" for key in keys)
        self._not_known: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What the profile could not say, and where it had to extrapolate."""
        return (*self._not_known, *(f"extrapolating: {sentence}" for sentence in self._models[1].extrapolating))

    def differs(self, work: Work) -> bool:
        """Whether a kind of work is another one; an evaluation stays as it was."""
        return self._syncs_differ if work in (Work.LOAD, Work.PUBLISH) else self._work_differs and work in OF_TRAINING

    def costs(self, lane: str) -> tuple[ProfileCosts, ProfileCosts]:
        """Return what the profile says of the calls to a part, in the recorded run and in the changed one."""
        before, after = (
            ProfileCosts(lane, *each, {}, steady=True) for each in zip(self._models, self._works, strict=True)
        )
        return before, after

    def behind(self, work: Work, key: int) -> list[tuple[RolloutGroup, ...]]:
        """Return what the recorded calls of a batch worked on: one part each, or of a training step all of it."""
        parts = [[each.group for each in shard] for shard in self._run.shards(key)]
        if work is Work.UPDATE:
            parts = [trained] if (trained := self._run.trained_on(key)) else []
        return [
            tuple(RolloutGroup(0, 0, 0, 0, tuple(lengths), prompt_length=prompt) for prompt, lengths in part)
            for part in parts
        ]

    def repriced(self, call: RecordedCall, old: Sequence[CallPlan], new: CallPlan) -> RecordedCall:
        """Return a call at what its stages would take.

        Args:
            old: predicted of the recorded calls of its kind; their mean counts.
            new: predicted of the replayed one.
        """
        was = {
            stage: fmean(each.seconds for plan in old for each in plan.stages if each.stage is stage)
            for stage, *_ in old[0].stages
        }
        will = {each.stage: each.seconds for each in new.stages}
        order, recorded = list(will), {each.stage for each in call.stages}
        added = [each for each in new.stages if each.stage not in was and each.stage not in recorded]
        stages: list[RecordedStage] = []

        def add_before(place: int) -> None:
            while added and order.index(added[0].stage) < place:
                stage, seconds, _ = added.pop(0)
                stages.append(RecordedStage(stage, seconds * self._ratio(stage, seconds, seconds)))

        for each in call.stages:
            if each.stage is None or each.stage not in (*will, *was):  # one that no profile prices stays as it was
                stages.append(each)
            elif each.stage in will:
                add_before(order.index(each.stage))
                ratio = self._ratio(each.stage, will[each.stage], was.get(each.stage))
                stages.append(each._replace(seconds=each.seconds * ratio))
        add_before(len(order))
        request = self._ratio(None, new.request_s, old[0].request_s)
        response = self._ratio(None, new.response_s, old[0].response_s)
        return replace(
            call,
            stages=tuple(stages),
            request_s=call.request_s * request,
            response_s=call.response_s * response,
        )

    def _ratio(self, stage: Stage | None, new: float, old: float | None) -> float:
        """Return new / old; of a call's way, where ``stage`` is None, 1 where the profile does not know it.

        Raises:
            UserError: the profile does not know the stage.
        """
        if not math.isnan(new) and not math.isnan(old or 0.0):
            return new / old if old else 1.0
        error = next(model.unknown[stage or "call"] for model in self._models if (stage or "call") in model.unknown)
        if stage is not None:
            raise error
        self._not_known[f"calls take the way that they took: {error.what}"] = None
        return 1.0


class _Known(CostModel):
    """The prices of one scenario: NaN where the profile has none, with the reason by stage in ``unknown``."""

    def __init__(self, scenario: Scenario, machine: MachineProfile) -> None:
        super().__init__(scenario, machine, model=model_name(scenario))
        self.unknown: dict[str, UserError] = {}

    def seconds(self, stage: str, lane: str, step: int, features: Features, /, **also: str) -> float:
        try:
            return super().seconds(stage, lane, step, features, **also)
        except UserError as error:
            self.unknown[stage] = error
            return math.nan
