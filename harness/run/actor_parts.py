"""The parts of one run as Ray actors."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError, UserError
from harness.core.trace import RecordingTracer, Tracer
from harness.engines.vllm_machine import environment as vllm_environment
from harness.probes.memory import DeviceFigure
from harness.probes.nsight import new_tag, nsight_runtime_env, report_folders, wait_for_reports
from harness.probes.windows import lanes_in
from harness.run.actors.environment import process_environment
from harness.run.actors.logs import ProcessLogs
from harness.run.actors.parts import ActorPart, Blueprint, Replacements, close_parts, end_windows, ends_the_run
from harness.run.actors.placement import Ask, Placement
from harness.run.actors.processes import (
    GeneratorProcess,
    LearnerProcess,
    PartProcess,
    ProcessSetup,
    ScorerProcess,
    boot_id,
)
from harness.run.actors.samplers import OtherMachines
from harness.run.actors.session import RaySession
from harness.run.actors.shells import RemoteGenerator, RemoteLearner, RemoteScorer
from harness.run.making import check_fits, make_generator, make_learner, make_policy, make_scorer, make_task, never
from harness.run.options import StopSignal, resolve_device, threads_of
from harness.run.parts import Parts, instruments_of, keep_traces
from harness.run.workers import GeneratorWorker, LearnerWorker, ScorerWorker
from harness.scenario import PartSettings, Scenario
from harness.scenario.loop_plan import lanes_of, loop_plan
from harness.transports.catalogue import TransportKind, transport_kind
from harness.transports.collective import end_group, make_group, remake_group
from harness.transports.options import TransportOptions


def build_actor_parts(
    scenario: Scenario,
    tracer: RecordingTracer,
    should_stop: StopSignal,
    open_session: Callable[[Scenario], RaySession],
) -> Parts:
    """Make the parts of one run as Ray actors.

    The policy is made here first: it is checked, a warm start is made and cached once, and the actors find it there.

    Args:
        scenario: the resolved scenario.
        tracer: takes the spans of all parts.
        should_stop: asked while the policy is made.
        open_session: returns the Ray to use; called when all that needs no Ray was found right.

    Raises:
        UserError: a file, model, reward function or device that the scenario names cannot be used, or the cluster does
            not have what the parts ask for.
        RunStopped: an actor died while it started.
        Interrupted: ``should_stop`` said so.
    """
    kind = transport_kind(scenario.transport.type)
    kind.check_usable()
    resolve_device(scenario, scenario.placement.learner)  # refuses a GPU that is not there before Ray starts
    task, policy = make_task(scenario), make_policy(scenario, "cpu", should_stop)
    check_fits(scenario, task, policy)
    session = open_session(scenario)
    placement = Placement(asks_of(scenario), scenario.placement.colocated, scenario.placement.strategy)
    crew = _Crew(scenario, tracer, session, kind, placement)
    parts = Parts(
        tuple(RemoteGenerator(part, crew.learner) for part in crew.generators),
        tuple(RemoteScorer(part) for part in crew.scorers),
        RemoteLearner(crew.learner, kind.tensor_transport if kind.two_sided else None),
        loop_plan(scenario, len(task.train_prompts), len(task.validation_prompts)),
        policy.num_parameters,
        threads_of(scenario, scenario.placement.learner),
        crew.save_to,
        crew.processes,
        crew.logs.new_lines,
        crew.drain_device_figures,
        crew.keep_profiles,
        crew.sample_elsewhere,
        [crew.close, placement.close, crew.instruments.remove_drafts],
        learner_on_gpu=scenario.placement.address == "local" and crew.learner.blueprint.setup.cuda,
    )
    try:
        crew.wait_until_ready()
        crew.check_profilers()
    except BaseException:
        parts.close()
        raise
    crew.learner_shell = parts.learner
    return parts


def asks_of(scenario: Scenario) -> list[Ask]:
    """Return what each lane of the scenario reserves."""
    placement = scenario.placement
    named: list[tuple[str, PartSettings]] = [("learner", placement.learner)]
    named += [(lane, placement.generator) for lane in lanes_of("generator", scenario)]
    named += [(lane, placement.scorer) for lane in lanes_of("scorer", scenario)]
    return [Ask(lane, settings.cpus, settings.gpus) for lane, settings in named]


def environment_of(scenario: Scenario, lane: str, threads: int, device: str) -> dict[str, str]:
    """Return the environment variables of a lane's process, which computes on ``device`` with so many threads."""
    variables = process_environment(threads, scenario.placement.interface)
    if scenario.engine.type == "vllm" and lane in lanes_of("generator", scenario):
        variables |= vllm_environment(device)
    return variables


