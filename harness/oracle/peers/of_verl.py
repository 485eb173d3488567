"""verl: ``ppo_loss``, which its actor calls for each microbatch, on what its rollout correction makes of the batch; and
its advantage estimators. As in its trainer of version 1, which is the default one (``trainer.use_v1``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .common import NO_CLIP, Advantages, Because, NoCounterpart, Options, Peer, Step, named

MODES = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "sequence_sum": "seq-mean-token-sum",
    "constant": "seq-mean-token-sum-norm",
}
KINDS = {("grpo_clip", "token"): "vanilla", ("grpo_clip", "sequence"): "gspo", ("cispo", "token"): "cispo"}
CORRECTION, LOSS_MODE = "rollout_correction.", "policy_loss.loss_mode"


def words(loss: Options) -> Options:
    """Return a step's loss as settings of the actor, and of ``algorithm`` those of ``rollout_correction``."""
    if (loss["type"], loss["ratio_level"]) not in KINDS:
        raise NoCounterpart(f"{loss['type']} with a ratio of level {loss['ratio_level']}")
    kind = KINDS[loss["type"], loss["ratio_level"]]
    made: Options = {LOSS_MODE: kind} if kind != "vanilla" else {}
    made |= {"loss_agg_mode": named(loss["aggregation"], MODES, "aggregation")}
    made |= {"clip_ratio_low": loss["clip_low"], "clip_ratio_high": loss["clip_high"]}
    if kind == "vanilla":
        made |= {"clip_ratio_c": loss["dual_clip"] or NO_CLIP}
    elif kind == "gspo" and loss["dual_clip"]:
        raise NoCounterpart(f"a dual clip with {kind}")
    if loss["aggregation"] == "constant":
        made |= {"loss_scale_factor": loss["constant"]}
    if loss["entropy_coefficient"] > 0:
        made |= {"entropy_coeff": loss["entropy_coefficient"]}
    kl = loss["kl"]
    if kl["coefficient"] > 0:
        if kl["weighted_by_ratio"]:
            raise NoCounterpart("a KL in the loss weighted by the ratio")
        made |= {"use_kl_loss": True, "kl_loss_coef": kl["coefficient"], "kl_loss_type": kl["estimator"]}
    return made | {f"{CORRECTION}{name}": value for name, value in _correction(loss["importance"]).items()}


def _correction(importance: Options) -> Options:
    level, floor, cap = importance["level"], importance["floor"] or 0.0, importance["cap"]
    match importance["mode"]:
        case "off":
            return {}
        case "tis":
            return {"rollout_is": level, "rollout_is_threshold": cap}
        case "icepop":
            return {"rollout_is": level, "rollout_is_threshold": f"{floor or 1 / NO_CLIP}_{cap or NO_CLIP}"}
    mask = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": f"{1 / (cap or NO_CLIP)}_{1 / (floor or 1 / NO_CLIP)}"}
    return {"rollout_is": level, "rollout_is_threshold": NO_CLIP, **mask}


