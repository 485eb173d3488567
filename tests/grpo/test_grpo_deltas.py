"""The five deltas against arithmetic, and the losses without a clip."""

import math

import pytest
import torch

from harness.core.errors import UserError
from harness.grpo import (
    compute_grpo_clip_loss,
    compute_naive_policy_gradient_loss,
    compute_policy_gradient_loss,
    compute_unclipped_loss,
)
from harness.grpo.advantages import deltas_per_group, group_deltas
from harness.grpo.aggregate import loss_denominator
from harness.grpo.loss import surrogate_loss
from harness.grpo.tokens import TokenBatch
from harness.settings.loss import Delta, KlSettings, LossSettings

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
def test_deltas_of_two_groups(delta: Delta, first: list[float], second: float) -> None:
    expected = [float(value) for value in first] + [second] * 5
    assert group_deltas(REWARDS, 5, delta, eps=0.0).tolist() == expected
    assert group_deltas(REWARDS.reshape(2, 5), 5, delta, eps=0.0).tolist() == expected
    assert deltas_per_group(REWARDS.reshape(2, 5).tolist(), delta, eps=0.0).tolist() == expected


def test_the_sources_eps_is_added_to_the_standard_deviation() -> None:
    # 2 / (2 + 0.5)
    assert group_deltas(REWARDS[:5], 5, "normalized_rewards", eps=0.5).tolist() == pytest.approx(
        [0.8, 0, -0.8, -0.8, 0.8]
    )


def test_groups_of_several_sizes_have_deltas_of_their_own() -> None:
    # (0, 2): mean 1, std sqrt(2); (1, 1, 4): mean 2, variance (1 + 1 + 4) / 2 = 3; (5, 5): equal; (0, 2) again
    rewards = [(0.0, 2.0), (1.0, 1.0, 4.0), (5.0, 5.0), (0.0, 2.0)]
    pair, three = 1 / math.sqrt(2), 1 / math.sqrt(3)
    normalised = [-pair, pair, -three, -three, 2 * three, 0.0, 0.0, -pair, pair]
    assert deltas_per_group(rewards, "normalized_rewards", eps=0.0).tolist() == pytest.approx(normalised)
    centred = [-1.0, 1.0, -1.0, -1.0, 2.0, 0.0, 0.0, -1.0, 1.0]
    assert deltas_per_group(rewards, "centered_rewards").tolist() == centred
    highest = [0.0, 2.0, 0.0, 0.0, 4.0, 5.0, 5.0, 0.0, 2.0]
    assert deltas_per_group(rewards, "max_rewards").tolist() == highest
    above_mean = [0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 1.0]
    assert deltas_per_group(rewards, "max_centered_rewards").tolist() == above_mean


def test_equally_large_groups_get_the_deltas_of_the_whole() -> None:
    rewards = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    alike = group_deltas(rewards, 4, "normalized_rewards")
    assert torch.equal(deltas_per_group(rewards.tolist(), "normalized_rewards"), alike)


def test_one_reward_is_enough_where_nothing_is_divided() -> None:
    assert [group_deltas(torch.tensor([3.0]), 1, delta).item() for delta in ("rewards", "max_rewards")] == [3.0, 3.0]
    assert deltas_per_group([(0.0, 1.0), (3.0,)], "centered_rewards").tolist() == [-0.5, 0.5, 0.0]


def test_missing_groups_and_unknown_deltas_are_refused() -> None:
    with pytest.raises(UserError, match="there is no group"):
        deltas_per_group([], "rewards")
    with pytest.raises(UserError, match=r"rewards have shape \(1, 0\)"):
        deltas_per_group([(0.0, 1.0), ()], "max_rewards")
    with pytest.raises(UserError, match="group_size is 1 with normalize_by_std on"):
        deltas_per_group([(0.0, 1.0), (1.0,)], "normalized_rewards")
    with pytest.raises(UserError, match="10 rewards cannot be split into groups of 4"):
        group_deltas(REWARDS, 4, "max_rewards")
    with pytest.raises(UserError, match="delta is 'max_reward'"):
        group_deltas(REWARDS, 5, "max_reward")  # type: ignore[arg-type]


# Losses. p / p_old is 2 and 1/2 on the two tokens of each row.
OLD = torch.tensor([[0.2, 0.6], [0.2, 0.6]]).log()
NEW = torch.tensor([[0.4, 0.3], [0.4, 0.3]]).log()
DELTAS = torch.tensor([[3.0], [-1.0]])


def test_the_three_losses_by_hand() -> None:
    def loss(kind):
        return compute_policy_gradient_loss(NEW, kind, advantages=DELTAS, old_log_probs=OLD, cliprange=0.01)[0].tolist()

    # -delta * log p, with ln 0.4 = -0.9162907 and ln 0.3 = -1.2039728
    assert loss("naive") == [pytest.approx([2.7488721, 3.6119184]), pytest.approx([-0.9162907, -1.2039728])]
    # -delta * ratio
    assert loss("unclipped") == [pytest.approx([-6.0, -1.5]), pytest.approx([2.0, 0.5])]
    # -min(ratio * delta, clip(ratio, 0.99, 1.01) * delta): 3 * min(2, 1.01) and 3 * min(0.5, 0.99); for the delta of -1
    # the lower of -2 and -1.01, and of -0.5 and -0.99
    assert loss("grpo_clip") == [pytest.approx([-3.03, -1.5]), pytest.approx([2.0, 0.99])]


