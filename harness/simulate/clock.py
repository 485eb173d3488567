"""Runs a coroutine on a virtual clock, and says where it got stuck. The clock is ``harness.simulate.event_loop``'s."""

from __future__ import annotations

import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from harness.core.trace import RecordingTracer
from harness.run.watchdog import likely_culprit, open_lines, waiting_chain
from harness.simulate.event_loop import TICKS_PER_NS, TICKS_PER_S, Deadlock, VirtualClockLoop, to_ticks

__all__ = ["TICKS_PER_NS", "TICKS_PER_S", "Deadlock", "VirtualClockLoop", "run_virtual", "to_ticks"]

T = TypeVar("T")

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
