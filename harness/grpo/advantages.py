"""Group advantages, and deltas: what multiplies a rollout's log-probabilities, made from the rewards of its group.

Rewards of P groups are (P, G), or (B,) with the rollouts of one prompt next to each other. Means, differences and
deviations are taken in float64, so that large or close rewards keep their differences; a deviation has Bessel's
correction. A group whose rewards are all equal, but for the rounding of their sums (``core.rewards.rewards_differ``),
is centred to exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.core.rewards import reward_number, reward_rounding, rewards_differ
from harness.grpo.masking import at_least_float32, shape_of, unknown_choice

RewardFn = Callable[[str, str], Mapping[str, float]]
"""``reward_fn(response, ground_truth)`` gives ``reward`` and, where it has them, ``format_reward`` and
``answer_reward``."""


def compute_group_normalized_rewards(
    reward_fn: RewardFn,
    rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[str],
    group_size: int,
    advantage_eps: float,
    normalize_by_std: bool,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Score the responses and normalise the rewards within each group.

    A_i = (r_i - mean(group)) / (std(group) + advantage_eps) (GRPO, arXiv:2402.03300, section 4.1); without
    ``normalize_by_std`` A_i = r_i - mean(group) (Dr. GRPO, arXiv:2503.20783).

    Args:
        reward_fn: called as ``reward_fn(response, ground_truth)``, once for each rollout, in order.
        rollout_responses: B responses, those of one prompt next to each other.
        repeated_ground_truths: B ground truths, each one repeated for its whole group.
        group_size: G, rollouts per prompt.
        advantage_eps: at least 0.
        normalize_by_std: whether to divide by the group's standard deviation.

    Returns:
        The advantages (B,), the raw rewards (B,), both float32, and the figures to log: ``reward_mean``, ``reward_std``
        (over the whole batch; 0 for a single rollout), ``reward_min``, ``reward_max``, ``zero_variance_fraction``
        (share of groups without a learning signal), and ``format_reward_mean``, ``answer_reward_mean`` where every
        result has the part.

    Raises:
        UserError: the lists differ in length or are empty, G does not divide B, G is 1 with ``normalize_by_std``, or
            a reward is missing or not a finite number.
    """
    if not rollout_responses or len(rollout_responses) != len(repeated_ground_truths):
        raise UserError(
            f"{len(rollout_responses)} rollout_responses and {len(repeated_ground_truths)} repeated_ground_truths; "
            "they must be equally many, and at least one",
            fix="repeat each prompt's ground truth group_size times",
        )
    results = [reward_fn(*pair) for pair in zip(rollout_responses, repeated_ground_truths, strict=True)]
    rewards_B = torch.tensor(_numbers(results, "reward"), dtype=torch.float64)
    delta = "normalized_rewards" if normalize_by_std else "centered_rewards"
    advantages_B = _deltas(rewards_B, group_size, delta, advantage_eps, torch.float32)
    figures = {
        "reward_mean": rewards_B.mean().item(),
        "reward_std": rewards_B.std().item() if len(results) > 1 else 0.0,
        "reward_min": rewards_B.min().item(),
        "reward_max": rewards_B.max().item(),
        "zero_variance_fraction": 1.0 - _differ(rewards_B.reshape(-1, group_size)).double().mean().item(),
    }
    for part in ("format_reward", "answer_reward"):
        if all(part in result for result in results):
            figures[f"{part}_mean"] = math.fsum(_numbers(results, part)) / len(results)
    return advantages_B, rewards_B.float(), figures


def _numbers(results: Sequence[Mapping[str, float]], part: str) -> list[float]:
    numbers = []
    for index, result in enumerate(results):
        try:
            numbers.append(reward_number(result.get(part)))
        except ValueError:
            raise UserError(
                f"the {part} of rollout {index} is {result.get(part)!r}, expected a finite number",
                where="reward_fn",
                fix=f'return a dict with a number under the key "{part}"',
            ) from None
    return numbers


