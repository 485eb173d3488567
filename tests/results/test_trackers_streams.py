"""Metric streams: what a row becomes, the files, what happens where a tracker fails, and what is not loaded."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.core.errors import UserError
from harness.core.types import Metric
from harness.results import EvaluationRow, StepRow, store_metrics
from harness.results.importers.logs import STEP as AT
from harness.results.importers.logs import TIME, read_events
from harness.results.rows import HeaderRow
from harness.results.trackers import Streams, flat_metrics, open_streams

DEFAULT = ("jsonl", "tensorboard")
LANES = {"learner": {"update": 0.5}, "generator0": {"generate": 0.25}, "generator1": {"generate": 0.5}}
METRICS = {
    "reward/total": Metric(0.75, count=64),
    "ratio/max": Metric(1.5, "max"),
    "response_tokens": Metric(640, "sum"),
}
STEP = StepRow(4, 5, 1.25, 6.0, 2, LANES, metrics=store_metrics(METRICS))
EVALUATION = EvaluationRow(version=5, step=5, elapsed_s=6.5, metrics={"validation/reward": {"mean": 0.5, "count": 256}})
FLAT_STEP = {
    "elapsed_s": 6.0,
    "optimizer_steps": 2.0,
    "policy_version": 5.0,
    "timing_s/step": 1.25,
    "timing_s/update": 0.5,
    "timing_s/generate": 0.75,  # added over both Generators
    "reward/total": 0.75,
    "ratio/max": 1.5,
    "response_tokens": 640.0,
}


def events(data: bytes) -> dict[int, dict[str, float]]:
    """The scalars of an event file by step."""
    records, left_out = read_events(data, "log")
    assert left_out == []
    return {each.pop(AT): {name: value for name, value in each.items() if name != TIME} for each in records}


class Taking:
    """A tracker that remembers what it got, and fails at one step if told to."""

    def __init__(self, fails_at: int | None = None, fails_to_close: bool = False) -> None:
        self.got: list[tuple[int, str, dict[str, float]]] = []
        self.closed = 0
        self._fails_at, self._fails_to_close = fails_at, fails_to_close

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        if step == self._fails_at:
            raise ConnectionError("no route to the server\nwith a second line")
        self.got.append((step, kind, dict(values)))

    def close(self) -> None:
        self.closed += 1
        if self._fails_to_close:
            raise RuntimeError("cannot finish")


def test_a_step_row_becomes_flat_names_with_the_values_of_their_reductions() -> None:
    assert flat_metrics(STEP) == FLAT_STEP


def test_an_evaluation_row_has_no_stages() -> None:
    assert flat_metrics(EVALUATION) == {"elapsed_s": 6.5, "policy_version": 5.0, "validation/reward": 0.5}


def test_steps_outside_of_statistics_are_marked() -> None:
    flat = flat_metrics(replace(STEP, warmup=True, profiled=True))
    assert (flat["warmup"], flat["profiled"]) == (1.0, 1.0)


def test_no_flat_name_is_a_path_prefix_of_another() -> None:
    """MLflow's stores keep names as paths, where a name cannot be both a file and a folder."""
    names = set(FLAT_STEP) | set(flat_metrics(EVALUATION))
    assert not [(a, b) for a in names for b in names if b.startswith(a + "/")]


def test_the_default_streams_write_both_files(tmp_path: Path) -> None:
    streams = open_streams(DEFAULT, tmp_path, "sync_k")
    streams.on_row(STEP)
    streams.on_row(EVALUATION)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()  # before they are closed: each row is there at once
    assert [json.loads(line) for line in lines] == [
        {"step": 4, "kind": "step"} | FLAT_STEP,
        {"step": 5, "kind": "evaluation", "elapsed_s": 6.5, "policy_version": 5.0, "validation/reward": 0.5},
    ]
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert events(file.read_bytes()) == {4: FLAT_STEP, 5: flat_metrics(EVALUATION)}
    streams.close()
    streams.close()


def test_what_tensorboard_keeps_of_a_run_that_goes_on_are_its_rows(tmp_path: Path) -> None:
    """It goes on from step 5; step 5 was made before, the evaluation of version 5 was told before the checkpoint."""
    later = replace(STEP, step=5, version=6)
    first = open_streams(["tensorboard"], tmp_path, "sync_k")
    for row in (STEP, EVALUATION, later):
        first.on_row(row)
    first.close()
    rows = (HeaderRow("harness.steps", 1), STEP, EVALUATION)
    (tmp_path / "steps.jsonl").write_bytes(b"".join(row.line() for row in rows))
    before = {file: file.read_bytes() for file in (tmp_path / "tensorboard").iterdir()}
    again = open_streams(["tensorboard"], tmp_path, "sync_k", goes_on_from=5)
    again.on_row(later)
    again.close()
    whole = b"".join(file.read_bytes() for file in sorted((tmp_path / "tensorboard").iterdir()))
    (old,) = before.values()
    assert events(old)[4] == FLAT_STEP  # the others go: that is what SessionLog.START does
    assert events(whole[len(old) :]) == {5: flat_metrics(EVALUATION) | FLAT_STEP | {"policy_version": 6.0}}