def load() -> Peer:
    """Import verl."""
    from tensordict import TensorDict
    from verl.protocol import DataProto
    from verl.trainer.config import RolloutCorrectionConfig
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
    from verl.utils import tensordict_utils
    from verl.workers.config.actor import ActorConfig, PolicyLossConfig
    from verl.workers.utils.losses import ppo_loss

    def config_of(rows: int, options: Options) -> Any:
        own = {name: value for name, value in options.items() if "." not in name}
        own |= {"policy_loss": PolicyLossConfig(loss_mode=options.get(LOSS_MODE, "vanilla"))}
        sizes = {"ppo_micro_batch_size_per_gpu": 1, "ppo_mini_batch_size": rows}
        return ActorConfig(strategy="fsdp", rollout_n=1, **sizes, **own)

    def batch_of(step: Step, options: Options) -> Options:
        """Correct the whole batch before it is spread, as ``verl/trainer/ppo/v1/trainer_base.py:1771`` does."""
        fields = {"response_mask": step.mask.long(), "old_log_probs": step.old, "advantages": step.advantages_BT}
        if step.reference is not None:
            fields["ref_log_prob"] = step.reference
        correction = {name[len(CORRECTION) :]: value for name, value in options.items() if name.startswith(CORRECTION)}
        if not correction:
            return fields
        batch = DataProto.from_dict(fields | {"rollout_log_probs": step.engine})
        try:
            batch, _ = compute_rollout_correction_and_add_to_batch(batch, RolloutCorrectionConfig(**correction))
        except ZeroDivisionError:  # of compute_is_metrics, which divides by the mean square of the weights
            raise NoCounterpart("weights that are all 0, on which its figures raise ZeroDivisionError") from None
        return dict(batch.batch)

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        """Go through microbatches and ranks as ``verl/workers/engine/fsdp/transformer_impl.py:724`` does: the numbers
        of tokens and rows are those of all ranks, each microbatch is added, and FSDP averages ranks. Rows have no
        padding. The number of tokens is that of ``loss_mask``, the mask before any correction.
        """
        config, fields = config_of(len(step.mask), options), batch_of(step, options)
        at = torch.arange(1, step.mask.shape[1] + 1)
        lengths = (step.mask * at).amax(dim=1).clamp(min=1).long().tolist()

        def nested(tensor: Tensor, rows: slice) -> Tensor:
            cut = [row[:length] for row, length in zip(tensor[rows], lengths[rows], strict=True)]
            return torch.nested.as_nested_tensor(cut, layout=torch.jagged)

        def of_model(tensor: Tensor, rows: slice) -> Tensor:
            """The prompt's last token has the first response token's value, and the last token has another's."""
            cut = [
                torch.cat([row[:length], row[:1] * 0]) for row, length in zip(tensor[rows], lengths[rows], strict=True)
            ]
            return torch.cat(cut)

        def part(rows: slice) -> Tensor:
            data = {name: nested(tensor, rows) for name, tensor in fields.items()}
            prompts = [torch.zeros(1, dtype=torch.long) for _ in lengths[rows]]
            data["prompts"] = torch.nested.as_nested_tensor(prompts, layout=torch.jagged)
            data["responses"] = nested(step.mask.long(), rows)
            micro_batch = TensorDict(data, batch_size=len(prompts))
            numbers = {"batch_num_tokens": step.mask.sum().item(), "global_batch_size": len(step.mask)}
            tensordict_utils.assign_non_tensor(micro_batch, dp_size=step.ranks, **numbers)
            output = {"log_probs": of_model(log_probs, rows)}
            if step.entropy is not None:
                output["entropy"] = of_model(step.entropy, rows)
            made: Tensor = ppo_loss(config, output, micro_batch)[0]
            return made

        summed: Tensor = sum(part(rows) for rank in step.parts() for rows in rank) / step.ranks
        return summed

    usual = config_of(1, {})
    names = "loss_agg_mode", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "entropy_coeff", "use_kl_loss"
    return Peer(
        loss=loss,
        defaults={name: getattr(usual, name) for name in names},
        advantages=tuple(
            Advantages(f"advantages, {name}", scaled, outcome(core_algos.get_adv_estimator_fn(name)))
            for name, scaled in ESTIMATORS.items()
        ),
        entry=ppo_loss,
        because=BECAUSE,
    )


def scaled(step: Step) -> Options:
    """Return the step's advantage in verl's words."""
    by = {"normalized_rewards": True, "centered_rewards": False}
    scale = named(step.advantage["delta"], by, "advantage")
    return {"norm_adv_by_std_in_grpo": scale, "epsilon": step.advantage["eps"]}


def only(delta: str) -> Callable[[Step], Options]:
    """Return the words of a function without options, which computes one delta."""

    def no_options(step: Step) -> Options:
        return dict(named(step.advantage["delta"], {delta: {}}, "advantage"))

    return no_options


def whitened(step: Step) -> Options:
    """Return no options; the lengths of all rollouts are needed."""
    if len(step.rows) < len(step.rewards):
        raise NoCounterpart("rollouts that are in no row: its mean is one over tokens")
    return only("batch_whitened_rewards")(step)


ESTIMATORS = {
    "grpo": scaled,
    "grpo_vectorized": scaled,
    "rloo": only("leave_one_out_rewards"),
    "rloo_vectorized": only("leave_one_out_rewards"),
    "reinforce_plus_plus_baseline": whitened,
}


def outcome(function: Callable[..., Any]) -> Callable[[Step, Options], Tensor]:
    """Call verl's or SkyRL's function: rewards at the first token of each rollout, groups by number."""

    def values(step: Step, options: Options) -> Tensor:
        mask = step.mask_of_rollouts()
        first = torch.arange(len(mask)), mask.argmax(dim=1)
        rewards = torch.zeros_like(mask)
        rewards[first] = step.rewards
        made: Tensor = function(rewards, mask, step.group.numpy(), **options)[0][first]
        return made

    return values


FLOAT32 = "the mean is float32, and its rounding is divided by a deviation that is about 0, plus 1e-6"
BECAUSE = (
    Because(
        "KL k3",
        "the estimate is cut at 10, where it has no gradient",
        "verl.trainer.ppo.core_algos",
        "return torch.clamp(kld, min=-10, max=10)",
    ),
    Because("equal rewards", FLOAT32, "verl.trainer.ppo.core_algos", "/ (id2std[index[i]] + epsilon)"),
    Because(
        "whitened over the batch",
        "mean and deviation are those of all tokens, so that long responses weigh more, and 1e-8 is added to the "
        "variance",
        "verl.trainer.ppo.core_algos",
        "scores = verl_F.masked_whiten(scores, response_mask) * response_mask",
    ),
)
