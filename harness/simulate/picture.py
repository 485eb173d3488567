"""A sweep as a picture: throughput over the first axis, a line for each value of the others, and the knees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.compare.experiment import SIMULATED
from harness.core.errors import UserError
from harness.report.style import label, picture_style, place_legend, save, variant_looks
from harness.simulate.machine import MachineProfile
from harness.simulate.points import Answer, Axis, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from harness.simulate.sweep import Knee

LOG_FROM = 16
"""Ratio of the largest to the smallest value of an axis from which on it is drawn in powers of 2."""
MOST_LINES = 12


def draw_sweep(
    path: Path,
    scenario: str,
    machine: MachineProfile,
    axis: Axis,
    lines: Mapping[str, Sequence[Answer]],
    knees: Mapping[str, Knee],
) -> Path:
    """Write the picture.

    Args:
        path: of the PNG file.
        scenario: its name.
        machine: the profile.
        axis: the x axis.
        lines: points that could be simulated, by line.
        knees: by line.

    Raises:
        UserError: the file cannot be written.
    """
    with picture_style():
        figure = _figure(scenario, machine, axis, lines, knees)
        try:
            return save(figure, path)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}", str(path), "--out DIR") from error


def _figure(
    scenario: str,
    machine: MachineProfile,
    axis: Axis,
    lines: Mapping[str, Sequence[Answer]],
    knees: Mapping[str, Knee],
) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.2), layout="constrained")
    axes = figure.add_subplot()
    drawn = dict(list(lines.items())[:MOST_LINES])
    looks = variant_looks(list(drawn))
    for number, (name, answers) in enumerate(drawn.items()):
        colour, marker = looks[name]
        _draw_line(axes, axis, answers, colour, marker, (number - (len(drawn) - 1) / 2) * 0.12)
        _mark_knee(axes, axis, knees[name], colour)
    axes.set_xlabel(label(axis.key if axis.name == axis.key else f"{axis.name} ({axis.key})"))
    axes.set_ylabel("response tokens a second")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    _scale(axes, axis)
    _legend(figure, drawn, looks)
    axes.set_title(_heading(scenario, machine, len(lines)))
    return figure


def _heading(scenario: str, machine: MachineProfile, lines: int) -> str:
    measured = "" if machine.origin == "measured" else ", a profile made from data sheets, NOT MEASURED"
    more = f"; first {MOST_LINES} of {lines} lines" if lines > MOST_LINES else ""
    return f"{label(scenario)}{SIMULATED}: throughput over the choice{more}\nmachine: {label(machine.name)}{measured}"


def _draw_line(axes: Axes, axis: Axis, answers: Sequence[Answer], colour: Any, marker: str, aside: float) -> None:
    if axis.is_numeric:  # in the order of the numbers, whatever the order in which they were typed
        answers = sorted(answers, key=lambda answer: float(answer.point[axis.key]))
    found = [answer.found for answer in answers if answer.found is not None]
    middle = [item.throughput.value for item in found]
    low, high = ([getattr(item.throughput, end) for item in found] for end in ("low", "high"))
    extrapolated = [bool(item.extrapolating) for item in found]
    if axis.is_numeric:
        places = [float(answer.point[axis.key]) for answer in answers]
        axes.plot(places, middle, color=colour, linewidth=1.8)
        axes.fill_between(places, low, high, color=colour, alpha=0.13, linewidth=0)
    else:
        names = [shown(value) for value in axis.values]
        places = [names.index(shown(answer.point[axis.key])) + aside for answer in answers]
        below = [value - end for value, end in zip(middle, low, strict=True)]
        above = [end - value for value, end in zip(middle, high, strict=True)]
        axes.errorbar(places, middle, (below, above), color=colour, linestyle="", capsize=3)
    for place, value, outside in zip(places, middle, extrapolated, strict=True):
        axes.plot(place, value, marker, color=colour, markersize=5, markerfacecolor="white" if outside else colour)


def _mark_knee(axes: Axes, axis: Axis, knee: Knee, colour: Any) -> None:
    if axis.is_numeric:
        place = float(knee.value)
        axes.axvline(place, color=colour, linewidth=1.0, linestyle=":")
    else:
        place = float([shown(value) for value in axis.values].index(shown(knee.value)))
    axes.annotate(
        f"take {label(shown(knee.value))}", (place, knee.throughput.value), (8, -16), textcoords="offset points",
        color=colour, fontweight="bold", fontsize=10, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7},
    )  # fmt: skip


def _scale(axes: Axes, axis: Axis) -> None:
    if not axis.is_numeric:
        axes.set_xticks(range(len(axis.values)), [label(shown(value)) for value in axis.values])
        axes.set_xlim(-0.6, len(axis.values) - 0.4)
        return
    values = sorted(axis.values)
    if values[0] > 0 and values[-1] / values[0] >= LOG_FROM:
        axes.set_xscale("log", base=2)
        ticks = [2**power for power in range(64) if values[0] <= 2**power <= values[-1]]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
    elif all(isinstance(value, int) for value in values):
        axes.locator_params(axis="x", integer=True)


def _legend(figure: Figure, lines: Mapping[str, Sequence[Answer]], looks: Mapping[str, Any]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    keys: list[Any] = [
        Line2D([], [], color=looks[name][0], marker=looks[name][1], linewidth=1.8, label=label(name))
        for name in lines
        if name
    ]
    keys.append(Patch(facecolor="#BBBBBB", label="90% interval"))
    if any(answer.found and answer.found.extrapolating for answers in lines.values() for answer in answers):
        hollow: dict[str, Any] = {"color": "#555555", "markerfacecolor": "white", "linestyle": "", "marker": "o"}
        keys.append(Line2D([], [], label="EXTRAPOLATING", **hollow))
    place_legend(figure, keys)
