"""What a command may leave behind: nothing. Processes are told by a mark in the environment that they inherit."""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.results import Run, find_runs
from harness.run.experiment import run_scenario
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario

MARK = "HARNESS_TEST_MARK"
DEADLINE_S = 300.0
ROOT = Path(__file__).parents[2]


def wait_until(
    condition: Callable[[], object],
    what: str,
    deadline_s: float = DEADLINE_S,
    process: subprocess.Popen[str] | None = None,
    pause_s: float = 0.05,
) -> None:
    """Return when the condition holds; it is asked again and again, since other processes decide when.

    Args:
        process: must go on until then.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
        assert process is None or process.poll() is None, f"ended before {what}: {process.communicate()}"
        time.sleep(pause_s)


def start(
    *words: str, cwd: Path | None = None, environment: Mapping[str, str] = os.environ, prefix: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start a command of the harness in a process group of its own; ``cwd`` is on its import path."""
    paths = [path for path in (environment.get("PYTHONPATH"), str(ROOT), cwd and str(cwd)) if path]
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "harness", *words],
        cwd=cwd,
        env={"OMP_NUM_THREADS": "1", **environment, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0, within_s: float = 600.0) -> tuple[str, str]:
    """Wait for a process to end with this exit code; return what it wrote to its two streams."""
    out, err = process.communicate(timeout=within_s)
    assert process.returncode == code, out + err
    return out, err


class Traces:
    """What commands that were started with ``environment`` have left: processes, files, shared memory.

    Args:
        folder: becomes their folder for temporary files; its path is short, since sockets are made in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.environment = {MARK: self.mark, "TMPDIR": str(folder)}
        self._shared_before = set(os.listdir("/dev/shm"))

    def processes(self, name: str = "") -> dict[int, str]:
        """Process number -> command line of what still runs and has this in it, apart from this process."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                        line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                        if name in line:
                            found[int(entry.name)] = line
                except OSError:  # it has just ended
                    continue
        return found

    def shared_memory(self) -> set[str]:
        """New entries of the system's shared memory that no living process has open."""
        new = set(os.listdir("/dev/shm")) - self._shared_before
        return {name for name in new if not _is_mapped(name)}

    def assert_nothing_left(self) -> None:
        """Fail if anything is still there some seconds after the command's end."""
        wait_until(lambda: not self.processes(), f"still running: {self.processes()}", 10)
        files = [name for name in os.listdir(self.folder) if not name.startswith("torchinductor_")]  # torch's own cache
        assert files == []
        assert self.shared_memory() == set()


def _is_mapped(name: str) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if f"/dev/shm/{name}" in maps.read_text():
                return True
        except OSError:
            continue
    return False


def ended(pids: Iterable[int]) -> bool:
    """Whether none of the processes is there."""
    return not any(map(psutil.pid_exists, pids))


def scenario_of(folder: Path, text: str, name: str = "trial", changes: Sequence[str] = ()) -> Scenario:
    """Load a scenario from a file that is written for it."""
    file = folder / f"{name}.yaml"
    file.write_text(text)
    return load_scenario(file, list(changes))


def unseen(folder: Path) -> None:
    """Show nothing of a run."""


def run_all(scenario: Scenario, out: Path, build: Any = None) -> list[Run]:
    """Run a scenario to its end; return its runs."""
    assert run_scenario(scenario, out, True, build, unseen) == 0
    runs, damaged = find_runs(out)
    assert damaged == []
    return runs


def only_run(folder: Path) -> Run:
    """Return the run that is below a folder, where there is one alone."""
    (run,), damaged = find_runs(folder)
    assert damaged == []
    return run


@pytest.fixture
def traces() -> Iterator[Traces]:
    """For commands in processes of their own."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Traces(Path(folder))


@pytest.fixture(scope="module")
def own_traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traces]:
    """For what this process itself starts."""
    tmp_path_factory.getbasetemp()  # the tests' own folders are elsewhere
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        traces = Traces(Path(folder))
        for name, value in traces.environment.items():
            patch.setenv(name, value)
        patch.setattr(tempfile, "tempdir", None)  # read TMPDIR again
        yield traces
        patch.setattr(tempfile, "tempdir", None)


@pytest.fixture(scope="module")
def factory(own_traces: Traces) -> Iterator[Any]:
    """A ``PartsFactory``: builds parts on one Ray; when that is closed, nothing is left of it, whoever was killed."""
    from harness.run.factory import PartsFactory

    with PartsFactory() as factory:
        yield factory
    own_traces.assert_nothing_left()
