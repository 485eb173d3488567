"""The command ``python -m harness calibrate``: see ``--help``. Exit codes: those of ``harness.cli``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

EXAMPLE = """examples:
  python -m harness calibrate --name my-machine
  python -m harness calibrate --name my-machine --from results/calibration results/transport_sweep
  python -m harness calibrate --name no-course --from results/calibration --exclude-model course --out no-course.yaml

Without --from the runs of scenarios/calibration.yaml are made first, and a short transport sweep (about ten minutes on
two cores; leave the machine alone meanwhile); their results stay. docs/calibrating.md says what the profile holds.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line; return the exit code."""
    options = _parser().parse_args(sys.argv[1:] if arguments is None else list(arguments))
    from harness.simulate.calibrate.command import calibrate

    return calibrate(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness calibrate",
        description="Learn what the stages of a training step cost on a machine, and write its profile.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--name", default="my-machine", help="of the profile (default: my-machine)")
    parser.add_argument(
        "--from",
        dest="sources",
        type=Path,
        nargs="+",
        default=[],
        metavar="RESULTS",
        help="folders with runs to fit instead of measuring: calibration runs, transport sweeps",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: profiles/machines/NAME.yaml")
    parser.add_argument(
        "--exclude-model",
        action="append",
        default=[],
        metavar="M",
        help="leave out runs of this model; may be repeated",
    )
    parser.add_argument("--description", default="", metavar="TEXT", help="a line about the machine")
    parser.add_argument("--force", action="store_true", help="replace a profile that is there already")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="where measured runs go (default: results)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of the measured runs"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


if __name__ == "__main__":
    sys.exit("type: python -m harness calibrate")
