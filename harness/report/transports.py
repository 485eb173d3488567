"""A transport sweep as tables: times beside a plain copy, parts of a sync."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from harness.compare.numbers import NOTHING, number, plural
from harness.compare.syncs import SyncPoint
from harness.report.document import Table

UNSTABLE = "!"
"""Marks a time that does not repeat."""


def sweep_tables(points: Sequence[SyncPoint]) -> list[Table]:
    """Return the tables of a transport sweep, the times first."""
    kinds: dict[tuple[int, int], list[SyncPoint]] = {}
    for point in sorted(points, key=lambda point: (point.receivers, point.tensors)):
        kinds.setdefault((point.receivers, point.tensors), []).append(point)
    return [*map(_times, kinds.values()), _parts(next(iter(kinds.values())))]


def _times(points: Sequence[SyncPoint]) -> Table:
    """One row for each transport, one column for each size."""
    fewest, sizes = min(point.repeats for point in points), sorted({point.num_bytes for point in points})
    notes: tuple[str, ...] = (
        f"Medians of {fewest} syncs in turns, +- half the range from 10th to 90th percentile; from the start of the "
        "publish until the weights are in tensors of the last receiver's own. Verification is timed apart. The plain "
        "copy moves the same bytes once, in warm memory, on one thread, next to each sync.",
    )
    if any(point.is_unstable for point in points):
        notes += (f"{UNSTABLE} The middle half of the repeats spans more than half of the median: it does not repeat.",)
    cells: dict[str, dict[int, str]] = {}
    for point in points:
        half = 100 * (point.high_s - point.low_s) / 2 / point.median_s
        text = f"{number(1e3 * point.median_s)} +-{half:.0f}%{UNSTABLE if point.is_unstable else ''}"
        cells.setdefault(point.transport, {})[point.num_bytes] = text
    rows = [(name, *(own.get(size, NOTHING) for size in sizes)) for name, own in cells.items()]
    copies = [median(point.copy_s for point in points if point.num_bytes == size) for size in sizes]
    rows.append(("plain copy", *(number(1e3 * seconds) for seconds in copies)))
    receivers, tensors = plural(points[0].receivers, "receiver"), plural(points[0].tensors, "tensor")
    header = ("transport", *(f"{size / 1e6:g} MB" for size in sizes))
    return Table(f"Publish to own tensors, ms: {receivers}, {tensors}", header, tuple(rows), notes)


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
