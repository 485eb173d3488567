"""Streams that write plain files into the run folder: JSON lines and a TensorBoard event file."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.results.trackers.event_file import encode_scalars, encode_start

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"


class _AppendedFile:
    """A file that grows by whole pieces, written straight to the system: a killed run loses none of them."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115  (lives as long as the run)
        self._size = 0

    def append(self, piece: bytes) -> None:
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._size += len(piece)

    def close(self) -> None:
        self._file.close()


class JsonLines:
    """``metrics.jsonl``: one flat object for each row, with ``step`` and ``kind`` first; NaN and infinities as null.

    What a null stood for is in the row of ``steps.jsonl``.
    """

    def __init__(self, folder: Path) -> None:
        self._file = _AppendedFile(folder / METRICS)

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Append one line; see ``MetricStream``."""
        row: dict[str, Any] = {"step": step, "kind": kind}
        row |= {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._file.append(json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """An event file in ``tensorboard/``. Its name holds the time and no host; NaN and infinities are drawn as such.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        start = clock()
        self._file = _AppendedFile(folder / TENSORBOARD / f"events.out.tfevents.{int(start):010d}.harness")
        self._file.append(encode_start(start))

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Append one event with all the values; see ``MetricStream``."""
        self._file.append(encode_scalars(values, step, self._clock()))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