class _Crew:
    """The actors of one run."""

    def __init__(
        self,
        scenario: Scenario,
        tracer: RecordingTracer,
        session: RaySession,
        kind: TransportKind,
        placement: Placement,
    ) -> None:
        self._scenario, self._kind, self._placement = scenario, kind, placement
        self._session, self._tag = session, new_tag()
        self.logs = ProcessLogs(session.folder if session.is_local else None)
        self.instruments = instruments_of(scenario, session.folder if session.is_local else None)
        self.learner_shell: Any = None
        replacements = Replacements(scenario.faults.max_replacements)
        options, rooms = transport_options(scenario, session), scenario.placement

        def hire(
            process: type[PartProcess], lane: str, settings: PartSettings, make: Callable[[Tracer], Any], mortal: bool
        ) -> ActorPart:
            blueprint = self._blueprint(process, lane, settings, make)
            return ActorPart(blueprint, tracer, replacements if mortal else None)

        self.learner = hire(LearnerProcess, "learner", rooms.learner, partial(_learner, scenario, options), False)
        self.generators = [
            hire(GeneratorProcess, lane, rooms.generator, partial(_generator, scenario, options, lane), True)
            for lane in lanes_of("generator", scenario)
        ]
        self.scorers = [
            hire(ScorerProcess, lane, rooms.scorer, partial(_scorer, scenario, lane), True)
            for lane in lanes_of("scorer", scenario)
        ]
        if kind.two_sided:
            for part in self.generators:
                part.rewire = self._regroup

    @property
    def all(self) -> list[ActorPart]:
        """Every actor."""
        return [self.learner, *self.generators, *self.scorers]

    def wait_until_ready(self) -> None:
        """Return when every worker is built, and connected where the transport needs that beforehand."""
        failures: list[HarnessError] = []
        for part in self.all:
            try:
                part.wait_until_built()
            except HarnessError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        if self._kind.two_sided:
            self._group()

    def processes(self) -> dict[str, int]:
        """Process ids by lane, of the parts on this machine."""
        here = boot_id()
        facts = {part.lane: part.facts for part in self.all if part.facts is not None}
        return {lane: fact.pid for lane, fact in facts.items() if fact.boot_id == here}

    def save_to(self, folder: Path) -> None:
        """Have the Learner save the policy there."""
        self.learner_shell.policy_folder = folder.resolve()

    def close(self) -> None:
        """End the actors."""
        if self._kind.two_sided:
            end_group()
        close_parts(self.all)

    def _blueprint(
        self, process: type[PartProcess], lane: str, settings: PartSettings, make: Callable[[Tracer], Any]
    ) -> Blueprint:
        scenario = self._scenario
        threads = threads_of(scenario, settings)
        sharing = len(asks_of(scenario)) if scenario.placement.colocated else 1
        options = self._placement.options(lane, sharing)
        options["runtime_env"] = self._runtime_env(lane, settings, threads)
        setup = ProcessSetup(
            lane,
            threads,
            self.logs.file_for(lane),
            cuda=resolve_device(scenario, settings) == "cuda",
            instruments=self.instruments,
        )
        groups = {"weights": 1} if process is GeneratorProcess else {}
        return Blueprint(process, options, groups, self._kind.tensor_transport is not None, setup, make)

    def _runtime_env(self, lane: str, settings: PartSettings, threads: int) -> dict[str, Any]:
        variables = environment_of(self._scenario, lane, threads, resolve_device(self._scenario, settings))
        if lane not in self._under_nsight():
            return {"env_vars": variables}
        window = self.instruments.profile.nsight
        assert window is not None
        cuda = resolve_device(self._scenario, settings) == "cuda"
        nsight = nsight_runtime_env(window, lane, self._tag, cuda)
        return {"nsight": nsight["nsight"], "env_vars": variables | nsight["env_vars"]}

    def _under_nsight(self) -> tuple[str, ...]:
        window = self.instruments.profile.nsight
        return () if window is None else lanes_in(window, self.instruments.lanes)

    def drain_device_figures(self) -> list[DeviceFigure]:
        """Return what came in with the replies of all actors."""
        found = [figure for part in self.all for figure in part.device_figures]
        for part in self.all:
            part.device_figures.clear()
        return found

    def sample_elsewhere(self, hz: float) -> OtherMachines:
        """Start a sampler on each other machine that a part works on."""
        return OtherMachines(self.all, hz)

    def keep_profiles(self, folder: Path) -> None:
        """Have the profilers write what they have, and move it; actors under nsys end, since it writes then.

        Raises:
            RunStopped: something that was to be recorded is missing.
        """
        profile = self.instruments.profile
        if profile.torch_profiler is not None or profile.nsight is not None:
            end_windows(self.all)
        keep_traces(self.instruments, [(part.lane,) for part in self.all], folder)
        if profile.nsight is None:
            return
        profiled = {part.lane: part for part in self.all if part.lane in self._under_nsight()}
        processes = {lane: pid for lane, pid in self.processes().items() if lane in profiled}
        for part in profiled.values():
            part.handle.close.remote()  # gives back what the transport holds
            part.handle.__ray_terminate__.remote()
        reports = partial(report_folders, self._session.folder / "ray")
        wait_for_reports(reports, self._tag, processes, profile.nsight.report_timeout_s, folder)

    def check_profilers(self) -> None:
        """Refuse profilers for parts on other machines: they are started from here, and write here.

        Raises:
            UserError: with the lanes.
        """
        profile, near = self.instruments.profile, self.processes()
        for window in (profile.torch_profiler, profile.pyspy):
            chosen = () if window is None else lanes_in(window, self.instruments.lanes)
            far = [lane for lane in chosen if lane not in near]
            if far:
                raise UserError(
                    f"{', '.join(far)} would be profiled on another machine than this one",
                    f"profile: {profile.name}",
                    "profile on one machine (placement.address: local), or name other lanes in the profile",
                )

    def _group(self) -> None:
        with ends_the_run(f"Learner and Generators could not be connected by {self._kind.name}"):
            make_group(self._members(), self._kind.name)

    def _members(self) -> list[Any]:
        return [self.learner.handle, *(part.handle for part in self.generators)]

    async def _regroup(self) -> None:
        """Make the group anew when one of its members was replaced: it ended with the member that died.

        Raises:
            RunStopped: the Learner is gone as well; Ray ends both sides of a transfer that breaks off.
        """
        await self.learner.check_alive()
        with ends_the_run(f"Learner and Generators could not be connected anew by {self._kind.name}"):
            await asyncio.to_thread(remake_group, self._members(), self._kind.name)


