"""Arithmetic on time intervals, always as unions: two spans that overlap do not count twice."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]
"""(start, end), end not before start."""


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union as disjoint intervals in order; touching ones are joined, empty ones dropped."""
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """Return the parts of the intervals inside the window; what lies outside is dropped."""
    low, high = window
    return [(max(start, low), min(end, high)) for start, end in intervals if start < high and end > low]


def total(intervals: Iterable[Interval]) -> int:
    """Return the length of the union."""
    return sum(end - start for start, end in merge(intervals))


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
