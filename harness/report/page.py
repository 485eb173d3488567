"""The report as one HTML file: no script, no network, no picture files; equal documents give equal bytes."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from harness.core.terminal_text import plain
from harness.report.document import Chart, Document, Section

LONGEST_TEXT = 2000  # characters of a rollout
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|us|MB|GiB|GB/s|kB|J|W)\b)")


def page(documents: Sequence[Document], overview: Section | None = None) -> str:
    """Return the page.

    Its security policy lets the browser load nothing, run no script, send no form, and use one style sheet, named by
    its hash: text that got past the escaping could still do nothing.

    Args:
        documents: at least one; of a single one the sections are in the table of contents, of several the titles.
        overview: what stands above them, such as a table of all experiments.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        return value if isinstance(value, Markup) else plain(str(value))

    def svg(chart: Chart, prefix: str) -> Markup:
        from harness.report.svg import page_svg

        return Markup(page_svg(chart.figure, prefix))

    folder = files("harness.report")
    sheet = re.sub(r"/\*.*?\*/|\n\s*", "", (folder / "page.css").read_text(encoding="utf-8"))
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    environment = Environment(
        autoescape=True, finalize=shown, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"prose": _prose, "text": _text, "svg": svg, "kind": lambda item: type(item).__name__}
    template = environment.from_string((folder / "page.html.j2").read_text(encoding="utf-8"))
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return template.render(
        documents=documents, overview=overview, sheet=Markup(sheet), policy=Markup(policy)
    ).lstrip("\n") + "\n"  # fmt: skip


def _prose(sentence: str) -> str:
    """Return a sentence whose numbers stay on one line with their units."""
    return _BEFORE_UNIT.sub("\u00a0", sentence)


def _text(value: str) -> Any:
    """Return generated text with its line breaks, all other control and direction characters written out."""
    from markupsafe import Markup, escape

    cut = value if len(value) <= LONGEST_TEXT else f"{value[: LONGEST_TEXT - 3]}..."
    return Markup("\n").join(escape(plain(line)) for line in cut.split("\n"))
