"""A transport sweep as tables: times, shares of a plain copy, parts of a sync."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from harness.compare.numbers import NOTHING, number, plural
from harness.compare.syncs import SyncPoint
from harness.report.document import Table

UNSTABLE = "!"
"""Marks a time that does not repeat."""


def sweep_tables(points: Sequence[SyncPoint]) -> list[Table]:
    """Return the tables of a transport sweep, the times first."""
    kinds = sorted({(point.receivers, point.tensors) for point in points})
    first = _of_kind(points, kinds[0])
    times = [_times(kind, _of_kind(points, kind)) for kind in kinds]
    return [*times, _shares(first), _parts(first)]


def _of_kind(points: Sequence[SyncPoint], kind: tuple[int, int]) -> list[SyncPoint]:
    return [point for point in points if (point.receivers, point.tensors) == kind]


def _times(kind: tuple[int, int], points: Sequence[SyncPoint]) -> Table:
    fewest = min(point.repeats for point in points)
    notes: tuple[str, ...] = (
        f"Medians of {fewest} syncs in turns, +- half the range from 10th to 90th percentile; from the start of the "
        "publish until the weights are in tensors of the last receiver's own. Verification is timed apart.",
    )
    if any(point.is_unstable for point in points):
        notes += (f"{UNSTABLE} The middle half of the repeats spans more than half of the median: it does not repeat.",)

    def cell(point: SyncPoint) -> str:
        half_range = (point.high_s - point.low_s) / 2 / point.median_s
        return f"{number(1e3 * point.median_s)} +-{100 * half_range:.0f}%{UNSTABLE if point.is_unstable else ''}"

    title = f"Publish to own tensors, ms: {plural(kind[0], 'receiver')}, {plural(kind[1], 'tensor')}"
    table = _by_size(title, points, cell, notes)
    sizes = sorted({point.num_bytes for point in points})
    copies = [median(point.copy_s for point in points if point.num_bytes == size) for size in sizes]
    rows = (*table.rows, ("plain copy", *(number(1e3 * seconds) for seconds in copies)))
    return Table(title, table.header, rows, notes)


def _shares(points: Sequence[SyncPoint]) -> Table:
    notes = ("The plain copy moves the same bytes once, in warm memory, on one thread, next to each sync.",)
    title = "Bandwidth as a share of a plain copy"
    return _by_size(title, points, lambda point: f"{100 * point.copy_s / point.median_s:.0f}%", notes)


def _by_size(
    title: str, points: Sequence[SyncPoint], cell: Callable[[SyncPoint], str], notes: tuple[str, ...]
) -> Table:
    """One row for each transport, one column for each size."""
    sizes = sorted({point.num_bytes for point in points})
    cells = {(point.transport, point.num_bytes): cell(point) for point in points}
    names = dict.fromkeys(point.transport for point in points)
    rows = [(name, *(cells.get((name, size), NOTHING) for size in sizes)) for name in names]
    return Table(title, ("transport", *(f"{size / 1e6:g} MB" for size in sizes)), tuple(rows), notes)


def _parts(points: Sequence[SyncPoint]) -> Table:
    """What a sync of the largest size is made of."""
    largest = max(point.num_bytes for point in points)
    rows = [
        (
            point.transport,
            *(number(1e3 * part) for part in (point.publish_s, point.transfer_s, point.load_s, point.verify_s)),
        )
        for point in points
        if point.num_bytes == largest
    ]
    notes = (
        "Load is the copy into an engine's tensors. nixl, gloo, broadcast and object_store deliver into memory of the "
        "receiver's own, so theirs is not in the times above; the others hand out shared memory that must be copied.",
        "gloo's transfer begins with the call, and broadcast has moved the weights when its publish ends; elsewhere "
        "calls between processes lie between the stages.",
    )
    header = ("transport", "publish", "transfer", "load", "verify, apart")
    return Table(f"What a sync of {largest / 1e6:g} MB is made of, ms", header, tuple(rows), notes)
