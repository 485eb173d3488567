"""Nsight Systems around the actors of a run: checks before it, options for Ray, and the start and stop of a capture.

Ray starts an actor under ``nsys profile`` where its runtime environment says ``nsight``. Options as in NVIDIA's user
guide (https://docs.nvidia.com/nsight-systems/UserGuide/index.html, "CLI Profile Command Switch Options").
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness.core.errors import UserError
from harness.probes.nvtx_ranges import DOMAIN, INJECTION, open_domain
from harness.probes.profile import NsightWindow

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
    options = nsys_options(window, cuda) | {"o": f"{tag}-{lane}_%p"}  # Ray puts its folder for reports in front
    path = f"{Path(executable).parent}:${{PATH}}"  # Ray fills in the variable
    return {"nsight": options, "env_vars": {"PATH": path, REGISTER_ONLY: "0"}}


class CaptureControl:
    """Starts and stops the capture from within the profiled process; for a ``WindowTracer``.

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
    """What was launched inside the window belongs into the report."""
    import torch

    torch.cuda.synchronize()