def test_non_finite_numbers_are_null_in_json_and_stay_in_tensorboard(tmp_path: Path) -> None:
    metrics = {"loss": {"mean": math.nan}, "grad_norm": {"mean": math.inf}}
    row = StepRow(0, 1, 1.0, 1.0, 1, {}, metrics=metrics)
    streams = open_streams(DEFAULT, tmp_path, "sync_k")
    streams.on_row(row)
    streams.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["loss"], line["grad_norm"]) == (None, None)
    (file,) = (tmp_path / "tensorboard").iterdir()
    values = events(file.read_bytes())[0]
    assert math.isnan(values["loss"])
    assert values["grad_norm"] == math.inf


def test_the_event_file_names_no_host(tmp_path: Path) -> None:
    streams = open_streams(["tensorboard"], tmp_path, "sync_k")
    streams.on_row(STEP)
    streams.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert re.fullmatch(r"events\.out\.tfevents\.\d{10}\.harness", file.name)
    assert set(events(file.read_bytes())[4]) == set(FLAT_STEP)  # the records hold nothing else: their lengths add up
    assert os.uname().nodename.encode() not in file.read_bytes()


def test_streams_leave_no_thread_and_no_open_file(tmp_path: Path) -> None:
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    streams = open_streams(DEFAULT, tmp_path, "sync_k")
    for _ in range(3):
        streams.on_row(STEP)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files + 2
    streams.close()
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_tracker_that_fails_is_left_out_with_one_note() -> None:
    notes: list[str] = []
    failing, other = Taking(fails_at=1), Taking()
    streams = Streams({"wandb": failing, "jsonl": other}, notes.append)
    for step in range(4):
        streams.on_row(replace(STEP, step=step))
    assert notes == [
        "tracker wandb failed at step 1 and is left out from here on: ConnectionError: no route to the server"
    ]
    assert [step for step, _, _ in failing.got] == [0]
    assert [step for step, _, _ in other.got] == [0, 1, 2, 3]
    assert failing.closed == 1
    streams.close()
    assert (failing.closed, other.closed) == (1, 1)


def test_a_tracker_that_fails_to_close_does_not_keep_the_others_open() -> None:
    notes: list[str] = []
    failing, other = Taking(fails_to_close=True), Taking()
    Streams({"wandb": failing, "jsonl": other}, notes.append).close()
    assert notes == ["tracker wandb failed when it was closed: RuntimeError: cannot finish"]
    assert other.closed == 1


def test_a_missing_package_is_told_with_its_command_before_anything_is_opened(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['mlflow'] = None\n"  # how Python itself says that a module cannot be imported
        "from pathlib import Path\n"
        "from harness.results.trackers import open_streams\n"
        f"open_streams(['jsonl', 'mlflow'], Path({str(tmp_path)!r}), 'run')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "the tracker 'mlflow' needs mlflow" in done.stderr
    assert "make install PARTS=mlflow" in done.stderr
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_stream_that_cannot_be_opened_closes_the_others(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UserError, match="the tracker 'tensorboard' cannot be opened: FileExistsError"):
        open_streams(DEFAULT, tmp_path, "sync_k")
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_run_without_a_tracker_does_not_load_its_package(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from harness.results import EvaluationRow\n"
        "from harness.results.trackers import open_streams\n"
        f"streams = open_streams(['jsonl'], Path({str(tmp_path)!r}), 'run')\n"
        "streams.on_row(EvaluationRow(0, 0, 0.0, {})); streams.close()\n"
        "print(sorted({'torch', 'ray', 'numpy', 'tensorboardX', 'wandb', 'mlflow'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_name_may_hold_any_text(tmp_path: Path) -> None:
    name = 'reward/"x"\n\u202e\U0001f600'
    streams = open_streams(DEFAULT, tmp_path, "sync_k")
    streams.on_row(EvaluationRow(0, 0, 0.0, {name: {"mean": 1.0, "count": 1}}))
    streams.close()
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)[name] == 1.0
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert events(file.read_bytes()) == {0: {"elapsed_s": 0.0, "policy_version": 0.0, name: 1.0}}
