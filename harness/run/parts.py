"""All that one run needs: the loop's parts and how to end them. Here for parts in this process, and simulated ones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from harness.core.protocols import Generator, Learner, Scorer
from harness.core.trace import RecordingTracer
from harness.loop import LoopPlan
from harness.probes.load import load_profile
from harness.probes.memory import DeviceFigure
from harness.probes.run_probes import Elsewhere
from harness.probes.tracers import Instruments
from harness.probes.windows import collect_traces, lanes_in, process_name
from harness.run.inprocess import InProcessGenerator, InProcessLearner, InProcessScorer, PartStreams
from harness.run.making import check_fits, make_generator, make_learner, make_policy, make_scorer, make_task
from harness.run.options import StopSignal, resolve_device, threads_of
from harness.scenario import Scenario
from harness.scenario.loop_plan import all_lanes, loop_plan
from harness.transports.in_process import InProcessTransport


@dataclass
class Parts:
    """Everything the loop needs for one run, and what is needed to watch and to end it.

    Attributes:
        num_parameters: of the policy; None where there is none.
        threads: CPU threads of the Learner.
        save_to: tells the Learner where to save the policy; without it nothing is saved.
        processes: process ids by lane, of the parts that have a process of their own on this machine.
        drain_log: returns lines that the parts have printed since the last call.
        drain_device_figures: returns what stages took of GPUs, in time and memory, as it came in since the last call.
        sample_elsewhere: starts samplers, at so many samples a second, on the other machines that parts work on.
        learner_on_gpu: whether the Learner computes on a GPU of this machine.
        keep_profiles: after the loop: moves what profilers recorded into a folder. Parts may have ended by then.
        on_close: called in turn by ``close``.
    """

    generators: tuple[Generator, ...]
    scorers: tuple[Scorer, ...]
    learner: Learner
    plan: LoopPlan
    num_parameters: int | None = None
    threads: int | None = None
    save_to: Callable[[Path], None] = lambda folder: None
    processes: Callable[[], Mapping[str, int]] = dict
    drain_log: Callable[[], list[str]] = list
    drain_device_figures: Callable[[], list[DeviceFigure]] = list
    keep_profiles: Callable[[Path], None] = lambda folder: None
    sample_elsewhere: Callable[[float], Elsewhere | None] = lambda hz: None
    on_close: list[Callable[[], None]] = field(default_factory=list)
    learner_on_gpu: bool = False

    @property
    def lanes(self) -> tuple[str, ...]:
        """Names of all lanes."""
        samplers, scorers = (part.lane for part in self.generators), (part.lane for part in self.scorers)
        return (*samplers, *scorers, self.learner.lane)

    def close(self) -> None:
        """Give back what the parts hold. In-process ones must have been stopped through the stop signal."""
        while self.on_close:
            self.on_close.pop(0)()


def streams_of_their_own(device: str, colocated: bool, cuda: Any = torch.cuda) -> PartStreams | None:
    """Return streams for parts that share a GPU and do not take turns; None where there is no queue to share."""
    return PartStreams(cuda) if device == "cuda" and not colocated else None


def build_in_process_parts(
    scenario: Scenario,
    recorder: RecordingTracer,
    should_stop: StopSignal,
    streams_for: Callable[[str, bool], PartStreams | None] = streams_of_their_own,
) -> Parts:
    """Make the parts of one run on threads of this process.

    Args:
        scenario: what to run.
        recorder: keeps the spans.
        should_stop: true ends what parts are doing.
        streams_for: makes the parts' CUDA streams, given the device and whether parts are colocated.

    Raises:
        UserError: a file, model, reward function or device that the scenario names cannot be used.
        Interrupted: ``should_stop`` said so.
    """
    device = resolve_device(scenario, scenario.placement.learner)
    threads = threads_of(scenario, scenario.placement.learner)
    torch.set_num_threads(threads)
    task, policy = make_task(scenario), make_policy(scenario, device, should_stop)
    check_fits(scenario, task, policy)
    colocated = scenario.placement.colocated
    streams = streams_for(device, colocated)
    lanes, instruments = all_lanes(scenario), instruments_of(scenario)
    instrumented = instruments.for_process(
        recorder, lanes, cuda=device == "cuda", synchronize=None if streams is None else streams.synchronize
    )
    tracer = instrumented.tracer
    transport = InProcessTransport(snapshot=not colocated, streams=streams)
    generator = make_generator(scenario, "generator", transport, task, policy, tracer, should_stop)
    scorer = make_scorer(scenario, "scorer", task, tracer, should_stop)
    executors = _executors(threads, colocated, streams)
    sampling, loading, scoring, training = executors * (4 // len(executors))
    learner = InProcessLearner(make_learner(scenario, transport, policy, tracer, should_stop, task), training)

    def save_to(folder: Path) -> None:
        learner.policy_folder = folder

    def keep_profiles(folder: Path) -> None:
        instrumented.end_windows()
        keep_traces(instruments, [lanes], folder)

    return Parts(
        (InProcessGenerator(generator, sampling, loading),),
        (InProcessScorer(scorer, scoring),),
        learner,
        loop_plan(scenario, len(task.train_prompts), len(task.validation_prompts)),
        policy.num_parameters,
        threads,
        save_to,
        drain_log=_once(instrumented.notes),
        drain_device_figures=instrumented.drain_device_figures,
        keep_profiles=keep_profiles,
        on_close=[
            *(_ending(executor) for executor in executors),
            generator.close,
            scorer.close,
            instruments.remove_drafts,
        ],
        learner_on_gpu=device == "cuda",
    )


def instruments_of(scenario: Scenario, drafts_in: Path | None = None) -> Instruments:
    """Return what surrounds the spans of a run's parts.

    Args:
        scenario: names the probe profile and the delays.
        drafts_in: where traces are written until the run's folder takes them; None: among the temporary files.

    Raises:
        UserError: there is no such profile.
    """
    profile = load_profile(scenario.profile)
    drafts = None if profile.torch_profiler is None else Path(tempfile.mkdtemp(prefix="traces-", dir=drafts_in))
    return Instruments(
        profile, {str(stage): seconds for stage, seconds in scenario.faults.delays.items()}, all_lanes(scenario), drafts
    )


def keep_traces(instruments: Instruments, processes: Sequence[Sequence[str]], folder: Path) -> None:
    """Move the traces of torch.profiler, one for each process, into a folder.

    Args:
        processes: the lanes of each process.

    Raises:
        RunStopped: one is missing.
    """
    window = instruments.profile.torch_profiler
    if window is None or instruments.drafts is None:
        return
    chosen = lanes_in(window, instruments.lanes)
    profiled = [[lane for lane in lanes if lane in chosen] for lanes in processes]
    collect_traces([process_name(lanes) for lanes in profiled if lanes], instruments.drafts, folder)


def _once(notes: list[str]) -> Callable[[], list[str]]:
    """Return what hands out the notes at its first call."""

    def drain() -> list[str]:
        handed_out, notes[:] = notes[:], []
        return handed_out

    return drain


def _executors(torch_threads: int, colocated: bool, streams: PartStreams | None) -> list[ThreadPoolExecutor]:
    """Return the threads that sample, load, score and train; one for all where parts are colocated."""

    def begin(stream: torch.cuda.Stream | None) -> None:
        torch.set_num_threads(torch_threads)
        if streams is not None and stream is not None:
            streams.enter(stream)

    of_threads: Sequence[torch.cuda.Stream | None] = [None] * (1 if colocated else 4)
    if streams is not None:
        of_threads = (streams.generator, streams.generator, streams.scorer, streams.learner)
    return [ThreadPoolExecutor(1, "parts", initializer=begin, initargs=(stream,)) for stream in of_threads]


def _ending(executor: ThreadPoolExecutor) -> Callable[[], None]:
    return lambda: executor.shutdown(wait=True, cancel_futures=True)
