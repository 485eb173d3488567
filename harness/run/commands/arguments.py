"""Arguments that several of these commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.core.arguments import json_argument, out_argument, quiet_argument, set_argument
from harness.core.errors import UserError

if TYPE_CHECKING:
    from harness.run.experiment import Amount
    from harness.scenario.schema import Scenario

RunScenario = Callable[["Scenario", Path, bool], int]
"""Runs a checked scenario into a results folder; the last argument is whether to keep quiet."""


def scenario_arguments(parser: argparse.ArgumentParser, nargs: Literal["?"] | None = None) -> None:
    """Add the scenario and its changes; it may be left out with ``nargs`` "?"."""
    parser.add_argument("scenario", metavar="SCENARIO", nargs=nargs, help="a YAML file, or a name that `list` shows")
    set_argument(parser)


def scenario_of_run(folder: Path, named: str | None, overrides: Sequence[str], naming: str) -> Scenario:
    """Return the scenario of a run: the one that it saved, where none is named; ``naming`` is how to type that.

    Raises:
        UserError: it cannot be loaded, or the saved one lacks folders that the run's files were in.
    """
    from harness.results.anonymous import HIDDEN
    from harness.results.writer import SCENARIO
    from harness.scenario.load import load_scenario

    saved = folder / SCENARIO
    if named is None and saved.is_file() and HIDDEN in saved.read_text():
        what = "the scenario that the run saved has paths without their folders"
        raise UserError(what, str(saved), f"name the scenario: {naming}")
    return load_scenario(saved if named is None else named, overrides)


def output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where results go and how much is shown."""
    out_argument(parser, Path("results"), "results folder (default: results)")
    shown = parser.add_mutually_exclusive_group()
    quiet_argument(shown, "with the result and its page")
    json_argument(shown)
    shown.add_argument(
        *("-v", "--verbose"),
        action="store_true",
        help="print the runs' logs: training steps, versions, some rollouts; and every table at the end",
    )


def dry_run_argument(parser: argparse._ActionsContainer) -> None:
    """Add ``--dry-run``, which the command line answers by giving the command another ``run_scenario``."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="start nothing: print what would run, for how long by earlier runs on this machine, and what is missing",
    )


def amount_of(options: argparse.Namespace) -> Amount:
    """Return how much of the results is shown at the end."""
    if options.json:
        return "json"
    return "line" if options.quiet else "everything" if options.verbose else "brief"


def run_scenario_of(options: argparse.Namespace) -> RunScenario:
    """Return what runs the scenario: what ``cli.main`` was given, else the real one."""
    if options.run_scenario is not None:
        given: RunScenario = options.run_scenario
        return given
    from harness.run.experiment import run_scenario

    return partial(run_scenario, amount=amount_of(options))
