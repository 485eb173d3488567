"""Commands as processes: exit codes, how one ends that is asked to stop, and that what it has started ends with it."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from harness.core.errors import UserError
from harness.core.marked_processes import MARKS, marked, with_mark
from harness.run.actors import session
from harness.run.guardian import LOOK_S, Guardian
from harness.run.interrupts import ended_by_first_interrupt
from tests.run.conftest import Patch

PROJECT = Path(__file__).resolve().parents[2]


def start(folder, module, *arguments, stdout=subprocess.PIPE, path=PROJECT):
    environment = {**os.environ, "PYTHONPATH": str(path), "TMPDIR": str(folder)}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, stdout=stdout, stderr=subprocess.PIPE, timeout=60)


def test_a_reader_that_stops_early_is_no_error(tmp_path):
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = start(tmp_path, "harness", "validate", "--schema", stdout=write_end)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_an_output_without_room_is_one_error(tmp_path):
    with open("/dev/full", "w") as full:
        done = start(tmp_path, "harness", "list", stdout=full)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"no more disk space" in done.stderr


def test_an_interrupt_in_the_exec_of_a_module_ends_with_130(tmp_path):
    """CPython remembers such an interrupt, though it was caught, and lets ``python -m`` end by SIGINT."""
    lines = ["import sys", "from harness.cli import carry_out"]
    lines += ["sys.exit(carry_out(lambda: exec('raise KeyboardInterrupt')))"]
    (tmp_path / "odd.py").write_text("\n".join(lines))
    done = start(tmp_path, "odd", path=os.pathsep.join((str(tmp_path), str(PROJECT))))
    assert (done.returncode, done.stderr) == (130, b"interrupted\n")


RAY_RUN = ["run", "async_lag_sweep", "--set", "steps=1", "--out", "out"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "arguments", "says"),
    [
        ("-n 256", RAY_RUN, "error: the limit of 256 open files is too low for Ray, which needs 1024"),
        ("-v 8000000", RAY_RUN, "error: the limit of 8192000000 bytes of address space is too low for Ray"),
        (
            "-v 1200000",
            ["run", "quickstart", "--out", "out"],
            "error: this machine, or a limit of this shell, gives no",
        ),
    ],
)
def test_a_limit_of_the_shell_is_one_error(tmp_path, limit, arguments, says):
    command = ["bash", "-c", f'ulimit {limit} && exec "$@"', "bash", sys.executable, "-m", "harness", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("grpo-")] == []


@pytest.mark.parametrize(("limit", "is_enough"), [(300, False), (10**6, True), (resource.RLIM_INFINITY, True)])
def test_a_limit_on_processes_counts_those_that_the_user_has(monkeypatch, limit, is_enough):
    """It does not hold for root, as whom these tests may run."""
    of_others = resource.getrlimit
    found = lambda kind: (limit, limit) if kind == resource.RLIMIT_NPROC else of_others(kind)  # noqa: E731
    monkeypatch.setattr(resource, "getrlimit", found)
    with monkeypatch.context() as root:
        root.setattr(os, "getuid", lambda: 0)
        session._check_limits()
    monkeypatch.setattr(os, "getuid", lambda: psutil.Process().uids().real or 12345)
    if is_enough:
        session._check_limits()
        return
    with pytest.raises(UserError, match="the limit of 300 processes and threads of this user is too low for Ray"):
        session._check_limits()


# ---- how a block ends that is asked to stop: in order once, and in any case in time

PROGRAM = """
import ctypes, os, signal, sys, threading, time
from harness.core.interrupts import signals_as_interrupts
from harness.run.interrupts import ended_by_first_interrupt
with signals_as_interrupts(), ended_by_first_interrupt({most_s}):
"""
ENDS = """
    try:
        os.kill(os.getpid(), {number})
        time.sleep(40)
    except KeyboardInterrupt:
        for _ in range(3):
            os.kill(os.getpid(), {number})
        print("ended in order", flush=True)
"""
HANGS = """
    library, mutex = ctypes.CDLL(None), (ctypes.c_byte * 64)()
    library.pthread_mutex_lock(mutex)
    threading.Timer(0.1, os.kill, (os.getpid(), {number})).start()
    library.pthread_mutex_lock(mutex)  # no signal ends this wait
"""


@pytest.mark.parametrize(
    ("number", "program", "most_s", "ended"),
    [
        (signal.SIGINT, ENDS, 30, (0, "ended in order\n", "")),  # more signals do not disturb the end
        (signal.SIGTERM, ENDS, 30, (0, "ended in order\n", "")),
        # as Ray waits for a minute where its servers are gone: it answers no signal, and lets other threads work
        (signal.SIGTERM, HANGS, 0.2, (130, "", "interrupted\n")),
    ],
    ids=["Ctrl-C", "SIGTERM", "a library that waits"],
)
def test_how_a_program_ends(number: signal.Signals, program: str, most_s: float, ended: tuple[int, str, str]) -> None:
    text = (PROGRAM + program).format(most_s=most_s, number=int(number))
    process = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=50, check=False)
    assert (process.returncode, process.stdout, process.stderr) == ended


def test_handlers_are_put_back_and_other_threads_have_none() -> None:
    before, raised = signal.getsignal(signal.SIGINT), list[BaseException]()
    with pytest.raises(KeyboardInterrupt), ended_by_first_interrupt(30):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before
    assert signal.set_wakeup_fd(-1) == -1

    def elsewhere() -> None:
        try:
            with ended_by_first_interrupt(30):
                pass
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert raised == []


# ---- what a command has started ends with it, however it ends; processes of others do not

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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
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
