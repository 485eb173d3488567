"""Metric streams: what a row becomes, the files, what happens where a tracker fails, and what is not loaded.

Weights & Biases and MLflow offline, where their packages are installed.
"""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
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
    """A tracker that remembers the steps that it got, and fails at one of them if told to."""

    def __init__(self, fails_at: int | None = None, fails_to_close: bool = False) -> None:
        self.got: list[int] = []
        self.closed = 0
        self._fails_at, self._fails_to_close = fails_at, fails_to_close

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        if step == self._fails_at:
            raise ConnectionError("no route to the server\nwith a second line")
        self.got.append(step)

    def close(self) -> None:
        self.closed += 1
        if self._fails_to_close:
            raise RuntimeError("cannot finish")


def opened(folder: Path, *rows: StepRow | EvaluationRow, names: Sequence[str] = DEFAULT) -> None:
    """Pass the rows on to streams in a folder."""
    streams = open_streams(names, folder, "sync_k")
    for row in rows:
        streams.on_row(row)
    streams.close()
    streams.close()


def test_the_default_streams_write_both_files(tmp_path: Path) -> None:
    flat = {"elapsed_s": 6.5, "policy_version": 5.0, "validation/reward": 0.5}
    streams = open_streams(DEFAULT, tmp_path, "sync_k")
    streams.on_row(STEP)
    streams.on_row(EVALUATION)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()  # before they are closed: each row is there at once
    assert [json.loads(line) for line in lines] == [
        {"step": 4, "kind": "step"} | FLAT_STEP,
        {"step": 5, "kind": "evaluation"} | flat,
    ]
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert events(file.read_bytes()) == {4: FLAT_STEP, 5: flat}
    streams.close()
    assert re.fullmatch(r"events\.out\.tfevents\.\d{10}\.harness", file.name)
    assert os.uname().nodename.encode() not in file.read_bytes()
    outside = flat_metrics(replace(STEP, warmup=True, profiled=True))
    assert outside == FLAT_STEP | {"warmup": 1.0, "profiled": 1.0}


def test_what_tensorboard_keeps_of_a_run_that_goes_on_are_its_rows(tmp_path: Path) -> None:
    """It goes on from step 5; step 5 was made before, the evaluation of version 5 was told before the checkpoint."""
    later = replace(STEP, step=5, version=6)
    opened(tmp_path, STEP, EVALUATION, later, names=["tensorboard"])
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


def test_any_number_and_name_is_taken_and_what_is_not_finite_is_null_in_json(tmp_path: Path) -> None:
    name = 'reward/"x"\n\u202e\U0001f600'
    metrics = {"loss": {"mean": math.nan}, "grad_norm": {"mean": math.inf}, name: {"mean": 1.0}}
    opened(tmp_path, StepRow(0, 1, 1.0, 1.0, 1, {}, metrics=metrics))
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["loss"], line["grad_norm"], line[name]) == (None, None, 1.0)
    (file,) = (tmp_path / "tensorboard").iterdir()
    values = events(file.read_bytes())[0]
    assert math.isnan(values["loss"])
    assert (values["grad_norm"], values[name]) == (math.inf, 1.0)


def test_streams_leave_no_thread_and_no_open_file(tmp_path: Path) -> None:
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    streams = open_streams(DEFAULT, tmp_path, "sync_k")
    for _ in range(3):
        streams.on_row(STEP)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files + 2
    streams.close()
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_tracker_that_fails_is_left_out_with_one_note_and_keeps_no_other_open() -> None:
    notes: list[str] = []
    failing, other, stuck = Taking(fails_at=1), Taking(), Taking(fails_to_close=True)
    streams = Streams({"wandb": failing, "mlflow": stuck, "jsonl": other}, notes.append)
    for step in range(4):
        streams.on_row(replace(STEP, step=step))
    assert (failing.got, other.got, failing.closed) == ([0], [0, 1, 2, 3], 1)
    streams.close()
    assert (failing.closed, other.closed) == (1, 1)
    assert notes == [
        "tracker wandb failed at step 1 and is left out from here on: ConnectionError: no route to the server",
        "tracker mlflow failed when it was closed: RuntimeError: cannot finish",
    ]


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


ODD = StepRow(3, 4, 1.25, 6.0, 2, {"learner": {"update": 0.5}}, metrics={"loss": {"mean": math.nan, "count": 1}})
LATE = EvaluationRow(version=2, step=2, elapsed_s=3.5, metrics={"validation/reward": {"mean": 0.5, "count": 8}})


def files_with_names(folder: Path) -> list[str]:
    """Name the files below the folder that hold the name of the host or a path."""
    words = [os.uname().nodename, str(folder), os.path.expanduser("~/")]
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path.name for path in files if any(word.encode() in path.read_bytes() for word in words)]


@pytest.fixture
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def write_offline(folder: Path, tracker: str) -> None:
    streams = open_streams([tracker], folder, "lag1,seed=0")
    streams.on_row(ODD)
    streams.on_row(LATE)
    streams.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's own, about SQLAlchemy
@pytest.mark.usefixtures("_offline")
def test_mlflow_keeps_the_values_in_a_database_in_the_run_folder(tmp_path: Path) -> None:
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package)
    write_offline(tmp_path, "mlflow")
    connection = sqlite3.connect(tmp_path / "mlflow.db")
    metrics = connection.execute("select key, value, step, is_nan from metrics order by key, step").fetchall()
    assert metrics == [
        ("elapsed_s", 3.5, 2, 0),
        ("elapsed_s", 6.0, 3, 0),
        ("loss", 0.0, 3, 1),
        ("optimizer_steps", 2.0, 3, 0),
        ("policy_version", 2.0, 2, 0),
        ("policy_version", 4.0, 3, 0),
        ("timing_s/step", 1.25, 3, 0),
        ("timing_s/update", 0.5, 3, 0),
        ("validation/reward", 0.5, 2, 0),
    ]
    runs = connection.execute("select name, status, user_id from runs").fetchall()
    connection.close()
    assert runs == [("lag1,seed=0", "FINISHED", "unknown")]
    assert files_with_names(tmp_path) == []


@pytest.mark.usefixtures("_offline")
def test_wandb_keeps_the_values_in_a_run_that_can_be_synced_later(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    write_offline(tmp_path, "wandb")
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    data = file.read_bytes()
    for word in (b"lag1,seed=0", b"timing_s/update", b"validation/reward", b"grpo-harness"):
        assert word in data
    assert files_with_names(tmp_path) == []
