"""Arguments that several of these commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.core.arguments import json_argument, out_argument, quiet_argument, set_argument
from harness.core.errors import UserError

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario

RunScenario = Callable[["Scenario", Path, bool], int]
"""Runs a checked scenario into a results folder; the last argument is whether to keep quiet."""


def scenario_arguments(parser: argparse.ArgumentParser, nargs: Literal["*", "?"]) -> None:
    """Add the scenario, one ("?") or several ("*"), which may be none, and its changes."""
    about = "a YAML file, or a name that `list` shows"
    if nargs == "?":
        parser.add_argument("scenario", metavar="SCENARIO", nargs=nargs, help=about)
    else:
        more = "; of several the first is the baseline, and the others are compared with it"
        parser.add_argument("scenarios", metavar="SCENARIO", nargs=nargs, help=about + more)
    set_argument(parser)


def scenario_of_run(
    folder: Path, named: str | None, overrides: Sequence[str], naming: str, file: str = "scenario.resolved.yaml"
) -> Scenario:
    """Return the scenario of a run: the one that it saved, where none is named; ``naming`` is how to type that.

    Raises:
        UserError: it cannot be loaded, or the saved one lacks folders that the run's files were in.
    """
    from harness.results.anonymous import HIDDEN
    from harness.scenario.load import load_scenario

    saved = folder / file
    if named is None and saved.is_file() and HIDDEN in saved.read_text():
        what = "the scenario that the run saved has paths without their folders"
        raise UserError(
            what,
            str(saved),
            f"name the scenario: {naming}; or where commands were recorded: record --resume {folder} -- COMMANDS",
        )
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
