"""Programs that are recorded: started with the hook of ``harness.record`` in their Python processes, and ended.

An arm whose ``command`` is set is such a program. Its runs lie in the experiment beside those of the harness' own loop.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from rich.console import Console

import harness.record
from harness.core.errors import HarnessError, RunStopped, UserError
from harness.core.progress import duration, minutes_told
from harness.core.terminal_text import plain
from harness.probes.recorded_command import CommandProbes
from harness.record import format as form
from harness.record.event_file import EventFile
from harness.record.recording import FOLDER_VARIABLE
from harness.record.seams import TRAINER_VARIABLE
from harness.results import Run, load_run
from harness.results.recordings import NoSteps
from harness.results.writer import SCENARIO
from harness.run.guardian import Guardian
from harness.run.interleaving import Group
from harness.run.needs import check, needs_of
from harness.run.points import Resume
from harness.run.session import Experiment, run_label
from harness.scenario.axes import Variant
from harness.settings.command import SCENARIO_FILE, SEED

HOOK = Path(harness.record.__file__).parent / "hook"
GRACE_S = 10.0
"""Seconds that a command has to end by itself after each signal."""
LOOK_S = 1.0
"""Seconds between two looks at whether a command still records."""
OWN_EVENTS = "0.jsonl"
"""The file of this process, beside those of the command's."""
LAST_LINES = 20
"""Of what a command wrote: shown where it failed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: ``completed``, ``failed`` or ``interrupted``, why where it failed, and what probes say."""

    status: str
    why: str | None = None
    notes: tuple[str, ...] = ()


def carry_out(
    command: Sequence[str],
    folder: Path,
    trainer: str = "",
    *,
    output: IO[bytes] | None = None,
    stall_after_s: float | None = None,
    profiler: str | None = None,
) -> Ended:
    """Run a command with the hook in its Python processes; write down how it ended, and end all that it left behind.

    Args:
        command: the program and its arguments.
        folder: of the recording; see ``harness.record.recording.begin_folder``.
        trainer: whose seams are wrapped; empty for those that it imports.
        output: takes what it writes; None leaves it to the terminal.
        stall_after_s: seconds without a new event after which it is ended; None waits for ever.
        profiler: runs for a few of its training steps; see ``harness.probes.recorded_command``.

    Raises:
        UserError: it cannot be started.
    """
    paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {FOLDER_VARIABLE: str(folder), TRAINER_VARIABLE: trainer, "PYTHONPATH": os.pathsep.join(paths)}
    own = EventFile(folder / form.EVENTS / OWN_EVENTS)
    try:
        own.add(form.line([form.PROCESS, os.getpid(), "command", time.monotonic_ns(), time.time_ns()]))
        with closing(CommandProbes(folder, own, profiler)) as probes, closing(Guardian()) as guardian:
            try:
                with guardian.starting():
                    process = subprocess.Popen(
                        probes.command(command),
                        env=os.environ | variables | probes.variables(),
                        start_new_session=True,
                        stdout=output,
                        stderr=None if output is None else subprocess.STDOUT,
                    )
            except OSError as error:
                what = f"{command[0]!r} cannot be started: {error.strerror or error}"
                raise UserError(what, "command", "name a program that can be run") from error
            ended = _wait(process, probes, folder, stall_after_s)
            own.add(form.line([form.END, ended.status, ended.why, time.monotonic_ns()]))
    finally:
        own.close()
    return replace(ended, notes=tuple(probes.notes))


def _wait(process: subprocess.Popen[bytes], probes: CommandProbes, folder: Path, stall_after_s: float | None) -> Ended:
    """Wait for the end of a command, of one that hangs for so long too; then its group is gone."""
    try:
        moved = EventsSeen(folder)
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = probes.wait(process, math.inf if stall_after_s is None else min(LOOK_S, stall_after_s))
                break
            if stall_after_s is not None and moved.seconds_since() > stall_after_s:
                _end(process)
                why = f"it recorded nothing for {duration(stall_after_s)} (faults.stall_after_s) and was ended"
                return Ended("failed", why)
    except KeyboardInterrupt:
        _end(process)
        return Ended("interrupted")
    finally:
        with suppress(ProcessLookupError):  # what it left behind of its group
            os.killpg(process.pid, signal.SIGKILL)
    if code:
        return Ended("failed", f"signal {-code}" if code < 0 else f"exit code {code}")
    return Ended("completed")


