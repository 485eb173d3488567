"""One progress display for all long work: bars on a terminal, with counts, facts and the time left."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def progress_bars(
    console: Console, *, quiet: bool = False, counts: bool = True, facts: bool = False, transient: bool = False
) -> Progress:
    """Return bars for tasks, which draw on a terminal only.

    Args:
        console: where to draw.
        quiet: draw nothing.
        counts: show ``3/10`` and the time left; without, what is done is no count and its end is not known.
        facts: show the field ``facts`` of each task.
        transient: take the bars away at the end.
    """
    columns: list[ProgressColumn] = [TextColumn("[bold]{task.description}"), BarColumn()]
    if counts:
        columns.append(MofNCompleteColumn())
    if facts:
        columns.append(TextColumn("{task.fields[facts]}"))
    columns += [TimeElapsedColumn(), *([TimeRemainingColumn()] if counts else [])]
    return Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=transient)
