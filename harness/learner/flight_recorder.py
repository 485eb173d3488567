"""What a rank did last, in a file that outlives it: stages and agreements, numbered, so that ranks can be compared."""

from __future__ import annotations

import os
import time
from pathlib import Path

from harness.core.trace import HookedSpan, SpanHook

KEPT, WIDTH = 16, 96


class FlightRecorder(SpanHook):
    """A ring of the last ``KEPT`` calls of this process, one write each; a process that is killed leaves it whole.

    Around a tracer it notes the begin and end of each stage.

    Args:
        file: made if its folder is on this machine; None, or another machine's folder, keeps nothing.
    """

    inside = False

    def __init__(self, file: Path | None) -> None:
        self._number = 0
        self._file = None
        if file is not None and file.parent.is_dir():
            self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def note(self, call: str) -> None:
        """Write down that a call begins or ends."""
        self._number += 1
        if self._file is not None:
            line = f"{self._number} {time.monotonic():.3f} {call}"[: WIDTH - 1].ljust(WIDTH - 1) + "\n"
            os.pwrite(self._file, line.encode("ascii", "replace"), self._number % KEPT * WIDTH)

    def begin(self, span: HookedSpan) -> None:
        self.note(f"{span.stage.value} of step {span.step} began")

    def end(self, span: HookedSpan, error: BaseException | None) -> None:
        self.note(f"{span.stage.value} of step {span.step} {'ended' if error is None else 'failed'}")


def read_flight(file: Path) -> list[str]:
    """Return the calls in a flight recorder's file, oldest first, numbered; empty where there is no file."""
    try:
        lines = file.read_text("ascii", "replace").splitlines()
    except OSError:
        return []
    rows = [parts for line in lines if len(parts := line.strip("\0 ").split(maxsplit=2)) == 3]
    rows.sort(key=lambda row: int(row[0]))
    now_s = time.monotonic()
    return [f"{number}: {call} {now_s - float(at_s):.1f} s ago" for number, at_s, call in rows]
