"""KL estimators: numbers and gradients in expectation, the monitored figures."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.core.errors import UserError
from harness.core.types import Metric
from harness.grpo.kl import exact_kl, kl_estimate, kl_tallies
from harness.grpo.tally import to_metrics

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)


@pytest.mark.parametrize(
    ("estimator", "expectation"),
    [
        ("k1", 0.0252672),  # 0.5 ln(5/4) + 0.3 ln(3/4) + 0.2 ln 1 = 0.1115718 - 0.0863046
        ("k2", 0.0248624),  # 0.5 * 0.2231436**2 / 2 + 0.3 * 0.2876821**2 / 2 = 0.0124483 + 0.0124142
        ("k3", 0.0252672),  # k1 + E_p[q/p] - 1, and E_p[q/p] = 1
    ],
)
def test_expectation_over_p(estimator, expectation):
    assert (P * kl_estimate(P.log(), Q.log(), estimator)).sum().item() == pytest.approx(expectation, abs=5e-8)


def test_exact_kl_is_what_k1_and_k3_estimate():
    assert exact_kl(P.log(), Q.log()).item() == pytest.approx(0.0252672, abs=5e-8)  # as above
    never = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])  # ln 1.25 / 2 + ln 1.25 / 2, and ln 2.5
    assert exact_kl(never.log(), Q.float().log().expand(2, 3)).tolist() == pytest.approx([0.2231436, 0.9162907])
    assert exact_kl(Q.log(), torch.tensor([0.5, 0.5, 0.0]).double().log()).item() == math.inf
    with pytest.raises(UserError):
        exact_kl(P.log(), Q[:2].log())


def expected_gradient(loss_of_log_p):
    """Return the gradient by the logits of p of a loss that is a function of log p."""
    logits = P.log().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of_log_p(logits.log_softmax(0)), logits)
    return gradient


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_what_each_estimator_does_in_expectation_as_a_loss(estimator):
    """k1 does nothing, k2 descends KL(p || q), k3 descends KL(q || p); the tokens are sampled from p."""
    directions = {
        "k1": torch.zeros(3, dtype=torch.float64),
        "k2": expected_gradient(lambda log_p: (log_p.exp() * (log_p - Q.log())).sum()),
        "k3": expected_gradient(lambda log_p: (Q * (Q.log() - log_p)).sum()),
    }
    gradient = expected_gradient(lambda log_p: (P * kl_estimate(log_p, Q.log(), estimator)).sum())
    assert gradient.tolist() == pytest.approx(directions[estimator].tolist(), abs=1e-12)
    assert (directions["k2"] - directions["k3"]).abs().max().item() > 1e-3


@PROPERTY
@given(log_p=st.floats(-30, 0, width=32), log_q=st.floats(-30, 0, width=32))
def test_k2_and_k3_are_never_negative_and_zero_where_p_is_q(log_p, log_q):
    p, q = torch.tensor([log_p]), torch.tensor([log_q])
    assert kl_estimate(p, q, "k2").item() >= 0
    assert kl_estimate(p, q, "k3").item() >= -1e-7 * abs(log_p - log_q)  # an ulp of expm1
    assert [kl_estimate(p, p, estimator).item() for estimator in ("k1", "k2", "k3")] == [0.0, 0.0, 0.0]


def test_monitored_figures_by_hand():
    # d = 0.5, 1.0 | 2.0; k3 = exp(-d) - 1 + d = 0.1065307, 0.3678794, 1.1353353
    log_p = torch.tensor([[-0.5, -1.0], [-1.0, math.nan], [-1.0, -1.0]], requires_grad=True)
    log_q = torch.tensor([[-1.0, -2.0], [-3.0, -math.inf], [-2.0, -2.0]])
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    tallies = kl_tallies(log_p, log_q, mask, "kl/reference")
    assert [name for name, tally in tallies.items() if tally.value.requires_grad] == []
    assert to_metrics(tallies) == {
        "kl/reference_k1_sum": Metric(pytest.approx(3.5 / 3), "mean", 3),  # (1.5 + 2.0) / 3 rollouts, one empty
        "kl/reference_k1": Metric(pytest.approx(3.5 / 3), "mean", 3),  # over 3 tokens
        "kl/reference_k3": Metric(pytest.approx((0.1065307 + 0.3678794 + 1.1353353) / 3), "mean", 3),
    }


def test_half_precision_is_subtracted_in_float32():
    # -1.0 and -1.0078125 are bfloat16 neighbours; their k3 (3e-5) would survive, but its terms would not
    value = kl_estimate(torch.tensor([-1.0]).bfloat16(), torch.tensor([-1.0078125]).bfloat16(), "k3")
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(math.exp(-0.0078125) - 1 + 0.0078125, rel=1e-3)


def test_bad_input_is_refused():
    with pytest.raises(UserError, match=r"estimator is 'k4', expected one of k1, k2, k3"):
        kl_estimate(P, Q, "k4")
    with pytest.raises(UserError, match=r"log_p has shape \(3,\) and log_q has shape \(2,\)"):
        kl_estimate(P, Q[:2], "k1")
    with pytest.raises(UserError, match="response_mask has shape"):
        kl_tallies(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 2), "kl/reference")


def test_k3_goes_on_along_its_tangent_where_the_exponential_would_overflow():
    log_p = torch.tensor([-79.0, -81.0, -120.0], requires_grad=True)
    k3 = kl_estimate(log_p, torch.zeros(3), "k3")
    # exp(79) - 80; then exp(80) - 81 + (exp(80) - 1) times 1 and times 40
    bound = math.exp(80)
    assert k3.tolist() == pytest.approx([math.exp(79) - 80, 2 * bound, 41 * bound], rel=1e-5)
    (gradient,) = torch.autograd.grad(k3.sum(), log_p)
    assert gradient.tolist() == pytest.approx([-math.exp(79), -bound, -bound], rel=1e-5)
