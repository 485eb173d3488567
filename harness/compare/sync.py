"""The timed weight syncs of a transport sweep: times by transport and size, and the costs that fit them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.results.rows import SyncRow

STEPS_BETWEEN = 200  # sizes looked at between the smallest and the largest, for the crossover


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """The timed syncs of one transport at one size.

    Attributes:
        median_s, low_s, high_s: from the start of the publish to the end of the slowest load: the median, and the 10th
            and 90th percentile of the repeats.
        middle_s: from the 25th to the 75th percentile of the repeats.
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
    middle_s: float
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

    @property
    def is_unstable(self) -> bool:
        """Whether the middle half of the repeats spans more than half of their median: another time would differ."""
        return self.middle_s > 0.5 * self.median_s


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
    slowest = {point.transport: point.median_s for point in sorted(points, key=lambda point: point.median_s)}
    return sorted(points, key=lambda point: (slowest[point.transport], point.receivers, point.tensors, point.num_bytes))


def _point(group: Sequence[SyncRow]) -> SyncPoint:
    first = group[0]
    low, lower, middle, upper, high = np.percentile([row.total_s for row in group], (10, 25, 50, 75, 90)).tolist()
    medians = {
        name: statistics.median(getattr(row, name) for row in group)
        for name in ("publish_s", "transfer_s", "load_s", "verify_s")
    }
    return SyncPoint(
        *(first.transport, first.num_bytes, first.tensors, first.receivers, len(group)),
        *(middle, low, high, upper - lower),
        copy_s=statistics.median(row.plain_copy_s for row in group),
        **medians,
    )


def sync_costs(points: Sequence[SyncPoint]) -> list[SyncCost]:
    """Fit the cost of each transport and number of receivers; relative errors are made small, and no cost is negative.

    Unstable points are left out, and with them what has no others.
    A coefficient that the sweep does not vary (one tensor count, one size) is left at 0 and falls to the fixed cost.
    """
    groups: dict[tuple[str, int], list[SyncPoint]] = {}
    for point in points:
        if not point.is_unstable:
            groups.setdefault((point.transport, point.receivers), []).append(point)
    return [_fit(name, receivers, group) for (name, receivers), group in groups.items()]


def _fit(transport: str, receivers: int, points: Sequence[SyncPoint]) -> SyncCost:
    """Non-negative least squares by trying every set of coefficients that may be other than 0."""
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
    fixed_s, per_tensor_s, per_byte_s = best.tolist()
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
    fastest: list[tuple[float, str]] = []
    for step in range(STEPS_BETWEEN + 1):
        size = smallest * (largest / smallest) ** (step / STEPS_BETWEEN)
        winner = min(costs, key=lambda cost: cost.seconds(size, tensors)).transport
        if not fastest or fastest[-1][1] != winner:
            fastest.append((size, winner))
    return fastest
