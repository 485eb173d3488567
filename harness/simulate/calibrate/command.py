"""One calibration from its arguments to its file and its table."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.report.console import Output
from harness.report.text import print_table
from harness.scenario import Scenario, load_scenario
from harness.simulate.calibrate.fit import calibration
from harness.simulate.calibrate.sources import find_sources
from harness.simulate.calibrate.table import cost_table, fit_table, stage_fits
from harness.simulate.machines import FOLDER, save_machine

SCENARIO = "calibration"
SWEEP = (
    "transport_sweep",
    ("transport_sweep.megabytes=[1,10,50]", "transport_sweep.receivers=[1]", "transport_sweep.repeats=5"),
)
"""A shorter sweep than the scenario's own: transports that no calibration run has."""
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)

RunScenario = Callable[[Scenario, Path, bool], Path]
"""Runs a scenario into a results folder, quietly or not, and returns the experiment's folder."""


def calibrate(options: argparse.Namespace, run: RunScenario | None = None) -> int:
    """Carry out the command.

    Args:
        options: see ``harness.simulate.calibrate.__main__``.
        run: makes the runs where none are named; None takes ``harness.run.command``.

    Returns:
        The exit code, 0.

    Raises:
        UserError: the name or file cannot be used, or the runs cannot be fitted.
    """
    path = _path(options)
    if options.sources and options.set:
        what = "--set changes runs that are measured, and --from names runs that were"
        raise UserError(what, "--set", "leave one of them out")
    sources = options.sources or _measure(options, run or _really_run)
    found = calibration(
        find_sources(sources),
        options.name,
        exclude_models=options.exclude_model,
        description=options.description,
    )
    save_machine(found.profile, path)
    output = Output()
    print_table(output, cost_table(found.profile))
    print_table(output, fit_table(found.profile, stage_fits(found.profile, found.observations)))
    print(f"\nprofile: {plain(str(path))}")
    return 0


def _path(options: argparse.Namespace) -> Path:
    """Return where the profile goes.

    Raises:
        UserError: the name is none, or a profile is there already.
    """
    if not _NAME.fullmatch(options.name):
        what = f"--name is {options.name!r}, must be letters, digits and . _ + - only, a letter or digit first"
        raise UserError(what, "--name", "--name my-machine")
    path: Path = options.out or Path(FOLDER) / f"{options.name}.yaml"
    if path.exists() and not options.force:
        raise UserError(
            f"{path} is there already", str(path), "replace it with --force, or take another --name or --out"
        )
    return path


def _measure(options: argparse.Namespace, run: RunScenario) -> list[Path]:
    sweep, settings = SWEEP
    scenarios = [load_scenario(SCENARIO, options.set), load_scenario(sweep, settings)]
    return [run(scenario, options.results, options.quiet) for scenario in scenarios]


def _really_run(scenario: Scenario, out: Path, quiet: bool) -> Path:
    from harness.run.command import run_command

    folders: list[Path] = []
    run_command(scenario, out, quiet, show=folders.append)
    return folders[-1]
