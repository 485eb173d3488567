"""A sweep over several axes as a grid of panels: validation reward over steps, one line for each value of the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.compare.learning import evaluations
from harness.report.curves import BAND, STEP
from harness.report.lines import Curves, draw
from harness.report.style import label, variant_looks
from harness.results import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = "seed"
MOST_PANELS = 60
PANEL_WIDTH, PANEL_HEIGHT = 3.0, 2.7  # inches
Place = tuple[str, str, str]
"""Row, column and line of a run."""


def draw_grid(curves: Curves) -> Figure | None:
    """Draw a panel for each point of all axes but the last: columns are the last but one, rows what comes before.

    Returns:
        None where there are not two axes beside the seed, nothing was evaluated, or there are too many panels to read.
    """
    places = _places(curves)
    rows, columns, lines = ([*dict.fromkeys(place[part] for place in places)] for part in range(3))
    if not lines or len(rows) * len(columns) > MOST_PANELS or not any(map(evaluations, curves.all_runs())):
        return None
    figure, grid = _canvas(len(rows), len(columns))
    for row_name, panels in zip(rows, grid, strict=True):
        for column_name, axes in zip(columns, panels, strict=True):
            of_line = {line: places.get((row_name, column_name, line), []) for line in lines}
            draw(axes, Curves(curves.experiment, of_line), _rewards)
        panels[0].set_ylabel(f"{label(row_name)}\nvalidation reward" if row_name else "validation reward")
    for column_name, top, bottom in zip(columns, grid[0], grid[-1], strict=True):
        top.set_title(label(column_name), fontsize=10)
        bottom.set_xlabel(STEP)
    _head(figure, curves, lines)
    return figure


def _places(curves: Curves) -> dict[Place, list[Run]]:
    """The runs by their place in the grid, in the order of the scenario; empty without two axes."""
    runs = curves.all_runs()
    keys = list(dict.fromkeys(key for run in runs for key in run.manifest.point if key != SEED))
    if len(keys) < 2 or any(run.manifest.arm for run in runs):
        return {}
    *outer, column, line = keys
    places: dict[Place, list[Run]] = {}
    for run in runs:
        point = run.manifest.point
        row = ", ".join(_named(key, point) for key in outer)
        places.setdefault((row, _named(column, point), _named(line, point)), []).append(run)
    return places


def _named(key: str, point: dict[str, Any]) -> str:
    return f"{key.rpartition('.')[2]}: {point.get(key)}"


def _rewards(run: Run) -> list[tuple[float, float]]:
    return [(item.step, item.reward) for item in evaluations(run)]


def _canvas(rows: int, columns: int) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    size = (max(8.0, PANEL_WIDTH * columns), PANEL_HEIGHT * rows + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=True, sharey="row").tolist()


def _head(figure: Figure, curves: Curves, lines: Sequence[str]) -> None:
    """Give the figure its heading and the legend of its lines."""
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], color=colour, marker=marker, linewidth=2.0, label=label(name))
        for name, (colour, marker) in variant_looks(list(lines)).items()
    ]
    figure.legend(handles=keys, loc="outside right upper", frameon=False)
    heading = f"{label(curves.experiment.title)}: validation reward"
    seeds = f"\n{len({run.manifest.seed for run in curves.all_runs()})} seeds; {BAND}" if curves.several_seeds else ""
    figure.suptitle(heading + seeds, x=0.01, ha="left", fontsize=13)
