"""Trinity: ``TrinityPolicyLoss``, which calls its policy losses, KL functions and entropy loss; its advantage classes.

Its ``seq-mean-token-sum-norm`` divides by the width of the microbatch, and not by the number of responses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .common import NO_CLIP, Absent, Advantages, Because, NoCounterpart, Options, Peer, Step, named, none_but

MODES = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean", "sequence_sum": "seq-mean-token-sum"}
DELTAS: dict[str, dict[str, Options]] = {
    "grpo": {"normalized_rewards": {"std_cal_level": "group"}, "batch_normalized_rewards": {"std_cal_level": "batch"}},
    "rec": {"normalized_rewards": {"std_normalize": True}, "centered_rewards": {"std_normalize": False}},
    "opmd": {"centered_rewards": {}},
    "rloo": {"leave_one_out_rewards": {}},
}
"""The arguments of each class by advantage."""


def words(loss: Options) -> Options:
    """Return a step's loss as settings of ``AlgorithmConfig``."""
    if loss["importance"]["mode"] != "off":  # rollout_correction is a setting, which nothing reads but with verl < 0.8
        raise NoCounterpart("importance weights: its loss is given none")
    none_but(loss, "cispo", "sequence ratio", "kl", "weighted kl", "entropy")
    made: Options = {"loss_agg_mode": named(loss["aggregation"], MODES, "aggregation")}
    clip = {"clip_range_low": loss["clip_low"], "clip_range_high": loss["clip_high"]}
    if loss["type"] == "cispo":
        made |= {"policy_loss_fn": "cispo", "policy_loss_fn_args": clip}
    elif loss["ratio_level"] == "sequence":
        if loss["dual_clip"]:
            raise NoCounterpart("sequence ratio with dual clip")
        made |= {"policy_loss_fn": "gspo", "policy_loss_fn_args": clip}
    else:
        made |= {"policy_loss_fn": "ppo", "policy_loss_fn_args": {**clip, "clip_ratio_c": loss["dual_clip"] or NO_CLIP}}
    kl = loss["kl"]
    if kl["coefficient"]:
        if kl["weighted_by_ratio"] and kl["estimator"] != "k3":
            raise NoCounterpart(f"{kl['estimator']} times the ratio")
        estimator = "corrected_k3" if kl["weighted_by_ratio"] else kl["estimator"]
        made |= {"kl_loss_fn": estimator, "kl_loss_fn_args": {"kl_coef": kl["coefficient"]}}
    if loss["entropy_coefficient"]:
        coefficient = {"entropy_coef": loss["entropy_coefficient"]}
        made |= {"entropy_loss_fn": "default", "entropy_loss_fn_args": coefficient}
    return made


