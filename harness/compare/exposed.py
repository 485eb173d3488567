"""Exposed time: the part of each stage that the training loop had to wait for.

Time spent counts every second that a lane worked; lanes that work side by side make it add up to more than the clock.
Exposed time divides the clock: each instant of the loop has exactly one owner, in this order.

1. The stage that the Learner is in: the loop advances through the Learner's updates, so its work is always exposed.
2. While the Learner waits, the stage of the other lanes that it waits for. Where several run at once, the one nearest
   to the Learner's next batch: ``score``, then the weight stages from ``weight_load`` back to ``weight_publish`` (a
   Generator that loads cannot generate yet), then ``generate``, then ``evaluate``, then anything else.
3. Nobody: the Learner waits and no lane works (calls between actors, and the event loop), or no span says what the
   Learner does.

So exposed times and nobody's add up to the loop, to the nanosecond, and a stage that hides behind the Learner's work
is exposed for 0 seconds however long it takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.compare.owned import Owned, owned_intervals
from harness.core.intervals import Interval, both, merge, total, without
from harness.core.trace import Span, Stage
from harness.results import lane_kind

_NEAREST_FIRST = (
    Stage.SCORE,
    Stage.WEIGHT_LOAD,
    Stage.WEIGHT_VERIFY,
    Stage.WEIGHT_TRANSFER,
    Stage.WEIGHT_PUBLISH,
    Stage.GENERATE,
    Stage.EVALUATE,
)
PRECEDENCE = (*_NEAREST_FIRST, *(stage for stage in Stage if not stage.is_wait and stage not in _NEAREST_FIRST))
"""Who owns an instant in which the Learner waits and several stages run in other lanes: the first of these."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """How a window divides among the stages that the loop had to wait for.

    Attributes:
        wall_ns: length of the window; the sum of all that follows.
        stages_ns: exposed nanoseconds by stage, without waits, in the order of ``Stage``.
        nobody_ns: nanoseconds that no stage owns.
    """

    wall_ns: int
    stages_ns: dict[Stage, int]
    nobody_ns: int

    def share(self, part_ns: int) -> float:
        """Return a part of the window as a fraction in [0, 1]; 0 for an empty window."""
        return part_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def largest(self) -> Stage | None:
        """The stage with the most exposed time; None where no stage owns any."""
        return max(self.stages_ns, key=lambda stage: self.stages_ns[stage], default=None)


def exposed(spans: Iterable[Span], window: Interval) -> Exposure | None:
    """Divide the window (start, end), in nanoseconds, as the top of this file says; None without a Learner's span."""
    lanes = owned_intervals(spans, window)
    learners = [owned for lane, owned in lanes.items() if lane_kind(lane) == "learner"]
    others = [owned for lane, owned in lanes.items() if lane_kind(lane) != "learner"]
    if not learners:
        return None
    waits = merge(piece for owned in learners for stage in owned if stage.is_wait for piece in owned[stage])
    taken = _claim([window], learners, tuple(stage for stage in Stage if not stage.is_wait))
    busy = [piece for pieces in taken.values() for piece in pieces]
    shared = _claim(without(waits, busy), others, PRECEDENCE)
    times = {stage: total(taken.get(stage, [])) + total(shared.get(stage, [])) for stage in Stage}
    wall_ns = window[1] - window[0]
    known = {stage: ns for stage, ns in times.items() if ns}
    return Exposure(wall_ns, known, wall_ns - sum(known.values()))


def _claim(free: list[Interval], lanes: list[Owned], order: Iterable[Stage]) -> Owned:
    """Give the free instants to the stages that the lanes are in then; an earlier stage of the order goes first."""
    claimed: Owned = {}
    for stage in order:
        wanted = [piece for owned in lanes for piece in owned.get(stage, ())]
        if wanted:
            claimed[stage] = both(free, wanted)
            free = without(free, claimed[stage])
    return claimed
