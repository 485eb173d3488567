"""The command ``python -m harness.report PATH... -o report.html [--all]``. Exit codes: 0 fine; 2 bad input."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.core.errors import UserError
from harness.core.terminal_text import plain, plain_lines, silence_output
from harness.report.html.page import make_report

EXAMPLE = "example: python -m harness.report results/reference/sync_k -o report.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report of the runs below the given folders; return the exit code."""
    options = _parser().parse_args(arguments)
    errors = Console(stderr=True)
    try:
        warnings = make_report(options.paths, options.out, everything=options.all or len(options.paths) > 1)
        for warning in warnings:
            errors.print(Text(plain(f"warning: {warning}"), style="yellow"), soft_wrap=True)
        size = options.out.stat().st_size
        print(plain(f"report: {options.out} ({size / 1e3:,.0f} kB)"))
    except UserError as error:
        errors.print(Text(plain_lines(f"error: {error}")), soft_wrap=True)
        return 2
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        silence_output()
    return 0


def _parser() -> argparse.ArgumentParser:
    what = "Make one HTML file of the newest experiment: sentences, verdicts, times, timeline, curves, rollouts."
    parser = argparse.ArgumentParser(prog="python -m harness.report", description=what, epilog=EXAMPLE)
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="results folder, experiment or run folder")
    parser.add_argument(
        "-o", "--out", metavar="FILE", type=Path, default=Path("report.html"), help="default: report.html; is replaced"
    )
    parser.add_argument("--all", action="store_true", help="show every experiment in full, not the newest only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
