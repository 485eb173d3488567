"""Signals that ask a command to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Have Ctrl-C and SIGTERM raise KeyboardInterrupt, also in a job whose shell made it ignore Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    terminate = signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, terminate)


@contextmanager
def holding_interrupts() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the block ends, or is asked for twice; for what must not be left half done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if asked:
            signal.raise_signal(signal.SIGINT)
