"""What is said before a run under nsys, the options that Ray gets, and the wait for reports that come late or never."""

import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ray._private.runtime_env.nsight import parse_nsight_config

from harness.core.errors import RunStopped, UserError
from harness.probes.nsight import (
    NsightCapture,
    check_nsight,
    nsight_runtime_env,
    nsys_command,
    nsys_options,
    report_folders,
    wait_for_reports,
)
from harness.probes.profile import NsightWindow

NSYS = Path(__file__).parents[1] / "stand_ins" / "nsys"
COMMAND = ["python", "-m", "harness", "run", "my scenario.yaml"]


@pytest.fixture
def nsys(tmp_path: Path) -> Path:
    """The stand-in for nsys, in a folder of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return Path(shutil.copy(NSYS, folder))


class Profiled:
    """Programs that run under nsys as Ray starts them."""

    def __init__(self, nsys: Path, reports: Path, tag: str) -> None:
        self.nsys, self.reports, self.tag = nsys, reports, tag
        self.launchers: list[subprocess.Popen[bytes]] = []

    def start(self, lane: str, seconds: str = "1", tag: str | None = None) -> int:
        """Start a program that ends by itself; return its process id."""
        options = ["-o", f"{self.reports}/{tag or self.tag}-{lane}_%p", "--trace=nvtx"]
        self.launchers.append(subprocess.Popen([self.nsys, "profile", *options, "sleep", seconds]))
        return self._child(self.launchers[-1].pid)

    def _child(self, pid: int) -> int:
        children = Path(f"/proc/{pid}/task/{pid}/children")
        while True:  # the script has other children before
            for child in map(int, children.read_text().split()):
                with suppress(OSError):
                    if Path(f"/proc/{child}/comm").read_text() == "sleep\n":
                        return child
            time.sleep(0.01)


@pytest.fixture
def profiled(nsys: Path, tmp_path: Path) -> Iterator[Profiled]:
    reports = tmp_path / "ray" / "session_1" / "logs" / "nsight"
    reports.mkdir(parents=True)
    programs = Profiled(nsys, reports, secrets.token_hex(6))
    yield programs
    for launcher in programs.launchers:
        launcher.kill()
        launcher.wait()


def check(
    window: NsightWindow | None = None,
    as_actors: bool = True,
    local_ray: bool = True,
    path: str = "",
    executable: str = sys.executable,
    **environment: str,
) -> None:
    seen = {"PATH": path, **environment}
    check_nsight(window or NsightWindow(), as_actors, local_ray, COMMAND, environment=seen, executable=executable)


# ---- before anything starts


def test_without_nsys_and_on_the_nodes_of_a_cluster_it_says_what_to_do(nsys: Path, tmp_path: Path) -> None:
    check(path=str(nsys.parent))
    with pytest.raises(UserError, match=r"no nsys on the PATH(.|\n)*install NVIDIA"):
        check(path=str(tmp_path))
    with pytest.raises(UserError, match=r"cluster that was joined(.|\n)*placement.address to local"):
        check(path=str(nsys.parent), local_ray=False)


def test_an_interpreter_without_a_python_beside_it_is_refused_since_ray_starts_that(nsys: Path, tmp_path: Path) -> None:
    alone = tmp_path / "python3.11"
    alone.symlink_to(os.path.realpath(shutil.which("python3") or "python3"))
    with pytest.raises(UserError, match=r"ray#66093(.|\n)*virtual environment"):
        check(path=str(nsys.parent), executable=str(alone))
    (tmp_path / "python").symlink_to("/bin/true")  # another program of that name
    with pytest.raises(UserError, match="ray#66093"):
        check(path=str(nsys.parent), executable=str(alone))
    (tmp_path / "python").unlink()
    (tmp_path / "python").symlink_to(alone)
    check(path=str(nsys.parent), executable=str(alone))


def test_a_run_in_one_process_is_told_the_command_to_type(nsys: Path) -> None:
    with pytest.raises(UserError) as refused:
        check(as_actors=False, path=str(nsys.parent))
    typed = shlex.split((refused.value.fix or "").splitlines()[0])
    assert typed[:2] == ["nsys", "profile"]
    assert typed[-len(COMMAND) :] == COMMAND
    assert "--capture-range=nvtx" in typed
    check(as_actors=False, NSYS_NVTX_PROFILER_REGISTER_ONLY="0")  # which that command sets
    assert "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0" in typed


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("t", "cuda", "write its long name"),
        ("o", "mine", "reports are named by lane"),
        ("output", "mine", "reports are named by lane"),
        ("--trace", "cuda", "without dashes in front"),
        ("trace", "cuda; rm -r x", "letters, digits"),
        ("trace", "$(id)", "letters, digits"),
    ],
)
def test_options_that_the_shell_would_read_or_that_are_ours_are_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check(NsightWindow(options={name: value}))


# ---- what Ray gets


def test_with_cuda_the_cuda_profiler_starts_and_stops_the_capture_and_else_an_nvtx_range() -> None:
    usual = {
        "sample": "none",
        "cpuctxsw": "none",
        "capture-range-end": "stop",
        "stop-on-exit": "true",
        "wait": "primary",
    }
    with_cuda = {"trace": "cuda,nvtx", "cuda-graph-trace": "node", "capture-range": "cudaProfilerApi"}
    without = {"trace": "nvtx,osrt", "capture-range": "nvtx", "nvtx-capture": "profiled_steps@grpo"}
    assert nsys_options(NsightWindow(), cuda=True) == usual | with_cuda
    assert nsys_options(NsightWindow(), cuda=False) == usual | without
    own = {"trace": "cuda,nvtx,cublas", "cuda-memory-usage": "true"}  # replace the usual ones or are added
    assert nsys_options(NsightWindow(options=own), cuda=True) == usual | with_cuda | own
    assert "--trace=cuda,nvtx,cublas" in nsys_command(NsightWindow(options=own), COMMAND, cuda=True)


def test_ray_makes_the_command_of_it_and_finds_our_python_first(tmp_path: Path) -> None:
    environment = nsight_runtime_env(NsightWindow(), "generator0", "tag", True, executable=f"{tmp_path}/bin/python")
    command = parse_nsight_config(environment["nsight"])
    assert command[:3] == ["nsys", "profile", "--trace=cuda,nvtx"]
    assert command[-2:] == ["-o", "tag-generator0_%p"]
    assert environment["env_vars"] == {"PATH": f"{tmp_path}/bin:${{PATH}}", "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


def test_the_capture_can_be_started_and_stopped_where_nobody_listens() -> None:
    capture = NsightCapture(NsightWindow(), ["learner"], cuda=False)
    capture.start()
    capture.stop()


# ---- the reports


def collect(profiled: Profiled, processes: dict[str, int], into: Path, timeout_s: float = 60.0) -> list[Path]:
    folders: Callable[[], list[Path]] = lambda: report_folders(profiled.reports.parents[2])  # noqa: E731
    return wait_for_reports(folders, profiled.tag, processes, timeout_s, into, stable_s=0.5)


def test_reports_that_are_written_slowly_come_whole_and_a_replaced_lane_has_all_of_its_own(
    profiled: Profiled, tmp_path: Path
) -> None:
    processes = {lane: profiled.start(lane) for lane in ("learner", "generator0")}
    replacing = profiled.start("generator0")
    profiled.start("learner", tag="another-run")
    assert replacing != processes["generator0"]
    found = collect(profiled, processes | {"generator0": replacing}, tmp_path / "run" / "nsight")
    assert [path.name for path in found] == ["learner.nsys-rep", "generator0.nsys-rep", "generator0-1.nsys-rep"]
    assert [path.read_text() for path in found] == ["1\n2\n3\nend\n"] * 3


@pytest.mark.parametrize(("mode", "state"), [("never", "no file"), ("empty", "a file of 0 bytes")])
def test_a_report_that_never_comes_stops_the_run_and_names_the_lane(
    mode: str, state: str, profiled: Profiled, tmp_path: Path
) -> None:
    (profiled.nsys.parent / "mode").write_text(mode)
    processes = {"generator0": profiled.start("generator0")}
    profiled.launchers[-1].wait()
    (profiled.nsys.parent / "mode").write_text("")
    processes["learner"] = profiled.start("learner")
    profiled.launchers[-1].wait()
    expected = f"no complete report of 1 of 2 lanes within 2 s: generator0: {state}, and nsys has ended .*nsight.md"
    with pytest.raises(RunStopped, match=expected):
        collect(profiled, processes, tmp_path / "run", timeout_s=2)
    assert (tmp_path / "run" / "learner.nsys-rep").read_text() == "1\n2\n3\nend\n"


def test_a_process_that_does_not_end_is_named(profiled: Profiled, tmp_path: Path) -> None:
    pid = profiled.start("learner", seconds="600")
    try:
        with pytest.raises(RunStopped, match=f"learner: its process {pid} has not ended"):
            collect(profiled, {"learner": pid}, tmp_path, timeout_s=0.5)
    finally:
        os.kill(pid, 9)
