"""A sweep from its points to what to choose: files, a picture, and sentences.

The knee of a line is the smallest value whose throughput is within 5% of the best one on that line. That, and the price
of one step less or more, is taken draw by draw, and then the median: the same worlds stand behind all values, so that
what they share cancels. Medians of throughput alone would compare the middle world of one value with that of another.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

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
from harness.simulate.forecast import HOW_FAR_OFF, Estimate, Forecast, estimate
from harness.simulate.picture import draw_sweep
from harness.simulate.points import Answer, Axis, Question, answers, line_name, points_of, shown

T = TypeVar("T")


def counted(items: Sequence[T], console: Console, quiet: bool) -> Iterator[T]:
    """Yield the items, with a bar."""
    with progress_bars(console, quiet=quiet, transient=True, tenths=True) as bar:
        task = bar.add_task("simulating", total=len(items))
        for item in items:
            yield item
            bar.advance(task)


TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of an axis: its throughput in each draw, in tokens a second."""

    value: Any
    throughput: tuple[float, ...]

    @property
    def middle(self) -> float:
        """Median over the draws."""
        return median(self.throughput)


@dataclass(frozen=True, slots=True)
class Step:
    """A neighbour of the choice: its value, and its throughput over that of the choice."""

    value: Any
    ratio: Estimate


@dataclass(frozen=True)
class Knee:
    """What to choose on one line.

    Attributes:
        value: the choice.
        throughput: there, in tokens a second.
        best: the value that comes closest to the highest throughput of each draw, and its throughput.
        less, more: the neighbours; None at the ends of the axis. For values without an order, ``more`` is the next best
            and ``less`` the worst.
        between: the smallest and largest choice in 90% of the draws; None for values without an order.
        at_end: whether the best value is the axis' last one.
    """

    value: Any
    throughput: Estimate
    best: tuple[Any, float]
    less: Step | None
    more: Step | None
    between: tuple[float, float] | None
    at_end: bool


def find_knee(choices: Sequence[Choice], axis: Axis) -> Knee:
    """Return what to choose of the values on one line.

    Args:
        choices: at least one, each with equally many draws, in the order of the axis.
        axis: on which they are.
    """
    return _on_ordered(choices) if axis.is_numeric else _of_names(choices)


def _on_ordered(choices: Sequence[Choice]) -> Knee:
    ordered = sorted(choices, key=lambda choice: choice.value)
    shares = shares_of_best(ordered)
    place, best = smallest_good(shares), ordered[shares.index(max(shares))]
    draws = range(len(ordered[0].throughput))
    chosen = [ordered[smallest_good([choice.throughput[draw] for choice in ordered])].value for draw in draws]
    return Knee(
        value=ordered[place].value,
        throughput=estimate(ordered[place].throughput),
        best=(best.value, best.middle),
        less=against(ordered[place], ordered[place - 1]) if place else None,
        more=against(ordered[place], ordered[place + 1]) if place + 1 < len(ordered) else None,
        between=_between(chosen),
        at_end=len(ordered) > 1 and best is ordered[-1],
    )


def _between(chosen: Sequence[float]) -> tuple[float, float]:
    """Return the choices between which nine in ten lie, of those that were made."""
    spread = estimate(chosen)
    low = max((value for value in chosen if value <= spread.low), default=min(chosen))
    return low, min((value for value in chosen if value >= spread.high), default=max(chosen))


def _of_names(choices: Sequence[Choice]) -> Knee:
    best, *others = sorted(choices, key=lambda choice: -choice.middle)
    return Knee(
        value=best.value,
        throughput=estimate(best.throughput),
        best=(best.value, best.middle),
        less=against(best, others[-1]) if len(others) > 1 else None,
        more=against(best, others[0]) if others else None,
        between=None,
        at_end=False,
    )


def shares_of_best(choices: Sequence[Choice]) -> list[float]:
    """Return each value's throughput over that of the draw's best value, as the median over the draws."""
    best = [max(draw) for draw in zip(*(choice.throughput for choice in choices), strict=True)]
    return [
        median(own / most if most else 1.0 for own, most in zip(choice.throughput, best, strict=True))
        for choice in choices
    ]


def smallest_good(throughputs: Sequence[float]) -> int:
    """Return the place of the first value within ``TOLERANCE`` of the highest."""
    enough = (1 - TOLERANCE) * max(throughputs)
    return next(place for place, value in enumerate(throughputs) if value >= enough)


def against(chosen: Choice, other: Choice) -> Step:
    """Return another value's throughput over the chosen one's, draw by draw."""
    pairs = zip(other.throughput, chosen.throughput, strict=True)
    return Step(other.value, estimate([theirs / mine if mine else 1.0 for theirs, mine in pairs]))


def advice(knee: Knee, axis: Axis, line: str) -> str:
    """Say what to choose on a line, and what it costs to be wrong."""
    where = f"With {line}: " if line else ""
    tokens = f"{numbers.number(knee.throughput.value)} tokens a second"
    if knee.between is None:
        return f"{where}take {axis.name} {shown(knee.value)} ({tokens}){_names_cost(knee)}."
    said = f"{where}take {axis.name} {shown(knee.value)}, the smallest within 5% of the best throughput: {tokens}"
    if knee.best[0] != knee.value:
        said += f" against {numbers.number(knee.best[1])} at {shown(knee.best[0])}"
    steps = [_cost("one step less", knee.less), _cost("one step more", knee.more)]
    said += "".join(f"; {step}" for step in steps if step) + "."
    low, high = knee.between
    if low != high:
        said += f" Over the draws the choice lies between {low:g} and {high:g}."
    if knee.at_end and knee.best[0] == knee.value:
        said += f" It is the last value of the axis: beyond {shown(knee.value)} there may be more to gain."
    return said


