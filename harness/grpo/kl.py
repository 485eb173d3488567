"""Estimates of the Kullback-Leibler divergence between two policies from sampled tokens.

Everywhere: the tokens were sampled from p, d = log p - log q on them, and the estimate is of KL(p || q).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from harness.grpo.masking import at_least_float32, require_matrix, require_same_shape, unknown_choice, zero_masked
from harness.grpo.tally import Tally, mean_tally
from harness.grpo.tokens import LARGEST_LOG_RATIO

if TYPE_CHECKING:
    from harness.settings.loss import KlEstimator


def _k3(difference: Tensor) -> Tensor:
    bounded = (-difference).clamp(max=LARGEST_LOG_RATIO)
    beyond = (-difference - LARGEST_LOG_RATIO).clamp(min=0.0)
    return bounded.expm1() - bounded + beyond * math.expm1(LARGEST_LOG_RATIO)


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda difference: difference,
    "k2": lambda difference: difference.square() / 2,
    "k3": _k3,
}


def kl_estimate(log_p: Tensor, log_q: Tensor, estimator: KlEstimator) -> Tensor:
    """Return the estimate of KL(p || q) at each sampled token (Schulman, "Approximating KL divergence", 2020).

    k1 = d (unbiased, may be negative), k2 = d * d / 2 (biased, never negative), k3 = exp(-d) - 1 + d (unbiased, never
    negative). Where q gives a token more than exp(80) times the probability that p does, exp(-d) would overflow: from
    L = 80 (``LARGEST_LOG_RATIO``, that of the ratios) k3 goes on along its tangent, exp(L) - 1 - L + (exp(L) - 1)
    (-d - L). So one token cannot make a figure infinite. As a loss its gradient keeps its direction, and is too large
    for any norm, so that training stops (verl's ``low_var_kl`` bounds -d at 20 and k3 at 10, where the gradient is 0).

    In a loss, with p the policy being trained and the tokens sampled from it, the right value does not mean the right
    gradient. The expected gradient of k1 is 0: it adds noise only. That of k2 is the gradient of KL(p || q). That of
    k3 is the gradient of KL(q || p), the other direction, which has the same minimum. Once the policy has moved away
    from the one that sampled (k > 1, or lag), none of these holds exactly. Times the ratio p / p_old, with its gradient
    (``loss.kl.weighted_by_ratio``), k1 and k3 have the gradient of KL(p || q), wherever the tokens came from.

    Args:
        log_p: any shape, of the policy that sampled the tokens.
        log_q: the same shape, of the other policy.
        estimator: one of these.

    Raises:
        UserError: the shapes differ, or the estimator is unknown.
    """
    require_same_shape("log_p", log_p, "log_q", log_q)
    if estimator not in ESTIMATORS:
        raise unknown_choice("estimator", estimator, tuple(ESTIMATORS))
    return ESTIMATORS[estimator](at_least_float32(log_p) - at_least_float32(log_q))


def exact_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p || q) = sum over a of p(a) (log p(a) - log q(a)), the value that `kl_estimate` estimates.

    Args:
        log_p: (..., V), log-probabilities of every token; one of probability 0 adds nothing.
        log_q: the same shape.

    Returns:
        (...), float32 at least.

    Raises:
        UserError: the shapes differ.
    """
    require_same_shape("log_p", log_p, "log_q", log_q)
    log_p, log_q = at_least_float32(log_p), at_least_float32(log_q)
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(dim=-1)


def kl_tallies(log_p_BT: Tensor, log_q_BT: Tensor, response_mask_BT: Tensor, prefix: str) -> dict[str, Tally]:
    """Return the monitored figures of KL(p || q).

    ``<prefix>_k1_sum`` is the k1 sum over a rollout's response tokens, averaged over rollouts (one without tokens
    counts as 0); ``<prefix>_k1`` and ``<prefix>_k3`` are means over response tokens. Where a policy other than
    p sampled the rollouts, as with lag or replay, the figures are biased.

    Args:
        log_p_BT: (B, T), of the policy.
        log_q_BT: (B, T), of the reference or the previous policy.
        response_mask_BT: (B, T), 1 on response tokens.
        prefix: ``kl/reference`` or ``kl/previous``.

    Raises:
        UserError: a shape is another one.
    """
    require_matrix("log_p", log_p_BT)
    require_same_shape("response_mask", response_mask_BT, "log_p", log_p_BT)
    log_p_BT = zero_masked(log_p_BT.detach(), response_mask_BT)
    log_q_BT = zero_masked(log_q_BT.detach(), response_mask_BT)
    k1_BT = kl_estimate(log_p_BT, log_q_BT, "k1")
    k3_BT = kl_estimate(log_p_BT, log_q_BT, "k3")
    every_rollout = response_mask_BT.new_ones(response_mask_BT.shape[0])
    return {
        f"{prefix}_k1_sum": mean_tally(k1_BT.sum(dim=1), every_rollout),
        f"{prefix}_k1": mean_tally(k1_BT, response_mask_BT),
        f"{prefix}_k3": mean_tally(k3_BT, response_mask_BT),
    }
