"""Which span of a lane has which instant: the one rule by which step rows, lanes and exposed time are counted.

A lane may have spans within each other, such as a weight load during an evaluation or a generation in flight. Each
instant belongs to one of them, the one that began last, so that the stages of a lane never add up to more than the
clock. Waits for a call or for the recorder get only what no other span claims: an actor may be busy with something
else.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from operator import le

from harness.core.intervals import Interval, merge, without
from harness.core.trace import Span, Stage
from harness.results.rows import LaneSeconds, part_of

_LAST = (Stage.WAIT_FOR_CALL, Stage.WAIT_FOR_RECORDER)  # they get what no other span claims


def claims(spans: Sequence[Span], window: Interval | None = None) -> Iterator[tuple[int, int, int]]:
    """Yield (index of the span, start, end) of what each span of one lane gets, in order of time.

    Args:
        window: (start, end) in nanoseconds; what lies outside is left out. None takes all.
    """
    if not spans:
        return
    low, high = window or (min(span.start_ns for span in spans), max(span.end_ns for span in spans))
    open_spans: list[tuple[int, int, int]] = []  # (rank, order, index): newest start first, calls under way last
    now = low

    def until(limit: int) -> Iterator[tuple[int, int, int]]:
        nonlocal now
        while open_spans and now < limit:
            newest = open_spans[0][2]
            upto = min(spans[newest].end_ns, limit)
            if upto > now:
                yield newest, now, upto
                now = upto
            if spans[newest].end_ns <= now:
                heapq.heappop(open_spans)
        now = max(now, limit)

    in_order = sorted(range(len(spans)), key=lambda index: (spans[index].start_ns, -spans[index].end_ns))
    for order, index in enumerate(in_order):
        span = spans[index]
        if span.start_ns >= high or span.end_ns <= low:
            continue
        yield from until(max(span.start_ns, low))
        rank = 1 if span.stage in _LAST else -span.start_ns
        heapq.heappush(open_spans, (rank, -order, index))
    yield from until(high)


def take_turns(spans: Sequence[Span]) -> bool:
    """Whether each span of one lane ends before the next one begins, as nearly always."""
    return all(map(le, [span.end_ns for span in spans], [span.start_ns for span in spans[1:]]))


def lane_seconds(spans: Iterable[Span], beside: Iterable[Span] = ()) -> LaneSeconds:
    """Sum the seconds that the spans get by lane and stage.

    Args:
        beside: spans that are not summed here, but may have instants of those that are.
    """
    totals: LaneSeconds = {}
    others = _by_lane(beside)
    for lane, own in _by_lane(spans).items():
        lengths = {span.stage: 0 for span in own}
        for span, start_ns, end_ns in _pieces(own, others.get(lane, ())):
            lengths[span.stage] += end_ns - start_ns
        totals[lane] = {stage.value: length / 1e9 for stage, length in lengths.items()}
    return totals


def _pieces(own: Sequence[Span], beside: Sequence[Span] = ()) -> Iterator[tuple[Span, int, int]]:
    """Yield (span, start, end) of what each of one lane's own spans gets."""
    every = [*own, *beside]
    if take_turns(every):
        yield from ((span, span.start_ns, span.end_ns) for span in own)
        return
    for index, start_ns, end_ns in claims(every):
        if index < len(own):
            yield own[index], start_ns, end_ns


def parts_as_lanes(spans: Sequence[Span], beside: Iterable[Span] = ()) -> list[Span]:
    """Return the spans with all lanes of a part as one: those of a Learner's ranks as the lane ``learner``.

    The part is in a stage while any of its lanes is, and waits while one of them waits and none works. So two ranks
    that work side by side are one Learner that works, and its seconds are never those of both added up. Spans of the
    same stage, step and version that touch are one. Parts of one lane are left as they are.

    Args:
        spans: of all lanes.
        beside: see ``lane_seconds``.
    """
    several = [span for span in spans if span.lane != part_of(span.lane)]
    if not several:
        return list(spans)
    found = [span for span in spans if span.lane == part_of(span.lane)]
    others, by_part = _by_lane(beside), dict[str, dict[tuple[Stage, int, int], list[Interval]]]()
    for lane, own in _by_lane(several).items():
        kinds = by_part.setdefault(part_of(lane), {})
        for span, start_ns, end_ns in _pieces(own, others.get(lane, ())):
            kinds.setdefault((span.stage, span.step, span.version), []).append((start_ns, end_ns))
    for part, kinds in by_part.items():
        work = merge(piece for (stage, _, _), pieces in kinds.items() if not stage.is_wait for piece in pieces)
        for (stage, step, version), pieces in kinds.items():
            for start_ns, end_ns in without(pieces, work) if stage.is_wait else merge(pieces):
                found.append(Span(part, stage, start_ns, end_ns, step, version))
    return sorted(found, key=lambda span: span.end_ns)


def _by_lane(spans: Iterable[Span]) -> dict[str, list[Span]]:
    lanes: dict[str, list[Span]] = {}
    for span in spans:
        lanes.setdefault(span.lane, []).append(span)
    return lanes
