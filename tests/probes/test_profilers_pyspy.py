"""py-spy over a window: real stacks of a real process, the file's cleaning, and every way in which it may fail."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import RunStopped, UserError
from harness.probes.profile import PySpyWindow
from harness.probes.pyspy import PySpyRecorder, check_pyspy
from harness.results.anonymous import Scrubber

SCRUBBER = Scrubber("/home/jane", "/home/jane/project", "lab-7", "jane")
SPINNING = """
import sys
def spin_for_the_test():
    while True:
        sum(range(100))
print("ready", flush=True)
spin_for_the_test()
"""
SAMPLING = "echo 'py-spy> Sampling process 100 times a second. Press Control-C to exit.'"
PARSE = 'while [ $# -gt 0 ]; do case "$1" in --output) out=$2; shift 2;; *) shift;; esac; done'


@pytest.fixture(autouse=True)
def ctrl_c_reaches_children() -> Iterator[None]:
    """In a job whose shell had it ignore Ctrl-C, programs started from here would ignore it too; a run sees to that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def allowed() -> None:
    """Skips where the system lets no process look into another one."""
    try:
        check_pyspy()
    except UserError as error:
        pytest.skip(error.what)


@pytest.fixture
def spinning() -> Iterator[int]:
    """The id of a process that computes in ``spin_for_the_test``."""
    with subprocess.Popen([sys.executable, "-c", SPINNING], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a program to take for py-spy."""

    def make(lines: str) -> Path:
        program = tmp_path / "py-spy-stand-in"
        program.write_text(f"#!/bin/bash\necho $$ >> {tmp_path}/started\n{PARSE}\n{lines}\n")
        program.chmod(0o755)
        return program

    return make


def at_its_end(lines: str) -> str:
    """A program that says that it samples until Ctrl-C, and then does this."""
    return f"{SAMPLING}\ntrap '{lines}; exit 0' INT\nwhile :; do sleep 0.01; done"


def window(**settings: object) -> PySpyWindow:
    return PySpyWindow.model_validate({"lanes": ["learner"], "first_step": 2, "steps": 2} | settings)


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("settings", "file"),
    [
        ({"format": "speedscope"}, "learner.speedscope.json"),
        ({"format": "flamegraph", "nonblocking": True}, "learner.svg"),
    ],
)
def test_the_stacks_of_a_process_are_in_the_file_and_it_goes_on(
    settings: dict[str, Any], file: str, spinning: int, tmp_path: Path
) -> None:
    folder = tmp_path / "run" / "profiles"
    recorder = PySpyRecorder(window(**settings), lambda: {"learner": spinning, "scorer": os.getpid()}, folder)
    recorder.on_step_starts(1)
    recorder.on_step(1)
    assert not folder.exists()
    recorder.on_step_starts(2)
    time.sleep(0.5)  # 50 samples
    for step in (2, 3):
        recorder.on_step(step)
        recorder.on_step_starts(step + 1)
    assert recorder.close() == [folder / file]
    assert os.listdir(folder) == [file]
    assert Path(f"/proc/{spinning}/stat").read_text().rpartition(")")[2].split()[0] in "RS"
    text = (folder / file).read_text()
    assert "spin_for_the_test" in text
    assert "py-spy record" not in text
    assert str(tmp_path) not in text
    if file.endswith("json"):
        assert sum(len(profile["samples"]) for profile in json.loads(text)["profiles"]) > 0


@pytest.mark.usefixtures("allowed")
def test_a_process_that_is_gone_is_said_at_once(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    recorder = PySpyRecorder(window(), lambda: {"learner": process.pid}, tmp_path / "profiles")
    with pytest.raises(RunStopped, match=r"py-spy does not sample learner: Error: .+"):
        recorder.on_step_starts(2)
    assert recorder.close() == []


def test_lanes_of_one_process_share_a_file_which_is_cleaned(stand_in: Callable[[str], Path], tmp_path: Path) -> None:
    program = stand_in(
        at_its_end(
            'echo "run (/home/jane/project/harness/run/experiment.py:3);work (/opt/secret/x.py:9) 5" > $out; '
            'echo "py-spy> Wrote raw data. Samples: 5 Errors: 0"'
        )
    )
    recorder = PySpyRecorder(
        window(lanes=["learner", "generator"], format="raw"),
        lambda: {"generator0": 11, "generator1": 12, "learner": 11, "scorer": 13},
        tmp_path / "profiles",
        program,
        SCRUBBER,
    )
    recorder.on_step_starts(2)
    recorder.on_step(3)
    assert [path.name for path in recorder.files] == ["generator0+learner.txt", "generator1.txt"]
    text = (tmp_path / "profiles" / "generator1.txt").read_text()
    assert text == "run (./harness/run/experiment.py:3);work (<path>/x.py:9) 5\n"
    together = PySpyRecorder(window(steps=1, format="raw"), dict, tmp_path / "profiles", program, SCRUBBER)
    together.on_step_starts(2)
    together.on_step(2)
    assert [path.name for path in together.files] == ["driver.txt"]  # the lanes that have no process of their own


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('echo "py-spy> Wrote raw data. Samples: 0 Errors: 0"; echo > $out', "learner: not one sample"),
        ('echo "Error: disk full"', "learner: Error: disk full"),
        ('echo "py-spy> Wrote raw data. Samples: 7 Errors: 0"', "learner: it gave no reason"),
    ],
)
def test_a_window_without_a_file_stops_the_run(
    lines: str, said: str, stand_in: Callable[[str], Path], tmp_path: Path
) -> None:
    recorder = PySpyRecorder(window(), lambda: {"learner": 11}, tmp_path / "profiles", stand_in(at_its_end(lines)))
    recorder.on_step_starts(2)
    recorder.on_step(2)
    with pytest.raises(RunStopped, match=f"py-spy recorded nothing: {said}"):
        recorder.on_step(3)
    assert recorder.close() == []
    assert not (tmp_path / "profiles").exists()


def test_a_process_that_did_nothing_is_noted_if_another_one_worked(
    stand_in: Callable[[str], Path], tmp_path: Path
) -> None:
    program = stand_in(
        f"mkdir {tmp_path}/first 2>/dev/null && samples=5 || samples=0\n"
        + at_its_end('echo x > $out; echo "py-spy> Wrote raw data. Samples: $samples Errors: 0"')
    )
    processes = {"learner": 11, "scorer": 12}
    recorder = PySpyRecorder(window(lanes=["learner", "scorer"]), lambda: processes, tmp_path / "profiles", program)
    recorder.on_step_starts(2)
    assert [path.exists() for path in recorder.close()] == [True]
    (note,) = recorder.notes
    assert "not one sample" in note


def test_if_one_cannot_start_none_goes_on(stand_in: Callable[[str], Path], tmp_path: Path) -> None:
    program = stand_in(f"mkdir {tmp_path}/first 2>/dev/null || exit 1\n{SAMPLING}\nwhile :; do sleep 0.01; done")
    recorder = PySpyRecorder(
        window(lanes=["generator"]), lambda: {"generator0": 11, "generator1": 12}, tmp_path / "profiles", program
    )
    with pytest.raises(RunStopped, match="py-spy does not sample generator"):
        recorder.on_step_starts(2)
    started = [int(line) for line in (tmp_path / "started").read_text().split()]
    assert len(started) == 2
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []


def test_a_missing_program_and_a_missing_permission_are_user_errors(
    stand_in: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"there is no py-spy(.|\n)*fix: +make install"):
        check_pyspy(tmp_path / "nothing")
    denied = stand_in("echo 'Permission Denied: Try running again with elevated permissions' >&2; exit 1")
    with pytest.raises(UserError, match=r"cannot read other processes here: no permission(.|\n)*ptrace_scope=0"):
        check_pyspy(denied)
    check_pyspy(stand_in("exit 0"))
