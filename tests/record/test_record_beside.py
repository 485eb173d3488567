"""What runs beside a recorded command: profilers of some of its steps, whose ranges are its spans, and counters."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.cli import main
from harness.compare.resources import gpu_figures
from harness.core.errors import UserError
from harness.probes import recorded_command
from harness.probes.pyspy import check_pyspy
from harness.record.event_file import EventFile
from harness.record.format import EVENTS
from harness.results import find_runs
from harness.results.counters import read_counters, sources, stretches
from harness.run.recorded import OWN_EVENTS, EventsSeen
from tests.probes.test_probes_nvtx import LISTENER

ROOT = Path(__file__).parents[2]
PROGRAM = """
{imports}
import time
from harness import record

def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

with record.span("load"):
    pass
for n in range({steps}):
    with record.step(n + 7):
        with record.span("generate"):
            work({seconds})
        with record.span("update"), record.span("my stage"):
            {body}
"""


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Record a program with some steps; return what it returned and its run."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)

    def call(*options, steps=8, seconds=0.001, imports="", body="pass"):
        program, out = tmp_path / "program.py", tmp_path / "out"
        program.write_text(PROGRAM.format(steps=steps, seconds=seconds, imports=imports, body=body))
        code = main(["record", "--out", str(out), *options, "--", sys.executable, str(program)])
        return code, find_runs(out)[0][-1] if out.exists() else None

    return call


def profiled(run):
    """The window, and the step after it, in which the profiler writes its file."""
    return [row.step for row in run.steps if row.profiled]


def test_under_nsys_the_ranges_are_the_spans(record, tmp_path, monkeypatch, capfd):
    """The stand-in for nsys starts the command; a library that listens gets the ranges of the real nvtx."""
    pytest.importorskip("nvtx")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to build the listener with")
    source, library, folder = tmp_path / "listener.c", tmp_path / "listener.so", tmp_path / "bin"
    source.write_text(LISTENER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    folder.mkdir()
    shutil.copy(ROOT / "tests/stand_ins/nsys", folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("NVTX_INJECTION64_PATH", str(library))
    code, run = record("--profile", "nsys")
    ranges = list[tuple[str, str, int]]()
    names = dict[str, tuple[str, int]]()
    for line in capfd.readouterr().err.splitlines():
        match line.split():
            case ["start", number, *name, "category", _, "payload", payload]:
                names[number] = " ".join(name), int(payload.partition(":")[2])
                ranges.append(("start", *names[number]))
            case ["end", number]:
                ranges.append(("end", *names[number]))
    moments = list[tuple[int, int, str, str, int]]()
    for order, span in enumerate(sorted(run.spans(), key=lambda span: (span.start_ns, -span.end_ns))):
        if span.stage.value != "startup":
            moments.append((span.start_ns, order, "start", span.stage.value, span.step))
            moments.append((span.end_ns, -order, "end", span.stage.value, span.step))
    expected = [(kind, name, step) for *_, kind, name, step in sorted(moments)]
    assert (code, len(expected)) == (0, 2 * (1 + 3 * 8))
    assert [each for each in ranges if each[1] != "profiled_steps"] == expected
    window = [place for place, each in enumerate(ranges) if each[1] == "profiled_steps"]
    assert {step for _, _, step in ranges[window[0] + 1 : window[1]]} == {10, 11}  # the fourth and the fifth
    assert ranges[window[0] - 1] == ("end", "update", 9)
    assert ranges[window[1] + 1] == ("start", "generate", 12)
    assert profiled(run) == [10, 11, 12]
    assert (run.folder / "profiles/command.nsys-rep").read_text().endswith("end\n")


@pytest.mark.slow
def test_torch_traces_the_spans_of_the_profiled_steps(record):
    pytest.importorskip("torch")
    code, run = record("--profile", "torch", imports="import torch", body="torch.ones(8, 8) @ torch.ones(8, 8)")
    trace = json.loads(gzip.decompress((run.folder / "profiles/learner.pt.trace.json.gz").read_bytes()))
    names = [event["name"] for event in trace["traceEvents"] if event.get("ph") == "X"]
    marks = {name: names.count(name) for name in names if name.startswith("grpo/")}
    assert (code, marks) == (0, {"grpo/generate": 2, "grpo/update": 2, "grpo/my stage": 2})
    assert names.count("aten::mm") == 2
    assert profiled(run) == [10, 11, 12]


def test_py_spy_samples_the_profiled_steps(record):
    try:
        check_pyspy()
    except UserError as error:
        pytest.skip(str(error))
    code, run = record("--profile", "py-spy", seconds=0.15)
    flames = json.loads((run.folder / "profiles/learner.speedscope.json").read_text())
    names = {frame["name"] for frame in flames["shared"]["frames"]}
    assert (code, profiled(run)) == (0, [10, 11, 12])
    assert "work" in names
    assert str(run.folder) not in json.dumps(flames)


def test_a_profiler_that_recorded_nothing_is_told_and_the_run_is_kept(record, capsys):
    code, run = record("--profile", "torch", steps=3)
    assert "torch recorded nothing of training steps 3 to 4" in capsys.readouterr().out
    assert (code, profiled(run), len(run.steps)) == (0, [], 3)


def test_a_profiler_that_is_not_there_is_told_before_anything_starts(record, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, run = record("--profile", "nsys")
    assert (code, run, (tmp_path / "out").exists()) == (2, None, False)
    assert "no nsys" in capsys.readouterr().err


def test_counters_do_not_hide_that_a_command_hangs(tmp_path):
    (tmp_path / EVENTS).mkdir()
    began_s, seen, own = time.monotonic(), EventsSeen(tmp_path), EventFile(tmp_path / EVENTS / OWN_EVENTS)
    time.sleep(0.05)
    own.add(b'["counters",1,"host",{},{}]\n')
    assert seen.seconds_since() >= 0.05
    EventFile(tmp_path / EVENTS / "7-7.jsonl").add(b'["step",0,1]\n')
    assert seen.seconds_since() <= time.monotonic() - began_s - 0.05


FAKE_GPU = """
import sys
from tests.stand_ins.fake_nvml import FakeDevice, FakeNvml
sys.modules[__name__] = FakeNvml([FakeDevice()])
"""


UNTIL_COUNTED = f"""
import os, time
from pathlib import Path
def wait():
    own = Path(os.environ["GRPO_HARNESS_RECORD"]) / "{EVENTS}" / "{OWN_EVENTS}"
    while not (b"sleep" in (content := own.read_bytes()) and b"gpu0" in content):
        time.sleep(0.05)
