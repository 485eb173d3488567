"""All that one run needs: the loop's parts and how to end them. Here for parts in this process, and simulated ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch

from harness.build.making import make_generator, make_learner, make_policy, make_scorer, make_task
from harness.build.options import StopSignal, loop_plan, resolve_device, threads_of
from harness.inprocess import InProcessGenerator, InProcessLearner, InProcessScorer
from harness.loop import LoopPlan
from harness.protocols import Generator, Learner, Scorer
from harness.scenario import Scenario
from harness.trace import RecordingTracer, SynchronizedTracer, Tracer
from harness.transports.in_process import InProcessTransport
from harness.workers import check_prompts_fit


@dataclass
class Parts:
    """Everything the loop needs for one run, and what is needed to watch and to end it.

    Attributes:
        num_parameters: of the policy; None where there is none.
        threads: CPU threads of the Learner.
        save_to: tells the Learner where to save the policy; without it nothing is saved.
        processes: process ids by lane, of the parts that have a process of their own on this machine.
        drain_log: returns lines that the parts have printed since the last call.
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
    on_close: list[Callable[[], None]] = field(default_factory=list)

    @property
    def lanes(self) -> tuple[str, ...]:
        """Names of all lanes."""
        samplers, scorers = (part.lane for part in self.generators), (part.lane for part in self.scorers)
        return (*samplers, *scorers, self.learner.lane)

    def close(self) -> None:
        """Give back what the parts hold. In-process ones must have been stopped through the stop signal."""
        while self.on_close:
            self.on_close.pop(0)()


def build_in_process_parts(scenario: Scenario, recorder: RecordingTracer, should_stop: StopSignal) -> Parts:
    """Make the parts of one run on threads of this process.

    Raises:
        UserError: a file, model, reward function or device that the scenario names cannot be used.
        Interrupted: ``should_stop`` said so.
    """
    device = resolve_device(scenario, scenario.placement.learner)
    tracer: Tracer = SynchronizedTracer(recorder, torch.cuda.synchronize) if device == "cuda" else recorder
    threads = threads_of(scenario, scenario.placement.learner)
    torch.set_num_threads(threads)
    task, policy = make_task(scenario), make_policy(scenario, device, should_stop)
    check_prompts_fit(task, policy.tokenizer, scenario.sampling.max_tokens, policy.context)
    colocated = scenario.placement.colocated
    transport = InProcessTransport(snapshot=not colocated)
    generator = make_generator(scenario, "generator", transport, task, policy, tracer, should_stop)
    scorer = make_scorer(scenario, "scorer", task, tracer, should_stop)
    executors = [_one_thread(threads) for _ in range(1 if colocated else 4)]
    sampling, loading, scoring, training = executors * (4 // len(executors))
    learner = InProcessLearner(make_learner(scenario, transport, policy, tracer, should_stop), training)

    def save_to(folder: Path) -> None:
        learner.policy_folder = folder

    return Parts(
        (InProcessGenerator(generator, sampling, loading),),
        (InProcessScorer(scorer, scoring),),
        learner,
        loop_plan(scenario, len(task.train_prompts), len(task.validation_prompts)),
        policy.num_parameters,
        threads,
        save_to,
        on_close=[*(_ending(executor) for executor in executors), scorer.close],
    )


def build_simulated_parts(scenario: Scenario, tracer: RecordingTracer, should_stop: StopSignal) -> Parts:
    """Make parts that only pass metadata on and take no time: the same loop, rows and files without any model."""
    from harness.sim.stages import SimulatedGenerator, SimulatedLearner, SimulatedScorer, constant

    return Parts(
        tuple(SimulatedGenerator(tracer, constant(0.0), lane=lane) for lane in lanes_of("generator", scenario)),
        tuple(SimulatedScorer(tracer, constant(0.0), lane=lane) for lane in lanes_of("scorer", scenario)),
        SimulatedLearner(tracer, constant(0.0), epochs_per_batch=scenario.optimizer_steps_per_batch),
        loop_plan(scenario, num_train=4 * scenario.prompts_per_batch, num_validation=scenario.evaluation.prompts),
    )


def lanes_of(kind: str, scenario: Scenario) -> list[str]:
    """Return the lane names of the Generators or Scorers: ``generator``, or ``generator0``, ``generator1`` ..."""
    count = {"generator": scenario.placement.generator.count, "scorer": scenario.placement.scorer.count}[kind]
    return numbered_lanes(kind, count)


def numbered_lanes(kind: str, count: int) -> list[str]:
    """Return the lane names of so many equal parts."""
    return [kind] if count == 1 else [f"{kind}{index}" for index in range(count)]


def _one_thread(torch_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(torch_threads,))


def _ending(executor: ThreadPoolExecutor) -> Callable[[], None]:
    return lambda: executor.shutdown(wait=True, cancel_futures=True)
