"""What a transport sweep says: medians, the share of memory bandwidth, fitted costs, which transport for which size."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.compare import numbers
from harness.compare.sync import percentile
from harness.results.rows import SyncRow

STEPS_BETWEEN = 200  # sizes looked at between the smallest and the largest, for the crossover


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """The timed syncs of one transport at one size.

    Attributes:
        median_s, low_s, high_s: from the start of the publish to the end of the slowest load: the median, and the 10th
            and 90th percentile of the repeats.
        copy_s: median of one plain copy of the same bytes in warm memory.
        publish_s, transfer_s, load_s, verify_s: medians of the stages.
    """

    transport: str
    num_bytes: int
    tensors: int
    receivers: int
    repeats: int
    median_s: float
    low_s: float
    high_s: float
    copy_s: float
    publish_s: float
    transfer_s: float
    load_s: float
    verify_s: float

    @property
    def megabytes(self) -> float:
        """Size in units of 10^6 bytes."""
        return self.num_bytes / 1e6

    @property
    def share_of_copy(self) -> float:
        """Bandwidth from publish to loaded, as a fraction of that of the plain copy."""
        return self.copy_s / self.median_s


@dataclass(frozen=True, slots=True)
class SyncCost:
    """Seconds of a sync = fixed_s + per_tensor_s * tensors + per_byte_s * bytes, fitted to the medians.

    Attributes:
        worst: the largest relative error of the fit at a measured size.
    """

    transport: str
    receivers: int
    fixed_s: float
    per_tensor_s: float
    per_byte_s: float
    worst: float

    def seconds(self, num_bytes: float, tensors: int) -> float:
        """Return what the fit says."""
        return self.fixed_s + self.per_tensor_s * tensors + self.per_byte_s * num_bytes


def sync_points(rows: Sequence[SyncRow]) -> list[SyncPoint]:
    """Return a point for each transport, size, tensor count and number of receivers; the first sync is left out.

    Transports come in the order of their times with the largest weights, the fastest first.
    """
    groups: dict[tuple[str, int, int, int], list[SyncRow]] = {}
    for row in rows:
        if row.repeat > 0:
            groups.setdefault((row.transport, row.num_bytes, row.tensors, row.receivers), []).append(row)
    points = [_point(group) for group in groups.values()]
    slowest = {point.transport: 0.0 for point in points}
    for point in points:
        slowest[point.transport] = max(slowest[point.transport], point.median_s)
    return sorted(points, key=lambda point: (slowest[point.transport], point.receivers, point.tensors, point.num_bytes))


def _point(group: Sequence[SyncRow]) -> SyncPoint:
    totals = [row.total_s for row in group]

    def median(name: str) -> float:
        return float(statistics.median(getattr(row, name) for row in group))

    first = group[0]
    return SyncPoint(
        first.transport,
        first.num_bytes,
        first.tensors,
        first.receivers,
        len(group),
        statistics.median(totals),
        percentile(totals, 10),
        percentile(totals, 90),
        *(median(name) for name in ("plain_copy_s", "publish_s", "transfer_s", "load_s", "verify_s")),
    )


def sync_costs(points: Sequence[SyncPoint]) -> list[SyncCost]:
    """Fit the cost of each transport and number of receivers; relative errors are made small, and no cost is negative.

    A coefficient that the sweep does not vary (one tensor count, one size) is left at 0 and falls to the fixed cost.
    """
    groups: dict[tuple[str, int], list[SyncPoint]] = {}
    for point in points:
        groups.setdefault((point.transport, point.receivers), []).append(point)
    return [_fit(name, receivers, group) for (name, receivers), group in groups.items()]


def _fit(transport: str, receivers: int, points: Sequence[SyncPoint]) -> SyncCost:
    """Non-negative least squares by trying every set of coefficients that may be other than 0."""
    import numpy as np

    columns = [[1.0, float(point.tensors), float(point.num_bytes)] for point in points]
    varied = [0, *(index for index in (1, 2) if len({row[index] for row in columns}) > 1)]
    seconds = np.array([point.median_s for point in points])
    weighted = np.array(columns) / seconds[:, None]
    best, best_error = np.zeros(3), float("inf")
    for size in range(1, len(varied) + 1):
        for chosen in itertools.combinations(varied, size):
            solved, *_ = np.linalg.lstsq(weighted[:, chosen], np.ones(len(points)), rcond=None)
            error = float(((weighted[:, chosen] @ solved - 1) ** 2).sum())
            if (solved >= 0).all() and error < best_error:
                best, best_error = np.zeros(3), error
                best[list(chosen)] = solved
    worst = float(abs(weighted @ best - 1).max())
    fixed_s, per_tensor_s, per_byte_s = (float(value) for value in best)
    return SyncCost(transport, receivers, fixed_s, per_tensor_s, per_byte_s, worst)


def fastest_by_size(
    costs: Sequence[SyncCost], smallest: float, largest: float, tensors: int
) -> list[tuple[float, str]]:
    """Return (from this many bytes on, the fastest transport by the fits), the smallest size first.

    Args:
        costs: of one number of receivers.
        smallest, largest: range of sizes in bytes.
        tensors: number of tensors.
    """
    found: list[tuple[float, str]] = []
    for step in range(STEPS_BETWEEN + 1):
        size = smallest * (largest / smallest) ** (step / STEPS_BETWEEN)
        winner = min(costs, key=lambda cost: cost.seconds(size, tensors)).transport
        if not found or found[-1][1] != winner:
            found.append((size, winner))
    return found


def sync_sentences(points: Sequence[SyncPoint], costs: Sequence[SyncCost]) -> list[str]:
    """Return what the sweep shows: the ranking at its largest size, the object stores, the winner by size."""
    receivers, tensors = min(point.receivers for point in points), min(point.tensors for point in points)
    alike = [point for point in points if (point.receivers, point.tensors) == (receivers, tensors)]
    largest = [point for point in alike if point.num_bytes == max(item.num_bytes for item in alike)]
    said = [_at_largest(largest), *_against_stores(largest)]
    sizes = [point.num_bytes for point in alike]
    chosen = [cost for cost in costs if cost.receivers == receivers]
    if min(sizes) < max(sizes) and len(chosen) > 1:
        said.append(_crossovers(fastest_by_size(chosen, min(sizes), max(sizes), tensors)))
    return said


def _at_largest(points: Sequence[SyncPoint]) -> str:
    best = min(points, key=lambda point: point.median_s)
    others = ", ".join(
        f"{point.transport} {100 * point.share_of_copy:.0f}%"
        for point in sorted(points, key=lambda point: point.median_s)
        if point is not best
    )
    share = f"{100 * best.share_of_copy:.0f}% of the bandwidth of a plain copy in memory"
    return (
        f"At {best.megabytes:g} MB {best.transport} is the fastest: {numbers.number(1e3 * best.median_s)} ms from "
        f"publish to the receiver's own tensors, {share}{f' ({others})' if others else ''}."
    )


def _against_stores(points: Sequence[SyncPoint]) -> list[str]:
    """Compare with both forms of the object store; a sentence against it must say which."""
    stores = {
        "object_store": "given torch tensors, Ray's default",
        "object_store_numpy": "given numpy arrays",
    }
    by_name = {point.transport: point for point in points}
    said = []
    for store, form in stores.items():
        if store not in by_name:
            continue
        ratios = [
            f"{point.transport} {point.median_s / by_name[store].median_s:.2f}"
            for point in points
            if point.transport != store
        ]
        if ratios:
            said.append(
                f"Times at {by_name[store].megabytes:g} MB relative to Ray's object store {form} ({store}): "
                f"{', '.join(ratios)}."
            )
    return said


def _crossovers(found: Sequence[tuple[float, str]]) -> str:
    first, *later = found
    if not later:
        return f"By the fitted costs {first[1]} is the fastest at every size measured."
    changes = ", ".join(f"from {size / 1e6:.3g} MB on {name}" for size, name in later)
    return f"By the fitted costs the fastest is {first[1]} for the smallest weights, {changes}."
