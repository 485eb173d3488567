"""``python -m harness sweep``: run a sweep, or go on with it where it was stopped."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.core.arguments import from_1

DESCRIPTION = "Run every arm, point and block of a scenario once, or go on where that was stopped."
EXAMPLES = """examples:
  python -m harness sweep learning_rates
  python -m harness sweep learning_rates --status
  python -m harness sweep baselines --set steps=20 --set 'sweep={"seed": [0, 1]}'

Stop it whenever you like (Ctrl-C, a power cut): the same command goes on from there. Points that have a result are not
run again; one that diverged has one. What was cut short is kept in .attempts in the experiment's folder and run again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
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


def run(options: argparse.Namespace) -> int:
    """Run the sweep, or show how it stands; return the exit code."""
    from harness.run.sweep.runner import SweepOptions, run_sweep, show_status
    from harness.scenario import load_scenario

    scenario = load_scenario(options.scenario, options.set)
    if options.status:
        return show_status(scenario, options.out)
    chosen = SweepOptions(options.attempts, options.retry_failed, options.fresh, options.quiet)
    return run_sweep(scenario, options.out, chosen)
