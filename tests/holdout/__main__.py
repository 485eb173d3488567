"""The command ``python -m harness holdout``. Exit codes: 0 fine; 1 ``--check`` found it worse; 2 bad input."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.core.arguments import from_1

EXAMPLE = """examples:
  python -m harness holdout
  python -m harness holdout -o docs/measured/holdout.md --page docs/simulator.md --picture docs/pictures/holdout.png
  python -m harness holdout --check docs/measured/holdout.json

It fits the stage costs to recorded runs, predicts runs that were held out, and shows how far off it is.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line; return the exit code. ``harness.cli`` tells what is raised."""
    options = _parser().parse_args(arguments)
    from tests.holdout.command import hold_out

    return hold_out(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness holdout",
        description="Examine the simulator on runs that it has not seen.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    reference = Path("results/reference/simulator")
    folders = (
        ("--fit", reference / "calibration", "runs that are fitted"),
        ("--held", reference / "holdout", "runs that are predicted"),
        ("--syncs", reference / "transport_sweep", "weight syncs alone, for transports that no fitted run has"),
    )
    parser.add_argument("--plan", default="holdout", metavar="PLAN", help="what is examined (default: holdout)")
    for option, default, meaning in folders:
        parser.add_argument(option, type=Path, default=default, metavar="DIR", help=f"{meaning} (default: {default})")
    parser.add_argument("--draws", type=from_1, default=39, metavar="N", help="of each forecast (default: 39)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (default: 0)")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE.md", help="write the tables there, and FILE.json beside"
    )
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="put the tiers between the marks of this page")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw it")
    parser.add_argument(
        "--check", type=Path, metavar="FILE.json", help="exit with 1 if it became worse than this examination"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only the tables and errors")
    return parser


if __name__ == "__main__":
    sys.exit("type: python -m harness holdout")
