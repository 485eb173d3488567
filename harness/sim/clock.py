"""An asyncio event loop on a virtual clock: time jumps to the next timer instead of passing.

With nothing left to run and no timer set, a real loop would sleep for ever; this one raises ``Deadlock``.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from harness.errors import HarnessError
from harness.trace import RecordingTracer

T = TypeVar("T")


class Deadlock(HarnessError):
    """Everyone waits and no timer is set, so nothing can ever happen again."""


class _JumpingSelector(selectors.SelectSelector):
    """Adds the timeout to its clock instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("deadlock on the virtual clock: every task waits and no timer is set")
        self.now_s += max(0.0, timeout)
        return []


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose ``time()`` starts at 0 and advances only by timers. Threads and sockets do not work on it."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now_s

    def time_ns(self) -> int:
        """Virtual nanoseconds since the loop was made, rounded."""
        return round(self._jumping.now_s * 1e9)


def run_virtual(main: Callable[[RecordingTracer], Coroutine[Any, Any, T]]) -> tuple[T, RecordingTracer]:
    """Run ``main(tracer)`` on a virtual clock.

    Args:
        main: called with a tracer whose clock is the virtual one.

    Returns:
        What ``main`` returned, and the tracer with the spans in it.

    Raises:
        Deadlock: nothing could ever happen again; says who waits for what since when.
    """
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualClockLoop)
        tracer = RecordingTracer(loop.time_ns)
        try:
            return runner.run(main(tracer)), tracer
        except Deadlock as error:
            raise Deadlock(f"{error}\n{_who_waits(tracer, loop.time_ns())}") from None


def _who_waits(tracer: RecordingTracer, now_ns: int) -> str:
    lines = [
        f"  {lane}: {stage.value} for step {step} since {start_ns / 1e9:g} s ({(now_ns - start_ns) / 1e9:g} s)"
        for lane, stage, start_ns, step, _ in tracer.still_open()
    ]
    return "\n".join(lines) or "  no span is open"