def load() -> Peer:
    """Import Trinity."""
    Absent("peft")
    from tensordict import TensorDict
    from trinity.algorithm import ADVANTAGE_FN
    from trinity.algorithm.policy_loss_fn.ppo_policy_loss import PPOPolicyLossFn
    from trinity.common.config import AlgorithmConfig
    from trinity.common.experience import EID, Experience
    from trinity.trainer.verl.losses import TrinityPolicyLoss

    usual = PPOPolicyLossFn.default_args()

    def policy_loss(options: Options) -> Callable[..., tuple[Tensor, Options]]:
        off = {"kl_loss_fn": "none", "kl_loss_fn_args": {}, "entropy_loss_fn": "none"}
        config = AlgorithmConfig(**{**off, "entropy_loss_fn_args": {"entropy_coef": 0.0}, **options})
        # As common/config_validator.py:411 does.
        config.policy_loss_fn_args = {**(config.policy_loss_fn_args or {}), "loss_agg_mode": config.loss_agg_mode}
        made: Callable[..., tuple[Tensor, Options]] = TrinityPolicyLoss(config)
        return made

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        made = policy_loss(options)

        def of_rows(rows: slice) -> Tensor:
            mask = step.mask_bool[rows]
            # Rows behind each other, each with a prompt of one token; all as wide as the longest if not packed.
            lengths = (mask.flip(1).cumsum(1) > 0).sum(1) if step.packed else torch.full((len(mask),), mask.shape[1])
            at = [slice(0, int(length)) for length in lengths]

            def nested(tensor: Tensor) -> Tensor:
                parts = [row[each] for row, each in zip(tensor[rows], at, strict=True)]
                return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

            def of_model(tensor: Tensor) -> Tensor:
                end = tensor.new_zeros(1)
                return torch.cat([x for row, each in zip(tensor[rows], at, strict=True) for x in (row[each], end)])

            beside = {"old_log_probs": step.old, "advantages": step.advantages_BT, "response_mask": step.mask_bool}
            beside |= {} if step.reference is None else {"ref_log_prob": step.reference}
            data = {name: nested(tensor) for name, tensor in (beside | {"responses": step.mask}).items()}
            data["prompts"] = torch.nested.as_nested_tensor([torch.zeros(1)] * len(mask), layout=torch.jagged)
            output = {"log_probs": of_model(log_probs)}
            output |= {} if step.entropy is None else {"entropy": of_model(step.entropy)}
            return made(output, TensorDict(data, [len(mask)]))[0]

        # Each microbatch's loss is sent backward as it is: forward_backward_batch of verl's engine, in
        # verl/workers/engine/fsdp/transformer_impl.py:767; FSDP averages the gradients of ranks.
        total: Tensor = torch.stack([of_rows(rows) for rank in step.parts() for rows in rank]).sum() / step.ranks
        return total

    def group(name: str, step: Step, options: Options) -> Tensor:
        rollouts = [
            Experience(eid=EID(task=number), tokens=[0, 0], reward=reward)
            for number, reward in zip(step.group.tolist(), step.rewards.tolist(), strict=True)
        ]
        ADVANTAGE_FN.get(name)(**options)(rollouts)
        return torch.stack([each.advantages[0] for each in rollouts])

    def rloo(step: Step, options: Options) -> Tensor:
        rewards = step.rewards[:, None].clone()
        batch: Any = {"token_level_rewards": rewards, "response_mask": torch.ones_like(rewards)}
        rollouts = SimpleNamespace(batch=batch, non_tensor_batch={"uid": step.group.numpy()})
        made: Tensor = ADVANTAGE_FN.get("rloo")(**options)(rollouts)[0].batch["advantages"][:, 0]
        return made

    def arguments(name: str, step: Step) -> Options:
        options = named(step.advantage["delta"], DELTAS[name], "advantage")
        takes = step.advantage["delta"].endswith("normalized_rewards")
        return {**options, "epsilon": step.advantage["eps"]} if takes else dict(options)

    return Peer(
        loss=loss,
        defaults={"policy_loss_fn": "ppo", "policy_loss_fn_args": usual, "loss_agg_mode": usual["loss_agg_mode"]},
        advantages=tuple(
            Advantages(
                f"advantages, {name}", partial(arguments, name), rloo if name == "rloo" else partial(group, name)
            )
            for name in DELTAS
        ),
        entry=TrinityPolicyLoss.__call__,
        because=BECAUSE,
    )


_LOSSES = "trinity.trainer.verl.losses"
_CALL = "pg_loss, pg_loss_metrics = self.policy_loss_fn(logprob=log_prob, **model_inputs)"
_ADDED = (
    "microbatches' means are added up and divided by nothing, so k of them make the gradient about k times as large; "
    "the backend for verl below 0.8 divides by k, and trainer.fix_actor_microbatch_loss_scale is read there only"
)
BECAUSE = (
    Because("microbatches", _ADDED, _LOSSES, _CALL, is_defect=True),
    Because("microbatches, responses' means", _ADDED, _LOSSES, _CALL, is_defect=True),
    Because("two ranks of microbatches", _ADDED, _LOSSES, _CALL, is_defect=True),
    Because("two ranks", "each rank divides by its own tokens, and the ranks are averaged", _LOSSES, _CALL),
    Because(
        "KL k3 times the ratio",
        "a ratio above 2 counts as 2, without a gradient of its own",
        "trinity.algorithm.kl_fn.kl_fn",
        "ratio_is = torch.clamp(ratio_is, min=0.0, max=2.0)",
    ),
    Because(
        "deviation of the group",
        "rec takes the biased deviation; grpo does not",
        "trinity.algorithm.advantage_fn.rec_advantage",
        "group_reward_std = sel_rewards.std(unbiased=False)",
    ),
    Because(
        "equal rewards",
        "the mean is rounded to float32, and its rounding divided by a deviation of about its own size and 1e-6",
        "trinity.algorithm.advantage_fn.grpo_advantage",
        "score = (exp.reward - group_reward_mean) / (group_reward_std + self.epsilon)",
    ),
)
