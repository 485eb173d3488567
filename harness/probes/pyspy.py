"""Flame graphs of a few training steps by py-spy, which reads the processes from outside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from harness.core.atomic_files import move_whole
from harness.core.errors import RunStopped, UserError
from harness.core.extras import how_to_install
from harness.core.private_dir import PrivateDir
from harness.probes.profile import PySpyWindow
from harness.probes.windows import lanes_in, process_name
from harness.results.anonymous import Scrubber
from harness.results.counters import DRIVER

ATTACH_S, POLL_S = 30.0, 0.02
"""Seconds that py-spy may take until it samples, and later until it has written its file; and between two looks."""
SUFFIXES = {"speedscope": ".speedscope.json", "flamegraph": ".svg", "raw": ".txt"}
PTRACE_FIX = "allow it with `sysctl kernel.yama.ptrace_scope=0` as root (in a container: --cap-add SYS_PTRACE)"
_SAMPLES = re.compile(r"Samples: (\d+)")
_OWN_COMMAND = re.compile(r"[^<>]*py-spy record [^<>]*")


def pyspy_program() -> Path:
    """Return where this environment has py-spy, if it has it."""
    return Path(sys.executable).parent / "py-spy"


def check_pyspy(program: Path | None = None) -> None:
    """See whether py-spy is there and may look into processes, by letting it look into this one.

    Args:
        program: py-spy; None takes that of this environment.

    Raises:
        UserError: it is not there, or may not.
    """
    command = [str(program or pyspy_program()), "dump", "--pid", str(os.getpid())]
    fix = PTRACE_FIX
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=ATTACH_S)
    except FileNotFoundError:
        what, fix = "there is no py-spy in this environment", how_to_install("train")
    except subprocess.TimeoutExpired:
        what = f"py-spy could not read this process within {ATTACH_S:g} s"
    else:
        if done.returncode == 0:
            return
        what = f"py-spy cannot read other processes here: {_reason(done.stderr)}"
    raise UserError(what, "pyspy of the probe profile", fix)


class _Recording(NamedTuple):
    """One py-spy at work: the name of its file, what it writes, and what it says."""

    name: str
    process: subprocess.Popen[bytes]
    draft: Path
    words: Path

    def says(self) -> str:
        return self.words.read_text(encoding="utf-8", errors="replace")

    def ended(self) -> bool:
        return self.process.poll() is not None

    def samples(self) -> bool:
        return "Sampling process" in self.says()


class PySpyRecorder:
    """Runs one ``py-spy record`` on each chosen lane's process, from the start of the window to its end.

    Args:
        processes: returns the process ids by lane, of the parts with a process of their own; empty if there are none.
        folder: where the files go; made if need be.
        program: py-spy; None takes that of this environment.
        scrubber: takes paths and names out of the files; None takes that of this process.

    Attributes:
        files: what was recorded.
        notes: processes that did nothing in the window, in words.
    """

    def __init__(
        self,
        window: PySpyWindow,
        processes: Callable[[], Mapping[str, int]],
        folder: Path,
        program: Path | None = None,
        scrubber: Scrubber | None = None,
    ) -> None:
        self._window, self._processes, self._folder = window, processes, folder
        self._program, self._scrubber = program or pyspy_program(), scrubber or Scrubber.of_this_process()
        self._temporary: PrivateDir | None = None
        self._recordings: list[_Recording] = []
        self._over = False
        self.files: list[Path] = []
        self.notes: list[str] = []

    def on_step_starts(self, step: int) -> None:
        """A training step begins: if the window does too, return when every py-spy samples.

        Raises:
            RunStopped: one does not.
        """
        if step not in self._window.numbers or self._temporary is not None or self._over:
            return
        self._temporary = PrivateDir()
        targets = self._targets()
        try:
            for name, pid in targets.items():
                self._recordings.append(self._record(name, pid, self._temporary.path))
            for recording in self._recordings:
                _wait(lambda it=recording: it.samples() or it.ended())  # type: ignore[misc]
                if not recording.samples():  # one that has just ended may have been sampled all the same
                    raise RunStopped(f"py-spy does not sample {recording.name}: {_reason(recording.says())}")
        except BaseException:
            self._end()
            raise

    def on_step(self, step: int) -> None:
        """A training step is complete: if the window is too, stop and keep the files.

        Raises:
            RunStopped: see ``close``.
        """
        if step >= self._window.numbers[-1]:
            self.close()

    def close(self) -> list[Path]:
        """Stop whatever runs; return the files of the window.

        Raises:
            RunStopped: a file is missing, or not one of them holds a sample.
        """
        any_recording = bool(self._recordings)
        try:
            for recording in self._recordings:
                recording.process.send_signal(signal.SIGINT)  # it writes its file then
            failures = [failure for recording in self._recordings if (failure := self._keep(recording)) is not None]
        finally:
            self._end()
        if any_recording and not self.files:
            failures += self.notes
        if failures:
            raise RunStopped(f"py-spy recorded nothing: {'; '.join(failures)}")
        return self.files

    def _end(self) -> None:
        recordings, self._recordings, self._over = self._recordings, [], True
        for recording in recordings:
            recording.process.kill()
            recording.process.wait()
        if self._temporary is not None:
            self._temporary.close()
            self._temporary = None

    def _targets(self) -> dict[str, int]:
        """Process ids by the name of their file: lanes that share a process share the file."""
        processes = self._processes()
        if not processes:
            return {DRIVER: os.getpid()}  # all work in this process
        lanes: dict[int, list[str]] = {}
        for lane in lanes_in(self._window, processes):
            lanes.setdefault(processes[lane], []).append(lane)
        return {process_name(names): pid for pid, names in lanes.items()}

    def _record(self, name: str, pid: int, folder: Path) -> _Recording:
        draft, words = folder / f"{name}.draft", folder / f"{name}.words"
        options = ["--rate", str(self._window.rate_hz), "--format", self._window.format, "--threads"]
        options += ["--nonblocking"] if self._window.nonblocking else []
        command = [str(self._program), "record", "--pid", str(pid), "--output", str(draft), *options]
        with open(words, "wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        return _Recording(name, process, draft, words)

    def _keep(self, recording: _Recording) -> str | None:
        """Move the file into the folder without paths and names; return why that failed, if it did."""
        if not _wait(recording.ended):
            return f"{recording.name}: no file within {ATTACH_S:g} s"
        text = recording.says()
        samples = _SAMPLES.search(text)
        if not samples or not recording.draft.is_file():
            return f"{recording.name}: {_reason(text)}"
        if int(samples[1]) == 0:  # idle threads are left out
            self.notes.append(f"{recording.name}: not one sample, so it was idle or the window too short for the rate")
            return None
        file = self._folder / f"{recording.name}{SUFFIXES[self._window.format]}"
        self._folder.mkdir(parents=True, exist_ok=True)
        text = recording.draft.read_text(encoding="utf-8", errors="replace")
        recording.draft.write_text(self._scrubber.text(_OWN_COMMAND.sub("py-spy", text)), encoding="utf-8")
        move_whole(recording.draft, file)
        self.files.append(file)
        return None


def _wait(condition: Callable[[], bool]) -> bool:
    """Return whether the condition held within the limit."""
    end = time.monotonic() + ATTACH_S
    while not condition():
        if time.monotonic() > end:
            return condition()
        time.sleep(POLL_S)
    return True


def _reason(text: str) -> str:
    """Return the line that says why py-spy failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("py-spy>")]
    if any("ermission" in line or "not permitted" in line for line in lines):
        return f"no permission; {PTRACE_FIX}"
    return lines[0] if lines else "it gave no reason"
