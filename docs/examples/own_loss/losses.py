"""A loss and an advantage of one's own, which the harness has too: CISPO and RLOO."""

import torch
from torch import Tensor


def cispo(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, cliprange: float, cliprange_high: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -sg(clip(ratio)) * A * log p of each token (B, T), and how often the clip acted."""
    ratio = (log_probs - old_log_probs).clamp(max=80.0).exp().detach()
    weights = ratio.clamp(1 - cliprange, 1 + cliprange_high)
    return -weights * advantages * log_probs, {"clip_fraction": weights != ratio}


def leave_one_out(rewards: Tensor) -> Tensor:
    """Return each reward minus the mean of the others of its group (P, G)."""
    others = rewards.sum(dim=1, keepdim=True) - rewards
    return rewards - others / (rewards.shape[1] - 1)


def shorter_is_better(rewards: Tensor, lengths: Tensor, truncated: Tensor) -> Tensor:
    """Return centred rewards, with up to 0.1 less for the longest responses and nothing for those that were cut."""
    kept = torch.where(truncated, 0.0, rewards - 0.1 * lengths / lengths.max())
    return kept - kept.mean(dim=1, keepdim=True)
