"""Per-token policy-gradient losses: naive, with the probability ratio, clipped, CISPO; and one microbatch."""

from __future__ import annotations

from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.grpo.aggregate import Denominator, weighted_sum
from harness.grpo.masking import (
    at_least_float32,
    masked_mean,
    require_matrix,
    require_per_rollout,
    require_same_shape,
    unknown_choice,
    zero_masked,
)
from harness.grpo.ratio import token_ratio

_Value = TypeVar("_Value")

LossType = Literal["no_baseline", "reinforce_with_baseline", "grpo_clip", "naive", "unclipped", "cispo"]
"""``no_baseline`` and ``reinforce_with_baseline`` are ``naive`` with raw rewards and with advantages."""


def compute_naive_policy_gradient_loss(raw_rewards_or_advantages: Tensor, policy_log_probs: Tensor) -> Tensor:
    """Return -A * log p for each token (REINFORCE, Williams 1992).

    On-policy only: nothing corrects for tokens that another policy sampled.

    Args:
        raw_rewards_or_advantages: (B, 1), the same for every token of a response; (B, T) gives each token its own.
        policy_log_probs: (B, T), of the policy being trained.

    Returns:
        (B, T), float32 at least.

    Raises:
        UserError: a shape is another one.
    """
    require_matrix("policy_log_probs", policy_log_probs)
    require_per_rollout("raw_rewards_or_advantages", raw_rewards_or_advantages, policy_log_probs)
    return -at_least_float32(raw_rewards_or_advantages) * at_least_float32(policy_log_probs)


