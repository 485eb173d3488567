"""``python -m harness report``: write the newest experiment as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.core.arguments import file_argument
from harness.core.atomic_files import check_replaceable

DESCRIPTION = "Make one HTML file of the newest experiment: sentences, verdicts, times, timeline, curves, rollouts."
EXAMPLES = "example: python -m harness report results/reference/sync_k -o report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="results folder, experiment or run folder")
    file_argument(parser, Path("report.html"), "default: report.html; an earlier report there is replaced")
    parser.add_argument("--all", action="store_true", help="show every experiment in full, not only the newest")


def run(options: argparse.Namespace) -> int:
    """Write the page; return the exit code.

    Raises:
        UserError: the page cannot be written, which is said before any run is read; or no run can be read.
    """
    from harness.compare.experiment import gather, gather_newest
    from harness.compare.judging import judgements
    from harness.core.terminal_text import plain
    from harness.report.build import document
    from harness.report.console import file_size, warn_of_left_out
    from harness.report.files import is_page, write_page

    check_replaceable(options.output, "report", is_page)
    replaced = options.output.exists()
    if options.all or len(options.paths) > 1:
        experiments, damaged = gather(options.paths)
        shown = experiments[::-1]
    else:
        experiments, newest, damaged = gather_newest(options.paths)
        shown = [newest]
    documents = [document(experiment, judgements(experiment)) for experiment in shown]
    told = [f"{item.folder.name}: {item.error.what.replace(f'{item.folder}/', '')}" for item in damaged]
    write_page(options.output, documents, told, experiments)
    warn_of_left_out(damaged, options.paths)
    size = file_size(options.output.stat().st_size)
    print(plain(f"report: {options.output} ({size}{', in place of an earlier one' if replaced else ''})"))
    return 0
