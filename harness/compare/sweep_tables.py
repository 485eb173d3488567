"""A transport sweep as tables: times by size, shares of memory bandwidth, what a sync is made of, fitted costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from harness.compare import numbers
from harness.compare.experiments import Experiment
from harness.compare.sync_costs import SyncCost, SyncPoint, sync_costs, sync_points, sync_sentences
from harness.compare.tables import Table

Cell = Callable[[SyncPoint], str]


def sweep_points(experiment: Experiment) -> list[SyncPoint]:
    """Return the timed syncs of an experiment, pooled over its runs; none where it was no transport sweep."""
    return sync_points([row for run in experiment.runs for row in run.timed_syncs])


def sweep_findings(experiment: Experiment) -> list[str]:
    """Return what the sweep shows, in sentences computed from it."""
    points = sweep_points(experiment)
    return sync_sentences(points, sync_costs(points))


def sweep_tables(experiment: Experiment) -> list[Table]:
    """Return the tables of a transport sweep."""
    points = sweep_points(experiment)
    kinds = sorted({(point.receivers, point.tensors) for point in points})
    tables = [_times(kind, _of_kind(points, kind)) for kind in kinds]
    return [
        *tables,
        _shares(_of_kind(points, kinds[0])),
        _parts(_of_kind(points, kinds[0])),
        _costs(sync_costs(points)),
    ]


def _of_kind(points: Sequence[SyncPoint], kind: tuple[int, int]) -> list[SyncPoint]:
    return [point for point in points if (point.receivers, point.tensors) == kind]


def _times(kind: tuple[int, int], points: Sequence[SyncPoint]) -> Table:
    fewest = min(point.repeats for point in points)
    notes = (
        f"Medians of {fewest} syncs in turns, +- half the range from 10th to 90th percentile; from the start of the "
        "publish until the weights are in tensors of the last receiver's own. Verification is timed apart.",
    )
    title = f"Publish to own tensors, ms: {_plural(kind[0], 'receiver')}, {_plural(kind[1], 'tensor')}"
    return _by_size(title, points, _median_and_spread, notes, with_copy=True)


def _median_and_spread(point: SyncPoint) -> str:
    half_range = (point.high_s - point.low_s) / 2 / point.median_s
    return f"{numbers.number(1e3 * point.median_s)} +-{100 * half_range:.0f}%"


def _shares(points: Sequence[SyncPoint]) -> Table:
    notes = ("The plain copy moves the same bytes once, in warm memory, on one thread, next to each sync.",)
    return _by_size("Bandwidth as a share of a plain copy", points, lambda p: f"{100 * p.share_of_copy:.0f}%", notes)


def _by_size(
    title: str, points: Sequence[SyncPoint], cell: Cell, notes: tuple[str, ...], with_copy: bool = False
) -> Table:
    """One row for each transport, one column for each size."""
    sizes = sorted({point.num_bytes for point in points})
    found = {(point.transport, point.num_bytes): point for point in points}
    names = list(dict.fromkeys(point.transport for point in points))
    rows = [
        (name, *(cell(found[name, size]) if (name, size) in found else numbers.NOTHING for size in sizes))
        for name in names
    ]
    if with_copy:
        copies = {size: median(point.copy_s for point in points if point.num_bytes == size) for size in sizes}
        rows.append(("plain copy", *(numbers.number(1e3 * copies[size]) for size in sizes)))
    header = ("transport", *(f"{size / 1e6:g} MB" for size in sizes))
    return Table(title, header, tuple(rows), notes)


def _parts(points: Sequence[SyncPoint]) -> Table:
    """What a sync of the largest size is made of."""
    largest = max(point.num_bytes for point in points)
    rows = [
        (
            point.transport,
            *(numbers.number(1e3 * part) for part in (point.publish_s, point.transfer_s, point.load_s, point.verify_s)),
        )
        for point in points
        if point.num_bytes == largest
    ]
    notes = (
        "Load is the copy into an engine's tensors. nixl, gloo and object_store deliver into memory of the receiver's "
        "own, so theirs is not in the times above; the others hand out shared memory that must be copied.",
        "gloo's transfer begins with the call; elsewhere calls between processes lie between the stages.",
    )
    return Table(f"What a sync of {largest / 1e6:g} MB is made of, ms", _PARTS, tuple(rows), notes)


_PARTS = ("transport", "publish", "transfer", "load", "verify, apart")


def _costs(costs: Sequence[SyncCost]) -> Table:
    rows = [
        (
            cost.transport,
            str(cost.receivers),
            numbers.number(1e3 * cost.fixed_s),
            numbers.number(1e6 * cost.per_tensor_s),
            numbers.number(1e3 * 1e6 * cost.per_byte_s),
            f"{100 * cost.worst:.0f}%",
        )
        for cost in costs
    ]
    header = ("transport", "receivers", "fixed", "per tensor", "per MB", "worst")
    notes = (
        "Milliseconds, of a tensor microseconds. Least squares on the relative errors of the medians; worst: the "
        "largest error at a measured size.",
    )
    return Table("Fitted cost of a sync", header, tuple(rows), notes)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
