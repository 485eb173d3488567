"""Building HTML and SVG, and the pieces that every section uses: headings, tables, figures, legends, lists.

Text is escaped here and nowhere else: what is no ``Markup`` is text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from harness.compare.experiments import Experiment
from harness.compare.tables import Table, marked
from harness.core.terminal_text import plain
from harness.core.trace import Stage
from harness.report.html.theme import MARKER_PATHS, marker_id, stage_class, variant_class

Attribute = str | float | bool | None
_VOID = frozenset({"meta", "br", "col"})
_SHAPES = frozenset({"circle", "line", "path", "rect", "use"})  # closed at once where nothing is in them


class Markup(str):
    """HTML that is ready to be put into a page. Made by ``element``, ``text`` and ``join`` only."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Return text as HTML: escaped, on one line, control and direction characters written out."""
    return Markup(html.escape(plain(value)))


def lines(value: str, limit: int) -> Markup:
    """Return text as HTML, its line breaks kept, cut to ``limit`` characters; for generated text inside ``pre``."""
    cut = value if len(value) <= limit else value[: limit - 3] + "..."
    return Markup("\n".join(text(line) for line in cut.split("\n")))


def join(*children: Markup | str | Iterable[Markup | str | None] | None) -> Markup:
    """Return the children one after the other; text among them is escaped, None left out."""
    return Markup("".join(_flat(children)))


def element(
    tag: str, /, *children: Markup | str | Iterable[Markup | str | None] | None, **attributes: Attribute
) -> Markup:
    """Return an element.

    Args:
        attributes: ``class_`` is ``class``, ``aria_label`` is ``aria-label``. None and False leave one out, True writes
            its name alone; numbers are written with at most three decimals.
    """
    head = tag + "".join(_attributes(attributes))
    if tag in _VOID:
        return Markup(f"<{head}>")
    inside = join(*children)
    if tag in _SHAPES and not inside:
        return Markup(f"<{head}/>")
    return Markup(f"<{head}>{inside}</{tag}>")


def short(value: float) -> str:
    """Write a coordinate: at most three decimals, no zeros at the end, never a minus zero."""
    written = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if written in ("-0", "") else written


def share(fraction: float) -> str:
    """Write a coordinate as a share of the width: ``12.5%``."""
    return f"{short(100 * fraction)}%"


def _attributes(attributes: dict[str, Attribute]) -> Iterable[str]:
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        name = key.rstrip("_").replace("_", "-")
        if value is True:
            yield f" {name}"
        else:
            written = plain(value) if isinstance(value, str) else short(value)
            yield f' {name}="{html.escape(written)}"'


def _flat(children: Iterable[Markup | str | Iterable[Markup | str | None] | None]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, str):
            yield text(child)
        else:
            yield from _flat(child)


_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|us|MB|GiB|GB/s|kB|J|W)\b)")


def section(anchor: str, title: str, *children: Markup | None) -> Markup | None:
    """Return a section with its heading; None where it would be empty."""
    shown = [child for child in children if child]
    if not shown:
        return None
    heading = element("h3", title, id=f"{anchor}-title")
    return element("section", heading, shown, id=anchor, aria_labelledby=f"{anchor}-title")


def note(sentence: str) -> Markup:
    """Return a sentence in small type."""
    return element("p", prose(sentence), class_="note")


def prose(sentence: str) -> str:
    """Return a sentence whose numbers stay on one line with their units."""
    return _BEFORE_UNIT.sub("\u00a0", sentence)


def bullets(sentences: Iterable[str], class_: str | None = None) -> Markup | None:
    """Return sentences as a list; None where there are none."""
    items = [element("li", prose(sentence)) for sentence in sentences]
    return element("ul", items, class_=class_) if items else None


def table(data: Table, caption: bool = True) -> Markup:
    """Return a table that scrolls sideways on its own where it is too wide, with its notes below."""
    head = element("tr", [_head_cell(name, column < data.words) for column, name in enumerate(data.header)])
    body = [element("tr", [_cell(cell, column, data.words) for column, cell in enumerate(row)]) for row in data.rows]
    title = element("caption", data.title) if caption else None
    inner = element("table", title, element("thead", head), element("tbody", body))
    return join(scroll(inner, data.title), [note(sentence) for sentence in data.notes])


