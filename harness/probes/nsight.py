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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from harness.core.atomic_files import move_whole
from harness.core.errors import RunStopped, UserError
from harness.probes.profile import NsightWindow
from harness.probes.windows import ProfilerWindow, process_name
from harness.record.nvtx_ranges import CAPTURE_RANGE, DOMAIN, NvtxRanges, open_domain
from harness.record.recording import LISTENERS

SESSION_CONFIG = {"process_group_cleanup_enabled": False}
"""For ``ray.init(_system_config=...)``: else Ray 2.60 kills nsys with its actor, before the report is written."""
REGISTER_ONLY = "NSYS_NVTX_PROFILER_REGISTER_ONLY"
"""At 0, nsys also starts a capture at a range whose name was not registered beforehand."""
REPORT_SUFFIX = ".nsys-rep"
STABLE_S, POLL_S = 2.0, 0.1
"""Seconds that a report keeps its size when it is complete, and between two looks at it."""
WHERE = "nsight of the probe profile"

_SIGNS = (REGISTER_ONLY, *LISTENERS)
_NAME = re.compile(r"[a-z][a-z0-9-]+")
_VALUE = re.compile(r"[\w.,:=+@%/-]+", re.ASCII)  # nothing that the shell, through which Ray starts it, would read
_OURS = ("o", "output", "force-overwrite")


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
        as_actors: whether the parts are Ray actors; else they work in this process, which nsys must have started.
        local_ray: whether Ray is started by this command.
        command: what was typed, to be shown behind ``nsys profile``.
        cuda: whether the parts compute on a GPU.

    Raises:
        UserError: nsys is not there, must start the command itself, or could not start or keep the actors.
    """
    for name, value in window.options.items():
        place = f"options.{name} of {WHERE}"
        if name in _OURS:
            what = f"the option {name!r} of nsys cannot be set here"
            raise UserError(what, place, "leave it out: reports are named by lane")
        if len(name) == 1:
            raise UserError(f"the option {name!r} of nsys cannot be set here", place, "write its long name")
        if not _NAME.fullmatch(name):
            what = f"{name!r} is no name of an option of nsys"
            raise UserError(what, place, "its long name, without dashes in front")
        if not _VALUE.fullmatch(value):
            raise UserError(f"{value!r} cannot be passed to nsys", place, "letters, digits and . , : = + @ % / - alone")
    if as_actors and local_ray:
        check_nsys(environment)
    python = Path(executable).parent / "python"  # which Ray starts under nsys, and which we let it find
    if not as_actors and any(name in environment for name in _SIGNS):
        return
    if not as_actors:
        what = "the parts of this run work in one process, so nsys must start the whole command"
        fix = nsys_command(window, command, cuda) + "\n         or set placement so that the parts are Ray actors"
    elif not local_ray:
        what = "reports of actors on a cluster that was joined stay on its nodes, and nobody waits for them"
        fix = "set placement.address to local, or profile on one node"
    elif not python.exists() or os.path.realpath(python) != os.path.realpath(executable):
        beside = Path(executable).name
        what = f"Ray starts the program `python` under nsys (ray#66093), and there is none beside {beside}"
        fix = "run the harness from a virtual environment: its bin folder has a `python`"
    else:
        return
    raise UserError(what, WHERE, fix)


def check_nsys(environment: Mapping[str, str] = os.environ) -> None:
    """See whether nsys is there.

    Raises:
        UserError: it is not.
    """
    if shutil.which("nsys", path=environment.get("PATH", "")) is None:
        what = "there is no nsys on the PATH: Nsight Systems is not installed, or not where the shell looks"
        raise UserError(
            what, WHERE, "install NVIDIA Nsight Systems and add its folder to PATH, or take another probe profile"
        )


def nsys_options(window: NsightWindow, cuda: bool) -> dict[str, str]:
    """Return the options of ``nsys profile`` by their long names, the window's own ones last.

    With CUDA the process itself starts and stops the capture through the CUDA profiler API; without it, an NVTX range
    does. After the range nsys lets the process go on, and writes the report when it has ended. ``ucx`` is not traced,
    also where NIXL moves the weights: Nsight Systems 2022.4 crashes UCX 1.23 (of NIXL 1.5.1) with it.
    """
    options = {"trace": "cuda,nvtx" if cuda else "nvtx,osrt", "sample": "none", "cpuctxsw": "none"}
    if cuda:
        options |= {"cuda-graph-trace": "node", "capture-range": "cudaProfilerApi"}
    else:
        options |= {"capture-range": "nvtx", "nvtx-capture": f"{CAPTURE_RANGE}@{DOMAIN}"}
    return options | {"capture-range-end": "stop", "stop-on-exit": "true", "wait": "primary"} | window.options


def nsys_arguments(window: NsightWindow, command: Sequence[str], cuda: bool, report: str | Path) -> list[str]:
    """Return a command with the nsys in front that starts it; ``report``: its file, without the suffix."""
    options = [f"--{name}={value}" for name, value in nsys_options(window, cuda).items()]
    return ["nsys", "profile", *options, f"--env-var={REGISTER_ONLY}=0", f"--output={report}", *command]


def nsys_command(window: NsightWindow, command: Sequence[str], cuda: bool) -> str:
    """Return what to type so that nsys starts an in-process run, whose own command is ``command``."""
    return shlex.join(nsys_arguments(window, command, cuda, "grpo"))


def nsight_runtime_env(
    window: NsightWindow, lane: str, tag: str, cuda: bool, executable: str = sys.executable
) -> dict[str, Any]:
    """Return what an actor's ``runtime_env`` needs: ``nsight`` (for nsys) and ``env_vars`` (to be merged).

    Args:
        lane: of the actor; names the report.
        tag: tells the reports of one run from those of other runs with the same Ray.
        cuda: whether the actor computes on a GPU.
        executable: the interpreter; Ray starts the ``python`` found first on the PATH.
    """
    report = f"{tag}-{process_name([lane])}_%p"  # Ray puts its folder for reports in front
    path = f"{Path(executable).parent}:${{PATH}}"  # Ray fills in the variable
    return {"nsight": nsys_options(window, cuda) | {"o": report}, "env_vars": {"PATH": path, REGISTER_ONLY: "0"}}


class NsightCapture(ProfilerWindow):
    """Starts and stops the capture from within the profiled process.

    Args:
        cuda: whether the process computes on a GPU.
    """

    def __init__(self, window: NsightWindow, lanes: Collection[str], cuda: bool) -> None:
        super().__init__(window, lanes)
        self._cuda = cuda
        self._end_range: Callable[[], None] | None = None

    def start(self) -> None:
        if self._cuda:
            _cuda().profiler.start()
        domain, _ = open_domain()
        if domain is not None:
            ranges = NvtxRanges(domain)
            self._end_range = partial(ranges.end, ranges.begin_capture())

    def stop(self) -> None:
        if self._end_range is not None:
            self._end_range()
        if self._cuda:
            _cuda().synchronize()  # what was launched inside the window belongs in the report
            _cuda().profiler.stop()


def _cuda() -> Any:
    import torch

    return torch.cuda


def report_folders(ray_folder: Path) -> list[Path]:
    """Return where Ray, with this ``_temp_dir``, has nsys write reports."""
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
    lane is done when its actor and the nsys around it are gone and its report has kept its size for ``stable_s``. A
    lane whose actor was replaced may have more than one report; those beyond the first are numbered.

    Args:
        folders: returns where Ray has nsys write.
        tag: of the run; nsys, as a process, has it with the report's name in its command line.
        processes: process ids of the profiled actors, on this machine, by lane.
        timeout_s: for all of them together.

    Raises:
        RunStopped: a lane has no complete report in time; those of the others are moved all the same.
    """
    names = {lane: process_name([lane]) for lane in processes}
    seen: dict[Path, tuple[int, float]] = {}  # bytes of each, and since when
    end = time.monotonic() + timeout_s
    while True:
        now, reports, unfinished = time.monotonic(), dict[str, list[Path]](), dict[str, str]()
        for lane, pid in processes.items():
            prefix = f"{tag}-{names[lane]}_"
            paths = sorted(path for folder in folders() for path in folder.glob(f"{prefix}*{REPORT_SUFFIX}"))
            sizes = {path: path.stat().st_size for path in paths}
            seen |= {path: (size, now) for path, size in sizes.items() if seen.get(path, (-1, now))[0] != size}
            reports[lane] = [path for path, size in sizes.items() if size]
            if is_alive(pid):
                unfinished[lane] = f"its process {pid} has not ended"
                continue
            at_work = any(prefix in " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
            if at_work or not reports[lane] or any(now - seen[path][1] < stable_s for path in paths):
                files = ", ".join(f"a file of {size} bytes" for size in sizes.values()) or "no file"
                unfinished[lane] = f"{files}, and nsys {'is still at work' if at_work else 'has ended'}"
        if not unfinished or now >= end:
            break
        time.sleep(POLL_S)
    moved = list[Path]()
    into.mkdir(parents=True, exist_ok=True)
    for lane in (lane for lane in processes if lane not in unfinished):
        for number, file in enumerate(reports[lane]):
            moved.append(into / f"{names[lane]}{f'-{number}' if number else ''}{REPORT_SUFFIX}")
            move_whole(file, moved[-1])
    if unfinished:
        states = "; ".join(f"{lane}: {state}" for lane, state in unfinished.items())
        raise RunStopped(
            f"nsys left no complete report of {len(unfinished)} of {len(processes)} lanes within {timeout_s:g} "
            f"s: {states} (report_timeout_s is the bound; docs/nsight.md lists what prevents a report)"
        )
    return moved


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody has asked about does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
