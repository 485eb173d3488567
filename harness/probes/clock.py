"""The clock of a run's spans, which stands still while another run has its turn."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable


class PausableClock:
    """Nanoseconds of running time: the machine's monotonic clock less the pauses. Starts paused at 0.

    Attributes:
        on_resume, on_pause: called right after the time has begun to run, and right before it stops.
    """

    def __init__(self) -> None:
        self._elapsed_ns = 0
        self._resumed_at_ns: int | None = None
        self._stretches: list[tuple[int, int]] = []  # (monotonic clock, running time) at each resume
        self.on_resume: Callable[[], None] = _nothing
        self.on_pause: Callable[[], None] = _nothing

    @property
    def is_running(self) -> bool:
        return self._resumed_at_ns is not None

    def __call__(self) -> int:
        if self._resumed_at_ns is None:
            return self._elapsed_ns
        return self._elapsed_ns + time.perf_counter_ns() - self._resumed_at_ns

    def at(self, monotonic_ns: int) -> int:
        """Running time at a reading of the machine's monotonic clock. One in a pause counts as the pause's moment."""
        place = bisect_right(self._stretches, monotonic_ns, key=lambda stretch: stretch[0])
        if place == 0:
            return 0
        resumed_at_ns, elapsed_ns = self._stretches[place - 1]
        running_ns = elapsed_ns + monotonic_ns - resumed_at_ns
        if place < len(self._stretches):
            return min(running_ns, self._stretches[place][1])
        return running_ns if self._resumed_at_ns is not None else min(running_ns, self._elapsed_ns)

    def resume(self) -> None:
        if self._resumed_at_ns is None:
            self._resumed_at_ns = time.perf_counter_ns()
            self._stretches.append((self._resumed_at_ns, self._elapsed_ns))
            self.on_resume()

    def go_on_from(self, elapsed_ns: int) -> None:
        """Have the running time, which runs now, go on from another reading; what was recorded before is of no use."""
        self._elapsed_ns, self._resumed_at_ns = elapsed_ns, time.perf_counter_ns()
        self._stretches = [(self._resumed_at_ns, elapsed_ns)]

    def pause(self) -> None:
        if self._resumed_at_ns is not None:
            self.on_pause()
        self._elapsed_ns = self()
        self._resumed_at_ns = None


def _nothing() -> None: ...