def transport_options(scenario: Scenario, session: RaySession) -> TransportOptions:
    """Return the settings of the scenario's transport, as its sender and receivers take them.

    Files go below the session's folder where the scenario names none, so that they end with it, whoever is killed.
    """
    settings: Any = scenario.transport
    chosen = {
        name: getattr(settings, name)
        for name in ("flatten", "preallocate", "progress_thread_delay_us", "folder")
        if hasattr(settings, name)
    }
    if chosen.get("folder", "") is None and session.is_local:
        chosen["folder"] = tempfile.mkdtemp(prefix="weights-", dir=session.folder)
    device = resolve_device(scenario, scenario.placement.generator)
    return TransportOptions(**chosen, device=device, slots_at_start=scenario.max_lag + 2)


def _generator(scenario: Scenario, options: TransportOptions, lane: str, tracer: Tracer) -> GeneratorWorker:
    device = resolve_device(scenario, scenario.placement.generator)
    receiver = transport_kind(scenario.transport.type).receiver(options)
    task, policy = make_task(scenario), make_policy(scenario, device, never)
    return make_generator(scenario, lane, receiver, task, policy, tracer, never)


def _scorer(scenario: Scenario, lane: str, tracer: Tracer) -> ScorerWorker:
    return make_scorer(scenario, lane, make_task(scenario), tracer, never)


def _learner(scenario: Scenario, options: TransportOptions, tracer: Tracer) -> LearnerWorker:
    device = resolve_device(scenario, scenario.placement.learner)
    sender = transport_kind(scenario.transport.type).sender(options)
    return make_learner(scenario, sender, make_policy(scenario, device, never), tracer, never)
