"""``python -m harness run``: run a scenario, or go on with a run or an experiment that was stopped."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.atomic_files import check_writable
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.run.commands.arguments import (
    amount_of,
    dry_run_argument,
    output_arguments,
    run_scenario_of,
    scenario_arguments,
    scenario_of_run,
)

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario

AUTO = "auto"
"""In the place of a run's folder: look for it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    scenario_arguments(parser, "?")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--resume",
        metavar="FOLDER",
        help="continue this run from its newest checkpoint, or this experiment with its unfinished runs; the saved "
        "scenario is used if none is named; auto: continue the newest unfinished run of SCENARIO, or begin one",
    )
    dry_run_argument(how)
    output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the scenario; return the exit code."""
    from harness.scenario.load import load_scenario

    if options.resume not in (None, AUTO):
        return _go_on(options)
    if options.scenario is None:
        what = "run needs a SCENARIO, or --resume FOLDER"
        raise UserError(what, fix="name one that `python -m harness list` shows, or the folder of what was stopped")
    scenario = load_scenario(options.scenario, options.set)
    check_writable(options.out)
    return _go_on_or_begin(options, scenario) if options.resume else _begin(options, scenario)


def _begin(options: argparse.Namespace, scenario: Scenario) -> int:
    return run_scenario_of(options)(scenario, options.out, options.quiet)


def _go_on_or_begin(options: argparse.Namespace, scenario: Scenario) -> int:
    from harness.run.experiment import go_on_with
    from harness.run.resume import find_unfinished

    folder, why_not = find_unfinished(options.out, scenario)
    if folder is None:
        print(f"begins a new run of {scenario.name}: {plain(why_not)}", file=sys.stderr)
        return _begin(options, scenario)
    if options.quiet:  # else the line comes with what was found
        print(f"continues {folder}", file=sys.stderr)
    return go_on_with(folder, scenario, options.quiet, amount=amount_of(options))


def _go_on(options: argparse.Namespace) -> int:
    from harness.run.experiment import go_on_with
    from harness.run.sweep.identity import IDENTITY

    folder = Path(options.resume)
    if (folder / IDENTITY).is_file():
        what = "this is a sweep, which is continued by the command that began it"
        raise UserError(
            what, str(folder), f"python -m harness sweep {options.scenario or folder.resolve().parent.name}"
        )
    scenario = scenario_of_run(folder, options.scenario, options.set, f"run SCENARIO --resume {folder}")
    return go_on_with(folder, scenario, options.quiet, amount=amount_of(options))
