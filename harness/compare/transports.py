"""Weight syncs side by side: a table of their parts, and transports set against Ray's object store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from harness.compare import numbers
from harness.compare.experiments import Experiment, Variant
from harness.compare.sync import PARTS, SyncFigures, percentiles
from harness.compare.tables import Table

OBJECT_STORES = {
    "object_store": "Ray's object store given torch tensors, its default",
    "object_store_numpy": "Ray's object store given numpy arrays",
}
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
        _row("MB", columns, lambda syncs: numbers.number(syncs[0].num_bytes * _MB)),
        _row("tensors", columns, lambda syncs: numbers.count(syncs[0].num_tensors)),
        *(_row(f"{part}, ms", columns, _milliseconds(part)) for part in PARTS[:3]),
        _row("publish to loaded, ms", columns, _milliseconds("whole")),
        _row("GB/s", columns, _bandwidth),
        _row("verify, ms", columns, _milliseconds("verify")),
    ]
    syncs = sorted({len(pooled(column, "whole")) for column in columns if column})
    many = f"{syncs[0]}" if len(syncs) == 1 else f"{syncs[0]} to {syncs[-1]}"
    notes = (
        f"Medians [10th percentile, 90th percentile] over {many} training steps; the first step of a run is left out, "
        "since its syncs set up connections.",
        "The bytes are those of one copy of the weights, the times those of one Generator; GB/s are bytes over publish "
        "to loaded, without verification.",
    )
    header = ("weight sync", *(variant.name for variant in experiment.variants))
    shown = tuple(row for row in rows if any(cell != numbers.NOTHING for cell in row[1:]))
    return Table("Weight syncs", header, shown, notes, divisible=True)


def sync_findings(experiment: Experiment) -> list[str]:
    """Set each variant's sync against those over an object store, where both moved the same bytes."""
    found = [(variant, syncs) for variant in experiment.variants if (syncs := variant_syncs(variant))]
    said = []
    for base, theirs in found:
        for other, mine in found:
            if base is not other and _worth_comparing(theirs[0], mine[0]):
                said.append(_against(base, theirs, other, mine))
    return said


def _worth_comparing(theirs: SyncFigures, mine: SyncFigures) -> bool:
    same_weights = (theirs.num_bytes, theirs.num_tensors) == (mine.num_bytes, mine.num_tensors)
    stores = list(OBJECT_STORES)
    if not same_weights or theirs.transport not in stores or not (theirs.whole_s and mine.whole_s):
        return False
    return mine.transport not in stores or stores.index(theirs.transport) < stores.index(mine.transport)


def _against(base: Variant, theirs: Sequence[SyncFigures], other: Variant, mine: Sequence[SyncFigures]) -> str:
    before, after = (median(pooled(syncs, "whole")) for syncs in (theirs, mine))
    times = f"{numbers.number(after * _MS)} ms against {numbers.number(before * _MS)} ms"
    return (
        f"{_named(other, mine[0])}: {numbers.number(mine[0].num_bytes * _MB)} MB from publish to loaded in "
        f"{after / before:.2f} times the time of {_named(base, theirs[0])}, {OBJECT_STORES[theirs[0].transport]} "
        f"({times}, medians)."
    )


def _named(variant: Variant, sync: SyncFigures) -> str:
    return variant.name if variant.name == sync.transport else f"{variant.name} ({sync.transport})"


def _row(name: str, columns: Sequence[list[SyncFigures]], cell: Callable[[list[SyncFigures]], str]) -> tuple[str, ...]:
    return (name, *(cell(syncs) if syncs else numbers.NOTHING for syncs in columns))


def _milliseconds(part: str) -> Callable[[list[SyncFigures]], str]:
    return lambda syncs: _spread([seconds * _MS for seconds in pooled(syncs, part)])


def _bandwidth(syncs: list[SyncFigures]) -> str:
    return _spread([sync.num_bytes / seconds / 1e9 for sync in syncs for seconds in sync.whole_s if seconds > 0])


def _spread(values: Sequence[float]) -> str:
    if not values:
        return numbers.NOTHING
    middle, low, high = map(numbers.number, percentiles(values, 50, 10, 90))
    return f"{middle} [{low}, {high}]"
