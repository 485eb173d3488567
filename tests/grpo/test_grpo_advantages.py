"""Advantages of groups: numbers by hand, rewards of any size, refusals; against loops in test_grpo_scalar_loops.py."""

import math

import numpy as np
import pytest
import torch

from harness.core.errors import UserError
from harness.core.types import RolloutGroup
from harness.grpo import compute_group_normalized_rewards
from harness.grpo.advantages import DELTAS, deltas_per_group, group_deltas
from harness.loop.replay import SIGNAL_FLOOR, signal_weights

CENTRED = [delta for delta in DELTAS if delta not in ("rewards", "max_rewards")]
# group 1: mean 3, squares 4 + 0 + 4 + 4 + 4 = 16 over 4 (unbiased), std 2; its maximum 5 comes twice
# group 2: all equal
REWARDS = torch.tensor([5.0, 3.0, 1.0, 1.0, 5.0, 2.0, 2.0, 2.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("delta", "first", "second"),
    [
        ("rewards", [5, 3, 1, 1, 5], 2.0),
        ("centered_rewards", [2, 0, -2, -2, 2], 0.0),
        ("normalized_rewards", [1, 0, -1, -1, 1], 0.0),
        ("max_rewards", [5, 0, 0, 0, 5], 2.0),
        ("max_centered_rewards", [2, 0, 0, 0, 2], 0.0),
    ],
)
def test_deltas_of_two_groups(delta, first, second):
    expected = [float(value) for value in first] + [second] * 5
    assert group_deltas(REWARDS, 5, delta, eps=0.0).tolist() == expected
    assert group_deltas(REWARDS.reshape(2, 5), 5, delta, eps=0.0).tolist() == expected
    assert deltas_per_group(REWARDS.reshape(2, 5).tolist(), delta, eps=0.0).tolist() == expected


def test_eps_is_added_to_the_standard_deviation():
    found = group_deltas(REWARDS[:5], 5, "normalized_rewards", eps=0.5).tolist()
    assert found == pytest.approx([0.8, 0, -0.8, -0.8, 0.8])  # 2 / (2 + 0.5)


def test_groups_of_equal_rewards_have_exactly_zero_without_eps():
    """Also where the mean is not what was averaged, as that of three 0.1, and where the whole batch has no spread."""
    for groups in ([[0.1] * 3, [0.7] * 3], [[0.1] * 7, [0.7] * 7], [[0.3, 0.1 + 0.2]] * 2):
        found = {delta: deltas_per_group(groups, delta, eps=0.0).tolist() for delta in CENTRED}
        assert found == dict.fromkeys(CENTRED, [0.0] * len(groups[0]) * 2)


def test_integer_and_half_precision_rewards_are_normalised_in_float32():
    for rewards in (torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1], dtype=torch.bfloat16)):
        advantages = group_deltas(rewards, 3, "centered_rewards")
        assert advantages.dtype == torch.float32
        assert advantages.tolist() == pytest.approx([-1 / 3, -1 / 3, 2 / 3])


def test_one_reward_is_enough_where_nothing_is_divided():
    assert [group_deltas(torch.tensor([3.0]), 1, delta).item() for delta in ("rewards", "max_rewards")] == [3.0, 3.0]
    assert deltas_per_group([(0.0, 1.0), (3.0,)], "centered_rewards").tolist() == [-0.5, 0.5, 0.0]


LAST_BIT = 100.1 + 7.62939453125e-06


@pytest.mark.parametrize(
    ("rewards", "normalized"),
    [
        # (r - mean) / (std + 1e-6) by hand: +-1.5, +-0.5 / 1.290994
        ([2e7, 2e7 + 1, 2e7 + 2, 2e7 + 3], [-1.161895, -0.387298, 0.387298, 1.161895]),
        ([-1e12, -1e12 + 1, -1e12 + 2, -1e12 + 3], [-1.161895, -0.387298, 0.387298, 1.161895]),
        ([100.1, LAST_BIT, 100.1, 100.1], [-0.396151, 1.188453, -0.396151, -0.396151]),  # std 3.8147e-6
        ([0.1 + 0.2 - 0.3, 0.0, 0.0, 0.0], [0.0] * 4),
        ([100.1, 100.1 * (1 + 2.3e-16), 100.1, 100.1], [0.0] * 4),
    ],
)
def test_rewards_of_any_size_are_centred_in_float64(rewards, normalized):
    advantages = deltas_per_group([rewards], "normalized_rewards")
    assert advantages.dtype == torch.float32
    assert advantages.tolist() == pytest.approx(normalized, abs=2e-6)
    as_tensor = group_deltas(torch.tensor(rewards, dtype=torch.float64), 4, "normalized_rewards")
    assert as_tensor.tolist() == pytest.approx(normalized, abs=2e-6)
    assert as_tensor.dtype == torch.float64
    for delta in CENTRED:
        assert (deltas_per_group([rewards], delta) != 0).any() == any(normalized), delta


def test_large_rewards_keep_their_differences_in_every_delta():
    small = [[0.0, 1.0, 2.0, 3.0], [5.0, 5.0, 9.0, 9.0]]
    large = [[2e7 + reward for reward in group] for group in small]
    for delta in CENTRED:
        assert torch.equal(deltas_per_group(large, delta), deltas_per_group(small, delta)), delta


