"""One microbatch in the source's form: equal microbatches, mean over each sequence, then over the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.grpo.aggregate import Denominator, weighted_sum
from harness.grpo.checks import require_same_shape
from harness.grpo.masking import masked_mean, zero_masked
from harness.grpo.policy_gradient import LossType, compute_policy_gradient_loss


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
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the loss of one microbatch and call ``backward`` on it.

    The per-token loss is averaged over each response, then over the rollouts, then divided by
    ``gradient_accumulation_steps``: the aggregation ``sequence_mean`` of a whole batch of that many microbatches of
    this size. Microbatches of unequal size need ``loss_denominator`` and ``surrogate_loss``. A response without any
    token adds 0 and still counts among the rollouts (where ``masked_mean`` of nothing would be NaN).

    Args:
        policy_log_probs: (B, T), of the policy being trained, with gradient.
        response_mask: (B, T), 1 on response tokens, boolean or 0/1.
        gradient_accumulation_steps: microbatches in one optimizer step, at least 1.
        loss_type: see ``compute_policy_gradient_loss``, as all that follow.
        raw_rewards: (B, 1), needed by ``no_baseline``.
        advantages: (B, 1), needed by the others.
        old_log_probs: (B, T), needed by ``unclipped`` and ``grpo_clip``.
        cliprange: needed by ``grpo_clip``.
        cliprange_high: see ``compute_grpo_clip_loss``.
        dual_clip: see ``compute_grpo_clip_loss``.

    Returns:
        The loss, a scalar without gradient, and the per-token metadata of the loss; for ``grpo_clip`` also the scalars
        ``clip_fraction`` and ``ratio_mean`` over response tokens.

    Raises:
        UserError: a shape is wrong, or an argument that the loss type needs is missing.
    """
    if gradient_accumulation_steps < 1:
        raise UserError(
            f"gradient_accumulation_steps is {gradient_accumulation_steps}, it must be at least 1",
            where="gradient_accumulation_steps",
        )
    require_same_shape("response_mask", response_mask, "policy_log_probs", policy_log_probs)
    loss_BT, metadata = compute_policy_gradient_loss(
        zero_masked(policy_log_probs, response_mask),
        loss_type,
        raw_rewards,
        advantages,
        old_log_probs,
        cliprange,
        cliprange_high=cliprange_high,
        dual_clip=dual_clip,
    )
    accumulated = gradient_accumulation_steps
    whole_batch = Denominator(
        "sequence_mean", accumulated * response_mask.shape[0], accumulated * int(response_mask.bool().sum())
    )
    loss = weighted_sum(loss_BT, whole_batch.token_weights(response_mask))
    torch.autograd.backward(loss)
    if "clipped" in metadata:
        metadata["clip_fraction"] = masked_mean(metadata["clipped"], response_mask)
        metadata["ratio_mean"] = masked_mean(metadata["ratio"], response_mask)
    return loss.detach(), metadata
