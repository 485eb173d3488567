"""A policy of 17 tokens and scored groups for it, for tests of the Learner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from harness.core.types import Completion, GroupData, Metrics, Prompt, RolloutGroup
from harness.learner import PolicyTrainer, TrainerOptions
from harness.learner.trainer import PreparedBatch, plan_training_step
from harness.models.config import ModelConfig
from harness.models.decoder import DecoderLM
from harness.settings.optimizer import OptimizerSettings

CONFIG = ModelConfig(
    vocab_size=17,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=32,
)
OPTIONS = TrainerOptions(group_size=4, optimizer=OptimizerSettings(learning_rate=0.01))


def changed(options: TrainerOptions, **changes: Any) -> TrainerOptions:
    """The options with other values, also within sections: ``loss__kl__monitor=True``."""

    def of_section(section: Any, path: list[str], value: object) -> Any:
        first, *rest = path
        if rest:
            value = of_section(getattr(section, first), rest, value)
        return type(section).model_validate({**dict(section), first: value})

    for name in sorted(changes, key=lambda name: "__" in name):
        first, *path = name.split("__")
        value = of_section(getattr(options, first), path, changes[name]) if path else changes[name]
        options = replace(options, **{first: value})
    return options


def groups(seed: int = 0, num_groups: int = 3, group_size: int = 4, tokens: int = 17) -> tuple[RolloutGroup, ...]:
    """Groups of random responses of 1 to 8 tokens; the rewards of each are 0, 1, 1 and 0.5 in some order."""
    rng = np.random.default_rng(seed)
    made = []
    for prompt_id in range(num_groups):
        lengths = rng.integers(1, 9, group_size)
        completions = tuple(
            Completion(rng.integers(0, tokens, length), rng.normal(-2, 0.1, length).astype(np.float32), "", "stop")
            for length in lengths
        )
        data = GroupData(Prompt("p", "g"), rng.integers(0, tokens, int(rng.integers(2, 6))), completions)
        rewards = tuple(float(reward) for reward in rng.permutation([0.0, 1.0, 1.0, 0.5])[:group_size])
        made.append(RolloutGroup(prompt_id, 0, 0, 0, tuple(map(int, lengths)), data, rewards))
    return tuple(made)


def with_completions(
    made: Sequence[RolloutGroup], change: Callable[[int, Completion], Completion]
) -> tuple[RolloutGroup, ...]:
    """The groups with other completions, each made of its number, counted through the groups, and the one there is."""
    changed_groups, first = [], 0
    for group in made:
        assert group.data is not None
        completions = tuple(change(first + place, each) for place, each in enumerate(group.data.completions))
        changed_groups.append(replace(group, data=replace(group.data, completions=completions)))
        first += len(completions)
    return tuple(changed_groups)


def truncated(made: Sequence[RolloutGroup], places: Collection[int]) -> tuple[RolloutGroup, ...]:
    """The groups with the responses of these numbers cut at ``max_tokens``."""
    return with_completions(
        made, lambda number, each: replace(each, finish_reason="length") if number in places else each
    )


def plain_logits(model: DecoderLM, made: Sequence[RolloutGroup]) -> list[torch.Tensor]:
    """Logits (T, V) that predict each response, from plain forward passes."""
    found = []
    for group in made:
        assert group.data is not None
        prompt = torch.as_tensor(group.data.prompt_token_ids)
        for completion in group.data.completions:
            ids = torch.cat((prompt, torch.as_tensor(completion.token_ids)))
            found.append(model(ids[None]).logits[0, len(prompt) - 1 : -1])
    return found


def gradients(
    made: tuple[RolloutGroup, ...], options: TrainerOptions, ends: tuple[int, ...] = ()
) -> tuple[dict[str, torch.Tensor], Metrics]:
    """The gradient of the one optimizer step of the options, not clipped, and the step's metrics."""
    options = changed(options, optimizer__max_grad_norm=None)
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options, ends=ends)
    seen: dict[str, torch.Tensor] = {}
    weights = trainer.weights().items()
    trainer.optimizer.register_step_pre_hook(lambda *_: seen.update({n: t.grad.clone() for n, t in weights}))  # type: ignore[union-attr]
    return seen, train_on(trainer, [made])


def train_on(
    trainer: PolicyTrainer,
    batches: Sequence[tuple[RolloutGroup, ...]],
    data_rank: int | None = None,
    first_step: int = 0,
) -> Metrics:
    """Make a training step of each batch, as the worker does; return the last one's metrics.

    Args:
        trainer: of this process, or of a rank.
        batches: the groups of each training step.
        data_rank: of a rank, which is given the data of its own groups alone; None: of the only process.
        first_step: number of the first batch's training step.
    """
    return train_on_parts(trainer, [(made,) for made in batches], data_rank, first_step)


def train_on_parts(
    trainer: PolicyTrainer,
    batches: Sequence[tuple[tuple[RolloutGroup, ...], ...]],
    data_rank: int | None = None,
    first_step: int = 0,
) -> Metrics:
    """Make a training step of each batch, which comes in parts; see ``train_on``."""

    def passed_over(step: int, made: tuple[RolloutGroup, ...]) -> PreparedBatch | None:
        if not made:
            return None
        given, plan = made, plan_training_step(step, made, trainer.options, trainer.ranks.data_ranks)
        if data_rank is not None:
            held = plan.groups_of(data_rank)
            given = tuple(group if place in held else replace(group, data=None) for place, group in enumerate(made))
        batch = trainer.prepare(given, plan, step)
        if trainer.options.needs_old_log_probs:
            trainer.compute_old_log_probs(batch)
        if trainer.options.needs_reference:
            trainer.compute_reference_log_probs(batch)
        return batch

    for step, (*first, last) in enumerate(batches, first_step):
        for part in first:
            batch = passed_over(step, part)
            assert batch is not None
            trainer.accumulate(step, batch)
        metrics = trainer.train(step, passed_over(step, last))
    return metrics


def trained(
    options: TrainerOptions, steps: int = 1, batches: Sequence[tuple[RolloutGroup, ...]] | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Train from the same initial weights; return the weights and the last step's metrics."""
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options)
    metrics = train_on(trainer, batches or [groups(seed=step) for step in range(steps)])
    weights = {name: tensor.detach().clone() for name, tensor in trainer.weights().items()}
    return weights, {name: metric.value for name, metric in metrics.items()}