def test_who_shares_the_maximum_by_rounding_gets_it():
    assert deltas_per_group([[0.1 + 0.2, 0.3, 0.0]], "max_rewards").tolist() == pytest.approx([0.3, 0.3, 0.0])


def test_every_delta_is_zero_or_not_as_the_one_rule_says():
    """Of groups whose rewards differ by 1 to 64 units in the last place, of sizes from 1e-3 to 1e9."""
    for size in (1e-3, 0.3, 1.0, 100.1, 1e9):
        for units in (1, 2, 4, 8, 15, 17, 32, 64):
            low, high = size, size + units * math.ulp(max(1.0, size))
            group = RolloutGroup(0, 0, 0, 0, lengths=(1, 1), rewards=(low, high))
            for delta in ("normalized_rewards", "centered_rewards", "leave_one_out_rewards", "max_centered_rewards"):
                assert deltas_per_group([[low, high]], delta).any() == group.has_spread, (size, units, delta)
            assert (signal_weights([[low, high]])[0] > SIGNAL_FLOOR) == group.has_spread


def reward_by_length(response, ground_truth):
    """Reward a response by its length, its format by a capital, its answer by the ground truth."""
    return {
        "reward": np.float32(len(response)),
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
    centred, _, metadata = compute_group_normalized_rewards(lambda r, t: {"reward": 2}, ["a"], ["a"], 1, 0.0, False)
    assert centred.tolist() == [0.0]
    assert metadata == {
        **dict.fromkeys(("reward_mean", "reward_min", "reward_max"), 2.0),
        **{"reward_std": 0.0, "zero_variance_fraction": 1.0},
    }


def test_the_metadata_counts_signals_by_the_same_rule():
    answers = iter([{"reward": value} for value in (0.1 + 0.2, 0.3, 2e7, 2e7 + 1)])
    advantages, raw, metadata = compute_group_normalized_rewards(
        lambda response, truth: next(answers), ["a"] * 4, ["b"] * 4, 2, 1e-6, True
    )
    assert metadata["zero_variance_fraction"] == 0.5
    assert advantages.tolist() == pytest.approx([0.0, 0.0, -0.7071058, 0.7071058])
    assert (raw.dtype, metadata["reward_max"]) == (torch.float32, 2e7 + 1)


WHOLE = {"reward": 1.0, "format_reward": 1.0}


@pytest.mark.parametrize(
    ("part", "results"),
    [("reward", [WHOLE, {**WHOLE, "reward": value}]) for value in ("1.0", math.nan, None)]
    + [("format_reward", [WHOLE, {**WHOLE, "format_reward": value}]) for value in ("high", math.inf, None)]
    + [("reward", [WHOLE, {}])],
)
def test_a_part_that_is_no_finite_number_is_named_with_its_rollout(part, results):
    answers = iter(results)
    with pytest.raises(UserError, match=f"the {part} of rollout 1 is") as refused:
        compute_group_normalized_rewards(lambda r, t: next(answers), ["a", "b"], ["c", "c"], 2, 1e-6, True)
    assert (refused.value.where, part in refused.value.fix) == ("reward_fn", True)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: group_deltas(torch.ones(5), 2, "rewards"), "5 rewards .* groups of 2"),
        (lambda: group_deltas(torch.ones(4), 0, "rewards"), "4 rewards .* groups of 0"),
        (lambda: group_deltas(torch.ones(2, 3), 2, "rewards"), r"shape \(2, 3\), expected \(P, 2\)"),
        (lambda: group_deltas(torch.ones(0), 2, "rewards"), r"shape \(0,\)"),
        (lambda: group_deltas(torch.ones(4), 2, "rewards", -1.0), "eps is -1.0, it must be at least 0"),
        (lambda: group_deltas(torch.ones(4), 2, "rewards", math.nan), "eps is nan"),
        (lambda: group_deltas(torch.ones(4), 2, "max_reward"), "delta is 'max_reward'"),
        (lambda: group_deltas(torch.ones(2), 1, "normalized_rewards"), r"group_size is 1 [\s\S]*group_size to 2"),
        (lambda: deltas_per_group([(0.0, 1.0), (1.0,)], "leave_one_out_rewards"), "group_size is 1 "),
        (lambda: deltas_per_group([(1.0,)], "batch_normalized_rewards"), "the batch has 1 rewards"),
        (lambda: deltas_per_group([], "rewards"), "no group"),
        (lambda: deltas_per_group([(0.0, 1.0), ()], "max_rewards"), r"shape \(1, 0\)"),
        (
            lambda: compute_group_normalized_rewards(reward_by_length, ["a", "b"], ["c"], 2, 1e-6, True),
            "2 rollout_responses and 1 repeated_ground_truths",
        ),
        (
            lambda: compute_group_normalized_rewards(reward_by_length, [], [], 2, 1e-6, True),
            "0 rollout_responses",
        ),
    ],
)
def test_bad_groups_are_refused(ask, message):
    with pytest.raises(UserError, match=message):
        ask()
