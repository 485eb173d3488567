"""Group-normalised advantages: hand-computed numbers, properties, refusals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.core.errors import UserError
from harness.core.types import RolloutGroup
from harness.grpo import compute_group_normalized_rewards
from harness.grpo.advantages import DELTAS, deltas_per_group, group_deltas
from harness.loop.replay import SIGNAL_FLOOR, signal_weights

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
REWARDS = st.integers(-8, 8).map(lambda eighths: eighths / 8)


def group_advantages(rewards, group_size, eps=1e-6, normalize_by_std=True):
    return group_deltas(rewards, group_size, "normalized_rewards" if normalize_by_std else "centered_rewards", eps)


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


@pytest.mark.parametrize("part", [None, math.nan, "high"])
def test_a_part_that_is_no_finite_number_is_named_with_its_rollout(part):
    def reward_fn(response, ground_truth):
        return {"reward": 1.0, "format_reward": part if response == "b" else 1.0, "answer_reward": 1.0}

    with pytest.raises(UserError, match="the format_reward of rollout 1 is"):
        compute_group_normalized_rewards(reward_fn, ["a", "b"], ["", ""], 2, 1e-6, True)


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


LARGE = [2e7 + number for number in range(4)]
LAST_BIT = 100.1 + 7.62939453125e-06


@pytest.mark.parametrize(
    ("rewards", "normalized"),
    [
        (
            LARGE,
            [-1.161895, -0.387298, 0.387298, 1.161895],
        ),  # (r - mean) / (std + 1e-6) by hand: +-1.5, +-0.5 / 1.290994
        ([1e9 + number for number in range(4)], [-1.161895, -0.387298, 0.387298, 1.161895]),
        ([-1e12, -1e12 + 1, -1e12 + 2, -1e12 + 3], [-1.161895, -0.387298, 0.387298, 1.161895]),
        ([5000.3, 5000.3005, 5000.3, 5000.3], [-0.498008, 1.494024, -0.498008, -0.498008]),  # std 0.00025
        ([100.1, LAST_BIT, 100.1, 100.1], [-0.396151, 1.188453, -0.396151, -0.396151]),  # std 3.8147e-6
        ([0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2], [0.0] * 4),
        ([0.1 + 0.2 - 0.3, 0.0, 0.0, 0.0], [0.0] * 4),
        ([100.1, 100.1 * (1 + 2.3e-16), 100.1, 100.1], [0.0] * 4),
    ],
)
def test_rewards_of_any_size_are_centred_in_float64(rewards, normalized):
    advantages = deltas_per_group([rewards], "normalized_rewards")
    assert advantages.dtype == torch.float32
    assert advantages.tolist() == pytest.approx(normalized, abs=2e-6)
    assert abs(sum(advantages.tolist())) <= 4 * 2**-23
    as_tensor = group_advantages(torch.tensor(rewards, dtype=torch.float64), 4)
    assert as_tensor.tolist() == pytest.approx(normalized, abs=2e-6)
    for delta in ("centered_rewards", "leave_one_out_rewards", "batch_normalized_rewards", "batch_whitened_rewards"):
        assert (deltas_per_group([rewards], delta) != 0).any() == any(normalized), delta


def test_large_rewards_keep_their_differences_in_every_delta():
    small, large = [[0.0, 1.0, 2.0, 3.0], [5.0, 5.0, 9.0, 9.0]], [LARGE, [2e7 + 5, 2e7 + 5, 2e7 + 9, 2e7 + 9]]
    for delta in DELTAS:
        if delta not in ("rewards", "max_rewards"):
            assert torch.equal(deltas_per_group(large, delta), deltas_per_group(small, delta)), delta


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_rewards_of_0_and_1_in_groups_of_a_power_of_two_keep_the_bits_of_float32(size):
    """So runs with these repeat those of before: mean and difference are exact, and std rounds as it did."""
    groups = torch.tensor([[1.0] * ones + [0.0] * (size - ones) for ones in range(size + 1)])
    centred = groups - groups.mean(dim=1, keepdim=True)
    before = torch.where(groups.std(dim=1, keepdim=True) == 0, 0.0, centred / (groups.std(dim=1, keepdim=True) + 1e-6))
    assert torch.equal(deltas_per_group(groups.tolist(), "normalized_rewards"), before.flatten())
    assert torch.equal(deltas_per_group(groups.tolist(), "centered_rewards"), centred.flatten())


def test_who_shares_the_maximum_by_rounding_gets_it():
    assert deltas_per_group([[0.1 + 0.2, 0.3, 0.0]], "max_rewards").tolist() == pytest.approx([0.3, 0.3, 0.0])


def test_a_batch_without_signal_has_no_nan_without_eps():
    for delta in ("batch_normalized_rewards", "batch_whitened_rewards"):
        assert deltas_per_group([[0.3, 0.3], [0.7, 0.7]], delta, eps=0.0).tolist() == [0.0] * 4


def test_every_delta_is_zero_or_not_as_the_one_rule_says():
    """Of groups whose rewards differ by 1 to 64 units in the last place, of sizes from 1e-3 to 1e9."""
    for size in (1e-3, 0.3, 1.0, 100.1, 1e9):
        for units in (1, 2, 4, 8, 15, 17, 32, 64):
            low = size
            high = size + units * math.ulp(max(1.0, size))
            group = RolloutGroup(0, 0, 0, 0, lengths=(1, 1), rewards=(low, high))
            for delta in ("normalized_rewards", "centered_rewards", "leave_one_out_rewards", "max_centered_rewards"):
                assert deltas_per_group([[low, high]], delta).any() == group.has_spread, (size, units, delta)
            assert (signal_weights([[low, high]])[0] > SIGNAL_FLOOR) == group.has_spread


def test_the_metadata_counts_signals_by_the_same_rule():
    answers = iter([{"reward": value} for value in (0.1 + 0.2, 0.3, 2e7, 2e7 + 1)])
    advantages, raw, metadata = compute_group_normalized_rewards(
        lambda response, truth: next(answers), ["a"] * 4, ["b"] * 4, 2, 1e-6, True
    )
    assert metadata["zero_variance_fraction"] == 0.5
    assert advantages.tolist() == pytest.approx([0.0, 0.0, -0.7071058, 0.7071058])
    assert (raw.dtype, metadata["reward_max"]) == (torch.float32, 2e7 + 1)
