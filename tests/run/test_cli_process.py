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


def harness(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        (
            None,
            ["run", "quikstart"],
            ["error: no scenario called 'quikstart'", "did you mean quickstart or quickstart_seeds?"],
        ),
        ("steps: [3\n", ["run", "s.yaml"], ["error: YAML syntax error", "where: s.yaml, line 2, column 1"]),
        ("grup_size: 3\n", ["validate", "s.yaml"], ["unknown key `grup_size`", "s.yaml, line 1", "`group_size`"]),
        ("loss: {type: no_baseline}\nepochs_per_batch: 2\n", ["run", "s.yaml"], ["on-policy", "s.yaml, line 2"]),
        ("steps: 1\n", ["run", "s.yaml", "--out", "s.yaml"], ["cannot write results to s.yaml (it is a file)"]),
    ],
)
def test_bad_input_is_one_clear_error_and_exit_code_2(tmp_path, text, arguments, expected):
    if text is not None:
        (tmp_path / "s.yaml").write_text(text)
    done = harness(tmp_path, *arguments)
    assert done.returncode == 2
    assert [words for words in expected if words not in done.stderr] == []
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_no_command_prints_help(tmp_path):
    done = harness(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "python -m harness run quickstart" in done.stderr


def test_a_reader_that_stops_early_is_no_error(tmp_path):
    read_end, write_end = os.pipe()
    os.close(read_end)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "harness", "validate", "--schema"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=write_end, stderr=subprocess.PIPE, timeout=60)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "command", [["harness", "list"], ["harness.compare", str(PROJECT / "results/reference/sync_k")]]
)
def test_an_output_without_room_is_one_error(tmp_path, command):
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"no more disk space" in done.stderr


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


def test_an_interrupt_in_the_exec_of_a_module_ends_with_130(tmp_path):
    """CPython remembers such an interrupt, though it was caught, and lets ``python -m`` end by SIGINT."""
    lines = ["import sys", "from harness.cli import carry_out"]
    (tmp_path / "odd.py").write_text(
        "\n".join([*lines, "sys.exit(carry_out(lambda: exec('raise KeyboardInterrupt')))"])
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(PROJECT)))}
    done = subprocess.run([sys.executable, "-m", "odd"], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
