"""Work that is the same whoever does it, done by as many processes as there are cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""As ``map``: a function of a module, its arguments and results of a kind that pickles, results in order."""


@contextmanager
def side_by_side(processes: int | None = None) -> Iterator[Each]:
    """Yield a ``map`` that works in several processes.

    Args:
        processes: None: one for each core that this process may use. With 1 nothing is started.
    """
    count = processes or len(os.sched_getaffinity(0))
    if count == 1:
        yield map
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:  # a fork would copy the locks of threads
        yield pool.map
