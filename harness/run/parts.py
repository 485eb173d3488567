"""What one run needs: the loop's parts, what watches them and how to end them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from harness.core.protocols import Generator, Learner, Scorer, Task
from harness.core.trace import RecordingTracer
from harness.core.types import GroupData
from harness.loop import LoopPlan
from harness.probes.load import load_profile
from harness.probes.memory import DeviceFigure
from harness.probes.run_probes import Samplers
from harness.probes.torch_traces import collect_traces
from harness.probes.tracers import Tracers
from harness.probes.windows import lanes_in, process_name
from harness.results.manifest import Input
from harness.run.devices import threads_of
from harness.run.handles import LearnerHandle
from harness.run.inputs import inputs_of
from harness.run.policy import Policy, make_policy, response_ends
from harness.run.prompts import check_fits, fitting_task, sampling_for, start_notes
from harness.scenario.lanes import all_lanes
from harness.scenario.loop_plan import loop_plan
from harness.scenario.schema import Scenario
from harness.tasks.make import make_task

StopSignal = Callable[[], bool]


def never() -> bool:
    """The stop signal of what is ended with its process."""
    return False


class RunningParts:
    """The parts of one run; ``InProcessParts`` on threads of this process, ``ActorParts`` as Ray actors.

    Attributes:
        num_parameters: of the policy; None where there is none.
        threads: CPU threads of the Learner.
        learner_on_gpu: whether the Learner computes on a GPU of this machine.
        learner_lanes: the Learner's lane, or that of each of its ranks.
        end_tokens, inputs: see ``Manifest``.
        notes: what is to be said about the prompts when the run begins.
    """

    generators: tuple[Generator, ...]
    scorers: tuple[Scorer, ...]
    learner: Learner
    plan: LoopPlan
    num_parameters: int | None
    threads: int | None
    learner_on_gpu: bool
    learner_lanes: tuple[str, ...] = ("learner",)
    end_tokens: Mapping[str, str] = MappingProxyType({})
    inputs: Mapping[str, Input] = MappingProxyType({})
    notes: tuple[str, ...] = ()

    def load(self, scenario: Scenario, device: str, should_stop: StopSignal) -> tuple[Task, Policy]:
        """Load task and policy, and take from them what is known before there are parts.

        The inputs are those of before prompts are left out.

        Raises:
            UserError: a file, model or reward function cannot be used, prompts do not fit or cannot be encoded, or a
                stop string can never be found.
            Interrupted: ``should_stop`` returned True.
        """
        whole, policy = make_task(scenario.task), make_policy(scenario, device, should_stop)
        self.inputs, task = inputs_of(scenario, whole, policy), fitting_task(scenario, whole, policy)
        if task is whole:
            check_fits(scenario, task, policy)
        ends = response_ends(policy, sampling_for(scenario, task).stop)
        self.end_tokens = ends.texts
        self.notes = (*([ends.line] if ends.line else ()), *start_notes(scenario, task, policy))
        self.plan = loop_plan(scenario, len(task.train_prompts), len(task.validation_prompts))
        self.num_parameters, self.threads = policy.num_parameters, threads_of(scenario, scenario.placement.learner)
        return task, policy

    @property
    def lanes(self) -> tuple[str, ...]:
        samplers, scorers = (part.lane for part in self.generators), (part.lane for part in self.scorers)
        return (*samplers, *scorers, *self.learner_lanes)

    def flight_records(self) -> str:
        """Return what each rank of the Learner did last, a line for each; empty where it is one process."""
        return ""

    def save_to(self, folder: Path) -> None:
        """Have the Learner save policies in the folder of a run; before, nothing is saved."""
        cast(LearnerHandle, self.learner).run_folder = folder.resolve()

    def data_of(self, handle: Any) -> GroupData:
        """Return what a group's data stands for, by value."""
        data: GroupData = handle
        return data

    def handle_of(self, data: GroupData) -> Any:
        """Return what the parts take for a group's data."""
        return data

    def processes(self) -> Mapping[str, int]:
        """Return process ids by lane, of the parts that have a process of their own on this machine."""
        return {}

    def drain_log(self) -> list[str]:
        """Return lines that the parts have printed since the last call."""
        return []

    def drain_device_figures(self) -> list[DeviceFigure]:
        """Return what stages took of GPUs, in time and memory, as it came in since the last call."""
        return []

    def sample_elsewhere(self, hz: float) -> Samplers | None:
        """Start samplers on the other machines that parts work on, of so many samples a second; None without any."""
        return None

    def keep_profiles(self, folder: Path) -> None:
        """Move what profilers recorded into a folder, after the loop. Parts may have ended then.

        Raises:
            RunStopped: something that was to be recorded is missing.
        """

    def close(self) -> None:
        """Give back what the parts hold. In-process ones must have been stopped through the stop signal."""


Build = Callable[[Scenario, RecordingTracer, StopSignal], RunningParts]


def tracers_of(scenario: Scenario, traces_in: Path | None) -> Tracers:
    """Return what surrounds the spans of a run's parts.

    Args:
        traces_in: where traces are written until the run's folder takes them; None: among the temporary files.
    """
    profile = load_profile(scenario.profile)
    drafts = None if profile.torch_profiler is None else Path(tempfile.mkdtemp(prefix="traces-", dir=traces_in))
    delays = {str(stage): seconds for stage, seconds in scenario.faults.delays.items()}
    return Tracers(profile, delays, all_lanes(scenario), drafts)


def keep_traces(tracers: Tracers, processes: Sequence[Sequence[str]], folder: Path) -> None:
    """Move the traces of torch.profiler, one for the lanes of each process, into a folder.

    Raises:
        RunStopped: one is missing.
    """
    window = tracers.profile.torch_profiler
    if window is None or tracers.drafts is None:
        return
    chosen = lanes_in(window, tracers.lanes)
    profiled = [[lane for lane in lanes if lane in chosen] for lanes in processes]
    collect_traces([process_name(lanes) for lanes in profiled if lanes], tracers.drafts, folder)
