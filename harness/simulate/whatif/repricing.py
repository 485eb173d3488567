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

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.core.types import Purpose, RolloutGroup, WorkItem
from harness.results import lane_kind
from harness.scenario.derived import on_one_thread, threads_on
from harness.scenario.schema import Scenario
from harness.simulate.cost_model import CostModel, model_name
from harness.simulate.features import Group, Workload, sizes_of
from harness.simulate.machine import Contention, MachineProfile
from harness.simulate.parts import Sampled
from harness.simulate.simulated_run import CALL_CORES
from harness.simulate.whatif.recording import (
    RecordedCall,
    RecordedStage,
    Recording,
    Work,
    recorded_batches,
    trained_groups,
)

Cores = Callable[[str], float]
"""Cores that the work of a lane would like to have."""
_METHODS = {
    Work.PUBLISH: "publish",
    Work.LOAD: "load",
    Work.GENERATE: "generate",
    Work.EVALUATE: "generate",
    Work.SCORE: "score",
    Work.UPDATE: "update",
}


def contention_of(scenario: Scenario, machine: MachineProfile | None) -> Contention | None:
    """Return what parts cost each other, or None where they share nothing or it is not known.

    Paced parts only sleep, parts on one thread take turns, and GPUs are taken to be the parts' own.
    """
    paced = scenario.engine.type == "paced"
    if machine is None or paced or on_one_thread(scenario) or scenario.uses_gpu(machine.has_gpu):
        return None
    return machine.contention


def cores_of(scenario: Scenario, contention: Contention | None) -> Cores:
    """Return what the lanes of a scenario would like to have."""
    if contention is None:
        return lambda lane: 1.0
    placement = scenario.placement
    wanted = {
        kind: float(threads_on(contention.cores, scenario, part))
        for kind, part in (("generator", placement.generator), ("learner", placement.learner))
    }
    return lambda lane: wanted.get(lane_kind(lane), 1.0)


def transit_cores_of(scenario: Scenario) -> float:
    """Return what a call in transit would like to have."""
    return CALL_CORES if scenario.uses_ray else 0.0


def undisturbed(recording: Recording, contention: Contention | None, scenario: Scenario) -> Recording:
    """Return the recording with each stage, and each transit of a call, at the seconds that it would take alone."""
    if contention is None:
        return recording
    clock = _WorkClock(recording.calls, contention, cores_of(scenario, contention), transit_cores_of(scenario))
    return recording.with_calls(map(clock.alone, recording.calls))


class _WorkClock:
    """How much anything at work had got done by each moment of a recording.

    Args:
        calls: recorded.
        contention: what they cost each other.
        cores, transit_cores: that work, and a call in transit, would like to have.
    """

    def __init__(
        self, calls: Iterable[RecordedCall], contention: Contention, cores: Cores, transit_cores: float
    ) -> None:
        spans = [(each.start_ns, each.end_ns, cores(call.lane)) for call in calls for each in call.stages if each.stage]
        begun = [(start, 1, wanted) for start, _, wanted in spans]
        edges = sorted([*begun, *((end, -1, -wanted) for _, end, wanted in spans)])
        work, transit = _Progress(), _Progress()
        at_work, wanted = 0, 0.0
        for time_ns, change, further in edges:
            at_work, wanted = at_work + change, wanted + further
            work.set_speed(time_ns, _speed(contention, wanted, at_work - 1))
            transit.set_speed(time_ns, _speed(contention, wanted + transit_cores, at_work) if transit_cores else 1.0)
        self._work, self._transit = work, transit

    def alone(self, call: RecordedCall) -> RecordedCall:
        """Return a call at the seconds that it would take alone."""
        stages = tuple(
            each if each.stage is None else replace(each, seconds=self._work.between(each.start_ns, each.end_ns))
            for each in call.stages
        )
        request_ns, response_ns = round(call.request_s * 1e9), round(call.response_s * 1e9)
        request_s = self._transit.between(call.start_ns - request_ns, call.start_ns)
        return replace(
            call,
            stages=stages,
            request_s=request_s,
            response_s=self._transit.between(call.end_ns, call.end_ns + response_ns),
        )


