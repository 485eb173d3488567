"""Per-token policy-gradient losses, and the source's step on one microbatch.

For B rollouts padded to T tokens ``policy_log_probs``, ``old_log_probs`` and ``response_mask`` are (B, T), and
``advantages`` and ``raw_rewards`` (B, 1), or (B, T) to give each token its own; see ``TokenBatch``. A loss is (B, T),
float32 at least, and metadata are without gradient: ``ratio`` (B, T) before any clip, and ``clipped`` (B, T), true
where a clip changed the objective. A log ratio counts as at most 80, where rho is already 5e34, so that a token out of
all bounds cannot turn the other gradients into NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.grpo.aggregate import Denominator, weighted_sum
from harness.grpo.masking import at_least_float32, masked_mean, require_matrix, require_per_rollout, unknown_choice
from harness.grpo.tokens import TokenBatch

if TYPE_CHECKING:
    from harness.settings.loss import LossType

LossAndMetadata = tuple[Tensor, dict[str, Tensor]]


class ClipRange(NamedTuple):
    """How far a ratio may fall below 1 and rise above it, and the bound where the advantage is negative."""

    low: float
    high: float
    dual: float | None = None


NAIVE = ("no_baseline", "reinforce_with_baseline", "naive")
LOSSES = (*NAIVE, "unclipped", "grpo_clip", "cispo")


def token_loss(tokens: TokenBatch, loss_type: str, clip: ClipRange, level: str = "token") -> LossAndMetadata:
    """Return the loss of each token, with ratios of this level, and its metadata.

    Raises:
        UserError: the type is unknown, or a tensor that it needs is missing.
    """
    if loss_type not in LOSSES:
        raise unknown_choice("loss_type", loss_type, LOSSES)
    by = f"loss_type {loss_type!r}"
    advantages = tokens.needed("raw_rewards" if loss_type == "no_baseline" else "advantages", by)
    if loss_type in NAIVE:
        return -advantages * at_least_float32(tokens.log_probs), {}
    ratio_BT = tokens.ratio(level, by)
    metadata = {"ratio": ratio_BT.detach()}
    if loss_type == "unclipped":
        return -ratio_BT * advantages, metadata
    if loss_type == "cispo":
        weights_BT = metadata["ratio"].clamp(1 - clip.low, 1 + clip.high)
        metadata["clipped"] = weights_BT != metadata["ratio"]
        return -weights_BT * advantages * at_least_float32(tokens.log_probs), metadata
    unclipped_BT = ratio_BT * advantages
    bounded_BT = ratio_BT.clamp(1 - clip.low, 1 + clip.high) * advantages
    objective_BT = torch.minimum(unclipped_BT, bounded_BT)
    metadata["clipped"] = bounded_BT < unclipped_BT
    if clip.dual is not None:
        lowest_BT = clip.dual * advantages
        dual_clipped_BT = (advantages < 0) & (objective_BT < lowest_BT)
        objective_BT = torch.where(dual_clipped_BT, lowest_BT, objective_BT)
        metadata |= {"clipped": metadata["clipped"] | dual_clipped_BT, "dual_clipped": dual_clipped_BT}
    return -objective_BT, metadata


def compute_naive_policy_gradient_loss(raw_rewards_or_advantages: Tensor, policy_log_probs: Tensor) -> Tensor:
    """Return -A * log p for each token (REINFORCE, Williams 1992).

    On-policy only: nothing corrects for tokens that another policy sampled.
    """
    require_matrix("policy_log_probs", policy_log_probs)
    require_per_rollout("raw_rewards_or_advantages", raw_rewards_or_advantages, policy_log_probs)
    return -at_least_float32(raw_rewards_or_advantages) * at_least_float32(policy_log_probs)


def compute_unclipped_loss(advantages: Tensor, policy_log_probs: Tensor, old_log_probs: Tensor) -> LossAndMetadata:
    """Return -rho * A for each token, rho = exp(log p - log p_old): what PPO clips (arXiv:1707.06347, equation 6).

    Nothing keeps the policy near the old one. Where rho is 1, the gradient is that of
    ``compute_naive_policy_gradient_loss``.
    """
    return compute_policy_gradient_loss(policy_log_probs, "unclipped", None, advantages, old_log_probs)


def compute_grpo_clip_loss(
    advantages: Tensor,
    policy_log_probs: Tensor,
    old_log_probs: Tensor,
    cliprange: float,
    *,
    cliprange_high: float | None = None,
    dual_clip: float | None = None,
) -> LossAndMetadata:
    """Return the clipped surrogate loss of each token (PPO, arXiv:1707.06347, equation 7; GRPO, arXiv:2402.03300).

    -min(rho * A, clip(rho, 1 - cliprange, 1 + cliprange_high) * A) with rho = exp(log p - log p_old). With
    ``dual_clip`` c, tokens with A < 0 lose at most c * |A|: -max(min(...), c * A) (Ye et al. 2020, arXiv:1912.09729).

    Args:
        advantages, policy_log_probs, old_log_probs: see the module.
        cliprange: at least 0, how far rho may fall below 1 and, without ``cliprange_high``, rise above it.
        cliprange_high: at least 0, how far rho may rise above 1 (clip-higher, DAPO, arXiv:2503.14476).
        dual_clip: c, more than 1; with it the metadata have ``dual_clipped``, those of ``clipped`` that are its.

    Raises:
        UserError: a shape or a bound is wrong.
    """
    return compute_policy_gradient_loss(
        policy_log_probs,
        "grpo_clip",
        None,
        advantages,
        old_log_probs,
        cliprange,
        cliprange_high=cliprange_high,
        dual_clip=dual_clip,
    )


def compute_cispo_loss(
    advantages: Tensor,
    policy_log_probs: Tensor,
    old_log_probs: Tensor,
    cliprange: float,
    *,
    cliprange_high: float | None = None,
) -> LossAndMetadata:
    """Return the CISPO loss of each token (MiniMax-M1, arXiv:2506.13585, equations 4 and 5).

    -sg(clip(rho, 1 - cliprange, 1 + cliprange_high)) * A * log p, where sg lets no gradient through. What is clipped is
    the importance weight of REINFORCE, so that every token keeps a gradient, where the clip of
    ``compute_grpo_clip_loss`` takes it from those that moved too far. The paper has no lower bound in its runs:
    ``cliprange`` 1. ``clipped`` is true where the weight is not the ratio.
    """
    return compute_policy_gradient_loss(
        policy_log_probs, "cispo", None, advantages, old_log_probs, cliprange, cliprange_high=cliprange_high
    )


def compute_policy_gradient_loss(
    policy_log_probs: Tensor,
    loss_type: LossType,
    raw_rewards: Tensor | None = None,
    advantages: Tensor | None = None,
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
    *,
    cliprange_high: float | None = None,
    dual_clip: float | None = None,
) -> LossAndMetadata:
    """Return the per-token loss of the named type.

    Args:
        policy_log_probs: see the module, as all tensors.
        loss_type: ``no_baseline`` (A = raw reward), ``reinforce_with_baseline`` or ``naive`` (A = advantage),
            ``unclipped``, ``grpo_clip`` or ``cispo``.
        raw_rewards: needed by ``no_baseline``.
        advantages: needed by the others.
        old_log_probs: needed by ``unclipped``, ``grpo_clip`` and ``cispo``.
        cliprange: needed by ``grpo_clip`` and ``cispo``.
        cliprange_high, dual_clip: of these; see ``compute_grpo_clip_loss``.

    Raises:
        UserError: the type is unknown, a shape or a bound is wrong, or an argument that the type needs is missing.
    """
    everything = torch.ones_like(policy_log_probs, dtype=torch.bool)
    tokens = TokenBatch(policy_log_probs, everything, raw_rewards, advantages, old_log_probs)
    return _with_clip(tokens, loss_type, cliprange, cliprange_high, dual_clip)


def _with_clip(
    tokens: TokenBatch, loss_type: str, cliprange: float | None, cliprange_high: float | None, dual_clip: float | None
) -> LossAndMetadata:
    for name, bound in (("cliprange", cliprange), ("cliprange_high", cliprange_high)):
        if bound is not None and not bound >= 0:
            raise UserError(f"{name} is {bound}, it must be at least 0", where=name, fix=f"set {name} to 0.2")
    if dual_clip is not None and not dual_clip > 1:
        raise UserError(f"dual_clip is {dual_clip}, it must be above 1", where="dual_clip", fix="set dual_clip to 3.0")
    low = 0.0 if cliprange is None else cliprange
    loss = token_loss(tokens, loss_type, ClipRange(low, low if cliprange_high is None else cliprange_high, dual_clip))
    if cliprange is None and "clipped" in loss[1]:
        raise UserError(f"loss_type {loss_type!r} needs cliprange, which is None", "cliprange", "pass cliprange")
    return loss


def grpo_microbatch_train_step(
    policy_log_probs: Tensor,
    response_mask: Tensor,
    gradient_accumulation_steps: int,
    loss_type: LossType,
    raw_rewards: Tensor | None = None,
    advantages: Tensor | None = None,
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
    *,
    cliprange_high: float | None = None,
    dual_clip: float | None = None,
) -> LossAndMetadata:
    """Compute the loss of one microbatch and call ``backward`` on it.

    The per-token loss is averaged over each response, then over the rollouts, then divided by
    ``gradient_accumulation_steps``: the aggregation ``sequence_mean`` of a whole batch of that many microbatches of
    this size. Microbatches of unequal size need ``loss_denominator`` and ``surrogate_loss``. A response without any
    token adds 0 and still counts among the rollouts (where ``masked_mean`` of nothing would be NaN).

    Args:
        policy_log_probs, response_mask: see the module; the mask boolean or 0/1.
        gradient_accumulation_steps: microbatches in one optimizer step, at least 1.
        loss_type, raw_rewards, advantages, old_log_probs, cliprange, cliprange_high, dual_clip: as of
            ``compute_policy_gradient_loss``.

    Returns:
        The loss, a scalar without gradient, and the per-token metadata of the loss; for ``grpo_clip`` and ``cispo``
        also the scalars ``clip_fraction`` and ``ratio_mean`` over response tokens.

    Raises:
        UserError: as of ``compute_policy_gradient_loss``.
    """
    if gradient_accumulation_steps < 1:
        raise UserError(
            f"gradient_accumulation_steps is {gradient_accumulation_steps}, it must be at least 1",
            where="gradient_accumulation_steps",
        )
    tokens = TokenBatch(policy_log_probs, response_mask, raw_rewards, advantages, old_log_probs)
    loss_BT, metadata = _with_clip(tokens, loss_type, cliprange, cliprange_high, dual_clip)
    whole_batch = Denominator("sequence_mean", gradient_accumulation_steps * response_mask.shape[0], 0)
    loss = weighted_sum(loss_BT, whole_batch.token_weights(response_mask))
    torch.autograd.backward(loss)
    if "clipped" in metadata:
        metadata["clip_fraction"] = masked_mean(metadata["clipped"], response_mask)
        metadata["ratio_mean"] = masked_mean(metadata["ratio"], response_mask)
    return loss.detach(), metadata
