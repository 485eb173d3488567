"""SkyRL: its policy losses of advantages with its loss reduction; ``compute_grpo_outcome_advantage``."""

from __future__ import annotations

import typing

from torch import Tensor

from .common import Advantages, NoCounterpart, Options, Peer, Step, named, none_but
from .of_verl import outcome

REDUCTIONS = {"token_mean": "token_mean", "sequence_mean": "sequence_mean", "constant": "seq_mean_token_sum_norm"}


def words(loss: Options) -> Options:
    """Return a step's loss as settings of ``AlgorithmConfig``."""
    none_but(loss)
    reduction = named(loss["aggregation"], REDUCTIONS, "aggregation")
    made = {"loss_reduction": reduction, "eps_clip_low": loss["clip_low"], "eps_clip_high": loss["clip_high"]}
    dual = loss["dual_clip"]
    made |= {"policy_loss_type": "dual_clip", "clip_ratio_c": dual} if dual else {"policy_loss_type": "regular"}
    return made | ({"max_seq_len": loss["constant"]} if loss["aggregation"] == "constant" else {})


def load() -> Peer:
    """Import SkyRL."""
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # its configuration on Python 3.11
    from skyrl.backends.skyrl_train.utils import ppo_utils
    from skyrl.train.config import AlgorithmConfig

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        if step.ranks * step.microbatches > 1 or step.packed:
            raise NoCounterpart("microbatches")
        config = AlgorithmConfig()
        for name, value in options.items():
            setattr(config, name, value)
        rows, width = step.mask.shape
        scaled_BT = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
            step.advantages_BT.clone(), step.mask, config.loss_reduction, rows, config.max_seq_len or width
        )
        made: Tensor = ppo_utils.ppo_policy_loss(log_probs, step.old, scaled_BT, config, step.mask, step.old)[0]
        return made

    def scaled(step: Step) -> Options:
        by = {"normalized_rewards": True, "centered_rewards": False}
        return {
            "grpo_norm_by_std": named(step.advantage["delta"], by, "advantage"),
            "epsilon": step.advantage["eps"],
        }

    usual = AlgorithmConfig()
    names = "loss_reduction", "eps_clip_low", "eps_clip_high", "policy_loss_type"
    return Peer(
        loss=loss,
        defaults={name: getattr(usual, name) for name in names},
        advantages=(Advantages("advantages", scaled, outcome(ppo_utils.compute_grpo_outcome_advantage)),),
        entry=ppo_utils.ppo_policy_loss,
    )
