"""``make holdout``. Exit codes: 0 fine; 1 it became worse than the examination that is kept; 2 bad input."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cli import carry_out
from harness.core.atomic_files import whole_file
from harness.report.console import Output
from harness.report.terminal import print_list, print_table
from tests.holdout.evaluate import evaluate
from tests.holdout.plan import load_plan, read_measured
from tests.holdout.report import CAVEATS, as_markdown, in_page, tables
from tests.holdout.summary import load_document
from tests.holdout.verdicts import became_worse, falls_short

EXAMPLES = """examples:
  make holdout                  # writes the tables in docs/ again
  make holdout ARGS=--check     # writes nothing
  python -m tests.holdout --runs results --docs /tmp/mine
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line; return the exit code."""
    return carry_out(lambda: _examine(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.holdout",
        description="Fit the stage costs to recorded runs, predict runs that were held out, show how far off that is.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    places = (
        ("--runs", Path("tests/data/simulator"), "with a folder for each scenario of the plan"),
        ("--docs", Path("docs"), "where measured/holdout.md and .json, and simulator.md are"),
    )
    for option, default, meaning in places:
        parser.add_argument(option, type=Path, default=default, metavar="DIR", help=f"{meaning} (default: {default})")
    parser.add_argument("--check", action="store_true", help="write nothing")
    return parser


def _examine(options: argparse.Namespace) -> int:
    plan = load_plan()
    measured = read_measured(plan, options.runs)
    saved = options.docs / "measured" / "holdout.json"
    kept = load_document(saved) if saved.exists() else None
    print(f"predicting {len(measured.runs)} runs, which takes a minute or two", file=sys.stderr)
    document = evaluate(plan, measured)
    output = Output()
    for table in tables(document):
        print_table(output, table)
    print_list(output, "Caveats", CAVEATS)
    print_list(output, "What falls short of its bound", falls_short(document) or ["nothing"])
    worse = became_worse(document, kept) if kept else []
    print_list(output, "What became worse than the examination that is kept", worse or ["nothing"])
    if not options.check:
        saved.parent.mkdir(parents=True, exist_ok=True)
        _write(saved, document.as_json())
        _write(saved.with_suffix(".md"), as_markdown(document))
        page = options.docs / "simulator.md"
        if page.exists():
            _write(page, in_page(page.read_text(), document))
    return 1 if worse else 0


def _write(path: Path, text: str) -> None:
    with whole_file(path) as stream:
        stream.write(text.encode())


if __name__ == "__main__":
    sys.exit(main())
