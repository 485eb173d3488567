"""A sweep from its points to what to choose: files, a picture, and sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from harness.compare import numbers
from harness.compare.experiments import SIMULATED
from harness.compare.tables import Table
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.probes.provenance import usable_cores
from harness.report.console import shown_path
from harness.report.text import print_list, print_table
from harness.results.writer import utc_now
from harness.simulate.axes import Axis, line_name, points_of, shown
from harness.simulate.bars import bar
from harness.simulate.files import PICTURE, sweep_folder, write_points
from harness.simulate.knee import Choice, Knee, advice, find_knee
from harness.simulate.picture import draw_sweep
from harness.simulate.points import Answer, Question, answers
from harness.simulate.tables import HOW_FAR_OFF

FEW_POINTS, DRAWS_OF_FEW, DRAWS_OF_MANY = 150, 19, 7
"""Draws of a sweep that does not say: thousands of points are to take minutes."""
MOST_TOLD = 8
WEIGHED = {
    "max_lag": "Lag also costs learning, which is not simulated: take the smaller one where little is gained.",
    "epochs_per_batch": "More passes also change what is learnt, which is not simulated.",
}


@dataclass(frozen=True)
class Sweep:
    """What is swept.

    Attributes:
        scenario: its name.
        question: what the points have in common.
        axes: the first one is the picture's x axis.
        command: that was typed.
    """

    scenario: str
    question: Question
    axes: Sequence[Axis]
    command: str


@dataclass(frozen=True)
class Swept:
    """A finished sweep.

    Attributes:
        answers: of all points.
        lines: those that could be simulated, by line of the picture.
        knees: by line.
        files: points, table and picture.
    """

    answers: Sequence[Answer]
    lines: Mapping[str, Sequence[Answer]]
    knees: Mapping[str, Knee]
    files: Sequence[Path]


def run_sweep(sweep: Sweep, out: Path, processes: int | None, quiet: bool, output: Console, errors: Console) -> Swept:
    """Simulate all points, print what to choose, and write points and picture.

    Args:
        sweep: what is swept.
        out: the results folder.
        processes: None takes as many as there are cores.
        quiet: show no progress.
        output, errors: where to print.

    Raises:
        UserError: no point can be simulated, or a file cannot be written.
    """
    points = list(points_of(sweep.axes))
    with bar(errors, quiet, "simulating points", len(points)) as step:
        found = answers(sweep.question, points, processes or usable_cores(), step)
    lines = by_line(found, sweep.axes)
    if not lines:
        raise UserError(
            f"none of the {len(points):,} points can be simulated; the first: {found[0].problem}", "--sweep"
        )
    knees = {name: knee_of(own, sweep.axes[0]) for name, own in lines.items()}
    folder = sweep_folder(out, sweep.scenario, utc_now())
    machine = sweep.question.machine
    facts: dict[str, Any] = {
        "command": sweep.command,
        "scenario": sweep.scenario,
        "machine": machine.name,
        "origin": machine.origin,
    }
    facts |= {"draws": sweep.question.draws, "seed": sweep.question.seed}
    files = write_points(folder, found, sweep.axes, facts)
    files.append(draw_sweep(folder / PICTURE, sweep.scenario, machine, sweep.axes[0], lines, knees))
    swept = Swept(found, lines, knees, files)
    _show(swept, sweep, output)
    return swept


def draws_for(axes: Sequence[Axis]) -> int:
    """Return how many worlds are simulated of each point, where nobody says."""
    return DRAWS_OF_FEW if math.prod(len(axis.values) for axis in axes) <= FEW_POINTS else DRAWS_OF_MANY


def by_line(found: Sequence[Answer], axes: Sequence[Axis]) -> dict[str, list[Answer]]:
    """Return the points that could be simulated, by the values of all axes but the first."""
    lines: dict[str, list[Answer]] = {}
    for answer in found:
        if answer.found is not None:
            lines.setdefault(line_name(answer.point, axes), []).append(answer)
    return lines


def knee_of(line: Sequence[Answer], axis: Axis) -> Knee:
    """Return what to choose on a line."""
    choices = [
        Choice(answer.point[axis.key], tuple(item.throughput for item in answer.found.each))
        for answer in line
        if answer.found is not None
    ]
    return find_knee(choices, axis)


def _show(swept: Swept, sweep: Sweep, output: Console) -> None:
    axis = sweep.axes[0]
    output.print(Text(HOW_FAR_OFF), soft_wrap=True)
    print_table(output, knee_table(swept, sweep))
    said = [advice(knee, axis, name) for name, knee in list(swept.knees.items())[:MOST_TOLD]]
    if len(swept.knees) > MOST_TOLD:
        said.append(f"And {len(swept.knees) - MOST_TOLD} more lines, in the table above.")
    said += [WEIGHED[key] for key in dict.fromkeys(axis.key for axis in sweep.axes) if key in WEIGHED]
    print_list(output, "What to choose", said)
    _show_problems(swept.answers, sweep.axes, output)
    output.print(Text("\nFiles", style="bold"))
    for path in swept.files:
        output.print(Text(f" {plain(shown_path(path))}"), soft_wrap=True)


def knee_table(swept: Swept, sweep: Sweep) -> Table:
    """Return a row for each line: the choice, its throughput, and the best one."""
    axis, machine = sweep.axes[0], sweep.question.machine
    rows = []
    for name, knee in swept.knees.items():
        chosen = numbers.number(knee.throughput.value)
        ends = f"[{numbers.number(knee.throughput.low)}, {numbers.number(knee.throughput.high)}]"
        best = f"{shown(knee.best[0])}: {numbers.number(knee.best[1])}"
        rows.append((name or "all points", shown(knee.value), f"{chosen} {ends}", best))
    header = ("line", f"take {axis.name}", "tokens a second", "the best")
    measured = "" if machine.origin == "measured" else ", not measured"
    title = f"{sweep.scenario}, machine profile {machine.name}{measured}: what to choose{SIMULATED}"
    asked = sweep.question
    worlds = f"{asked.draws} simulated worlds of {asked.base['steps']} training steps"
    notes = [f"{len(swept.answers):,} points, each in {worlds}; [90% interval] of such a run."]
    if machine.origin == "datasheet":
        notes.append(f"NOT MEASURED: {machine.name} is made from data sheets, and no run was ever compared with it.")
    return Table(title, header, tuple(rows), tuple(notes))


def _show_problems(found: Sequence[Answer], axes: Sequence[Axis], output: Console) -> None:
    """Say which points cannot be, and where the profile was left behind."""
    failed: dict[str, list[Answer]] = {}
    outside: dict[str, int] = {}
    for answer in found:
        if answer.found is None:
            failed.setdefault(answer.problem, []).append(answer)
        else:
            for sentence in answer.found.extrapolating:
                outside[sentence] = outside.get(sentence, 0) + 1
    inside = sum(answer.found is not None and not answer.found.extrapolating for answer in found)
    if failed or outside:
        output.print()
    for problem, own in list(failed.items())[:MOST_TOLD]:
        first = ", ".join(f"{axis.name} {shown(own[0].point[axis.key])}" for axis in axes)
        text = f"left out: {len(own):,} points, the first at {first}: {problem}"
        output.print(Text(plain(text), style="yellow"))
    if outside:
        text = f"EXTRAPOLATING at {len(found) - inside - sum(map(len, failed.values())):,} of {len(found):,} points:"
        output.print(Text(text, style="bold red"))
        for sentence, count in sorted(outside.items(), key=lambda item: -item[1])[:MOST_TOLD]:
            output.print(Text(plain(f"  {count:,} points: {sentence}"), style="bold red"))
