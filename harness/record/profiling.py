"""A profiler of a few training steps, in the process that makes them, and what shows each span to a profiler.

Imported where one is asked for or listens. NVTX ranges are there for whatever tool listens; torch is used where the
program has imported it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from harness.record.nvtx_ranges import NvtxRanges, open_domain
from harness.record.recording import LISTENERS
from harness.record.torch_trace import RAW, mark, new_profile, write_trace

BEGINS, ENDS = ".begins", ".ends"
"""Files by which a process asks for py-spy, and for its end; it goes on when they are gone."""
PATIENCE_S, LOOK_S = 40.0, 0.01
"""Seconds that it waits for that: more than py-spy may take; and between two looks."""


class Profiling:
    """What one process does for the profilers.

    Args:
        lane: returns the lane of the calling thread.
        asked: the value of ``PROFILE_VARIABLE``: profiler, first step counted from 0, number of steps and a folder for
            drafts, with ``:`` between them; None where none was asked for.
    """

    def __init__(self, lane: Callable[[], str], asked: str | None, environment: Mapping[str, str] = os.environ) -> None:
        domain, reason = open_domain(environment=environment)
        self._ranges = None if domain is None else NvtxRanges(domain)
        if domain is None and any(name in environment for name in LISTENERS):
            _say(f"no NVTX ranges: {reason}")
        self._lane, self._kind = lane, ""
        self._stop: Callable[[], None] | None = None
        self._steps, self._window = 0, range(0)
        self._lock = threading.Lock()
        if asked is not None:
            self._kind, first, steps, folder = asked.split(":", 3)
            self._window, self._folder = range(int(first), int(first) + int(steps)), Path(folder)

    def mark(self, name: str, step: int) -> Callable[[], Any] | None:
        """Show a profiler that a span begins; return what shows that it ends."""
        if self._ranges is not None:
            return partial(self._ranges.end, self._ranges.begin(name, step))
        if self._kind == "torch" and self._stop is not None:
            shown = mark(name)
            shown.__enter__()
            return partial(shown.__exit__, None, None, None)
        return None

    def on_step(self) -> bool:
        """A training step begins; return whether a profiler has part in its time: it writes its file in the last."""
        place, self._steps = self._steps, self._steps + 1
        if self._window and place == self._window.start:
            try:
                self._stop = {"nsys": self._nsys, "torch": self._torch, "py-spy": self._pyspy}[self._kind]()
            except Exception as error:  # whatever a profiler raises: the program goes on without it
                _say(f"not profiled: {type(error).__name__}: {error}")
        ran = self._stop is not None
        if place == self._window.stop:
            self.stop()
        return ran

    def stop(self) -> None:
        """Stop the profiler, if it runs."""
        with self._lock:
            stop, self._stop = self._stop, None
        if stop is not None:
            try:
                stop()
            except Exception as error:
                _say(f"the profile was not written: {type(error).__name__}: {error}")

    def _nsys(self) -> Callable[[], None]:
        """Start nsys's capture: by the CUDA profiler API where there is a GPU, else by a range."""
        torch = _torch_on_a_gpu()
        if torch is not None:
            torch.cuda.profiler.start()
        number = None if self._ranges is None else self._ranges.begin_capture()

        def stop() -> None:
            if self._ranges is not None and number is not None:
                self._ranges.end(number)
            if torch is not None:
                torch.cuda.synchronize()  # what was launched inside the window belongs in the report
                torch.cuda.profiler.stop()

        return stop

    def _torch(self) -> Callable[[], None]:
        if "torch" not in sys.modules:
            raise RuntimeError("the program has not imported torch")
        started = new_profile(_torch_on_a_gpu() is not None)
        started.start()
        return partial(write_trace, started, self._folder / f"{self._name()}{RAW}")

    def _pyspy(self) -> Callable[[], None]:
        self._ask(BEGINS)
        return partial(self._ask, ENDS)

    def _ask(self, what: str) -> None:
        """Ask ``record`` for something by a file, and wait until it has done it."""
        file, draft = self._folder / f"{os.getpid()}{what}", self._folder / f"{os.getpid()}.draft"
        draft.write_text(self._name())
        draft.replace(file)
        end_s = time.monotonic() + PATIENCE_S
        while file.exists() and time.monotonic() < end_s:
            time.sleep(LOOK_S)

    def _name(self) -> str:
        return self._lane().replace("/", "-")


def _torch_on_a_gpu() -> Any:
    """Return torch where the program computes with it on a GPU, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None


def _say(words: str) -> None:
    print(f"recording: {words}", file=sys.stderr)