def tables(found: Iterable[Table | None], experiment: Experiment) -> list[Markup]:
    """Return an experiment's tables, those that there are; their titles say so where its runs were simulated."""
    return [table(data) for data in marked([data for data in found if data is not None], experiment)]


def scroll(inner: Markup, label: str) -> Markup:
    """Return a box that scrolls sideways, by keyboard too."""
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=label)


def details(summary: str, *children: Markup | None, class_: str | None = None) -> Markup:
    """Return something to open."""
    return element("details", element("summary", summary), children, class_=class_)


def figure(title: str, sentence: str, drawing: Markup, *below: Markup | None, legend: Markup | None = None) -> Markup:
    """Return a drawing under its title, with a computed sentence that says what it shows.

    Args:
        below: such as the table with the figures behind the drawing.
    """
    caption = element("figcaption", element("strong", title), " ", element("span", prose(sentence), class_="says"))
    return element("figure", caption, legend, drawing, below)


def stage_legend(stages: Iterable[Stage], extra: Sequence[tuple[str, str]] = ()) -> Markup:
    """Return what the colours of the bars mean.

    Args:
        extra: further (class, name) pairs; ``#id`` instead of a class shows that mark.
    """
    seen = set(stages)
    named = [(stage_class(stage), stage.value) for stage in Stage if stage in seen and not stage.is_wait]
    named += [("wait", "waiting")] if any(stage.is_wait for stage in seen) else []
    items = [element("li", _swatch(class_), name) for class_, name in [*named, *extra]]
    return element("ul", items, class_="legend", aria_label="Legend")


def variant_legend(names: Sequence[str]) -> Markup | None:
    """Return which line is whose: colour and marker of each variant; None for a single one."""
    if len(names) < 2:
        return None
    items = [element("li", _line_key(index), name) for index, name in enumerate(names)]
    return element("ul", items, class_="legend", aria_label="Legend")


def _swatch(class_: str) -> Markup:
    box = element("rect", width=14, height=14, rx=2, class_=class_)
    if class_.startswith("#"):
        box = element("use", href=class_, x=7, y=9, class_="version")
    return element("svg", box, width=14, height=14, class_="swatch", aria_hidden="true")


def _line_key(index: int) -> Markup:
    parts = [
        element("line", x1=0, y1=7, x2=26, y2=7, class_="line"),
        element("use", href=f"#{marker_id(index)}", x=13, y=7, class_="mark"),
    ]
    return element("svg", parts, width=26, height=14, class_=f"swatch {variant_class(index)}", aria_hidden="true")


def _head_cell(name: str, is_word: bool) -> Markup:
    return element("th", name, scope="col", class_=None if is_word else "n")


def _cell(cell: str, column: int, words: int) -> Markup:
    shown = text(cell.strip()) if column else text(cell)
    if column == 0:
        return element("th", shown, scope="row")
    return element("td", shown, class_=None if column < words else "n")


def definitions() -> Markup:
    """Return the invisible drawing that holds markers and hatches for the whole page."""
    markers = [element("path", id=f"m{index}", d=path) for index, path in enumerate(MARKER_PATHS)]
    version = element("path", id="version-mark", d="M-4-4H4L0 3Z")
    wait = _hatch("hatch-wait", "wait-ground", "wait-line", "M-1 7L7-1M-1 1L1-1M5 7L7 5")
    verify = _hatch("hatch-verify", "verify-ground", "verify-line", "M0 0L6 6M6 0L0 6")
    return element(
        "svg",
        element("defs", markers, version, wait, verify),
        width=0,
        height=0,
        class_="definitions",
        aria_hidden="true",
    )


def _hatch(name: str, ground: str, line: str, path: str) -> Markup:
    inside = join(element("rect", width=6, height=6, class_=ground), element("path", d=path, class_=line))
    return element("pattern", inside, id=name, width=6, height=6, patternUnits="userSpaceOnUse")
