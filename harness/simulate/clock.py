"""The virtual clock: an asyncio event loop whose time jumps to the next timer instead of passing.

What is due is run in order of its time and, at one time, in the order in which it was asked for; nothing depends on the
machine. With nothing left to run and no timer set, a real loop would sleep for ever; this one raises ``Deadlock``,
which ``run_virtual`` explains: who waits for whom since when.

Time is a whole number of ticks of 10^-15 s. So what hand arithmetic calls simultaneous is (0.1 s three times is 0.3 s,
which it is not in floating point), and a long run drifts no more than a short one.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar, TypeVarTuple, Unpack

from harness.core.errors import HarnessError
from harness.core.trace import OpenSpan, RecordingTracer, Span
from harness.run.watchdog import likely_culprit, open_lines, waiting_chain

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

TICKS_PER_S = 10**15
TICKS_PER_NS = TICKS_PER_S // 10**9
_EXACT_S = 8.0  # below 2^53 ticks, which a float holds exactly


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
    """A function to be called once; ``function`` is None when it is not any more.

    The fields of asyncio's own class are private to it, so they stay empty.
    """

    __slots__ = ("arguments", "function", "surroundings", "ticks")

    def __init__(
        self, function: Callable[..., object], arguments: tuple[Any, ...], surroundings: Context | None, ticks: int
    ) -> None:
        self.function: Callable[..., object] | None = function
        self.arguments = arguments
        self.surroundings = copy_context() if surroundings is None else surroundings
        self.ticks = ticks

    def cancel(self) -> None:
        """Never call it."""
        self.function = None
        self.arguments = ()

    def cancelled(self) -> bool:
        """Whether it will never be called."""
        return self.function is None

    def when(self) -> float:
        """Virtual seconds at which it is due."""
        return self.ticks / TICKS_PER_S

    def __repr__(self) -> str:
        return f"<call of {self.function!r} at {self.when():g} s>"

    __eq__, __hash__ = object.__eq__, object.__hash__


class _Task(asyncio.Task[T]):
    """A task whose hash is its number, not its address: so a set of tasks has the same order in every process."""

    def __init__(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        loop: asyncio.AbstractEventLoop,
        name: str | None,
        context: Context | None,
        number: int,
    ) -> None:
        self._number = number
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


class VirtualClockLoop(asyncio.AbstractEventLoop):
    """An event loop whose ``time()`` starts at 0 and advances only by timers and ``block``.

    It has what coroutines need: tasks, futures, timers. Threads, sockets, signals and processes do not work on it.

    Args:
        after_each: called after each callback, if given: for whoever checks that something always holds. What it raises
            ends the run.

    Attributes:
        callbacks: run so far.
    """

    def __init__(self, after_each: Callable[[], object] | None = None) -> None:
        self.callbacks = 0
        self._after_each = after_each
        self._ticks = self._ns = 0
        self._seconds = 0.0  # of the ticks, as it is asked for several times at each
        self._ready: deque[_Call] = deque()
        self._timers: list[tuple[int, int, _Call]] = []  # a heap: when, which, what
        self._number = count().__next__
        self._running = self._stopping = self._closed = self._debug = False

    # ---- time

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
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

    # ---- callbacks

    def call_soon(
        self, callback: Callable[[Unpack[Arguments]], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        """Call it now, behind what is to be called now already."""
        call = _Call(callback, args, context, self._ticks)
        self._ready.append(call)
        return call

    call_soon_threadsafe = call_soon  # there are no other threads

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it after so many virtual seconds; after infinitely many: never."""
        if delay == math.inf:
            return _Call(callback, args, context, self._ticks)
        call = _Call(callback, args, context, self._ticks + to_ticks(delay))
        if call.ticks <= self._ticks:
            self._ready.append(call)
        else:
            heappush(self._timers, (call.ticks, self._number(), call))
        return call

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it at that virtual second, or now if that is past."""
        if when == math.inf:
            return _Call(callback, args, context, self._ticks)
        return self._schedule(_Call(callback, args, context, to_ticks(when)))

    def _schedule(self, call: _Call) -> _Call:
        if call.ticks <= self._ticks:
            self._ready.append(call)
        else:
            heappush(self._timers, (call.ticks, self._number(), call))
        return call

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Return a task of this loop that runs the coroutine."""
        return _Task(coro, self, name, context, self._number())

    # ---- running

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until the future is done, and return its result.

        Raises:
            Deadlock: it never will be.
            Exception: its error, or that of a callback.
        """
        task = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        task.add_done_callback(self._end)
        try:
            self.run_forever()
        finally:
            task.remove_done_callback(self._end)
        return task.result()

    def _end(self, task: object) -> None:
        self._stopping = True

    def run_forever(self) -> None:
        """Run until ``stop`` is called.

        Raises:
            Deadlock: nothing is left to run and no timer is set.
            RuntimeError: a loop is running already, or this one is closed.
        """
        if self._closed or asyncio._get_running_loop() is not None:
            raise RuntimeError("the virtual clock is closed" if self._closed else "an event loop is running already")
        asyncio._set_running_loop(self)  # exported by asyncio for event loops: this is how they say who runs
        self._running = True
        try:
            while not self._stopping:
                if not self._ready:
                    self._jump()
                self._run_ready()
        finally:
            self._running = self._stopping = False
            asyncio._set_running_loop(None)

    def _run_ready(self) -> None:
        """Call what is ready, until there is no more at this time or somebody has stopped the loop."""
        ready, after_each = self._ready, self._after_each
        while ready and not self._stopping:
            call = ready.popleft()
            function = call.function
            if function is not None:
                self.callbacks += 1
                call.surroundings.run(function, *call.arguments)
                if after_each is not None:
                    after_each()

    def _jump(self) -> None:
        """Go on to the time of the next timer."""
        timers = self._timers
        while timers and timers[0][2].function is None:
            heappop(timers)
        if not timers:
            raise Deadlock("deadlock on the virtual clock: every task waits and no timer is set")
        self._go_to(timers[0][0])

    def _go_to(self, ticks: int) -> None:
        """Set the time, and have what is due by then called."""
        self._ticks, self._seconds = ticks, ticks / TICKS_PER_S
        self._ns = (ticks + TICKS_PER_NS // 2) // TICKS_PER_NS
        timers = self._timers
        while timers and timers[0][0] <= ticks:
            self._ready.append(heappop(timers)[2])

    def stop(self) -> None:
        """Stop when the present callback has returned."""
        self._stopping = True

    def close(self) -> None:
        """Cancel what has not ended, let it clean up, and forget the rest."""
        if self._closed:
            return
        self._after_each, left = None, asyncio.all_tasks(self)
        for task in left:
            task.cancel()
        try:
            if left:
                self.run_until_complete(asyncio.wait(left))
        except Deadlock:
            pass  # it does not let itself be cancelled
        finally:
            self._closed = True
            self._ready.clear()
            self._timers.clear()

    def is_running(self) -> bool:
        """Whether callbacks are being run."""
        return self._running

    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: see ``close``."""

    async def shutdown_default_executor(self) -> None:
        """Do nothing: there are no threads."""

    # ---- what went wrong

    def get_debug(self) -> bool:
        """Whether asyncio is to check more."""
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        """Have asyncio check more, or not."""
        self._debug = enabled

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log what nobody else hears of, such as the error of a task that nobody waited for."""
        if not self._closed:
            self.default_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log it."""
        logging.getLogger(__name__).error("%s", context.get("message"), exc_info=context.get("exception"))


_COLLECT_RARELY = 20_000, 20, 20
"""Thresholds of garbage collection during a run. Hundreds of lanes hold many objects for long, and little garbage has
cycles: at 512 Generators, looking for it as often as usual took a seventh of the time."""


def run_virtual(
    main: Callable[[RecordingTracer], Coroutine[Any, Any, T]],
    *,
    after_each: Callable[[], object] | None = None,
) -> tuple[T, RecordingTracer]:
    """Run ``main(tracer)`` on a virtual clock.

    Args:
        main: called with a tracer whose clock is the virtual one.
        after_each: called after each callback of the event loop, if given.

    Returns:
        What ``main`` returned, and the tracer with the spans in it.

    Raises:
        Deadlock: nothing could ever happen again; says who waits for whom since when.
    """
    loop = VirtualClockLoop(after_each)  # type: ignore[abstract]  # sockets, processes and the like
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
