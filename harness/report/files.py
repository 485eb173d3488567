"""Documents as files: one HTML page without script, network or other files, and a PNG for each chart.

Equal documents give equal bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from harness.compare.experiment import Experiment
from harness.compare.remarks import Remark
from harness.core.atomic_files import check_replaceable, whole_file
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.report.build import charts_of
from harness.report.canvas import save
from harness.report.document import Chart, Document, Item, Section
from harness.report.tables import overview_table
from harness.results.anonymous import safe_name

MOST_NAMED_PARTS = 3
"""Of a run's folder: scenario, experiment, run."""
LONGEST_TEXT = 2000
"""Characters of a rollout."""
_TITLE = b"<title>Report: "
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|us|MB|GiB|GB/s|kB|J|W)\b)")


def write_page(
    out: Path, documents: Sequence[Document], left_out: Sequence[str] = (), overview: Sequence[Experiment] = ()
) -> None:
    """Write the page of the documents, at least one.

    Args:
        out: the file; replaced as a whole, or left as it was where something fails.
        left_out: sentences on runs that could not be read.
        overview: experiments of a table at the top, where there are several.

    Raises:
        UserError: ``out`` cannot be written, or is a file that is no page of ours.
    """
    check_replaceable(out, "report", is_page)
    documents = [_without_folders(each) for each in documents]
    table = [overview_table(overview)] if len(overview) > 1 else []
    items: list[Item] = [*(Remark("left_out", sentence, "cautions") for sentence in left_out), *table]
    text = page(documents, Section("overview", "Experiments", tuple(items), folded=not left_out) if items else None)
    try:
        with whole_file(out) as stream:
            stream.write(text.encode())
    except OSError as error:
        what = f"cannot write the report to {str(out)!r}: {error.strerror or error}"
        raise UserError(what, where=str(out), fix="name another file with -o FILE") from error


def _without_folders(document: Document) -> Document:
    """Leave out of what is to be typed the folders above a results folder elsewhere: a page names nobody's home."""

    def shortened(item: Item) -> Item:
        if not isinstance(item, Remark) or item.key != "whatif":
            return item
        words = [
            str(Path("...", *Path(word).parts[-MOST_NAMED_PARTS:])) if word.startswith("/") else word
            for word in shlex.split(item.command)
        ]
        return replace(item, command=shlex.join(words))

    sections = (replace(each, items=tuple(map(shortened, each.items))) for each in document.sections)
    return replace(document, sections=tuple(sections))


def is_page(path: Path) -> bool:
    """Whether a file is a page of ours."""
    try:
        with path.open("rb") as stream:
            head = stream.read(2000)
    except OSError:
        return False
    return head.startswith(b"<!doctype html>") and _TITLE in head


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


def save_charts(document: Document, folder: Path) -> list[Path]:
    """Write each chart of a document as a PNG; the same data give the same file.

    Args:
        folder: made if needed; files of the same names are replaced.

    Raises:
        UserError: the folder cannot be written to.
    """
    try:
        return [save(chart.figure, folder / f"{safe_name(chart.key)}.png") for chart in charts_of(document)]
    except OSError as error:
        what = f"cannot write pictures to {str(folder)!r}: {error.strerror or error}"
        raise UserError(what, where=str(folder), fix="name another folder with --plots DIR") from error
