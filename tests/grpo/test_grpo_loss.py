"""The Learner's loss: the three types, the KL penalty, its figures, and poison outside the mask."""

import math
from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.core.errors import UserError
from harness.core.types import Metric
from harness.grpo import ImportanceOptions, LossOptions, loss_denominator, surrogate_loss, to_metrics

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
MASK = torch.tensor([[True, True], [True, False]])
WEIGHTS = loss_denominator(MASK, "token_mean").token_weights(MASK)  # 1/3 each
LOG_PROBS = torch.tensor([[-1.0, -2.0], [-0.5, -9.0]])
OLD = LOG_PROBS - torch.tensor([[math.log(1.5), 0.0], [math.log(0.5), 0.0]])  # ratios 1.5, 1 | 0.5
ADVANTAGES = torch.tensor([[2.0], [-1.0]])


def test_no_baseline_takes_the_rewards():
    loss, tallies = surrogate_loss(
        LOG_PROBS, MASK, WEIGHTS, LossOptions("no_baseline"), rewards_B1=torch.tensor([[1.0], [4.0]])
    )
    assert loss.item() == pytest.approx((1.0 + 2.0 + 4 * 0.5) / 3)
    assert tallies == {}


def test_reinforce_takes_the_advantages_and_only_reports_the_ratio():
    options = LossOptions("reinforce_with_baseline")
    loss, tallies = surrogate_loss(LOG_PROBS, MASK, WEIGHTS, options, advantages_B1=ADVANTAGES, old_log_probs_BT=OLD)
    assert loss.item() == pytest.approx((2 * 1.0 + 2 * 2.0 - 0.5) / 3)
    assert to_metrics(tallies) == {
        "ratio/mean": Metric(pytest.approx(1.0), "mean", 3),  # (1.5 + 1 + 0.5) / 3
        "ratio/max": Metric(pytest.approx(1.5), "max", 3),
    }


def test_grpo_clip_with_its_figures():
    entropy = torch.tensor([[0.5, 1.0], [1.5, 99.0]])
    loss, tallies = surrogate_loss(
        LOG_PROBS, MASK, WEIGHTS, LossOptions(), advantages_B1=ADVANTAGES, old_log_probs_BT=OLD, entropy_BT=entropy
    )
    # A = 2: -min(3, 2.4) = -2.4 (clipped) and -2; A = -1: -min(-0.5, -0.8) = 0.8 (clipped)
    assert loss.item() == pytest.approx((-2.4 - 2.0 + 0.8) / 3)
    assert to_metrics(tallies) == {
        "clip_fraction": Metric(pytest.approx(2 / 3), "mean", 3),
        "ratio/mean": Metric(pytest.approx(1.0), "mean", 3),
        "ratio/max": Metric(pytest.approx(1.5), "max", 3),
        "token_entropy": Metric(pytest.approx(1.0), "mean", 3),  # (0.5 + 1 + 1.5) / 3
    }


def test_clip_options_reach_the_loss():
    options = LossOptions(cliprange=0.4, cliprange_high=0.1)
    loss, _ = surrogate_loss(LOG_PROBS, MASK, WEIGHTS, options, advantages_B1=ADVANTAGES, old_log_probs_BT=OLD)
    assert loss.item() == pytest.approx((-2.2 - 2.0 + 0.6) / 3)  # bounds 1.1 and 0.6
    loss, _ = surrogate_loss(
        LOG_PROBS, MASK, WEIGHTS, LossOptions(dual_clip=1.2), advantages_B1=-ADVANTAGES, old_log_probs_BT=OLD
    )
    assert loss.item() == pytest.approx((2.4 + 2.0 - 0.5) / 3)  # 1.5 * 2 bounded by 1.2 * 2


@pytest.mark.parametrize(
    ("estimator", "penalty"),
    [
        ("k1", 1.0),  # d = 1 on every token
        ("k2", 0.5),  # 1 / 2
        ("k3", math.exp(-1)),  # exp(-1) - 1 + 1
    ],
)
def test_kl_penalty_is_added_with_its_coefficient(estimator, penalty):
    options = LossOptions("reinforce_with_baseline", kl_coefficient=0.25, kl_estimator=estimator)
    loss, tallies = surrogate_loss(
        LOG_PROBS, MASK, WEIGHTS, options, advantages_B1=ADVANTAGES, reference_log_probs_BT=LOG_PROBS - 1
    )
    assert loss.item() == pytest.approx(5.5 / 3 + 0.25 * penalty)
    assert to_metrics(tallies) == {"kl/penalty": Metric(pytest.approx(penalty), "mean", 3)}


