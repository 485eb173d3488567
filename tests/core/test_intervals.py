"""Interval arithmetic against counting, one nanosecond at a time."""

from hypothesis import given
from hypothesis import strategies as st

from harness.core.intervals import clip, merge, shared, total

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


@given(st.lists(INTERVALS, max_size=4), st.integers(1, 3))
def test_what_several_groups_share_equals_counting(groups: list[list[tuple[int, int]]], at_least: int) -> None:
    covered = [{tick for start, end in intervals for tick in range(start, end)} for intervals in groups]
    assert shared(groups, at_least) == sum(sum(tick in ticks for ticks in covered) >= at_least for tick in range(41))


def test_an_overlap_within_a_group_is_not_shared() -> None:
    assert shared([[(0, 10), (2, 8)], [(7, 12)]]) == 3
