"""torch.profiler over a window: which steps and threads its file holds, what is taken out of it, and what is missed."""

import gzip
import json
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity

from harness.core.errors import RunStopped
from harness.core.trace import HookedTracer, NullTracer, Stage, Tracer
from harness.probes.profile import TorchWindow
from harness.probes.torch_traces import TorchProfiler, collect_traces, scrub_trace
from harness.probes.windows import ProfilerWindow, process_name
from harness.record.torch_trace import activities
from harness.results.anonymous import Scrubber

SCRUBBER = Scrubber("/home/jane", "/home/jane/project", "lab-7.example.org", "jane")


def traced(lanes: tuple[str, ...], folder: Path, first_step: int = 1, steps: int = 2) -> tuple[Tracer, ProfilerWindow]:
    window = TorchProfiler(TorchWindow(first_step=first_step, steps=steps), lanes, folder)
    return HookedTracer(NullTracer(), window), window


def work(tracer: Tracer, lane: str, stage: Stage, steps: range) -> None:
    """A step of one matrix product for each number."""
    for step in steps:
        with tracer.span(lane, stage, step):
            torch.mm(torch.ones(4, 4), torch.ones(4, 4))


def events(folder: Path, name: str) -> Counter[str]:
    """What a kept trace holds."""
    [file] = collect_traces([name], folder, folder / "kept")
    assert file == folder / "kept" / f"{name}.pt.trace.json.gz"
    trace = json.loads(gzip.decompress(file.read_bytes()))
    return Counter(event["name"] for event in trace["traceEvents"])


def test_the_file_holds_the_operations_of_the_window_alone(tmp_path: Path) -> None:
    tracer, _ = traced(("learner",), tmp_path)
    work(tracer, "learner", Stage.UPDATE, range(3))
    assert list(tmp_path.iterdir()) == []
    work(tracer, "learner", Stage.UPDATE, range(3, 6))
    found = events(tmp_path, "learner")
    assert (found["aten::mm"], found["grpo/update"]) == (2, 2)  # steps 1 and 2, one product each
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]  # nothing beside it


def test_a_process_on_the_cpu_does_not_trace_a_gpu_that_it_may_see() -> None:
    """Torch would make a CUDA context for it, of about half a GiB."""
    assert activities(cuda=False) == [ProfilerActivity.CPU]
    assert activities(cuda=True) == [ProfilerActivity.CPU, ProfilerActivity.CUDA]


def test_other_threads_are_in_it_and_may_end_it(tmp_path: Path) -> None:
    """The Learner's thread starts it, the Generator's stops it: torch's default would crash the process."""
    tracer, _ = traced(("generator", "learner"), tmp_path)

    def in_a_thread(lane: str, stage: Stage, steps: range) -> None:
        thread = threading.Thread(target=work, args=(tracer, lane, stage, steps))
        thread.start()
        thread.join()

    in_a_thread("learner", Stage.UPDATE, range(1, 4))
    in_a_thread("generator", Stage.GENERATE, range(2, 4))
    found = events(tmp_path, process_name(("generator", "learner")))
    # the Learner's steps 1, 2 and 3 (the window waits for the Generator), the Generator's step 2 before its step 3
    assert (found["aten::mm"], found["grpo/update"], found["grpo/generate"]) == (4, 3, 1)


def test_a_window_that_is_cut_short_is_kept(tmp_path: Path) -> None:
    tracer, window = traced(("learner",), tmp_path, steps=5)
    work(tracer, "learner", Stage.UPDATE, range(3))
    window.close()
    assert events(tmp_path, "learner")["aten::mm"] == 2


def test_what_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    tracer, window = traced(("learner",), tmp_path / "missing")
    work(tracer, "learner", Stage.UPDATE, range(2))
    with pytest.raises(RunStopped, match=r"the trace of learner could not be written: .*No such file"):
        window.close()


def test_a_second_profiler_in_a_process_is_refused_in_one_line(tmp_path: Path) -> None:
    (first, window), (second, _) = traced(("learner",), tmp_path), traced(("generator",), tmp_path)
    work(first, "learner", Stage.UPDATE, range(2))
    try:
        with pytest.raises(RunStopped, match=r"runs in the process of generator already"):
            work(second, "generator", Stage.GENERATE, range(1, 2))
    finally:
        window.close()
    assert events(tmp_path, "learner")["aten::mm"] == 1
    third, window = traced(("scorer",), tmp_path)
    work(third, "scorer", Stage.SCORE, range(2))
    window.close()
    assert events(tmp_path, "scorer")["aten::mm"] == 1


def test_people_and_machines_are_taken_out(tmp_path: Path) -> None:
    raw, clean = tmp_path / "raw.json", tmp_path / "clean.json.gz"
    content = {
        "host_name": "another-name",
        "traceName": "/tmp/tmp123/raw.json",
        "traceEvents": [
            {
                "ph": "X",
                "name": "aten::mm",
                "ts": 4415433928230.032,
                "args": {"file": "/home/jane/project/harness/loop.py"},
            },
            {"name": "worker of jane on lab-7", "args": {"address": "192.0.2.7"}},
        ],
    }
    raw.write_text(json.dumps(content, indent=1))
    assert scrub_trace(raw, clean, SCRUBBER) == 1  # one of the two events has a duration
    assert json.loads(gzip.decompress(clean.read_bytes())) == {
        "host_name": "<host>",
        "traceName": "<path>/raw.json",
        "traceEvents": [
            {"ph": "X", "name": "aten::mm", "ts": 4415433928230.032, "args": {"file": "./harness/loop.py"}},
            {"name": "worker of <user> on <host>", "args": {"address": "<address>"}},
        ],
    }


def test_the_traces_of_a_run_are_kept_and_a_missing_one_is_named(tmp_path: Path) -> None:
    drafts, folder = tmp_path / "drafts", tmp_path / "run" / "profiles"
    drafts.mkdir()
    (drafts / "learner.raw.json").write_text('{"host_name": "lab-7", "ph": "X"}')
    (drafts / "generator0.raw.json").write_text('{"host_name": "lab-7", "traceEvents": []}')
    with pytest.raises(RunStopped, match="was to trace generator0, generator1, and there is no operation on record"):
        collect_traces(["generator0", "generator1", "learner"], drafts, folder, SCRUBBER)
    assert [path.name for path in folder.iterdir()] == ["learner.pt.trace.json.gz"]
    assert gzip.decompress((folder / "learner.pt.trace.json.gz").read_bytes()) == b'{"host_name": "<host>", "ph": "X"}'
