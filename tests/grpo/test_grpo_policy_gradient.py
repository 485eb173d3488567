"""The per-token losses: each case of the clip by hand, gradients, refusals."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.core.errors import UserError
from harness.grpo import compute_grpo_clip_loss, compute_naive_policy_gradient_loss, compute_policy_gradient_loss

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
SMALL = st.integers(-200, 200).map(lambda hundredths: hundredths / 100)


def clip_case(advantage, ratio, cliprange=0.2, **options):
    """Return (loss, gradient of the loss by log p, clipped) of one token with this advantage and ratio."""
    log_prob = torch.tensor([[math.log(ratio)]], requires_grad=True)
    advantages = torch.tensor([[float(advantage)]])
    loss, metadata = compute_grpo_clip_loss(advantages, log_prob, torch.zeros(1, 1), cliprange, **options)
    loss.sum().backward()
    return loss.item(), log_prob.grad.item(), metadata["clipped"].item()


def test_naive_loss_is_minus_the_advantage_times_the_log_prob():
    loss = compute_naive_policy_gradient_loss(torch.tensor([[2.0], [-1.0]]), torch.tensor([[-0.5, -1.0], [-3.0, 0.0]]))
    assert loss.tolist() == [[1.0, 2.0], [-3.0, 0.0]]


def test_naive_loss_takes_an_advantage_for_each_token():
    loss = compute_naive_policy_gradient_loss(torch.tensor([[2.0, 3.0]]), torch.tensor([[-1.0, -1.0]]))
    assert loss.tolist() == [[2.0, 3.0]]


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "gradient", "clipped"),
    [
        (2, 1.0, -2.0, -2.0, False),  # -1 * 2
        (2, 1.1, -2.2, -2.2, False),  # inside: -1.1 * 2; d rho / d log p = rho
        (2, 1.5, -2.4, 0.0, True),  # above, A > 0: min(3, 1.2 * 2) = 2.4
        (2, 0.5, -1.0, -1.0, False),  # below, A > 0: min(1, 0.8 * 2) = 1, not the clip's
        (-2, 0.9, 1.8, 1.8, False),  # inside
        (-2, 0.5, 1.6, 0.0, True),  # below, A < 0: min(-1, 0.8 * -2) = -1.6
        (-2, 1.5, 3.0, 3.0, False),  # above, A < 0: min(-3, 1.2 * -2) = -3, not the clip's
        (0, 1.5, 0.0, 0.0, False),  # nothing to clip
        (0, 0.5, 0.0, 0.0, False),
    ],
)
def test_clip(advantage, ratio, loss, gradient, clipped):
    assert clip_case(advantage, ratio) == (pytest.approx(loss), pytest.approx(gradient), clipped)


def test_clip_higher_moves_only_the_upper_bound():
    assert clip_case(1, 1.25, cliprange_high=0.28) == (pytest.approx(-1.25), pytest.approx(-1.25), False)
    assert clip_case(1, 1.5, cliprange_high=0.28) == (pytest.approx(-1.28), 0.0, True)
    assert clip_case(-1, 0.75, cliprange_high=0.28) == (pytest.approx(0.8), 0.0, True)  # lower bound still 1 - 0.2
    assert clip_case(1, 1.5, cliprange_high=0.0) == (pytest.approx(-1.0), 0.0, True)  # 0 is a bound, not "none"


def test_dual_clip_bounds_the_loss_of_negative_advantages_only():
    assert clip_case(-2, 5.0) == (pytest.approx(10.0), pytest.approx(10.0), False)
    assert clip_case(-2, 5.0, dual_clip=3.0) == (pytest.approx(6.0), 0.0, True)  # max(-10, 3 * -2) = -6
    assert clip_case(-2, 2.5, dual_clip=3.0) == (pytest.approx(5.0), pytest.approx(5.0), False)  # max(-5, -6) = -5
    assert clip_case(-2, 0.5, dual_clip=3.0) == (pytest.approx(1.6), 0.0, True)  # the first clip's, as before
    assert clip_case(2, 5.0, dual_clip=3.0) == (pytest.approx(-2.4), 0.0, True)  # A > 0: max has no effect


def test_metadata_tells_the_two_clips_apart_and_carries_no_gradient():
    log_probs = torch.tensor([[5.0, 0.5, 1.0]]).log().requires_grad_()
    _, metadata = compute_grpo_clip_loss(torch.tensor([[-1.0]]), log_probs, torch.zeros(1, 3), 0.2, dual_clip=3.0)
    assert metadata["clipped"].tolist() == [[True, True, False]]
    assert metadata["dual_clipped"].tolist() == [[True, False, False]]
    assert metadata["ratio"].tolist() == [pytest.approx([5.0, 0.5, 1.0])]
    assert [name for name, tensor in metadata.items() if tensor.requires_grad] == []
    _, metadata = compute_grpo_clip_loss(torch.tensor([[-1.0]]), log_probs, torch.zeros(1, 3), 0.2)
    assert sorted(metadata) == ["clipped", "ratio"]


def test_old_log_probs_get_no_gradient():
    log_probs = torch.zeros(1, 2, requires_grad=True)
    old = torch.zeros(1, 2, requires_grad=True)
    loss, _ = compute_grpo_clip_loss(torch.ones(1, 1), log_probs, old, 0.2)
    loss.sum().backward()
    assert old.grad is None
    assert log_probs.grad.tolist() == [[-1.0, -1.0]]


@PROPERTY
@given(
    advantages=st.lists(SMALL, min_size=1, max_size=5),
    log_probs=st.lists(SMALL, min_size=3, max_size=3),
    dual_clip=st.sampled_from([None, 3.0]),
)
def test_ratio_one_gives_the_plain_policy_gradient(advantages, log_probs, dual_clip):
    advantages_B1 = torch.tensor(advantages).reshape(-1, 1)
    log_probs_BT = torch.tensor([log_probs] * len(advantages), requires_grad=True)
    clip_loss, metadata = compute_grpo_clip_loss(
        advantages_B1, log_probs_BT, log_probs_BT.detach(), 0.2, dual_clip=dual_clip
    )
    naive_loss = compute_naive_policy_gradient_loss(advantages_B1, log_probs_BT)
    (clip_gradient,) = torch.autograd.grad(clip_loss.sum(), log_probs_BT)
    (naive_gradient,) = torch.autograd.grad(naive_loss.sum(), log_probs_BT)
    assert torch.equal(clip_gradient, naive_gradient)
    assert not metadata["clipped"].any()


@PROPERTY
@given(advantage=SMALL, log_ratio=SMALL, low=st.floats(0, 1), high=st.floats(0, 2), c=st.floats(1.01, 5))
def test_clip_agrees_with_the_equation_and_clipped_means_the_loss_changed(advantage, log_ratio, low, high, c):
    rho = math.exp(log_ratio)
    objective = min(rho * advantage, min(max(rho, 1 - low), 1 + high) * advantage)
    if advantage < 0:
        objective = max(objective, c * advantage)
    loss, metadata = compute_grpo_clip_loss(
        torch.tensor([[advantage]], dtype=torch.float64),
        torch.tensor([[log_ratio]], dtype=torch.float64),
        torch.zeros(1, 1, dtype=torch.float64),
        low,
        cliprange_high=high,
        dual_clip=c,
    )
    assert loss.item() == pytest.approx(-objective, abs=1e-12)
    if abs(objective - rho * advantage) > 1e-9:
        assert metadata["clipped"].item()
    if not metadata["clipped"].item():
        assert loss.item() == pytest.approx(-rho * advantage, abs=1e-12)


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("log_ratio", [1000.0, math.inf, -1000.0, -math.inf])
def test_an_absurd_ratio_gives_no_nan(advantage, log_ratio):
    log_probs = torch.tensor([[log_ratio, 0.0]], requires_grad=True)
    loss, _ = compute_grpo_clip_loss(torch.tensor([[advantage]]), log_probs, torch.zeros(1, 2), 0.2)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert log_probs.grad.tolist() == [[0.0, -advantage]]


def test_half_precision_log_probs_are_computed_in_float32():
    log_probs = torch.tensor([[-1.0]], dtype=torch.bfloat16)
    old = torch.tensor([[-1.01]], dtype=torch.float32)
    loss, _ = compute_grpo_clip_loss(torch.ones(1, 1, dtype=torch.bfloat16), log_probs, old, 0.2)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(-math.exp(0.01))
    naive = compute_naive_policy_gradient_loss(
        torch.tensor([[1.0078125]]).bfloat16(), -torch.tensor([[1.0078125]]).bfloat16()
    )
    assert (naive.dtype, naive.item()) == (torch.float32, 1.0078125**2)  # 2**-14 would be lost in bfloat16


def test_wrapper_picks_the_loss_and_its_argument():
    log_probs = torch.tensor([[-1.0, -2.0]])
    raw, advantages, old = torch.tensor([[3.0]]), torch.tensor([[0.5]]), torch.tensor([[-1.0, -3.0]])
    arguments = (raw, advantages, old, 0.2)
    loss, metadata = compute_policy_gradient_loss(log_probs, "no_baseline", *arguments)
    assert (loss.tolist(), metadata) == ([[3.0, 6.0]], {})  # -3 * log p
    loss, metadata = compute_policy_gradient_loss(log_probs, "reinforce_with_baseline", *arguments)
    assert (loss.tolist(), metadata) == ([[0.5, 1.0]], {})  # -0.5 * log p
    loss, metadata = compute_policy_gradient_loss(log_probs, "grpo_clip", *arguments)
    assert loss.tolist() == [pytest.approx([-0.5, -0.6])]  # ratios 1 and e, clipped to 1.2
    assert metadata["clipped"].tolist() == [[False, True]]
    loss, _ = compute_policy_gradient_loss(log_probs, "grpo_clip", *arguments, cliprange_high=1.0)
    assert loss.tolist() == [pytest.approx([-0.5, -1.0])]  # clipped to 2
    loss, _ = compute_policy_gradient_loss(log_probs, "grpo_clip", None, -advantages, old, 0.2, dual_clip=2.0)
    assert loss.tolist() == [pytest.approx([0.5, 1.0])]  # e * 0.5 bounded by 2 * 0.5


@pytest.mark.parametrize(
    ("loss_type", "given_arguments", "missing"),
    [
        ("no_baseline", {"advantages"}, "raw_rewards"),
        ("reinforce_with_baseline", {"raw_rewards"}, "advantages"),
        ("grpo_clip", {"raw_rewards", "old_log_probs", "cliprange"}, "advantages"),
        ("grpo_clip", {"advantages", "cliprange"}, "old_log_probs"),
        ("grpo_clip", {"advantages", "old_log_probs"}, "cliprange"),
    ],
)
def test_a_missing_argument_is_named(loss_type, given_arguments, missing):
    log_probs = torch.zeros(1, 2)
    everything = {
        "raw_rewards": torch.ones(1, 1),
        "advantages": torch.ones(1, 1),
        "old_log_probs": log_probs,
        "cliprange": 0.2,
    }
    arguments = {name: everything[name] for name in given_arguments}
    with pytest.raises(UserError, match=rf"loss_type '{loss_type}' needs {missing}[\s\S]*fix: +pass {missing}"):
        compute_policy_gradient_loss(log_probs, loss_type, **arguments)


def test_an_unknown_loss_type_names_the_nearest():
    with pytest.raises(UserError, match=r"'grpo-clip', expected one of no_baseline, rein[\s\S]*use 'grpo_clip'"):
        compute_policy_gradient_loss(torch.zeros(1, 2), "grpo-clip")


@pytest.mark.parametrize(
    ("advantages", "log_probs", "old", "message"),
    [
        (torch.ones(2), torch.zeros(2, 2), torch.zeros(2, 2), r"advantages has shape \(2,\), expected \(2, 1\)"),
        (torch.ones(1, 1), torch.zeros(2, 3), torch.zeros(2, 3), r"advantages has shape \(1, 1\), expected \(2, 1\)"),
        (torch.ones(2, 1), torch.zeros(2, 3), torch.zeros(2, 4), r"old_log_probs has shape \(2, 4\) and policy_log"),
        (torch.ones(2, 1), torch.zeros(2), torch.zeros(2), r"policy_log_probs has shape \(2,\), expected two dim"),
    ],
)
def test_wrong_shapes_are_refused(advantages, log_probs, old, message):
    with pytest.raises(UserError, match=message):
        compute_grpo_clip_loss(advantages, log_probs, old, 0.2)


@pytest.mark.parametrize(
    ("cliprange", "options", "message"),
    [
        (-0.1, {}, "cliprange is -0.1, it must be at least 0"),
        (math.nan, {}, "cliprange is nan"),
        (0.2, {"cliprange_high": -1.0}, "cliprange_high is -1.0, it must be at least 0"),
        (0.2, {"dual_clip": 1.0}, "dual_clip is 1.0, it must be above 1"),
    ],
)
def test_wrong_bounds_are_refused(cliprange, options, message):
    with pytest.raises(UserError, match=message):
        compute_grpo_clip_loss(torch.ones(1, 1), torch.zeros(1, 1), torch.zeros(1, 1), cliprange, **options)
