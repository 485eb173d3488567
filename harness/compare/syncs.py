"""Weight syncs: what those of a run's training steps moved and took, and what a transport sweep timed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.results.frames import Numbers, RunTable
from harness.results.rows import SyncRow

if TYPE_CHECKING:
    from harness.compare.experiment import Member

PARTS = ("publish", "transfer", "load", "verify")
NO_TRANSPORT = "in_process"


@dataclass(frozen=True, slots=True)
class Syncs:
    """Weight syncs, one value for each measured training step; shape [steps] each.

    Warm-up and profiled steps are left out; where no other synced, all but the first, whose syncs set up connections.

    Attributes:
        seconds: by part, ``publish`` and ``verify`` on the Learner, ``transfer``, ``load`` and ``verify`` on a
            Generator; a part that the transport does not have is missing.
        whole_s: from publishing to loaded: publish, transfer and load together, without verification.
        polling_pause_us: of NIXL's progress thread; None with another transport.
    """

    transport: str
    num_bytes: float
    num_tensors: float
    seconds: dict[str, Numbers]
    whole_s: Numbers
    polling_pause_us: int | None


def syncs_of(table: RunTable) -> Syncs | None:
    """Return a run's weight syncs; None where no step after the first one moved any bytes."""
    moved = table.metrics.get("sync/bytes")
    if moved is None or not (moved.counts[1:] > 0).any():
        return None
    synced = moved.counts > 0
    synced[0] = False
    plain = synced & (table.steps["is_warmup"] == 0) & (table.steps["is_profiled"] == 0)
    rows = plain if plain.any() else synced
    unknown = np.full(int(rows.sum()), np.nan)
    columns = {
        part: table.metrics[name].values[rows] if (name := f"sync/{part}_s") in table.metrics else unknown
        for part in PARTS
    }
    whole_s = columns["publish"] + np.nan_to_num(columns["transfer"]) + columns["load"]
    pause_us = table.run.setting("transport.progress_thread_delay_us")
    return Syncs(
        transport=str(table.run.setting("transport.type") or NO_TRANSPORT),
        num_bytes=float(moved.values[rows][-1]),
        num_tensors=float(table.metrics["sync/tensors"].values[rows][-1]),
        seconds={part: known for part, seconds in columns.items() if len(known := seconds[~np.isnan(seconds)])},
        whole_s=whole_s[~np.isnan(whole_s)],
        polling_pause_us=pause_us if isinstance(pause_us, int) else None,
    )


def arm_syncs(members: Sequence[Member]) -> list[Syncs]:
    """Return the syncs of an arm's runs, where weights left the process."""
    return [each for member in members if (each := syncs_of(member.table)) and each.transport != NO_TRANSPORT]


def pooled(syncs: Sequence[Syncs], part: str | None = None) -> Numbers:
    """Return the seconds of one part, or else from publishing to loaded, over all steps of all runs."""
    parts = [each.whole_s if part is None else each.seconds.get(part, np.empty(0)) for each in syncs]
    return np.concatenate(parts) if parts else np.empty(0)


def sync_seconds(member: Member) -> float | None:
    """Return the mean seconds of a sync from publishing to loaded; None where none was measured."""
    syncs = syncs_of(member.table)
    return float(syncs.whole_s.mean()) if syncs is not None and len(syncs.whole_s) else None


# ---- transport sweeps


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """The timed syncs of one transport at one size, the first left out.

    ``median_s``, ``low_s`` and ``high_s`` are from the start of the publish to the end of the slowest load, with the
    10th and 90th percentile of the repeats, ``middle_s`` from the 25th to the 75th. ``copy_s`` is the median of a plain
    copy of the same bytes in warm memory; the stages are medians too.
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


def sync_points(rows: Sequence[SyncRow]) -> list[SyncPoint]:
    """Return a point for each transport, size, tensor count and number of receivers.

    Transports come in the order of their times with the largest weights, the fastest first.
    """
    groups: dict[tuple[str, int, int, int], list[SyncRow]] = {}
    for row in rows:
        if row.repeat > 0:
            groups.setdefault((row.transport, row.num_bytes, row.tensors, row.receivers), []).append(row)
    points = []
    for key, group in groups.items():
        low, lower, middle, upper, high = np.percentile([row.total_s for row in group], (10, 25, 50, 75, 90)).tolist()
        names = ("plain_copy_s", "publish_s", "transfer_s", "load_s", "verify_s")
        medians = [statistics.median(getattr(row, name) for row in group) for name in names]
        points.append(SyncPoint(*key, len(group), middle, low, high, upper - lower, *medians))
    slowest = {point.transport: point.median_s for point in sorted(points, key=lambda point: point.median_s)}
    return sorted(points, key=lambda point: (slowest[point.transport], point.receivers, point.tensors, point.num_bytes))