ENGINE = OLD - torch.tensor([[math.log(3.0), math.log(0.5)], [math.log(1.25), 0.0]])  # old / engine 3, 0.5 | 1.25


@pytest.mark.parametrize(
    ("loss_type", "losses"),
    [
        ("grpo_clip", (-2.4, -2.0, 0.8)),  # as in test_grpo_clip_with_its_figures
        ("reinforce_with_baseline", (2.0, 4.0, -0.5)),  # -A * log p: 2 * 1, 2 * 2, -1 * 0.5
        ("no_baseline", (1.0, 2.0, 2.0)),  # -r * log p: 1 * 1, 1 * 2, 4 * 0.5
    ],
)
def test_importance_weights_multiply_the_loss_and_not_the_kl_penalty(loss_type, losses):
    options = LossOptions(
        loss_type, kl_coefficient=0.25, kl_estimator="k1", importance=ImportanceOptions("tis", cap=2.0)
    )
    loss, tallies = surrogate_loss(
        LOG_PROBS,
        MASK,
        WEIGHTS,
        options,
        rewards_B1=torch.tensor([[1.0], [4.0]]),
        advantages_B1=ADVANTAGES,
        old_log_probs_BT=OLD,
        reference_log_probs_BT=LOG_PROBS - 1,
        engine_log_probs_BT=ENGINE,
    )
    # ratios 3, 0.5 and 1.25 truncated at 2: weights 2, 0.5 and 1.25; the k1 penalty is 1 on every token
    assert loss.item() == pytest.approx((2 * losses[0] + 0.5 * losses[1] + 1.25 * losses[2]) / 3 + 0.25)
    metrics = to_metrics(tallies)
    assert metrics["importance/mean"] == Metric(pytest.approx((3 + 0.5 + 1.25) / 3), "mean", 3)
    assert metrics["importance/truncated_fraction"] == Metric(pytest.approx(1 / 3), "mean", 3)


def test_without_a_mode_the_engine_is_compared_and_nothing_is_weighted():
    plain, _ = surrogate_loss(LOG_PROBS, MASK, WEIGHTS, LossOptions(), advantages_B1=ADVANTAGES, old_log_probs_BT=OLD)
    loss, tallies = surrogate_loss(
        LOG_PROBS,
        MASK,
        WEIGHTS,
        LossOptions(),
        advantages_B1=ADVANTAGES,
        old_log_probs_BT=OLD,
        engine_log_probs_BT=ENGINE,
    )
    assert torch.equal(loss, plain)
    names = ["clip_fraction", "ratio/mean", "ratio/max", "engine_mismatch/kl"]
    assert list(tallies) == names


def test_only_the_current_log_probs_get_a_gradient():
    tensors = [tensor.clone().requires_grad_() for tensor in (LOG_PROBS, OLD, LOG_PROBS - 1, LOG_PROBS.abs(), ENGINE)]
    current, old, reference, entropy, engine = tensors
    loss, tallies = surrogate_loss(
        current,
        MASK,
        WEIGHTS,
        LossOptions(kl_coefficient=0.1, importance=ImportanceOptions("tis")),
        advantages_B1=ADVANTAGES,
        old_log_probs_BT=old,
        reference_log_probs_BT=reference,
        entropy_BT=entropy,
        engine_log_probs_BT=engine,
    )
    loss.backward()
    assert [tensor.grad is None for tensor in tensors] == [False, True, True, True, True]
    assert [name for name, tally in tallies.items() if tally.value.requires_grad] == []


