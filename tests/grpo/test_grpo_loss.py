"""The Learner's loss: the three types, the KL penalty, its figures, and poison outside the mask."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.core.errors import UserError
from harness.core.types import Metric
from harness.grpo.aggregate import loss_denominator
from harness.grpo.loss import surrogate_loss
from harness.grpo.tally import to_metrics
from harness.grpo.tokens import TokenBatch
from harness.settings.loss import ImportanceSettings, KlSettings, LossSettings

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
MASK = torch.tensor([[True, True], [True, False]])
WEIGHTS = loss_denominator(MASK, "token_mean").token_weights(MASK)  # 1/3 each
LOG_PROBS = torch.tensor([[-1.0, -2.0], [-0.5, -9.0]])
OLD = LOG_PROBS - torch.tensor([[math.log(1.5), 0.0], [math.log(0.5), 0.0]])  # ratios 1.5, 1 | 0.5
ADVANTAGES = torch.tensor([[2.0], [-1.0]])


def test_no_baseline_takes_the_rewards():
    loss, tallies = surrogate_loss(
        TokenBatch(LOG_PROBS, MASK, raw_rewards=torch.tensor([[1.0], [4.0]])), WEIGHTS, LossSettings(type="no_baseline")
    )
    assert loss.item() == pytest.approx((1.0 + 2.0 + 4 * 0.5) / 3)
    assert tallies == {}


def test_reinforce_takes_the_advantages_and_only_reports_the_ratio():
    options = LossSettings(type="reinforce_with_baseline")
    loss, tallies = surrogate_loss(
        TokenBatch(LOG_PROBS, MASK, advantages=ADVANTAGES, old_log_probs=OLD), WEIGHTS, options
    )
    assert loss.item() == pytest.approx((2 * 1.0 + 2 * 2.0 - 0.5) / 3)
    assert to_metrics(tallies) == {
        "ratio/mean": Metric(pytest.approx(1.0), "mean", 3),  # (1.5 + 1 + 0.5) / 3
        "ratio/max": Metric(pytest.approx(1.5), "max", 3),
    }


def test_grpo_clip_with_its_figures():
    entropy = torch.tensor([[0.5, 1.0], [1.5, 99.0]])
    loss, tallies = surrogate_loss(
        TokenBatch(LOG_PROBS, MASK, advantages=ADVANTAGES, old_log_probs=OLD, entropy=entropy), WEIGHTS, LossSettings()
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
    options = LossSettings(cliprange=0.4, cliprange_high=0.1)
    loss, _ = surrogate_loss(TokenBatch(LOG_PROBS, MASK, advantages=ADVANTAGES, old_log_probs=OLD), WEIGHTS, options)
    assert loss.item() == pytest.approx((-2.2 - 2.0 + 0.6) / 3)  # bounds 1.1 and 0.6
    loss, _ = surrogate_loss(
        TokenBatch(LOG_PROBS, MASK, advantages=-ADVANTAGES, old_log_probs=OLD), WEIGHTS, LossSettings(dual_clip=1.2)
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
    options = LossSettings(type="reinforce_with_baseline", kl=KlSettings(coefficient=0.25, estimator=estimator))
    loss, tallies = surrogate_loss(
        TokenBatch(LOG_PROBS, MASK, advantages=ADVANTAGES, reference_log_probs=LOG_PROBS - 1), WEIGHTS, options
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
    options = LossSettings(
        type=loss_type,
        importance=ImportanceSettings(mode="tis", cap=2.0),
        kl=KlSettings(coefficient=0.25, estimator="k1"),
    )
    loss, tallies = surrogate_loss(
        TokenBatch(
            LOG_PROBS,
            MASK,
            raw_rewards=torch.tensor([[1.0], [4.0]]),
            advantages=ADVANTAGES,
            old_log_probs=OLD,
            reference_log_probs=LOG_PROBS - 1,
            engine_log_probs=ENGINE,
        ),
        WEIGHTS,
        options,
    )
    # ratios 3, 0.5 and 1.25 truncated at 2: weights 2, 0.5 and 1.25; the k1 penalty is 1 on every token
    assert loss.item() == pytest.approx((2 * losses[0] + 0.5 * losses[1] + 1.25 * losses[2]) / 3 + 0.25)
    metrics = to_metrics(tallies)
    assert metrics["importance/mean"] == Metric(pytest.approx((3 + 0.5 + 1.25) / 3), "mean", 3)
    assert metrics["importance/truncated_fraction"] == Metric(pytest.approx(1 / 3), "mean", 3)


def test_without_a_mode_the_engine_is_compared_and_nothing_is_weighted():
    plain, _ = surrogate_loss(
        TokenBatch(LOG_PROBS, MASK, advantages=ADVANTAGES, old_log_probs=OLD), WEIGHTS, LossSettings()
    )
    loss, tallies = surrogate_loss(
        TokenBatch(LOG_PROBS, MASK, advantages=ADVANTAGES, old_log_probs=OLD, engine_log_probs=ENGINE),
        WEIGHTS,
        LossSettings(),
    )
    assert torch.equal(loss, plain)
    names = ["clip_fraction", "ratio/mean", "ratio/max", "engine_mismatch/kl"]
    assert list(tallies) == names


def test_only_the_current_log_probs_get_a_gradient():
    tensors = [tensor.clone().requires_grad_() for tensor in (LOG_PROBS, OLD, LOG_PROBS - 1, LOG_PROBS.abs(), ENGINE)]
    current, old, reference, entropy, engine = tensors
    loss, tallies = surrogate_loss(
        TokenBatch(
            current,
            MASK,
            advantages=ADVANTAGES,
            old_log_probs=old,
            reference_log_probs=reference,
            entropy=entropy,
            engine_log_probs=engine,
        ),
        WEIGHTS,
        LossSettings(importance=ImportanceSettings(mode="tis"), kl=KlSettings(coefficient=0.1)),
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

    def outcome(fill):
        current, old, reference, entropy, engine = (torch.where(mask, tensor, fill) for tensor in tensors)
        current.requires_grad_()
        loss, tallies = surrogate_loss(
            TokenBatch(
                current,
                mask,
                raw_rewards=values,
                advantages=values,
                old_log_probs=old,
                reference_log_probs=reference,
                entropy=entropy,
                engine_log_probs=engine,
            ),
            weights,
            LossSettings(
                type=loss_type[0],
                importance=importance,
                ratio_level=loss_type[1],
                entropy_coefficient=0.1,
                kl=KlSettings(coefficient=0.5, estimator=estimator, weighted_by_ratio=weighted),
            ),
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
        surrogate_loss(TokenBatch(LOG_PROBS, MASK, advantages=ADVANTAGES), WEIGHTS, LossSettings())
    with pytest.raises(UserError, match=r"kl.coefficient 0.1 needs reference_log_probs, which is None"):
        surrogate_loss(
            TokenBatch(LOG_PROBS, MASK, raw_rewards=ADVANTAGES),
            WEIGHTS,
            LossSettings(type="no_baseline", kl=KlSettings(coefficient=0.1)),
        )
    weighted = LossSettings(type="no_baseline", importance=ImportanceSettings(mode="tis"))
    expected = "importance mode 'tis' needs {}_log_probs, which is None"
    with pytest.raises(UserError, match=expected.format("old")):
        surrogate_loss(TokenBatch(LOG_PROBS, MASK, raw_rewards=ADVANTAGES, engine_log_probs=ENGINE), WEIGHTS, weighted)
    with pytest.raises(UserError, match=expected.format("engine")):
        surrogate_loss(TokenBatch(LOG_PROBS, MASK, raw_rewards=ADVANTAGES, old_log_probs=OLD), WEIGHTS, weighted)
    entropy = LossSettings(type="no_baseline", entropy_coefficient=0.1)
    with pytest.raises(UserError, match=r"entropy_coefficient 0.1 needs entropy, which is None"):
        surrogate_loss(TokenBatch(LOG_PROBS, MASK, raw_rewards=ADVANTAGES), WEIGHTS, entropy)
    gspo = LossSettings(ratio_level="sequence")
    with pytest.raises(UserError, match=r"loss_type 'grpo_clip' needs old_log_probs, which is None"):
        surrogate_loss(TokenBatch(LOG_PROBS, MASK, advantages=ADVANTAGES), WEIGHTS, gspo)
    with pytest.raises(UserError, match="response_mask has shape"):
        surrogate_loss(
            TokenBatch(LOG_PROBS, MASK[:1], raw_rewards=ADVANTAGES), WEIGHTS, LossSettings(type="no_baseline")
        )


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
    ],
)
def test_bad_settings_are_refused(options, place):
    with pytest.raises(ValidationError) as error:
        LossSettings.model_validate(options)
    assert [".".join(map(str, each["loc"])) for each in error.value.errors()] == [place]
