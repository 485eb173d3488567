"""``python -m harness`` as a process: exit codes, no traceback, nothing heavy imported."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.core.errors import UserError
from harness.run.actors import session

PROJECT = Path(__file__).resolve().parents[2]


def start(folder, module, *arguments, stdout=subprocess.PIPE, path=PROJECT):
    environment = {**os.environ, "PYTHONPATH": str(path), "TMPDIR": str(folder)}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, stdout=stdout, stderr=subprocess.PIPE, timeout=60)


def test_bad_input_is_one_clear_error_and_exit_code_2(tmp_path):
    """What else is said of it has tests in one process (test_mistakes.py)."""
    done = start(tmp_path, "harness", "run", "quikstart")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"did you mean quickstart or quickstart_seeds?" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_reader_that_stops_early_is_no_error(tmp_path):
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = start(tmp_path, "harness", "validate", "--schema", stdout=write_end)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "command", [["harness", "list"], ["harness.compare", str(PROJECT / "results/reference/sync_k")]]
)
def test_an_output_without_room_is_one_error(tmp_path, command):
    with open("/dev/full", "w") as full:
        done = start(tmp_path, *command, stdout=full)
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
            "-v 1500000",
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
