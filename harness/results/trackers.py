"""Metric streams for other programs: JSON lines, TensorBoard, Weights & Biases, MLflow.

``open_streams`` opens those that a scenario asks for; ``Streams.on_row`` takes each row as the recorder writes it. What
fails there is kept away from the run. The packages of the services are told to keep the names of people, hosts and
programs to themselves as far as they can be told; ``docs/trackers.md`` says what is left.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from harness.core.errors import UserError
from harness.core.extras import how_to_install
from harness.core.plugins import PluginKind, make_plugin
from harness.results.anonymous import Scrubber
from harness.results.jsonl import read_rows
from harness.results.rows import EvaluationRow, StepRow
from harness.results.writer import AppendOnly

METRICS = "metrics.jsonl"
PROJECT = "grpo-harness"
_PACKAGES = {"tensorboard": ("tensorboardX",), "wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
# Read when the packages are imported. MLflow starts a thread that reports its use over the network otherwise.
_QUIET = {
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
}


class MetricStream(Protocol):
    """Takes the numbers of a run as they come."""

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Take the numbers of one row; they may be NaN or infinite.

        Args:
            step: number of the training step, or for an evaluation the number of steps made by then.
            kind: ``step`` or ``evaluation``.
            values: by flat name.
        """

    def close(self) -> None:
        """Write what is left; nothing is logged afterwards."""


TRACKER_PLUGIN = PluginKind(
    "tracker",
    "trackers",
    "(folder: Path, run_name: str) -> MetricStream",
    "docs.examples.own_parts.parts:Csv",
    arguments=("folder", "run_name"),
    protocol=MetricStream,
)
"""Made with the run's folder and what the run is called in a service."""


class Streams:
    """The metric streams of one run, by the tracker's name.

    A stream that fails is closed and left out from then on. That is a note in the run's log, never the end of the run.
    """

    def __init__(self, streams: Mapping[str, MetricStream], note: Callable[[str], None]) -> None:
        self._streams, self._note = dict(streams), note

    def on_row(self, row: StepRow | EvaluationRow) -> None:
        """Pass a row on to every stream."""
        values = flat_metrics(row)
        for name, stream in list(self._streams.items()):
            try:
                stream.log(row.step, row.kind, values)
            except Exception as error:  # whatever a tracker raises: the run goes on without it
                del self._streams[name]
                self._note(f"tracker {name} failed at step {row.step} and is left out from here on: {_brief(error)}")
                with suppress(Exception):  # its failure has been noted
                    stream.close()

    def close(self) -> None:
        """Close all streams; closing twice does no harm."""
        streams, self._streams = self._streams, {}
        for name, stream in streams.items():
            try:
                stream.close()
            except Exception as error:
                self._note(f"tracker {name} failed when it was closed: {_brief(error)}")


def flat_metrics(row: StepRow | EvaluationRow) -> dict[str, float]:
    """Return the numbers of a row by flat name, as ``docs/trackers.md`` lists them. NaN and infinities stay."""
    flat: dict[str, float] = {"elapsed_s": row.elapsed_s, "policy_version": row.version}
    if isinstance(row, StepRow):
        flat |= {"optimizer_steps": row.optimizer_steps, "timing_s/step": row.wall_s}
        flat |= {f"timing_s/{stage}": seconds for stage, seconds in row.stages_s.items()}
        flat |= {flag: 1.0 for flag in ("warmup", "profiled") if getattr(row, flag)}
    metrics = {name: metric.value for name in row.metrics if (metric := row.metric(name)) is not None}
    return {name: float(value) for name, value in (flat | metrics).items()}


class JsonLines(AppendOnly):
    """``metrics.jsonl``: one flat object for each row, with ``step`` and ``kind`` first; NaN and infinities as null."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / METRICS, go_on=True)

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Append one line."""
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self.write(json.dumps({"step": step, "kind": kind} | finite, separators=(",", ":")).encode() + b"\n")


class TensorBoard(AppendOnly):
    """An event file in ``tensorboard/``. Its name holds the time and no host; NaN and infinities are drawn as such.

    Events and checksums are tensorboardX's. Its ``SummaryWriter`` names the host in the file's name and writes from a
    thread, so that a killed run loses its last rows and nobody hears of a full disk.

    Args:
        goes_on_from: training steps from which a run goes on, with its rows cut back to there: TensorBoard forgets
            those of its former files from this step on. Evaluations of this very step, which are not made again, are
            written once more. None in a run that begins.
    """

    def __init__(self, folder: Path, goes_on_from: int | None = None) -> None:
        start = time.time()
        first = event_record(wall_time=start, file_version="brain.Event:2")
        (folder / "tensorboard").mkdir(exist_ok=True)
        path = folder / "tensorboard" / f"events.out.tfevents.{int(start):010d}.harness"
        super().__init__(path, go_on=True)  # a run that goes on has one more, unless it does so at once
        try:
            self.write(first)
        except OSError:
            self.close()
            raise
        if goes_on_from is not None:
            restart = {"status": 1}  # SessionLog.START: what purge_step of a SummaryWriter writes
            self.write(event_record(wall_time=start, step=goes_on_from, session_log=restart))
            for row in read_rows(folder, EvaluationRow):
                if row.step >= goes_on_from:
                    self.log(row.step, row.kind, flat_metrics(row))

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Append one event with all the values."""
        summary = {"value": [{"tag": tag, "simple_value": value} for tag, value in values.items()]}
        self.write(event_record(wall_time=time.time(), step=step, summary=summary))


def event_record(**fields: Any) -> bytes:
    """Return a TensorBoard event with these fields as an event file has it, in TensorFlow's TFRecord framing."""
    from tensorboardX.proto.event_pb2 import Event  # which loads torch, as a run has done by then
    from tensorboardX.record_writer import masked_crc32c

    data: bytes = Event(**fields).SerializeToString()
    length: bytes = struct.pack("<Q", len(data))
    crc_of_length, crc = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
    return length + crc_of_length + data + crc


