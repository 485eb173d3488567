"""The parts of one run as Ray actors."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from harness.core.errors import UserError
from harness.core.trace import RecordingTracer, Tracer
from harness.core.types import GroupData
from harness.engines.vllm_options import environment as vllm_environment
from harness.learner.flight_recorder import FlightRecorder, read_flight
from harness.learner.make import trainer_options
from harness.learner.process_group import RankGroup
from harness.probes.memory import DeviceFigure
from harness.probes.nsight import nsight_runtime_env, report_folders, wait_for_reports
from harness.probes.windows import lanes_in
from harness.run.actors.deaths import ends_the_run
from harness.run.actors.part import (
    ActorPart,
    ActorSpec,
    Make,
    ProcessSetup,
    Replacements,
    boot_id,
    close_parts,
    end_windows,
    in_thread,
    start_limit_s,
    wait_until_built,
)
from harness.run.actors.placement import Placement
from harness.run.actors.ranks import Ranks
from harness.run.actors.samplers import RemoteSamplers
from harness.run.actors.session import ProcessLogs, RaySession, process_environment
from harness.run.builders import make_generator, make_learner, make_scorer
from harness.run.devices import resolve_device, threads_of
from harness.run.handles import GeneratorHandle, LearnerHandle, Part, ScorerHandle
from harness.run.memory.shape import shape_for
from harness.run.needs import requests_of
from harness.run.parts import RunningParts, StopSignal, keep_traces, never, tracers_of
from harness.run.policy import make_policy
from harness.run.prompts import fitting_task
from harness.run.workers import GeneratorWorker, LearnerWorker, ScorerWorker
from harness.scenario.derived import in_shards, mesh_shape
from harness.scenario.lanes import lanes_of, publisher_lane, rank_lanes
from harness.scenario.schema import Scenario
from harness.settings.placement import PartSettings
from harness.settings.transport import ActorTransportSettings, DiskTransportSettings
from harness.tasks.make import make_task
from harness.transports.catalogue import transport_kind
from harness.transports.collective import end_group, make_group, remake_group
from harness.transports.protocol import TransportOptions
from harness.transports.sharded import rank_sender, shard_receiver

WATCHDOG_S = 20.0
"""Seconds by which a collective waits longer than a stage may take: the watchdog looks at the stacks before it ends."""
NCCL_LETS_GO = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
"""Keeps NCCL from memory of its own allocator, which it would hold while an engine on the same GPU samples."""


class ActorParts(RunningParts):
    """The parts of one run as Ray actors.

    The policy is made here first: it is checked, without its weights, or a warm start is made and cached once, and the
    actors find it there.

    Args:
        should_stop: asked while the policy is made.
        open_session: returns the Ray to use; called when all that needs no Ray was found right.

    Raises:
        UserError: a file, model, reward function or device that the scenario names cannot be used, or the cluster does
            not have what the parts ask for.
        RunStopped: an actor died while it started, or did not start in time.
        Interrupted: ``should_stop`` returned True.
    """

    def __init__(
        self,
        scenario: Scenario,
        tracer: RecordingTracer,
        should_stop: StopSignal,
        open_session: Callable[[Scenario], RaySession],
    ) -> None:
        self._scenario, self._kind = scenario, transport_kind(scenario.transport.type)
        self._start_limit_s = start_limit_s(scenario.faults.stall_after_s)
        learner_device = resolve_device(scenario, scenario.placement.learner)  # refuses a GPU that is not there, first
        has_warm_start = getattr(scenario.model, "warm_start", False)
        self.load(scenario, "cpu" if has_warm_start else "meta", should_stop)
        self.learner_on_gpu = scenario.placement.address == "local" and learner_device == "cuda"
        self._session, self._tag = open_session(scenario), secrets.token_hex(6)
        local_folder = self._session.folder if self._session.is_local else None
        self._logs, self._tracers = ProcessLogs(local_folder), tracers_of(scenario, local_folder)
        self._closing = ExitStack()
        self._closing.callback(self._tracers.remove_traces)
        placement = scenario.placement
        self._placement = Placement(
            requests_of(scenario), placement.colocated, placement.strategy, placement.learner.per_node
        )
        self._closing.callback(self._placement.close)
        self._actors: list[ActorPart] = []
        self._flight_files: dict[str, Path] = {}
        self._closing.callback(self._end_actors)
        try:
            self._spawn_all(tracer)
            self._wait_until_ready()
            self._check_profilers()
        except BaseException:
            self.close()
            raise

    def _spawn_all(self, tracer: RecordingTracer) -> None:
        scenario, parts = self._scenario, self._scenario.placement
        options = transport_options(scenario, self._session)
        replacements = Replacements(scenario.faults.max_replacements)
        reconnect = self._reconnect if self._kind.two_sided else None

        def spawn(lane: str, settings: PartSettings, make: Make, spec: dict[str, Any], **options: Any) -> ActorPart:
            part = ActorPart(replace(self._spec(lane, settings, make), **spec), tracer, **options)
            self._actors.append(part)
            return part

        lanes, several = tuple(rank_lanes(scenario)), parts.learner.ranks > 1
        self.learner_lanes = lanes
        if several:
            folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=self._session.folder))
            self._closing.callback(shutil.rmtree, folder, ignore_errors=True)
            self._flight_files = {lane: folder / str(rank) for rank, lane in enumerate(lanes)}
        overlapped, ranks = scenario.learner.overlapped_publish, list[ActorPart]()
        for rank, lane in enumerate(lanes):
            spec = {
                "moving_lane": publisher_lane(lane) if overlapped else None,
                "listens_on": parts.interface if several and rank == 0 else None,
                "store": ranks[0].store if ranks else None,
                "sends_by": self._kind.tensor_transport if self._kind.two_sided and not several else None,
            }
            make = partial(_learner, scenario, options, rank, self._flight_files.get(lane))
            ranks.append(spawn(lane, parts.learner, make, spec))
        learner = ranks[0]
        generators = [
            spawn(
                lane,
                parts.generator,
                partial(_generator, scenario, options, lane),
                {"moving_lane": lane},
                replacements=replacements,
                reconnect=reconnect,
                weights_from=learner,
            )
            for lane in lanes_of("generator", scenario)
        ]
        scorers = [
            spawn(lane, parts.scorer, partial(_scorer, scenario, lane), {}, replacements=replacements)
            for lane in lanes_of("scorer", scenario)
        ]
        self._members = [learner, *generators]
        self.generators = tuple(map(GeneratorHandle, generators))
        self.scorers = tuple(map(ScorerHandle, scorers))
        whole: Part = learner
        if several:
            mesh = mesh_shape(scenario)
            whole = Ranks(ranks, mesh, trainer_options(scenario, shape_for(scenario)[0]), in_shards=in_shards(scenario))
        self.learner = LearnerHandle(whole)

    def _spec(self, lane: str, settings: PartSettings, make: Make) -> ActorSpec:
        scenario = self._scenario
        threads, device = threads_of(scenario, settings), resolve_device(scenario, settings)
        options = self._placement.options(lane)
        options["runtime_env"] = self._runtime_env(lane, threads, device)
        return ActorSpec(
            setup=ProcessSetup(lane, threads, self._logs.file_for(lane), cuda=device == "cuda", tracers=self._tracers),
            make=make,
            options=options,
            tensor_transport=self._kind.tensor_transport is not None,
            calls={} if self._kind.calls is None else {self._kind.calls: scenario.placement.learner.ranks + 1},
        )

    def _runtime_env(self, lane: str, threads: int, device: str) -> dict[str, Any]:
        variables = environment_of(self._scenario, lane, threads, device)
        if lane not in self._under_nsight():
            return {"env_vars": variables}
        window = self._tracers.profile.nsight
        assert window is not None
        nsight = nsight_runtime_env(window, lane, self._tag, device == "cuda")
        return {"nsight": nsight["nsight"], "env_vars": variables | nsight["env_vars"]}

    def _under_nsight(self) -> tuple[str, ...]:
        window = self._tracers.profile.nsight
        return () if window is None else lanes_in(window, self._tracers.lanes)

    def _wait_until_ready(self) -> None:
        """Return when every worker is built, and connected where the transport needs that beforehand."""
        wait_until_built(self._actors, self._start_limit_s)
        if self._kind.two_sided:
            with ends_the_run(f"Learner and Generators could not be connected by {self._kind.name}"):
                make_group([part.handle for part in self._members], self._kind.name)

    async def _reconnect(self) -> None:
        """Make the group anew when one of its members was replaced: it ended with the member that died.

        Raises:
            RunStopped: the Learner is gone as well; Ray ends both sides of a transfer that breaks off.
        """
        await self._members[0].check_alive()
        with ends_the_run(f"Learner and Generators could not be connected anew by {self._kind.name}"):
            remake = partial(remake_group, [part.handle for part in self._members], self._kind.name)
            await in_thread(remake, self._members)

    def _check_profilers(self) -> None:
        """Refuse profilers for parts on other machines: they are started from here, and write here."""
        profile, near = self._tracers.profile, self.processes()
        for window in (profile.torch_profiler, profile.pyspy):
            chosen = () if window is None else lanes_in(window, self._tracers.lanes)
            far = [lane for lane in chosen if lane not in near]
            if far:
                raise UserError(
                    f"{', '.join(far)} would be profiled on another machine than this one",
                    f"profile: {profile.name}",
                    "profile on one machine (placement.address: local), or name other lanes in the profile",
                )

    def data_of(self, handle: Any) -> GroupData:
        data: GroupData = ray.get(handle)
        return data

    def handle_of(self, data: GroupData) -> Any:
        return ray.put(data)

    def processes(self) -> Mapping[str, int]:
        here = boot_id()
        facts = {part.lane: part.facts for part in self._actors if part.facts is not None}
        return {lane: fact.pid for lane, fact in facts.items() if fact.boot_id == here}

    def flight_records(self) -> str:
        told = [f"{lane} last: {'; '.join(read_flight(file)) or 'not on this machine'}"
                for lane, file in self._flight_files.items()]  # fmt: skip
        return "\n".join(told)

    def drain_log(self) -> list[str]:
        return self._logs.new_lines()

    def drain_device_figures(self) -> list[DeviceFigure]:
        found = [figure for part in self._actors for figure in part.device_figures]
        for part in self._actors:
            part.device_figures.clear()
        return found

    def sample_elsewhere(self, hz: float) -> RemoteSamplers:
        return RemoteSamplers(self._actors, hz)

    def keep_profiles(self, folder: Path) -> None:
        profile = self._tracers.profile
        if profile.torch_profiler is not None or profile.nsight is not None:
            end_windows(self._actors)
        keep_traces(self._tracers, [(part.lane,) for part in self._actors], folder)
        if profile.nsight is None:
            return
        profiled = {part.lane: part for part in self._actors if part.lane in self._under_nsight()}
        processes = {lane: pid for lane, pid in self.processes().items() if lane in profiled}
        for part in profiled.values():
            part.handle.close.remote()  # gives back what the transport holds
            part.handle.__ray_terminate__.remote()
        reports = partial(report_folders, self._session.folder / "ray")
        wait_for_reports(reports, self._tag, processes, profile.nsight.report_timeout_s, folder)

    def close(self) -> None:
        self._closing.close()

    def _end_actors(self) -> None:
        if self._kind.two_sided:
            end_group()
        close_parts(self._actors)


def environment_of(scenario: Scenario, lane: str, threads: int, device: str) -> dict[str, str]:
    """Return the environment variables of a lane's process, which computes on ``device`` with so many threads.

    A rank that holds a piece of the model makes and frees whole layers of unlike sizes all the time, and so gives them
    back at once.
    """
    mesh = mesh_shape(scenario)
    cut = lane in rank_lanes(scenario) and mesh.shard * mesh.tensor > 1
    variables = process_environment(threads, scenario.placement.interface, keeps_freed=not cut)
    if device == "cuda" and scenario.placement.learner.ranks > 1 and lane in rank_lanes(scenario):
        variables |= NCCL_LETS_GO
    if scenario.engine.type == "vllm" and lane in lanes_of("generator", scenario):
        variables |= vllm_environment(device)
    return variables


def transport_options(scenario: Scenario, session: RaySession) -> TransportOptions:
    """Return what the sender and receivers of the scenario's transport take.

    Files go below the session's folder where the scenario names none, so that they end with it, whoever is killed.
    """
    assert isinstance(scenario.transport, ActorTransportSettings)
    folder = getattr(scenario.transport, "folder", None)
    if isinstance(scenario.transport, DiskTransportSettings) and folder is None and session.is_local:
        folder = tempfile.mkdtemp(prefix="weights-", dir=session.folder)
    return TransportOptions(
        scenario.transport,
        folder,
        device=resolve_device(scenario, scenario.placement.generator),
        buffers_at_start=scenario.max_lag + 2,
        interface=scenario.placement.interface,
    )


def _generator(scenario: Scenario, options: TransportOptions, lane: str, tracer: Tracer) -> GeneratorWorker:
    device, name = resolve_device(scenario, scenario.placement.generator), scenario.transport.type
    options, policy = replace(options, who=lane), make_policy(scenario, device, never)
    return make_generator(
        scenario,
        lane=lane,
        receiver=shard_receiver(name, options) if in_shards(scenario) else transport_kind(name).receiver(options),
        task=fitting_task(scenario, make_task(scenario.task), policy),
        policy=policy,
        tracer=tracer,
        should_stop=never,
    )


def _scorer(scenario: Scenario, lane: str, tracer: Tracer) -> ScorerWorker:
    return make_scorer(scenario, lane, make_task(scenario.task), tracer, never)


def _learner(
    scenario: Scenario, options: TransportOptions, rank: int, calls: Path | None, tracer: Tracer, store: Any = None
) -> LearnerWorker:
    """Return the Learner's worker; with a file for its last calls and a store that of one of several ranks."""
    name, device = scenario.transport.type, resolve_device(scenario, scenario.placement.learner)
    sender = rank_sender(name, options, rank) if in_shards(scenario) else transport_kind(name).sender(options)
    if calls is None:
        policy = make_policy(scenario, device, never)
        return make_learner(scenario, sender=sender, policy=policy, tracer=tracer, should_stop=never)
    policy = make_policy(scenario, "meta" if rank else "cpu", never)
    ranks, patience = scenario.placement.learner.ranks, scenario.faults.stall_after_s + WATCHDOG_S
    flight = FlightRecorder(calls)
    group = RankGroup(rank, ranks, store, cuda=device == "cuda", timeout_s=patience, calls=flight)
    return make_learner(scenario, sender=sender, policy=policy, tracer=tracer, should_stop=never, group=group)
