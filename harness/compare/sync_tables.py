"""Weight syncs as tables and sentences: those of an experiment's variants, and those of a transport sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

from harness.compare.experiments import Experiment, Variant
from harness.compare.numbers import NOTHING, count, number, plural
from harness.compare.sync import (
    PARTS,
    SyncCost,
    SyncFigures,
    SyncPoint,
    fastest_by_size,
    percentiles,
    sync_costs,
    sync_points,
)
from harness.compare.tables import Table

OBJECT_STORES = {
    "object_store": "Ray's object store given torch tensors, its default",
    "object_store_numpy": "Ray's object store given numpy arrays",
}
UNSTABLE = "!"
"""Marks a time that does not repeat."""
_MS, _MB = 1e3, 1e-6


def variant_syncs(variant: Variant) -> list[SyncFigures]:
    """Return the syncs of a variant's runs, where weights left the process."""
    return [run.sync for run in variant.runs if run.sync is not None and run.sync.leaves_the_process]


def pooled(syncs: Sequence[SyncFigures], part: str) -> list[float]:
    """Return the seconds of one part, or of the ``whole``, over all steps of all runs."""
    return [seconds for sync in syncs for seconds in (sync.whole_s if part == "whole" else sync.seconds.get(part, ()))]


def sync_table(experiment: Experiment) -> Table | None:
    """Return what a weight sync moved and took, one column for each variant; None where none left the process."""
    columns = [variant_syncs(variant) for variant in experiment.variants]
    if not any(columns):
        return None
    rows = [
        _row("transport", columns, lambda syncs: syncs[0].transport),
        _row("MB", columns, lambda syncs: number(syncs[0].num_bytes * _MB)),
        _row("tensors", columns, lambda syncs: count(syncs[0].num_tensors)),
        *(_row(f"{part}, ms", columns, _milliseconds(part)) for part in PARTS[:3]),
        _row("publish to loaded, ms", columns, _milliseconds("whole")),
        _row("GB/s", columns, _bandwidth),
        _row("verify, ms", columns, _milliseconds("verify")),
    ]
    syncs = sorted({len(pooled(column, "whole")) for column in columns if column})
    many = f"{syncs[0]}" if len(syncs) == 1 else f"{syncs[0]} to {syncs[-1]}"
    notes = (
        f"Means [10th percentile, median, 90th percentile] over {many} measured training steps: without warm-up.",
        "The bytes are those of one copy of the weights, the times those of one Generator; GB/s are the bytes over the "
        "mean from publish to loaded, without verification.",
    )
    header = ("weight sync", *(variant.name for variant in experiment.variants))
    shown = tuple(row for row in rows if any(cell != NOTHING for cell in row[1:]))
    return Table("Weight syncs", header, shown, notes, divisible=True)


def sync_findings(experiment: Experiment) -> list[str]:
    """Set each variant's sync against those over an object store, where both moved the same bytes."""
    moved = [(variant, syncs) for variant in experiment.variants if (syncs := variant_syncs(variant))]
    return [
        _against(base, theirs, other, mine)
        for base, theirs in moved
        for other, mine in moved
        if base is not other and _worth_comparing(theirs[0], mine[0])
    ]


def _worth_comparing(theirs: SyncFigures, mine: SyncFigures) -> bool:
    same_weights = (theirs.num_bytes, theirs.num_tensors) == (mine.num_bytes, mine.num_tensors)
    stores = list(OBJECT_STORES)
    if not same_weights or theirs.transport not in stores or not (theirs.whole_s and mine.whole_s):
        return False
    return mine.transport not in stores or stores.index(theirs.transport) < stores.index(mine.transport)


def _against(base: Variant, theirs: Sequence[SyncFigures], other: Variant, mine: Sequence[SyncFigures]) -> str:
    before, after = (fmean(pooled(syncs, "whole")) for syncs in (theirs, mine))
    times = f"{number(after * _MS)} ms against {number(before * _MS)} ms"
    return (
        f"{_named(other, mine[0])}: {number(mine[0].num_bytes * _MB)} MB from publish to loaded in "
        f"{after / before:.2f} times the time of {_named(base, theirs[0])}, {OBJECT_STORES[theirs[0].transport]} "
        f"({times}, means)."
    )


def _named(variant: Variant, sync: SyncFigures) -> str:
    return variant.name if variant.name == sync.transport else f"{variant.name} ({sync.transport})"


def _row(name: str, columns: Sequence[list[SyncFigures]], cell: Callable[[list[SyncFigures]], str]) -> tuple[str, ...]:
    return (name, *(cell(syncs) if syncs else NOTHING for syncs in columns))


def _milliseconds(part: str) -> Callable[[list[SyncFigures]], str]:
    return lambda syncs: _spread([seconds * _MS for seconds in pooled(syncs, part)])


def _bandwidth(syncs: list[SyncFigures]) -> str:
    whole_s = pooled(syncs, "whole")
    return number(syncs[0].num_bytes / fmean(whole_s) / 1e9) if sum(whole_s) > 0 else NOTHING


