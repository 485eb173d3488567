"""What a command has started ends with it, however it ends; processes of others do not."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from harness.core.marked_processes import MARKS, marked, with_mark
from harness.run.guardian import LOOK_S, Guardian
from tests.run.conftest import Patch

HIDDEN = """
import os, subprocess, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        subprocess.Popen(["sleep", "600"], env={})  # of another environment, but a child of one that bears the mark
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
os.wait()
"""
DRIVER = f"""
import os, signal, subprocess, sys, time
from harness.core.private_dir import PrivateDir
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
from harness.run.guardian import Guardian
guardian, folder = Guardian(), PrivateDir()
with guardian.starting():
    subprocess.run([sys.executable, "-c", {HIDDEN!r}], check=True)
    forked = os.fork()  # holds every descriptor of this process
    if forked == 0:
        time.sleep(600)
    print(forked, os.environ["{MARKS}"].split()[-1], flush=True)
    time.sleep(600)
"""


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def command_lines(mark: str) -> list[str]:
    lines = list[str]()
    for each in marked(mark):
        with suppress(psutil.NoSuchProcess):
            lines.append(" ".join(each.cmdline()[:2]))
    return sorted(lines)


def started(tmp_path: Path) -> tuple[subprocess.Popen[str], int, str]:
    """Start a driver and wait for the two that sleep; return it, the number of its copy, and its mark."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], env=environment, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    with driver.stdout:
        forked, mark = driver.stdout.readline().split()
    until(lambda: command_lines(mark) == ["sleep 600"] * 2, "the two that sleep")
    return driver, int(forked), mark


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_whatever_ends_a_command_ends_what_it_started(tmp_path: Path, number: signal.Signals) -> None:
    driver, forked, mark = started(tmp_path)
    driver.send_signal(number)
    assert driver.wait(60) == -number
    until(lambda: not marked(mark), "what the driver has started ended", 10)
    os.kill(forked, signal.SIGKILL)  # a copy of the driver, which no mark tells from it
    until(lambda: not list(tmp_path.iterdir()), "its folder was removed", 10)


@pytest.mark.slow
def test_what_was_seen_once_ends_where_nothing_tells_any_more_whose_it_is(tmp_path: Path) -> None:
    """As Ray's agents, which write their title over their environment, when the raylet has ended first."""
    driver, forked, mark = started(tmp_path)
    time.sleep(3 * LOOK_S)
    (parent,) = (each for each in marked(mark) if each.children())
    (child,) = parent.children()
    parent.kill()
    until(lambda: child.ppid() != parent.pid, "its parent has ended")
    assert marked(mark) == set()
    driver.kill()
    driver.wait()
    until(lambda: not child.is_running() or child.status() == "zombie", "it ended too", 10)
    os.kill(forked, signal.SIGKILL)


def test_closing_leaves_what_was_started_and_takes_its_mark_alone(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment, outer = with_mark(os.environ)
    monkeypatch.setenv(MARKS, environment[MARKS])
    before = subprocess.Popen(["sleep", "600"])
    descriptors = sorted(os.listdir("/proc/self/fd"))
    guardian = Guardian()
    subprocess.run([sys.executable, "-c", HIDDEN], check=True)
    # the two that sleep unseen, and the one before; beside them the guardian
    until(lambda: command_lines(outer).count("sleep 600") == 3, "all sleep")
    assert len(marked(outer)) == 4
    guardian.close()
    guardian.close()
    left = marked(outer)
    assert sorted(" ".join(each.cmdline()) for each in left) == ["sleep 600"] * 3
    assert os.environ[MARKS] == environment[MARKS]
    assert sorted(os.listdir("/proc/self/fd")) == descriptors
    for each in left:
        each.kill()
    before.wait()
