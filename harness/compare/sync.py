"""The weight syncs of one run: what was moved, and how long each part of it took."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.compare.metric_columns import metric_value
from harness.results import Run, StepRow

PARTS = ("publish", "transfer", "load", "verify")
MOVING = ("publish", "transfer", "load")
NO_TRANSPORT = "in_process"


@dataclass(frozen=True, slots=True)
class SyncFigures:
    """Weight syncs, one value for each training step. The first step is left out: its syncs set up connections.

    Attributes:
        transport: the scenario's ``transport.type``.
        num_bytes, num_tensors: of one sync.
        seconds: by part, ``publish`` and ``verify`` on the Learner, ``transfer``, ``load`` and ``verify`` on a
            Generator; a part that the transport does not have is missing.
        whole_s: from publishing to loaded: publish, transfer and load together, without verification.
        polling_pause_us: of NIXL's progress thread; None with another transport.
    """

    transport: str
    num_bytes: float
    num_tensors: float
    seconds: dict[str, tuple[float, ...]]
    whole_s: tuple[float, ...]
    polling_pause_us: int | None = None

    @property
    def leaves_the_process(self) -> bool:
        """Whether the weights went from one process to another."""
        return self.transport != NO_TRANSPORT


def sync_figures(run: Run) -> SyncFigures | None:
    """Return the figures of a run's syncs; None where no step after the first one moved any bytes."""
    rows = [row for row in run.steps[1:] if _value(row, "sync/bytes") is not None]
    if not rows:
        return None
    seconds = {part: tuple(_values(rows, f"sync/{part}_s")) for part in PARTS}
    return SyncFigures(
        transport=str(run.setting("transport.type") or NO_TRANSPORT),
        num_bytes=_value(rows[-1], "sync/bytes") or 0.0,
        num_tensors=_value(rows[-1], "sync/tensors") or 0.0,
        seconds={part: values for part, values in seconds.items() if values},
        whole_s=tuple(whole for row in rows if (whole := _whole_s(row)) is not None),
        polling_pause_us=_whole_number(run.setting("transport.progress_thread_delay_us")),
    )


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated linearly between the two nearest values."""
    return percentiles(values, percent)[0]


def percentiles(values: Sequence[float], *percents: float) -> list[float]:
    """Return several percentiles, each interpolated linearly between the two nearest values."""
    ordered = sorted(values)
    places = [(len(ordered) - 1) * percent / 100 for percent in percents]
    return [_between(ordered, math.floor(place), place) for place in places]


def _between(ordered: Sequence[float], low: int, place: float) -> float:
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _whole_s(row: StepRow) -> float | None:
    """Return the seconds of a whole sync; None in a step where none was both published and loaded."""
    times = {part: _value(row, f"sync/{part}_s") for part in MOVING}
    if times["publish"] is None or times["load"] is None:
        return None
    return sum(seconds for seconds in times.values() if seconds is not None)


def _values(rows: Iterable[StepRow], name: str) -> list[float]:
    return [value for row in rows if (value := _value(row, name)) is not None]


def _value(row: StepRow, name: str) -> float | None:
    return metric_value(row.metrics, name)
