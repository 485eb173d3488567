"""Which instants of a lane belong to which stage, and how short perfect overlap could make a loop. From spans alone."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.compare.lanes import LaneAccount
from harness.intervals import Interval, merge
from harness.trace import Span, Stage

Owned = dict[Stage, list[Interval]]
"""The instants of one lane by stage: disjoint intervals in nanoseconds."""


def owned_intervals(spans: Iterable[Span], window: Interval) -> dict[str, Owned]:
    """Return for each lane when it was in which stage or wait, inside the window (start, end) in nanoseconds.

    An instant under several spans of a lane belongs to the one that began last, as in ``account_spans``. Intervals of
    one lane never overlap, whatever their stages.
    """
    lanes: dict[str, list[Span]] = {}
    for span in spans:
        if span.start_ns < window[1] and span.end_ns > window[0]:
            lanes.setdefault(span.lane, []).append(span)
    return {lane: _owned(own, window) for lane, own in lanes.items()}


def _owned(spans: list[Span], window: Interval) -> Owned:
    """Cut one lane's spans to what each of them owns."""
    pieces: Owned = {}
    open_spans: list[tuple[int, int, Span]] = []  # newest start first
    now = window[0]

    def give_until(until: int) -> None:
        nonlocal now
        while open_spans and now < until:
            newest = open_spans[0][2]
            upto = min(newest.end_ns, until)
            if upto > now:
                pieces.setdefault(newest.stage, []).append((now, upto))
                now = upto
            if newest.end_ns <= now:
                heapq.heappop(open_spans)
        now = max(now, until)

    for order, span in enumerate(sorted(spans, key=lambda item: (item.start_ns, -item.end_ns))):
        give_until(max(span.start_ns, window[0]))
        heapq.heappush(open_spans, (-span.start_ns, -order, span))
    give_until(window[1])
    return {stage: merge(intervals) for stage, intervals in pieces.items()}


def both(first: Iterable[Interval], second: Iterable[Interval]) -> list[Interval]:
    """Return the instants in both unions, as disjoint intervals in order."""
    mine, theirs = merge(first), merge(second)
    found, left, right = [], 0, 0
    while left < len(mine) and right < len(theirs):
        start, end = max(mine[left][0], theirs[right][0]), min(mine[left][1], theirs[right][1])
        if start < end:
            found.append((start, end))
        if mine[left][1] < theirs[right][1]:
            left += 1
        else:
            right += 1
    return found


def without(first: Iterable[Interval], second: Iterable[Interval]) -> list[Interval]:
    """Return the instants of the first union that are not in the second, as disjoint intervals in order."""
    mine = merge(first)
    if not mine:
        return []
    window = mine[0][0], mine[-1][1]
    free, now = [], window[0]
    for start, end in merge(second):
        free.append((now, min(start, window[1])))
        now = max(now, end)
    free.append((now, window[1]))
    return both(mine, free)


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
