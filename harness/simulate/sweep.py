"""A sweep from its points to what to choose: files, a picture, and sentences."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from harness.compare import numbers
from harness.compare.experiment import SIMULATED
from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.core.progress import progress_bars
from harness.core.spawn_pool import usable_cores
from harness.core.terminal_text import plain
from harness.report.console import shown_path
from harness.report.document import Table
from harness.report.terminal import print_list, print_table
from harness.results.anonymous import safe_name
from harness.results.rows import with_nulls
from harness.results.writer import utc_now
from harness.simulate.forecast import HOW_FAR_OFF, NOT_MEASURED
from harness.simulate.knee import Knee, advice, change, find_knee, over
from harness.simulate.picture import draw_sweep
from harness.simulate.points import Answer, Axis, Question, answers, line_name, points_of, shown

SCHEMA, SCHEMA_VERSION = "harness.simulated_points", 1
POINTS, TABLE, PICTURE = "points.jsonl", "points.csv", "sweep.png"
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
        caution: what seconds rest on.
    """

    scenario: str
    question: Question
    axes: Sequence[Axis]
    command: str
    caution: str = HOW_FAR_OFF


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


def run_sweep(
    sweep: Sweep,
    out: Path,
    processes: int | None,
    quiet: bool,
    output: Console,
    errors: Console,
    amount: Literal["line", "everything", "json"] = "everything",
) -> Swept:
    """Simulate all points, print what to choose, and write points and picture.

    Args:
        out: the results folder.
        processes: None takes as many as there are cores.
        quiet: show no progress.
        output, errors: where to print.
        amount: how much of what was found.

    Raises:
        UserError: no point can be simulated, or a file cannot be written.
    """
    points, axis, question = list(points_of(sweep.axes)), sweep.axes[0], sweep.question
    with progress_bars(errors, quiet=quiet, transient=True, tenths=True) as bar:
        task = bar.add_task("simulating points", total=len(points))
        found = answers(question, points, processes or usable_cores(), lambda: bar.advance(task))
    lines: dict[str, list[Answer]] = {}
    for answer in found:
        if answer.found is not None:
            lines.setdefault(line_name(answer.point, sweep.axes), []).append(answer)
    if not lines:
        what = f"none of the {len(points):,} points can be simulated; the first: {found[0].problem}"
        raise UserError(what, "--sweep")
    knees = {name: knee_of(own, axis) for name, own in lines.items()}
    folder = sweep_folder(out, sweep.scenario)
    facts: dict[str, Any] = {"command": sweep.command, "scenario": sweep.scenario}
    facts |= {"machine": question.machine.name, "origin": question.machine.origin}
    facts |= {"draws": question.draws, "seed": question.seed}
    files = write_points(folder, found, sweep.axes, facts)
    files.append(draw_sweep(folder / PICTURE, sweep.scenario, question.machine, axis, lines, knees))
    swept = Swept(found, lines, knees, files)
    if amount == "json":
        told = facts | {"knees": {name: asdict(knee) for name, knee in knees.items()}}
        told |= {"points": [_row(answer) for answer in found], "files": list(map(str, files))}
        print(json.dumps(with_nulls(told), indent=2))
    elif amount == "line":
        name, knee = next(iter(knees.items()))
        print(plain(f"{advice(knee, axis, name)} results: {shown_path(folder)}"))
    else:
        _show(swept, sweep, output)
    return swept


def draws_for(axes: Sequence[Axis]) -> int:
    """Return how many worlds are simulated of each point, where nobody says."""
    return DRAWS_OF_FEW if math.prod(len(axis.values) for axis in axes) <= FEW_POINTS else DRAWS_OF_MANY


def rates_of(answer: Answer) -> NDArray[np.float64]:
    """Return a point's tokens a second in each draw."""
    assert answer.found is not None
    return np.array([measures.throughput for measures in answer.found.each])


