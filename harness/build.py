"""From a scenario to the parts that run it. ``BUILDERS`` is the one table from a ``type:`` to what makes it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harness.inprocess import InProcessGenerator, InProcessLearner, InProcessScorer
from harness.learner import PolicyTrainer, TrainerOptions
from harness.loop import LoopPlan
from harness.protocols import Engine, Generator, Learner, Scorer, Task
from harness.provenance import usable_cores
from harness.scenario import Scenario, no_gpu_error
from harness.tasks.schedule import prompt_schedule
from harness.trace import SynchronizedTracer, Tracer
from harness.workers import GeneratorWorker, LearnerWorker, ScorerWorker, WeightTransport, check_prompts_fit

StopSignal = Callable[[], bool]


@dataclass(frozen=True)
class Policy:
    """A model with its tokenizer, and how many tokens its context holds (None if unknown)."""

    model: nn.Module
    tokenizer: Any  # a Hugging Face tokenizer
    context: int | None

    @property
    def num_parameters(self) -> int:
        """Trainable parameters, shared ones once."""
        return sum(parameter.numel() for parameter in self.model.parameters())


@dataclass(frozen=True)
class Parts:
    """Everything the loop needs for one run, and what is needed to end it.

    Attributes:
        policy_folder: a list that the run fills with the folder to save the policy in; left empty, nothing is saved.
        threads: CPU threads of each part.
        executors: the threads that the parts run on.
    """

    generators: tuple[Generator, ...]
    scorers: tuple[Scorer, ...]
    learner: Learner
    plan: LoopPlan
    num_parameters: int | None = None
    threads: int | None = None
    policy_folder: list[Path] = field(default_factory=list)
    executors: tuple[ThreadPoolExecutor, ...] = ()

    @property
    def lanes(self) -> tuple[str, ...]:
        """Names of all lanes."""
        samplers, scorers = (part.lane for part in self.generators), (part.lane for part in self.scorers)
        return (*samplers, *scorers, self.learner.lane)

    def close(self) -> None:
        """Wait for the parts' threads to end; stop them first through the stop signal."""
        for executor in self.executors:
            executor.shutdown(wait=True, cancel_futures=True)