def test_naive_is_reinforce_with_baseline_by_another_name() -> None:
    ours, metadata = compute_policy_gradient_loss(NEW, "naive", advantages=DELTAS)
    assert torch.equal(ours, compute_policy_gradient_loss(NEW, "reinforce_with_baseline", advantages=DELTAS)[0])
    assert torch.equal(ours, compute_policy_gradient_loss(NEW, "no_baseline", raw_rewards=DELTAS)[0])
    assert metadata == {}


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(UserError, match="loss_type 'naive' needs advantages"):
        compute_policy_gradient_loss(NEW, "naive", raw_rewards=DELTAS)
    with pytest.raises(UserError, match="loss_type 'unclipped' needs old_log_probs"):
        compute_policy_gradient_loss(NEW, "unclipped", advantages=DELTAS)


def gradient(loss_of, log_probs=NEW):
    log_probs = log_probs.clone().requires_grad_()
    return torch.autograd.grad(loss_of(log_probs).sum(), log_probs)[0]


def test_where_the_clip_acts_there_is_no_gradient() -> None:
    unclipped = gradient(lambda new: compute_unclipped_loss(DELTAS, new, OLD)[0])
    clipped = gradient(lambda new: compute_grpo_clip_loss(DELTAS, new, OLD, 0.01)[0])
    # d(-ratio * delta) / d(log p) = -ratio * delta
    assert unclipped.tolist() == [pytest.approx([-6.0, -1.5]), pytest.approx([2.0, 0.5])]
    # no gain beyond 1.01 for delta > 0, nor below 0.99 for delta < 0; a loss keeps its whole gradient
    assert clipped.tolist() == [pytest.approx([0.0, -1.5]), pytest.approx([2.0, 0.0])]


def test_at_the_old_policy_all_three_losses_have_one_gradient() -> None:
    naive = gradient(lambda new: compute_naive_policy_gradient_loss(DELTAS, new))
    unclipped = gradient(lambda new: compute_unclipped_loss(DELTAS, new, NEW)[0])
    clipped = gradient(lambda new: compute_grpo_clip_loss(DELTAS, new, NEW, 0.01)[0])
    assert torch.equal(unclipped, naive)
    assert torch.equal(clipped, naive)


def test_no_gradient_flows_into_the_old_policy_and_none_overflows() -> None:
    old = OLD.clone().requires_grad_()
    assert not compute_unclipped_loss(DELTAS, NEW, old)[0].requires_grad
    far = gradient(lambda new: compute_unclipped_loss(DELTAS, new, OLD - 200)[0])
    assert torch.equal(far, torch.zeros_like(far))  # the bound of 80 on the log ratio is flat


def test_the_kl_penalty_is_the_sources_over_the_length() -> None:
    """The source sums k3 over positions; ours is their mean: three times the coefficient gives the same loss."""
    log_p, log_q = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(0)).log()
    mask = torch.ones(4, 3, dtype=torch.bool)
    weights = loss_denominator(mask).token_weights(mask)
    source = 0.1 * (torch.exp(log_q - log_p) - (log_q - log_p) - 1).sum(dim=-1).mean()
    ours, tallies = surrogate_loss(
        TokenBatch(log_p, mask, advantages=torch.zeros(4, 1), reference_log_probs=log_q),
        weights,
        LossSettings(type="naive", kl=KlSettings(coefficient=0.3)),
    )
    assert ours.item() == pytest.approx(source.item(), rel=1e-5)
    assert 0.3 * float(tallies["kl/penalty"].value / 12) == pytest.approx(source.item(), rel=1e-5)


def test_the_mean_over_all_positions_is_the_sources_aggregation() -> None:
    """All responses have three tokens: the mean of the means is the mean of all, with the naive loss as its source."""
    log_p = torch.rand(4, 3, generator=torch.Generator().manual_seed(0)).log()
    deltas = torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
    mask = torch.ones(4, 3, dtype=torch.bool)
    loss, _ = surrogate_loss(
        TokenBatch(log_p, mask, advantages=deltas),
        loss_denominator(mask).token_weights(mask),
        LossSettings(type="naive"),
    )
    assert loss.item() == pytest.approx(-(log_p * deltas).mean().item(), rel=1e-6)


def test_the_ratio_of_the_unclipped_loss_is_logged() -> None:
    mask = torch.ones(2, 2, dtype=torch.bool)
    _, tallies = surrogate_loss(
        TokenBatch(NEW, mask, advantages=DELTAS, old_log_probs=OLD),
        loss_denominator(mask).token_weights(mask),
        LossSettings(type="unclipped"),
    )
    assert sorted(tallies) == ["ratio/max", "ratio/mean"]
    assert float(tallies["ratio/mean"].value / tallies["ratio/mean"].count) == pytest.approx(1.25)
    assert float(tallies["ratio/max"].value) == pytest.approx(2.0)
