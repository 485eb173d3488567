"""The Learner's loss: its figures, its gradients, and poison outside the mask; its values are in scalar_loops."""

import math
from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.core.errors import UserError
from harness.core.types import Metric
from harness.grpo.aggregate import loss_denominator
from harness.grpo.loss import surrogate_loss
from harness.grpo.policy_gradient import LOSSES
from harness.grpo.tally import to_metrics
from harness.grpo.tokens import TokenBatch
from harness.settings.loss import WITH_RATIO, ImportanceSettings, KlSettings, LossSettings

MASK = torch.tensor([[True, True], [True, False]])
WEIGHTS = loss_denominator(MASK, "token_mean").token_weights(MASK)  # 1/3 each
LOG_PROBS = torch.tensor([[-1.0, -2.0], [-0.5, -9.0]])
OLD = LOG_PROBS - torch.tensor([[math.log(1.5), 0.0], [math.log(0.5), 0.0]])  # ratios 1.5, 1 | 0.5
ENGINE = OLD - torch.tensor([[math.log(3.0), math.log(0.5)], [math.log(1.25), 0.0]])  # old / engine 3, 0.5 | 1.25
ADVANTAGES = torch.tensor([[2.0], [-1.0]])
RATIO = {
    "ratio/mean": Metric(pytest.approx(1.0), "mean", 3),  # (1.5 + 1 + 0.5) / 3
    "ratio/max": Metric(pytest.approx(1.5), "max", 3),
}


def loss_of(options, log_probs=LOG_PROBS, mask=MASK, **tensors):
    return surrogate_loss(TokenBatch(log_probs, mask, **tensors), WEIGHTS, options)


def test_losses_without_a_ratio_only_report_it():
    options = LossSettings(type="reinforce_with_baseline")
    loss, tallies = loss_of(options, advantages=ADVANTAGES, old_log_probs=OLD)
    assert loss.item() == pytest.approx((2 * 1.0 + 2 * 2.0 - 0.5) / 3)
    assert to_metrics(tallies) == RATIO
    assert loss_of(options, advantages=ADVANTAGES)[1] == {}


def test_grpo_clip_with_its_figures():
    entropy = torch.tensor([[0.5, 1.0], [1.5, 99.0]])
    options = LossSettings(kl=KlSettings(coefficient=0.25, estimator="k2"))
    given = {"advantages": ADVANTAGES, "old_log_probs": OLD, "reference_log_probs": LOG_PROBS - 1, "entropy": entropy}
    loss, tallies = loss_of(options, **given)
    # A = 2: -min(3, 2.4) = -2.4 (clipped) and -2; A = -1: -min(-0.5, -0.8) = 0.8 (clipped); k2 of d = 1 is 1/2
    assert loss.item() == pytest.approx((-2.4 - 2.0 + 0.8) / 3 + 0.25 * 0.5)
    assert to_metrics(tallies) == {
        **RATIO,
        "clip_fraction": Metric(pytest.approx(2 / 3), "mean", 3),
        "kl/penalty": Metric(pytest.approx(0.5), "mean", 3),
        "token_entropy": Metric(pytest.approx(1.0), "mean", 3),  # (0.5 + 1 + 1.5) / 3
    }


def test_without_a_mode_the_engine_is_compared_and_nothing_is_weighted():
    plain, _ = loss_of(LossSettings(), advantages=ADVANTAGES, old_log_probs=OLD)
    loss, tallies = loss_of(LossSettings(), advantages=ADVANTAGES, old_log_probs=OLD, engine_log_probs=ENGINE)
    assert torch.equal(loss, plain)
    assert list(tallies) == ["clip_fraction", "ratio/mean", "ratio/max", "engine_mismatch/kl"]


def test_only_the_current_log_probs_get_a_gradient():
    tensors = [tensor.clone().requires_grad_() for tensor in (LOG_PROBS, OLD, LOG_PROBS - 1, LOG_PROBS.abs(), ENGINE)]
    names = ("old_log_probs", "reference_log_probs", "entropy", "engine_log_probs")
    options = LossSettings(importance=ImportanceSettings(mode="tis"), kl=KlSettings(coefficient=0.1))
    loss, tallies = loss_of(options, tensors[0], advantages=ADVANTAGES, **dict(zip(names, tensors[1:], strict=True)))
    loss.backward()
    assert [tensor.grad is None for tensor in tensors] == [False, True, True, True, True]
    assert [name for name, tally in tallies.items() if tally.value.requires_grad] == []


@settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    poison=st.sampled_from([math.nan, math.inf, -math.inf, 1e30, 0.0]),
    loss_type=st.sampled_from([*product(LOSSES, ["token"]), *product(WITH_RATIO, ["sequence"])]),
    weighted=st.booleans(),
    estimator=st.sampled_from(["k1", "k2", "k3"]),
    importance=st.sampled_from(
        [ImportanceSettings(mode=mode, level=level) for mode in ("tis", "icepop") for level in ("token", "sequence")]
        + [ImportanceSettings(mode="off"), ImportanceSettings(mode="seq-mask-tis")]
    ),
)
def test_a_masked_token_never_matters(seed, poison, loss_type, weighted, estimator, importance):
    random = torch.Generator().manual_seed(seed)
    mask = torch.rand(3, 5, generator=random) < 0.6
    tensors = [-torch.rand(3, 5, generator=random) for _ in range(5)]
    values = torch.randn(3, 1, generator=random)
    weights = loss_denominator(mask, "sequence_mean").token_weights(mask)
    options = LossSettings(
        type=loss_type[0],
        importance=importance,
        ratio_level=loss_type[1],
        entropy_coefficient=0.1,
        kl=KlSettings(coefficient=0.5, estimator=estimator, weighted_by_ratio=weighted),
    )

    def outcome(fill):
        current, *others = (torch.where(mask, tensor, fill) for tensor in tensors)
        current.requires_grad_()  # the others in the order of TokenBatch: old, reference, engine, entropy
        loss, tallies = surrogate_loss(TokenBatch(current, mask, values, values, *others), weights, options)
        loss.backward()
        return loss, current.grad, to_metrics(tallies)

    loss, gradient, metrics = outcome(poison)
    expected_loss, expected_gradient, expected_metrics = outcome(-1.0)
    assert torch.equal(loss, expected_loss)
    assert torch.equal(gradient, expected_gradient)
    assert metrics == expected_metrics
    assert gradient[~mask].abs().sum().item() == 0.0


NO_BASELINE = {"type": "no_baseline"}
TIS = LossSettings(**NO_BASELINE, importance=ImportanceSettings(mode="tis"))


@pytest.mark.parametrize(
    ("options", "tensors", "message"),
    [
        (LossSettings(), {"advantages": ADVANTAGES}, "'grpo_clip' needs old_log_probs"),
        (LossSettings(ratio_level="sequence"), {"advantages": ADVANTAGES}, "'grpo_clip' needs old_log_probs"),
        (LossSettings(**NO_BASELINE, kl=KlSettings(coefficient=0.1)), {}, "kl.coefficient 0.1 needs reference_log_p"),
        (LossSettings(**NO_BASELINE, entropy_coefficient=0.1), {}, "entropy_coefficient 0.1 needs entropy"),
        (TIS, {"engine_log_probs": ENGINE}, "importance mode 'tis' needs old_log_probs"),
        (TIS, {"old_log_probs": OLD}, "importance mode 'tis' needs engine_log_probs"),
        (LossSettings(**NO_BASELINE), {"mask": MASK[:1]}, r"response_mask has shape \(1, 2\)"),
    ],
)
def test_what_is_missing_is_named(options, tensors, message):
    with pytest.raises(UserError, match=message):
        loss_of(options, raw_rewards=ADVANTAGES, **tensors)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"type": "ppo"}, "type"),
        ({"kl": {"estimator": "k0"}}, "kl.estimator"),
        ({"kl": {"coefficient": -0.1}}, "kl.coefficient"),
        ({"cliprange": -1.0}, "cliprange"),
        ({"cliprange_high": -1.0}, "cliprange_high"),
        ({"dual_clip": 0.5}, "dual_clip"),
        ({"ratio_level": "group"}, "ratio_level"),
        ({"entropy_coefficient": -0.1}, "entropy_coefficient"),
        ({"importance": {"mode": "mis"}}, "importance.mode"),
        ({"importance": {"level": "group"}}, "importance.level"),
        ({"importance": {"cap": 0.9}}, "importance.cap"),
        ({"importance": {"cap": math.nan}}, "importance.cap"),
        ({"importance": {"floor": -0.1}}, "importance.floor"),
        ({"importance": {"floor": 1.1}}, "importance.floor"),
    ],
)
def test_bad_settings_are_refused(options, place):
    with pytest.raises(ValidationError) as error:
        LossSettings.model_validate(options)
    assert [".".join(map(str, each["loc"])) for each in error.value.errors()] == [place]
