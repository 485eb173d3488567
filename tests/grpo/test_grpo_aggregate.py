"""Aggregations, and the proof that any split into microbatches gives the gradient of the one big batch."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.core.errors import UserError
from harness.grpo.aggregate import Denominator, loss_denominator, prompt_tokens, weighted_sum
from harness.grpo.log_probs import log_softmax, select
from harness.grpo.loss import surrogate_loss
from harness.grpo.policy_gradient import LOSSES
from harness.grpo.tokens import TokenBatch
from harness.settings.loss import KlSettings, LossSettings

MASK = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]])  # 4 and 7 tokens


@pytest.mark.parametrize(
    ("aggregation", "constant", "short", "long"),
    [
        ("sequence_mean", None, 1 / 8, 1 / 14),  # 1 / (2 * 4), 1 / (2 * 7)
        ("sequence_sum", None, 1 / 2, 1 / 2),  # 2 rollouts
        ("token_mean", None, 1 / 11, 1 / 11),  # 4 + 7 tokens
        ("prompt_mean", None, 1 / 8, 1 / 14),  # 1 / (2 groups * 4), 1 / (2 * 7)
        ("constant", 10, 1 / 20, 1 / 20),  # 1 / (2 * 10)
    ],
)
def test_token_weights(aggregation, constant, short, long):
    denominator = loss_denominator(MASK, aggregation, constant, prompt_index_B=torch.arange(2))
    assert denominator == Denominator(aggregation, 2, 11, constant, num_prompts=2)
    tokens = prompt_tokens(MASK, torch.arange(2))
    weights = denominator.token_weights(MASK, tokens)
    assert weights[0].tolist() == pytest.approx([short] * 4 + [0.0] * 3)
    assert weights[1].tolist() == pytest.approx([long] * 7)
    trimmed = denominator.token_weights(MASK[:1, :5], tokens[:1])
    assert torch.equal(trimmed, weights[:1, :5])


def test_prompt_mean_is_a_mean_over_groups_of_the_mean_over_their_tokens():
    """Losses 1 2 | 3 of group 0 and 10 of group 1: (6 / 3 + 10) / 2 = 6, where the mean over tokens is 16 / 4 = 4, that
    over responses (1.5 + 3 + 10) / 3 = 29 / 6, and the mean of the sums (3 + 3 + 10) / 3 = 16 / 3."""
    loss = torch.tensor([[1.0, 2.0], [3.0, 9.0], [10.0, 9.0]])
    mask, prompts = torch.tensor([[1, 1], [1, 0], [1, 0]]), torch.tensor([0, 0, 1])
    tokens = prompt_tokens(mask, prompts)
    assert tokens.tolist() == [3, 3, 1]
    found = {
        name: weighted_sum(loss, loss_denominator(mask, name, 4, prompts).token_weights(mask, tokens)).item()
        for name in NAMES
    }
    assert found == pytest.approx(
        {"sequence_mean": 29 / 6, "sequence_sum": 16 / 3, "token_mean": 4.0, "prompt_mean": 6.0, "constant": 4 / 3}
    )
    two = [loss_denominator(mask[rows], "prompt_mean", None, prompts[rows]) for rows in ([0, 1], [2])]
    assert two[0] + two[1] == loss_denominator(mask, "prompt_mean", None, prompts)
    with pytest.raises(UserError, match="needs prompt_tokens_B"):
        two[0].token_weights(mask)


NAMES = ["sequence_mean", "sequence_sum", "token_mean", "prompt_mean", "constant"]


@pytest.mark.parametrize("aggregation", NAMES)
def test_a_batch_without_tokens_has_no_weight(aggregation):
    nothing, prompts = torch.zeros(2, 2), torch.arange(2)
    none = loss_denominator(nothing, aggregation, 4, prompts).token_weights(nothing, prompt_tokens(nothing, prompts))
    assert none.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_token_of_weight_zero_adds_nothing(poison):
    loss = torch.tensor([[1.0, poison]], requires_grad=True)
    total = weighted_sum(loss, torch.tensor([[0.5, 0.0]]))
    total.backward()
    assert (total.item(), loss.grad.tolist()) == (0.5, [[0.5, 0.0]])


def rollouts(num_rows, width, seed):
    """Return features, labels, mask, advantages, old and reference log-probs of random rollouts, lengths 0 to width."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, width + 1, (num_rows,), generator=random)
    return {
        "features": torch.randn(num_rows, width, 4, generator=random),
        "labels": torch.randint(0, 6, (num_rows, width), generator=random),
        "mask": torch.arange(width) < lengths[:, None],
        "prompts": torch.randint(0, 3, (num_rows,), generator=random),
        "advantages": torch.randn(num_rows, 1, generator=random),
        "old": -torch.rand(num_rows, width, generator=random) * 3,
        "reference": -torch.rand(num_rows, width, generator=random) * 3,
    }


