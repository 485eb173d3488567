"""The command ``python -m harness sweep``: see ``--help``. Exit codes: those of ``harness.cli``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.core.arguments import from_1

EXAMPLE = """examples:
  python -m harness sweep learning_rates
  python -m harness sweep learning_rates --status
  python -m harness sweep baselines --set steps=20 --set 'sweep={"seed": [0, 1]}'

Stop it whenever you like (Ctrl-C, a power cut): the same command goes on from there. Points that have a result are not
run again; one that diverged has one. What was cut short is kept in .attempts in the experiment's folder and run again.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line; return the exit code."""
    options = _parser().parse_args(sys.argv[1:] if arguments is None else list(arguments))
    from harness.scenario import load_scenario

    scenario = load_scenario(options.scenario, options.set)
    from harness.run.sweep.runner import SweepOptions, run_sweep, show_status

    if options.status:
        return show_status(scenario, options.out)
    chosen = SweepOptions(options.attempts, options.retry_failed, options.fresh, options.quiet)
    return run_sweep(scenario, options.out, chosen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness sweep",
        description="Run every arm, point and block of a scenario once, or go on where that was stopped.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("scenario", metavar="SCENARIO", help="a YAML file, or a name from `python -m harness list`")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting: dotted key, YAML value; may be repeated; another value is another sweep",
    )
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    parser.add_argument("--status", action="store_true", help="show what became of each point, and run nothing")
    parser.add_argument(
        "--attempts", type=from_1, default=3, metavar="N", help="starts of a point that fails, in all (default: 3)"
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="give points that failed too often as many attempts again"
    )
    parser.add_argument("--fresh", action="store_true", help="begin a new experiment; the old one stays as it is")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the comparison and errors")
    return parser


if __name__ == "__main__":
    sys.exit("type: python -m harness sweep SCENARIO")
