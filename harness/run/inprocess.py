"""The parts of one run on threads of this process, so that the event loop stays free.

Colocated parts share one thread and therefore take turns, as they would share one device; disaggregated ones have a
thread each and overlap wherever torch releases the interpreter lock. On a GPU each of those has a CUDA stream of its
own: on the default stream all their work would wait in one queue, every sampled token behind a training step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from harness.core.private_dir import PrivateDir
from harness.core.trace import RecordingTracer, Stage
from harness.probes.memory import DeviceFigure
from harness.run.builders import make_generator, make_learner, make_scorer
from harness.run.devices import resolve_device, threads_of
from harness.run.handles import MOVES, GeneratorHandle, LearnerHandle, ScorerHandle
from harness.run.parts import RunningParts, StopSignal, keep_traces, tracers_of
from harness.scenario.derived import offloaded
from harness.scenario.lanes import all_lanes
from harness.scenario.schema import Scenario
from harness.transports.in_process import InProcessTransport


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
        self._cuda.current_stream().synchronize()


class ThreadPart:
    """A worker on a thread of this process: a ``handles.Part``.

    Args:
        worker: does the work.
        executor: the thread it works on.
        mover: the thread on which its weights move, while it works; None: the same one.
    """

    def __init__(self, worker: Any, executor: ThreadPoolExecutor, mover: ThreadPoolExecutor | None = None) -> None:
        self._worker, self._executor, self._mover, self.lane = worker, executor, mover or executor, worker.lane

    async def call(
        self, method: str, *arguments: Any, stage: Stage, step: int, version: int, new_groups: int = 0
    ) -> Any:
        executor = self._mover if method in MOVES else self._executor
        work = getattr(self._worker, method)
        return await asyncio.get_running_loop().run_in_executor(executor, work, *arguments)


def streams_of_their_own(device: str, colocated: bool, cuda: Any = torch.cuda) -> PartStreams | None:
    """Return streams for parts that share a GPU and do not take turns; None where there is no queue to share."""
    return PartStreams(cuda) if device == "cuda" and not colocated else None


class InProcessParts(RunningParts):
    """The parts of one run on threads of this process.

    Args:
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
        torch.set_num_threads(threads := threads_of(scenario, scenario.placement.learner))
        task, policy = self.load(scenario, device, should_stop)
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
            executors = _executors(threads, colocated, streams)
            opened.callback(scorer.close)
            opened.callback(generator.close)
            for executor in executors:  # which end before what they use
                opened.callback(executor.shutdown, wait=True, cancel_futures=True)
            sampling, loading, scoring, training, publishing = executors * (5 // len(executors))
            learner = make_learner(
                scenario, sender=transport, policy=policy, tracer=tracer, should_stop=should_stop, task=task
            )
            publisher = publishing if scenario.learner.overlapped_publish else None
            self.learner = LearnerHandle(ThreadPart(learner, training, publisher))
            self.generators = (GeneratorHandle(ThreadPart(generator, sampling, loading)),)
            self.scorers = (ScorerHandle(ThreadPart(scorer, scoring)),)
            self._closing = opened.pop_all()

    def drain_log(self) -> list[str]:
        """Return what the probes noted when they were set up, once."""
        notes = self._instrumented.notes
        handed_out, notes[:] = notes[:], []
        return handed_out

    def drain_device_figures(self) -> list[DeviceFigure]:
        return self._instrumented.drain_device_figures()

    def keep_profiles(self, folder: Path) -> None:
        self._instrumented.end_windows()
        keep_traces(self._tracers, [self._tracers.lanes], folder)

    def close(self) -> None:
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
