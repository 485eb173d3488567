"""A start of Ray that is interrupted or fails leaves nothing: no process, no folder, no patch, no mark."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray._private import services

from harness.core.errors import UserError
from harness.core.marked_processes import MARKS, end_marked, with_mark
from harness.run.actors.session import RaySession


class Start:
    """Stands for ``ray.init``: starts a process as Ray starts its own, and then ends as it is told."""

    def __init__(self, end: BaseException | None) -> None:
        self.end, self.processes = end, list[subprocess.Popen[bytes]]()
        self.options: dict[str, Any] = {}

    def __call__(self, **options: Any) -> None:
        self.options = options
        self.processes.append(services.ConsolePopen(["sleep", "600"]))
        if isinstance(self.end, KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # never comes to this
        if self.end is not None:
            raise self.end


@pytest.fixture(name="folders")
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.delenv(MARKS, raising=False)
    return tmp_path


@pytest.mark.parametrize(("end", "raised"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError("full"), UserError)])
def test_a_start_that_does_not_come_to_its_end_leaves_nothing(
    end: BaseException, raised: type[BaseException], folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen, start = services.ConsolePopen, Start(end)
    monkeypatch.setattr(ray, "init", start)
    handlers = signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        with pytest.raises(raised):
            RaySession(cpus=1)
    finally:
        signal.signal(signal.SIGTERM, handlers)
    (process,) = start.processes
    assert process.wait(30) == -signal.SIGKILL
    assert (list(folders.iterdir()), services.ConsolePopen, os.environ.get(MARKS)) == ([], popen, None)


def test_a_process_that_has_just_been_started_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen once on a busy machine: between its old program and its new one, a process shows no environment."""
    environment, mark = with_mark(os.environ)
    process = subprocess.Popen(["sleep", "600"], env=environment)
    read, looks = psutil.Process.environ, list[int]()

    def environ(self: psutil.Process) -> dict[str, str]:
        looks.append(self.pid)
        return {} if self.pid == process.pid and looks.count(self.pid) < 4 else read(self)

    monkeypatch.setattr(psutil.Process, "environ", environ)
    end_marked(mark)
    assert process.wait(30) == -signal.SIGKILL


def test_rays_processes_do_not_get_the_signals_of_the_commands_group(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(None)
    monkeypatch.setattr(ray, "init", start)
    with RaySession(cpus=1):
        (process,) = start.processes
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
        assert start.options["address"] == "local"
        process.kill()
        process.wait()
    assert list(folders.iterdir()) == []
