"""The comparison on a terminal, or as Markdown. Everything that comes from files passes through ``plain``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from harness.compare.campaigns import Campaign
from harness.compare.cautions import cautions, origin
from harness.compare.off_policy import off_policy_table
from harness.compare.outcome import outcome_table, overview_table
from harness.compare.sentences import findings
from harness.compare.sweep_tables import sweep_points, sweep_tables
from harness.compare.tables import Table, columns_apart, lane_table, marked, stage_table
from harness.compare.transports import sync_table
from harness.compare.verdict_tables import verdict_sentences, verdict_tables
from harness.compare.verdicts import Judgement, judgements
from harness.core.plain_text import plain

Judging = Callable[[Campaign], Sequence[Judgement]]
"""Returns the verdicts on a campaign."""


def print_comparison(
    console: Console, campaigns: Sequence[Campaign], detailed: Sequence[Campaign], judge: Judging = judgements
) -> None:
    """Print one line for each campaign (where there are several), then the detailed ones."""
    if len(campaigns) > 1:
        print_table(console, overview_table(campaigns))
    for campaign in detailed:
        print_campaign(console, campaign, judge)


def print_campaign(console: Console, campaign: Campaign, judge: Judging = judgements) -> None:
    """Print a campaign's tables, verdicts and sentences."""
    judged = judge(campaign)
    console.print()
    console.print(Text(plain(f"{campaign.title} / {campaign.name}"), style="bold underline"))
    console.print(Text(plain(origin(campaign)), style="dim"))
    for table in marked([*_tables(campaign), *verdict_tables(judged)], campaign):
        print_table(console, table)
    print_list(console, "Verdicts", verdict_sentences(judged))
    print_list(console, "What the figures say", findings(campaign))
    print_list(console, "Mind", cautions(campaign))


def print_table(console: Console, table: Table) -> None:
    """Draw a table; one that is too wide for the console is drawn in parts."""
    console.print()
    for part in _fitting(table, console.width):
        drawn = RichTable(box=box.SIMPLE_HEAD, title=Text(plain(part.title), style="bold"), title_justify="left")
        for index, name in enumerate(part.header):
            drawn.add_column(Text(plain(name)), justify="left" if index < table.words else "right")
        for row in part.rows:
            drawn.add_row(*(Text(plain(cell)) for cell in row))
        console.print(drawn)
    for note in table.notes:
        console.print(Padding(Text(plain(note), style="dim"), (0, 1)))


def print_list(console: Console, heading: str, sentences: Sequence[str]) -> None:
    """Print sentences as a list under a heading; nothing where there are none."""
    if not sentences:
        return
    grid = RichTable.grid(padding=(0, 1))
    for sentence in sentences:
        grid.add_row(Text("-"), Text(plain(sentence)))
    console.print(Text(f"\n{heading}", style="bold"))
    console.print(grid)


def markdown(campaigns: Sequence[Campaign], detailed: Sequence[Campaign], judge: Judging = judgements) -> str:
    """Return the comparison as Markdown."""
    parts = [markdown_table(overview_table(campaigns))] if len(campaigns) > 1 else []
    for campaign in detailed:
        parts.append(f"## {_cell(f'{campaign.title} / {campaign.name}')}\n\n{_cell(origin(campaign))}")
        judged = judge(campaign)
        tables = marked([*_tables(campaign), *verdict_tables(judged)], campaign)
        parts += [markdown_table(table) for table in tables]
        sentences = [*verdict_sentences(judged), *findings(campaign), *cautions(campaign)]
        parts.append("\n".join(f"- {_cell(sentence)}" for sentence in sentences))
    return "\n\n".join(parts) + "\n"


def _tables(campaign: Campaign) -> list[Table]:
    """The tables of a campaign; what it did not measure has none."""
    if sweep_points(campaign):
        return sweep_tables(campaign)
    always = [stage_table(campaign), lane_table(campaign), outcome_table(campaign)]
    return always + [table for table in (sync_table(campaign), off_policy_table(campaign)) if table is not None]


def _fitting(table: Table, width: int) -> list[Table]:
    """Split the columns of a table into parts that fit the width."""
    widths = [max(len(row[column]) for row in (table.header, *table.rows)) + 2 for column in range(len(table.header))]
    if sum(widths) + 2 <= width or not table.divisible:
        return [table]
    room = max(1, (width - widths[0] - 2) // max(widths[1:]))
    return columns_apart(table, room)


def markdown_table(table: Table) -> str:
    """Return a table as Markdown, its notes below it."""
    lines = [f"**{_cell(table.title)}**", "", _markdown_row(table.header)]
    lines.append(
        "|" + "|".join(" --- " if index < table.words else " ---: " for index in range(len(table.header))) + "|"
    )
    lines += [_markdown_row(row) for row in table.rows]
    return "\n".join([*lines, *(f"\n{_cell(note)}" for note in table.notes)])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(_cell(cell).split()) for cell in cells) + " |"


def _cell(text: str) -> str:
    shown = plain(text)
    for character in "\\`*_<>[]|":
        shown = shown.replace(character, "\\" + character)
    return shown
