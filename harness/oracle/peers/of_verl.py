"""verl: ``compute_policy_loss_vanilla``, ``compute_grpo_outcome_advantage`` and its vectorised sister."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .common import NO_CLIP, Advantages, NoCounterpart, Options, Peer, Step, named, none_but

MODES = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "sequence_sum": "seq-mean-token-sum",
    "constant": "seq-mean-token-sum-norm",
}


def words(loss: Options) -> Options:
    """Return a step's loss as settings of the actor."""
    none_but(loss)
    clip = {"clip_ratio_low": loss["clip_low"], "clip_ratio_high": loss["clip_high"]}
    made = {"loss_agg_mode": named(loss["aggregation"], MODES, "aggregation"), **clip}
    made |= {"clip_ratio_c": loss["dual_clip"] or NO_CLIP}
    return made | ({"loss_scale_factor": loss["constant"]} if loss["aggregation"] == "constant" else {})


def load() -> Peer:
    """Import verl."""
    from verl.trainer.ppo import core_algos
    from verl.workers.config.actor import ActorConfig

    def config_of(rows: int, **options: Any) -> Any:
        sizes = {"ppo_micro_batch_size_per_gpu": 1, "ppo_mini_batch_size": rows}
        return ActorConfig(strategy="fsdp", rollout_n=1, **sizes, **options)

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        if step.ranks * step.microbatches > 1 or step.packed:
            raise NoCounterpart("microbatches")
        rows = len(step.mask)
        config, mode = config_of(rows, **options), options["loss_agg_mode"]
        config.global_batch_info.update(dp_size=1, batch_num_tokens=step.mask.sum(), global_batch_size=rows)
        if "loss_scale_factor" in options:
            config.global_batch_info["loss_scale_factor"] = options["loss_scale_factor"]
        made: Tensor = core_algos.compute_policy_loss_vanilla(
            step.old, log_probs, step.advantages_BT, step.mask, mode, config
        )[0]
        return made

    names = "loss_agg_mode", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"
    functions = {
        "grpo": core_algos.compute_grpo_outcome_advantage,
        "grpo_vectorized": core_algos.compute_grpo_vectorized_outcome_advantage,
    }
    usual = config_of(1)
    return Peer(
        loss=loss,
        defaults={name: getattr(usual, name) for name in names},
        advantages=tuple(
            Advantages(f"advantages, {name}", scaled, outcome(function)) for name, function in functions.items()
        ),
        entry=core_algos.compute_policy_loss_vanilla,
    )


def scaled(step: Step) -> Options:
    """Return the step's advantage in verl's words."""
    by = {"normalized_rewards": True, "centered_rewards": False}
    scale = named(step.advantage["delta"], by, "advantage")
    return {"norm_adv_by_std_in_grpo": scale, "epsilon": step.advantage["eps"]}


def outcome(function: Callable[..., Any]) -> Callable[[Step, Options], Tensor]:
    """Call verl's or SkyRL's function: rewards at the one token of each rollout, groups by number."""

    def values(step: Step, options: Options) -> Tensor:
        rewards, index = step.rewards[:, None], step.group.numpy()
        made: Tensor = function(rewards.clone(), torch.ones_like(rewards), index, **options)[0][:, 0]
        return made

    return values
