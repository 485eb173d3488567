"""``python -m harness run``: run a scenario, or go on with a run that was stopped."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.core.atomic_files import check_writable
from harness.core.errors import UserError
from harness.run.commands.arguments import output_arguments, run_scenario_of, scenario_arguments, scenario_of_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    scenario_arguments(parser, "?")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN_FOLDER",
        help="go on with this run from its newest checkpoint, by its own scenario where none is named",
    )
    output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the scenario; return the exit code."""
    from harness.scenario import load_scenario

    if options.resume is not None:
        return _go_on(options)
    if options.scenario is None:
        what = "the following arguments are required: SCENARIO, or --resume RUN_FOLDER"
        raise UserError(what, fix="name one that `python -m harness list` shows, or the folder of a stopped run")
    scenario = load_scenario(options.scenario, options.set)
    check_writable(options.out)
    return run_scenario_of(options)(scenario, options.out, options.quiet)


def _go_on(options: argparse.Namespace) -> int:
    from harness.run.experiment import run_scenario
    from harness.run.resume import find_resume

    folder: Path = options.resume
    scenario = scenario_of_run(folder, options.scenario, options.set, f"run SCENARIO --resume {folder}")
    resume = find_resume(folder, scenario)
    for refused in resume.refused:
        print(f"warning: checkpoint {refused}", file=sys.stderr)
    if resume.refused or not options.quiet:
        print(f"goes on from {resume.checkpoint.folder}", file=sys.stderr)
    return run_scenario(scenario, folder.parent.parent, options.quiet, verbose=options.verbose, resume=resume)
