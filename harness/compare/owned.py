"""Which instants of a lane belong to which stage: an instant under several spans goes to the one that began last.

Waits for a call or for the recorder own only what no other span claims: an actor may be busy with something else.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from harness.core.intervals import Interval, merge
from harness.core.trace import Span, Stage

_LOWEST = (Stage.WAIT_FOR_CALL, Stage.WAIT_FOR_RECORDER)
Owned = dict[Stage, list[Interval]]
"""The instants of one lane by stage: disjoint intervals in nanoseconds."""


def owned_intervals(spans: Iterable[Span], window: Interval) -> dict[str, Owned]:
    """Return for each lane when it was in which stage or wait, inside the window (start, end) in nanoseconds.

    Intervals of one lane never overlap, whatever their stages.
    """
    found: dict[str, Owned] = {}
    for lane, own in by_lane(spans, window).items():
        pieces: Owned = {}
        for stage, start, end in owned_pieces(own, window):
            pieces.setdefault(stage, []).append((start, end))
        found[lane] = {stage: merge(intervals) for stage, intervals in pieces.items()}
    return found


def by_lane(spans: Iterable[Span], window: Interval) -> dict[str, list[Span]]:
    """Return the spans that reach into the window, by lane."""
    start_ns, end_ns = window
    lanes: dict[str, list[Span]] = {}
    for span in spans:
        lane, _, span_start_ns, span_end_ns, _, _ = span
        if span_start_ns < end_ns and span_end_ns > start_ns:
            lanes.setdefault(lane, []).append(span)
    return lanes


def owned_pieces(spans: Iterable[Span], window: Interval) -> Iterator[tuple[Stage, int, int]]:
    """Yield (stage, start, end) of what each of one lane's spans owns inside the window, in order of time."""
    open_spans: list[tuple[int, int, Span]] = []  # newest start first, calls under way last
    now = window[0]

    def until(limit: int) -> Iterator[tuple[Stage, int, int]]:
        nonlocal now
        while open_spans and now < limit:
            newest = open_spans[0][2]
            upto = min(newest.end_ns, limit)
            if upto > now:
                yield newest.stage, now, upto
                now = upto
            if newest.end_ns <= now:
                heapq.heappop(open_spans)
        now = max(now, limit)

    for order, span in enumerate(sorted(spans, key=lambda item: (item.start_ns, -item.end_ns))):
        yield from until(max(span.start_ns, window[0]))
        rank = 1 if span.stage in _LOWEST else -span.start_ns
        heapq.heappush(open_spans, (rank, -order, span))
    yield from until(window[1])