def knee_of(line: Sequence[Answer], axis: Axis) -> Knee:
    """Return what to choose on a line."""
    return find_knee([answer.point[axis.key] for answer in line], [rates_of(answer) for answer in line], axis)


# ---- files


def sweep_folder(out: Path, scenario: str) -> Path:
    """Make a new folder for a sweep below the results folder.

    Raises:
        UserError: it cannot be made.
    """
    stamp = utc_now().strftime("%Y%m%d-%H%M%S")
    for number in range(1, 101):
        folder = out / safe_name(scenario) / (f"sweep-{stamp}" if number == 1 else f"sweep-{stamp}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if folder.is_dir():
                continue
            raise UserError(f"cannot write to {folder}: a file is in the way", str(out), "--out DIR") from None
        except OSError as error:
            raise UserError(f"cannot write to {folder}: {error.strerror or error}", str(out), "--out DIR") from None
        return folder
    raise UserError(f"no free folder name below {out}", str(out), "wait a second, or give another --out DIR")


def write_points(folder: Path, answers: Sequence[Answer], axes: Sequence[Axis], facts: Mapping[str, Any]) -> list[Path]:
    """Write all points, as lines of JSON behind one of these facts and as a table; return the files.

    Raises:
        UserError: a file cannot be written.
    """
    header = {"kind": "header", "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "simulated": True, **facts}
    rows = [header, *map(_row, answers)]
    lines = "".join(json.dumps(with_nulls(row), separators=(",", ":")) + "\n" for row in rows)
    files = {POINTS: lines, TABLE: _table(answers, axes)}
    for name, text in files.items():
        try:
            with whole_file(folder / name) as stream:
                stream.write(text.encode())
        except OSError as error:
            what = f"cannot write {folder / name}: {error.strerror or error}"
            raise UserError(what, str(folder), "give a folder that you may write to: --out DIR") from error
    return [folder / name for name in files]


def _row(answer: Answer) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": "point", "at": answer.point}
    found = answer.found
    if found is None:
        return row | {"problem": answer.problem}
    figures = {key: value for key, value in asdict(found).items() if key not in ("each", "machine", "origin", "draws")}
    each = {"step_s": [item.step_s for item in found.each], "throughput": [item.throughput for item in found.each]}
    return row | figures | {"each": each}


def _table(answers: Sequence[Answer], axes: Sequence[Axis]) -> str:
    import pandas as pd

    kinds = ("generator", "learner")
    columns = [f"{name}{end}" for name in ("step_s", "throughput", *(f"idle_{kind}" for kind in kinds))
               for end in ("", "_low", "_high")]  # fmt: skip
    rows = []
    for answer in answers:
        row: dict[str, Any] = {axis.key: shown(answer.point[axis.key]) for axis in axes} | dict.fromkeys(columns)
        if answer.found is not None:
            named = {"step_s": answer.found.step_s, "throughput": answer.found.throughput}
            named |= {f"idle_{kind}": answer.found.idle[kind] for kind in kinds if kind in answer.found.idle}
            for name, figure in named.items():
                row |= {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}
        extrapolating = () if answer.found is None else answer.found.extrapolating
        rows.append(row | {"extrapolating": "; ".join(extrapolating), "problem": answer.problem})
    return str(pd.DataFrame(rows).to_csv(index=False, float_format="%.6g", lineterminator="\n"))


# ---- what is printed


def _show(swept: Swept, sweep: Sweep, output: Console) -> None:
    axis = sweep.axes[0]
    output.print(Text(plain(sweep.caution)), soft_wrap=True)
    print_table(output, _knee_table(swept, sweep))
    said = [advice(knee, axis, name) for name, knee in list(swept.knees.items())[:MOST_TOLD]]
    if len(swept.lines) > 1 and axis.is_numeric and min(axis.values) > 0:
        table, advised = _best_lines(swept, axis)
        print_table(output, table)
        said.insert(0, advised)
    if len(swept.knees) > MOST_TOLD:
        said.append(f"And {len(swept.knees) - MOST_TOLD} more lines, in the table above.")
    said += [WEIGHED[key] for key in dict.fromkeys(axis.key for axis in sweep.axes) if key in WEIGHED]
    print_list(output, "What to choose", said)
    _show_problems(swept.answers, sweep.axes, output)
    output.print(Text("\nFiles", style="bold"))
    for path in swept.files:
        output.print(Text(f" {plain(shown_path(path))}"), soft_wrap=True)


def _best_lines(swept: Swept, axis: Axis) -> tuple[Table, str]:
    """Return the best line at each value of the first axis, by the median of the draws, and the knee of these."""
    best: dict[Any, tuple[str, NDArray[np.float64]]] = {}
    for name, line in swept.lines.items():
        for answer in line:
            value, rates = answer.point[axis.key], rates_of(answer)
            if value not in best or np.median(rates) > np.median(best[value][1]):
                best[value] = name, rates
    best = dict(sorted(best.items()))
    rows: list[tuple[str, ...]] = []
    last: NDArray[np.float64] | None = None
    for value, (name, rates) in best.items():
        middle = float(np.median(rates))
        more = "" if last is None else change(over(rates, last))
        rows.append((shown(value), name, numbers.number(middle), numbers.number(middle / value), more))
        last = rates
    header = (axis.name, "the best line", "tokens a second", f"for each of {axis.name}", "over the one before")
    knee = find_knee(list(best), [rates for _, rates in best.values()], axis)
    advised = advice(knee, axis, f"the best line of each, here {best[knee.value][0]}")
    return Table("The best line at each value", header, tuple(rows), ()), advised


def _knee_table(swept: Swept, sweep: Sweep) -> Table:
    """Return a row for each line: the choice, its throughput, and the best one."""
    axis, question, machine = sweep.axes[0], sweep.question, sweep.question.machine
    rows = []
    for name, knee in swept.knees.items():
        chosen, low, high = map(numbers.number, (knee.throughput.value, knee.throughput.low, knee.throughput.high))
        best = f"{shown(knee.best[0])}: {numbers.number(knee.best[1])}"
        rows.append((name or "all points", shown(knee.value), f"{chosen} [{low}, {high}]", best))
    measured = "" if machine.origin == "measured" else ", not measured"
    title = f"{sweep.scenario}, machine profile {machine.name}{measured}: what to choose{SIMULATED}"
    worlds = f"{question.draws} simulated runs of {question.base['steps']} training steps"
    notes = [f"{len(swept.answers):,} points, each in {worlds}; [90% interval] of such a run."]
    notes += [NOT_MEASURED.format(machine.name)] if machine.origin == "datasheet" else []
    return Table(title, ("line", f"take {axis.name}", "tokens a second", "the best"), tuple(rows), tuple(notes))


def _show_problems(found: Sequence[Answer], axes: Sequence[Axis], output: Console) -> None:
    """Say which points cannot be, and where the profile was left behind."""
    failed: dict[str, list[Answer]] = {}
    for answer in found:
        if answer.found is None:
            failed.setdefault(answer.problem, []).append(answer)
    outside = [answer.found.extrapolating for answer in found if answer.found and answer.found.extrapolating]
    if failed or outside:
        output.print()
    for problem, own in list(failed.items())[:MOST_TOLD]:
        first = ", ".join(f"{axis.name} {shown(own[0].point[axis.key])}" for axis in axes)
        text = f"left out: {len(own):,} points, the first at {first}: {problem}"
        output.print(Text(plain(text), style="yellow"))
    if outside:
        text = f"EXTRAPOLATING at {len(outside):,} of {len(found):,} points:"
        output.print(Text(text, style="bold red"))
        for sentence, count in Counter(each for said in outside for each in said).most_common(MOST_TOLD):
            output.print(Text(plain(f"  {count:,} points: {numbers.extrapolation(sentence)}"), style="bold red"))
