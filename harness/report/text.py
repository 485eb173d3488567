"""The comparison on a terminal, or as Markdown, and what a run prints at its end.

Everything that comes from files passes through ``plain``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from harness.compare.caveats import caveats, origin
from harness.compare.experiments import Experiment, gather
from harness.compare.findings import findings
from harness.compare.imported import imported_comparison
from harness.compare.pareto import Axis, pareto, pareto_sentences, pareto_table
from harness.compare.replay import replay_table
from harness.compare.sync_tables import sweep_points, sweep_tables, sync_table
from harness.compare.tables import (
    Table,
    columns_apart,
    lane_table,
    marked,
    off_policy_table,
    outcome_table,
    overview_table,
    rank_table,
    stage_table,
)
from harness.compare.verdicts import Judgement, judgements, verdict_sentences, verdict_tables
from harness.core.terminal_text import plain, plain_ends
from harness.report.console import Output, shown_path
from harness.report.data import before_and_after
from harness.results import RolloutRow, Run, find_runs
from harness.results.writer import PICTURES, REPORT

Judging = Callable[[Experiment], Sequence[Judgement]]
"""Returns the verdicts on an experiment."""


def print_comparison(
    console: Console, experiments: Sequence[Experiment], detailed: Sequence[Experiment], judge: Judging = judgements
) -> None:
    """Print one line for each experiment (where there are several), then the detailed ones."""
    if len(experiments) > 1:
        print_table(console, overview_table(experiments))
    for experiment in detailed:
        print_experiment(console, experiment, judge)


def print_experiment(console: Console, experiment: Experiment, judge: Judging = judgements) -> None:
    """Print an experiment's tables, verdicts and sentences."""
    judged = judge(experiment)
    console.print()
    console.print(Text(plain(f"{experiment.title} / {experiment.name}"), style="bold underline"))
    if of_logs := imported_comparison(experiment, judged):
        for sentence in of_logs.sentences:
            console.print(Text(plain(sentence)))
    console.print(Text(plain(origin(experiment)), style="dim"))
    for table in marked([*_tables(experiment), *verdict_tables(judged)], experiment):
        print_table(console, table)
    print_list(console, "Verdicts", verdict_sentences(judged))
    print_list(console, "What the figures say", [finding.text for finding in findings(experiment)])
    print_list(console, "Caveats", caveats(experiment))


def print_pareto(console: Console, experiment: Experiment, axes: tuple[Axis, Axis]) -> None:
    """Print two figures of an experiment's variants: a table, and the front and its knee in words."""
    front = pareto(experiment, axes)
    console.print()
    console.print(Text(plain(f"{experiment.title} / {experiment.name}"), style="bold underline"))
    console.print(Text(plain(origin(experiment)), style="dim"))
    (table,) = marked([pareto_table(front)], experiment)
    print_table(console, table)
    print_list(console, "What the figures say", pareto_sentences(front))


def print_table(console: Console, table: Table) -> None:
    """Draw a table; one that is too wide for the console is drawn in parts."""
    console.print()
    width = console.width
    for part in _fitting(table, width):
        drawn = RichTable(box=box.SIMPLE_HEAD, title=Text(plain(part.title), style="bold"), title_justify="left")
        for index, name in enumerate(part.header):
            is_name = index < table.words
            drawn.add_column(
                Text(plain(name)), justify="left" if is_name else "right", no_wrap=is_name and _keeps_names(part, width)
            )
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


def markdown(experiments: Sequence[Experiment], detailed: Sequence[Experiment], judge: Judging = judgements) -> str:
    """Return the comparison as Markdown."""
    parts = [markdown_table(overview_table(experiments))] if len(experiments) > 1 else []
    for experiment in detailed:
        parts.append(f"## {_cell(f'{experiment.title} / {experiment.name}')}\n\n{_cell(origin(experiment))}")
        judged = judge(experiment)
        if of_logs := imported_comparison(experiment, judged):
            parts.append("\n".join(f"- {_cell(sentence)}" for sentence in of_logs.sentences))
        tables = marked([*_tables(experiment), *verdict_tables(judged)], experiment)
        parts += [markdown_table(table) for table in tables]
        sentences = [*verdict_sentences(judged), *(item.text for item in findings(experiment)), *caveats(experiment)]
        parts.append("\n".join(f"- {_cell(sentence)}" for sentence in sentences))
    return "\n\n".join(parts) + "\n"


