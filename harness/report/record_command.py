"""``record``: run a command that trains, and record where its time goes. No line of it is changed."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import REMAINDER
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import harness.record
from harness.compare.numbers import plural
from harness.core.arguments import out_argument
from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.terminal_text import plain
from harness.record import format as form
from harness.record.event_file import EventFile
from harness.record.recording import FOLDER_VARIABLE, RecordingError, begin_folder
from harness.record.seams import shims
from harness.results import Run, load_run
from harness.results.anonymous import safe_name
from harness.results.reader import RESULTS
from harness.results.writer import LOG, experiment_name

TRAINER_VARIABLE = "GRPO_HARNESS_RECORD_TRAINER"
HOOK = Path(harness.record.__file__).parent / "hook"
GRACE_S = 10.0
"""Seconds that an interrupted command has to end by itself."""

EPILOG = """
examples:
  python -m harness record --trainer trl -- python train_grpo.py --lr 1e-6
  python -m harness record --arm "8 workers" --out results -- ./launch.sh

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
    parser.add_argument("--arm", metavar="NAME", help="name of these settings, by which runs are compared")
    parser.add_argument(
        "--name", default="recorded", metavar="NAME", help="what the run is filed under (default: %(default)s)"
    )
    out_argument(parser, Path(RESULTS), "results folder (default: results)")


def run(options: argparse.Namespace) -> int:
    """Run the command, make a run of what was recorded and show it.

    Raises:
        UserError: there is no command, it cannot be found, or nothing was recorded.
        RunStopped: the command failed; what was recorded of it is kept.
        Interrupted: by the user; what was recorded is kept.
    """
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise UserError(
            "there is no command to record", "record", "name it: python -m harness record -- python train.py"
        )
    if shutil.which(command[0]) is None:
        raise UserError(
            f"{command[0]!r} cannot be found", "record", "name a program that can be run, as in python train.py"
        )
    folder = options.out / safe_name(options.name) / experiment_name(options.out, options.name, datetime.now(UTC))
    try:
        begin_folder(
            folder.absolute(), arm=options.arm, scenario=options.name, trainer=options.trainer or "", argv=command
        )
    except RecordingError as error:
        raise UserError(str(error), str(options.out), "choose another folder with --out DIR") from error
    status, why = _carry_out(command, folder.absolute(), options.trainer or "")
    recorded = _read(folder, command)
    spans = [span for span in recorded.spans() if span.step >= 0]
    print(plain(f"recorded {plural(len(recorded.steps), 'training step')}, {plural(len(spans), 'span')}: {folder}"))
    for line in (folder / LOG).read_text().splitlines():
        if "not recorded" in line:
            print(plain(line.partition(" ")[2]))
    _show(folder)
    if status == "interrupted":
        raise Interrupted(f"what was recorded so far is in {folder}")
    if status == "failed":
        raise RunStopped(f"the command failed ({why}); what was recorded of it is in {folder}")
    return 0


def _carry_out(command: list[str], folder: Path, trainer: str) -> tuple[str, str | None]:
    """Run the command with the hook in its Python processes; write down and return how it ended."""
    paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {FOLDER_VARIABLE: str(folder), TRAINER_VARIABLE: trainer, "PYTHONPATH": os.pathsep.join(paths)}
    own = EventFile(folder / form.EVENTS / "0.jsonl")
    try:
        own.add(
            b'["%b",%d,"command",%d,%d]\n' % (form.PROCESS.encode(), os.getpid(), time.monotonic_ns(), time.time_ns())
        )
        process = subprocess.Popen(command, env=os.environ | variables, start_new_session=True)
        status: str = "completed"
        why: str | None = None
        try:
            code = process.wait()
        except KeyboardInterrupt:
            status, code = "interrupted", _end(process)
        finally:
            with suppress(ProcessLookupError):  # what it left behind of its group
                os.killpg(process.pid, signal.SIGKILL)
        if status == "completed" and code:
            status, why = "failed", f"signal {-code}" if code < 0 else f"exit code {code}"
        told = "null" if why is None else f'"{why}"'
        own.add(f'["{form.END}","{status}",{told},{time.monotonic_ns()}]\n'.encode())
    finally:
        own.close()
    return status, why


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a command and all of its group: first by a word, then by force."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, each)
        with suppress(subprocess.TimeoutExpired):
            return process.wait(GRACE_S)
    return process.wait()


def _read(folder: Path, command: list[str]) -> Run:
    try:
        return load_run(folder)
    except UserError as error:
        if "no training step" not in error.what:
            raise
        fix = f"name its trainer with --trainer ({', '.join(sorted(shims()))}), or call harness.record in the program"
        raise UserError("the command told of no training step, so nothing was recorded", command[0], fix) from error


def _show(folder: Path) -> None:
    """Say what compare says of the run."""
    from harness.report import compare_command

    parser = argparse.ArgumentParser()
    compare_command.add_arguments(parser)
    sys.stdout.flush()
    compare_command.run(parser.parse_args([str(folder)]))
