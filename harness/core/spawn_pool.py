"""Processes that work side by side on the cores of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def spawn_pool(
    processes: int | None = None, initializer: Callable[..., object] | None = None, *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """Start processes, and end them with the block; what they have not begun by then is left undone.

    They are spawned, since a fork would copy the locks of threads: the caller's main module must be safe to import.
    Ctrl-C is left to the caller.

    Args:
        processes: how many; None takes one for each usable core.
        initializer: called with the arguments in each process before it begins.
    """
    context = multiprocessing.get_context("spawn")
    count = processes or usable_cores()
    workers = ProcessPoolExecutor(count, context, initializer=_prepare, initargs=(initializer, arguments))
    try:
        yield workers
    finally:
        workers.shutdown(cancel_futures=True)


def _prepare(initializer: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if initializer is not None:
        initializer(*arguments)
