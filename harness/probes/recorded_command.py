"""What runs beside a recorded command: counters of machine, GPUs and the command's processes, and a profiler."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from harness.core.errors import RunStopped, UserError
from harness.core.private_dir import PrivateDir
from harness.probes.nsight import check_nsys, nsys_arguments
from harness.probes.nvml import list_gpus
from harness.probes.profile import NsightWindow, PySpyWindow, Window
from harness.probes.pyspy import PySpyRecorder, check_pyspy
from harness.probes.sampler_process import SamplerProcess
from harness.probes.torch_traces import collect_traces
from harness.record import format as form
from harness.record.event_file import EventFile
from harness.record.private import shown
from harness.record.profiling import BEGINS, ENDS
from harness.record.recording import PROFILE_VARIABLE
from harness.record.torch_trace import RAW
from harness.results.counters import DRIVER, CounterRow
from harness.results.writer import PROFILES

PROFILERS = ("nsys", "py-spy", "torch")
SAMPLER_HZ = 5.0
LOOK_S, SHORT_LOOK_S = 1.0, 0.02
"""Seconds between two looks at the command's processes, and at what they ask for where py-spy is to profile them."""
MOST_PROCESSES = 64
RECORDER = "record"
"""The source of this process's own counters."""


def check_profiler(profiler: str | None) -> None:
    """See before anything starts whether a profiler is there.

    Raises:
        UserError: it is not, or may not look into processes.
    """
    try:
        if profiler == "nsys":
            check_nsys()
        if profiler == "py-spy":
            check_pyspy()
    except UserError as error:
        raise UserError(error.what, f"--profile {profiler}", error.fix) from error


class CommandProbes:
    """The probes beside one command.

    Args:
        folder: of the recording.
        events: takes the counters.
        profiler: one of ``PROFILERS``, for the window of steps that is usual in a run; None for none.

    Attributes:
        notes: what a profiler recorded, and what could not be measured, in words.
    """

    def __init__(self, folder: Path, events: EventFile, profiler: str | None = None) -> None:
        self.notes, self._files = list[str](), list[Path]()
        self._profiles, self._events, self._profiler = folder / PROFILES, events, profiler
        self._window = NsightWindow() if profiler == "nsys" else PySpyWindow() if profiler == "py-spy" else Window()
        self._pyspy: dict[str, PySpyRecorder] = {}
        self._failures = list[str]()
        self._seen, self._named = set[int](), set[int]()
        self._looked_s = 0.0
        self._opened = ExitStack()
        self._drafts = self._opened.enter_context(PrivateDir())
        self._sampler = SamplerProcess(SAMPLER_HZ)
        self._sampler.order("go")

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command as it is to be started: with nsys in front of it."""
        if self._profiler != "nsys":
            return list(command)
        self._profiles.mkdir(exist_ok=True)
        assert isinstance(self._window, NsightWindow)
        return nsys_arguments(self._window, command, bool(list_gpus()[0]), self._profiles / "command")

    def variables(self) -> dict[str, str]:
        """Return what the command's environment has to hold beside its own."""
        if self._profiler is None:
            return {}
        return {PROFILE_VARIABLE: f"{self._profiler}:{self._window.first_step}:{self._window.steps}:{self._drafts}"}

    def wait(self, process: subprocess.Popen[bytes], seconds: float) -> int:
        """Wait for the end of the command, sampling meanwhile; return its exit code.

        Raises:
            subprocess.TimeoutExpired: it runs on after so many seconds.
        """
        end_s = time.monotonic() + seconds
        descriptor = os.pidfd_open(process.pid)
        try:
            while True:
                self._look(process.pid)
                left_s = end_s - time.monotonic()
                look_s = SHORT_LOOK_S if self._profiler == "py-spy" else LOOK_S
                if select.select([descriptor], [], [], max(0.0, min(left_s, look_s)))[0]:
                    return process.wait()
                if left_s <= 0:
                    raise subprocess.TimeoutExpired(process.args, seconds)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """End what runs beside, keep what it measured, and say in ``notes`` what it could not."""
        self._sampler.close()
        self._write(self._sampler.drain())
        self.notes += self._sampler.notes
        for lane in list(self._pyspy):
            self._end_pyspy(lane)
        if self._profiler == "torch":
            names = [file.name.removesuffix(RAW) for file in sorted(self._drafts.glob(f"*{RAW}"))]
            try:
                self._files += collect_traces(names, self._drafts, self._profiles)
            except RunStopped as error:
                self._failures.append(str(error))
        if self._profiler == "nsys":
            self._files += [file for file in sorted(self._profiles.iterdir()) if file.stat().st_size]
        self._opened.close()
        if self._profiler is not None:
            of_steps = f"training steps {self._window.first_step} to {self._window.numbers[-1]}"
            self.notes += [f"{self._profiler} recorded {of_steps}: {file}" for file in self._files]
            self.notes += self._failures
            if not self._files:
                self.notes.append(f"{self._profiler} recorded nothing of {of_steps}")

    def _look(self, pid: int) -> None:
        """Answer what processes ask for; from time to time, take the counters and see which processes there are."""
        if self._profiler == "py-spy":
            self._answer()
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        tree = process_tree(pid)
        lasting = [each for each in tree if each in self._seen][:MOST_PROCESSES]
        self._seen = set(tree)
        for each in lasting:
            if each not in self._named:
                self._named.add(each)
                self._events.add(form.line([form.PROCESS, each, _kind(each), time.monotonic_ns(), time.time_ns()]))
        self._sampler.watch({str(each): each for each in lasting})
        self._write(self._sampler.drain())

    def _write(self, rows: Sequence[CounterRow]) -> None:
        for row in rows:
            source = RECORDER if row.source == DRIVER else row.source
            event = [form.COUNTERS, row.at_ns, source, row.values, row.missing]
            self._events.add(msgspec.json.encode(event) + b"\n")

    def _answer(self) -> None:
        """Start py-spy on a process whose window begins, and stop it where one's ends; then the process goes on."""
        for file in self._drafts.glob(f"*{BEGINS}"):
            lane, pid = file.read_text(), int(file.name.removesuffix(BEGINS))
            window = PySpyWindow(lanes=[lane])
            recorder = self._pyspy[file.stem] = PySpyRecorder(window, lambda at={lane: pid}: at, self._profiles)  # type: ignore[misc]
            try:
                recorder.on_step_starts(window.first_step)
            except RunStopped as error:
                self._failures.append(str(error))
            finally:
                file.unlink()
        for file in self._drafts.glob(f"*{ENDS}"):
            self._end_pyspy(file.stem)
            file.unlink()

    def _end_pyspy(self, key: str) -> None:
        recorder = self._pyspy.pop(key, None)
        if recorder is not None:
            try:
                self._files += recorder.close()
            except RunStopped as error:
                self._failures.append(str(error))


def process_tree(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Return a process and all that it started, by their ids; those that end meanwhile may be left out."""
    found, ahead = list[int](), [pid]
    while ahead:
        found.append(ahead.pop(0))
        with suppress(OSError):
            for task in (proc / str(found[-1]) / "task").iterdir():
                with suppress(OSError):
                    ahead += map(int, (task / "children").read_text().split())
    return found


def _kind(pid: int) -> str:
    """Return what the kernel calls a process: its program, or the name that it gave itself."""
    try:
        return shown(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()) or "process"
    except OSError:
        return "process"
