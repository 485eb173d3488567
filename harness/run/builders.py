"""The workers of a run, made of a scenario: each in the process in which it works."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from harness.core.protocols import Task
from harness.core.trace import HookedTracer, Tracer
from harness.engines.make import make_engine
from harness.engines.stop_strings import SpecialTokens
from harness.engines.vllm_options import ALONE
from harness.learner.make import make_offload, make_ranks, make_trainer, trainer_options
from harness.run.devices import resolve_device
from harness.run.memory.generator import beside_vllm
from harness.run.memory.shape import shape_for
from harness.run.overlapped_publish import OverlappedPublish
from harness.run.parts import StopSignal
from harness.run.policy import Policy, response_ends
from harness.run.prompts import fitting_task, prompt_encoder, sampling_for
from harness.run.weight_sync import first_probe_rows
from harness.run.workers import GeneratorWorker, LearnerWorker, ScorerWorker, Trainer
from harness.scenario.lanes import rank_lanes
from harness.scenario.schema import Scenario
from harness.tasks.make import make_task
from harness.tasks.scoring import DirectRewards, GroupRewards, TimedRewards
from harness.transports.protocol import WeightReceiver, WeightSender

if TYPE_CHECKING:
    import torch

    from harness.learner import PolicyTrainer
    from harness.learner.offload import Offload
    from harness.learner.process_group import RankGroup
    from harness.learner.ranks import Ranks

EXACT_BOUND, ROUNDED_BOUND = 1e-4, 0.5


def mismatch_bound(scenario: Scenario) -> float | None:
    """Return the largest gap allowed between engine and Learner log-probs after a weight sync; None: not measured.

    Engines of other makers are always measured: by default within 1e-4 where engine and Learner compute in float32,
    else 0.5.
    """
    settings: Any = scenario.engine
    if settings.type == "paced":
        return None
    asked: float | None = settings.mismatch_bound
    if asked is not None or settings.type not in ("vllm", "sglang"):
        return asked
    model: Any = scenario.model
    exact = settings.precision == model.precision == getattr(model, "dtype", "float32") == "float32"
    return EXACT_BOUND if exact else ROUNDED_BOUND


def make_rewards(scenario: Scenario, task: Task, should_stop: StopSignal) -> GroupRewards:
    """Return what rewards a group: a process of its own where the task's reward has a time limit."""
    timeout_s = getattr(scenario.task, "reward_timeout_s", None)
    if timeout_s is None:
        return DirectRewards(task.reward, should_stop)
    return TimedRewards(task.reward, timeout_s, should_stop)


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
    device, sampling = resolve_device(scenario, scenario.placement.generator), sampling_for(scenario, task)
    needs_neighbours = scenario.engine.type == "vllm" and device == "cuda"
    engine = make_engine(
        scenario.engine,
        policy.model,
        policy.tokenizer,
        ends=policy.ends,
        device=device,
        should_stop=should_stop,
        prompts_per_batch=scenario.prompts_per_batch,
        sleeps=scenario.placement.colocated,
        neighbours=beside_vllm(scenario, shape_for(scenario)[0]) if needs_neighbours else ALONE,
    )
    return GeneratorWorker(
        engine,
        receiver,
        task=task,
        encode=prompt_encoder(scenario, policy),
        sampling=sampling,
        tracer=tracer,
        lane=lane,
        mismatch_bound=mismatch_bound(scenario),
        special=SpecialTokens(policy.tokenizer, response_ends(policy, sampling.stop).ids),
        skip_special=scenario.sampling.skip_special_tokens,
    )


def make_scorer(scenario: Scenario, lane: str, task: Task, tracer: Tracer, should_stop: StopSignal) -> ScorerWorker:
    return ScorerWorker(make_rewards(scenario, task, should_stop), scenario.evaluation.examples, tracer, lane)


def trainer_of(
    scenario: Scenario,
    policy: Policy,
    should_stop: StopSignal,
    ranks: Ranks | None = None,
    offload: Offload | None = None,
) -> Trainer:
    options = trainer_options(scenario, shape_for(scenario)[0])
    stop = sampling_for(scenario, make_task(scenario.task)).stop if options.ban_eos_first else ()
    padding, ends = (0, ()) if policy.model is None else (policy.padding, response_ends(policy, stop).ids)
    return make_trainer(scenario, options, policy.model, padding, ends, should_stop, ranks, offload)


def make_learner(
    scenario: Scenario,
    *,
    sender: WeightSender,
    policy: Policy,
    tracer: Tracer,
    should_stop: StopSignal,
    task: Task | None = None,
    group: RankGroup | None = None,
) -> LearnerWorker:
    """Return the Learner's worker, or that of one of its ranks.

    Args:
        task: by whose prompts weight syncs are proven; None makes it where they are.
        group: the ranks; None: there is one process.
    """
    device = resolve_device(scenario, scenario.placement.learner)
    lane = rank_lanes(scenario)[0 if group is None else group.rank]
    offload, tracer = make_offload(scenario, tracer, device, lane)
    saves = scenario.save_policy and policy.model is not None
    probe = None
    if mismatch_bound(scenario) is not None:
        task = task or fitting_task(scenario, make_task(scenario.task), policy)
        probe = first_probe_rows(task, prompt_encoder(scenario, policy))
    overlapped = scenario.learner.overlapped_publish
    options: dict[str, Any] = {
        "verify": scenario.verifies_weights,
        "first_probe": probe,
        "offload": offload,
        "overlapped": OverlappedPublish(scenario.faults.stall_after_s) if overlapped else None,
        "save": partial(_save_policy, policy) if saves else None,
        "lane": lane,
    }
    if group is None:
        trainer = trainer_of(scenario, policy, should_stop, None, offload)
        return LearnerWorker(trainer, sender, tracer=tracer, publish_dtype=_publish_dtype(scenario), **options)
    from harness.run.rank_worker import LearnerRank
    from harness.run.slow_rank import SlowComputing

    of_rank = cast("PolicyTrainer", trainer_of(scenario, policy, should_stop, make_ranks(scenario, device), offload))
    slow = scenario.faults.slow_rank
    if slow is not None and slow.rank == group.rank:
        SlowComputing(of_rank.model, slow.share)
    tracer = HookedTracer(tracer, group.calls)
    return LearnerRank(of_rank, sender, tracer=tracer, group=group, publish=scenario.learner.publish, **options)


def _publish_dtype(scenario: Scenario) -> torch.dtype | None:
    if scenario.travel_dtype == getattr(scenario.model, "dtype", "float32"):
        return None
    import torch

    dtype: torch.dtype = getattr(torch, scenario.travel_dtype)
    return dtype


def _save_policy(policy: Policy, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    from harness.models.storage import save_policy

    assert policy.model is not None
    save_policy(policy.model, policy.tokenizer, folder, weights)