"""
"""The sampler may come late on a busy machine: the program waits until its processes have been counted."""


def test_counters_of_the_commands_processes_are_those_of_the_run(record, tmp_path, monkeypatch):
    """By the names of their lanes; a process that records nothing by what it is. CPU seconds are the program's own."""
    (tmp_path / "pynvml.py").write_text(FAKE_GPU)  # for the sampler, where no GPU is
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    monkeypatch.setattr(recorded_command, "LOOK_S", 0.05)
    (tmp_path / "counted.py").write_text(UNTIL_COUNTED)
    code, run = record(
        steps=4,
        seconds=0.3,
        imports="import subprocess, counted; child = subprocess.Popen(['sleep', '600'])",
        body="n == 3 and (counted.wait(), child.kill()); open('cpu', 'a').write(f'{time.process_time()} ')",
    )
    rows = read_counters(run.folder)
    assert code == 0
    assert {"host", "sampler", "record", "learner", "sleep", "gpu0"} == set(sources(rows))
    gpu, why = gpu_figures(rows, (0, 10**12))
    assert (why, gpu[0].mean_utilisation, gpu[0].peak_memory_bytes) == (None, 0.5, 10 * 2**30)
    ((*_, (last_ns, cpu_s)),) = stretches(rows, "learner", "cpu_s")
    (*_, ended_s) = map(float, Path("cpu").read_text().split())
    assert 0.3 < cpu_s <= ended_s + 0.1  # the kernel counts in hundredths
    assert 0 < last_ns <= run.manifest.duration_s * 1e9 + 1e9
    assert all(value < 0.1 for stretch in stretches(rows, "sleep", "cpu_s") for _, value in stretch)
