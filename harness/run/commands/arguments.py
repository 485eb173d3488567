"""Arguments that several of these commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.core.arguments import set_argument

if TYPE_CHECKING:
    from harness.scenario import Scenario

RunScenario = Callable[["Scenario", Path, bool], int]
"""Runs a checked scenario into a results folder; the last argument is whether to keep quiet."""


def scenario_arguments(parser: argparse.ArgumentParser, nargs: Literal["?"] | None = None) -> None:
    """Add the scenario and its changes; it may be left out with ``nargs`` "?"."""
    parser.add_argument(
        "scenario", metavar="SCENARIO", nargs=nargs, help="a YAML file, or a name from `python -m harness list`"
    )
    set_argument(parser)


def output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where results go and how much is shown."""
    parser.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="results folder (default: results)"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--quiet", action="store_true", help="no progress, only the final table and errors")
    shown.add_argument(
        *("-v", "--verbose"),
        action="store_true",
        help="print the runs' logs: training steps, versions, some rollouts; and every table at the end",
    )


def run_scenario_of(options: argparse.Namespace) -> RunScenario:
    """Return what runs the scenario: what ``cli.main`` was given, else the real one."""
    if options.run_scenario is not None:
        given: RunScenario = options.run_scenario
        return given
    from harness.run.experiment import run_scenario

    return partial(run_scenario, verbose=options.verbose)
