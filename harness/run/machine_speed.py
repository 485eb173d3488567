"""A fixed piece of work that shows how fast the machine is right now: measured before each block, to see drift."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

ROUNDS = 5
PYTHON_STEPS, NUMPY_ELEMENTS, COPY_BYTES = 200_000, 400_000, 32 * 2**20
Clock = Callable[[], float]


def measure_speed(clock: Clock = time.perf_counter) -> dict[str, float]:
    """Return the median seconds of three kinds of work, each on one thread; about a quarter of a second in all.

    Returns:
        ``python``: a loop of the interpreter; ``numpy``: square roots of ``NUMPY_ELEMENTS`` doubles, over and over;
        ``copy``: a copy of ``COPY_BYTES`` in memory.

    Args:
        clock: seconds, monotonic.
    """
    import numpy as np

    values, source = np.full(NUMPY_ELEMENTS, 2.0), np.ones(COPY_BYTES, dtype=np.uint8)
    results, target = np.empty_like(values), np.ones_like(source)  # written to once, so that the pages are there

    def square_roots() -> None:
        for _ in range(8):
            np.sqrt(values, out=results)

    work: dict[str, Callable[[], object]] = {
        "python": lambda: _count_up(PYTHON_STEPS),
        "numpy": square_roots,
        "copy": lambda: np.copyto(target, source),
    }
    rounds = [{name: _seconds(run, clock) for name, run in work.items()} for _ in range(ROUNDS)]
    return {name: round(median(times[name] for times in rounds), 9) for name in work}


def _count_up(steps: int) -> int:
    total = 0
    for step in range(steps):
        total += step
    return total


def _seconds(run: Callable[[], object], clock: Clock) -> float:
    start = clock()
    run()
    return clock() - start
