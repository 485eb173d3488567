"""``python -m harness run``: run a scenario."""

from __future__ import annotations

import argparse

from harness.core.atomic_files import check_writable
from harness.run.commands.arguments import output_arguments, run_scenario_of, scenario_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    scenario_arguments(parser)
    output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the scenario; return the exit code."""
    from harness.scenario import load_scenario

    scenario = load_scenario(options.scenario, options.set)
    check_writable(options.out)
    return run_scenario_of(options)(scenario, options.out, options.quiet)
