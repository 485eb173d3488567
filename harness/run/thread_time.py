"""Whether a thread computed, wanted to, or waited: its time on a processor, its time without one, and the rest."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class ThreadTime(NamedTuple):
    """Nanoseconds of the calling thread, each from an origin of its own.

    Attributes:
        wall_ns: of the monotonic clock.
        running_ns: on a processor. torch runs a backward pass on a CPU in the thread that calls it.
        runnable_ns: ready to run, on none (proc(5), second number of schedstat); None where the system does not say.
    """

    wall_ns: int
    running_ns: int
    runnable_ns: int | None

    def since(self, start: ThreadTime) -> tuple[float, float | None, float]:
        """Return the seconds computed, runnable and blocked since then; what is not known to be runnable is blocked."""
        running_ns, runnable_ns = self.running_ns - start.running_ns, None
        if self.runnable_ns is not None and start.runnable_ns is not None:
            runnable_ns = self.runnable_ns - start.runnable_ns
        blocked_ns = max(0, self.wall_ns - start.wall_ns - running_ns - (runnable_ns or 0))
        return running_ns / 1e9, None if runnable_ns is None else runnable_ns / 1e9, blocked_ns / 1e9


def thread_time() -> ThreadTime:
    """Read the clocks of the calling thread."""
    try:
        runnable_ns: int | None = int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        runnable_ns = None
    return ThreadTime(time.perf_counter_ns(), time.thread_time_ns(), runnable_ns)
