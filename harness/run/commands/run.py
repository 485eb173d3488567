"""``python -m harness run``: run scenarios, or go on with a run, an experiment or a sweep that was stopped.

``bench`` and ``sweep`` are short names: ``bench`` makes blocks of what it is given, ``sweep`` tries each run by itself
until it is there.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.arguments import from_1
from harness.core.atomic_files import check_writable
from harness.core.errors import UserError
from harness.core.named_files import SCENARIOS
from harness.core.terminal_text import plain
from harness.run.commands.arguments import RunScenario, output_arguments, scenario_arguments, scenario_of_run

if TYPE_CHECKING:
    from harness.run.engine import Tries
    from harness.run.experiment import Amount
    from harness.scenario.schema import Scenario

AUTO = "auto"
"""In the place of a run's folder: look for it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    scenario_arguments(parser, "*")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--resume",
        metavar="FOLDER",
        help="continue this run from its newest checkpoint, or this experiment with its unfinished runs; the saved "
        "scenario is used if none is named; auto: continue the newest unfinished run of SCENARIO, or begin one",
    )
    how.add_argument(
        "--dry-run",
        action="store_true",
        help="start nothing: print what would run, for how long by earlier runs on this machine, and what is missing",
    )
    how.add_argument("--status", action="store_true", help="show the state of each run of a sweep, and run nothing")
    output_arguments(parser)
    blocks = parser.add_argument_group("for a verdict (bench)")
    blocks.add_argument(
        "--blocks", type=int, metavar="N", help="greatest number of blocks (default: the scenario's; of bench, or 10)"
    )
    blocks.add_argument("--again", action="store_true", help="run the baseline twice in each block: the noise floor")
    blocks.add_argument(
        "--stop-at-half-width",
        metavar="SHARE",
        help="stop once all intervals of step time are this narrow, such as 1%%",
    )
    sweep = parser.add_argument_group("each run by itself, and the same command goes on (sweep)")
    sweep.add_argument(
        "--attempts",
        type=from_1,
        metavar="N",
        help="greatest number of starts of a run that fails (of sweep: 3)",
    )
    sweep.add_argument("--retry-failed", action="store_true", help="give runs that failed too often new attempts")
    sweep.add_argument("--fresh", action="store_true", help="begin a new experiment; the old one stays as it is")


def run(options: argparse.Namespace) -> int:
    """Run the scenarios; return the exit code."""
    tries = _tries(options)
    if options.resume is not None and tries is not None:
        what = "a sweep is continued by the command that began it"
        raise UserError(what, f"--resume {options.resume}", "leave --resume out")
    if options.resume not in (None, AUTO):
        return _go_on(options, Path(options.resume))
    if not options.scenarios:
        what, fix = f"{options.command} needs a SCENARIO", "name one that `python -m harness list` shows"
        if tries is None:
            what, fix = f"{what}, or --resume FOLDER", f"{fix}, or the folder of what was stopped"
        raise UserError(what, None, fix)
    scenario = _scenario(options)
    if options.status:
        from harness.run.experiment import variants_of
        from harness.run.standing import show_status

        return show_status(scenario, variants_of(scenario), options.out, options.json)
    check_writable(options.out)
    if options.resume:
        return _go_on_or_begin(options, scenario)
    if tries is not None and not options.dry_run:
        from harness.run.experiment import run_scenario

        amount = _amount(options)
        return run_scenario(scenario, options.out, options.quiet, amount=amount, tries=tries, fresh=options.fresh)
    return _begin(options, scenario)


def _tries(options: argparse.Namespace) -> Tries | None:
    """Return how often a sweep starts a run that fails; None where it is none."""
    asked = options.attempts or options.retry_failed or options.fresh or options.status
    if options.command != "sweep" and not asked:
        return None
    from harness.run.engine import ATTEMPTS, Tries

    return Tries(options.attempts or ATTEMPTS, options.retry_failed)


def _scenario(options: argparse.Namespace) -> Scenario:
    from harness.scenario.axes import expand
    from harness.scenario.load import load_scenario, load_side_by_side

    if typed := next((word for word in options.scenarios[1:] if "=" in word), None):
        raise UserError(f"there is no scenario {typed!r}", None, f"a setting is changed with --set {typed}")
    if options.command != "bench" and len(options.scenarios) == 1 and not _of_blocks(options):
        return load_scenario(options.scenarios[0], options.set)
    settings: dict[str, float] = {} if options.blocks is None else {"blocks": options.blocks}
    if options.stop_at_half_width is not None:
        from harness.compare.gates import read_limit

        settings["stop_at_half_width"] = read_limit(options.stop_at_half_width, "--stop-at-half-width")
    scenario = load_side_by_side(options.scenarios, options.set, settings, options.again)
    if options.command == "bench" and len({variant.label for variant in expand(scenario)}) < 2:
        again = f"python -m harness bench {shlex.join(options.typed)} --again"
        fix = f"compare it with a second copy of itself, the noise floor: {again}; or `run` it"
        what = f"{scenario.name} is a single arm, so nothing would be compared"
        raise UserError(what, f"bench {SCENARIOS.typed(scenario.name)}", fix)
    return scenario


def _of_blocks(options: argparse.Namespace) -> list[str]:
    """Return which of the options were given that change how many blocks of what are run."""
    given = {
        "--blocks": options.blocks is not None,
        "--again": options.again,
        "--stop-at-half-width": options.stop_at_half_width is not None,
    }
    return [option for option, is_given in given.items() if is_given]


def _amount(options: argparse.Namespace) -> Amount:
    """Return how much of the results is shown at the end."""
    if options.json:
        return "json"
    return "line" if options.quiet else "everything" if options.verbose else "brief"


def _begin(options: argparse.Namespace, scenario: Scenario) -> int:
    """Call what ``cli.main`` was given, else the real one."""
    run_it: RunScenario | None = options.run_scenario
    if run_it is None:
        from harness.run.experiment import run_scenario

        run_it = partial(run_scenario, amount=_amount(options))
    return run_it(scenario, options.out, options.quiet)


def _go_on_or_begin(options: argparse.Namespace, scenario: Scenario) -> int:
    from harness.run.continuation import find_unfinished
    from harness.run.experiment import go_on_with

    folder, why_not = find_unfinished(options.out, scenario)
    if folder is None:
        print(f"begins a new run of {scenario.name}: {plain(why_not)}", file=sys.stderr)
        return _begin(options, scenario)
    if options.quiet:  # else the line comes with what is there
        print(f"continues {folder}", file=sys.stderr)
    return go_on_with(folder, scenario, options.quiet, amount=_amount(options))


def _go_on(options: argparse.Namespace, folder: Path) -> int:
    from harness.run.continuation import SWEEP
    from harness.run.experiment import go_on_with

    if not folder.is_dir():
        what = f"{str(folder)!r} is no folder"
        raise UserError(what, f"--resume {folder}", "name the folder of a run or of an experiment that was stopped")
    if given := [*_of_blocks(options), *options.scenarios[1:]]:
        what = f"--resume {folder} goes on with what was begun, and takes no {given[0]}"
        raise UserError(what, None, f"leave {' and '.join(given)} out")
    named = options.scenarios[0] if options.scenarios else None
    if (folder / SWEEP).is_file():
        what = "this is a sweep, which is continued by the command that began it"
        raise UserError(what, str(folder), f"python -m harness sweep {named or folder.resolve().parent.name}")
    scenario = scenario_of_run(folder, named, options.set, f"run SCENARIO --resume {folder}")
    return go_on_with(folder, scenario, options.quiet, amount=_amount(options))