def compute_unclipped_loss(
    advantages: Tensor, policy_log_probs: Tensor, old_log_probs: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -rho * A for each token, rho = exp(log p - log p_old): what PPO clips (arXiv:1707.06347, equation 6).

    Nothing keeps the policy near the old one. Where rho is 1, the gradient is that of
    ``compute_naive_policy_gradient_loss``. log p - log p_old counts as at most 80, as in ``compute_grpo_clip_loss``,
    and no gradient flows into ``old_log_probs``.

    Args:
        advantages: (B, 1), or (B, T).
        policy_log_probs: (B, T), of the policy being trained.
        old_log_probs: (B, T), of the policy the ratio divides by.

    Returns:
        The loss (B, T), float32 at least, and ``ratio`` (B, T) without gradient.

    Raises:
        UserError: a shape is another one.
    """
    return unclipped_by_ratio(token_ratio(policy_log_probs, old_log_probs), advantages)


def unclipped_by_ratio(ratio_BT: Tensor, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and metadata of ``compute_unclipped_loss`` for ratios (B, T) of any level."""
    require_per_rollout("advantages", advantages, ratio_BT)
    return -ratio_BT * at_least_float32(advantages), {"ratio": ratio_BT.detach()}


def compute_grpo_clip_loss(
    advantages: Tensor,
    policy_log_probs: Tensor,
    old_log_probs: Tensor,
    cliprange: float,
    *,
    cliprange_high: float | None = None,
    dual_clip: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the clipped surrogate loss of each token (PPO, arXiv:1707.06347, equation 7; GRPO, arXiv:2402.03300).

    -min(rho * A, clip(rho, 1 - cliprange, 1 + cliprange_high) * A) with rho = exp(log p - log p_old). With
    ``dual_clip`` c, tokens with A < 0 lose at most c * |A|: -max(min(...), c * A) (Ye et al. 2020, arXiv:1912.09729).
    No gradient flows into ``old_log_probs``. log p - log p_old counts as at most 80, where rho is already 5e34, so that
    a token out of all bounds cannot turn the other gradients into NaN.

    Args:
        advantages: (B, 1), or (B, T).
        policy_log_probs: (B, T), of the policy being trained.
        old_log_probs: (B, T), of the policy the ratio divides by.
        cliprange: at least 0, how far rho may fall below 1 and, without ``cliprange_high``, rise above it.
        cliprange_high: at least 0, how far rho may rise above 1 (clip-higher, DAPO, arXiv:2503.14476).
        dual_clip: c, more than 1.

    Returns:
        The loss (B, T), float32 at least, and without gradient ``ratio`` (B, T) and ``clipped`` (B, T), true where
        a clip changed the objective; with ``dual_clip`` also ``dual_clipped`` (B, T), those of ``clipped`` that are
        the second clip's.

    Raises:
        UserError: a shape or a bound is wrong.
    """
    ratio_BT = token_ratio(policy_log_probs, old_log_probs)
    return clipped_by_ratio(ratio_BT, advantages, cliprange, cliprange_high, dual_clip)


def clipped_by_ratio(
    ratio_BT: Tensor, advantages: Tensor, cliprange: float, cliprange_high: float | None, dual_clip: float | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and metadata of ``compute_grpo_clip_loss`` for ratios (B, T) of any level."""
    check_clip_options(cliprange, cliprange_high, dual_clip)
    require_per_rollout("advantages", advantages, ratio_BT)
    advantages = at_least_float32(advantages)
    highest = 1 + (cliprange if cliprange_high is None else cliprange_high)

    unclipped_BT = ratio_BT * advantages
    bounded_BT = ratio_BT.clamp(1 - cliprange, highest) * advantages
    objective_BT = torch.minimum(unclipped_BT, bounded_BT)
    clipped_BT = bounded_BT < unclipped_BT
    metadata = {"ratio": ratio_BT.detach(), "clipped": clipped_BT}
    if dual_clip is not None:
        lowest_BT = dual_clip * advantages
        metadata["dual_clipped"] = (advantages < 0) & (objective_BT < lowest_BT)
        objective_BT = torch.where(metadata["dual_clipped"], lowest_BT, objective_BT)
        metadata["clipped"] = clipped_BT | metadata["dual_clipped"]
    return -objective_BT, metadata


def compute_cispo_loss(
    advantages: Tensor,
    policy_log_probs: Tensor,
    old_log_probs: Tensor,
    cliprange: float,
    *,
    cliprange_high: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the CISPO loss of each token (MiniMax-M1, arXiv:2506.13585, equations 4 and 5).

    -sg(clip(rho, 1 - cliprange, 1 + cliprange_high)) * A * log p, where sg lets no gradient through. What is clipped is
    the importance weight of REINFORCE, so that every token keeps a gradient, where the clip of
    ``compute_grpo_clip_loss`` takes it from those that moved too far. The paper has no lower bound in its runs:
    ``cliprange`` 1.

    Args:
        advantages: (B, 1), or (B, T).
        policy_log_probs: (B, T), of the policy being trained.
        old_log_probs: (B, T), of the policy the ratio divides by.
        cliprange: at least 0, how far the weight may fall below 1 and, without ``cliprange_high``, rise above it.
        cliprange_high: at least 0, how far the weight may rise above 1.

    Returns:
        The loss (B, T), float32 at least, and without gradient ``ratio`` (B, T) before the clip and ``clipped`` (B, T),
        true where the weight is not the ratio.

    Raises:
        UserError: a shape or a bound is wrong.
    """
    ratio_BT = token_ratio(policy_log_probs, old_log_probs)
    return cispo_by_ratio(ratio_BT, advantages, policy_log_probs, cliprange, cliprange_high)


def cispo_by_ratio(
    ratio_BT: Tensor, advantages: Tensor, policy_log_probs: Tensor, cliprange: float, cliprange_high: float | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and metadata of ``compute_cispo_loss`` for ratios (B, T) of any level."""
    check_clip_options(cliprange, cliprange_high, None)
    require_per_rollout("advantages", advantages, policy_log_probs)
    ratio_BT = ratio_BT.detach()
    weights_BT = ratio_BT.clamp(1 - cliprange, 1 + (cliprange if cliprange_high is None else cliprange_high))
    loss_BT = -weights_BT * at_least_float32(advantages) * at_least_float32(policy_log_probs)
    return loss_BT, {"ratio": ratio_BT, "clipped": weights_BT != ratio_BT}


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
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the per-token loss of the named type.

    Args:
        policy_log_probs: (B, T), of the policy being trained.
        loss_type: ``no_baseline`` (A = raw reward), ``reinforce_with_baseline`` or ``naive`` (A = advantage),
            ``unclipped``, ``grpo_clip`` or ``cispo``.
        raw_rewards: (B, 1), needed by ``no_baseline``.
        advantages: (B, 1), needed by the others.
        old_log_probs: (B, T), needed by ``unclipped``, ``grpo_clip`` and ``cispo``.
        cliprange: needed by ``grpo_clip`` and ``cispo``.
        cliprange_high: see ``compute_grpo_clip_loss`` and ``compute_cispo_loss``.
        dual_clip: see ``compute_grpo_clip_loss``.

    Returns:
        The loss (B, T) and the metadata of ``compute_grpo_clip_loss``, ``compute_cispo_loss`` or
        ``compute_unclipped_loss``, or none.

    Raises:
        UserError: the type is unknown, or an argument that it needs is missing.
    """
    if loss_type == "no_baseline":
        rewards = _needed("raw_rewards", raw_rewards, loss_type)
        return compute_naive_policy_gradient_loss(rewards, policy_log_probs), {}
    if loss_type in ("reinforce_with_baseline", "naive"):
        advantages = _needed("advantages", advantages, loss_type)
        return compute_naive_policy_gradient_loss(advantages, policy_log_probs), {}
    if loss_type == "unclipped":
        return compute_unclipped_loss(
            _needed("advantages", advantages, loss_type),
            policy_log_probs,
            _needed("old_log_probs", old_log_probs, loss_type),
        )
    if loss_type == "grpo_clip":
        return compute_grpo_clip_loss(
            _needed("advantages", advantages, loss_type),
            policy_log_probs,
            _needed("old_log_probs", old_log_probs, loss_type),
            _needed("cliprange", cliprange, loss_type),
            cliprange_high=cliprange_high,
            dual_clip=dual_clip,
        )
    if loss_type == "cispo":
        return compute_cispo_loss(
            _needed("advantages", advantages, loss_type),
            policy_log_probs,
            _needed("old_log_probs", old_log_probs, loss_type),
            _needed("cliprange", cliprange, loss_type),
            cliprange_high=cliprange_high,
        )
    raise unknown_choice("loss_type", loss_type, get_args(LossType))


def check_clip_options(cliprange: float, cliprange_high: float | None, dual_clip: float | None) -> None:
    """Raise UserError for a negative clip range, or a dual clip that is not above 1."""
    for name, value in (("cliprange", cliprange), ("cliprange_high", cliprange_high)):
        if value is not None and not value >= 0:
            raise UserError(f"{name} is {value}, it must be at least 0", where=name, fix=f"set {name} to 0.2")
    if dual_clip is not None and not dual_clip > 1:
        raise UserError(f"dual_clip is {dual_clip}, it must be above 1", where="dual_clip", fix="set dual_clip to 3.0")


def _needed(name: str, value: _Value | None, loss_type: str) -> _Value:
    if value is None:
        raise UserError(f"loss_type {loss_type!r} needs {name}, which is None", where=name, fix=f"pass {name}")
    return value


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
        old_log_probs: (B, T), needed by ``unclipped``, ``grpo_clip`` and ``cispo``.
        cliprange: needed by ``grpo_clip`` and ``cispo``.
        cliprange_high: see ``compute_grpo_clip_loss`` and ``compute_cispo_loss``.
        dual_clip: see ``compute_grpo_clip_loss``.

    Returns:
        The loss, a scalar without gradient, and the per-token metadata of the loss; for ``grpo_clip`` and ``cispo``
        also the scalars ``clip_fraction`` and ``ratio_mean`` over response tokens.

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
