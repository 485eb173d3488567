"""A short piece of fixed work between training steps, which shows how fast the machine is meanwhile.

It resembles the work of a step: matrix products on the run's threads, a copy in memory, and a loop of Python calls,
about 5 ms in all on an idle core. How well it tells step times was measured (``docs/measuring.md``).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from harness.core.types import Metric, Metrics
from harness.results.rows import SPEED_PROBE

SIDE, PRODUCTS = 192, 8
COPY_BYTES = 8 * 2**20
CALLS = 20_000


class SpeedProbe:
    """Times the work, and keeps the seconds until they are asked for."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._left, self._right = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
        self._source, self._target = (torch.ones(COPY_BYTES, dtype=torch.uint8) for _ in range(2))
        self._seconds: list[float] = []

    def measure(self) -> dict[str, float]:
        """Do the work once; return the seconds of each kind of it, and of ``all``."""
        kinds = {"product": self._multiply, "copy": self._copy, "calls": _call}
        start = self._clock()
        seconds = {name: self._time(work) for name, work in kinds.items()}
        whole = self._clock() - start
        self._seconds.append(whole)
        return seconds | {"all": whole}

    def drain(self) -> Metrics:
        """Return the mean seconds since the last call; nothing where there were none."""
        seconds, self._seconds = self._seconds, []
        return {SPEED_PROBE: Metric(sum(seconds) / len(seconds), count=len(seconds))} if seconds else {}

    def _multiply(self) -> None:
        for _ in range(PRODUCTS):
            torch.mm(self._left, self._right)

    def _copy(self) -> None:
        self._target.copy_(self._source)

    def _time(self, work: Callable[[], None]) -> float:
        start = self._clock()
        work()
        return self._clock() - start


def _call() -> None:
    highest = 0
    for number in range(CALLS):
        highest = max(highest, number)
