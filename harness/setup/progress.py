"""Run an installer's command: everything it says into a log, a line of progress for the person who waits."""

from __future__ import annotations

import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from harness.core.errors import UserError


def telling(line: str) -> str:
    """Return what a line of pip's output says to a person who waits; an empty string if nothing."""
    match line.split():
        case ["Installing", "collected", "packages:", *names]:
            return f"Installing {len(names)} packages"
        case ["Collecting", name, *_]:
            return f"Collecting {name}"
        case ["Downloading" | "Building", *_]:
            return line.strip()
        case _:
            return ""


def run_logged(command: Sequence[str], log: Path, title: str, show: Callable[[float, str], None]) -> None:
    """Run ``command`` to its end.

    Args:
        command: the program and its arguments; it gets no standard input.
        log: file to append all output to.
        title: what it does, for the error message.
        show: called at each line, and once a second without one, with the seconds so far and what to tell.

    Raises:
        UserError: it ended with another exit code than 0; the message has its error lines.
    """
    with (
        log.open("a", encoding="utf-8") as sink,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        sink.write(f"\n== {title}\n")
        try:
            said = _follow(process, sink, show)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        errors = "\n".join(f"    {line}" for line in _error_lines(said))
        raise UserError(
            f"{title} failed with exit code {process.returncode}:\n{errors}",
            where=str(log),
            fix="mend the cause above, then run the same command again; nothing is marked as installed",
        )


def _follow(process: subprocess.Popen[str], sink: IO[str], show: Callable[[float, str], None]) -> list[str]:
    """Copy the output into ``sink`` until it ends; returns its lines."""
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_pump, args=(process, lines), daemon=True).start()
    start, said, last = time.monotonic(), list[str](), ""
    while True:
        try:
            line = lines.get(timeout=1.0)
        except queue.Empty:
            show(time.monotonic() - start, last)
            continue
        if line is None:
            return said
        sink.write(line)
        said.append(line.rstrip())
        last = telling(line) or last
        show(time.monotonic() - start, last)


def _pump(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _error_lines(said: Sequence[str], most: int = 12) -> list[str]:
    """Return the lines that start at the first error, or the last lines if none says so."""
    first = next((index for index, line in enumerate(said) if line.lstrip().startswith("ERROR")), None)
    return list(said[first : first + most] if first is not None else said[-most:])


class ProgressLine:
    """Shows progress: one line rewritten in place on a terminal, else a new line every ``every_s`` seconds."""

    def __init__(self, stream: IO[str] | None = None, every_s: float = 5.0) -> None:
        self._stream = stream or sys.stdout
        self._every_s = every_s
        self._last_s = 0.0
        self._on_terminal = self._stream.isatty()

    def show(self, seconds: float, text: str) -> None:
        """Show ``text`` with the seconds so far; see ``run_logged``."""
        width = shutil.get_terminal_size().columns - 1 if self._on_terminal else 120
        line = f"  {seconds:4.0f} s  {text}"[:width]
        if self._on_terminal:
            self._stream.write(f"\r\x1b[K{line}")
        elif seconds - self._last_s >= self._every_s:
            self._last_s = seconds
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Make room for the next message."""
        self._last_s = 0.0
        if self._on_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