class EventsSeen:
    """Tells how long ago a recording got its last event."""

    def __init__(self, folder: Path) -> None:
        self._home, self._ends, self._moved_s = folder / form.EVENTS, dict[Path, int](), time.monotonic()

    def seconds_since(self) -> float:
        """Look at the files; return the seconds since the last look that found something new."""
        for path in self._home.glob("*.jsonl"):
            if path.name == OWN_EVENTS:  # in which counters come in whatever the command does
                continue
            end = self._ends.setdefault(path, 0)
            with suppress(OSError), path.open("rb") as file:
                file.seek(end)
                while piece := file.read(2**20).partition(b"\0")[0]:  # the room behind the last event is zeros
                    self._ends[path] += len(piece)
                    file.seek(self._ends[path])
            if self._ends[path] > end:
                self._moved_s = time.monotonic()
        return time.monotonic() - self._moved_s


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and all of its group: first by a word, then by force."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, each)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            return


def read_recorded_run(folder: Path, program: str, known: Sequence[str], ended: Ended) -> Run:
    """Make a run of what was recorded, and read it.

    Args:
        folder: of the recording.
        program: the command's first word.
        known: trainers that have seams.
        ended: how the command ended.

    Raises:
        UserError: nothing was recorded.
        RunStopped: the command failed before its first training step.
    """
    try:
        return load_run(folder)
    except NoSteps as error:
        if ended.status == "failed":
            raise RunStopped(f"the command failed before its first training step ({ended.why})") from error
        fix = f"name its trainer with --trainer ({', '.join(known)}), or call harness.record in the program"
        raise UserError("the command recorded no training step", program, fix) from error


class CommandRuns:
    """Makes the runs whose arms are programs, one after the other.

    Args:
        experiment: makes the folders.
        console: where progress is shown.
        quiet: show none.
    """

    def __init__(self, experiment: Experiment, console: Console, quiet: bool) -> None:
        self._experiment, self._console, self._quiet = experiment, console, quiet

    def run(self, group: Group, resumes: Mapping[str, Resume], place: str = "") -> list[tuple[str, HarnessError]]:
        """Run the one arm of a group from its beginning; return the error that ended it, if any did.

        Raises:
            KeyboardInterrupt: the user asked to stop; the command and all that it started are ended.
        """
        (variant,) = group.variants
        label = run_label(variant)
        try:
            self._run(variant, f"{place} {label}".lstrip())
        except (UserError, RunStopped) as error:
            return [(label, error)]
        return []

    def _run(self, variant: Variant, label: str) -> None:
        scenario = variant.scenario
        check(needs_of(scenario))
        folder = self._experiment.begin_recording(variant)
        filled = {SEED: str(scenario.seed), SCENARIO_FILE: str(folder / SCENARIO)}
        command = [_fill(word, filled) for word in scenario.command]
        with TemporaryFile() as output:
            with minutes_told(self._console, label, self._quiet):
                ended = carry_out(command, folder, output=output, stall_after_s=scenario.faults.stall_after_s)
            if ended.status == "failed":
                self._show_end(output, label)
        if ended.status == "interrupted":
            raise KeyboardInterrupt
        try:
            load_run(folder)
        except NoSteps:
            if ended.status == "completed":
                raise
        if ended.status == "failed":
            raise RunStopped(f"its command failed: {ended.why}")

    def _show_end(self, output: IO[bytes], label: str) -> None:
        """Show the last lines that a command wrote; they are kept nowhere, since they may hold anything."""
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()[-LAST_LINES:]
        if lines and not self._quiet:
            self._console.print(plain(f"{label} wrote at its end:"), markup=False, highlight=False)
            for line in lines:
                self._console.print(f"  {plain(line)}", markup=False, highlight=False, soft_wrap=True)


def _fill(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
