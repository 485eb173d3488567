"""How a run is held to its end, or ended, by signals that ask a command to end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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


@contextmanager
def ended_by_first_interrupt(most_s: float) -> Iterator[None]:
    """Have Ctrl-C or SIGTERM end the block, and ignore more of them while it ends.

    A library in C that waits does not let Python answer, as Ray's does for a minute where its servers are gone. Then
    the process leaves with exit code 130 all the same; what it has started is a guardian's to end.

    Args:
        most_s: seconds in which the block ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked, over = list[int](), threading.Event()
    heard, told = os.pipe()
    os.set_blocking(told, False)

    def end(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) == 1:
            raise KeyboardInterrupt

    def leave_in_time() -> None:
        while number := os.read(heard, 1):
            if number[0] in (signal.SIGINT, signal.SIGTERM) and not over.wait(most_s):
                print("interrupted", file=sys.stderr, flush=True)
                os._exit(130)
        os.close(heard)

    threading.Thread(target=leave_in_time, daemon=True).start()
    before, noticed = signal.signal(signal.SIGINT, end), signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(noticed)
        signal.signal(signal.SIGINT, before)
        os.close(told)
