"""A document on a terminal. Everything that comes from files passes through ``plain``."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from harness.compare.remarks import Remark
from harness.core.terminal_text import plain, plain_ends
from harness.report.document import Command, Document, Item, Rollouts, Section, Table
from harness.results import RolloutRow

LONGEST_TEXT = 400
"""Characters of a prompt or response."""
STYLES = {"faster": "green", "slower": "red", "better": "green", "worse": "red", "cannot tell": "dim"}
"""How a cell of that word is shown."""


def print_document(console: Console, document: Document, full: bool = False) -> None:
    """Print what an experiment says: the answer, and the sections that are not folded.

    Args:
        full: the folded sections too, but no charts.
    """
    console.print()
    console.print(Text(plain(document.title), style="bold underline"))
    for remark in document.answer:
        console.print(Text(plain(remark.text), style="bold"))
    if full:
        console.print(Text(plain(document.origin), style="dim"))
    for section in document.sections:
        if full or not section.folded:
            _print_section(console, section, full)


def _print_section(console: Console, section: Section, full: bool) -> None:
    sentences = [item for item in section.items if isinstance(item, Remark)]
    if full and section.title and any(_is_printed(item) for item in section.items):
        console.print(Text(f"\n{plain(section.title)}", style="bold"))
    for item in section.items:
        _print_item(console, item)
    cautions = [remark.text for remark in sentences if remark.kind == "caution"]
    print_list(console, "", cautions, style="dim")


def _is_printed(item: Item) -> bool:
    return isinstance(item, Remark | Table | Command | Rollouts)


def _print_item(console: Console, item: Item) -> None:
    if isinstance(item, Table):
        print_table(console, item)
    elif isinstance(item, Command):
        console.print(Text(plain(item.text)), soft_wrap=True)
    elif isinstance(item, Rollouts):
        _print_rollouts(console, item)
    elif isinstance(item, Remark) and item.kind != "caution":
        console.print(Text(plain(item.text)))


def print_table(console: Console, table: Table) -> None:
    """Draw a table; one that is too wide for the console is drawn in parts, each with the columns of words."""
    if table.title:
        console.print(Text(f"\n{plain(table.title)}", style="bold"))
    for columns in _parts(table, console.width):
        drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
        for column in columns:
            is_word = column < table.words
            fold = is_word and sum(_widths(table)[each] for each in columns) > console.width
            justify = "left" if is_word else "right"
            drawn.add_column(Text(plain(table.header[column])), justify=justify, no_wrap=not fold)  # type: ignore[arg-type]
        for row in table.rows:
            cells = (row[column] for column in columns)
            drawn.add_row(*(Text(plain(cell), style=STYLES.get(cell, "")) for cell in cells))
        console.print(Padding(drawn, (0, 0, 0, 1)))
    for note in table.notes:
        console.print(Padding(Text(plain(note), style="dim"), (0, 1)))


def _widths(table: Table) -> list[int]:
    return [max(len(row[column]) for row in (table.header, *table.rows)) + 2 for column in range(len(table.header))]


def _parts(table: Table, width: int) -> list[list[int]]:
    """Split the columns of numbers so that each part fits; as many in each as there is room for."""
    widths, words = _widths(table), list(range(table.words))
    parts, room = [list(words)], width - sum(widths[: table.words]) - 1
    left = room
    for column in range(table.words, len(widths)):
        if widths[column] > left and len(parts[-1]) > len(words):
            parts.append(list(words))
            left = room
        parts[-1].append(column)
        left -= widths[column]
    return parts


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
