"""Verdicts: each arm's times over the baseline's, with their intervals and in one word."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.compare import numbers
from harness.compare.endpoints import endpoint_of_effect
from harness.compare.stats import Effect, Verdict
from harness.compare.verdicts import Judgement, verdict_sentences, verdict_tables
from harness.report.html.charts import Scale
from harness.report.html.markup import Markup, bullets, details, element, figure, join, note, section, share, table

ROW = 22.0
WIDEST = 4.0  # ratios beyond it, or below its inverse, end at the plot's edge
NARROWEST = 1.1
TICKS_APART = 0.11  # of the width, so that their text never meets
_TICKS = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)


def verdict_section(judgements: Sequence[Judgement], arms: int, anchor: str) -> Markup | None:
    """Return the section: forest plots, or why there is no verdict; None for a single arm."""
    if arms < 2:
        return None
    known = [item for item in judgements if item.primary.blocks > 1 and item.primary.ratio is not None]
    if not known:
        return section(anchor, "Verdicts", *_none(judgements))
    axis = ratio_axis(known)
    left = [note(f"{item.other}: {_why(item)}") for item in judgements if item not in known]
    return section(anchor, "Verdicts", *(_forest(item, axis) for item in known), *left)


def _none(judgements: Sequence[Judgement]) -> list[Markup | None]:
    """Say why there is no verdict, and what would give one."""
    blocks = max((item.primary.blocks for item in judgements), default=0)
    why = (
        "No verdict. It takes at least two blocks, in each of which every arm runs once under the same conditions; "
        f"this experiment has {'one' if blocks == 1 else 'none that the arms share'}. One block cannot tell what an "
        "arm does from a slow phase of the machine."
    )
    how = element(
        "p", "To get one, repeat the arms in blocks: ", element("code", "python -m harness bench A B --blocks 6"),
        class_="note",
    )  # fmt: skip
    return [element("p", why, class_="lead"), how]


def _why(item: Judgement) -> str:
    return f"{item.primary.verdict.value}; {item.primary.reason or 'fewer than two paired blocks'}."


def ratio_axis(judged: Sequence[Judgement]) -> Scale:
    """Return one logarithmic axis of ratios for all comparisons, symmetric around 1."""
    effects = [effect for item in judged for effect in _effects(item)]
    ends = [end for effect in effects for end in (effect.low, effect.high, effect.ratio) if end]
    reach = max([NARROWEST, *(max(end, 1 / end) for end in ends), *(1 + 1.5 * effect.threshold for effect in effects)])
    reach = min(WIDEST, reach * 1.02)
    axis = Scale(1 / reach, reach, (1.0,), log=True)
    ticks = [1.0]
    for tick in sorted(_TICKS, key=lambda tick: -abs(math.log(tick))):  # the outer ones first
        apart = min(abs(axis.place(tick) - axis.place(other)) for other in ticks)
        if 1 / reach <= tick <= reach and apart >= TICKS_APART:
            ticks.append(tick)
    return Scale(1 / reach, reach, tuple(sorted(ticks)), log=True)


def _effects(item: Judgement) -> list[Effect]:
    return list(item.effects)


def _forest(item: Judgement, axis: Scale) -> Markup:
    rows = [cell for effect in _effects(item) for cell in _row(effect, axis, effect is item.primary)]
    if item.noise_floor is not None and item.noise_floor.ratio is not None:
        floor = f"noise floor: {item.base} against itself"
        rows += [element("div", floor, class_="head sub"), *_row(item.noise_floor, axis, is_primary=True)]
    said, *cautions = verdict_sentences([item])
    drawing = element("div", rows, _axis(axis, item), class_="rows forest", role="group", aria_label=said)
    data = details("Show the figures", *(table(found) for found in verdict_tables([item])))
    return figure(
        f"Times of {item.other} over those of {item.base}.", said, drawing, bullets(cautions, "plain-list"), data
    )


def _row(effect: Effect, axis: Scale, is_primary: bool) -> list[Markup]:
    primary = " primary" if is_primary else ""
    svg = element("svg", _marks(effect, axis), width="100%", height=ROW, class_="bar", aria_hidden="true")
    chip = element("span", effect.verdict.value, class_=f"chip {_verdict_class(effect)}", title=effect.reason or None)
    return [
        element("div", effect.label, class_=f"name{primary}"),
        element("div", svg, class_="bar-cell"),
        element("div", _written(effect), class_="value"),
        element("div", chip),
    ]


def _verdict_class(effect: Effect) -> str:
    if effect.verdict is Verdict.DIFFERENT and effect.ratio is not None:
        return "slower" if effect.ratio > 1.0 else "faster"  # the classes of worse and better; the chip says different
    return effect.verdict.value.replace(" ", "-")


def _written(effect: Effect) -> str:
    if effect.ratio is None:
        return numbers.NOTHING
    endpoint = endpoint_of_effect(effect)
    if endpoint.is_difference:
        point, ends = endpoint.point_and_ends(effect)
        return point if ends == numbers.NOTHING else f"{point} ({ends})"
    if effect.low is None or effect.high is None:
        return f"{effect.ratio:.3f}"
    return f"{effect.ratio:.3f} ({effect.low:.3f} to {effect.high:.3f})"


def _marks(effect: Effect, axis: Scale) -> Markup:
    middle = ROW / 2
    low, high = axis.place(1 / (1 + effect.threshold)), axis.place(1 + effect.threshold)
    band = element("rect", x=share(low), width=share(high - low), y=-2.5, height=ROW + 5, class_="threshold")
    one = element("line", x1=share(axis.place(1.0)), x2=share(axis.place(1.0)), y1=-2, y2=ROW + 2, class_="tick")
    if effect.ratio is None or not math.isfinite(effect.ratio):
        return join(band, one)
    line = None
    if effect.low is not None and effect.high is not None:
        ends = share(axis.place(effect.low)), share(axis.place(effect.high))
        line = element("line", x1=ends[0], x2=ends[1], y1=middle, y2=middle, class_="interval")
    dot = element("circle", cx=share(axis.place(effect.ratio)), cy=middle, r=4.5, class_="estimate")
    return join(band, one, line, dot)


def _axis(axis: Scale, item: Judgement) -> Markup:
    ticks = [element("text", f"{tick:g}", x=share(axis.place(tick)), y=13, text_anchor="middle") for tick in axis.ticks]
    said = f"times that of {item.base}, 95% interval; shaded: too small to matter"
    name = element("text", said, x="50%", y=31, text_anchor="middle")
    drawn = element("svg", ticks, name, width="100%", height=36, class_="axis", aria_hidden="true")
    return join(element("div", class_="name"), element("div", drawn, class_="bar-cell"), element("div"), element("div"))
