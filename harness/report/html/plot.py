"""Line charts. x is a share of the width, y is in pixels: a chart fits any screen, and its text stays text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.report.html.looks import marker_id, variant_class
from harness.report.html.markup import Markup, element, join, share, short
from harness.report.html.scales import Scale, linear, logarithmic, tick_text, whole

HEIGHT = 220.0
BELOW = 40.0  # room for the ticks' text and the axis label
MOST_MARKERS = 12
WIDE = 1000.0  # of the stretched inner drawing

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Attributes:
        index: of the variant, for colour and marker.
        points: (x, y) in order.
        band: (x, low, high) in order; empty for no band.
        thin: one of several seeds.
    """

    index: int
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    thin: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A panel of lines.

    Attributes:
        says: what a reader who cannot see it is told.
        from_zero: let the y axis begin at 0.
        levels: (name, y) of dotted horizontal lines.
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


def draw_chart(chart: Chart) -> Markup:
    """Return the panel; without a point it says so."""
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points] + [y for _, y in chart.levels]
    ys += [y for line in chart.lines for _, *ends in line.band for y in ends]
    title = element("p", chart.title, class_="panel-title")
    if not xs:
        return element("div", title, element("p", "not logged", class_="note"), class_="panel")
    x_axis = logarithmic(xs) if chart.log_x else whole(min(xs), max(xs))
    y_axis = logarithmic(ys) if chart.log_y else linear(ys, from_zero=chart.from_zero)
    lines = [line for line in chart.lines if line.points]  # a variant may lack what another one logs
    inner = [_stretched(line, x_axis, y_axis) for line in lines]
    stretched = element(
        "svg", inner, viewBox=f"0 0 {short(WIDE)} {short(HEIGHT)}", preserveAspectRatio="none", width="100%",
        height=HEIGHT,
    )  # fmt: skip
    marks = [mark for line in lines for mark in _marks(line, x_axis, y_axis)]
    drawing = element(
        "svg", _y_grid(y_axis), _x_ticks(x_axis, chart.x_label), _levels(chart, y_axis), stretched, marks,
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


def _stretched(line: Line, x_axis: Scale, y_axis: Scale) -> Markup:
    def at(x: float, y: float) -> str:
        return f"{short(round(WIDE * x_axis.place(x), 1))} {short(round(_y(y_axis, y), 1))}"

    class_ = variant_class(line.index)
    band = None
    if len(line.band) > 1:
        upper = [at(x, high) for x, _, high in line.band]
        lower = [at(x, low) for x, low, _ in reversed(line.band)]
        band = element("path", d="M" + "L".join([*upper, *lower]) + "Z", class_=f"band {class_}")
    path = "M" + "L".join(at(x, y) for x, y in line.points)
    return join(band, element("path", d=path, class_=f"line {class_}" + (" thin" if line.thin else "")))


def _marks(line: Line, x_axis: Scale, y_axis: Scale) -> list[Markup]:
    every = -(-len(line.points) // MOST_MARKERS)
    class_ = f"mark {variant_class(line.index)}"
    return [
        element("use", href=f"#{marker_id(line.index)}", x=share(x_axis.place(x)), y=_y(y_axis, y), class_=class_)
        for x, y in line.points[::every]
    ]