def _cost(words: str, step: Step | None) -> str:
    return "" if step is None else f"{words} ({shown(step.value)}): {change(step.ratio)} throughput"


def _names_cost(knee: Knee) -> str:
    steps = [(word, step) for word, step in (("the next best", knee.more), ("the worst", knee.less)) if step]
    return "".join(f"; {word}, {shown(step.value)}: {change(step.ratio)} throughput" for word, step in steps)


def change(ratio: Estimate) -> str:
    """Write a ratio as a change with its interval: ``-9.1% [-11.0%, -7.4%]``."""
    ends = f" [{numbers.change(ratio.low)}, {numbers.change(ratio.high)}]" if ratio.low != ratio.high else ""
    return numbers.change(ratio.value) + ends


SCHEMA, SCHEMA_VERSION = "harness.simulated_points", 1
POINTS, TABLE, PICTURE = "points.jsonl", "points.csv", "sweep.png"


def sweep_folder(out: Path, scenario: str, now: datetime) -> Path:
    """Make a new folder for a sweep below the results folder.

    Raises:
        UserError: it cannot be made.
    """
    stamp = now.strftime("%Y%m%d-%H%M%S")
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
    """Write all points; return the files.

    Args:
        folder: where they go.
        answers: in order.
        axes: of the sweep.
        facts: the command, machine, draws and so on, for the first line.

    Raises:
        UserError: a file cannot be written.
    """
    header = {"kind": "header", "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "simulated": True, **facts}
    rows = [header, *(_row(answer) for answer in answers)]
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
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("step_s", "throughput", *(f"idle_{kind}" for kind in ("generator", "learner")))
    ends = [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
    writer.writerow([*(axis.key for axis in axes), *ends, "extrapolating", "problem"])
    for answer in answers:
        at = [shown(answer.point[axis.key]) for axis in axes]
        if answer.found is None:
            writer.writerow([*at, *([""] * len(ends)), "", answer.problem])
        else:
            figures = [f"{value:.6g}" for figure in _figures(answer.found) for value in figure]
            writer.writerow([*at, *figures, "; ".join(answer.found.extrapolating), ""])
    return text.getvalue()


def _figures(found: Forecast) -> list[tuple[float, float, float]]:
    nothing = Estimate(float("nan"), float("nan"), float("nan"))
    wanted = [found.step_s, found.throughput, *(found.idle.get(kind, nothing) for kind in ("generator", "learner"))]
    return [(figure.value, figure.low, figure.high) for figure in wanted]


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
        sweep: what is swept.
        out: the results folder.
        processes: None takes as many as there are cores.
        quiet: show no progress.
        output, errors: where to print.
        amount: how much of what was found.

    Raises:
        UserError: no point can be simulated, or a file cannot be written.
    """
    points = list(points_of(sweep.axes))
    with progress_bars(errors, quiet=quiet, transient=True, tenths=True) as bar:
        task = bar.add_task("simulating points", total=len(points))
        found = answers(sweep.question, points, processes or usable_cores(), lambda: bar.advance(task))
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
    if amount == "json":
        knees_found = {name: asdict(knee) for name, knee in knees.items()}
        told = facts | {
            "knees": knees_found,
            "points": [_row(answer) for answer in found],
            "files": list(map(str, files)),
        }
        print(json.dumps(with_nulls(told), indent=2))
    elif amount == "line":
        said = " ".join(advice(knee, sweep.axes[0], name) for name, knee in list(knees.items())[:1])
        print(plain(f"{said} results: {shown_path(folder)}"))
    else:
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
    return find_knee(choices_of(line, axis), axis)


def choices_of(line: Sequence[Answer], axis: Axis) -> list[Choice]:
    """Return the throughput of each point of a line."""
    return [
        Choice(answer.point[axis.key], tuple(item.throughput for item in answer.found.each))
        for answer in line
        if answer.found is not None
    ]


def best_line(swept: Swept, axis: Axis) -> dict[Any, tuple[str, Choice]]:
    """Return for each value of the first axis the line with the highest throughput, in the middle of the draws."""
    best: dict[Any, tuple[str, Choice]] = {}
    for name, line in swept.lines.items():
        for choice in choices_of(line, axis):
            if choice.value not in best or choice.middle > best[choice.value][1].middle:
                best[choice.value] = name, choice
    return dict(sorted(best.items()))


def best_table(best: Mapping[Any, tuple[str, Choice]], axis: Axis) -> Table:
    """Return a row for each value of the first axis: the best line, its throughput, and what that is over the last."""
    rows: list[tuple[str, ...]] = []
    last: Choice | None = None
    for value, (name, choice) in best.items():
        more = "" if last is None else change(against(last, choice).ratio)
        rows.append((shown(value), name, numbers.number(choice.middle), numbers.number(choice.middle / value), more))
        last = choice
    header = (axis.name, "the best line", "tokens a second", f"for each of {axis.name}", "over the one before")
    return Table("The best line at each value", header, tuple(rows), ())


def _show(swept: Swept, sweep: Sweep, output: Console) -> None:
    axis = sweep.axes[0]
    output.print(Text(HOW_FAR_OFF), soft_wrap=True)
    print_table(output, knee_table(swept, sweep))
    said = [advice(knee, axis, name) for name, knee in list(swept.knees.items())[:MOST_TOLD]]
    if len(swept.lines) > 1 and axis.is_numeric and min(axis.values) > 0:
        best = best_line(swept, axis)
        print_table(output, best_table(best, axis))
        knee = find_knee([choice for _, choice in best.values()], axis)
        said.insert(0, advice(knee, axis, f"the best line of each, here {best[knee.value][0]}"))
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
    worlds = f"{asked.draws} simulated runs of {asked.base['steps']} training steps"
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
