"""Read many runs: one after the other, or side by side in a few processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from enum import Enum, auto
from pathlib import Path

from harness.compare.figures import RunFigures, run_figures
from harness.core.errors import UserError
from harness.results import DamagedRun, load_run

FEWEST_FOR_PROCESSES = 150
"""Runs from which on more processes pay: starting one takes as long as reading about 40 runs of 200 steps."""
_AT_A_TIME = 8


class Detail(Enum):
    """How much of a run is read: what an overview needs, all but the spans, or everything."""

    OVERVIEW = auto()
    WITHOUT_SPANS = auto()
    FULL = auto()


def read_figures(
    folders: Sequence[Path], details: Sequence[Detail], processes: int = 1
) -> list[RunFigures | DamagedRun]:
    """Return the figures of each run, in order; a run that cannot be read comes with the reason.

    Only figures are kept: the rows of a run go as soon as its figures are made.

    Args:
        details: for each run, how much of it is wanted.
        processes: how many may read side by side, where there are enough runs for it to pay. The caller's main module
            must be safe to import, as of any program that starts processes.
    """
    if processes < 2 or len(folders) < FEWEST_FOR_PROCESSES:
        return list(map(_read, folders, details))
    workers = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_prepare)
    try:
        return list(workers.map(_read, folders, details, chunksize=_AT_A_TIME))
    except BrokenProcessPool:  # a worker was killed from outside, as where memory is short
        return list(map(_read, folders, details))
    finally:
        workers.shutdown(cancel_futures=True)


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read(folder: Path, detail: Detail) -> RunFigures | DamagedRun:
    try:
        return run_figures(load_run(folder), detail is Detail.OVERVIEW, detail is Detail.FULL)
    except UserError as error:
        return DamagedRun(folder, error)


def _prepare() -> None:
    """In a worker: leave Ctrl-C to the parent, and look for no cycles, since rows have none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
