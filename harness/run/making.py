"""The workers of a run, made in the process in which they work. Plain functions, so that they can be sent there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from harness.core.protocols import Engine, Task
from harness.core.trace import Tracer
from harness.core.types import SamplingParams
from harness.engines.faulty import SkipsLoads
from harness.run.builders import BUILDERS, Policy
from harness.run.options import mismatch_bound, resolve_device
from harness.run.parts import StopSignal
from harness.run.workers import GeneratorWorker, LearnerWorker, ScorerWorker, check_prompts_fit, first_probe_rows
from harness.scenario import Scenario
from harness.scenario.transport_sections import ActorTransportSettings
from harness.tasks.scoring import DirectRewards, GroupRewards, TimedRewards
from harness.transports.protocol import WeightReceiver, WeightSender


def never() -> bool:
    """The stop signal of an actor: it is ended with its process."""
    return False


def make_task(scenario: Scenario) -> Task:
    """Return the scenario's task.

    Raises:
        UserError: a file or a reward function cannot be used.
    """
    task: Task = BUILDERS["task", scenario.task.type](scenario.task)
    return task


def make_policy(scenario: Scenario, device: str, should_stop: StopSignal) -> Policy:
    """Return the policy before the first training step.

    Raises:
        UserError: the model cannot be used.
        Interrupted: ``should_stop`` said so.
    """
    policy: Policy = BUILDERS["model", scenario.model.type](scenario, device, should_stop)
    return policy


def make_rewards(scenario: Scenario, task: Task, should_stop: StopSignal) -> GroupRewards:
    """Return what rewards a group: a process of its own where the task's reward has a time limit."""
    timeout_s = getattr(scenario.task, "reward_timeout_s", None)
    if timeout_s is None:
        return DirectRewards(task.reward, should_stop)
    return TimedRewards(task.reward, timeout_s, should_stop)


def check_fits(scenario: Scenario, task: Task, policy: Policy) -> None:
    """Refuse a task whose longest prompt and response do not fit the model's context, or the engine's smaller one.

    Raises:
        UserError: with the prompt's number and all the lengths.
    """
    bounds = [(policy.context, "the model's context"), (getattr(scenario.engine, "context", None), "engine.context")]
    context, whose = min(((most, whose) for most, whose in bounds if most is not None), default=(None, ""))
    check_prompts_fit(task, policy.tokenizer, scenario.sampling.max_tokens, context, whose)


def make_generator(
    scenario: Scenario,
    *,
    lane: str,
    receiver: WeightReceiver,
    task: Task,
    policy: Policy,
    tracer: Tracer,
    should_stop: StopSignal,
) -> GeneratorWorker:
    """Return a Generator's worker."""
    device = resolve_device(scenario, scenario.placement.generator)
    engine: Engine = BUILDERS["engine", scenario.engine.type](scenario, policy, device, should_stop)
    if scenario.faults.skip_weight_loads:
        engine = SkipsLoads(engine, frozenset(scenario.faults.skip_weight_loads))
    return GeneratorWorker(
        engine,
        receiver,
        task=task,
        tokenizer=policy.tokenizer,
        sampling=sampling_for(scenario, task),
        tracer=tracer,
        lane=lane,
        mismatch_bound=mismatch_bound(scenario),
    )


def sampling_for(scenario: Scenario, task: Task) -> SamplingParams:
    """Return how responses are sampled: as the scenario says, ended by the task's own stop strings too."""
    sampling = scenario.sampling.to_params()
    return replace(sampling, stop=tuple(dict.fromkeys((*sampling.stop, *getattr(task, "stop", ())))))


def make_scorer(scenario: Scenario, lane: str, task: Task, tracer: Tracer, should_stop: StopSignal) -> ScorerWorker:
    """Return a Scorer's worker."""
    return ScorerWorker(make_rewards(scenario, task, should_stop), scenario.evaluation.examples, tracer, lane)


def make_learner(
    scenario: Scenario,
    *,
    sender: WeightSender,
    policy: Policy,
    tracer: Tracer,
    should_stop: StopSignal,
    task: Task | None = None,
) -> LearnerWorker:
    """Return the Learner's worker; without a task it makes one where weight syncs are proven by its prompts."""
    trainer = BUILDERS["trainer", scenario.model.type](scenario, policy, should_stop)
    save = partial(_save_policy, policy) if scenario.save_policy and policy.model is not None else None
    proven = mismatch_bound(scenario) is not None
    probe = first_probe_rows(task or make_task(scenario), policy.tokenizer) if proven else None
    verify = isinstance(scenario.transport, ActorTransportSettings) and scenario.transport.verify
    return LearnerWorker(trainer, sender, tracer=tracer, verify=verify, save=save, first_probe=probe)


def _save_policy(policy: Policy, folder: Path) -> None:
    from harness.models.storage import save_policy

    assert policy.model is not None
    save_policy(policy.model, policy.tokenizer, folder)
