"""The document around the sections, and what it may do: show itself, and nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from harness.report.html.looks import definitions
from harness.report.html.markup import Markup, element, join
from harness.report.html.stylesheet import stylesheet

Entry = tuple[str, str]
"""(anchor, name) of a line in the table of contents."""


def document(title: str, head: Markup, contents: Sequence[Entry], body: Sequence[Markup]) -> str:
    """Return the whole page.

    Its security policy lets the browser load nothing from anywhere, run no script, send no form, and use one style
    sheet, named by its hash: so text that got past the escaping could still do nothing.

    Args:
        head: what stands above the table of contents.
        body: the articles.
    """
    style = stylesheet()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    about = [
        element("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        Markup(f"<style>{style}</style>"),
    ]
    shown = element(
        "div",
        element("header", head, _contents(contents)),
        element("main", body, id="content"),
        element("footer", element("p", "Made from the files of the runs alone; the same files give the same page.")),
        class_="frame",
    )
    skip = element("a", "Skip to the content", href="#content", class_="skip")
    page = element("html", element("head", about), element("body", skip, definitions(), shown), lang="en")
    return "<!doctype html>\n" + join(page) + "\n"


def _contents(entries: Sequence[Entry]) -> Markup | None:
    if not entries:
        return None
    items = [element("li", element("a", name, href=f"#{anchor}")) for anchor, name in entries]
    return element("nav", element("p", "On this page", class_="title"), element("ol", items), aria_label="On this page")
