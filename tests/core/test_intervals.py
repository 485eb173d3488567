"""Interval arithmetic against counting, one nanosecond at a time."""

from hypothesis import given
from hypothesis import strategies as st

from harness.core.intervals import both, clip, merge, total

INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda p: (p[0], p[0] + p[1])), max_size=8)


def test_merge_joins_what_touches_and_drops_what_is_empty() -> None:
    assert merge([(5, 7), (0, 2), (2, 3), (9, 9), (6, 8)]) == [(0, 3), (5, 8)]


def test_clip_keeps_what_lies_inside() -> None:
    assert clip([(0, 4), (5, 9), (10, 12)], (3, 6)) == [(3, 4), (5, 6)]
    assert clip([(0, 3), (6, 9)], (3, 6)) == []  # touching is not inside


@given(INTERVALS, st.integers(0, 40), st.integers(0, 40))
def test_totals_equal_counting(intervals: list[tuple[int, int]], low: int, high: int) -> None:
    covered = {tick for start, end in intervals for tick in range(start, end)}
    assert total(intervals) == len(covered)
    assert total(clip(intervals, (low, high))) == len({tick for tick in covered if low <= tick < high})


@given(INTERVALS, INTERVALS)
def test_what_is_in_both_equals_counting(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    ticks = [{tick for start, end in intervals for tick in range(start, end)} for intervals in (first, second)]
    pieces = both(first, second)
    assert {tick for start, end in pieces for tick in range(start, end)} == ticks[0] & ticks[1]
    assert total(pieces) == sum(end - start for start, end in pieces)  # disjoint
