"""``python -m harness run``: run scenarios, or go on with a run, an experiment or a sweep that was stopped.

``bench`` and ``sweep`` are short names: ``bench`` makes blocks of what it is given, ``sweep`` tries each run by itself
until it is there, and is found again by its settings.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.atomic_files import check_writable
from harness.core.errors import UserError
from harness.core.named_files import SCENARIOS
from harness.core.terminal_text import plain
from harness.run.commands.arguments import RunScenario, output_arguments, scenario_arguments, scenario_of_run

if TYPE_CHECKING:
    from harness.run.experiment import Amount
    from harness.scenario.schema import Scenario

DESCRIPTION = {
    "run": "Run a scenario, with all its arms and blocks, and compare them; or go on with what was stopped.",
    "bench": "Set scenarios, or the arms of one, side by side in 10 blocks (--blocks), for a verdict on their speed.",
    "sweep": "Make each run of a scenario by itself, up to 3 times where it fails. The same command goes on.",
}
EXAMPLES = {
    "run": """examples:
  python -m harness run quickstart
  python -m harness run sync_k --set steps=20 --set model.preset=tiny --out results
  python -m harness run --resume results/quickstart/20260101-120000""",
    "bench": """examples:
  python -m harness bench sync_k1 sync_k2
  python -m harness bench sync_k1 sync_k2 --blocks 10 --again --set steps=12""",
    "sweep": """examples:
  python -m harness sweep learning_rates
  python -m harness sweep learning_rates --status""",
}
AUTO = "auto"
"""In the place of a run's folder: look for it."""
RESULTS = Path("results")
STOP = "stop_at_half_width"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    scenario_arguments(parser, "*")
    parser.add_argument(
        "--resume",
        metavar="FOLDER",
        help="continue this run from its newest checkpoint, or this experiment or sweep with its unfinished runs (of a "
        "sweep also those that failed too often); the saved scenario is used if none is named; auto: continue the "
        "newest unfinished run of SCENARIO, or begin one",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--dry-run",
        action="store_true",
        help="start nothing: print what would run, for how long by earlier runs on this machine, and what is missing",
    )
    how.add_argument("--status", action="store_true", help="show the state of each run of a sweep, and run nothing")
    output_arguments(parser)
    blocks = parser.add_argument_group("for a verdict (bench)")
    blocks.add_argument(
        "--blocks",
        type=int,
        metavar="N",
        help="greatest number of blocks (default: the scenario's; of bench at least 10)",
    )
    blocks.add_argument("--again", action="store_true", help="run the baseline twice in each block: the noise floor")


def run(options: argparse.Namespace) -> int:
    """Run the scenarios; return the exit code."""
    is_sweep = options.command == "sweep"
    if options.status and options.command == "bench":
        fix = f"python -m harness sweep {' '.join(options.scenarios) or 'SCENARIO'} --status"
        raise UserError("--status tells of a sweep, and bench makes none", "--status", fix)
    if options.resume == AUTO and (is_sweep or options.status or options.dry_run):
        what, fix = "a sweep is continued by the command that began it", "leave --resume out"
        if not is_sweep:
            option = "--status" if options.status else "--dry-run"
            what, fix = f"--resume auto is not allowed with {option}", f"name the folder, or leave {option} out"
        raise UserError(what, "--resume auto", fix)
    if options.resume not in (None, AUTO):
        return _go_on(options, Path(options.resume))
    if not options.scenarios:
        what, fix = f"{options.command} needs a SCENARIO", "name one that `python -m harness list` shows"
        raise UserError(f"{what}, or --resume FOLDER", None, f"{fix}, or the folder of what was stopped")
    scenario = _scenario(options)
    if options.status:
        from harness.run.experiment import variants_of
        from harness.run.standing import show_status

        if not options.out.is_dir() and options.out != RESULTS:
            what = f"there is no results folder {str(options.out)!r}"
            raise UserError(what, "--out", "name the folder that the sweep writes to")
        return show_status(scenario, variants_of(scenario), options.out, options.json)
    check_writable(options.out)
    if options.resume:
        return _go_on_or_begin(options, scenario)
    if options.dry_run:
        from harness.run.continuation import find_sweep

        return _dry_run(options, scenario, options.out, find_sweep(options.out, scenario) if is_sweep else None)
    return _sweep(options, scenario) if is_sweep else _begin(options, scenario)


def _sweep(options: argparse.Namespace, scenario: Scenario, folder: Path | None = None) -> int:
    """Go on with a sweep, of a folder that is named with what failed too often too; or begin it."""
    from harness.run.engine import Tries
    from harness.run.experiment import run_scenario

    tries, out = Tries(retry_failed=folder is not None), options.out if folder is None else folder.parent.parent
    return run_scenario(scenario, out, options.quiet, amount=_amount(options), tries=tries, sweep=folder)


