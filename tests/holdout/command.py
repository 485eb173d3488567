"""``python -m harness holdout``: from recorded runs to the table."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.text import Text

from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.report.console import Output
from harness.report.text import print_list, print_table
from harness.scenario.yaml_files import read_text
from tests.holdout.document import Document, load_document, rounded, save_document, write_text
from tests.holdout.examining import examine
from tests.holdout.guard import became_worse
from tests.holdout.judging import falls_short
from tests.holdout.picture import save_picture
from tests.holdout.plan import load_plan
from tests.holdout.reading import read_measured
from tests.holdout.tables import around, as_markdown, findings, in_page, tables


def hold_out(options: argparse.Namespace) -> int:
    """Carry out the command; return 0, or 1 where ``--check`` finds an examination that became worse.

    Raises:
        UserError: the plan or the runs cannot be used, or a file cannot be written.
    """
    kept = load_document(options.check) if options.check else None
    _check_files(options)
    document = _examined(options)
    output = Output()
    for table in tables(document):
        print_table(output, table)
    print_list(output, "What the figures say", findings(document))
    print_list(output, "Mind", document.notes)
    if options.out:
        save_document(document, options.out.with_suffix(".json"))
        write_text(options.out, as_markdown(document))
    if options.page:
        write_text(options.page, in_page(read_text(options.page), document))
    if options.picture:
        save_picture(document, options.picture)
    _say_what_falls_short(output, document)
    return _checked(output, document, kept) if kept else 0


def _check_files(options: argparse.Namespace) -> None:
    """Refuse what cannot be written before anything is computed."""
    if options.out and options.out.suffix != ".md":
        raise UserError(f"-o is {str(options.out)!r}, must end in .md", "-o", "-o docs/measured/holdout.md")
    if options.picture and options.picture.suffix != ".png":
        what = f"--picture is {str(options.picture)!r}, must end in .png"
        raise UserError(what, "--picture", "--picture docs/pictures/holdout.png")
    if options.page:
        around(read_text(options.page))


def _examined(options: argparse.Namespace) -> Document:
    plan = load_plan(options.plan)
    measured = read_measured(plan, options.fit, options.held, options.syncs)
    console = Console(stderr=True)
    with console.status("reading runs", spinner="line") as status:
        if options.quiet or not console.is_terminal:
            status.stop()
        document = examine(
            plan, measured, draws=options.draws, seed=options.seed, say=lambda line: status.update(Text(plain(line)))
        )
    return rounded(document)


def _say_what_falls_short(output: Output, document: Document) -> None:
    missed = falls_short(document)
    print_list(output, "What falls short of its bound", missed or ["nothing"])


def _checked(output: Output, document: Document, kept: Document) -> int:
    worse = became_worse(document, kept)
    print_list(output, "Against the examination that is kept", worse or ["nothing became worse"])
    return 1 if worse else 0
