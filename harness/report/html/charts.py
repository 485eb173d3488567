"""Drawings of the page, in SVG: axes with round ticks, rows of bars, panels with lines.

Lengths are shares of the width, so that drawings fit any screen. The pictures are drawn apart, by matplotlib: to import
it and draw six figures as SVG takes 5.3 s of a processor (230 MB), the whole page here 0.7 s (48 MB), which compare and
every run wait for. What is drawn is computed once, in ``harness.report.data``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TypeVar

from harness.report.html.markup import Markup, element, join, share, short
from harness.report.html.theme import marker_id, variant_class

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_ROUND_STEPS = (1.0, 2.0, 5.0, 10.0)
MOST_DECADES = 8
"""Ticks of a logarithmic axis: more would not stand beside each other."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from ``low`` to ``high`` (low < high; above 0 where ``log``) with its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Return where the value lies: 0 at the low end, 1 at the high end, never outside."""
        if self.log:
            value = max(value, self.low)
            place = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, place))


def linear(values: Iterable[float], most_ticks: int = 5, from_zero: bool = False) -> Scale:
    """Return an axis over the values whose ends are round, with about ``most_ticks`` ticks.

    Args:
        from_zero: let the axis begin (or end) at 0.
    """
    found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(found), max(found)
    if from_zero:
        low, high = min(0.0, low), max(0.0, high)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        reach = abs(high) * 0.1 or 1.0
        low, high = (0.0, high + reach) if from_zero and low == 0 else (low - reach, high + reach)
    step = _round_step((high - low) / most_ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(step * number for number in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks)


def whole(low: float, high: float, most_ticks: int = 5, steps: bool = False) -> Scale:
    """Return an axis that ends at the values themselves; its ticks are round, and one is at an end that is whole.

    Args:
        steps: of training steps: ticks at whole numbers alone.
    """
    if high <= low:
        return Scale(low, low + 1.0, (low,))
    rough = (high - low) / most_ticks
    step = _round_step(max(1.0, rough), _ROUND_STEPS) if steps else _round_step(rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = [step * number for number in range(first, last + 1)]
    if float(high).is_integer() and step >= 1 and ticks and ticks[-1] < high:  # the last step has a tick of its own
        ticks[len(ticks) - (high - ticks[-1] < step / 2) :] = [high]
    return Scale(low, high, tuple(ticks))


def logarithmic(values: Iterable[float]) -> Scale:
    """Return a logarithmic axis over the positive values; ticks at 1, 2 and 5 times powers of ten, few of them."""
    found = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
    low, high = math.floor(math.log10(min(found)) + 1e-9), math.ceil(math.log10(max(found)) - 1e-9)
    high = max(high, low + 1)
    parts = (1, 2, 5) if high - low <= 1 else (1,)
    every = -(-(high - low) // MOST_DECADES)
    ticks = [part * 10.0**power for power in range(low, high + 1, every) for part in parts]
    return Scale(10.0**low, 10.0**high, tuple(tick for tick in ticks if tick <= 10.0**high * (1 + 1e-9)), log=True)


def _round_step(rough: float, parts: Sequence[float] = _ROUND) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(part * power for part in parts if part * power >= rough * (1 - 1e-9))


def tick_text(value: float, scale: Scale) -> str:
    """Write a tick with as many decimals as the ticks of its axis need: 0.25, 40, 1,000, 2e-05."""
    largest = max(abs(scale.low), abs(scale.high))
    value = 0.0 if not scale.log and abs(value) < 1e-12 * largest else value
    apart = min((later - tick for tick, later in pairwise(scale.ticks)), default=largest)
    ticks, near = ((value,), 1e-9 * abs(value)) if scale.log else (scale.ticks, max(1e-6 * apart, 1e-15 * largest))
    if largest < 0.001 or (scale.log and value < 0.001) or largest >= 1e7:
        digits = next(
            (few for few in range(16) if all(abs(float(f"{tick:.{few}e}") - tick) <= near for tick in ticks)), 16
        )
        if value and (largest < 1e7 or digits <= 2):
            return f"{value:.{digits + 1}g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
        if not value:
            return "0"
    decimals = next((few for few in range(15) if all(abs(round(tick, few) - tick) <= near for tick in ticks)), 15)
    return f"{value:,.{decimals}f}"


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


HEIGHT = 220.0
BELOW = 40.0  # room for the ticks' text and the axis label
MOST_MARKERS = 12
WIDE = 1000.0  # of the stretched inner drawing

Point = tuple[float, float]
Row = TypeVar("Row", bound=tuple[float, ...])


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Attributes:
        index: of the variant, for colour and marker.
        points: (x, y) in order.
        band: (x, low, high) in order; empty for no band.
    """

    index: int
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """A panel of lines.

    Attributes:
        says: what a reader who cannot see it is told.
        from_zero: let the y axis begin at 0.
        levels: (name, y) of dotted horizontal lines.
        marks: x of dotted vertical lines.
        x_ends: what the x axis holds beside the points; panels of the same ends share their axis.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    says: str
    from_zero: bool = False
    log_x: bool = False
    log_y: bool = False
    levels: Sequence[tuple[str, float]] = field(default_factory=tuple)
    zero_line: bool = False
    marks: Sequence[float] = ()
    x_ends: Sequence[float] = ()


def draw_chart(chart: Chart) -> Markup:
    """Return the panel; without a point it says so."""
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points] + [y for _, y in chart.levels]
    ys += [y for line in chart.lines for _, *ends in line.band for y in ends]
    title = element("p", chart.title, class_="panel-title")
    if not xs:
        return element("div", title, element("p", "not logged", class_="note"), class_="panel")
    xs += chart.x_ends
    x_axis = logarithmic(xs) if chart.log_x else whole(min(xs), max(xs), steps=all(float(x).is_integer() for x in xs))
    y_axis = logarithmic(ys) if chart.log_y else linear(ys, from_zero=chart.from_zero)
    lines = [line for line in chart.lines if line.points]  # a variant may lack what another one logs
    inner = [_stretched(line, x_axis, y_axis) for line in lines]
    stretched = element(
        "svg", inner, viewBox=f"0 0 {short(WIDE)} {short(HEIGHT)}", preserveAspectRatio="none", width="100%",
        height=HEIGHT,
    )  # fmt: skip
    marks = [mark for line in lines for mark in _marks(line, x_axis, y_axis)]
    drawing = element(
        "svg", _y_grid(y_axis), _x_ticks(x_axis, chart.x_label), _levels(chart, y_axis), _vertical(chart, x_axis),
        stretched, marks,
        width="100%", height=HEIGHT + BELOW, role="img", aria_label=f"{chart.title}. {chart.says}", class_="area",
    )  # fmt: skip
    axis = element("svg", _y_ticks(y_axis), width="100%", height=HEIGHT + BELOW, class_="axis", aria_hidden="true")
    unit = element("p", chart.y_label, class_="unit")
    return element("div", title, unit, element("div", axis, drawing, class_="plot"), class_="panel")


def _y(axis: Scale, value: float) -> float:
    return HEIGHT * (1 - axis.place(value))


def _y_grid(axis: Scale) -> list[Markup]:
    places = [_y(axis, tick) for tick in axis.ticks]
    return [element("line", x1=0, x2="100%", y1=y, y2=y, class_="grid") for y in places]


def _y_ticks(axis: Scale) -> list[Markup]:
    return [
        element("text", tick_text(tick, axis), x="100%", y=_y(axis, tick) + 4, text_anchor="end") for tick in axis.ticks
    ]


def _x_ticks(axis: Scale, label: str) -> Markup:
    ticks = [
        join(
            element(
                "line", x1=share(axis.place(tick)), x2=share(axis.place(tick)), y1=HEIGHT, y2=HEIGHT + 4, class_="tick"
            ),
            element(
                "text", tick_text(tick, axis), x=share(axis.place(tick)), y=HEIGHT + 17, text_anchor="middle",
                class_="tick-text",
            ),
        )
        for tick in axis.ticks
    ]  # fmt: skip
    name = element("text", label, x="50%", y=HEIGHT + 35, text_anchor="middle", class_="axis-name")
    return join(element("line", x1=0, x2="100%", y1=HEIGHT, y2=HEIGHT, class_="tick"), ticks, name)


def _levels(chart: Chart, axis: Scale) -> list[Markup]:
    drawn = []
    if chart.zero_line and axis.low < 0 < axis.high:
        drawn.append(element("line", x1=0, x2="100%", y1=_y(axis, 0.0), y2=_y(axis, 0.0), class_="tick"))
    for name, level in chart.levels:
        y = _y(axis, level)
        drawn.append(element("line", x1=0, x2="100%", y1=y, y2=y, class_="level"))
        drawn.append(element("text", name, x=4, y=y - 5, class_="level-name"))
    return drawn


def _vertical(chart: Chart, axis: Scale) -> list[Markup]:
    places = [share(axis.place(mark)) for mark in chart.marks]
    return [element("line", x1=x, x2=x, y1=0, y2=HEIGHT, class_="level") for x in places]


def _stretched(line: Line, x_axis: Scale, y_axis: Scale) -> Markup:
    def at(x: float, y: float) -> str:
        return f"{short(round(WIDE * x_axis.place(x), 1))} {short(round(_y(y_axis, y), 1))}"

    class_ = variant_class(line.index)
    bands = []
    for part in _without_gaps(line.band):
        upper, lower = [at(x, high) for x, _, high in part], [at(x, low) for x, low, _ in reversed(part)]
        bands.append("M" + "L".join([*upper, *lower]) + "Z")
    band = element("path", d="".join(bands), class_=f"band {class_}") if len(line.band) > 1 else None
    path = "".join("M" + "L".join(at(x, y) for x, y in part) for part in _without_gaps(line.points))
    return join(band, element("path", d=path, class_=f"line {class_}"))


def _without_gaps(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the parts of a line between values that are NaN."""
    parts = groupby(rows, key=lambda row: all(map(math.isfinite, row)))
    return [list(part) for drawn, part in parts if drawn]


def _marks(line: Line, x_axis: Scale, y_axis: Scale) -> list[Markup]:
    every = -(-len(line.points) // MOST_MARKERS)
    class_ = f"mark {variant_class(line.index)}"
    return [
        element("use", href=f"#{marker_id(line.index)}", x=share(x_axis.place(x)), y=_y(y_axis, y), class_=class_)
        for x, y in line.points[::every]
        if math.isfinite(y)
    ]
