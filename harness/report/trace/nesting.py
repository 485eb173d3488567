"""Put slices on as few tracks as need be, so that on each they lie apart or one within the other.

The slices of a track are a stack: an end closes what began last. Two that cross (the second begins inside the first
and ends after it) cannot stand on one track; a reader would show wrong lengths without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from harness.report.trace.events import Slice


class Edge(NamedTuple):
    """The begin of a slice, or with ``slice`` None the end of the one that began last."""

    at_ns: int
    slice: Slice | None


def without_crossings(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Return the slices row by row; the first row holds as many as fit, what crosses them goes to the next one.

    Within a row they are in the order of their begin, of those that begin together the longest first.
    """
    rows: list[list[Slice]] = []
    open_ends: list[list[int]] = []  # of each row, the innermost last
    for item in sorted(slices, key=lambda item: (item.start_ns, -item.end_ns)):
        for row, ends in zip(rows, open_ends, strict=True):
            if _fits(ends, item):
                row.append(item)
                ends.append(item.end_ns)
                break
        else:
            rows.append([item])
            open_ends.append([item.end_ns])
    return rows


def _fits(open_ends: list[int], item: Slice) -> bool:
    while open_ends and open_ends[-1] <= item.start_ns:
        open_ends.pop()
    return not open_ends or item.end_ns <= open_ends[-1]


def edges(row: Sequence[Slice]) -> Iterator[Edge]:
    """Yield begins and ends of one row of ``without_crossings`` in the order of time."""
    open_ends: list[int] = []
    for item in row:
        while open_ends and open_ends[-1] <= item.start_ns:
            yield Edge(open_ends.pop(), None)
        yield Edge(item.start_ns, item)
        open_ends.append(item.end_ns)
    while open_ends:
        yield Edge(open_ends.pop(), None)