def markdown_pareto(experiments: Sequence[Experiment], axes: tuple[Axis, Axis]) -> str:
    """Return two figures of the experiments' variants against each other as Markdown."""
    parts = []
    for experiment in experiments:
        front = pareto(experiment, axes)
        parts.append(f"## {_cell(f'{experiment.title} / {experiment.name}')}\n\n{_cell(origin(experiment))}")
        parts += [markdown_table(table) for table in marked([pareto_table(front)], experiment)]
        parts.append("\n".join(f"- {_cell(sentence)}" for sentence in pareto_sentences(front)))
    return "\n\n".join(parts) + "\n"


def _tables(experiment: Experiment) -> list[Table]:
    """The tables of an experiment; what it did not measure has none."""
    if sweep_points(experiment):
        return sweep_tables(experiment)
    always = [stage_table(experiment), lane_table(experiment), outcome_table(experiment)]
    of_ranks = rank_table(experiment)
    if of_ranks.rows:
        always.insert(2, of_ranks)
    found = (sync_table(experiment), off_policy_table(experiment), replay_table(experiment))
    return always + [table for table in found if table is not None]


def _fitting(table: Table, width: int) -> list[Table]:
    """Split the columns of a table into parts that fit the width."""
    widths = [max(len(row[column]) for row in (table.header, *table.rows)) + 2 for column in range(len(table.header))]
    if sum(widths) + 2 <= width or not table.divisible:
        return [table]
    room = max(1, (width - widths[0] - 2) // max(widths[1:]))
    return columns_apart(table, room)


def _keeps_names(table: Table, width: int) -> bool:
    """Whether names can stay on one line with every word of the other columns whole beside them."""
    columns = list(zip(table.header, *table.rows, strict=True))
    names = [max(map(len, column)) for column in columns[: table.words]]
    others = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns[table.words :]]
    return sum(names) + sum(others) + 2 * len(columns) + 2 <= width


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


EXAMPLES = 2
LONGEST_TEXT = 400


def print_run_summary(
    experiment_folder: Path, console: Console | None = None, files: Sequence[Path] | None = None
) -> None:
    """Print an experiment's tables, sentences, example rollouts, and the paths of its page and pictures.

    Args:
        experiment_folder: an experiment's folder, or a run's.
        console: where to print; default: standard output.
        files: page and pictures; default: those in the experiment's folder.

    Raises:
        UserError: there is no readable run.
    """
    console = console or Output()
    experiments, damaged = gather([experiment_folder])
    for experiment in experiments:
        print_experiment(console, experiment)
    for item in damaged:
        console.print(Text(f"left out {plain(str(item.folder))}: {plain(item.error.what)}", style="yellow"))
    runs, _ = find_runs(experiment_folder)
    _print_examples(console, runs)
    _print_paths(console, experiment_folder, files)


def _print_examples(console: Console, runs: Sequence[Run]) -> None:
    """Show the example rollouts of the last run that has pairs; generated text is printed with nothing left to act."""
    for run in reversed(runs):
        pairs = before_and_after(run.rollouts(), EXAMPLES)
        if not pairs:
            continue
        name = run.manifest.arm or run.manifest.scenario
        console.print(Text(f"\nRollouts of {plain(name)} before and after", style="bold"))
        for before, after in pairs:
            console.print(Padding(Text(f"prompt: {plain_ends(before.prompt, LONGEST_TEXT)}"), (0, 1)))
            for item in (before, after):
                _print_rollout(console, item)
        return


def _print_rollout(console: Console, item: RolloutRow) -> None:
    facts = f"version {item.version}, reward {item.reward:g}, {item.num_tokens} tokens: "
    text = Text(facts, style="dim")
    text.append(plain(item.response, LONGEST_TEXT), style="not dim")
    console.print(Padding(text, (0, 1, 0, 3)))


def _print_paths(console: Console, experiment_folder: Path, files: Sequence[Path] | None) -> None:
    if files is None:
        files = [*experiment_folder.glob(REPORT), *sorted((experiment_folder / PICTURES).glob("*.png"))]
    console.print(Text("\nFiles", style="bold"))
    for path in (experiment_folder, *files):
        console.print(Text(f" {plain(shown_path(path))}"), soft_wrap=True)