def group_deltas(rewards: Tensor, group_size: int, delta: str, eps: float = 1e-6) -> Tensor:
    """Return the delta of each rollout.

    - ``rewards``: r_i.
    - ``centered_rewards``: r_i - mean(group) (Dr. GRPO, arXiv:2503.20783).
    - ``normalized_rewards``: (r_i - mean(group)) / (std(group) + eps) (GRPO, arXiv:2402.03300).
    - ``max_rewards``: r_i where it is its group's maximum, else 0. Several rollouts may share the maximum, also those
      whose rewards are equal to it but for rounding.
    - ``max_centered_rewards``: r_i - mean(group) where r_i is its group's maximum, else 0.
    - ``leave_one_out_rewards``: r_i - mean(the others of the group) = G / (G - 1) * (r_i - mean(group)) (RLOO, Ahmadian
      et al. 2024, arXiv:2402.14740).
    - ``batch_normalized_rewards``: (r_i - mean(group)) / (std(rewards of the whole batch) + eps), as TRL's
      ``scale_rewards="batch"`` (PPO Lite, arXiv:2508.08221).
    - ``batch_whitened_rewards``: a_i / (std(all a of the batch) + eps) with a_i = r_i - mean(group), whose mean over
      the batch is 0 (REINFORCE++ with a baseline, arXiv:2501.03262; here each rollout counts once, not its tokens).

    Args:
        rewards: (B,) or (P, G).
        group_size: G, rollouts per prompt.
        delta: which of them.
        eps: at least 0, added to the standard deviations.

    Returns:
        (B,), float32 or, for float64 rewards, float64.

    Raises:
        UserError: G does not divide B, the delta is unknown, or G is 1 with a delta that needs two rewards.
    """
    if delta not in DELTAS:
        raise unknown_choice("delta", delta, DELTAS)
    return _deltas(rewards, group_size, delta, eps, at_least_float32(rewards).dtype)


def deltas_per_group(rewards: Sequence[Sequence[float]], delta: str, eps: float = 1e-6) -> Tensor:
    """Return ``group_deltas`` of groups that need not be equally large, each over its own rewards.

    Args:
        rewards: P sequences, the rewards of each group.
        delta: see ``group_deltas``; what is divided by the batch is divided by that of all groups.
        eps: see ``group_deltas``.

    Returns:
        (B,) float32, group after group.

    Raises:
        UserError: there is no group, a group is empty, or one holds a single reward with a delta that needs two.
    """
    if not rewards:
        raise UserError("there is no group to compute advantages of, at least one is needed", where="rewards")
    if delta not in BATCH_DELTAS:
        return _per_group(rewards, delta, eps, torch.float32)
    centred_B = _per_group(rewards, "centered_rewards", eps, torch.float64)
    rewards_B = torch.tensor([reward for of_group in rewards for reward in of_group], dtype=torch.float64)
    return _divided_by_the_batch(centred_B, rewards_B, delta, eps, torch.float32)


def _per_group(rewards: Sequence[Sequence[float]], delta: str, eps: float, dtype: torch.dtype) -> Tensor:
    alike = ((size, torch.tensor(list(groups), dtype=torch.float64)) for size, groups in groupby(rewards, key=len))
    return torch.cat([_deltas(rewards_PG, size, delta, eps, dtype) for size, rewards_PG in alike])


def _deltas(rewards: Tensor, group_size: int, delta: str, eps: float, dtype: torch.dtype) -> Tensor:
    """Return ``group_deltas`` in ``dtype``: centred in float64, divided by deviations in ``dtype``."""
    if rewards.dim() == 2 and rewards.shape[1] != group_size:
        raise UserError(f"rewards have shape {shape_of(rewards)}, expected (P, {group_size})", where="group_size")
    if rewards.dim() not in (1, 2) or rewards.numel() == 0:
        raise UserError(f"rewards have shape {shape_of(rewards)}, expected (B,) or (P, {group_size})")
    if group_size < 1 or rewards.numel() % group_size:
        raise UserError(
            f"{rewards.numel()} rewards cannot be split into groups of {group_size}",
            where="group_size",
            fix="make the rollout batch a multiple of group_size",
        )
    if group_size == 1 and delta in ("normalized_rewards", "leave_one_out_rewards"):
        raise UserError(
            "group_size is 1 with normalize_by_std on; a standard deviation needs at least 2 rewards",
            where="group_size",
            fix="set group_size to 2 or more, or normalize_by_std to false",
        )
    if not eps >= 0:
        raise UserError(f"the advantage's eps is {eps}, it must be at least 0", where="eps", fix="set it to 1e-6")
    rewards_PG = rewards.double().reshape(-1, group_size)
    if delta in BATCH_DELTAS:
        return _divided_by_the_batch(_centred(rewards_PG).reshape(-1), rewards_PG.reshape(-1), delta, eps, dtype)
    return WITHIN_GROUP[delta](rewards_PG, eps, dtype).to(dtype).reshape(-1)


