"""The parts of one run on threads of this process, so that the event loop stays free.

Colocated parts share one thread and therefore take turns, as they would share one device; disaggregated ones have a
thread each and overlap wherever torch releases the interpreter lock. On a GPU each of those has a CUDA stream of its
own: on the default stream all their work would wait in one queue, every sampled token behind a training step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from harness.core.private_dir import PrivateDir
from harness.core.trace import RecordingTracer
from harness.core.types import Metrics, RolloutGroup, ScoredBatch, UpdateResult, WeightHandle, WorkItem
from harness.learner.checkpoint import SavedState
from harness.probes.memory import DeviceFigure
from harness.run.builders import make_generator, make_learner, make_policy, make_scorer, make_task
from harness.run.devices import resolve_device, threads_of
from harness.run.parts import RunningParts, StopSignal, keep_traces, policy_folder, tracers_of
from harness.run.start import start_of
from harness.run.workers import GeneratorWorker, LearnerWorker, ScorerWorker
from harness.scenario.derived import offloaded
from harness.scenario.lanes import all_lanes
from harness.scenario.loop_plan import loop_plan
from harness.scenario.schema import Scenario
from harness.transports.in_process import InProcessTransport

T = TypeVar("T")


async def _on(executor: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, call)


class PartStreams:
    """A CUDA stream for each part.

    Sampling and loading are two threads of one part and share its stream. Therefore weights that come in the middle of
    a batch are copied between two of its kernels, and their memory is reused only after its last reader.

    The Generator's kernels, which are many and short, go before the Learner's. On one H100 that gained nothing that
    could be told from noise: what a decoded token waits for there is the host (docs/measured/h100.md).

    Args:
        cuda: ``torch.cuda``, or what a test puts in its place.
    """

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self.generator, self.scorer, self.learner = cuda.Stream(priority=-1), cuda.Stream(), cuda.Stream()

    def enter(self, stream: torch.cuda.Stream) -> None:
        """Have the calling thread launch on this stream, behind what was launched to make the parts."""
        stream.wait_stream(self._cuda.default_stream())
        self._cuda.set_stream(stream)

    def synchronize(self) -> None:
        """Return when the GPU has done what the calling thread's stream was given."""
        self._cuda.current_stream().synchronize()


class InProcessGenerator:
    """A Generator on a thread of this process.

    Args:
        worker: does the work.
        executor: the thread it samples on.
        loader: the thread it loads weights on; one of its own lets them come in the middle of a batch.
    """

    def __init__(
        self, worker: GeneratorWorker, executor: ThreadPoolExecutor, loader: ThreadPoolExecutor | None = None
    ) -> None:
        self._worker, self._executor, self._loader, self.lane = worker, executor, loader or executor, worker.lane

    async def load_weights(self, weight_handle: WeightHandle) -> Metrics:
        """See ``protocols.Generator``."""
        return await _on(self._loader, lambda: self._worker.load_weights(weight_handle))

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """See ``protocols.Generator``."""
        return await _on(self._executor, lambda: self._worker.generate(item))


class InProcessScorer:
    """A Scorer on a thread of this process."""

    def __init__(self, worker: ScorerWorker, executor: ThreadPoolExecutor) -> None:
        self._worker, self._executor, self.lane = worker, executor, worker.lane

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """See ``protocols.Scorer``."""
        return await _on(self._executor, lambda: self._worker.score(item, groups))


class InProcessLearner:
    """A Learner on a thread of this process.

    Args:
        worker: does the work.
        executor: the thread it trains on.
        publisher: the thread it publishes on; one of its own lets weights leave while it trains.

    Attributes:
        run_folder: where ``save_policy`` saves policies; None saves nothing.
    """

    def __init__(
        self, worker: LearnerWorker, executor: ThreadPoolExecutor, publisher: ThreadPoolExecutor | None = None
    ) -> None:
        self._worker, self._executor, self._publisher = worker, executor, publisher or executor
        self.lane = worker.lane
        self.run_folder: Path | None = None

    async def accumulate(self, step: int, groups: tuple[RolloutGroup, ...]) -> None:
        """See ``protocols.Learner``."""
        await _on(self._executor, lambda: self._worker.accumulate(step, groups))

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """See ``protocols.Learner``."""
        return await _on(self._executor, lambda: self._worker.update(step, groups))

    async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        """See ``protocols.Learner``."""
        return await _on(self._publisher, lambda: self._worker.publish_weights(version, still_needed))

    async def save_policy(self, version: int, *, last: bool) -> None:
        """See ``protocols.Learner``."""
        folder = policy_folder(self.run_folder, version, last)
        await _on(self._executor, lambda: self._worker.save_policy(version, folder))

    async def save_state(
        self, folder: Path, version: int, *, asynchronous: bool, with_reference: bool = False
    ) -> float:
        """Save what was learnt into a checkpoint's folder; return the seconds; see ``LearnerWorker.save_state``."""
        save = partial(self._worker.save_state, folder, version, None, asynchronous, with_reference)
        return await _on(self._executor, save)

    async def finish_save(self, *, wait: bool = True) -> tuple[SavedState, ...] | None:
        """Return what every rank has written; None where one has not, and is not waited for."""
        saved = await _on(self._executor, lambda: self._worker.finish_save(wait))
        return None if saved is None else (saved,)

    async def load_state(self, folder: Path) -> int:
        """Go on from a whole checkpoint; return the version of its policy."""
        return await _on(self._executor, lambda: self._worker.load_state(folder))


