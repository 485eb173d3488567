"""What a Learner is made of, by the sections of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from harness.core.trace import InterruptingTracer, Tracer
from harness.learner.offload import FileTarget, Offload, PinnedTarget
from harness.learner.optimizer import Schedule
from harness.learner.plugins import PluginAdvantage, PluginLoss
from harness.learner.trainer import PolicyTrainer, TrainerOptions
from harness.models.flops import group_flops
from harness.scenario.batch_plan import num_tokens
from harness.scenario.derived import mesh_shape, microbatches, offloaded, zero_stage
from harness.settings.model import PacedModelSettings

if TYPE_CHECKING:
    from torch import nn

    from harness.learner.paced import PacedTrainer
    from harness.learner.ranks import Ranks
    from harness.models.config import ModelConfig
    from harness.scenario.schema import Scenario


def plugin_functions(scenario: Scenario) -> tuple[PluginLoss | None, PluginAdvantage | None]:
    """Return the plugins of loss and advantage, each tried once; None for what the scenario does not name.

    Raises:
        UserError: one of them cannot be used.
    """
    loss, advantage = scenario.loss.function, scenario.advantage.function
    return (
        None if loss is None else PluginLoss(loss, scenario.needs_reference),
        None if advantage is None else PluginAdvantage(advantage, scenario.group_size),
    )


def trainer_options(scenario: Scenario, shape: ModelConfig | None) -> TrainerOptions:
    """Return how the Learner trains.

    Args:
        shape: of its model, for the costs of rollouts; None: they cost their tokens.

    Raises:
        UserError: a plugin of loss or advantage cannot be used.
    """
    optimizer = scenario.optimizer
    own_loss, own_advantage = plugin_functions(scenario)
    return TrainerOptions(
        group_size=scenario.group_size,
        loss=scenario.loss.model_copy(update={"constant": scenario.loss_constant}),
        advantage=scenario.advantage,
        optimizer=optimizer,
        own_loss=own_loss,
        own_advantage=own_advantage,
        ban_eos_first=scenario.banned_eos_tokens,
        temperature=scenario.sampling.temperature,
        epochs_per_batch=scenario.epochs_per_batch,
        minibatches_per_epoch=scenario.minibatches_per_epoch,
        shuffle_minibatches=scenario.shuffle_minibatches,
        seed=scenario.seed,
        gradient_accumulation_steps=microbatches(scenario),
        behaviour_is_engine=scenario.behaviour_is_older,
        schedule=Schedule(
            optimizer.schedule,
            scenario.warmup_optimizer_steps,
            scenario.num_optimizer_steps,
            optimizer.min_learning_rate_ratio,
        ),
        precision=scenario.model.precision,
        gradient_checkpointing=getattr(scenario.model, "gradient_checkpointing", False),
        balance=scenario.learner.balance,
        group_cost=num_tokens if shape is None else partial(group_flops, shape),
    )


def make_trainer(
    scenario: Scenario,
    options: TrainerOptions,
    model: nn.Module | None,
    padding: int,
    ends: Sequence[int],
    should_stop: Callable[[], bool],
    ranks: Ranks | None = None,
    offload: Offload | None = None,
) -> PolicyTrainer | PacedTrainer:
    """Return what trains the policy, or only takes its time; see ``PolicyTrainer``."""
    settings = scenario.model
    if isinstance(settings, PacedModelSettings):
        from harness.learner.paced import PacedTrainer

        size = settings.megabytes, settings.tensors
        return PacedTrainer(settings.update_s, *size, options, scenario.prompts_per_batch)
    assert model is not None
    return PolicyTrainer(model, padding, options, should_stop, ends, ranks, offload)


def make_offload(scenario: Scenario, tracer: Tracer, device: str, lane: str = "learner") -> tuple[Offload, Tracer]:
    """Return what moves a Learner's memory, and the tracer with which the other stages of its lane are recorded."""
    if scenario.learner.offload is None or scenario.model.type == "paced":
        return Offload(), tracer
    tracer = InterruptingTracer(tracer)
    target = PinnedTarget() if device == "cuda" else FileTarget()
    return Offload(offloaded(scenario), target, tracer, lane), tracer


def make_ranks(scenario: Scenario, device: str) -> Ranks:
    """Return how this rank shares the policy with the others of its process group."""
    if scenario.learner.sharding == "deepspeed":
        from harness.learner.deepspeed import DeepSpeedRanks

        return DeepSpeedRanks(zero_stage(scenario), precision=scenario.model.precision, device=device)
    from harness.learner.ranks import FsdpRanks

    keeps_buckets = "gradients" in offloaded(scenario)
    return FsdpRanks(scenario.learner.sharding, mesh_shape(scenario), device=device, keeps_buckets=keeps_buckets)