@PROPERTY
@given(
    seed=st.integers(0, 10_000),
    poison=st.sampled_from([math.nan, math.inf, -math.inf, 1e30, 0.0]),
    loss_type=st.sampled_from(
        [("no_baseline", "token"), ("reinforce_with_baseline", "token")]
        + [(name, level) for name in ("grpo_clip", "unclipped", "cispo") for level in ("token", "sequence")]
    ),
    weighted=st.booleans(),
    estimator=st.sampled_from(["k1", "k2", "k3"]),
    importance=st.sampled_from(
        [ImportanceOptions(mode, level) for mode in ("tis", "icepop") for level in ("token", "sequence")]
        + [ImportanceOptions("off"), ImportanceOptions("seq-mask-tis")]
    ),
)
def test_a_masked_token_never_matters(seed, poison, loss_type, weighted, estimator, importance):
    random = torch.Generator().manual_seed(seed)
    mask = torch.rand(3, 5, generator=random) < 0.6
    tensors = [-torch.rand(3, 5, generator=random) for _ in range(5)]
    values = torch.randn(3, 1, generator=random)
    weights = loss_denominator(mask, "sequence_mean").token_weights(mask)

    def outcome(fill):
        current, old, reference, entropy, engine = (torch.where(mask, tensor, fill) for tensor in tensors)
        current.requires_grad_()
        loss, tallies = surrogate_loss(
            current,
            mask,
            weights,
            LossOptions(
                loss_type[0],
                kl_coefficient=0.5,
                kl_estimator=estimator,
                importance=importance,
                ratio_level=loss_type[1],
                kl_weighted_by_ratio=weighted,
                entropy_coefficient=0.1,
            ),
            rewards_B1=values,
            advantages_B1=values,
            old_log_probs_BT=old,
            reference_log_probs_BT=reference,
            entropy_BT=entropy,
            engine_log_probs_BT=engine,
        )
        loss.backward()
        return loss, current.grad, to_metrics(tallies)

    loss, gradient, metrics = outcome(poison)
    expected_loss, expected_gradient, expected_metrics = outcome(-1.0)
    assert torch.equal(loss, expected_loss)
    assert torch.equal(gradient, expected_gradient)
    assert metrics == expected_metrics
    assert gradient[~mask].abs().sum().item() == 0.0


def test_missing_arguments_are_named():
    with pytest.raises(UserError, match="loss_type 'grpo_clip' needs old_log_probs"):
        surrogate_loss(LOG_PROBS, MASK, WEIGHTS, LossOptions(), advantages_B1=ADVANTAGES)
    with pytest.raises(UserError, match=r"kl_coefficient is 0.1 but there are no reference log-probs"):
        surrogate_loss(LOG_PROBS, MASK, WEIGHTS, LossOptions("no_baseline", kl_coefficient=0.1), rewards_B1=ADVANTAGES)
    weighted = LossOptions("no_baseline", importance=ImportanceOptions("tis"))
    expected = "importance mode 'tis' compares the old with the engine's log-probs, and {}_log_probs_BT is None"
    with pytest.raises(UserError, match=expected.format("old")):
        surrogate_loss(LOG_PROBS, MASK, WEIGHTS, weighted, rewards_B1=ADVANTAGES, engine_log_probs_BT=ENGINE)
    with pytest.raises(UserError, match=expected.format("engine")):
        surrogate_loss(LOG_PROBS, MASK, WEIGHTS, weighted, rewards_B1=ADVANTAGES, old_log_probs_BT=OLD)
    entropy = LossOptions("no_baseline", entropy_coefficient=0.1)
    with pytest.raises(UserError, match=r"entropy_coefficient 0.1 needs entropy_BT, which is None"):
        surrogate_loss(LOG_PROBS, MASK, WEIGHTS, entropy, rewards_B1=ADVANTAGES)
    gspo = LossOptions(ratio_level="sequence")
    with pytest.raises(UserError, match=r"loss_type 'grpo_clip' needs old_log_probs, which is None"):
        surrogate_loss(LOG_PROBS, MASK, WEIGHTS, gspo, advantages_B1=ADVANTAGES)
    with pytest.raises(UserError, match="response_mask has shape"):
        surrogate_loss(LOG_PROBS, MASK[:1], WEIGHTS, LossOptions("no_baseline"), rewards_B1=ADVANTAGES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "ppo"}, "type is 'ppo', expected one of no_baseline, reinforce_with_baseline, grpo_clip"),
        ({"kl_estimator": "k0"}, "kl_estimator is 'k0', expected one of k1, k2, k3"),
        ({"kl_coefficient": -0.1}, "kl_coefficient is -0.1, it must be at least 0"),
        ({"cliprange": -1.0}, "cliprange is -1.0"),
        ({"cliprange_high": -1.0}, "cliprange_high is -1.0"),
        ({"dual_clip": 0.5}, "dual_clip is 0.5, it must be above 1"),
        ({"ratio_level": "group"}, "ratio_level is 'group', expected one of token, sequence"),
        ({"entropy_coefficient": -0.1}, "entropy_coefficient is -0.1, it must be at least 0"),
        ({"type": "own"}, "type is 'own' and own is None; they go together"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        LossOptions(**options)


def test_options_are_frozen_and_have_the_source_defaults():
    options = LossOptions()
    assert options == LossOptions("grpo_clip", None, None, None, 0.0, "k3", ImportanceOptions("off", "token"), "token")
    with pytest.raises(FrozenInstanceError):
        options.cliprange = 0.3
