"""The Ray actors: each holds one worker in a process of its own and answers with what it returned and how long it took.

They are plain classes here; ``parts`` makes actors of them, with the options that the run needs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
import torch

from harness.core.errors import UserError
from harness.core.trace import RecordingTracer, Span, Stage, Tracer
from harness.core.types import GroupData, RolloutGroup, ScoredBatch, UpdateResult, WeightHandle, WorkItem
from harness.probes.memory import DeviceFigure
from harness.probes.tracers import Instruments
from harness.run.workers import GeneratorWorker, LearnerWorker, ScorerWorker


@dataclass(frozen=True)
class ProcessSetup:
    """How an actor's process is set up before anything is built in it.

    Attributes:
        lane: name of its lane.
        threads: CPU threads of torch.
        log: file that takes what the process prints; None leaves it to Ray.
        working_folder, import_path: those of the driver, which makes this value, so that files and modules that the
            scenario names are found.
        cuda: whether the worker computes on a GPU.
        instruments: probes, and delays that the scenario asks for.
    """

    lane: str
    threads: int
    log: Path | None
    working_folder: Path = field(default_factory=Path.cwd)
    import_path: tuple[str, ...] = field(default_factory=lambda: tuple(os.path.abspath(path) for path in sys.path))
    cuda: bool = False
    instruments: Instruments = field(default_factory=Instruments)


@dataclass(frozen=True)
class ProcessFacts:
    """Where a part stands: its process, its host's boot, its node."""

    pid: int
    boot_id: str
    node_id: str


@dataclass(frozen=True)
class Reply:
    """What a call returned, the spans it recorded on the machine's monotonic clock, what the device says of them."""

    value: Any
    spans: list[Span]
    device_figures: list[DeviceFigure] = field(default_factory=list)


class PartProcess:
    """What the actors have in common. ``build`` is apart from the start, so that its errors come back as they are."""

    def __init__(self, setup: ProcessSetup) -> None:
        if setup.log is not None:
            _print_into(setup.log)
        self._setup = setup
        sys.path[:] = [*setup.import_path, *(path for path in sys.path if path not in setup.import_path)]
        torch.set_num_threads(setup.threads)
        self._recorder = RecordingTracer(time.perf_counter_ns)
        self._instrumented = setup.instruments.for_process(self._recorder, (setup.lane,), setup.cuda)
        self._worker: Any = None

    def build(self, make: Callable[[Tracer], Any]) -> ProcessFacts:
        """Make the worker.

        Raises:
            UserError: the driver's working folder is not on this machine, or ``make`` raises it.
        """
        self._enter_working_folder()
        with self._recorder.underway(self._setup.lane, Stage.STARTUP):
            self._worker = make(self._instrumented.tracer)
        for note in (*self._instrumented.notes, *getattr(self._worker, "notes", ())):
            print(note, flush=True)
        return ProcessFacts(os.getpid(), boot_id(), ray.get_runtime_context().get_node_id())

    def _enter_working_folder(self) -> None:
        folder = self._setup.working_folder
        try:
            os.chdir(folder)
        except OSError as error:
            raise UserError(
                f"{self._setup.lane} was placed on a machine without the working folder ({error.strerror})",
                str(folder),
                "have the project in the same folder on every node of the cluster",
            ) from error

    def now_ns(self) -> int:
        """This machine's monotonic clock."""
        return time.perf_counter_ns()

    def end_windows(self) -> None:
        """Stop the profilers that still run, and have them write what they have."""
        self._instrumented.end_windows()

    def close(self) -> None:
        """Give back what the worker holds outside of its process."""
        if self._worker is not None:
            self._worker.close()

    def _record_arrival(self, lane: str, version: int, called_ns: int) -> None:
        """Tensors that were sent along with a call have been on their way since it was made."""
        span = Span(lane, Stage.WEIGHT_TRANSFER, called_ns, time.perf_counter_ns(), version, version)
        self._recorder.finished.append(span)

    def _reply(self, value: Any) -> Reply:
        return Reply(value, self._recorder.drain(), self._instrumented.drain_device_figures())


class GeneratorProcess(PartProcess):
    """Holds a ``GeneratorWorker``."""

    _worker: GeneratorWorker

    @ray.method(concurrency_group="weights")
    def load(self, weight_handle: WeightHandle) -> Reply:
        """Fetch published weights and load them; may run while ``generate`` does."""
        return self._reply(self._worker.load_weights(weight_handle))

    @ray.method(concurrency_group="weights")
    def load_arrived(self, weight_handle: WeightHandle, called_ns: int, arrived: list[torch.Tensor]) -> Reply:
        """Load weights that were sent along with this call, which the driver made at ``called_ns``."""
        self._record_arrival(self._worker.lane, weight_handle.version, called_ns)
        return self._reply(self._worker.load_weights(weight_handle, arrived))

    def generate(self, item: WorkItem) -> list[Any]:
        """Return the reply with the groups' metadata, then the data of each group as a return value of its own."""
        groups = self._worker.generate(item)
        return [self._reply(tuple(replace(group, data=None) for group in groups)), *(group.data for group in groups)]


class ScorerProcess(PartProcess):
    """Holds a ``ScorerWorker``."""

    _worker: ScorerWorker

    def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...], *data: GroupData) -> Reply:
        """Return the scored groups; in place of its data each one has the number under which it came."""
        whole = tuple(replace(group, data=part) for group, part in zip(groups, data, strict=True))
        scored: ScoredBatch = self._worker.score(item, whole)
        numbers = {id(part): number for number, part in enumerate(data)}
        bare = tuple(replace(group, data=numbers[id(group.data)]) for group in scored.groups)
        return self._reply(replace(scored, groups=bare))


class LearnerProcess(PartProcess):
    """Holds a ``LearnerWorker``."""

    _worker: LearnerWorker

    def update(self, step: int, groups: tuple[RolloutGroup, ...], *data: GroupData) -> Reply:
        """Train on one batch."""
        whole = tuple(replace(group, data=part) for group, part in zip(groups, data, strict=True))
        result: UpdateResult = self._worker.update(step, whole)
        return self._reply(result)

    def publish(self, version: int, still_needed: frozenset[int]) -> Reply:
        """Publish the current weights."""
        return self._reply(self._worker.publish_weights(version, still_needed))

    def outgoing(self, version: int) -> list[torch.Tensor]:
        """Return published tensors, for transports that send them with the reply."""
        return self._worker.outgoing(version)

    def checkpoint(self, version: int, folder: Path | None) -> Reply:
        """Save the policy."""
        self._worker.checkpoint(version, folder)
        return self._reply(None)


def boot_id() -> str:
    """Return what tells this boot of this machine from all others: within it, monotonic clocks agree."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _print_into(path: Path) -> None:
    """Have everything that this process prints, libraries in C included, go to a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
