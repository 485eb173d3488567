"""Faults on purpose in one rank of a Learner: it computes slowly, dies, or hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from harness.core.trace import SpanContext, Stage, Tracer
from harness.models.decoder import layers_of
from harness.settings.faults import FaultSettings


def die() -> None:
    """End this process as the system's memory killer does."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    """Never return."""
    threading.Event().wait()


def struck_tracer(tracer: Tracer, faults: FaultSettings, rank: int) -> Tracer:
    """Return a tracer under which this rank dies or hangs where the settings say so; else the one that is given."""
    for settings, strike in ((faults.dead_rank, die), (faults.hung_rank, hang)):
        if settings is not None and settings.rank == rank:
            tracer = StruckTracer(tracer, Stage(settings.stage), settings.step, strike)
    return tracer


class StruckTracer:
    """Calls something at the start of one span, once it is open.

    Args:
        tracer: records the spans.
        stage, step: of that span.
        strike: is called there.
    """

    def __init__(self, tracer: Tracer, stage: Stage, step: int, strike: Callable[[], None]) -> None:
        self._tracer, self._where, self._strike = tracer, (stage, step), strike

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        """Open a span; see ``Tracer``."""
        span = self._tracer.span(lane, stage, step, version)
        return _StruckSpan(span, self._strike) if (stage, step) == self._where else span


class _StruckSpan:
    def __init__(self, span: SpanContext, strike: Callable[[], None]) -> None:
        self._span, self._strike = span, strike

    def __enter__(self) -> None:
        self._span.__enter__()
        self._strike()

    def __exit__(self, *error: Any) -> None:
        self._span.__exit__(*error)


class SlowComputing:
    """Makes all that the calling thread computes take longer by a share.

    At the end of each layer on the way forward, and before each layer on the way back, the thread keeps its processor
    busy for a share of the processor time that it has used since the last such place. That is before the collectives
    that exchange what the layer made. Time in which the thread waits is none of it.

    Args:
        model: the policy.
        share: 0.3 makes computing take 1.3 times as long.
    """

    def __init__(self, model: nn.Module, share: float) -> None:
        self._share, self._mark_s = share, time.thread_time()
        for layer in layers_of(model):
            layer.register_forward_hook(self._after_forward)

    def _after_forward(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        self._fall_behind()
        made = output[0] if isinstance(output, tuple) else output
        if isinstance(made, Tensor) and made.requires_grad:
            made.register_hook(self._before_backward)

    def _before_backward(self, gradient: Tensor) -> None:
        self._fall_behind()

    def _fall_behind(self) -> None:
        until_s = (now := time.thread_time()) + self._share * (now - self._mark_s)
        while (now := time.thread_time()) < until_s:
            pass
        self._mark_s = now