def build_parts(scenario: Scenario, tracer: Tracer, should_stop: StopSignal) -> Parts:
    """Make the in-process parts of one run.

    Raises:
        UserError: a file, model, reward function or device that the scenario names cannot be used.
        Interrupted: ``should_stop`` said so.
    """
    device = resolve_device(scenario)
    if device == "cuda":
        tracer = SynchronizedTracer(tracer, torch.cuda.synchronize)
    threads = threads_per_part(scenario)
    torch.set_num_threads(threads)
    task: Task = BUILDERS["task", scenario.task.type](scenario.task)
    policy: Policy = BUILDERS["model", scenario.model.type](scenario, device, should_stop)
    check_prompts_fit(task, policy.tokenizer, scenario.sampling.max_tokens, policy.context)
    engine: Engine = BUILDERS["engine", scenario.engine.type](scenario, policy, device, should_stop)
    transport: WeightTransport = BUILDERS["transport", scenario.transport.type](scenario)
    trainer = PolicyTrainer(policy.model, policy.tokenizer.pad_token_id, trainer_options(scenario), should_stop)
    folder: list[Path] = []
    save = partial(_save_policy, policy, folder) if scenario.save_policy else None
    generator = GeneratorWorker(engine, transport, task, policy.tokenizer, scenario.sampling.to_params(), tracer)
    scorer = ScorerWorker(task, scenario.evaluation.examples, tracer, should_stop=should_stop)
    learner = LearnerWorker(trainer, transport, tracer, save)
    executors = [_one_thread(threads) for _ in range(1 if scenario.placement.colocated else 3)]
    return Parts(
        (InProcessGenerator(generator, executors[0]),),
        (InProcessScorer(scorer, executors[-1]),),
        InProcessLearner(learner, executors[len(executors) // 2]),
        loop_plan(scenario, len(task.train_prompts), len(task.validation_prompts)),
        policy.num_parameters,
        threads,
        folder,
        tuple(executors),
    )


def _save_policy(policy: Policy, folder: list[Path]) -> None:
    from harness.models.storage import save_policy

    for path in folder:
        save_policy(policy.model, policy.tokenizer, path)


def threads_per_part(scenario: Scenario) -> int:
    """Return the CPU threads of each part: as asked for, else all cores, or half of them for parts that overlap."""
    cores = usable_cores()
    return scenario.model.threads or (cores if scenario.placement.colocated else max(1, cores // 2))


def build_simulated_parts(scenario: Scenario, tracer: Tracer, should_stop: StopSignal) -> Parts:
    """Make parts that only pass metadata on and take no time: the same loop, rows and files without any model."""
    from harness.sim.stages import SimulatedGenerator, SimulatedLearner, SimulatedScorer, constant

    return Parts(
        (SimulatedGenerator(tracer, constant(0.0)),),
        (SimulatedScorer(tracer, constant(0.0)),),
        SimulatedLearner(tracer, constant(0.0), epochs_per_batch=scenario.optimizer_steps_per_batch),
        loop_plan(scenario, num_train=4 * scenario.prompts_per_batch, num_validation=scenario.evaluation.prompts),
    )


def loop_plan(scenario: Scenario, num_train: int, num_validation: int) -> LoopPlan:
    """Return what the loop is to do.

    Args:
        scenario: the resolved scenario.
        num_train: training prompts of the task.
        num_validation: validation prompts of the task; at most ``evaluation.prompts`` of them are used.
    """
    return LoopPlan(
        scenario.steps,
        scenario.group_size,
        scenario.max_lag,
        scenario.evaluation.every,
        prompt_schedule(num_train, scenario.prompts_per_batch, scenario.seed),
        tuple(range(min(num_validation, scenario.evaluation.prompts))),
        scenario.seed,
    )


def trainer_options(scenario: Scenario) -> TrainerOptions:
    """Return how the Learner trains."""
    from harness.grpo import LossOptions

    loss, kl, optimizer = scenario.loss, scenario.loss.kl, scenario.optimizer
    return TrainerOptions(
        group_size=scenario.group_size,
        loss=LossOptions(loss.type, loss.cliprange, loss.cliprange_high, loss.dual_clip, kl.coefficient, kl.estimator),
        aggregation=loss.aggregation,
        constant=scenario.loss_constant,
        advantage_eps=scenario.advantage.eps,
        normalize_by_std=scenario.advantage.normalize_by_std,
        temperature=scenario.sampling.temperature,
        epochs_per_batch=scenario.epochs_per_batch,
        minibatches_per_epoch=scenario.minibatches_per_epoch,
        gradient_accumulation_steps=scenario.gradient_accumulation_steps,
        max_lag=scenario.max_lag,
        monitor_kl=kl.monitor,
        reclone_every=kl.reclone_every if kl.reference == "reclone" else None,
        learning_rate=optimizer.learning_rate,
        betas=optimizer.betas,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        warmup_steps=optimizer.warmup_steps,
        precision=scenario.model.precision,
    )


def resolve_device(scenario: Scenario) -> str:
    """Return ``cpu`` or ``cuda``.

    Raises:
        UserError: a GPU is asked for and there is none.
    """
    wanted = scenario.placement.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise no_gpu_error()
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted


def _one_thread(torch_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(torch_threads,))


def _keyword_task(settings: Any) -> Task:
    from harness.tasks.keywords import KeywordTask

    return KeywordTask(settings.keywords_per_prompt, settings.train_prompts, settings.validation_prompts, settings.seed)


def _jsonl_task(settings: Any) -> Task:
    from harness.tasks.jsonl import JsonlTask

    return JsonlTask(
        settings.train,
        settings.reward,
        validation=settings.validation,
        validation_fraction=settings.validation_fraction,
        prompt_field=settings.prompt_field,
        answer_field=settings.answer_field,
    )


def _preset_policy(scenario: Scenario, device: str, should_stop: StopSignal) -> Policy:
    from harness.warm_start import initial_policy, warm_start_policy

    settings: Any = scenario.model
    if settings.warm_start:
        model, tokenizer, _ = warm_start_policy(
            settings.preset,
            settings.warm_start_seed,
            threads=settings.threads,
            keywords_per_prompt=getattr(scenario.task, "keywords_per_prompt", 2),
            should_stop=should_stop,
        )
    else:
        model, tokenizer = initial_policy(settings.preset, settings.warm_start_seed)
    return Policy(model.to(device), tokenizer, model.config.max_position_embeddings)


def _folder_policy(scenario: Scenario, device: str, should_stop: StopSignal) -> Policy:
    from harness.models.storage import load_policy

    settings: Any = scenario.model
    model, tokenizer = load_policy(settings.path, device)
    return Policy(model, tokenizer, getattr(model.config, "max_position_embeddings", None))


def _native_engine(scenario: Scenario, policy: Policy, device: str, should_stop: StopSignal) -> Engine:
    from harness.engines.native import native_engine

    settings: Any = scenario.engine
    return native_engine(
        policy.model,
        policy.tokenizer,
        precision=settings.precision,
        device=device,
        max_batch=settings.max_batch,
        should_stop=should_stop,
    )


def _fake_engine(scenario: Scenario, policy: Policy, device: str, should_stop: StopSignal) -> Engine:
    from harness.engines.fake import FakeEngine

    return FakeEngine(policy.tokenizer, vocab_size=len(policy.tokenizer), should_stop=should_stop)


def _in_process_transport(scenario: Scenario) -> WeightTransport:
    from harness.transports.in_process import InProcessTransport

    return InProcessTransport(snapshot=not scenario.placement.colocated)


BUILDERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("task", "keywords"): _keyword_task,
    ("task", "jsonl"): _jsonl_task,
    ("model", "preset"): _preset_policy,
    ("model", "folder"): _folder_policy,
    ("engine", "native"): _native_engine,
    ("engine", "fake"): _fake_engine,
    ("transport", "in_process"): _in_process_transport,
}
