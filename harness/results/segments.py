"""A run that goes on from a checkpoint: what its recorder knew at that moment, and its rows cut back to it.

Rows that were logged after the checkpoint belong to training that is in no policy. They move to
``NAME.N.before_resume``, with N from 1 for each time. The log keeps all of its lines. The run's clock goes on from the
checkpoint, so the time between is in no figure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from harness.core.atomic_files import sync
from harness.core.errors import UserError
from harness.core.file_locks import holding
from harness.core.trace import Span
from harness.core.types import Metric
from harness.loop.replay import ReplayStats
from harness.results.jsonl import read_json
from harness.results.manifest import Input
from harness.results.reader import is_running
from harness.results.rows import COUNTERS, GROUPS, ROLLOUTS, SPANS, STEPS, StepSeconds
from harness.results.trackers import METRICS
from harness.results.writer import LOG, MANIFEST, SCENARIO

RECORDED = "recorded.json"
"""The file in the folder of a checkpoint."""
ROW_FILES = (SPANS, STEPS, ROLLOUTS, GROUPS, COUNTERS, METRICS)
"""Files of a run that only grow, and hold nothing that is not in the policy."""


@dataclass(slots=True, kw_only=True)
class Recorded:
    """What a recorder knows between two training steps.

    Attributes:
        clock_ns: the run's clock.
        loop_start_ns, row_start_ns: on it, when the loop began, and when the last row ended.
        seconds: of each training step.
        evaluations: policy version and figures of each.
        syncs, measured: figures of weight syncs: of all, and of those since the last row.
        replay: totals of the replay buffer.
        replaced: parts that died, by lane.
        spans: ended since the last row.
        sizes: bytes of each of ``ROW_FILES`` that is there.
        inputs: as in ``Manifest``; empty in checkpoints of before it was written.
    """

    clock_ns: int
    loop_start_ns: int
    row_start_ns: int
    seconds: list[StepSeconds]
    evaluations: list[tuple[int, dict[str, Metric]]]
    syncs: dict[str, Metric]
    measured: dict[str, Metric]
    replay: ReplayStats
    replaced: dict[str, int]
    spans: tuple[Span, ...]
    sizes: dict[str, int]
    inputs: dict[str, Input] = field(default_factory=dict)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the loop began."""
        return (self.clock_ns - self.loop_start_ns) / 1e9

    def copy(self, **changes: Any) -> Recorded:
        """Return one with these changes, that stays as it is when the recorder goes on."""
        own: dict[str, Any] = {"seconds": self.seconds[:], "evaluations": self.evaluations[:]}
        return replace(self, **own, replaced={**self.replaced}, **changes)

    def to_json(self) -> bytes:
        """Return what ``read_recorded`` reads."""
        return json.dumps(msgspec.to_builtins(self)).encode()


def read_recorded(folder: Path) -> Recorded:
    """Read it from the folder of a checkpoint.

    Raises:
        UserError: it is missing, or not what it must be.
    """
    return read_json(folder / RECORDED, Recorded)


def sizes_of(folder: Path) -> dict[str, int]:
    """Return the bytes of each file of rows that a run has."""
    return {name: (folder / name).stat().st_size for name in ROW_FILES if (folder / name).exists()}


@contextmanager
def taken(folder: Path) -> Iterator[None]:
    """Have the folder of a run for oneself, until its files are cut back and open again.

    Raises:
        UserError: another process has continued the run meanwhile.
    """
    with holding(folder, wait=True):
        if is_running(folder):
            raise UserError("the run is not over: another process holds it", str(folder), "stop that process first")
        yield


def check_rows(folder: Path, sizes: Mapping[str, int]) -> None:
    """Refuse rows that have lost some of what they had at the checkpoint.

    Raises:
        UserError: a file is shorter than it was.
    """
    present = sizes_of(folder)
    for name, size in sizes.items():
        if present.get(name, 0) < size:
            what = f"{name} has {present.get(name, 0)} bytes, and had {size} at the checkpoint"
            raise UserError(what, str(folder / name), "restore the file from a copy")


def sync_rows(folder: Path) -> None:
    """Return when the disk has taken a run's rows and what it is, so that no checkpoint is ahead of them.

    Raises:
        OSError: it cannot.
    """
    for path in (*(folder / name for name in (*ROW_FILES, MANIFEST, SCENARIO)), folder):
        if path.exists():
            sync(path)


def cut_back(folder: Path, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Move what was added to a run's rows to files of their own; return their names.

    A process that is killed here leaves rows in both, and the next one moves them again.

    Raises:
        UserError: a file is shorter than it was, or cannot be written.
    """
    check_rows(folder, sizes)
    try:
        number, moved = 1, []
        while any((folder / f"{name}.{number}.before_resume").exists() for name in ROW_FILES):
            number += 1
        for name in sizes_of(folder):
            with (folder / name).open("r+b") as file:
                file.seek(sizes.get(name, 0))
                if rest := file.read():
                    moved.append(f"{name}.{number}.before_resume")
                    (folder / moved[-1]).write_bytes(rest)
                    file.truncate(sizes.get(name, 0))
        log = folder / LOG
        if log.exists() and not log.read_bytes().endswith(b"\n"):  # what a killed process leaves
            with log.open("ab") as file:
                file.write(b"\n")
    except OSError as error:
        raise UserError(f"the run's rows cannot be cut back: {error.strerror}", str(error.filename)) from error
    return tuple(moved)
