"""Time of the maths: advantages, clipped loss forward and backward, log-probs from logits."""

import pytest
import torch

from harness.grpo.advantages import group_deltas
from harness.grpo.aggregate import loss_denominator
from harness.grpo.log_probs import entropy_of, log_softmax, select
from harness.grpo.loss import surrogate_loss
from harness.grpo.tokens import TokenBatch
from harness.settings.loss import LossSettings

SHAPES = [(64, 32), (256, 1024)]


def batch(rows, width):
    """Return log-probs, old log-probs, mask and advantages of a full batch."""
    random = torch.Generator().manual_seed(0)
    log_probs = -torch.rand(rows, width, generator=random)
    old = log_probs + 0.1 * torch.randn(rows, width, generator=random)
    return log_probs, old, torch.ones(rows, width, dtype=torch.bool), torch.randn(rows, 1, generator=random)


@pytest.mark.parametrize("rollouts", [64, 4096])
def test_group_advantages(benchmark, rollouts):
    rewards = torch.rand(rollouts, generator=torch.Generator().manual_seed(0))
    advantages = benchmark(group_deltas, rewards, 8, "normalized_rewards")
    assert advantages.reshape(-1, 8).sum(dim=1).abs().max().item() < 1e-4


@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_clip_loss_forward_and_backward(benchmark, rows, width):
    log_probs, old, mask, advantages = batch(rows, width)
    log_probs.requires_grad_()
    weights = loss_denominator(mask).token_weights(mask)

    def step():
        log_probs.grad = None
        loss, _ = surrogate_loss(
            TokenBatch(log_probs, mask, advantages=advantages, old_log_probs=old), weights, LossSettings()
        )
        loss.backward()
        return loss.item()

    expected = -(log_probs - old).exp()
    expected = torch.minimum(-expected * advantages, (-expected).clamp(0.8, 1.2) * advantages).mean().neg().item()
    assert benchmark(step) == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("with_entropy", [False, True], ids=["log_probs", "log_probs_and_entropy"])
@pytest.mark.parametrize(("rows", "width", "vocabulary"), [(64, 32, 1024), (8, 64, 32_768)])
def test_log_probs_from_logits(benchmark, rows, width, vocabulary, with_entropy):
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, width, vocabulary, generator=random).requires_grad_()
    labels = torch.randint(0, vocabulary, (rows, width), generator=random)

    def step():
        logits.grad = None
        if with_entropy:
            all_log_probs = log_softmax(logits)
            log_probs = select(all_log_probs, labels)
            entropy_of(all_log_probs.detach())
        else:
            log_probs = select(log_softmax(logits), labels)
        log_probs.sum().backward()
        return log_probs

    log_probs = benchmark(step)
    assert log_probs[0, 0].item() == pytest.approx(logits[0, 0].log_softmax(-1)[labels[0, 0]].item(), abs=1e-4)
