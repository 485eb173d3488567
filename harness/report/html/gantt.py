"""The timeline: what every lane did when, a few steps of one run of each variant, on one scale of seconds."""

from __future__ import annotations

from harness.compare import numbers
from harness.core.trace import Span
from harness.report.html.charts import Scale, block, draw_axis, grid_lines, whole
from harness.report.html.looks import stage_class
from harness.report.html.markup import Markup, element, share
from harness.report.html.material import Material
from harness.report.html.parts import figure, note, scroll, section, stage_legend
from harness.report.timeline import MOST_VARIANTS, Excerpt, excerpt

TOP, LANE = 13.0, 18.0  # room for the versions above a lane, height of its bars, in pixels
NARROWEST = 0.0012  # of the width: what is shorter is drawn as wide as this, so that it can be seen
ROOM_OF_A_NUMBER = 0.045  # of the width
MOST_SPANS = 4000  # of one variant; an engine that loads in flight may have very many


def timeline_section(material: Material, anchor: str) -> Markup | None:
    """Return the section; None where no run kept its spans."""
    found = {name: part for name, runs in material.curves.runs.items() if (part := excerpt(runs[0])) is not None}
    shown = dict(list(found.items())[:MOST_VARIANTS])
    if not shown:
        return None
    axis = whole(0.0, max(part.seconds for part in shown.values()), 6)
    rows = [cell for name, part in shown.items() for cell in _variant(name, part, axis)]
    sentence = _says(shown)
    drawn = element("div", rows, draw_axis(axis, "seconds"), class_="rows timeline", role="img", aria_label=sentence)
    seen = {span.stage for part in shown.values() for span in part.spans}
    more = note(f"The first {MOST_VARIANTS} of {len(found)} variants.") if len(found) > len(shown) else None
    marks = [("#version-mark", "policy version now held")] if any(part.changes for part in shown.values()) else []
    legend = stage_legend(seen, [("nobody", "under no span"), *marks])
    return section(
        anchor, "Timeline", figure("What each lane did when.", sentence, scroll(drawn, "Timeline"), more, legend=legend)
    )


def _says(shown: dict[str, Excerpt]) -> str:
    parts = [f"{name} {_steps(part)} in {numbers.number(part.seconds)} s" for name, part in shown.items()]
    rule = "By rule, the first steps without an evaluation after the first quarter of the run of the lowest seed"
    return f"{rule}: {'; '.join(parts)}."


def _steps(part: Excerpt) -> str:
    first, last = part.steps
    return f"training step {first}" if first == last else f"training steps {first} to {last}"


def _variant(name: str, part: Excerpt, axis: Scale) -> list[Markup]:
    cells = [element("div", name, class_="head")]
    for lane in part.lanes:
        drawn = _lane(part, lane, axis)
        svg = element("svg", drawn, width="100%", height=TOP + LANE, class_="lane", aria_hidden="true")
        cells += [
            element("div", lane, class_="name"),
            element("div", svg, class_="bar-cell"),
            element("div", class_="value"),
        ]
    return cells


def _lane(part: Excerpt, lane: str, axis: Scale) -> list[Markup]:
    end = axis.place(part.seconds)
    ground = element("rect", x=0, y=TOP, width=share(end), height=LANE, class_="nobody")
    spans = sorted((span for span in part.spans if span.lane == lane), key=_depth)[:MOST_SPANS]
    return [
        *grid_lines(axis, TOP + LANE),
        ground,
        *(_span(part, span, axis) for span in spans),
        *_versions(part, lane, axis),
    ]


def _depth(span: Span) -> tuple[int, int]:
    """Draw waits first, then long work, then the weight stages that interrupt it."""
    depth = 0 if span.stage.is_wait else 2 if span.stage.value.startswith("weight_") else 1
    return depth, span.start_ns


def _span(part: Excerpt, span: Span, axis: Scale) -> Markup:
    low, high = part.window
    start = axis.place(part.at(max(span.start_ns, low)))
    stop = axis.place(part.at(min(span.end_ns, high)))
    if not span.stage.is_wait:
        stop = max(stop, start + NARROWEST)
    step = f", step {span.step}" if span.step >= 0 else ""
    name = f"{span.stage.value}{step}: {numbers.number((span.end_ns - span.start_ns) / 1e9)} s"
    return block(name, stage_class(span.stage), start, stop, TOP, LANE)


def _versions(part: Excerpt, lane: str, axis: Scale) -> list[Markup]:
    """Mark each change of the policy version with a triangle, and write it beside it where there is room."""
    drawn, free_from = list[Markup](), 0.0
    for name, time_ns, version in part.changes:
        if name != lane:
            continue
        place = axis.place(part.at(time_ns))
        drawn.append(element("use", href="#version-mark", x=share(place), y=TOP - 4, class_="version"))
        if place >= free_from:
            written = "none" if version < 0 else str(version)
            inner = element("text", written, x=7, y=TOP - 2, class_="version-number")
            drawn.append(element("svg", inner, x=share(place), y=0, overflow="visible"))
            free_from = place + ROOM_OF_A_NUMBER
    return drawn