def _dry_run(
    options: argparse.Namespace, scenario: Scenario, out: Path, sweep: Path | None, finished: Collection[str] = ()
) -> int:
    """Say what is to be done, less what is finished: in the sweep's folder, or by name."""
    from psutil import Process

    from harness.run.dry_run import dry_run

    if sweep is not None:
        from harness.run.experiment import variants_of
        from harness.run.points import read_points

        points = read_points(sweep, variants_of(scenario))
        finished = [point.variant.name for point in points if point.state.is_result]
    program_s = time.time() - Process().create_time()
    return dry_run(scenario, out, options.quiet, options.json, finished=finished, program_s=program_s)


def _scenario(options: argparse.Namespace) -> Scenario:
    from harness.scenario.axes import expand
    from harness.scenario.load import load_scenario, load_side_by_side
    from harness.scenario.tree import parse_yaml

    if typed := next((word for word in options.scenarios[1:] if "=" in word), None):
        raise UserError(f"there is no scenario {typed!r}", None, f"a setting is changed with --set {typed}")
    if options.command != "bench" and len(options.scenarios) == 1 and not _of_blocks(options):
        return load_scenario(options.scenarios[0], options.set)
    settings: dict[str, Any] = {} if options.blocks is None else {"blocks": options.blocks}
    changes = list[str]()
    for change in options.set:
        key, _, value = change.partition("=")
        if key == STOP and value:  # of the arms together, which no scenario is by itself
            settings[STOP] = parse_yaml(value, f"--set {change}")
        else:
            changes.append(change)
    scenario = load_side_by_side(options.scenarios, changes, settings, options.again)
    if options.command == "bench" and len({variant.label for variant in expand(scenario)}) < 2:
        again = f"python -m harness bench {shlex.join(options.typed)} --again"
        fix = f"compare it with a second copy of itself, the noise floor: {again}; or `run` it"
        what = f"{scenario.name} is a single arm, so nothing would be compared"
        raise UserError(what, f"bench {SCENARIOS.typed(scenario.name)}", fix)
    return scenario


def _of_blocks(options: argparse.Namespace) -> list[str]:
    """Return which of the options were given that change how many blocks of what are run."""
    given = {"--blocks": options.blocks is not None, "--again": options.again}
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
    from harness.results.writer import SCENARIO
    from harness.run.continuation import SWEEP, changes_since, find_continuation
    from harness.run.experiment import go_on_with

    named = options.scenarios[0] if options.scenarios else None
    if not folder.is_dir():
        what = f"--resume expects the folder of a run, an experiment or a sweep, and {str(folder)!r} is no folder"
        raise UserError(what, f"--resume {folder}", "name one that was stopped: results/SCENARIO/DATE-TIME")
    if given := [*_of_blocks(options), *options.scenarios[1:], *(["--status"] if options.status else [])]:
        what = f"--resume {folder} goes on with what was begun, and takes no {given[0]}"
        raise UserError(what, None, f"leave {' and '.join(given)} out")
    if (folder / SWEEP).is_file():
        scenario = scenario_of_run(folder, named, options.set, f"run SCENARIO --resume {folder}", SWEEP)
        if changed := changes_since(folder / SWEEP, scenario):
            what = f"the sweep went by another scenario: {'; '.join(changed[:8])}"
            raise UserError(what, str(folder), "leave these as they were, or begin a new sweep")
        if options.dry_run:
            return _dry_run(options, scenario, folder.parent.parent, folder)
        return _sweep(options, scenario, folder.resolve())
    if named is None and not (folder / SCENARIO).is_file():
        what = f"--resume expects the folder of a run, an experiment or a sweep, and {str(folder)!r} is none"
        below = sorted(folder.glob(f"*/{SCENARIO}")) + sorted(folder.glob(f"*/*/{SCENARIO}"))
        newest = f", such as {below[-1].parent}" if below else ""
        raise UserError(what, f"--resume {folder}", f"name one that was stopped: results/SCENARIO/DATE-TIME{newest}")
    scenario = scenario_of_run(folder, named, options.set, f"run SCENARIO --resume {folder}")
    if options.dry_run:
        going = find_continuation(folder, scenario)
        print(going.line, file=sys.stderr)
        done = [going.points[name].variant.name for name in going.finished]
        return _dry_run(options, scenario, folder.parent.parent, None, done)
    return go_on_with(folder, scenario, options.quiet, amount=_amount(options))
