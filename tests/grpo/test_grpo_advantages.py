"""Group-normalised advantages: hand-computed numbers, properties, refusals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.core.errors import UserError
from harness.grpo import compute_group_normalized_rewards, group_advantages

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
REWARDS = st.integers(-8, 8).map(lambda eighths: eighths / 8)


def test_two_groups_by_hand():
    # (1, 0, 0, 1): mean 1/2, squares 4 * 1/4, unbiased variance 1/3, so +-0.5 / sqrt(1/3) = +-0.8660254
    # (0, 1, 2, 5): mean 2, squares 4 + 1 + 0 + 9 = 14, unbiased variance 14/3
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 2.0, 5.0])
    first = [0.8660254, -0.8660254, -0.8660254, 0.8660254]
    second = [offset / math.sqrt(14 / 3) for offset in (-2, -1, 0, 3)]
    assert group_advantages(rewards, 4, eps=0.0).tolist() == pytest.approx(first + second)
    assert group_advantages(rewards.reshape(2, 4), 4, eps=0.0).tolist() == pytest.approx(first + second)
    centred = [0.5, -0.5, -0.5, 0.5, -2.0, -1.0, 0.0, 3.0]
    assert group_advantages(rewards, 4, normalize_by_std=False).tolist() == centred


def test_eps_is_added_to_the_standard_deviation():
    # (0, 2): mean 1, unbiased variance 2; 1 / (sqrt(2) + 0.5) = 0.5224077
    assert group_advantages(torch.tensor([0.0, 2.0]), 2, eps=0.5).tolist() == pytest.approx([-0.5224077, 0.5224077])


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("normalize_by_std", [True, False])
def test_a_group_of_equal_rewards_gives_exactly_zero(eps, normalize_by_std):
    rewards = torch.full((7,), 0.1)  # the float32 mean of seven 0.1 is not 0.1
    assert rewards.mean().item() != rewards[0].item()
    assert group_advantages(rewards, 7, eps, normalize_by_std).tolist() == [0.0] * 7


def test_integer_and_half_precision_rewards_are_normalised_in_float32():
    for rewards in (torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1], dtype=torch.bfloat16)):
        advantages = group_advantages(rewards, 3, normalize_by_std=False)
        assert advantages.dtype == torch.float32
        assert advantages.tolist() == pytest.approx([-1 / 3, -1 / 3, 2 / 3])


@PROPERTY
@given(groups=st.lists(st.lists(REWARDS, min_size=4, max_size=4), min_size=1, max_size=6), by_std=st.booleans())
def test_advantages_sum_to_zero_in_each_group_and_have_unit_variance(groups, by_std):
    advantages_PG = group_advantages(torch.tensor(groups).flatten(), 4, 1e-6, by_std).reshape(-1, 4)
    assert advantages_PG.sum(dim=1).abs().max().item() < 1e-5
    for rewards, advantages in zip(groups, advantages_PG, strict=True):
        if by_std:
            assert advantages.std().item() == pytest.approx(0.0 if len(set(rewards)) == 1 else 1.0, abs=1e-4)


@PROPERTY
@given(rewards=st.lists(REWARDS, min_size=5, max_size=5), order=st.permutations(range(5)), by_std=st.booleans())
def test_shuffling_a_group_shuffles_its_advantages(rewards, order, by_std):
    advantages = group_advantages(torch.tensor(rewards), 5, 1e-6, by_std)
    shuffled = group_advantages(torch.tensor(rewards)[list(order)], 5, 1e-6, by_std)
    assert shuffled.tolist() == pytest.approx(advantages[list(order)].tolist(), abs=1e-5)


@PROPERTY
@given(first=st.lists(REWARDS, min_size=3, max_size=3), second=st.lists(REWARDS, min_size=3, max_size=3))
def test_groups_do_not_see_each_other(first, second):
    together = group_advantages(torch.tensor(first + second), 3)
    apart = [group_advantages(torch.tensor(group), 3) for group in (first, second)]
    assert torch.equal(together, torch.cat(apart))


def reward_by_length(response, ground_truth):
    """Reward a response by its length, its format by a capital, its answer by the ground truth."""
    return {
        "reward": float(len(response)),
        "format_reward": float(response[:1].isupper()),
        "answer_reward": float(ground_truth in response),
    }


def test_compute_group_normalized_rewards_scores_in_order_and_returns_metadata():
    responses = ["A", "bcd", "ab", "Ab"]  # lengths 1, 3 | 2, 2
    truths = ["A", "A", "b", "b"]
    advantages, raw, metadata = compute_group_normalized_rewards(reward_by_length, responses, truths, 2, 0.0, True)
    assert raw.tolist() == [1.0, 3.0, 2.0, 2.0]
    assert advantages.tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0])  # (1, 3): std sqrt(2)
    assert (advantages.dtype, raw.dtype) == (torch.float32, torch.float32)
    assert metadata == {
        "reward_mean": 2.0,
        "reward_std": pytest.approx(math.sqrt(2 / 3)),  # squares 1 + 1 over 4 - 1
        "reward_min": 1.0,
        "reward_max": 3.0,
        "zero_variance_fraction": 0.5,
        "format_reward_mean": 0.5,  # A, Ab
        "answer_reward_mean": 0.75,  # all but bcd
    }


def test_reward_functions_without_parts_have_no_part_means():
    _, _, metadata = compute_group_normalized_rewards(
        lambda r, t: {"reward": np.float32(1)}, ["a"], ["a"], 1, 0.0, False
    )
    assert metadata == {
        "reward_mean": 1.0,
        "reward_std": 0.0,
        "reward_min": 1.0,
        "reward_max": 1.0,
        "zero_variance_fraction": 1.0,
    }


def test_one_rollout_per_prompt_has_no_standard_deviation():
    with pytest.raises(UserError, match=r"group_size is 1 with normalize_by_std on[\s\S]*fix: +set group_size to 2"):
        group_advantages(torch.tensor([1.0, 2.0]), 1)
    assert group_advantages(torch.tensor([1.0, 2.0]), 1, normalize_by_std=False).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("rewards", "group_size", "eps", "message"),
    [
        (torch.ones(5), 2, 0.0, "5 rewards cannot be split into groups of 2"),
        (torch.ones(4), 0, 0.0, "4 rewards cannot be split into groups of 0"),
        (torch.ones(2, 3), 2, 0.0, r"rewards have shape \(2, 3\), expected \(P, 2\)"),
        (torch.ones(0), 2, 0.0, r"rewards have shape \(0,\)"),
        (torch.ones(4), 2, -1.0, "eps is -1.0, it must be at least 0"),
        (torch.ones(4), 2, math.nan, "eps is nan"),
    ],
)
def test_bad_groups_are_refused(rewards, group_size, eps, message):
    with pytest.raises(UserError, match=message):
        group_advantages(rewards, group_size, eps)


@pytest.mark.parametrize("result", [{}, {"reward": "1.0"}, {"reward": math.nan}, {"reward": None}])
def test_a_reward_that_is_no_number_is_refused_with_its_rollout(result):
    answers = iter([{"reward": 1.0}, result])
    with pytest.raises(UserError, match=r"the reward of rollout 1 is .*, expected a finite number"):
        compute_group_normalized_rewards(lambda r, t: next(answers), ["a", "b"], ["c", "c"], 2, 1e-6, True)


def test_unequal_or_empty_lists_are_refused():
    with pytest.raises(UserError, match="2 rollout_responses and 1 repeated_ground_truths"):
        compute_group_normalized_rewards(reward_by_length, ["a", "b"], ["c"], 2, 1e-6, True)
    with pytest.raises(UserError, match="0 rollout_responses"):
        compute_group_normalized_rewards(reward_by_length, [], [], 2, 1e-6, True)