def _divided_by_the_batch(centred_B: Tensor, rewards_B: Tensor, delta: str, eps: float, dtype: torch.dtype) -> Tensor:
    """Divide float64 advantages by the standard deviation over the batch; return them in ``dtype``."""
    spread_B = rewards_B if delta == "batch_normalized_rewards" else centred_B
    if spread_B.numel() < 2:
        raise UserError(
            f"the batch has {spread_B.numel()} rewards and the advantage is {delta}; a standard deviation needs 2",
            where="delta",
            fix="use centered_rewards, or a larger rollout batch",
        )
    return _divided(centred_B, spread_B.std(), eps, dtype)


def _centred(rewards_PG: Tensor) -> Tensor:
    """Return r_i - mean(group), exactly 0 in a group whose rewards do not differ."""
    centred_PG = rewards_PG - rewards_PG.mean(dim=1, keepdim=True)
    return torch.where(_differ(rewards_PG)[:, None], centred_PG, 0.0)


def _differ(rewards_PG: Tensor) -> Tensor:
    """Whether the rewards of each group differ, (P,)."""
    ends = zip(rewards_PG.amin(dim=1).tolist(), rewards_PG.amax(dim=1).tolist(), strict=True)
    return torch.tensor([rewards_differ(low, high) for low, high in ends], device=rewards_PG.device)


def _divided(centred: Tensor, deviation: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Divide by deviation + eps in ``dtype``; 0 stays 0, also where that is 0."""
    return torch.where(centred == 0, 0.0, centred.to(dtype) / (deviation.to(dtype) + eps))


def _highest(rewards_PG: Tensor) -> Tensor:
    """Whether each reward is its group's highest, or equal to it but for rounding, (P, G)."""
    highest_P1 = rewards_PG.amax(dim=1, keepdim=True)
    rounding_P = [reward_rounding(highest, highest) for highest in highest_P1.reshape(-1).tolist()]
    return rewards_PG >= highest_P1 - highest_P1.new_tensor(rounding_P)[:, None]


WITHIN_GROUP: dict[str, Callable[[Tensor, float, torch.dtype], Tensor]] = {
    "rewards": lambda rewards_PG, eps, dtype: rewards_PG,
    "centered_rewards": lambda rewards_PG, eps, dtype: _centred(rewards_PG),
    "normalized_rewards": lambda rewards_PG, eps, dtype: _divided(
        _centred(rewards_PG), rewards_PG.std(dim=1, keepdim=True), eps, dtype
    ),
    "max_rewards": lambda rewards_PG, eps, dtype: torch.where(_highest(rewards_PG), rewards_PG, 0.0),
    "max_centered_rewards": lambda rewards_PG, eps, dtype: torch.where(_highest(rewards_PG), _centred(rewards_PG), 0.0),
    "leave_one_out_rewards": lambda rewards_PG, eps, dtype: (
        _centred(rewards_PG) * (rewards_PG.shape[1] / (rewards_PG.shape[1] - 1))
    ),
}
"""Deltas of float64 rewards (P, G) that each group has by itself."""
BATCH_DELTAS = ("batch_normalized_rewards", "batch_whitened_rewards")
"""Deltas divided by a standard deviation of the whole batch."""
DELTAS = (*WITHIN_GROUP, *BATCH_DELTAS)
