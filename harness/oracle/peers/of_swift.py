"""ms-swift: ``GRPOTrainer._compute_loss_and_metrics`` on a trainer that was not initialised; ``compute_advantages``."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import torch
from torch import Tensor

from .common import NO_CLIP, Advantages, Because, NoCounterpart, Options, Peer, Step, named, none_but

LOSS_TYPES = {"token_mean": "dapo", "sequence_mean": "grpo", "constant": "dr_grpo"}
MODES = {
    "tis of level token": "token_truncate",
    "icepop of level token": "token_mask",
    "seq-mask-tis of level token": "sequence_mask",
    "tis of level sequence": "sequence_truncate",
}
ESTIMATORS = {
    "normalized_rewards": {"advantage_estimator": "grpo", "scale_rewards": "group"},
    "centered_rewards": {"advantage_estimator": "grpo", "scale_rewards": "none"},
    "leave_one_out_rewards": {"advantage_estimator": "rloo", "scale_rewards": "none"},
    "batch_normalized_rewards": {"advantage_estimator": "grpo", "scale_rewards": "batch"},
    "batch_whitened_rewards": {"advantage_estimator": "reinforce_plus_plus", "scale_rewards": "batch"},
}


def words(loss: Options) -> Options:
    """Return a step's loss as settings of ``GRPOConfig``."""
    none_but(loss, "cispo", "sequence ratio", "kl", "importance")
    kind = named(loss["aggregation"], LOSS_TYPES, "aggregation")
    made: Options = {"loss_type": kind, "epsilon": loss["clip_low"], "epsilon_high": loss["clip_high"]}
    made |= {"delta": loss["dual_clip"], "importance_sampling_level": loss["ratio_level"]}
    made |= {"max_completion_length": loss["constant"]} if kind == "dr_grpo" else {}
    if loss["type"] == "cispo":
        if kind != "dapo":
            raise NoCounterpart(f"cispo with aggregation {loss['aggregation']}")
        if loss["clip_low"] < 1:
            raise NoCounterpart("a lower bound of cispo's weights")
        made |= {"loss_type": "cispo", "epsilon_high": 1 + loss["clip_high"]}
    kl, importance = loss["kl"], loss["importance"]
    if kl["coefficient"]:
        named(kl["estimator"], {"k3": None}, "KL estimator")
        made["beta"] = kl["coefficient"]
    if importance["mode"] != "off":
        if kl["coefficient"]:
            raise NoCounterpart("a KL that is not multiplied by the importance weights")
        asked = f"{importance['mode']} of level {importance['level']}"
        made["rollout_importance_sampling_mode"] = named(asked, MODES, "importance weights")
        if importance["floor"]:
            raise NoCounterpart("a lower bound of importance weights")
        made["rollout_importance_sampling_threshold"] = NO_CLIP if importance["cap"] is None else importance["cap"]
    return made


def load() -> Peer:
    """Import ms-swift."""
    from swift.rl_core.advantage import compute_advantages
    from swift.rl_core.data import GRPOBatch
    from swift.rlhf_trainers.arguments import GRPOConfig
    from swift.rlhf_trainers.grpo_trainer import GRPOTrainer

    usual = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        if step.packed:
            raise NoCounterpart("packed rows in the loss, they are padded again before it")
        high = options["epsilon"] if options["epsilon_high"] is None else options["epsilon_high"]
        # A response without tokens is a truncated one, so as long as may be, that overlong_filter leaves out.
        truncated_B = ~step.mask_bool.any(dim=1)
        mask = step.mask_bool | truncated_B[:, None]
        trainer = object.__new__(GRPOTrainer)
        trainer.__dict__.update(
            {"importance_sampling_level": "token", "max_completion_length": mask.shape[1], "beta": 0.0}
            | {"rollout_importance_sampling_mode": None}
            | options,
            args=SimpleNamespace(delta=options["delta"], top_entropy_quantile=1.0, gradient_accumulation_steps=None),
            accelerator=SimpleNamespace(num_processes=step.ranks, gather_for_metrics=lambda tensor: tensor),
            model=SimpleNamespace(training=True), model_accepts_loss_kwargs=False, compute_loss_func=None,
            epsilon_low=options["epsilon"], epsilon_high=high, overlong_filter=bool(truncated_B.any()),
            current_gradient_accumulation_steps=step.microbatches, compute_entropy=False, kl_in_reward=False,
            disable_rollout_importance_sampling=False, log_rollout_offpolicy_metrics=False, _has_teacher=False,
            off_policy_sequence_mask_delta=None, sdar_loss_coef=0.0, chord_sft_iterator=None,
        )  # fmt: skip

        def of_rows(rows: slice) -> Tensor:
            trainer._get_per_token_logps_and_entropies = lambda *all, **more: (log_probs[rows], None)
            batch = GRPOBatch(
                completion_mask=mask[rows], truncated_mask=truncated_B[rows], seq_lengths=mask[rows].sum(1),
                old_per_token_logps=step.old[rows], advantages=step.advantages_BT[rows],
                ref_per_token_logps=None if step.reference is None else step.reference[rows],
                rollout_per_token_logps=None if step.engine is None else step.engine[rows],
                num_items_in_batch=mask.sum(),  # of all microbatches and ranks: rlhf_trainers/grpo_trainer.py:799
            )  # fmt: skip
            made: Tensor = GRPOTrainer._compute_loss_and_metrics(trainer, None, {}, batch)[0]
            return made

        losses = [of_rows(rows) for rank in step.parts() for rows in rank]
        # transformers.Trainer divides by the microbatches, and the gradients of ranks are averaged.
        total: Tensor = torch.stack(losses).sum() / step.microbatches / step.ranks
        return total

    def advantages(step: Step, options: Options) -> Tensor:
        made: Tensor = compute_advantages(step.rewards[:, None], torch.ones(1), step.group_size, **options)[0]
        return made

    def estimator(step: Step) -> Options:
        return dict(named(step.advantage["delta"], ESTIMATORS, "advantage"))

    names = "loss_type", "epsilon", "epsilon_high", "delta", "importance_sampling_level"
    return Peer(
        loss=loss,
        defaults={name: usual[name] for name in names} | {"loss_type": "grpo"},  # swift/arguments/rlhf_args.py:527
        advantages=(Advantages("advantages", estimator, advantages),),
        entry=GRPOTrainer._compute_loss_and_metrics,
        because=BECAUSE,
    )


_TRAINER = "swift.rlhf_trainers.grpo_trainer"
BECAUSE = (
    Because(
        "responses out of the loss",
        "the tokens of responses that overlong_filter leaves out count in the mean over tokens",
        _TRAINER,
        "num_items_in_batch = total_lengths.sum()",
    ),
    Because(
        "KL k3",
        "the estimate is cut at 10, where it has no gradient",
        _TRAINER,
        "per_token_kl = torch.clamp(torch.exp(safe_ratio) - safe_ratio - 1, min=-10, max=10)",
    ),
    Because(
        "TIS of responses",
        "a response's weight is the geometric mean of its tokens' ratios, not their product",
        _TRAINER,
        "seq_ratios = torch.exp(seq_log_ratios)",
    ),
    *(
        Because(
            option,
            "1e-4 is added to the deviation",
            "swift.rl_core.advantage",
            "advantages = advantages / (std + 1e-4)",
        )
        for option in ("deviation of the group", "deviation of the batch", "whitened over the batch")
    ),
    Because(
        "equal rewards",
        "the mean is rounded to float32, and its rounding divided by a deviation of its own size and 1e-4",
        "swift.rl_core.advantage",
        "advantages = advantages / (std + 1e-4)",
    ),
)
