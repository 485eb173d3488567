"""A figure as SVG for the page: matplotlib's own, without what the page's security policy refuses.

Every ``style`` attribute becomes presentation attributes; colours that the style sheet knows become its variables, with
the colour itself for where there is none. Each cell of the figure is an ``<svg>`` of its own, so that cells stand side
by side or below each other as the screen allows. Equal figures give equal bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from harness.report.canvas import COLOUR_NAMES, INK, PANEL, TIMELINE

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from matplotlib.figure import Figure, SubFigure

POINTS = 72.0  # per inch
_DEFAULTS = {
    "stroke-linecap": "butt", "stroke-opacity": "1", "fill-opacity": "1", "opacity": "1", "stroke-dashoffset": "0",
    "stroke-width": "1", "text-anchor": "start", "font-weight": "400", "font-size": "10px", "stroke-linejoin": "miter",
    "stroke": "none",
}  # fmt: skip
_LEFT_OUT = ("id", "style", "clip-path", "font-family")
"""Limits of axes hold all that is drawn, so nothing needs to be clipped; the font is the page's."""
_LINK = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")
_SPACES = re.compile(r"\s*([MLQCZz])\s*")


def page_svg(figure: Figure, prefix: str) -> str:
    """Return the cells of a figure as SVG elements, one after the other.

    Args:
        prefix: of ids, which are unique on the page if prefixes are.
    """
    root = _matplotlib_svg(figure)
    ids = {old: f"{prefix}{number}" for number, old in enumerate(_references(root))}
    groups = [group for group in root.iterfind("{*}g/{*}g") if group.get("id", "").startswith("subfigure_")]
    patterns = [item for item in root.iterfind("{*}defs") if item.find("{*}pattern") is not None]
    parts = list[str]()
    for cell, group in zip(figure.subfigs, groups, strict=True):
        inside = [*(() if parts else patterns), *group]
        parts.append(f"{_head(figure, cell)}{''.join(_written(item, ids) for item in inside)}</svg>")
    return "".join(parts)


def _matplotlib_svg(figure: Figure) -> Element:
    import matplotlib as mpl

    stream = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "harness"}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return ElementTree.fromstring(stream.getvalue())


def _references(root: Element) -> dict[str, None]:
    """Return the ids that something refers to, in order; clip paths are left out."""
    named = dict[str, None]()
    for item in root.iter():
        texts = _REFERENCE.findall(item.get("style", ""))
        named.update(dict.fromkeys([*texts, item.get(_LINK, "#").removeprefix("#")]))
    named.pop("", None)
    return named


def _head(figure: Figure, cell: SubFigure) -> str:
    """Return the opening tag: the cell's part of the figure, in points from the top left."""
    width, height = (POINTS * inches for inches in figure.get_size_inches())
    box = cell.bbox.transformed(figure.transSubfigure.inverted())
    view = (box.x0 * width, (1 - box.y1) * height, box.width * width, box.height * height)
    inches = view[2] / POINTS
    size = "panel" if inches < PANEL + 0.01 else "long" if inches > TIMELINE - 0.01 else "wide"
    kind = f"{size} legend" if cell.legends else size
    shown = " ".join(_short(f"{number:.3f}", 1) for number in view)
    return f'<svg class="{kind}" viewBox="{shown}" aria-hidden="true">'


def _written(item: Element, ids: dict[str, str], digits: int = 1) -> str:
    """Return an element without names of groups, defaults, and paths that draw nothing."""
    tag = item.tag.rpartition("}")[2]
    digits = 2 if tag in ("defs", "pattern") else digits
    attributes = dict(_attributes(item, ids, digits))
    if tag == "path" and attributes.get("fill") == "none" and "stroke" not in attributes:
        return ""
    inside = "".join(_written(child, ids, digits) for child in item)
    if tag == "g":
        attributes.pop("stroke-linejoin", None)
    if tag == "text":
        inside = escape(item.text or "")
    if tag in ("g", "defs") and (not attributes or not inside):
        return inside if tag == "g" or not inside else f"<defs>{inside}</defs>"
    shown = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{shown}>{inside}</{tag}>" if inside else f"<{tag}{shown}/>"


def _attributes(item: Element, ids: dict[str, str], digits: int) -> Iterator[tuple[str, str]]:
    style = (part.partition(":") for part in item.get("style", "").split(";") if part)
    if item.get("id") in ids:
        yield "id", ids[item.get("id", "")]
    for name, value in (*item.items(), *((name.strip(), value.strip()) for name, _, value in style)):
        if name in _LEFT_OUT or _DEFAULTS.get(name) == value or value.startswith("rotate(-0 "):
            continue
        if name == _LINK:
            yield "href", f"#{ids[value.removeprefix('#')]}"
        elif reference := _REFERENCE.fullmatch(value):
            yield name, f"url(#{ids[reference[1]]})"
        elif value.startswith("#"):
            known = COLOUR_NAMES.get(value)
            if not (item.tag.endswith("}text") and value == INK):  # the page's
                yield name, f"var(--{known},{value})" if known else value
        else:
            short = _short(value, digits)
            yield name, _SPACES.sub(r"\1", short).strip() if name == "d" else short


def _short(value: str, digits: int) -> str:
    """Round the numbers in a value."""
    return _NUMBER.sub(lambda found: f"{round(float(found[0]), digits) + 0.0:g}", value)