def streams_of_their_own(device: str, colocated: bool, cuda: Any = torch.cuda) -> PartStreams | None:
    """Return streams for parts that share a GPU and do not take turns; None where there is no queue to share."""
    return PartStreams(cuda) if device == "cuda" and not colocated else None


class InProcessParts(RunningParts):
    """The parts of one run on threads of this process.

    Args:
        scenario: what to run.
        recorder: keeps the spans.
        should_stop: true ends what parts are doing.
        streams_for: makes the parts' CUDA streams, given the device and whether parts are colocated.

    Raises:
        UserError: a file, model, reward function or device that the scenario names cannot be used.
        Interrupted: ``should_stop`` returned True.
    """

    def __init__(
        self,
        scenario: Scenario,
        recorder: RecordingTracer,
        should_stop: StopSignal,
        streams_for: Callable[[str, bool], PartStreams | None] = streams_of_their_own,
    ) -> None:
        device = resolve_device(scenario, scenario.placement.learner)
        self.learner_on_gpu = device == "cuda"
        self.threads = threads_of(scenario, scenario.placement.learner)
        torch.set_num_threads(self.threads)
        task, policy = make_task(scenario), make_policy(scenario, device, should_stop)
        start = start_of(scenario, task, policy)
        task, self.inputs, self.end_tokens, self.notes = start.task, start.inputs, start.end_tokens, start.notes
        self.num_parameters = policy.num_parameters
        self.plan = loop_plan(scenario, len(task.train_prompts), len(task.validation_prompts))
        colocated = scenario.placement.colocated
        streams = streams_for(device, colocated)
        with ExitStack() as opened:
            drafts = PrivateDir()
            opened.callback(drafts.close)
            self._tracers = tracers_of(scenario, drafts.path)
            opened.callback(self._tracers.remove_traces)
            self._instrumented = self._tracers.for_process(
                recorder,
                all_lanes(scenario),
                cuda=device == "cuda",
                synchronize=None if streams is None else streams.synchronize,
            )
            tracer, transport = (
                self._instrumented.tracer,
                InProcessTransport(
                    snapshot=not colocated or "weights" in offloaded(scenario), streams=streams, to_host=colocated
                ),
            )
            generator = make_generator(
                scenario,
                lane="generator",
                receiver=transport,
                task=task,
                policy=policy,
                tracer=tracer,
                should_stop=should_stop,
            )
            scorer = make_scorer(scenario, "scorer", task, tracer, should_stop)
            executors = _executors(self.threads, colocated, streams)
            opened.callback(scorer.close)
            opened.callback(generator.close)
            for executor in executors:  # which end before what they use
                opened.callback(executor.shutdown, wait=True, cancel_futures=True)
            sampling, loading, scoring, training, publishing = executors * (5 // len(executors))
            self._learner = InProcessLearner(
                make_learner(
                    scenario, sender=transport, policy=policy, tracer=tracer, should_stop=should_stop, task=task
                ),
                training,
                publishing if scenario.learner.overlapped_publish else training,
            )
            self.generators = (InProcessGenerator(generator, sampling, loading),)
            self.scorers = (InProcessScorer(scorer, scoring),)
            self.learner = self._learner
            self._closing = opened.pop_all()

    def save_to(self, folder: Path) -> None:
        """See ``RunningParts``."""
        self._learner.run_folder = folder

    def processes(self) -> Mapping[str, int]:
        """None has a process of its own."""
        return {}

    def drain_log(self) -> list[str]:
        """Return what the probes noted when they were set up, once."""
        notes = self._instrumented.notes
        handed_out, notes[:] = notes[:], []
        return handed_out

    def drain_device_figures(self) -> list[DeviceFigure]:
        """See ``RunningParts``."""
        return self._instrumented.drain_device_figures()

    def sample_elsewhere(self, hz: float) -> None:
        """No part is on another machine."""

    def keep_profiles(self, folder: Path) -> None:
        """See ``RunningParts``."""
        self._instrumented.end_windows()
        keep_traces(self._tracers, [self._tracers.lanes], folder)

    def close(self) -> None:
        """See ``RunningParts``."""
        self._closing.close()


def _executors(torch_threads: int, colocated: bool, streams: PartStreams | None) -> list[ThreadPoolExecutor]:
    """Return the threads that sample, load, score, train and publish; one for all where parts are colocated."""

    def begin(stream: torch.cuda.Stream | None) -> None:
        torch.set_num_threads(torch_threads)
        if streams is not None and stream is not None:
            streams.enter(stream)

    of_threads: Sequence[torch.cuda.Stream | None] = [None] * (1 if colocated else 5)
    if streams is not None:
        of_threads = (streams.generator, streams.generator, streams.scorer, streams.learner, streams.learner)
    return [ThreadPoolExecutor(1, "parts", initializer=begin, initargs=(stream,)) for stream in of_threads]