def _spread(values: Sequence[float]) -> str:
    if not values:
        return NOTHING
    mean, low, middle, high = map(number, (fmean(values), *percentiles(values, 10, 50, 90)))
    return f"{mean} [{low}, {middle}, {high}]"


Cell = Callable[[SyncPoint], str]


def sweep_points(experiment: Experiment) -> list[SyncPoint]:
    """Return the timed syncs of an experiment, pooled over its runs; none where it was no transport sweep."""
    return sync_points([row for run in experiment.runs for row in run.timed_syncs])


def sweep_findings(experiment: Experiment) -> list[str]:
    """Return what a sweep shows: the ranking at its largest size, the object stores, the winner by size."""
    points = sweep_points(experiment)
    return sync_sentences(points, sync_costs(points))


def sync_sentences(points: Sequence[SyncPoint], costs: Sequence[SyncCost]) -> list[str]:
    """Say it of the points and their fitted costs, for the fewest receivers and tensors."""
    receivers, tensors = min(point.receivers for point in points), min(point.tensors for point in points)
    alike = _of_kind(points, (receivers, tensors))
    sizes = [point.num_bytes for point in alike]
    largest = [point for point in alike if point.num_bytes == max(sizes)]
    best, *slower = sorted(largest, key=lambda point: point.median_s)
    shares = ", ".join(f"{point.transport} {100 * point.share_of_copy:.0f}%" for point in slower)
    share = f"{100 * best.share_of_copy:.0f}% of the bandwidth of a plain copy in memory"
    sentences = [
        f"At {best.megabytes:g} MB {best.transport} is the fastest: {number(1e3 * best.median_s)} ms from publish to "
        f"the receiver's own tensors, {share}{f' ({shares})' if shares else ''}."
    ]
    by_name = {point.transport: point for point in largest}
    stores = {"object_store": "given torch tensors, Ray's default", "object_store_numpy": "given numpy arrays"}
    for store, form in stores.items():
        others = [point for name, point in by_name.items() if name != store]
        if store in by_name and others:
            ratios = ", ".join(f"{point.transport} {point.median_s / by_name[store].median_s:.2f}" for point in others)
            stored = f"Ray's object store {form} ({store})"
            sentences.append(f"Times at {best.megabytes:g} MB relative to {stored}: {ratios}.")
    chosen = [cost for cost in costs if cost.receivers == receivers]
    if min(sizes) < max(sizes) and len(chosen) > 1:
        (_, fastest), *later = fastest_by_size(chosen, min(sizes), max(sizes), tensors)
        changes = ", ".join(f"from {size / 1e6:.3g} MB on {name}" for size, name in later)
        when = f"the fastest is {fastest} for the smallest weights, {changes}"
        sentences.append(
            f"By the fitted costs {when if later else f'{fastest} is the fastest at every size measured'}."
        )
    return sentences


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
    notes: tuple[str, ...] = (
        f"Medians of {fewest} syncs in turns, +- half the range from 10th to 90th percentile; from the start of the "
        "publish until the weights are in tensors of the last receiver's own. Verification is timed apart.",
    )
    if any(point.is_unstable for point in points):
        notes += (
            f"{UNSTABLE}: unstable, the repeats from 25th to 75th percentile span more than half of the median; not "
            "used in the fitted cost.",
        )
    title = f"Publish to own tensors, ms: {plural(kind[0], 'receiver')}, {plural(kind[1], 'tensor')}"

    def cell(point: SyncPoint) -> str:
        half_range = (point.high_s - point.low_s) / 2 / point.median_s
        return f"{number(1e3 * point.median_s)} +-{100 * half_range:.0f}%{UNSTABLE if point.is_unstable else ''}"

    return _by_size(title, points, cell, notes, with_copy=True)


def _shares(points: Sequence[SyncPoint]) -> Table:
    notes = ("The plain copy moves the same bytes once, in warm memory, on one thread, next to each sync.",)
    return _by_size("Bandwidth as a share of a plain copy", points, lambda p: f"{100 * p.share_of_copy:.0f}%", notes)


def _by_size(
    title: str, points: Sequence[SyncPoint], cell: Cell, notes: tuple[str, ...], with_copy: bool = False
) -> Table:
    """One row for each transport, one column for each size."""
    sizes = sorted({point.num_bytes for point in points})
    cells = {(point.transport, point.num_bytes): cell(point) for point in points}
    names = dict.fromkeys(point.transport for point in points)
    rows = [(name, *(cells.get((name, size), NOTHING) for size in sizes)) for name in names]
    if with_copy:
        copies = {size: median(point.copy_s for point in points if point.num_bytes == size) for size in sizes}
        rows.append(("plain copy", *(number(1e3 * copies[size]) for size in sizes)))
    header = ("transport", *(f"{size / 1e6:g} MB" for size in sizes))
    return Table(title, header, tuple(rows), notes)


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


def _costs(costs: Sequence[SyncCost]) -> Table:
    rows = [
        (
            cost.transport,
            str(cost.receivers),
            number(1e3 * cost.fixed_s),
            number(1e6 * cost.per_tensor_s),
            number(1e3 * 1e6 * cost.per_byte_s),
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
