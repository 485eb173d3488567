"""How far a command is, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")
LINES = 10
"""Lines that a long command prints where there is no terminal."""


@contextmanager
def bar(console: Console, quiet: bool, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar, or where there is no terminal a line for each tenth; yields what is called after each piece."""
    live = console.is_terminal and not quiet
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not live, transient=True) as progress:
        task, done = progress.add_task(what, total=total), 0

        def step() -> None:
            nonlocal done
            done += 1
            progress.advance(task)
            if not live and not quiet and total >= LINES and done * LINES // total > (done - 1) * LINES // total:
                console.print(f"{what}: {done:,} of {total:,}")

        yield step


def counted(items: Sequence[T], console: Console, quiet: bool) -> Iterator[T]:
    """Yield the items, with a bar."""
    with bar(console, quiet, "simulating", len(items)) as step:
        for item in items:
            yield item
            step()
