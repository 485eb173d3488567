"""Two figures of each variant against each other as a picture: points with intervals, the front, its knee."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.compare.pareto import HIGH, LOW, Axis, Front, Value
from harness.report.style import label, line_key, place_legend, variant_looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_pareto(front: Front, title: str) -> Figure:
    """Draw the points of a front, of which there is at least one.

    Args:
        title: the experiment's.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.6), layout="constrained")
    axes = figure.add_subplot()
    ends = [front.point(name) for name in front.front]
    axes.plot(
        [point.x.mean for point in ends], [point.y.mean for point in ends], color="#777777", linewidth=1.4, zorder=1
    )
    looks = variant_looks([point.name for point in front.points])
    keys = []
    for point in front.points:
        colour, marker = looks[point.name]
        face = "white" if point.beaten_by else colour
        axes.errorbar(
            point.x.mean, point.y.mean, _reach(point.y), _reach(point.x), fmt=marker, color=colour, capsize=3,
            markersize=8, markerfacecolor=face, elinewidth=1.2,
        )  # fmt: skip
        keys.append(line_key(label(point.name), color=colour, marker=marker, linewidth=0, markerfacecolor=face))
        if point.name == front.knee:
            place = (point.x.mean, point.y.mean)
            axes.annotate("knee", place, (10, -16), textcoords="offset points", fontweight="bold")
    axes.set(xlabel=_axis_label(front.axes[0]), ylabel=_axis_label(front.axes[1]))
    axes.set_title(f"{label(title)}: two figures against each other")
    axes.margins(0.1)
    place_legend(figure, [*keys, line_key("front: beaten by none", color="#777777", linewidth=1.4)])
    if any(point.x.low is not None for point in front.points):
        figure.supxlabel("bars: 95% interval over the runs of a variant; hollow: beaten by another point", fontsize=9)
    return figure


def _reach(value: Value) -> list[list[float]] | None:
    """Return how far the interval reaches below and above the mean."""
    if value.low is None or value.high is None:
        return None
    return [[value.mean - value.low], [value.high - value.mean]]


def _axis_label(axis: Axis) -> str:
    return f"{axis.words} ({HIGH if axis.more_is_better else LOW} is good)"
