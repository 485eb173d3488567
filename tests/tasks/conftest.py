"""A module of a user's, with reward functions; and processes that must end."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Return a function that writes a module into the current folder, a fresh one, and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    known = set(sys.modules)

    def write(body: str) -> str:
        (tmp_path / "own_reward_under_test.py").write_text(body, encoding="utf-8")
        return "own_reward_under_test"

    yield write
    for name in set(sys.modules) - known:
        del sys.modules[name]


def is_alive(pid: int) -> bool:
    """Whether a process runs; a killed one whose new parent has not looked at it yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_gone(pids: list[int]) -> None:
    """Wait until none of the processes runs, for a minute at most."""
    ends_by = time.monotonic() + 60
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < ends_by:
        time.sleep(0.01)
    assert left == []


def orphaned(program: str) -> int:
    """Run a program that prints the number of a process of its own, and kill it; return the number."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", f"{program}\nimport time\ntime.sleep(600)\n"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    return pid
