"""The counters of host, GPUs and processes as tracks, grouped by source."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from harness.report.trace.events import Instant, Sample, Track
from harness.results.counters import (
    GPU_COUNTERS,
    HOST_COUNTERS,
    PROCESS_COUNTERS,
    CounterRow,
    is_growing,
    reasons,
    sources,
    stretches,
)

MISSING = "missing"


def resource_tracks(rows: Sequence[CounterRow]) -> list[Track]:
    """Return a group for each source, with a track for each of its counters.

    What counts up from an origin of its own is shown as its growth per second between two readings. What could not be
    read at all has no track; the group says why.
    """
    return [group for source in sources(rows) if (group := _group(source, rows)) is not None]


def counter_unit(name: str) -> str:
    """Return a counter's unit; empty for a plain number and for a name that is not known."""
    for table in (HOST_COUNTERS, GPU_COUNTERS, PROCESS_COUNTERS):
        if name in table:
            return table[name].unit
    return ""


def _group(source: str, rows: Sequence[CounterRow]) -> Track | None:
    own = [row for row in rows if row.source == source]
    names = dict.fromkeys(name for row in own for name in row.values)
    group = Track(f"counters of {source}")
    group.children = [track for name in names if (track := _track(source, name, rows)).samples]
    why = tuple(sorted(reasons(own, source).items()))
    if why:
        group.instants = [Instant(own[0].at_ns, "not read", (MISSING,), why)]
    return group if group.children or group.instants else None


def _track(source: str, name: str, rows: Sequence[CounterRow]) -> Track:
    parts = stretches(rows, source, name)
    unit = counter_unit(name)
    if not is_growing(name):
        return Track(name, samples=[Sample(*sample) for part in parts for sample in part], unit=unit)
    rates = [sample for part in parts for sample in _per_second(part)]
    return Track(f"{name} per second", samples=rates, unit=f"{unit}/s" if unit else "1/s")


def _per_second(part: Sequence[tuple[int, float]]) -> list[Sample]:
    """Return the growth from each reading to the next one; after the last one the value before it stays on show."""
    pairs = [(first, second) for first, second in pairwise(part) if second[0] > first[0]]
    return [Sample(at, (after - value) * 1e9 / (until - at)) for (at, value), (until, after) in pairs]
