"""The books of a command's runs: where their folders are, how they begin, and what they say about how they ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.core.errors import Diverged, Interrupted, RunStopped, UserError
from harness.core.trace import RecordingTracer
from harness.models.utilisation import utilisation_of
from harness.probes.provenance import code_state, machine_facts, package_versions
from harness.results import Manifest, RunFolder
from harness.results.anonymous import safe_name
from harness.results.recorder import Row, RunRecorder
from harness.results.trackers.streams import Streams
from harness.results.writer import begin_experiment, timestamp, utc_now
from harness.run.memory import memory_table
from harness.run.memory.outcome import memory_line
from harness.run.parts import RunningParts
from harness.scenario import Variant, resolved_yaml


class Books:
    """One run's folder, recorder and metric streams, closed exactly once.

    Args:
        durable: see ``Experiment``.

    Attributes:
        streams: metrics for other programs; none until they are opened.
        measure_memory: called once at the end: returns what the run held at most, for the manifest.
        memory: what it returned; see ``harness.run.memory.outcome``.
    """

    def __init__(self, folder: RunFolder, recorder: RunRecorder, durable: bool = False) -> None:
        self.folder, self.recorder, self._durable = folder, recorder, durable
        self.streams = Streams({}, folder.log)
        self.measure_memory: Callable[[], dict[str, Any]] = dict
        self.memory: dict[str, Any] = {}
        self._closed = False

    def log_lines(self, lines: Sequence[str]) -> None:
        """Add lines to the run's log."""
        for line in lines:
            self.folder.log(line)

    def complete(self) -> None:
        """The run has made all its steps, and its recorder knows."""
        self._close("completed", None)

    def close_after(self, error: BaseException) -> None:
        """The run ended by this error; what was flushed stays readable. Nothing happens if it was closed before.

        A disk that is full as well does not hide the error.
        """
        if self._closed:
            return
        interrupted = isinstance(error, KeyboardInterrupt | asyncio.CancelledError | Interrupted)
        with suppress(UserError):
            if interrupted:
                self._close("interrupted", None)
            else:
                self._close("failed", str(error), self._divergence(error))

    def _divergence(self, error: BaseException) -> dict[str, Any]:
        """What the outcome says of a run that diverged: the training step."""
        if not isinstance(error, Diverged):
            return {}
        return {"diverged": {"step": self.recorder.steps_done if error.step is None else error.step}}

    def _close(self, status: str, error: str | None, more: dict[str, Any] | None = None) -> None:
        self._closed = True
        self.streams.close()  # what they have to say goes into the log
        with suppress(RunStopped):  # what py-spy lacks was said, or is no news after another error
            self.recorder.probes.close()
        self.recorder.write_spans()
        self.recorder.drain_probes()
        self.memory = self.measure_memory()
        if self.memory:
            self.folder.log(memory_line(self.memory))
        if self._durable:
            self.folder.flush()
            sync_to_disk(self.folder.folder)
        outcome = self.recorder.outcome() | ({"memory": self.memory} if self.memory else {})
        self.folder.finish(status, error, outcome | (more or {}))
        if self._durable:
            sync_to_disk(self.folder.folder)


class Experiment:
    """The folder of one command. It is named and made when the first run is about to start.

    Args:
        out: the results folder.
        scenario_name: names the folder in it.
        name: of an experiment that exists already, which the runs join; None begins a new one.
        durable: have the disk take a run's files before its manifest says how it ended, and that too, so that a power
            cut leaves no run that says it is complete and is not.

    Attributes:
        folder: the folder; None until then.
        machine_speed: speed of the machine before the block that runs next; None without blocks.
    """

    def __init__(self, out: Path, scenario_name: str, name: str | None = None, durable: bool = False) -> None:
        self._out, self._scenario_name, self._name, self._durable = out, scenario_name, name, durable
        self.machine_speed: dict[str, float] | None = None
        self._code, self._machine, self._versions = code_state(), machine_facts(), package_versions()

    @property
    def folder(self) -> Path | None:
        """Where the experiment's runs are."""
        return self._folder_called(self._name) if self._name else None

    @property
    def has_gpu(self) -> bool:
        """Whether this machine has a GPU."""
        return bool(self._machine["gpus"])

    def _folder_called(self, name: str) -> Path:
        return self._out / safe_name(self._scenario_name) / name

    def open_books(
        self,
        variant: Variant,
        tracer: RecordingTracer,
        parts: RunningParts,
        interleaving: str | None,
        on_row: Callable[[Row, float], None],
        profiled: frozenset[int] = frozenset(),
    ) -> Books:
        """Make a run's folder with its manifest and resolved scenario.

        Raises:
            UserError: the folder cannot be made.
        """
        startup_s = tracer.clock_ns() / 1e9
        folder = self.open_folder(variant, startup_s, interleaving, parts.threads, parts.num_parameters)
        gpus = self._machine["gpus"] or ()
        utilisation = utilisation_of(variant.scenario, gpus if parts.learner_on_gpu else ())
        recorder = RunRecorder(folder, tracer, parts.plan.max_lag == 0, on_row, profiled, utilisation=utilisation)
        books = Books(folder, recorder, self._durable)
        books.log_lines(memory_table(variant.scenario, self.has_gpu))
        return books

    def open_folder(
        self,
        variant: Variant,
        startup_s: float,
        interleaving: str | None,
        threads: int | None,
        parameters: int | None,
    ) -> RunFolder:
        """Make a run's folder with its manifest and resolved scenario; for what the arguments mean see ``Manifest``.

        Raises:
            UserError: the folder cannot be made.
        """
        folder = self._make_folder(variant.name or None)
        assert self._name is not None
        folder.write_manifest(
            Manifest(
                scenario=self._scenario_name,
                experiment=self._name,
                started_at=timestamp(utc_now()),
                arm=variant.arm,
                point=variant.point,
                position=variant.position,
                startup_s=round(startup_s, 6),
                seed=variant.scenario.seed,
                interleaving=interleaving,
                block=variant.block,
                machine_speed=self.machine_speed,
                profile=variant.scenario.profile,
                versions=dict(self._versions),
                machine=self._machine,
                threads=threads,
                commit=self._code.commit,
                dirty=self._code.dirty,
                parameters=parameters,
            )
        )
        folder.write_scenario(resolved_yaml(variant.scenario))
        return folder

    def record_failure(self, variant: Variant, error: BaseException) -> Path:
        """Make the folder of a run that could not even start, which says why; return it.

        Raises:
            UserError: the folder cannot be made.
        """
        folder = self.open_folder(variant, 0.0, None, None, None)
        folder.finish("failed", str(error))
        return folder.folder

    def _make_folder(self, variant_name: str | None) -> RunFolder:
        if self._name is not None:
            return RunFolder.create(self._out, self._scenario_name, self._name, variant_name)
        folder, self._name = begin_experiment(self._out, self._scenario_name, variant_name)
        return folder


def sync_to_disk(folder: Path) -> None:
    """Return when the disk has taken a folder, all files below it, and their names."""
    for home, _, names in os.walk(folder):
        for path in (*(Path(home, name) for name in names), Path(home)):
            sync_one(path)
    sync_one(folder.parent)


def sync_one(path: Path) -> None:
    """Return when the disk has taken a file, or the names in a folder."""
    with suppress(OSError):  # a file system that cannot, or a draft that is gone already
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
