"""The microbatch step in the source's form: its loss and gradient, and what it does with an empty response."""

import math

import pytest
import torch

from harness.core.errors import UserError
from harness.grpo import compute_policy_gradient_loss, grpo_microbatch_train_step, masked_mean

MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


def log_probs():
    """Return fresh log-probs with gradient: 2 rollouts, 3 positions."""
    return torch.tensor([[-1.0, -3.0, -7.0], [-2.0, -7.0, -7.0]], requires_grad=True)


@pytest.mark.parametrize("loss_type", ["no_baseline", "reinforce_with_baseline", "grpo_clip"])
@pytest.mark.parametrize("mask_type", [torch.bool, torch.long, torch.float32])
def test_it_is_masked_mean_then_mean_then_division_whatever_is_masked(loss_type, mask_type):
    mask = MASK.to(mask_type)
    arguments = (torch.tensor([[3.0], [-1.0]]), torch.tensor([[0.5], [-2.0]]), log_probs().detach() - 0.5, 0.2)
    options = {"cliprange_high": 0.4, "dual_clip": 1.5}
    policy, expected = log_probs(), log_probs()
    poisoned = torch.where(mask.bool(), policy, math.nan)
    loss, metadata = grpo_microbatch_train_step(poisoned, mask, 3, loss_type, *arguments, **options)
    per_token, _ = compute_policy_gradient_loss(expected, loss_type, *arguments, **options)
    assert not loss.requires_grad
    assert (metadata == {}) == (loss_type != "grpo_clip")
    expected_loss = masked_mean(per_token, mask, dim=1).mean() / 3
    expected_loss.backward()
    assert loss.item() == pytest.approx(expected_loss.item())
    assert torch.allclose(policy.grad, expected.grad, rtol=0, atol=1e-7)


def test_clip_metadata():
    policy = torch.tensor([[1.5, 1.0, 9.0], [0.5, 9.0, 9.0]]).log().requires_grad_()
    _, metadata = grpo_microbatch_train_step(
        policy, MASK, 1, "grpo_clip", None, torch.tensor([[1.0], [1.0]]), torch.zeros(2, 3), 0.2
    )
    assert metadata["clip_fraction"].item() == pytest.approx(1 / 3)  # only 1.5; 0.5 with A > 0 is not bound
    assert metadata["ratio_mean"].item() == pytest.approx(1.0)  # (1.5 + 1 + 0.5) / 3
    assert metadata["clipped"].shape == (2, 3)
    assert [name for name, tensor in metadata.items() if tensor.requires_grad] == []


def test_an_empty_response_adds_zero_and_still_counts():
    policy = log_probs()
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    loss, _ = grpo_microbatch_train_step(policy, mask, 1, "no_baseline", raw_rewards=torch.tensor([[2.0], [1.0]]))
    assert loss.item() == pytest.approx(2.0)  # (4 + 0) / 2
    assert policy.grad.tolist() == [[-0.5, -0.5, 0.0], [0.0, 0.0, 0.0]]  # -2 / (2 tokens * 2 rollouts)
    per_token, _ = compute_policy_gradient_loss(policy, "no_baseline", torch.tensor([[2.0], [1.0]]))
    assert math.isnan(masked_mean(per_token, mask, dim=1).mean().item())  # what the plain formula would give


def test_bad_input_is_refused():
    with pytest.raises(UserError, match="gradient_accumulation_steps is 0, it must be at least 1"):
        grpo_microbatch_train_step(log_probs(), MASK, 0, "no_baseline", torch.ones(2, 1))
    with pytest.raises(UserError, match="response_mask has shape"):
        grpo_microbatch_train_step(log_probs(), MASK[:, :2], 1, "no_baseline", torch.ones(2, 1))
    with pytest.raises(UserError, match="needs raw_rewards"):
        grpo_microbatch_train_step(log_probs(), MASK, 1, "no_baseline")
