"""How much of a run's lanes went on side by side, and how long the lag bound held the Generators back. From spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.compare.lanes import LaneAccount
from harness.core.intervals import Interval, clip, merge, total
from harness.core.trace import Span, Stage
from harness.results import lane_kind

WORK = frozenset(stage for stage in Stage if not stage.is_wait and stage is not Stage.STARTUP)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Work of the lanes against the clock. A lane's work is the union of its stages, without waits.

    Attributes:
        loop_s: seconds of the loop.
        worked_s: seconds that the lanes worked, added over lanes: what they would take one after the other, if their
            stages took as long then.
        busy_s: seconds in which at least one lane worked.
        together_s: seconds in which at least two lanes worked.
    """

    loop_s: float
    worked_s: float
    busy_s: float
    together_s: float

    @property
    def saved_s(self) -> float:
        """Seconds that working side by side saved against one lane after the other."""
        return self.worked_s - self.busy_s


def overlap(spans: Sequence[Span], window: Interval) -> Overlap:
    """Return the overlap of the lanes inside the window (start, end), in nanoseconds."""
    lanes: dict[str, list[Interval]] = {}
    for lane, stage, start_ns, end_ns, _, _ in spans:
        if stage in WORK:
            lanes.setdefault(lane, []).append((start_ns, end_ns))
    work = [merge(clip(intervals, window)) for intervals in lanes.values()]
    worked_ns = sum([end - start for intervals in work for start, end in intervals])
    lengths = (window[1] - window[0], worked_ns, *_depths(work))
    return Overlap(*(length / 1e9 for length in lengths))


def _depths(work: Sequence[Sequence[Interval]]) -> tuple[int, int]:
    """Return how long at least one and at least two of the groups of disjoint intervals went on, in one sweep.

    An edge is twice its place, plus 1 for a start: plain numbers sort several times as fast as pairs.
    """
    edges = [2 * start + 1 for intervals in work for start, _ in intervals]
    edges += [2 * end for intervals in work for _, end in intervals]
    edges.sort()
    one = two = depth = before = 0
    for edge in edges:
        place = edge >> 1
        if depth:
            one += place - before
            if depth > 1:
                two += place - before
        depth += 1 if edge & 1 else -1
        before = place
    return one, two


@dataclass(frozen=True, slots=True)
class HeldBack:
    """How the lag bound held the Generators back.

    Attributes:
        batches: rollout batches before which at least one Generator waited for newer weights because of the bound.
        bound_batches: batches that the bound applied to.
        seconds: of these waits, as a mean over the Generators.
    """

    batches: int
    bound_batches: int
    seconds: float


def held_back(spans: Sequence[Span], max_lag: int, steps: int) -> HeldBack:
    """Return how often and how long ``max_lag`` held the Generators back.

    Batch b needs policy version b - max_lag at least, so the first ``max_lag + 1`` batches wait for no training step.
    Waits after the last batch (``step`` is the number of steps then) are not the bound's.
    """
    generators = {lane for lane in {span.lane for span in spans} if lane_kind(lane) == "generator"}
    waits = [
        span for span in spans if span.stage is Stage.WAIT_FOR_WEIGHTS and span.lane in generators
        and max_lag < span.step < steps and span.end_ns > span.start_ns
    ]  # fmt: skip
    by_lane = [total((span.start_ns, span.end_ns) for span in waits if span.lane == lane) for lane in generators]
    seconds = sum(by_lane) / max(1, len(generators)) / 1e9
    return HeldBack(len({span.step for span in waits}), max(0, steps - max_lag - 1), seconds)


@dataclass(frozen=True, slots=True)
class OverlapBound:
    """How short a loop could become if its lanes worked side by side all the time and their stages took no longer.

    Attributes:
        loop_s: seconds of the loop as it was.
        worked_s: seconds of work, added over lanes: the loop's length if nothing overlapped and nobody waited in vain.
        lane: the busiest lane.
        shortest_s: its seconds of work, below which the loop cannot fall.
    """

    loop_s: float
    worked_s: float
    lane: str
    shortest_s: float

    @property
    def speedup(self) -> float:
        """How many times as fast the loop would be: at least 1."""
        return self.loop_s / self.shortest_s


def overlap_bound(lanes: Mapping[str, LaneAccount]) -> OverlapBound | None:
    """Return the bound on what overlapping the lanes could gain; None where no lane worked."""
    if not lanes:
        return None
    busiest = max(lanes.values(), key=lambda account: account.busy_ns)
    if busiest.busy_ns <= 0:
        return None
    worked_ns = sum(account.busy_ns for account in lanes.values())
    return OverlapBound(busiest.wall_ns / 1e9, worked_ns / 1e9, busiest.lane, busiest.busy_ns / 1e9)