class _Progress:
    """The integral of a speed that changes from time to time; 1 before the first change."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._speeds: list[float] = []
        self._done: list[float] = []

    def set_speed(self, time_ns: int, speed: float) -> None:
        """The speed is this from now on."""
        self._done.append(self._until(time_ns) if self._times else 0.0)
        self._times.append(time_ns)
        self._speeds.append(speed)

    def between(self, start_ns: int, end_ns: int) -> float:
        """Return seconds of undisturbed work that were done between two moments."""
        return self._until(end_ns) - self._until(start_ns)

    def _until(self, time_ns: int) -> float:
        place = bisect_right(self._times, time_ns) - 1
        if place < 0:
            return (time_ns - self._times[0]) / 1e9
        return self._done[place] + (time_ns - self._times[place]) / 1e9 * self._speeds[place]


def _speed(contention: Contention, wanted: float, others: int) -> float:
    share = min(1.0, contention.cores / wanted) if wanted > 0 else 1.0
    return share / (1 + contention.slowdown * max(0, others))


class RepricedCalls:
    """The calls of a replay whose work is not that of the recorded ones.

    Args:
        recording: with the recorded lengths, where lengths matter.
        before, after: the scenario of the run and the changed one.
        machine: the profile.
        keys: settings that differ.
    """

    def __init__(
        self, recording: Recording, before: Scenario, after: Scenario, machine: MachineProfile, keys: Sequence[str]
    ) -> None:
        self._old, self._new = _Predicted(before, machine), _Predicted(after, machine)
        self._batches = recorded_batches(recording)
        self._trained = trained_groups(recording)
        self._shards = max((key[2] + 1 for key in recording.shards if key[0] == Purpose.TRAIN.value), default=1)
        self._syncs_differ = any(key.split(".")[0] in ("transport", "placement") for key in keys)
        self._work_differs = any(key.split(".")[0] != "transport" for key in keys)
        self._not_known: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What the profile could not say, and where it had to extrapolate."""
        return (*self._not_known, *(f"extrapolating: {sentence}" for sentence in self._new.costs.extrapolating))

    def sync(self, call: RecordedCall) -> RecordedCall:
        """Take another transport, or more receivers, into account in a call to publish or load; what is saved stays."""
        if call.work in (Work.CHECKPOINT, Work.SAVE_POLICY):
            return call
        if not self._syncs_differ:
            return self._in_transit(call)
        part = "learner" if call.work is Work.PUBLISH else "generator"
        stages = [stage for each in call.stages if (stage := self._of_sync(each, call.key, part)) is not None]
        if self._old.work.verifications == 0:
            seconds = self._new.sync_s(Stage.WEIGHT_VERIFY, call.key, part)
            stages += [RecordedStage(Stage.WEIGHT_VERIFY, seconds or 0.0)] * self._new.work.verifications
        return self._in_transit(replace(call, stages=tuple(stages)))

    def generate(self, call: RecordedCall, item: WorkItem, sampled: Sequence[Sampled]) -> RecordedCall:
        """Take the number and the lengths of the rollouts into account; an evaluation stays as it was."""
        new = [(prompt or 0, lengths) for prompt, lengths in sampled]
        if not self._differs(item):
            return self._in_transit(call, back=new, new_back=new)
        old = self._recorded_shards(call.key) or [new]
        before = sum(map(self._old.generate_s, old)) / len(old)
        stretched = _stretched(call, _ratio(self._new.generate_s(new), before))
        return self._in_transit(stretched, back=old[0], new_back=new)

    def score(self, call: RecordedCall, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> RecordedCall:
        """Take the number and the lengths of the rollouts into account; an evaluation stays as it was."""
        new = sizes_of(groups)
        if not self._differs(item):
            return self._in_transit(call, new, new, new, new)
        old = self._recorded_shards(call.key) or [new]
        before = sum(map(self._old.score_s, old)) / len(old)
        stretched = _stretched(call, _ratio(self._new.score_s(new), before))
        return self._in_transit(stretched, old[0], old[0], new, new)

    def update(self, call: RecordedCall, groups: tuple[RolloutGroup, ...]) -> RecordedCall:
        """Take the passes over the batch, its size and its lengths into account, and stages that come or go."""
        new = sizes_of(groups)
        if not self._work_differs:
            return self._in_transit(call, there=new, new_there=new)
        old = self._trained.get(call.key) or new
        changed = replace(call, stages=tuple(self._of_update(call, old, new)))
        return self._in_transit(changed, there=old, new_there=new)

    def _differs(self, item: WorkItem) -> bool:
        return self._work_differs and item.purpose is Purpose.TRAIN

    def _of_update(self, call: RecordedCall, old: Sequence[Group], new: Sequence[Group]) -> Iterator[RecordedStage]:
        present = {each.stage for each in call.stages}
        for each in call.stages:
            if each.stage is Stage.UPDATE:
                yield from self._appearing(present, old, new)
            if each.stage is None:
                yield each
            elif (after := self._new.update_s(each.stage, new)) is not None:
                yield _resized(each, _ratio(after, self._old.update_s(each.stage, old)))

    def _appearing(
        self, present: Collection[Stage | None], old: Sequence[Group], new: Sequence[Group]
    ) -> Iterator[RecordedStage]:
        """Yield the stages that only the changed scenario has."""
        for stage in (Stage.OLD_LOGPROBS, Stage.REFERENCE_LOGPROBS):
            if stage not in present and self._old.update_s(stage, old) is None:
                seconds = self._new.update_s(stage, new)
                if seconds is not None:
                    yield RecordedStage(stage, seconds)

    def _of_sync(self, each: RecordedStage, version: int, part: str) -> RecordedStage | None:
        """Return a stage of a weight sync as it would be; None where it would not be there."""
        if each.stage is None:
            return each
        after = self._new.sync_s(each.stage, version, part)
        return None if after is None else _resized(each, _ratio(after, self._old.sync_s(each.stage, version, part)))

    def _in_transit(
        self,
        call: RecordedCall,
        there: Sequence[Group] = (),
        back: Sequence[Group] = (),
        new_there: Sequence[Group] = (),
        new_back: Sequence[Group] = (),
    ) -> RecordedCall:
        """Return the call with its transit, with other rollouts sent along or over another transport."""
        method, old, new = _METHODS[call.work], self._old.transit_s, self._new.transit_s
        try:
            request = _ratio(new(method, "there", new_there), old(method, "there", there))
            response = _ratio(new(method, "back", new_back), old(method, "back", back))
        except UserError as error:
            self._not_known[f"calls take the way that they took: {error.what}"] = None
            return call
        return replace(call, request_s=call.request_s * request, response_s=call.response_s * response)

    def _recorded_shards(self, number: int) -> list[Sequence[Group]]:
        groups = [sampled.group for sampled in self._batches.get(number, {}).values()]
        return [
            groups[shard * len(groups) // self._shards : (shard + 1) * len(groups) // self._shards]
            for shard in range(self._shards if groups else 0)
        ]


class _Predicted:
    """What a machine profile predicts of the calls of a scenario. Each method raises the profile's ``UserError``."""

    def __init__(self, scenario: Scenario, machine: MachineProfile) -> None:
        self.work = Workload(scenario)
        self.costs = CostModel(scenario, machine, model=model_name(scenario))

    def update_s(self, stage: Stage, groups: Sequence[Group]) -> float | None:
        """Return the seconds of a stage of a training step; None where the scenario does not have it."""
        count = self.work.training.get(stage)
        return None if count is None else self.costs.seconds(stage, "", 0, count(groups))

    def generate_s(self, groups: Sequence[Group]) -> float:
        """Return the seconds of sampling these groups."""
        return self.costs.seconds("generate", "", 0, self.work.generate(groups))

    def score_s(self, groups: Sequence[Group]) -> float:
        """Return the seconds of scoring these groups."""
        return self.costs.seconds("score", "", 0, self.work.batch(groups))

    def sync_s(self, stage: Stage, version: int, part: str) -> float | None:
        """Return the seconds of a stage of a weight sync; None where the scenario does not have it."""
        if stage is Stage.WEIGHT_VERIFY and not self.work.verifications:
            return None
        return self.costs.seconds(stage, "", 0, self.work.sync(version == 0), part=part)

    def transit_s(self, method: str, way: str, groups: Sequence[Group]) -> float:
        """Return the seconds of a request or a response with these groups on it."""
        return self.costs.seconds("call", "", 0, self.work.call(groups), call=method, way=way)


def _ratio(new: float, old: float | None) -> float:
    return new / old if old else 1.0


def _stretched(call: RecordedCall, ratio: float) -> RecordedCall:
    return replace(call, stages=tuple(_resized(each, ratio) for each in call.stages))


def _resized(each: RecordedStage, ratio: float) -> RecordedStage:
    return replace(each, seconds=each.seconds * ratio)
