"""The probability ratio policy / old policy, of a token or of a whole response."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from harness.grpo.masking import at_least_float32, require_matrix, require_same_shape, zero_masked

RatioLevel = Literal["token", "sequence"]

LARGEST_LOG_RATIO = 80.0
"""exp of more than 88 overflows float32, and an infinite ratio times a zero gradient is NaN."""


def token_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor) -> Tensor:
    """Return rho = exp(log p - log p_old) of each token; no gradient flows into the old log-probs.

    log p - log p_old counts as at most ``LARGEST_LOG_RATIO``.

    Args:
        log_probs_BT: (B, T), of the policy being trained.
        old_log_probs_BT: (B, T), of the policy the ratio divides by.

    Returns:
        (B, T), float32 at least.

    Raises:
        UserError: a shape is another one.
    """
    return _log_ratio(log_probs_BT, old_log_probs_BT).clamp(max=LARGEST_LOG_RATIO).exp()


def sequence_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor, response_mask_BT: Tensor) -> Tensor:
    """Return the ratio of each response, the same for all its tokens (GSPO, arXiv:2507.18071, equation 7).

    s_i = (p(y_i) / p_old(y_i)) ^ (1 / |y_i|) = exp(mean over the response's tokens of log p - log p_old): the geometric
    mean of the tokens' ratios. So a clip acts on whole responses, and its range is much narrower than that of tokens.
    Every token's log-prob gets 1 / |y_i| of the gradient.

    Args:
        log_probs_BT: (B, T), of the policy being trained.
        old_log_probs_BT: (B, T), of the policy the ratio divides by.
        response_mask_BT: (B, T), 1 on response tokens; a response without any has the ratio 1.

    Returns:
        (B, T), float32 at least.

    Raises:
        UserError: a shape is another one.
    """
    require_same_shape("response_mask", response_mask_BT, "policy_log_probs", log_probs_BT)
    log_ratio_BT = zero_masked(_log_ratio(log_probs_BT, old_log_probs_BT), response_mask_BT)
    tokens_B1 = response_mask_BT.bool().sum(dim=1, keepdim=True).clamp(min=1)
    log_ratio_B1 = log_ratio_BT.sum(dim=1, keepdim=True) / tokens_B1
    return log_ratio_B1.clamp(max=LARGEST_LOG_RATIO).exp().expand_as(log_ratio_BT)


def _log_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor) -> Tensor:
    require_matrix("policy_log_probs", log_probs_BT)
    require_same_shape("old_log_probs", old_log_probs_BT, "policy_log_probs", log_probs_BT)
    return at_least_float32(log_probs_BT) - at_least_float32(old_log_probs_BT).detach()