class WeightsAndBiases:
    """A run of Weights & Biases in the run folder's ``wandb/``; ``wandb sync`` uploads it later.

    The mode is ``offline`` unless the environment has ``WANDB_MODE``. The step is a metric of its own (``step``), since
    an evaluation may finish after later steps, and the package drops what comes with a lower step than its last one.
    """

    def __init__(self, folder: Path, run_name: str) -> None:
        wandb: Any = import_module("wandb")
        quiet = wandb.Settings(
            x_disable_meta=True,  # host, user, program, command line, Python's and the project's paths
            x_disable_machine_info=True,
            x_disable_stats=True,  # ours come from the probes
            x_disable_viewer=True,
            x_save_requirements=False,
            disable_git=True,
            disable_code=True,
            console="off",
            silent=True,
            host="",
            program="harness",
        )
        mode = os.environ.get("WANDB_MODE", "offline")
        named = {"project": PROJECT, "name": run_name, "dir": str(folder)}
        self._run = wandb.init(mode=mode, reinit="create_new", settings=quiet, **named)
        self._folder = folder / "wandb"
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
    """A run of MLflow in ``mlflow.db`` (SQLite) in the run folder, or where ``MLFLOW_TRACKING_URI`` says.

    MLflow's folder of plain files is not used: it is being phased out and refuses to open.
    """

    def __init__(self, folder: Path, run_name: str) -> None:
        entities: Any = import_module("mlflow.entities")
        client_class: Any = import_module("mlflow").MlflowClient
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        store = os.environ.get("MLFLOW_TRACKING_URI")
        if not store:  # keeps it from writing down the current folder's path as one for artifacts, which there are none
            os.environ.setdefault("_MLFLOW_SERVER_ARTIFACT_ROOT", "mlflow-artifacts:/")
        self._client = client_class(tracking_uri=store or f"sqlite:///{(folder / 'mlflow.db').resolve()}")
        known = self._client.get_experiment_by_name(PROJECT)
        number = known.experiment_id if known else self._client.create_experiment(PROJECT)
        self._run_id = str(self._client.create_run(number, run_name=run_name).info.run_id)
        self._metric = entities.Metric

    def log(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Log the values in one call."""
        now_ms = int(time.time() * 1000)
        metrics = [self._metric(name, value, now_ms, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        """Say that the run is finished."""
        self._client.set_terminated(self._run_id)


def check_trackers(names: Iterable[str]) -> None:
    """Refuse trackers whose package is missing, importing none.

    Raises:
        UserError: with the command that installs the package.
    """
    for name in names:
        missing = [package for package in _PACKAGES.get(name, ()) if importlib.util.find_spec(package) is None]
        if missing:
            raise UserError(
                f"the tracker {name!r} needs {', '.join(missing)}, which is not installed",
                where="trackers",
                fix=f"{how_to_install('train' if name == 'tensorboard' else name)}, or take {name!r} out of trackers",
            )


def open_streams(
    names: Sequence[str],
    folder: Path,
    run_name: str,
    note: Callable[[str], None] = lambda sentence: None,
    goes_on_from: int | None = None,
) -> Streams:
    """Open the streams of a run.

    Args:
        names: the trackers of a scenario; what comes twice counts once.
        folder: the run folder, which exists.
        run_name: how the run is called in a service.
        note: takes a sentence for the run's log.
        goes_on_from: training steps from which a run goes on; None in one that begins.

    Raises:
        UserError: a missing package, or a stream that cannot be opened; none is left open.
    """
    check_trackers(names)
    if {"wandb", "mlflow"} & set(names):
        os.environ.update(_QUIET | os.environ)
    ours: dict[str, Callable[[], MetricStream]] = {
        "jsonl": lambda: JsonLines(folder),
        "tensorboard": lambda: TensorBoard(folder, goes_on_from),
        "wandb": lambda: WeightsAndBiases(folder, run_name),
        "mlflow": lambda: MlFlow(folder, run_name),
    }
    opened: dict[str, MetricStream] = {}
    for name in dict.fromkeys(names):
        try:
            given = {"folder": folder, "run_name": run_name}
            opened[name] = ours[name]() if name in ours else make_plugin(name, TRACKER_PLUGIN, given, {})
        except Exception as error:
            Streams(opened, note).close()
            fix = f"take {name!r} out of trackers, or set it up as docs/trackers.md says"
            raise UserError(f"the tracker {name!r} cannot be opened: {_brief(error)}", "trackers", fix) from error
    return Streams(opened, note)


def _brief(error: Exception) -> str:
    """Return kind and first line of an error. It goes into the log, which is kept free of names and paths."""
    return ": ".join([type(error).__name__, *(line[:300] for line in str(error).splitlines()[:1])])
