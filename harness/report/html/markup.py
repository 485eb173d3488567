"""Building HTML and SVG. Text is escaped here and nowhere else: what is no ``Markup`` is text."""

from __future__ import annotations

import html
from collections.abc import Iterable

from harness.core.terminal_text import plain

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
