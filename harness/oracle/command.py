"""``python -m harness oracle``: one training step through the losses and advantages of several implementations."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.arguments import from_0, set_argument
from harness.core.errors import UserError
from harness.oracle.environments import PEERS, folder_of, interpreter, make, requirements_of

if TYPE_CHECKING:
    from harness.oracle.ask import Limits
    from harness.oracle.kept import Again
    from harness.oracle.step import Step
    from harness.report.console import Output

DESCRIPTION = """Give one training step to the loss and advantage code that other trainers ship, each in an environment
of its own, and compare loss, gradient and advantages with this project's. A step that a run has kept
(checkpoint.keep_steps) is made again, and compared with what the run recorded."""
EXAMPLES = """examples:
  python -m harness run quickstart --set checkpoint.keep_steps=[3] --set steps=5
  python -m harness oracle results/quickstart/20260101-120000 --step 3
  python -m harness oracle step.safetensors --against trl,verl
  python -m harness oracle --install trl,verl
  python -m harness oracle --options --search 25
  python -m harness oracle --settings trl config.yaml

Exit codes: 0 the table was made, whatever it says of others; 1 the recorded figures are not what is computed here;
2 bad input.
"""
MOST_NAMED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument(
        "run", metavar="RUN", nargs="?", type=Path, help="a run's folder, a step as a safetensors file, or settings"
    )
    step = parser.add_argument_group("one step of a run")
    step.add_argument("--step", type=from_0, metavar="N", help="the kept training step, counted from 0")
    step.add_argument(
        "--optimizer-step", type=from_0, metavar="N", help="of that training step, from 0 (default: its last one)"
    )
    step.add_argument(
        "--scenario", metavar="SCENARIO", help="the run's scenario, if the saved one lacks the folders of its files"
    )
    set_argument(parser)
    options = parser.add_argument_group("every option of the loss")
    options.add_argument("--options", action="store_true", help="compare each on a made-up batch")
    options.add_argument(
        "--search", type=from_0, default=0, metavar="N", help="and on N others, to find the largest difference"
    )
    options.add_argument("--page", type=Path, metavar="FILE", help="write the table as Markdown, with every reason")
    settings = parser.add_argument_group("settings of trl, verl, open-instruct or prime-rl")
    settings.add_argument("--settings", metavar="TRAINER", help="print the scenario that RUN, a file of theirs, means")
    settings.add_argument("--settings-for", metavar="TRAINER", help="print what RUN, a scenario, means in their words")
    trainers = parser.add_argument_group("trainers")
    trainers.add_argument(
        "--against", metavar="NAMES", help=f"some of {', '.join(PEERS)}, with commas (default: all that are found)"
    )
    trainers.add_argument("--install", metavar="NAMES", help="make the environments of these, .venv-NAME, and end")
    trainers.add_argument(
        "--environments", type=Path, default=Path(), metavar="DIR", help="folder of .venv-NAME (default: this one)"
    )
    trainers.add_argument(
        "--time-limit", type=float, default=300.0, metavar="SECONDS", help="of each answer (default: 300)"
    )
    trainers.add_argument("--memory-limit", type=float, default=8.0, metavar="GIB", help="of each trainer (default: 8)")


def run(options: argparse.Namespace) -> int:
    """Ask every implementation and print the table.

    Raises:
        UserError: the step cannot be had, or an implementation is not known.
    """
    if options.install is not None:
        return _install(_known(options.install, "--install"), options.environments)
    if options.settings or options.settings_for:
        from harness.oracle.settings.command import translate

        return translate(options)
    from harness.oracle.ask import GIB, Limits, ask_all, command_of
    from harness.oracle.table import asked, table
    from harness.report.console import Output
    from harness.report.terminal import print_list, print_table

    wanted = list(PEERS) if options.against is None else _known(options.against, "--against")
    if not options.time_limit > 0 or not options.memory_limit > 0:
        raise UserError("a limit of time or memory must be above 0", "--time-limit, --memory-limit")
    limits = Limits(options.time_limit, int(options.memory_limit * GIB))
    pythons = {name: interpreter(name, options.environments) for name in wanted}
    commands = {name: command_of(name, python) for name, python in pythons.items() if python is not None}
    missing = [name for name in wanted if name not in commands]
    output = Output()
    if options.options:
        return _options(options, output, commands, limits, missing)
    step, again = _step(options)
    agrees = True if again is None else _print_checks(output, options.step, again)
    if step.header.loss.type == "own":
        output.print("The loss is a function of your own, which no implementation has.")
        return 0 if agrees else 1
    answers = ask_all(commands, limits, lambda implementation: asked(implementation, step))
    made, details = table(step, None if again is None else again.loss, answers, missing)
    print_table(output, made)
    print_list(output, "Options", details)
    return 0 if agrees else 1


def _options(
    options: argparse.Namespace, output: Output, commands: Mapping[str, list[str]], limits: Limits, missing: list[str]
) -> int:
    from rich.console import Console

    from harness.core.atomic_files import check_writable, whole_file
    from harness.core.progress import progress_bars
    from harness.oracle.ask import ask_all
    from harness.oracle.options import OPTIONS
    from harness.oracle.page import found, options_table, page
    from harness.report.terminal import print_list, print_table

    if not commands:
        raise UserError("no trainer is here", str(options.environments), "python -m harness oracle --install trl")
    if options.page is not None:
        check_writable(options.page.parent)
    with progress_bars(Console(stderr=True), transient=True) as bar:
        task = bar.add_task("comparing options", total=len(commands) * len(OPTIONS))
        results = ask_all(commands, limits, lambda peer: found(peer, options.search, lambda: bar.advance(task)))
    made, details = options_table(results)
    print_table(output, made)
    print_list(output, "Without an answer", [*details, *(f"{name}: no environment has it" for name in missing)])
    if options.page is not None:
        searched = f" --search {options.search}" if options.search else ""
        command = f"python -m harness oracle --options{searched} --page {options.page.name}"
        with whole_file(options.page) as file:
            file.write(page(results, options.search, command).encode())
    return 0


def _known(names: str, place: str) -> list[str]:
    wanted = [name for name in names.split(",") if name]
    for name in wanted:
        if name not in PEERS:
            raise UserError(f"{name!r} is not known", place, f"name some of {', '.join(PEERS)}")
    return wanted


def _install(names: Sequence[str], environments: Path) -> int:
    for name in names:
        print(f"{name}: installing into {folder_of(name, environments)}", flush=True)
        make(folder_of(name, environments), requirements_of(name))
    return 0


def _step(options: argparse.Namespace) -> tuple[Step, Again | None]:
    from harness.oracle.kept import make_again
    from harness.oracle.step import read_step
    from harness.run.commands.arguments import scenario_of_run

    if options.run is None:
        raise UserError("neither a run's folder nor a step was named", "RUN", "name one; see --help")
    if not options.run.is_dir():
        return read_step(options.run), None
    if options.step is None:
        raise UserError("a run's folder was named, and no step of it", str(options.run), "add --step N")
    naming = f"oracle {options.run} --step {options.step} --scenario SCENARIO"
    scenario = scenario_of_run(options.run, options.scenario, options.set, naming)
    again = make_again(options.run, options.step, scenario, options.optimizer_step)
    return again.step, again


def _print_checks(output: Output, number: int, again: Again) -> bool:
    """Print what the run recorded beside what came of it here, and return whether it is the same."""
    from harness.oracle.kept import TOLERANCE
    from harness.report.document import Table
    from harness.report.terminal import print_list, print_table

    rows = []
    for check in again.checks:
        said = f"equal to {check.largest:.2g}" if check.largest else "equal"
        rows.append((check.what, f"{len(check.differing)} differ" if check.differing else said, f"{check.values:,}"))
    notes = (f"Figures may differ by {TOLERANCE:g} of their size.", *again.notes)
    header = ("computed again", "and recorded", "values")
    print_table(output, Table(f"Training step {number}", header, tuple(rows), notes, 2))
    for check in again.checks:
        more = len(check.differing) - MOST_NAMED
        named = [*check.differing[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]
        print_list(output, f"Other {check.what}", named)
    return not any(check.differing for check in again.checks)
