"""Rows of bars on one common axis. Lengths are shares of the width, so that the bars fit any screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.report.html.markup import Markup, element, join, share
from harness.report.html.scales import Scale, tick_text

BAR_HEIGHT = 20.0
SHORT_NAME = 10  # characters: such names fit beside the bars on a narrow screen too


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar: class of its colour, its length, and what it is."""

    class_: str
    value: float
    name: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One row.

    Attributes:
        heading: stands above the row, over the whole width.
        value: what is written beside the bar.
        whisker: (low, high) of an interval.
        mark: place of a thick line, such as the wall-clock.
    """

    name: str
    segments: Sequence[Segment]
    value: str
    heading: str | None = None
    whisker: tuple[float, float] | None = None
    mark: float | None = None


def draw_bars(bars: Sequence[Bar], axis: Scale, unit: str, label: str) -> Markup:
    """Return the rows with the axis below.

    Args:
        unit: of the axis.
        label: what a reader who cannot see the bars is told.
    """
    rows = [cell for bar in bars for cell in _row(bar, axis)]
    is_short = max((len(bar.name) for bar in bars), default=0) <= SHORT_NAME
    class_ = "rows short" if is_short else "rows"
    return element("div", rows, draw_axis(axis, unit), class_=class_, role="img", aria_label=label)


def draw_axis(axis: Scale, unit: str) -> Markup:
    """Return the row with ticks and unit."""
    ticks = [
        element("text", tick_text(tick, axis), x=share(axis.place(tick)), y=13, text_anchor="middle")
        for tick in axis.ticks
    ]
    name = element("text", unit, x="50%", y=31, text_anchor="middle")
    drawn = element("svg", ticks, name, width="100%", height=36, class_="axis", aria_hidden="true")
    return join(
        element("div", class_="name"), element("div", drawn, class_="axis-row"), element("div", class_="axis-end")
    )


def grid_lines(axis: Scale, height: float) -> list[Markup]:
    """Return a faint line at each tick."""
    places = [share(axis.place(tick)) for tick in axis.ticks]
    return [element("line", x1=x, x2=x, y1=-2, y2=height + 2, class_="grid") for x in places]


def _row(bar: Bar, axis: Scale) -> list[Markup]:
    drawn, end = grid_lines(axis, BAR_HEIGHT), 0.0
    for segment in bar.segments:
        start, stop = axis.place(end), axis.place(end + segment.value)
        drawn.append(block(segment.name, segment.class_, start, stop, 0.0, BAR_HEIGHT))
        end += segment.value
    if bar.whisker is not None:
        drawn += _whisker(axis, bar.whisker)
    if bar.mark is not None:
        x = share(axis.place(bar.mark))
        drawn.append(element("line", x1=x, x2=x, y1=-3, y2=BAR_HEIGHT + 3, class_="wall"))
    svg = element("svg", drawn, width="100%", height=BAR_HEIGHT, class_="bar", aria_hidden="true")
    cells = [element("div", bar.heading, class_="head")] if bar.heading else []
    return [
        *cells,
        element("div", bar.name, class_="name"),
        element("div", svg, class_="bar-cell"),
        element("div", bar.value, class_="value"),
    ]


def block(name: str, class_: str, start: float, stop: float, y: float, height: float) -> Markup:
    """Return a rectangle between two shares of the width, whose name shows under the pointer."""
    return element(
        "rect", element("title", name), x=share(start), width=share(stop - start), y=y, height=height, class_=class_
    )


def _whisker(axis: Scale, ends: tuple[float, float]) -> list[Markup]:
    low, high = (share(axis.place(end)) for end in ends)
    middle = BAR_HEIGHT / 2
    caps = [element("line", x1=x, x2=x, y1=middle - 5, y2=middle + 5, class_="whisker") for x in (low, high)]
    return [element("line", x1=low, x2=high, y1=middle, y2=middle, class_="whisker"), *caps]
