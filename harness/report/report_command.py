"""``python -m harness report``: write the newest experiment as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = "Make one HTML file of the newest experiment: sentences, verdicts, times, timeline, curves, rollouts."
EXAMPLES = "example: python -m harness report results/reference/sync_k -o report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="results folder, experiment or run folder")
    parser.add_argument(
        "-o", "--out", metavar="FILE", type=Path, default=Path("report.html"), help="default: report.html; is replaced"
    )
    parser.add_argument("--all", action="store_true", help="show every experiment in full, not the newest only")


def run(options: argparse.Namespace) -> int:
    """Write the page; return the exit code."""
    from rich.console import Console
    from rich.text import Text

    from harness.core.terminal_text import plain
    from harness.report.html.page import make_report

    errors = Console(stderr=True)
    for warning in make_report(options.paths, options.out, everything=options.all or len(options.paths) > 1).left_out:
        errors.print(Text(plain(f"warning: {warning}"), style="yellow"), soft_wrap=True)
    print(plain(f"report: {options.out} ({options.out.stat().st_size / 1e3:,.0f} kB)"))
    return 0
