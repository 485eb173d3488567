"""A document on a terminal. Everything that comes from files passes through ``plain``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from harness.compare.numbers import plural
from harness.compare.remarks import Remark
from harness.core.terminal_text import plain, plain_ends
from harness.report.document import MARKED, Chart, Document, Rollouts, Section, Table
from harness.results import RolloutRow

LONGEST_TEXT = 400
"""Characters of a prompt or response."""
SHORTEST_NAME, SHORTEST_PART = 12, 7
"""Characters of a column's name that stay in one line; and where that is too wide."""
SHORTEST_LABEL = 24
"""Characters of a label in a table that has no room for more."""
STYLES = {"faster": "green", "slower": "red", "better": "green", "worse": "red", "cannot tell": "dim"}
"""How a cell of that word is shown."""


def print_document(console: Console, document: Document, full: bool = False) -> None:
    """Print what an experiment says: the answer and the first section.

    Args:
        full: all sections; of charts the tables.
    """
    console.print(Text(plain(document.title), style="bold underline"))
    for remark in document.answer:
        console.print(Text(plain(remark.text), style="bold"))
    if full:
        console.print(Text(plain(document.origin), style="dim"))
    for section in document.sections if full else document.sections[:1]:
        _print_section(console, section, full)
    others = [item for section in document.sections[1:] for item in section.items]
    left = sum(isinstance(item, Remark) and item.kind == "caution" and item.key != MARKED for item in others)
    if left and not full:
        print_list(console, "", [f"{plural(left, 'more caution')}: --full."], style="dim")


def _print_section(console: Console, section: Section, full: bool) -> None:
    items = [item.table if isinstance(item, Chart) else item for item in section.items]
    if full and section.title and any(items):
        console.print(Text(f"\n{plain(section.title)}", style="bold"))
    cautions = [item.text for item in items if isinstance(item, Remark) and item.kind == "caution"]
    for item in items:
        if isinstance(item, Table):
            print_table(console, item)
        elif isinstance(item, Rollouts):
            _print_rollouts(console, item)
        elif isinstance(item, Remark) and item.kind != "caution":
            for line, wraps in ((item.text, True), (item.command, False)):  # what is to be pasted is not broken
                if line:
                    console.print(Text(plain(line)), soft_wrap=not wraps)
    print_list(console, "", cautions, style="dim")


def print_table(console: Console, table: Table) -> None:
    """Draw a table; one that is too wide for the console is drawn in parts, each with the columns of words.

    Names above columns of numbers are broken into lines where that makes room.
    """
    if table.title:
        console.print(Text(f"\n{plain(table.title)}", style="bold"))
    lengths = [max(map(len, column)) for column in zip(*(table.rows or [table.header]), strict=True)]
    for shortest, gap in ((console.width, 2), (SHORTEST_NAME, 2), (SHORTEST_NAME, 1), (SHORTEST_PART, 1)):
        header = [_broken(name, max(width, shortest)) for name, width in zip(table.header, lengths, strict=True)]
        widths = [max(width, *map(len, name.split("\n"))) for width, name in zip(lengths, header, strict=True)]
        if sum(widths) + gap * len(widths) <= console.width + 1:
            break
    else:
        if table.words < len(widths):
            widths = [*(min(width, SHORTEST_LABEL) for width in widths[: table.words]), *widths[table.words :]]
    for columns in _parts([width + gap for width in widths], table.words, console.width):
        drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
        for column in columns:
            justify: Any = "left" if column < table.words else "right"
            most = None if table.words == len(widths) else widths[column]
            title = Text("\n".join(map(plain, header[column].split("\n"))))
            drawn.add_column(title, justify=justify, no_wrap=column >= table.words, max_width=most)
        for row in table.rows:
            styled = ((row[column], STYLES.get(row[column].partition(":")[0], "")) for column in columns)
            drawn.add_row(*(Text(plain(text), style=style) for text, style in styled))
        console.print(Padding(drawn, (0, 0, 0, 1)))
    for note in table.notes:
        console.print(Padding(Text(plain(note), style="dim"), (0, 1)))


def _broken(name: str, width: int) -> str:
    """Break a name into lines behind its marks: ``sync_two_threads`` is ``sync_two_`` above ``threads``."""
    lines = [""]
    for piece in re.findall(rf"[^-_=,. ]{{0,{width}}}[-_=,. ]?", name):
        lines[-1:] = [lines[-1] + piece] if len(lines[-1] + piece) <= width or not lines[-1] else [lines[-1], piece]
    return "\n".join(line.strip() for line in lines)


def _parts(widths: Sequence[int], words: int, width: int) -> list[list[int]]:
    """Split the columns of numbers so that each part fits; as many in each as there is room for."""
    parts, left = list[list[int]](), 0
    for column in range(words, len(widths)):
        if not parts or widths[column] > left:
            parts.append(list(range(words)))
            left = width - sum(widths[:words])
        parts[-1].append(column)
        left -= widths[column]
    return parts or [list(range(words))]


def print_list(console: Console, heading: str, sentences: Sequence[str], style: str = "") -> None:
    """Print sentences as a list under a heading; nothing where there are none."""
    if not sentences:
        return
    grid = RichTable.grid(padding=(0, 1))
    for sentence in sentences:
        grid.add_row(Text("-", style=style), Text(plain(sentence), style=style))
    if heading:
        console.print(Text(f"\n{heading}", style="bold"))
    console.print(grid)


def _print_rollouts(console: Console, item: Rollouts) -> None:
    """Show example rollouts; generated text is printed with nothing left in it that acts on a terminal."""
    console.print(Text(f"\nRollouts of {plain(item.arm)} before and after", style="bold"))
    for before, after in item.pairs:
        console.print(Padding(Text(f"prompt: {plain_ends(before.prompt, LONGEST_TEXT)}"), (0, 1)))
        for row in (before, after):
            console.print(Padding(_rollout(row), (0, 1, 0, 3)))


def _rollout(row: RolloutRow) -> Text:
    text = Text(f"version {row.version}, reward {row.reward:g}, {row.num_tokens} tokens: ", style="dim")
    return text.append(plain(row.response, LONGEST_TEXT), style="not dim")
