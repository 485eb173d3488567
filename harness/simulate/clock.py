"""The virtual clock: asyncio's own event loop, whose selector jumps to the next timer instead of waiting for it.

What is due at one time is called in the order in which it was asked for; nothing depends on the machine. With nothing
left to call and no timer set, a real loop would sleep for ever; this one raises ``Deadlock``, which ``run_virtual``
explains: who waits for whom since when.

Time is a whole number of ticks of 10^-15 s. So what hand arithmetic calls simultaneous is (0.1 s three times is 0.3 s,
which it is not in floating point), and a long run drifts no more than a short one.
"""

from __future__ import annotations

import asyncio
import gc
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar, TypeVarTuple, Unpack

from harness.core.errors import HarnessError
from harness.core.trace import OpenSpan, RecordingTracer, Span
from harness.run.watchdog import likely_culprit, open_lines, waiting_chain

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TICKS_PER_S = 10**15
TICKS_PER_NS = TICKS_PER_S // 10**9
_EXACT_S = 8.0  # below 2^53 ticks, which a float holds exactly
_COLLECT_RARELY = 20_000, 20, 20
"""Thresholds of garbage collection during a run. Hundreds of lanes hold many objects for long, and little garbage has
cycles: at 512 Generators, looking for it as often as usual took a seventh of the time."""


class Deadlock(HarnessError):
    """Everyone waits and no timer is set, so nothing can ever happen again.

    Attributes:
        spans: that have ended, if a tracer was there.
        waiting: stages and waits that have not.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.spans: tuple[Span, ...] = ()
        self.waiting: tuple[OpenSpan, ...] = ()


def to_ticks(seconds: float) -> int:
    """Return a duration in ticks, as exactly as a float of that size is: 10^-15 s below 8 s, 10^-12 s above.

    Raises:
        ValueError: it is not a number.
        OverflowError: it is infinite.
    """
    return round(seconds * TICKS_PER_S) if seconds < _EXACT_S else round(seconds * 1e12) * 1000


class _Call(asyncio.TimerHandle):
    """A handle without what asyncio keeps for debugging: making that took a tenth of a run."""

    __slots__ = ()
    _repr = _source_traceback = None

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None, when: float
    ) -> None:
        self._callback, self._args, self._when, self._cancelled = callback, args, when, False
        self._context = copy_context() if context is None else context

    def cancel(self) -> None:
        self._cancelled, self._args = True, ()


class _Task(asyncio.Task[T]):
    """A task whose hash is its number, not its address: so a set of tasks has the same order in every process."""

    def __init__(self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualClockLoop(asyncio.BaseEventLoop):
    """An event loop whose ``time()`` starts at 0 and advances only by timers and ``block``.

    Threads, sockets, signals and processes do not work on it. The error of a plain callback ends the run.

    Attributes:
        callbacks: run so far.
    """

    _ready: deque[_Call]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.callbacks = 0
        self._number = count().__next__
        self._ticks = self._ns = 0
        self._seconds = 0.0  # of the ticks, as it is asked for several times at each
        self._timers: list[tuple[int, int, _Call]] = []  # a heap; asyncio's own has no order at one time

    def time(self) -> float:
        return self._seconds

    def time_ns(self) -> int:
        """Virtual nanoseconds since the loop was made, rounded."""
        return self._ns

    def block(self, seconds: float) -> None:
        """Let time pass within a plain call, which holds the loop up: what falls due meanwhile comes late.

        Raises:
            ValueError: it is less than nothing.
        """
        if seconds < 0:
            raise ValueError(f"a call took {seconds:g} s, must be at least 0")
        self._go_to(self._ticks + to_ticks(seconds))

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        call = _Call(callback, args, context, self._seconds)
        self._ready.append(call)
        return call

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        call = _Call(callback, args, context, self._seconds + delay)
        return call if delay == math.inf else self._set(call, self._ticks + to_ticks(delay))

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        call = _Call(callback, args, context, when)
        return call if when == math.inf else self._set(call, to_ticks(when))

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        return _Task(coro, self._number(), loop=self, name=name, context=context)

    def _set(self, call: _Call, ticks: int) -> _Call:
        if ticks <= self._ticks:
            self._ready.append(call)
        else:
            heappush(self._timers, (ticks, self._number(), call))
        return call

    def _run_once(self) -> None:
        """Call what is ready, until there is no more at this time or somebody has stopped the loop.

        Raises:
            Deadlock: nothing is ready and no timer is set.
        """
        if not self._ready:
            self._jump()
        ready = self._ready
        while ready and not self._stopping:
            call = ready.popleft()
            if not call._cancelled:
                self.callbacks += 1
                call._context.run(call._callback, *call._args)

    def _jump(self) -> None:
        """Go on to the time of the next timer."""
        while self._timers and self._timers[0][2].cancelled():
            heappop(self._timers)
        if not self._timers:
            raise Deadlock("deadlock on the virtual clock: every task waits and no timer is set")
        self._go_to(self._timers[0][0])

    def _go_to(self, ticks: int) -> None:
        """Set the time, and have what is due by then called."""
        self._ticks, self._seconds = ticks, ticks / TICKS_PER_S
        self._ns = (ticks + TICKS_PER_NS // 2) // TICKS_PER_NS
        while self._timers and self._timers[0][0] <= ticks:
            self._ready.append(heappop(self._timers)[2])

    def _write_to_self(self) -> None: ...

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_closed():
            super().call_exception_handler(context)

    def close(self) -> None:
        """Cancel what has not ended, let it clean up, and forget the rest."""
        left = () if self.is_closed() else asyncio.all_tasks(self)
        for task in left:
            task.cancel()
        try:
            if left:
                self.run_until_complete(asyncio.wait(left))
        except Deadlock:
            pass  # it does not let itself be cancelled
        finally:
            self._timers.clear()
            super().close()


def run_virtual(
    main: Callable[[RecordingTracer], Coroutine[Any, Any, T]], loop: VirtualClockLoop | None = None
) -> tuple[T, RecordingTracer]:
    """Run ``main(tracer)`` on a virtual clock, and close that.

    Args:
        main: called with a tracer whose clock is the virtual one.
        loop: None makes one.

    Returns:
        What ``main`` returned, and the tracer with the spans in it.

    Raises:
        Deadlock: nothing could ever happen again; says who waits for whom since when.
    """
    loop = loop or VirtualClockLoop()
    tracer = RecordingTracer(loop.time_ns)
    thresholds = gc.get_threshold()
    gc.set_threshold(*_COLLECT_RARELY)
    try:
        return loop.run_until_complete(main(tracer)), tracer
    except Deadlock as error:
        raise _explained(error, tracer, loop.time_ns()) from None
    finally:
        gc.set_threshold(*thresholds)
        loop.close()


def _explained(error: Deadlock, tracer: RecordingTracer, now_ns: int) -> Deadlock:
    """Say who waits for whom: lanes that wait for each other, or for a part that is stuck in a stage."""
    spans = tracer.still_open()
    lines = [f"{error}, at {now_ns / 1e9:.6f} s", likely_culprit(spans, now_ns), *waiting_chain(spans)]
    told = Deadlock("\n  ".join([*lines, *open_lines(spans, now_ns, decimals=6)]))
    told.spans, told.waiting = tuple(tracer.drain()), tuple(spans)
    return told
