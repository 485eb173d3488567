"""A document as Markdown, to be pasted."""

from __future__ import annotations

from collections.abc import Sequence

from harness.compare.remarks import Remark
from harness.core.terminal_text import plain
from harness.report.document import Chart, Document, Table


def markdown(document: Document, full: bool = False) -> str:
    """Return what an experiment says: the answer and its first table.

    Args:
        full: every section's sentences and tables, those behind charts too.
    """
    parts = [f"## {escaped(document.title)}", *(escaped(remark.text) for remark in document.answer)]
    for section in document.sections if full else document.sections[:1]:
        tables = [item.table if isinstance(item, Chart) else item for item in section.items]
        parts += [markdown_table(item) for item in tables if isinstance(item, Table)]
        remarks = [item for item in section.items if isinstance(item, Remark)]
        lines = [line for item in remarks for line in (escaped(item.text), _code(item.command)) if line]
        parts += ["\n".join(f"- {line}" for line in lines)] if lines else []
    return "\n\n".join([*parts, escaped(document.origin)]) + "\n"


def markdown_table(table: Table) -> str:
    """Return a table as Markdown, its notes below it."""
    lines = [f"**{escaped(table.title)}**", ""] if table.title else []
    lines.append(_row(table.header))
    rules = (" --- " if place < table.words else " ---: " for place in range(len(table.header)))
    lines.append(f"|{'|'.join(rules)}|")
    lines += [_row(row) for row in table.rows]
    return "\n".join([*lines, *(f"\n{escaped(note)}" for note in table.notes)])


def _code(command: str) -> str:
    return f"`{plain(command).replace('`', '')}`" if command else ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(escaped(cell).split()) for cell in cells) + " |"


def escaped(text: str) -> str:
    """Return text in which nothing is Markdown."""
    shown = plain(text)
    for character in "\\`*_<>[]|":
        shown = shown.replace(character, "\\" + character)
    return shown
