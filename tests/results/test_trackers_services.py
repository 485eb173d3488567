"""Weights & Biases and MLflow, offline, where their packages are installed: what ends up in their files."""

from __future__ import annotations

import math
import os
import sqlite3
from pathlib import Path

import pytest

from harness.results import EvaluationRow, StepRow
from harness.results.trackers import open_streams

STEP = StepRow(3, 4, 1.25, 6.0, 2, {"learner": {"update": 0.5}}, metrics={"loss": {"mean": math.nan, "count": 1}})
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


def write(folder: Path, tracker: str) -> None:
    streams = open_streams([tracker], folder, "lag1,seed=0")
    streams.on_row(STEP)
    streams.on_row(LATE)
    streams.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's own, about SQLAlchemy
@pytest.mark.usefixtures("_offline")
def test_mlflow_keeps_the_values_in_a_database_in_the_run_folder(tmp_path: Path) -> None:
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package)
    write(tmp_path, "mlflow")
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
    write(tmp_path, "wandb")
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    data = file.read_bytes()
    for word in (b"lag1,seed=0", b"timing_s/update", b"validation/reward", b"grpo-harness"):
        assert word in data
    assert files_with_names(tmp_path) == []
