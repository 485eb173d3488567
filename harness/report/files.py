"""Documents as files: one HTML page, and a PNG for each chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.compare.experiment import Experiment
from harness.compare.remarks import Remark
from harness.core.atomic_files import check_replaceable, whole_file
from harness.core.errors import UserError
from harness.report.build import charts_of
from harness.report.canvas import save
from harness.report.document import Document, Item, Section
from harness.report.page import page
from harness.report.tables import overview_table
from harness.results.anonymous import safe_name

_TITLE = b"<title>Report: "


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
    table = [overview_table(overview)] if len(overview) > 1 else []
    items: list[Item] = [*(Remark("left_out", sentence, "cautions") for sentence in left_out), *table]
    text = page(documents, Section("overview", "Experiments", tuple(items), folded=not left_out) if items else None)
    try:
        with whole_file(out) as stream:
            stream.write(text.encode())
    except OSError as error:
        what = f"cannot write the report to {str(out)!r}: {error.strerror or error}"
        raise UserError(what, where=str(out), fix="name another file with -o FILE") from error


def is_page(path: Path) -> bool:
    """Whether a file is a page of ours."""
    try:
        with path.open("rb") as stream:
            head = stream.read(2000)
    except OSError:
        return False
    return head.startswith(b"<!doctype html>") and _TITLE in head


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
