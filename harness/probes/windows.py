"""When a profiler runs: over a window of training steps, on chosen lanes, told by the spans that begin."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from types import TracebackType

from harness.core.errors import UserError
from harness.core.trace import SpanContext, Stage, Tracer
from harness.probes.profile import ProbeProfile, Window

OF_A_VERSION = frozenset(
    {
        Stage.WEIGHT_PUBLISH,
        Stage.WEIGHT_TRANSFER,
        Stage.WEIGHT_VERIFY,
        Stage.WEIGHT_LOAD,
        Stage.EVALUATE,
        Stage.CHECKPOINT,
    }
)
"""Stages whose spans carry the policy version they are about, which the training step before it has made."""


def training_step(stage: Stage, step: int) -> int:
    """Return the training step that a span belongs to; -1 if to none.

    Args:
        stage: of the span.
        step: as the span carries it.
    """
    return max(step - 1, -1) if stage in OF_A_VERSION else step


def lanes_in(window: Window, lanes: Iterable[str]) -> tuple[str, ...]:
    """Return the lanes that the window names, in the order of ``lanes``.

    Args:
        window: names lanes, or kinds of lanes: ``generator`` means ``generator``, ``generator0``, ``generator1`` ...
        lanes: those of the run.

    Raises:
        UserError: the run has no such lane.
    """
    known = tuple(lanes)
    chosen = {name: [lane for lane in known if name in (lane, lane.rstrip("0123456789"))] for name in window.lanes}
    unknown = [name for name, found in chosen.items() if not found]
    if unknown:
        raise UserError(
            f"the run has no lane {unknown[0]!r} to profile",
            "lanes of the probe profile",
            f"one of {', '.join(known)}",
        )
    return tuple(lane for lane in known if any(lane in found for found in chosen.values()))


def check_windows(profile: ProbeProfile, lanes: Iterable[str], steps: int) -> None:
    """Refuse windows that would record nothing, or not all of their steps.

    Args:
        profile: whose windows are meant.
        lanes: those of the run.
        steps: training steps of the run.

    Raises:
        UserError: a lane that the run has not, or a step that never comes.
    """
    known = tuple(lanes)
    for name in ("torch_profiler", "pyspy", "nsight"):
        window: Window | None = getattr(profile, name)
        if window is None:
            continue
        lanes_in(window, known)
        last = window.numbers[-1]
        if last >= steps:
            raise UserError(
                f"{name} profiles steps {window.first_step} to {last}, and the last step of the run is {steps - 1}",
                f"{name}.first_step of the probe profile {profile.name}",
                f"at least {last + 1} steps, or a first_step of at most {max(steps - window.steps, 0)}",
            )


class WindowTracer:
    """Starts a profiler when the first span of a step in the window begins, and stops it when the window is over.

    It is over when every one of the lanes has begun a span of a later step, or when the tracer is closed. Each happens
    at most once, in the thread whose span begins; spans that other threads begin meanwhile wait for it. Then the
    tracer does nothing but pass spans on.

    Args:
        tracer: records the spans.
        numbers: training steps of the window.
        start: starts the profiler.
        stop: stops it; called only after a ``start`` that went well.
        lanes: lanes of this process that count; None takes all that come for one.
        mark: given the stage of a span that begins while the profiler runs, returns what surrounds it.
    """

    def __init__(
        self,
        tracer: Tracer,
        numbers: range,
        start: Callable[[], None],
        stop: Callable[[], None],
        lanes: Collection[str] | None = None,
        mark: Callable[[Stage], AbstractContextManager[object]] | None = None,
    ) -> None:
        self._tracer, self._numbers, self._start, self._stop, self._mark = tracer, numbers, start, stop, mark
        self._lanes = None if lanes is None else frozenset(lanes)
        self._before_its_end = set(lanes or [""])
        self._running = self._over = False
        self._lock = threading.Lock()

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        """Open a span; see ``Tracer``."""
        if self._over:
            return self._tracer.span(lane, stage, step, version)
        if self._lanes is None or lane in self._lanes:
            with self._lock:
                self._begins("" if self._lanes is None else lane, training_step(stage, step))
        span = self._tracer.span(lane, stage, step, version)
        return _MarkedSpan(span, self._mark(stage)) if self._mark is not None and self._running else span

    def _begins(self, lane: str, step: int) -> None:
        if self._over:
            return
        if step in self._numbers and not self._running:
            self._begin()
        elif step >= self._numbers.stop:
            self._before_its_end.discard(lane)
            if not self._before_its_end:
                self._end()

    def _begin(self) -> None:
        try:
            self._start()
        except BaseException:
            self._over = True
            raise
        self._running = True

    def _end(self) -> None:
        running, self._running, self._over = self._running, False, True
        if running:
            self._stop()

    def close(self) -> None:
        """Stop the profiler if it still runs; no span starts it any more."""
        with self._lock:
            if not self._over:
                self._end()


class _MarkedSpan:
    """A span inside of what the profiler shows of it."""

    __slots__ = ("_mark", "_span")

    def __init__(self, span: SpanContext, mark: AbstractContextManager[object]) -> None:
        self._span, self._mark = span, mark

    def __enter__(self) -> None:
        self._mark.__enter__()
        self._span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._span.__exit__(kind, error, trace)
        finally:
            self._mark.__exit__(kind, error, trace)
