"""Windows of training steps in which a profiler runs; they open and close on chosen lanes, told by the spans there."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager

from harness.core.errors import UserError
from harness.core.trace import HookedSpan, SpanHook, Stage
from harness.probes.profile import ProbeProfile, Window
from harness.results import lane_kind

OF_A_VERSION = frozenset(
    {
        Stage.WEIGHT_PUBLISH,
        Stage.WEIGHT_TRANSFER,
        Stage.WEIGHT_VERIFY,
        Stage.WEIGHT_LOAD,
        Stage.EVALUATE,
        Stage.CHECKPOINT,
        Stage.CHECKPOINT_WRITE,
        Stage.SAVE_POLICY,
    }
)
"""Stages whose spans carry the policy version they are about, which the training step before it has made."""


def training_step(stage: Stage, step: int) -> int:
    """Return the training step that a span belongs to, which carries ``step``; -1 if to none."""
    return max(step - 1, -1) if stage in OF_A_VERSION else step


def lanes_in(window: Window, lanes: Iterable[str]) -> tuple[str, ...]:
    """Return the lanes that the window names, in the order of the run's ``lanes``.

    A kind of lanes may be named: ``generator`` means ``generator``, ``generator0``, ``generator1`` ...

    Raises:
        UserError: the run has no such lane.
    """
    known = tuple(lanes)
    for name in window.lanes:
        if not any(name in (lane, lane_kind(lane)) for lane in known):
            what = f"the run has no lane {name!r} to profile"
            raise UserError(what, "lanes of the probe profile", f"one of {', '.join(known)}")
    return tuple(lane for lane in known if lane in window.lanes or lane_kind(lane) in window.lanes)


def check_windows(profile: ProbeProfile, lanes: Sequence[str], steps: int) -> None:
    """Refuse windows that would record nothing, or not all of their steps, in a run with these lanes and steps.

    Raises:
        UserError: a lane that the run has not, or a step that never comes.
    """
    for name, window in profile.windows.items():
        lanes_in(window, lanes)
        last = window.numbers[-1]
        if last >= steps:
            raise UserError(
                f"{name} profiles steps {window.first_step} to {last}, and the last step of the run is {steps - 1}",
                f"{name}.first_step of the probe profile {profile.name}",
                f"at least {last + 1} steps, or a first_step of at most {max(steps - window.steps, 0)}",
            )


def process_name(lanes: Sequence[str]) -> str:
    """Return how files name a process: by its lanes."""
    return "+".join(lanes).replace("/", "-")


class ProfilerWindow(SpanHook):
    """Starts a profiler when the first span of a step in the window begins, and stops it when the window is over.

    It is over when every one of the lanes has begun a span of a later step, or when it is closed. Each happens
    at most once, in the thread whose span begins; spans that other threads begin meanwhile wait for it.

    Args:
        lanes: of this process, that count.
    """

    inside = False

    def __init__(self, window: Window, lanes: Collection[str]) -> None:
        self._numbers, self._lanes, self._before_its_end = window.numbers, frozenset(lanes), set(lanes)
        self._running = self._over = False
        self._lock = threading.Lock()
        self._marks: dict[HookedSpan, AbstractContextManager[object]] = {}

    @abstractmethod
    def start(self) -> None:
        """Start the profiler."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it; called only after a ``start`` that went well."""

    def mark(self, stage: Stage) -> AbstractContextManager[object] | None:
        """Return what surrounds a span that begins while the profiler runs."""
        return None

    def begin(self, span: HookedSpan) -> None:
        if self._over:
            return
        if span.lane in self._lanes:
            with self._lock:
                self._enter(span.lane, training_step(span.stage, span.step))
        if self._running and (mark := self.mark(span.stage)) is not None:
            self._marks[span] = mark
            mark.__enter__()

    def end(self, span: HookedSpan, error: BaseException | None) -> None:
        if (mark := self._marks.pop(span, None)) is not None:
            mark.__exit__(None, None, None)

    def _enter(self, lane: str, step: int) -> None:
        if step in self._numbers and not self._running and not self._over:
            try:
                self.start()
                self._running = True
            finally:
                self._over = not self._running
        elif step >= self._numbers.stop:
            self._before_its_end.discard(lane)
            if not self._before_its_end:
                self._end()

    def _end(self) -> None:
        running, self._running, self._over = self._running, False, True
        if running:
            self.stop()

    def close(self) -> None:
        """Stop the profiler if it still runs; no span starts it any more."""
        with self._lock:
            self._end()