def weight_gradient(batch, splits, aggregation, options):
    """Return the loss and its gradient by a linear model's weight, summed over the microbatches."""
    weight = torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_()
    denominator = loss_denominator(batch["mask"], aggregation, 5, batch["prompts"])
    tokens = prompt_tokens(batch["mask"], batch["prompts"])
    total = 0.0
    for rows in splits:
        part = {name: tensor[rows] for name, tensor in batch.items()}
        loss, _ = surrogate_loss(
            TokenBatch(
                select(log_softmax(part["features"] @ weight), part["labels"]),
                part["mask"],
                raw_rewards=part["advantages"],
                advantages=part["advantages"],
                old_log_probs=part["old"],
                reference_log_probs=part["reference"],
            ),
            denominator.token_weights(part["mask"], tokens[rows]),
            options,
        )
        loss.backward()
        total += loss.item()
    return total, weight.grad


@settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    owners=st.lists(st.integers(0, 3), min_size=1, max_size=10),
    width=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    aggregation=st.sampled_from(NAMES),
    loss_type=st.sampled_from([*LOSSES, "gspo"]),
    kl_coefficient=st.sampled_from([0.0, 0.1]),
)
def test_any_split_gives_the_gradient_of_the_big_batch(owners, width, seed, aggregation, loss_type, kl_coefficient):
    """Rows go to up to 4 microbatches of any sizes."""
    batch = rollouts(len(owners), width, seed)
    options = LossSettings(
        type="grpo_clip" if loss_type == "gspo" else loss_type,
        ratio_level="sequence" if loss_type == "gspo" else "token",
        dual_clip=3.0,
        kl=KlSettings(coefficient=kl_coefficient),
    )
    splits = [[row for row, owner in enumerate(owners) if owner == part] for part in set(owners)]
    whole_loss, whole_gradient = weight_gradient(batch, [list(range(len(owners)))], aggregation, options)
    split_loss, split_gradient = weight_gradient(batch, splits, aggregation, options)
    assert split_loss == pytest.approx(whole_loss, abs=1e-5, rel=1e-5)
    assert (split_gradient - whole_gradient).abs().max().item() <= 1e-6 * max(1.0, whole_gradient.abs().max().item())


def test_bad_input_is_refused():
    with pytest.raises(UserError, match=r"'token-mean', expected one of [\s\S]*use 'token_mean'"):
        loss_denominator(MASK, "token-mean")
    for constant in (None, 0, -1):
        with pytest.raises(UserError, match=f"divides by constant, which is {constant}; it must be above 0"):
            loss_denominator(MASK, "constant", constant)
    with pytest.raises(UserError, match=r"response_mask has shape \(2,\), expected two dimensions"):
        loss_denominator(torch.ones(2))
    with pytest.raises(UserError, match="token_weights has shape"):
        weighted_sum(torch.zeros(2, 3), torch.zeros(2, 2))
