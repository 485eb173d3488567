"""Times weight syncs between a Learner and its Generators, from the live weights to the engines' own tensors."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from harness.core.errors import RunStopped
from harness.core.trace import Span, Stage
from harness.core.types import WeightHandle
from harness.results.rows import SyncRow
from harness.run.actors.environment import process_environment
from harness.run.actors.logs import ProcessLogs
from harness.run.actors.parts import Blueprint, cause_of_death, own_error
from harness.run.actors.processes import ProcessSetup, Reply
from harness.run.actors.session import RaySession
from harness.run.transport_sweep.plan import Sync, Weights
from harness.run.transport_sweep.processes import (
    SweepGeneratorProcess,
    SweepLearnerProcess,
    make_sweep_generator,
    make_sweep_learner,
)
from harness.scenario import PartSettings, PlacementSettings
from harness.scenario.loop_plan import numbered_lanes
from harness.transports.catalogue import TRANSPORTS, TransportKind
from harness.transports.collective import end_group, make_group


class SweepActors:
    """One Learner and some Generators with an end of every transport.

    Args:
        session: the Ray they run in.
        transports: by name.
        weights: size and tensors of the weights.
        receivers: number of Generators.
        logs: takes what the processes print.
        placement: device, GPUs and network interface.

    Raises:
        UserError: a transport cannot be used here.
        RunStopped: an actor died.
    """

    def __init__(
        self,
        session: RaySession,
        transports: Sequence[str],
        weights: Weights,
        receivers: int,
        logs: ProcessLogs,
        placement: PlacementSettings,
    ) -> None:
        self._weights, self._version = weights, -1
        self._folder = tempfile.mkdtemp(prefix="weights-", dir=session.folder)
        device = "cuda" if placement.device == "cuda" else "cpu"
        make = partial(make_sweep_learner, transports, weights.megabytes, weights.tensors, self._folder, device)
        blueprints = [_blueprint(SweepLearnerProcess, "learner", make, logs, placement, placement.learner)]
        for lane in numbered_lanes("generator", receivers):
            loader = partial(make_sweep_generator, transports, lane, device)
            blueprints.append(_blueprint(SweepGeneratorProcess, lane, loader, logs, placement, placement.generator))
        launched = [blueprint.launch() for blueprint in blueprints]
        self._handles = [handle for handle, _ in launched]
        try:
            with _plain_errors():
                ray.get([facts for _, facts in launched])
            for name in transports:
                if TRANSPORTS[name].two_sided:
                    make_group(self._handles, name)
        except BaseException:
            self.close()
            raise

    def sync(self, wanted: Sync) -> SyncRow:
        """Make one sync and return its times.

        Raises:
            RunStopped: the weights that arrived are not those published, or an actor died.
        """
        self._version += 1
        learner, generators = self._handles[0], self._handles[1 : 1 + wanted.receivers]
        kind, version = TRANSPORTS[wanted.transport], self._version
        with _plain_errors():
            published: Reply = ray.get(learner.publish.remote(wanted.transport, version))
            load = _loading(kind, published.value, learner, version)
            loaded: list[Reply] = ray.get([load(generator) for generator in generators])
            copy_s = ray.get(generators[0].plain_copy_s.remote(published.value.num_bytes))
        return _row(wanted, self._weights, published, loaded, copy_s)

    def close(self) -> None:
        """End the actors."""
        end_group()
        for handle in self._handles:
            ray.kill(handle)
        shutil.rmtree(self._folder, ignore_errors=True)


def _loading(kind: TransportKind, weight_handle: WeightHandle, learner: Any, version: int) -> Callable[[Any], Any]:
    """Return what has a Generator load the weight_handle."""
    if not kind.two_sided:
        return lambda generator: generator.load.remote(kind.name, weight_handle)
    sent = learner.outgoing.options(tensor_transport=kind.tensor_transport).remote(kind.name, version)
    return lambda generator: generator.load_arrived.remote(kind.name, weight_handle, time.perf_counter_ns(), sent)


def _row(wanted: Sync, weights: Weights, published: Reply, loaded: Sequence[Reply], copy_s: float) -> SyncRow:
    """The slowest receiver decides; verification is timed apart and is part of no other figure.

    Where the weights arrive in memory of the receiver's own, the copy into the engine's tensors is timed apart as well.
    """
    publish_s, publish_verify_s = (
        _seconds(published.spans, stage) for stage in (Stage.WEIGHT_PUBLISH, Stage.WEIGHT_VERIFY)
    )
    slowest = max(loaded, key=lambda reply: max(span.end_ns for span in reply.spans))
    verify_s = _seconds(slowest.spans, Stage.WEIGHT_VERIFY)
    begin_ns = min(span.start_ns for span in published.spans)
    end_ns = max(span.end_ns for span in slowest.spans)
    load_s = _seconds(slowest.spans, Stage.WEIGHT_LOAD)
    apart_s = publish_verify_s + verify_s + (load_s if TRANSPORTS[wanted.transport].own_memory else 0.0)
    return SyncRow(
        transport=wanted.transport,
        num_bytes=published.value.num_bytes,
        tensors=weights.tensors,
        receivers=wanted.receivers,
        repeat=wanted.repeat,
        total_s=(end_ns - begin_ns) / 1e9 - apart_s,
        publish_s=publish_s,
        transfer_s=_seconds(slowest.spans, Stage.WEIGHT_TRANSFER),
        load_s=load_s,
        verify_s=publish_verify_s + verify_s,
        plain_copy_s=copy_s,
    )


def _seconds(spans: Sequence[Span], stage: Stage) -> float:
    return sum(span.end_ns - span.start_ns for span in spans if span.stage is stage) / 1e9


def _blueprint(
    process: Any, lane: str, make: Any, logs: ProcessLogs, placement: PlacementSettings, part: PartSettings
) -> Blueprint:
    setup = ProcessSetup(lane, 1, logs.file_for(lane), cuda=placement.device == "cuda")
    environment = process_environment(1, placement.interface)
    options = {"num_cpus": 0, "num_gpus": part.gpus, "runtime_env": {"env_vars": environment}}
    return Blueprint(process, options, {}, True, setup, make)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise what happened in an actor as if it had happened here."""
    try:
        yield
    except RayTaskError as error:
        raise own_error(error) from None
    except RayActorError as error:
        raise RunStopped(f"an actor of the transport sweep died: {cause_of_death(error)}") from None
