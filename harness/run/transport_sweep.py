"""Weight syncs alone: every transport with every size, in turns, between real actors that compute nothing.

A sync is timed from the Learner's live weights to the engines' own tensors. ``run`` does this with a scenario that has
a ``transport_sweep``.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayTaskError
from rich.console import Console

from harness.core.errors import HarnessError, Interrupted, RunStopped, UserError
from harness.core.progress import is_live, progress_bars
from harness.core.seeds import derive_seed
from harness.core.trace import Span, Stage, Tracer
from harness.core.types import WeightHandle
from harness.engines.paced import PacedEngine
from harness.learner.paced import made_up_weights, stamp
from harness.results.rows import SyncRow
from harness.run.actors.deaths import DEATHS, cause_of_death, own_error
from harness.run.actors.part import LEAST_START_S, ActorSpec, ProcessSetup, Reply, arrival, start_limit_s
from harness.run.actors.session import ProcessLogs, RaySession, process_environment
from harness.run.devices import resolve_device
from harness.run.engine import Failures
from harness.run.errors import full_gpu_as_user_error
from harness.run.interleaving import Group, alternating_order
from harness.run.interrupts import holding_interrupts
from harness.run.points import Resume
from harness.run.session import Experiment, run_label
from harness.run.weight_sync import load_weights, publish_weights
from harness.scenario.axes import Variant
from harness.scenario.lanes import numbered_lanes
from harness.scenario.schema import Scenario
from harness.settings.placement import PartSettings
from harness.settings.transport import TransportSweepSettings
from harness.transports.catalogue import transport_kind
from harness.transports.collective import end_group, make_group
from harness.transports.protocol import TransportOptions

COPY_BYTES = 256_000_000


@dataclass(frozen=True, slots=True)
class Sync:
    """One sync to make. ``repeat`` 0 is not counted: it sets connections up and touches fresh memory."""

    transport: str
    receivers: int
    repeat: int


def syncs_of(settings: TransportSweepSettings, seed: int) -> Iterator[Sync]:
    """Yield the syncs of weights of one size: in each repeat every transport once, in an order drawn anew.

    Each second repeat runs the last order backwards; see ``alternating_order``.
    """
    for receivers in sorted(settings.receivers):
        repeats = [settings.repeats + 1] * len(settings.transports)
        drawn_from = derive_seed(seed, "transport_sweep", receivers)
        for index, repeat in alternating_order(len(repeats), repeats, drawn_from):
            yield Sync(settings.transports[index], receivers, repeat)


# ---- the workers: one end of every transport around the same tensors


class SweepLearner:
    """One set of weights on a device with a sender of each transport, with its usual settings, in front."""

    def __init__(
        self, transports: Sequence[str], megabytes: float, tensors: int, folder: str, device: str, tracer: Tracer
    ) -> None:
        made_up = made_up_weights(megabytes, tensors)
        options = TransportOptions(folder=folder, device=device)
        self.senders = {name: transport_kind(name).sender(options) for name in transports}
        self.weights = {name: tensor.to(device) for name, tensor in made_up.items()}
        self.tracer = tracer

    def publish_weights(self, transport: str, version: int) -> WeightHandle:
        """Change the weights and publish them; nothing published before is needed any more."""
        stamp(self.weights, version)
        return publish_weights(
            self.senders[transport],
            self.weights,
            version,
            frozenset(),
            with_checksum=True,
            tracer=self.tracer,
            lane="learner",
        )

    def outgoing(self, transport: str, version: int) -> list[torch.Tensor]:
        return self.senders[transport].outgoing(version)

    def close(self) -> None:
        for sender in self.senders.values():
            sender.close()


class SweepGenerator:
    """One engine with a receiver of each transport in front, on one device."""

    def __init__(self, transports: Sequence[str], lane: str, device: str, tracer: Tracer) -> None:
        options = TransportOptions(device=device)
        self.receivers = {name: transport_kind(name).receiver(options) for name in transports}
        self.lane, self.device, self.tracer = lane, device, tracer
        self.engine = PacedEngine(0.0, 0.0, 1, device=device)
        self._copied: tuple[torch.Tensor, torch.Tensor] | None = None

    def load_weights(
        self, transport: str, weight_handle: WeightHandle, arrived: list[torch.Tensor] | None = None
    ) -> None:
        """Load weights that came by this transport into the same tensors as those of all others."""
        receiver = self.receivers[transport]
        load_weights(receiver, self.engine, weight_handle, arrived, tracer=self.tracer, lane=self.lane)

    def plain_copy_s(self, num_bytes: int) -> float:
        """Return the seconds of one copy of so many bytes in warm memory: no transport with a copy can be faster.

        Large amounts are copied in pieces of ``COPY_BYTES``, which is far above the caches, to save memory. On a GPU it
        is a copy within its memory.
        """
        size = min(num_bytes, COPY_BYTES)
        if self._copied is None or self._copied[0].numel() != size:
            ones = torch.ones(size, dtype=torch.uint8, device=self.device)
            self._copied = (ones, ones.clone())
        source, target = self._copied
        start_ns = time.perf_counter_ns()
        for begin in range(0, num_bytes, size):
            target[: num_bytes - begin].copy_(source[: num_bytes - begin])
        if target.is_cuda:
            torch.cuda.synchronize()
        return (time.perf_counter_ns() - start_ns) / 1e9

    def close(self) -> None:
        for receiver in self.receivers.values():
            receiver.close()


# ---- their actors, and the time of a sync


class SweepActors:
    """One Learner with weights of a size, and some Generators, with an end of every transport.

    Args:
        scenario: has a ``transport_sweep``.
        session: the Ray they run in.
        megabytes, tensors: of the weights.
        logs: takes what the processes print.

    Raises:
        UserError: a transport cannot be used here.
        RunStopped: an actor died.
    """

    def __init__(
        self, scenario: Scenario, session: RaySession, megabytes: float, tensors: int, logs: ProcessLogs
    ) -> None:
        settings, placement = _sweep_of(scenario), scenario.placement
        transports, kinds = settings.transports, [transport_kind(name) for name in settings.transports]
        self._tensors, self._version, self._limit_s = tensors, -1, scenario.faults.stall_after_s
        self._folder = tempfile.mkdtemp(prefix="weights-", dir=session.folder)

        def launch(lane: str, part: PartSettings, worker: type, *arguments: Any) -> tuple[Any, Any, Any]:
            device = resolve_device(scenario, part)
            environment = process_environment(1, placement.interface)
            return ActorSpec(
                setup=ProcessSetup(lane, 1, logs.file_for(lane), cuda=device == "cuda"),
                make=partial(worker, transports, *arguments, device),
                options={"num_cpus": 0, "num_gpus": part.gpus, "runtime_env": {"env_vars": environment}},
                tensor_transport=True,
                calls={kind.calls: 2 for kind in kinds if kind.calls is not None},
            ).launch()

        launched = [launch("learner", placement.learner, SweepLearner, megabytes, tensors, self._folder)]
        for lane in numbered_lanes("generator", max(settings.receivers)):
            launched.append(launch(lane, placement.generator, SweepGenerator, lane))
        self._handles = [handle for handle, *_ in launched]
        try:
            with _plain_errors(limit_s := start_limit_s(self._limit_s)):
                ray.get([facts for _, facts, _ in launched], timeout=limit_s)
            for kind in kinds:
                if kind.two_sided:
                    make_group(self._handles, kind.name)
        except BaseException:
            self.close()
            raise

    def sync(self, wanted: Sync) -> SyncRow:
        """Make one sync and return its times.

        The slowest receiver decides; verification is timed apart and is part of no other figure. Where the weights
        arrive in memory of the receiver's own, the copy into the engine's tensors is timed apart as well.

        Raises:
            RunStopped: the weights that arrived are not those published, or an actor died.
        """
        self._version += 1
        learner, generators = self._handles[0], self._handles[1 : 1 + wanted.receivers]
        kind, version, sent = transport_kind(wanted.transport), self._version, []
        with _plain_errors(self._limit_s):
            published: Reply = ray.get(
                learner.call.remote("publish_weights", (kind.name, version)), timeout=self._limit_s
            )
            if kind.two_sided:
                tensors = learner.outgoing.options(tensor_transport=kind.tensor_transport)
                sent = [tensors.remote(kind.name, version)]
            called_ns, loading = [], []
            for generator in generators:
                called_ns.append(time.perf_counter_ns())
                loading.append(generator.call.remote("load_weights", (kind.name, published.value), *sent))
            replies: list[Reply] = ray.get(loading, timeout=self._limit_s)
            copying = generators[0].call.remote("plain_copy_s", (published.value.num_bytes,))
            copied: Reply = ray.get(copying, timeout=self._limit_s)
        loaded = [
            [arrival(reply.spans, at_ns), *reply.spans] if sent else reply.spans
            for reply, at_ns in zip(replies, called_ns, strict=True)
        ]
        slowest = max(loaded, key=lambda spans: max(span.end_ns for span in spans))
        load_s = _seconds(slowest, Stage.WEIGHT_LOAD)
        verify_s = _seconds([*published.spans, *slowest], Stage.WEIGHT_VERIFY)
        whole_ns = max(span.end_ns for span in slowest) - min(span.start_ns for span in published.spans)
        return SyncRow(
            transport=wanted.transport,
            num_bytes=published.value.num_bytes,
            tensors=self._tensors,
            receivers=wanted.receivers,
            repeat=wanted.repeat,
            total_s=whole_ns / 1e9 - verify_s - (load_s if kind.own_memory else 0.0),
            publish_s=_seconds(published.spans, Stage.WEIGHT_PUBLISH),
            transfer_s=_seconds(slowest, Stage.WEIGHT_TRANSFER),
            load_s=load_s,
            verify_s=verify_s,
            plain_copy_s=copied.value,
        )

    def close(self) -> None:
        end_group()
        for handle in self._handles:
            ray.kill(handle)
        shutil.rmtree(self._folder, ignore_errors=True)


def _seconds(spans: Sequence[Span], stage: Stage) -> float:
    return sum(span.end_ns - span.start_ns for span in spans if span.stage is stage) / 1e9


@contextmanager
def _plain_errors(limit_s: float) -> Iterator[None]:
    """Raise what happened in an actor as if it had happened here; ``limit_s`` is how long an answer may take."""
    try:
        yield
    except RayTaskError as error:
        raise own_error(error) from None
    except DEATHS as error:
        raise RunStopped(f"an actor of the transport sweep died: {cause_of_death(error)}") from None
    except GetTimeoutError:
        what = "an actor of the transport sweep has not answered"
        least = f", but at least {LEAST_START_S:g}" if limit_s == LEAST_START_S else ""
        raise RunStopped(f"{what} within {limit_s:g} s (faults.stall_after_s{least})") from None


# ---- the run


class TransportSweeps:
    """Times the syncs of transport sweeps, each into a run folder of its own; an ``engine.Runs``.

    Args:
        session: returns the Ray that a scenario runs in.
    """

    def __init__(
        self, experiment: Experiment, session: Callable[[Scenario], RaySession], console: Console, quiet: bool
    ) -> None:
        self._experiment, self._session, self._console, self._quiet = experiment, session, console, quiet

    def run(self, group: Group, resumes: Mapping[str, Resume], place: str) -> Failures:
        (variant,) = group.variants
        try:
            with full_gpu_as_user_error(variant.scenario):
                self._measure(variant)
        except (UserError, RunStopped) as error:  # a transport cannot be used, weights arrived wrong, an actor died
            return [(run_label(variant), error)]
        return []

    def _measure(self, variant: Variant) -> None:
        session = self._session(variant.scenario)
        for name in _sweep_of(variant.scenario).transports:
            transport_kind(name).check_here()
        start_s, rows, folder = time.perf_counter(), 0, None
        try:
            with holding_interrupts():
                folder = self._experiment.open_folder(variant, interleaving="sync", threads=1)
            for row in _sync_rows(variant.scenario, session, folder.log, self._console, self._quiet):
                folder.append(row)
                folder.flush()
                rows += 1
        except BaseException as error:
            asked_to_stop = isinstance(error, KeyboardInterrupt | Interrupted)
            status, why = ("interrupted", None) if asked_to_stop else ("failed", str(error))
            if folder is not None:
                with holding_interrupts():
                    folder.finish(status, why, {"syncs": rows})
            raise
        with holding_interrupts():
            folder.finish("completed", None, {"syncs": rows, "elapsed_s": time.perf_counter() - start_s})


def _sync_rows(
    scenario: Scenario, session: RaySession, log: Callable[[str], None], console: Console, quiet: bool
) -> Iterator[SyncRow]:
    settings = _sweep_of(scenario)
    sizes = [*itertools.product(sorted(settings.megabytes), sorted(settings.tensors))]
    in_each = len(settings.receivers) * (settings.repeats + 1) * len(settings.transports)
    with progress_bars(console, quiet=quiet) as progress:
        task = progress.add_task("weight syncs", total=len(sizes) * in_each)
        for megabytes, tensors in sizes:
            what = f"{megabytes:g} MB in {tensors} tensor{'s' if tensors > 1 else ''}"
            progress.update(task, description=what)
            if not quiet and not is_live(console):
                console.print(f"weight syncs: {what}", highlight=False)
            logs = ProcessLogs(session.folder)
            with closing(SweepActors(scenario, session, megabytes, tensors, logs)) as actors:
                try:
                    for wanted in syncs_of(settings, scenario.seed):
                        yield actors.sync(wanted)
                        progress.advance(task)
                except HarnessError as error:
                    log(f"{what}: {error}")
                    raise
                finally:
                    for line in logs.new_lines():
                        log(line)


def _sweep_of(scenario: Scenario) -> TransportSweepSettings:
    assert scenario.transport_sweep is not None
    return scenario.transport_sweep
