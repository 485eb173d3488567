"""``python -m harness sweep``: run a sweep, or go on with it where it was stopped."""

from __future__ import annotations

import argparse
from functools import partial

from harness.core.arguments import from_1, set_argument
from harness.core.atomic_files import check_writable
from harness.run.commands.arguments import amount_of, dry_run_argument, output_arguments

DESCRIPTION = "Run every arm, point and block of a scenario once, or continue where it was stopped."
EXAMPLES = """examples:
  python -m harness sweep learning_rates
  python -m harness sweep learning_rates --status
  python -m harness sweep baselines --set steps=20 --set 'sweep={"seed": [0, 1]}'

It can be stopped at any time (Ctrl-C, a power cut); the same command continues. Points that have a result are not run
again; one that diverged has one. Points that were cut short are kept in .attempts in the experiment's folder and run
again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("scenario", metavar="SCENARIO", help="a YAML file, or a name that `list` shows")
    set_argument(parser, "; another value is another sweep")
    output_arguments(parser)
    how = parser.add_mutually_exclusive_group()
    dry_run_argument(how)
    how.add_argument("--status", action="store_true", help="show the state of each point, and run nothing")
    parser.add_argument(
        "--attempts",
        type=from_1,
        default=3,
        metavar="N",
        help="greatest number of starts of a point that fails (default: 3)",
    )
    parser.add_argument("--retry-failed", action="store_true", help="give points that failed too often new attempts")
    parser.add_argument("--fresh", action="store_true", help="begin a new experiment; the old one stays as it is")


def run(options: argparse.Namespace) -> int:
    """Run the sweep, or show how it stands; return the exit code."""
    from harness.scenario.load import load_scenario

    scenario = load_scenario(options.scenario, options.set)
    if options.dry_run:
        check_writable(options.out)
        code: int = options.run_scenario(scenario, options.out, options.quiet)
        return code
    from harness.run.experiment import show_results
    from harness.run.sweep.runner import SweepOptions, run_sweep, show_status

    if options.status:
        return show_status(scenario, options.out, options.json)
    chosen = SweepOptions(options.attempts, options.retry_failed, options.fresh, options.quiet)
    return run_sweep(scenario, options.out, chosen, show=partial(show_results, amount=amount_of(options)))
