"""Nsight Systems around the actors of a run: checks, options for Ray, start and stop of a capture, and its reports.

Ray starts an actor under ``nsys profile`` where its runtime environment says ``nsight``. Options as in NVIDIA's user
guide (https://docs.nvidia.com/nsight-systems/UserGuide/index.html, "CLI Profile Command Switch Options").

nsys writes its reports when its actors have ended. Ending Ray, or killing an actor's process group, kills the nsys that
is still writing (ray#60904). So the actors are asked to end, and nothing else is ended until every report is complete.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness.core.atomic_files import move_whole
from harness.core.errors import RunStopped, UserError
from harness.probes.nvtx_ranges import DOMAIN, INJECTION, open_domain
from harness.probes.profile import NsightWindow
from harness.probes.windows import process_name

SESSION_CONFIG = {"process_group_cleanup_enabled": False}
"""For ``ray.init(_system_config=...)``: else Ray 2.60 kills nsys with its actor, before the report is written."""
CAPTURE_RANGE = "profiled_steps"
"""NVTX range that is open during the window; without CUDA it is what starts and stops the capture."""
REGISTER_ONLY = "NSYS_NVTX_PROFILER_REGISTER_ONLY"
"""At 0, nsys also starts a capture at a range whose name was not registered beforehand."""
WHERE = "nsight of the probe profile"

_SIGNS = (REGISTER_ONLY, "NSYS_PROFILING_SESSION_ID", INJECTION, "NSYSDK_INJECTION64_PATH")
_NAME = re.compile(r"[a-z][a-z0-9-]+")
_VALUE = re.compile(r"[\w.,:=+@%/-]+", re.ASCII)  # nothing that the shell, through which Ray starts it, would read
_OURS = frozenset({"output", "force-overwrite"})


def check_nsight(
    window: NsightWindow,
    as_actors: bool,
    local_ray: bool,
    command: Sequence[str],
    cuda: bool = False,
    environment: Mapping[str, str] = os.environ,
    executable: str = sys.executable,
) -> None:
    """See before anything starts whether the run can be profiled.

    Args:
        window: what is wanted.
        as_actors: whether the parts are Ray actors; else they work in this process, which nsys must have started.
        local_ray: whether Ray is started by this command.
        command: what was typed, to be shown behind ``nsys profile``.
        cuda: whether the parts compute on a GPU.
        environment: of this process.
        executable: the interpreter.

    Raises:
        UserError: nsys is not there, must start the command itself, or could not start or keep the actors.
    """
    _check_options(window)
    if not as_actors:
        _check_started_by_nsys(window, command, cuda, environment)
        return
    if not local_ray:
        raise UserError(
            "reports of actors on a cluster that was joined stay on its nodes, and nobody waits for them",
            WHERE,
            "set placement.address to local, or profile on one node",
        )
    _check_installed(environment)
    _check_interpreter(Path(executable))


def _check_options(window: NsightWindow) -> None:
    for name, value in window.options.items():
        place = f"options.{name} of {WHERE}"
        if name in _OURS or len(name) == 1:
            fix = "leave it out: reports are named by lane" if name in _OURS or name == "o" else "write its long name"
            raise UserError(f"the option {name!r} of nsys cannot be set here", place, fix)
        if not _NAME.fullmatch(name):
            raise UserError(
                f"{name!r} is no name of an option of nsys", place, "its long name, without dashes in front"
            )
        if not _VALUE.fullmatch(value):
            raise UserError(f"{value!r} cannot be passed to nsys", place, "letters, digits and . , : = + @ % / - alone")


def _check_started_by_nsys(
    window: NsightWindow, command: Sequence[str], cuda: bool, environment: Mapping[str, str]
) -> None:
    if not any(name in environment for name in _SIGNS):
        raise UserError(
            "the parts of this run work in one process, so nsys must start the whole command",
            WHERE,
            nsys_command(window, command, cuda) + "\n         or set placement so that the parts are Ray actors",
        )


def _check_installed(environment: Mapping[str, str]) -> None:
    if shutil.which("nsys", path=environment.get("PATH", "")) is None:
        raise UserError(
            "there is no nsys on the PATH: Nsight Systems is not installed, or not where the shell looks",
            WHERE,
            "install NVIDIA Nsight Systems and add its folder to PATH, or take another probe profile",
        )


def _check_interpreter(executable: Path) -> None:
    """Ray starts a bare ``python`` under nsys (ray#66093), which we let it find beside the interpreter."""
    python = executable.parent / "python"
    if not python.exists() or os.path.realpath(python) != os.path.realpath(executable):
        raise UserError(
            f"Ray starts the program `python` under nsys (ray#66093), and there is none beside {executable.name}",
            WHERE,
            "run the harness from a virtual environment: its bin folder has a `python`",
        )


def nsys_options(window: NsightWindow, cuda: bool) -> dict[str, str]:
    """Return the options of ``nsys profile`` by their long names.

    With CUDA the process itself starts and stops the capture through the CUDA profiler API; without it, an NVTX range
    does. After the range nsys lets the process go on, and writes the report when it has ended. ``ucx`` is not traced,
    also where NIXL moves the weights: Nsight Systems 2022.4 crashes UCX 1.23 (of NIXL 1.5.1) with it.

    Args:
        window: whose own options come last.
        cuda: whether the process computes on a GPU.
    """
    options = {"trace": "cuda,nvtx" if cuda else "nvtx,osrt", "sample": "none", "cpuctxsw": "none"}
    if cuda:
        options |= {"cuda-graph-trace": "node", "capture-range": "cudaProfilerApi"}
    else:
        options |= {"capture-range": "nvtx", "nvtx-capture": f"{CAPTURE_RANGE}@{DOMAIN}"}
    return options | {"capture-range-end": "stop", "stop-on-exit": "true", "wait": "primary"} | window.options


def nsys_command(window: NsightWindow, command: Sequence[str], cuda: bool) -> str:
    """Return what to type so that nsys starts an in-process run.

    Args:
        window: what is wanted.
        command: the run's own command.
        cuda: whether it computes on a GPU.
    """
    options = [f"--{name}={value}" for name, value in nsys_options(window, cuda).items()]
    return shlex.join(["nsys", "profile", *options, f"--env-var={REGISTER_ONLY}=0", "--output=grpo", *command])


def new_tag() -> str:
    """Return what tells the reports of one run from those of other runs with the same Ray."""
    return uuid.uuid4().hex[:12]


def nsight_runtime_env(
    window: NsightWindow, lane: str, tag: str, cuda: bool, executable: str = sys.executable
) -> dict[str, Any]:
    """Return what an actor's ``runtime_env`` needs: ``nsight`` (for nsys) and ``env_vars`` (to be merged).

    Args:
        window: what is wanted.
        lane: of the actor; names the report.
        tag: of the run.
        cuda: whether the actor computes on a GPU.
        executable: the interpreter; Ray starts the ``python`` found first on the PATH.
    """
    options = nsys_options(window, cuda) | {
        "o": f"{tag}-{process_name([lane])}_%p"
    }  # Ray puts its folder for reports in front
    path = f"{Path(executable).parent}:${{PATH}}"  # Ray fills in the variable
    return {"nsight": options, "env_vars": {"PATH": path, REGISTER_ONLY: "0"}}


class CaptureControl:
    """Starts and stops the capture from within the profiled process; for a ``ProfilerWindow``.

    Args:
        cuda: whether the process computes on a GPU.
    """

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda
        self._end: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start it."""
        if self._cuda:
            _cuda_profiler().start()
        domain, _ = open_domain()
        if domain is not None:
            attributes = domain.get_event_attributes(CAPTURE_RANGE, category="window")
            self._end = partial(domain.end_range, domain.start_range(attributes, payload=-1))

    def stop(self) -> None:
        """Stop it."""
        self._end()
        if self._cuda:
            _finish_launched_work()
            _cuda_profiler().stop()


def _cuda_profiler() -> Any:
    import torch

    return torch.cuda.profiler


def _finish_launched_work() -> None:
    """What was launched inside the window belongs in the report."""
    import torch

    torch.cuda.synchronize()


REPORT_SUFFIX = ".nsys-rep"
STABLE_S = 2.0
"""Seconds that a report keeps its size when it is complete."""
POLL_S = 0.1


def report_folders(ray_folder: Path) -> list[Path]:
    """Return where Ray has nsys write reports.

    Args:
        ray_folder: ``_temp_dir`` of ``ray.init``.
    """
    return sorted({path.resolve() for path in ray_folder.glob("session_*/logs/nsight")})


def wait_for_reports(
    folders: Callable[[], Iterable[Path]],
    tag: str,
    processes: Mapping[str, int],
    timeout_s: float,
    into: Path,
    stable_s: float = STABLE_S,
) -> list[Path]:
    """Wait until every profiled lane has a complete report, and move the reports into the run's folder.

    To be called after ``__ray_terminate__`` was sent to the actors, and before anything kills them or ends Ray. A
    lane is done when its actor and the nsys around it are gone and its report has kept its size for a while. A lane
    whose actor was replaced may have more than one report; those beyond the first are numbered.

    Args:
        folders: returns where Ray has nsys write.
        tag: of the run; nsys has it in its command line.
        processes: process ids of the profiled actors, on this machine, by lane.
        timeout_s: how long to wait for all of them together.
        into: where the reports go; made if need be.
        stable_s: how long a complete report keeps its size.

    Returns:
        The reports.

    Raises:
        RunStopped: a lane has no complete report in time; those of the others are moved all the same.
    """
    lanes = [
        _LaneReports(folders, f"{tag}-{process_name([lane])}_", lane, pid, stable_s) for lane, pid in processes.items()
    ]
    end = time.monotonic() + timeout_s
    complete = [lane for lane in lanes if lane.is_complete()]
    while len(complete) < len(lanes) and time.monotonic() < end:
        time.sleep(POLL_S)
        complete = [lane for lane in lanes if lane.is_complete()]
    moved = [path for lane in complete for path in _move(lane, into)]
    missing = [lane for lane in lanes if lane not in complete]
    if missing:
        states = "; ".join(f"{lane.lane}: {lane.state()}" for lane in missing)
        raise RunStopped(
            f"nsys left no complete report of {len(missing)} of {len(lanes)} lanes within {timeout_s:g} s: {states} "
            "(report_timeout_s is the bound; docs/nsight.md lists what prevents a report)"
        )
    return moved


class _LaneReports:
    """The reports of one lane as they grow."""

    def __init__(
        self, folders: Callable[[], Iterable[Path]], prefix: str, lane: str, pid: int, stable_s: float
    ) -> None:
        self._folders, self._prefix, self.lane, self._pid, self._stable_s = folders, prefix, lane, pid, stable_s
        self._seen: dict[Path, tuple[int, float]] = {}

    def files(self) -> dict[Path, int]:
        """Bytes of each report."""
        found = (path for folder in self._folders() for path in folder.glob(f"{self._prefix}*{REPORT_SUFFIX}"))
        return {path: path.stat().st_size for path in sorted(found)}

    def is_complete(self) -> bool:
        """Whether nobody works on it any more, and it has kept its size for a while."""
        now, files = time.monotonic(), self.files()
        self._seen = {
            path: self._seen[path] if self._seen.get(path, (-1, now))[0] == size else (size, now)
            for path, size in files.items()
        }
        stable = all(now - since >= self._stable_s for _, since in self._seen.values())
        return any(files.values()) and stable and not is_alive(self._pid) and not _runs(self._prefix)

    def state(self) -> str:
        """What there is."""
        if is_alive(self._pid):
            return f"its process {self._pid} has not ended"
        files = ", ".join(f"a file of {size} bytes" for size in self.files().values()) or "no file"
        return f"{files}, and nsys {'is still at work' if _runs(self._prefix) else 'has ended'}"


def _move(reports: _LaneReports, into: Path) -> list[Path]:
    into.mkdir(parents=True, exist_ok=True)
    files = [path for path, size in reports.files().items() if size]
    names = [
        f"{process_name([reports.lane])}{REPORT_SUFFIX}",
        *(f"{process_name([reports.lane])}-{number}{REPORT_SUFFIX}" for number in range(1, len(files))),
    ]
    for file, name in zip(files, names, strict=True):
        move_whole(file, into / name)
    return [into / name for name in names]


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody has asked about does not."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] != "Z"
        )
    except (OSError, IndexError):
        return False


def _runs(words: str) -> bool:
    """Whether some process has these words in its command line."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words.encode() in entry.read_bytes():
                return True
        except OSError:  # it has just ended
            continue
    return False
