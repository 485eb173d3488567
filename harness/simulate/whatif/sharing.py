"""Parts on shared cores: taken out of what was recorded, and put back as the replay overlaps.

A recorded stage took as long as it did because of what ran beside it. Its work, in seconds of a machine that it has to
itself, is the integral over its span of the speed at which everything went just then; the model of that speed is the
one of ``harness.simulate.contention``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace

from harness.results import lane_kind
from harness.scenario import Scenario
from harness.scenario.loop_plan import on_one_thread, threads_on
from harness.simulate.contention import OwnDevice, Place, SharedCores
from harness.simulate.machine import Contention, MachineProfile
from harness.simulate.whatif.recorded import Call, Recording
from harness.simulate.world import CALL_CORES

Cores = Callable[[str], float]
"""Cores that the work of a lane would like to have."""


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


def place_of(contention: Contention | None) -> Callable[[], Place]:
    """Return what makes the place where the parts of a replay work."""
    if contention is None:
        return OwnDevice
    return lambda: SharedCores(contention.cores, contention.slowdown)


def way_cores_of(scenario: Scenario) -> float:
    """Return what the way of a call would like to have."""
    return CALL_CORES if scenario.uses_ray else 0.0


def undisturbed(recording: Recording, contention: Contention | None, scenario: Scenario) -> Recording:
    """Return the recording with each stage, and each way of a call, at the seconds that it would take alone."""
    if contention is None:
        return recording
    clock = _WorkClock(recording.calls, contention, cores_of(scenario, contention), way_cores_of(scenario))
    return recording.with_calls(map(clock.alone, recording.calls))


class _WorkClock:
    """How much anything at work had got done by each moment of a recording.

    Args:
        calls: recorded.
        contention: what they cost each other.
        cores, way_cores: that work, and the way of a call, would like to have.
    """

    def __init__(self, calls: Iterable[Call], contention: Contention, cores: Cores, way_cores: float) -> None:
        spans = [
            (piece.start_ns, piece.end_ns, cores(call.lane)) for call in calls for piece in call.pieces if piece.stage
        ]
        begun = [(start, 1, wanted) for start, _, wanted in spans]
        edges = sorted([*begun, *((end, -1, -wanted) for _, end, wanted in spans)])
        work, way = _Done(), _Done()
        at_work, wanted = 0, 0.0
        for time_ns, change, further in edges:
            at_work, wanted = at_work + change, wanted + further
            work.goes_on(time_ns, _speed(contention, wanted, at_work - 1))
            way.goes_on(time_ns, _speed(contention, wanted + way_cores, at_work) if way_cores else 1.0)
        self._work, self._way = work, way

    def alone(self, call: Call) -> Call:
        """Return a call at the seconds that it would take alone."""
        pieces = tuple(
            piece if piece.stage is None else replace(piece, seconds=self._work.between(piece.start_ns, piece.end_ns))
            for piece in call.pieces
        )
        before_ns, after_ns = round(call.before_s * 1e9), round(call.after_s * 1e9)
        before_s = self._way.between(call.start_ns - before_ns, call.start_ns)
        return replace(
            call, pieces=pieces, before_s=before_s, after_s=self._way.between(call.end_ns, call.end_ns + after_ns)
        )


class _Done:
    """The integral of a speed that changes from time to time; 1 before the first change."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._speeds: list[float] = []
        self._done: list[float] = []

    def goes_on(self, time_ns: int, speed: float) -> None:
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
