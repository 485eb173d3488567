"""``record``: run a command that trains, and record where its time goes; or several in turns, for a verdict."""

from __future__ import annotations

import argparse
import shutil
import sys
from argparse import REMAINDER
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from harness.compare.numbers import plural
from harness.core.arguments import out_argument
from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.experiment import USUAL_BLOCKS
from harness.core.interrupts import signals_as_interrupts
from harness.core.terminal_text import plain
from harness.probes.provenance import machine_facts
from harness.probes.recorded_command import PROFILERS, check_profiler
from harness.record.recording import RecordingError, begin_folder
from harness.record.seams import shims
from harness.results.anonymous import safe_name
from harness.results.reader import RESULTS
from harness.results.writer import LOG, experiment_name

BETWEEN = ":::"
"""Between two commands that are compared."""
EPILOG = """
examples:
  python -m harness record --trainer trl -- python train_grpo.py --lr 1e-6
  python -m harness record --arm "8 workers" --out results -- ./launch.sh
  python -m harness record --blocks 8 -- python train.py --lr 1e-6 ::: python train.py --lr 3e-6

In the command's processes the trainer's own code is wrapped where it times or begins its stages; a trainer of your own
says so itself, with `from harness import record` (docs/recording.md). What was recorded is a run: compare, report,
trace and gates read it. Of arguments and environment only the names are written down.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("command", nargs=REMAINDER, metavar="-- COMMAND", help="what to run, after two dashes")
    parser.add_argument(
        "--trainer",
        choices=sorted(shims()),
        help="whose own timers and methods tell of stages and steps (default: each that is imported)",
    )
    parser.add_argument(
        "--profile", choices=PROFILERS, help="profile training steps 3 and 4 of the command; they count in no figure"
    )
    parser.add_argument("--arm", metavar="NAME", help="name of these settings, by which runs are compared")
    parser.add_argument(
        "--blocks",
        type=int,
        metavar="N",
        help=f"run commands in turns, N times each (default of several: {USUAL_BLOCKS}), for a verdict; {BETWEEN} "
        "stands between two, and {seed} in one is the block's seed",
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FOLDER", help="go on with this experiment of --blocks; name the same commands"
    )
    parser.add_argument(
        "--name", default="recorded", metavar="NAME", help="what the run is filed under (default: %(default)s)"
    )
    out_argument(parser, Path(RESULTS), "results folder (default: results)")


def run(options: argparse.Namespace) -> int:
    """Run the command, make a run of what was recorded and show it; or compare several.

    Raises:
        UserError: there is no command, it cannot be found, or nothing was recorded.
        RunStopped: the command failed; what was recorded of it is kept.
        Interrupted: by the user; what was recorded is kept.
    """
    typed = options.command[1:] if options.command[:1] == ["--"] else options.command
    commands = [list(words) for is_between, words in groupby(typed, BETWEEN.__eq__) if not is_between]
    if not commands:
        fix = "name it: python -m harness record -- python train.py"
        raise UserError("there is no command to record", "record", fix)
    for command in commands:
        if shutil.which(command[0]) is None:
            fix = "name a program that can be run, as in python train.py"
            raise UserError(f"{command[0]!r} cannot be found", "record", fix)
    if len(commands) > 1 or options.blocks is not None or options.resume is not None:
        return _compare(options, commands)
    return _record(options, commands[0])


def _compare(options: argparse.Namespace, commands: list[list[str]]) -> int:
    """Run several commands as the arms of an experiment, in blocks."""
    from harness.run.continuation import is_of_several
    from harness.run.experiment import go_on_with, run_scenario
    from harness.scenario.load import check_data

    given = next((f"--{name}" for name in ("arm", "trainer", "profile") if getattr(options, name) is not None), None)
    if given is not None:
        what = f"{given} is of a single run, and these are compared"
        raise UserError(what, given, "leave it out, or record one command alone")
    names = arm_names(commands)
    data = {
        "name": safe_name(options.name),
        "description": f"{' against '.join(names)}, recorded.",
        "blocks": USUAL_BLOCKS if options.blocks is None else options.blocks,
        "arms": {name: {"command": command} for name, command in zip(names, commands, strict=True)},
    }
    scenario = check_data(data, "record")
    if options.resume is not None:
        if not options.resume.is_dir():
            what = f"--resume expects the folder of an experiment, and {str(options.resume)!r} is none"
            raise UserError(what, "--resume", "name one that was stopped: results/recorded/DATE-TIME")
        if not is_of_several(options.resume):
            what = f"--resume goes on with an experiment of --blocks, and {str(options.resume)!r} is none"
            raise UserError(what, "--resume", "record a single run again, without --resume")
        return go_on_with(options.resume, scenario, quiet=False)
    return run_scenario(scenario, options.out, quiet=False)


def arm_names(commands: list[list[str]]) -> list[str]:
    """Return a name for each command: of what differs between them, as a folder can have it; else a number."""
    if len(commands) == 1:
        return [safe_name(Path(commands[0][-1]).stem)]
    shared = set.intersection(*map(set, commands))
    names = [safe_name("-".join(word.lstrip("-") for word in words if word not in shared)) for words in commands]
    plainly = [name.strip("-.")[:40] for name in names]
    if all(plainly) and len(set(map(str.casefold, plainly))) == len(plainly):
        return plainly
    return [f"command-{number}" for number in range(1, len(commands) + 1)]


def _record(options: argparse.Namespace, command: list[str]) -> int:
    """Record one run of one command."""
    from harness.run.recorded import carry_out, read_recorded_run

    check_profiler(options.profile)
    folder = options.out / safe_name(options.name) / experiment_name(options.out, options.name, datetime.now(UTC))
    trainer = options.trainer or ""
    said = {"arm": options.arm, "scenario": options.name, "trainer": trainer, "machine": machine_facts()}
    try:
        begin_folder(folder.absolute(), command, **said)
    except RecordingError as error:
        raise UserError(str(error), str(options.out), "choose another folder with --out DIR") from error
    with signals_as_interrupts():
        ended = carry_out(command, folder.absolute(), trainer, profiler=options.profile)
    try:
        recorded = read_recorded_run(folder, command[0], sorted(shims()), ended)
    except (UserError, RunStopped):
        shutil.rmtree(folder, ignore_errors=True)  # there is nothing in it
        raise
    spans = [span for span in recorded.spans() if span.step >= 0]
    print(plain(f"recorded {plural(len(recorded.steps), 'training step')}, {plural(len(spans), 'span')}: {folder}"))
    for line in (folder / LOG).read_text().splitlines():
        if "not recorded" in line:
            print(plain(line.partition(" ")[2]))
    for note in ended.notes:
        print(plain(note))
    _show(folder)
    if ended.status == "interrupted":
        raise Interrupted(f"what was recorded so far is in {folder}")
    if ended.status == "failed":
        raise RunStopped(f"the command failed ({ended.why}); what was recorded of it is in {folder}")
    return 0


def _show(folder: Path) -> None:
    """Say what compare says of the run."""
    from harness.report import compare_command

    parser = argparse.ArgumentParser()
    compare_command.add_arguments(parser)
    sys.stdout.flush()
    compare_command.run(parser.parse_args([str(folder)]))
