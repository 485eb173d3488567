"""Traces of others become runs: real files of torch.profiler and of Ray's timeline, cut to their ranges.

``tests/data/traces``: three steps of a loop with record_function around its stages, under torch 2.13's profiler; four
calls each of a Generator's and a Learner's method under Ray 2.60. Seconds are read off the files themselves.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.results import find_runs

DATA = Path(__file__).parents[1] / "data" / "traces"


def imported(tmp_path, *typed, out="out"):
    assert main(["import", "trace", *map(str, typed), "--out", str(tmp_path / out)]) == 0
    runs, damaged = find_runs(tmp_path / out)
    assert not damaged
    return runs


def seconds_of(file, category, name):
    content = json.loads((DATA / file).read_text())
    events = content["traceEvents"] if isinstance(content, dict) else content
    return [each["dur"] / 1e6 for each in events if each.get("cat") == category and each["name"] == name]


def test_ranges_of_torchs_profiler_are_stages_and_its_steps_steps(tmp_path):
    (run,) = imported(tmp_path, DATA / "torch.json")
    assert [row.step for row in run.steps] == [1, 2, 3]  # as the profiler's schedule counts them
    named = {"generate": "generate", "score": "rewards", "update": "update"}
    for stage, name in named.items():
        seconds = [row.stages_s[stage] for row in run.steps]
        assert seconds == pytest.approx(seconds_of("torch.json", "user_annotation", name), abs=2e-6)
    assert {span.lane for span in run.spans()} == {"learner"}
    whole = sum(sum(row.stages_s.values()) for row in run.steps) / sum(row.wall_s for row in run.steps)
    assert 0.99 < whole < 1


def test_calls_of_rays_actors_have_a_lane_each_and_the_learner_waits(tmp_path):
    (run,) = imported(tmp_path, DATA / "ray.json", "--names", "ray")
    assert [row.step for row in run.steps] == [0, 1, 2, 3]
    assert {span.lane for span in run.spans()} == {"generator", "learner"}
    for lane, stage, method in (("generator", "generate", "generate"), ("learner", "update", "update")):
        spans = [span for span in run.spans() if (span.lane, span.stage) == (lane, stage)]
        measured = seconds_of("ray.json", f"task::{lane.capitalize()}.{method}", method)
        assert sorted((span.end_ns - span.start_ns) / 1e9 for span in spans) == pytest.approx(
            sorted(measured), abs=2e-6
        )
    calls = json.loads((DATA / "ray.json").read_text())
    called = sorted((each["ts"], each["dur"] / 1e6) for each in calls if each["name"] == "generate")
    waits = [row.lanes["learner"].get("wait_for_batch", 0.0) for row in run.steps]
    assert waits == pytest.approx([seconds for _, seconds in called], abs=2e-6)


def test_several_traces_are_arms_also_packed_ones(tmp_path):
    packed = tmp_path / "b.json.gz"
    packed.write_bytes(gzip.compress((DATA / "torch.json").read_bytes()))
    runs = imported(tmp_path, f"a={DATA / 'torch.json'}", f"b={packed}", "--machine", "ours")
    assert [run.manifest.arm for run in runs] == ["a", "b"]
    assert len({run.manifest.experiment for run in runs}) == 1
    assert len({run.manifest.machine["fingerprint"] for run in runs}) == 1


def test_pairs_are_put_together_by_thread_and_names_by_a_file_of_ones_own(tmp_path):
    events = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 7, "args": {"name": "sampler 12345"}},
        {"ph": "B", "name": "train 4", "pid": 1, "tid": 2, "ts": 100},
        {"ph": "B", "name": "roll", "pid": 1, "tid": 7, "ts": 110},
        {"ph": "B", "name": "my own", "pid": 1, "tid": 2, "ts": 120},
        {"ph": "E", "pid": 1, "tid": 7, "ts": 160},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 180},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 200},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 210},  # of nothing that began
        {"ph": "X", "name": "half", "pid": 1, "tid": 2, "ts": "never", "dur": 3},
    ]
    trace, names = tmp_path / "trace.json", tmp_path / "names.yaml"
    trace.write_text(json.dumps({"traceEvents": events}))
    names.write_text("step: 'train (\\d+)'\nstages: {generate: [roll]}\n")
    (run,) = imported(tmp_path, trace, "--names", names)
    assert [row.step for row in run.steps] == [4]
    spans = [(span.lane, span.stage.value, span.start_ns, span.end_ns) for span in run.spans()]
    assert ("sampler", "generate", 10_000, 60_000) in spans
    assert ("learner", "my own", 20_000, 80_000) in spans
    names.write_text("step: 'train (\\d+)'\nstages: {generate: [roll]}\nothers: drop\n")
    (dropped,) = imported(tmp_path, trace, "--names", names, out="dropped")
    assert {span.stage.value for span in dropped.spans()} <= {"generate", "startup", "wait_for_batch"}


@pytest.mark.parametrize(
    ("content", "names", "words"),
    [
        ("{", "torch", "damaged"),
        ('{"a": 1}', "torch", "trace events"),
        (
            '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1, "cat": "user_annotation"}]}',
            "torch",
            "--names",
        ),
        ("[]", "no_such_names", "no_such_names"),
        ("[]", "stages: {a: ['(']}\nstep: x\n", "regular expression"),
        ("[]", "stage: {}\n", "stage"),
    ],
)
def test_what_cannot_be_read_is_refused_and_nothing_is_left(tmp_path, capsys, content, names, words):
    trace = tmp_path / "trace.json"
    trace.write_text(content)
    if "\n" in names:
        (tmp_path / "names.yaml").write_text(names)
        names = str(tmp_path / "names.yaml")
    assert main(["import", "trace", str(trace), "--names", names, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
