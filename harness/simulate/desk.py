"""Calls to a simulated part: on the way there, each stage, on the way back; and the spans that a real call leaves.

An actor's spans come in with its answer: the stages first, then the waits for the call on its way there and back. In
one process there are no such waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.core.trace import RecordingTracer, Span, Stage, make_span
from harness.simulate.contention import Piece, Place, Times
from harness.simulate.costing import Seconds
from harness.simulate.event_loop import TICKS_PER_NS, to_ticks
from harness.simulate.terms import Group
from harness.simulate.workload import Workload

_HALF_NS = TICKS_PER_NS // 2


class Doing(NamedTuple):
    """A stage of a call: its seconds, its span's step and version, and whether it works or only waits."""

    stage: Stage
    seconds: float
    step: int
    version: int
    works: bool = True


@dataclass(frozen=True)
class Desk:
    """Where the calls to one part are made.

    Attributes:
        lane: of the part.
        tracer: takes its spans.
        place: does its work.
        thread: on which its calls take turns.
        loading: thread on which it loads weights.
        costs: says how long things take.
        work: what stages count.
        remote: whether the part is an actor.
        cores: that it would like to have for its work.
        way_cores: that the way of a call would like to have; 0: it only waits.
        delays: seconds by which each span of a stage is made longer.
        steady: whether as many rollouts always take as long on their way, so that the costs are asked once.
    """

    lane: str
    tracer: RecordingTracer
    place: Place
    thread: str
    loading: str
    costs: Seconds
    work: Workload
    remote: bool
    cores: float = 1
    way_cores: float = 0
    delays: Mapping[str, float] = field(default_factory=dict)
    steady: bool = False
    _ways: dict[tuple[str, str, int, int], float] = field(default_factory=dict, repr=False)

    def doing(self, stage: Stage, seconds: float, step: int, version: int, works: bool = True) -> Doing:
        """Return a stage of a call, made longer where the scenario says so."""
        return Doing(stage, seconds + self.delays.get(stage, 0.0), step, version, works)

    async def call(
        self,
        method: str,
        stages: Sequence[Doing],
        step: int,
        *,
        there: Sequence[Group] = (),
        back: Sequence[Group] = (),
        arrives: bool = False,
        thread: str | None = None,
    ) -> Times:
        """Make a call and record its spans; return the times of its stages.

        Args:
            method: of the part; see ``circumstances.CALLS``.
            stages: what it does, in order; none where the call alone takes time.
            step: of the run.
            there, back: rollouts that are sent along.
            arrives: the call's first stage is the arrival of what was sent along with it, so that it has no way there.
            thread: on which the call takes its turn, if it is not the part's own.
        """
        there_s = 0.0 if arrives else self._way(method, "there", step, there)
        pieces = [Piece(there_s, self.way_cores, True)]
        pieces += [Piece(each.seconds, self.cores if each.works else 0) for each in stages]
        pieces.append(Piece(self._way(method, "back", step, back), self.way_cores, True))
        told = stages[0] if stages else Doing(Stage.WAIT_FOR_CALL, 0.0, -1, -1)
        with self.tracer.underway(self.lane, told.stage, told.step, told.version):
            times = await self.place.run(thread or self.thread, pieces)
        self.tracer.finished.extend(self._spans(stages, times, told))
        return times[1:-1]

    def _spans(self, stages: Sequence[Doing], times: Times, told: Doing) -> list[Span]:
        """Return the stages' spans, and behind them the waits at both ends of an actor's call, if they took time."""
        ends = [clock_ns(times[0][0]), *[clock_ns(end) for _, end in times]]  # a piece begins where the last one ended
        spans = [
            make_span((self.lane, each.stage, ends[number], ends[number + 1], each.step, each.version))
            for number, each in enumerate(stages, start=1)
        ]
        if self.remote:
            waits = ((ends[0], ends[1]), (ends[-2], ends[-1])) if stages else ((ends[0], ends[-1]),)
            spans += [
                make_span((self.lane, Stage.WAIT_FOR_CALL, start, end, told.step, told.version))
                for start, end in waits
                if start < end
            ]
        return spans

    def _way(self, method: str, way: str, step: int, groups: Sequence[Group]) -> float:
        key = method, way, len(groups), sum([len(lengths) for _, lengths in groups])
        seconds = self._ways.get(key)
        if seconds is None:
            seconds = self.costs.seconds("call", self.lane, step, self.work.call(groups), call=method, way=way)
            if self.steady:
                self._ways[key] = seconds
        return seconds


def clock_ns(seconds: float) -> int:
    """Return the virtual clock's nanoseconds at so many seconds, rounded as it rounds them."""
    return (to_ticks(seconds) + _HALF_NS) // TICKS_PER_NS
