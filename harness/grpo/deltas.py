"""Deltas: what multiplies a rollout's log-probabilities, made from the rewards of its group in one of five ways."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal, get_args

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.grpo.advantages import check_groups, group_advantages
from harness.grpo.checks import at_least_float32
from harness.grpo.policy_gradient import unknown_choice

Delta = Literal["rewards", "centered_rewards", "normalized_rewards", "max_rewards", "max_centered_rewards"]


def group_deltas(rewards: Tensor, group_size: int, delta: Delta, eps: float = 1e-6) -> Tensor:
    """Return the delta of each rollout.

    - ``rewards``: r_i.
    - ``centered_rewards``: r_i - mean(group) (Dr. GRPO, arXiv:2503.20783).
    - ``normalized_rewards``: (r_i - mean(group)) / (std(group) + eps), std with Bessel's correction (GRPO,
      arXiv:2402.03300).
    - ``max_rewards``: r_i where it is its group's maximum, else 0. Several rollouts may share the maximum.
    - ``max_centered_rewards``: r_i - mean(group) where r_i is its group's maximum, else 0.

    In a group whose rewards are all equal, ``rewards`` and ``max_rewards`` are these rewards, the others exactly 0.

    Args:
        rewards: (B,), the rollouts of one prompt next to each other, or (P, G).
        group_size: G, rollouts per prompt.
        delta: which of the five.
        eps: at least 0, added to the standard deviation; ``normalized_rewards`` only.

    Returns:
        (B,), float32 or, for float64 rewards, float64.

    Raises:
        UserError: G does not divide B, the delta is unknown, or G is 1 with ``normalized_rewards``.
    """
    if delta not in get_args(Delta):
        raise unknown_choice("delta", delta, get_args(Delta))
    if delta in ("centered_rewards", "normalized_rewards"):
        return group_advantages(rewards, group_size, eps, delta == "normalized_rewards")
    check_groups(rewards, group_size, eps, normalize_by_std=False)
    kept_B = at_least_float32(rewards).reshape(-1)
    if delta == "rewards":
        return kept_B.clone()
    if delta == "max_centered_rewards":
        kept_B = group_advantages(rewards, group_size, eps, normalize_by_std=False)
    rewards_PG = rewards.reshape(-1, group_size)
    is_highest_PG = rewards_PG == rewards_PG.amax(dim=1, keepdim=True)
    return torch.where(is_highest_PG.reshape(-1), kept_B, 0.0)


def deltas_per_group(rewards: Sequence[Sequence[float]], delta: Delta, eps: float = 1e-6) -> Tensor:
    """Return ``group_deltas`` of groups that need not be equally large, each over its own rewards.

    Args:
        rewards: P sequences, the rewards of each group.
        delta: see ``group_deltas``.
        eps: see ``group_deltas``.

    Returns:
        (B,) float32, group after group.

    Raises:
        UserError: there is no group, a group is empty, or one holds a single reward with ``normalized_rewards``.
    """
    if not rewards:
        raise UserError("there is no group to compute advantages of, at least one is needed", where="rewards")
    return torch.cat(
        [
            group_deltas(torch.tensor(list(equally_large), dtype=torch.float32), size, delta, eps)
            for size, equally_large in groupby(rewards, key=len)
        ]
    )
