"""One progress display for all long work: bars on a terminal, else lines; with counts, facts and the time left."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from harness.core.terminal_text import plain

LINE_EVERY_S = 60.0
"""Seconds between two lines where nothing can be drawn."""
TENTHS = 10


def duration(seconds: float) -> str:
    """Write seconds for people: 42 s, 12 min, 2 h 05 min."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def is_live(console: Console) -> bool:
    """Whether the console can be drawn over: a terminal that obeys control sequences, and not only by FORCE_COLOR."""
    forced = "FORCE_COLOR" in os.environ and not console.file.isatty()
    return console.is_terminal and not console.is_dumb_terminal and not forced


def progress_bars(
    console: Console,
    *,
    quiet: bool = False,
    counts: bool = True,
    facts: bool = False,
    transient: bool = False,
    tenths: bool = False,
) -> Bars:
    """Return bars for tasks. Where they cannot be drawn, each task gets a line at least every ``LINE_EVERY_S`` seconds.

    Args:
        console: where to draw.
        quiet: show nothing.
        counts: show ``3/10`` and the time left; without, what is done is no count and its end is not known.
        facts: show the field ``facts`` of each task.
        transient: take the bars away at the end.
        tenths: where bars cannot be drawn, also a line for each tenth that is done.
    """
    columns: list[ProgressColumn] = [TextColumn("{task.description}", style="bold", markup=False), BarColumn()]
    if counts:
        columns.append(MofNCompleteColumn())
    if facts:
        columns.append(TextColumn("{task.fields[facts]}", markup=False))
    columns += [TimeElapsedColumn(), *([TimeRemainingColumn()] if counts else [])]
    live = is_live(console)
    says = None if live or quiet else ("tenths" if tenths else "minutes")
    return Bars(*columns, console=console, disable=quiet or not live, transient=transient, counts=counts, says=says)


@contextmanager
def minutes_told(console: Console, what: str, quiet: bool = False) -> Iterator[None]:
    """Tell in lines, where no bars can be drawn, that something of which no part is counted still goes on."""
    with progress_bars(console, quiet=quiet or is_live(console), counts=False) as bars:
        bars.add_task(what, total=None)
        yield


class Bars(Progress):
    """rich's bars, or lines in their place.

    Args:
        counts: whether a task's total is known.
        says: when a task gets a line: ``minutes``, ``tenths`` (those too), or None for never.
    """

    def __init__(self, *columns: ProgressColumn, counts: bool, says: str | None, **options: Any) -> None:
        super().__init__(*columns, **options)
        self._counts, self._says = counts, says
        self._first: dict[TaskID, tuple[float, float]] = {}  # what was done at the first advance, and when
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to draw, or to say lines."""
        super().start()
        if self._says:
            threading.Thread(target=self._say_minutes, name="progress", daemon=True).start()

    def stop(self) -> None:
        """Take no further changes."""
        self._ended.set()
        super().stop()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change a task."""
        before = self._tasks[task_id].completed
        super().update(task_id, **changes)
        self._note(self._tasks[task_id], before)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """Count something as done."""
        before = self._tasks[task_id].completed
        super().advance(task_id, advance)
        self._note(self._tasks[task_id], before)

    def _note(self, task: Task, before: float) -> None:
        if task.completed > before:
            self._first.setdefault(task.id, (task.completed, self.get_time()))
        if (
            self._says == "tenths"
            and task.total
            and task.completed * TENTHS // task.total > before * TENTHS // task.total
        ):
            self._say(task)

    def _say_minutes(self) -> None:
        while not self._ended.wait(LINE_EVERY_S):
            for task in self.tasks:
                if not task.finished:
                    self._say(task)

    def _say(self, task: Task) -> None:
        parts = [str(task.fields.get("facts") or ""), f"{duration(task.elapsed or 0.0)} so far", self._left(task)]
        done = f" {task.completed:,.0f} of {task.total:,.0f}," if self._counts and task.total else ""
        line = f"{task.description}:{done} {', '.join(part for part in parts if part)}"
        self.console.print(Text(plain(line)), soft_wrap=True)

    def _left(self, task: Task) -> str:
        done, since = self._first.get(task.id, (task.completed, 0.0))
        if not self._counts or not task.total or not done < task.completed < task.total:
            return ""
        each = (self.get_time() - since) / (task.completed - done)
        return f"about {duration(each * (task.total - task.completed))} left"
