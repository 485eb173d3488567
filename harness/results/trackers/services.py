"""Streams to Weights & Biases and to MLflow, both optional and both offline unless their user has set them up.

Both packages are told to keep the names of people, hosts and programs to themselves as far as they can be told;
``docs/trackers.md`` says what is left.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.results import Scrubber

WANDB, MLFLOW = "wandb", "mlflow"
PROJECT = "grpo-harness"
# Read when the packages are imported. MLflow starts a thread that reports its use over the network otherwise.
_QUIET = {
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
}
_WANDB_SETTINGS: dict[str, Any] = {
    "x_disable_meta": True,  # host, user, program, command line, Python's and the project's paths
    "x_disable_machine_info": True,
    "x_disable_stats": True,  # ours come from the probes
    "x_disable_viewer": True,
    "x_save_requirements": False,
    "disable_git": True,
    "disable_code": True,
    "console": "off",
    "silent": True,
    "host": "",
    "program": "harness",
}


class WeightsAndBiases:
    """A run of Weights & Biases in the run folder's ``wandb/``; ``wandb sync`` uploads it later.

    The mode is ``offline`` unless the environment has ``WANDB_MODE``. The step is a metric of its own (``step``), since
    an evaluation may finish after later steps, and the package drops what comes with a lower step than its last one.

    Args:
        settings: what the user wants passed to ``wandb.init``, such as ``project``.
    """

    def __init__(self, folder: Path, run_name: str, settings: Mapping[str, Any]) -> None:
        _be_quiet()
        wandb: Any = import_module(WANDB)
        wanted = {"project": PROJECT, "name": run_name, "mode": os.environ.get("WANDB_MODE", "offline")}
        quiet = wandb.Settings(**_WANDB_SETTINGS)
        self._run = wandb.init(dir=str(folder), reinit="create_new", settings=quiet, **(wanted | dict(settings)))
        self._folder = folder / WANDB
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Log the values with their step."""
        self._run.log({"step": step, **values})

    def close(self) -> None:
        """Finish the run, wait until its files are complete, and take names and paths out of the package's logs."""
        self._run.finish()
        scrubber = Scrubber.of_this_process()
        for path in self._folder.rglob("*.log"):
            if not path.is_symlink():
                path.write_text(scrubber.text(path.read_text(encoding="utf-8", errors="replace")), encoding="utf-8")


class MlFlow:
    """A run of MLflow, by default in ``mlflow.db`` (SQLite) in the run folder.

    ``MLFLOW_TRACKING_URI`` in the environment, or ``tracking_uri`` in the settings, chooses another store. MLflow's
    folder of plain files is not used: it is being phased out and refuses to open.

    Args:
        settings: ``tracking_uri`` and ``experiment``.
    """

    def __init__(self, folder: Path, run_name: str, settings: Mapping[str, Any]) -> None:
        _be_quiet()
        entities: Any = import_module("mlflow.entities")
        client_class: Any = import_module(MLFLOW).MlflowClient
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        store = settings.get("tracking_uri") or os.environ.get("MLFLOW_TRACKING_URI")
        if not store:  # keeps it from writing down the current folder's path as one for artifacts, which there are none
            os.environ.setdefault("_MLFLOW_SERVER_ARTIFACT_ROOT", "mlflow-artifacts:/")
        self._client = client_class(tracking_uri=store or f"sqlite:///{(folder / 'mlflow.db').resolve()}")
        self._run_id = self._start(settings.get("experiment", PROJECT), run_name)
        self._metric = entities.Metric

    def _start(self, experiment: str, run_name: str) -> str:
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        return str(self._client.create_run(number, run_name=run_name).info.run_id)

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Log the values in one call."""
        now_ms = int(time.time() * 1000)
        metrics = [self._metric(name, value, now_ms, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        """Say that the run is finished."""
        self._client.set_terminated(self._run_id)


def _be_quiet() -> None:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
