"""Charts as the numbers and texts in them."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from harness.report.document import Chart

Points = list[tuple[float, float]]


def axes_of(drawn: Figure | Chart | None) -> list[Any]:
    assert drawn is not None
    figure = drawn.figure if isinstance(drawn, Chart) else drawn
    return [axes for cell in figure.subfigs for axes in cell.axes]


def legend(drawn: Figure | Chart) -> list[str]:
    figure = drawn.figure if isinstance(drawn, Chart) else drawn
    return [text.get_text() for cell in figure.subfigs for box in cell.legends for text in box.get_texts()]


def titles(chart: Chart) -> list[str]:
    """The titles of the panels."""
    return [cell.texts[0].get_text() for cell in chart.figure.subfigs if cell.texts]


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def rows(axes: Any) -> list[str]:
    """The names at the y axis."""
    return [tick.get_text() for tick in axes.get_yticklabels()]


def xs(line: Any) -> list[float]:
    return [float(x) for x in np.asarray(line.get_xdata())]


def ys(axes: Any, place: int = 0) -> list[float]:
    return [float(y) for y in np.asarray(axes.lines[place].get_ydata())]


def points(axes: Any, place: int = 0) -> Points:
    return list(zip(xs(axes.lines[place]), ys(axes, place), strict=True))


def whiskers(axes: Any) -> list[list[list[float]]]:
    """Each from its lower to its upper end."""
    return [np.asarray(own).tolist() for lines in axes.collections for own in lines.get_segments()]


def bars(axes: Any) -> dict[str, Points]:
    """(start, length) of the bars of each part."""
    return {
        str(bars.get_label()): [(round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in bars.patches]
        for bars in axes.containers
    }


def boxes(axes: Any, stage: str) -> Points:
    """(start, end) of what the timeline shows of a stage."""
    (patch,) = [item for item in axes.patches if item.get_label() == stage]
    corners = np.round(np.asarray(patch.get_path().vertices).reshape(-1, 5, 2), 6)
    return list(zip(corners[:, 0, 0].tolist(), corners[:, 1, 0].tolist(), strict=True))
