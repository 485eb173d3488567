"""A sweep as a picture: throughput over the first axis, a line for each value of the others, and the knees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.compare.experiment import SIMULATED
from harness.core.errors import UserError
from harness.report import charts
from harness.report.canvas import save
from harness.simulate.knee import Knee
from harness.simulate.machine import MachineProfile
from harness.simulate.points import Answer, Axis, shown

MOST_LINES = 12


def draw_sweep(
    path: Path,
    scenario: str,
    machine: MachineProfile,
    axis: Axis,
    lines: Mapping[str, Sequence[Answer]],
    knees: Mapping[str, Knee],
) -> Path:
    """Write the points that could be simulated, by line, and each line's knee as a PNG.

    Raises:
        UserError: the file cannot be written.
    """
    names = [] if axis.is_numeric else [shown(value) for value in axis.values]
    rows = [
        (
            *(name, float(names.index(shown(value)) if names else value), rate.value, rate.low, rate.high),
            *(bool(answer.found.extrapolating), f"take {shown(value)}" if value == knees[name].value else ""),
        )
        for name in list(lines)[:MOST_LINES]
        for answer in lines[name]
        if answer.found is not None
        for value, rate in [(answer.point[axis.key], answer.found.throughput)]
    ]
    more = f"; first {MOST_LINES} of {len(lines)} lines" if len(lines) > MOST_LINES else ""
    measured = "" if machine.origin == "measured" else ", a profile made from data sheets, NOT MEASURED"
    figure = charts.choices(
        rows,
        names=names,
        x_label=axis.key if axis.name == axis.key else f"{axis.name} ({axis.key})",
        y_label="response tokens a second",
        heading=f"machine: {machine.name}{measured}",
        title=f"{scenario}{SIMULATED}: throughput over the choice{more}",
    )
    try:
        return save(figure, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}", str(path), "--out DIR") from error
