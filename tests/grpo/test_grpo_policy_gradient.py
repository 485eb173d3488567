"""The per-token losses: each case of the clip by hand, gradients, refusals; all against loops in scalar_loops."""

import math

import pytest
import torch

from harness.core.errors import UserError
from harness.grpo import (
    compute_cispo_loss,
    compute_grpo_clip_loss,
    compute_naive_policy_gradient_loss,
    compute_policy_gradient_loss,
    compute_unclipped_loss,
)

HIGHER, DUAL = {"cliprange_high": 0.28}, {"dual_clip": 3.0}


@pytest.mark.parametrize(
    ("advantage", "ratio", "options", "loss", "gradient", "clipped"),
    [
        # PPO, arXiv:1707.06347, equation 7, with 0.2
        (2, 1.0, {}, -2.0, -2.0, False),  # -1 * 2
        (2, 1.1, {}, -2.2, -2.2, False),  # inside: -1.1 * 2; d rho / d log p = rho
        (2, 1.5, {}, -2.4, 0.0, True),  # above, A > 0: min(3, 1.2 * 2) = 2.4
        (2, 0.5, {}, -1.0, -1.0, False),  # below, A > 0: min(1, 0.8 * 2) = 1, not the clip's
        (-2, 0.5, {}, 1.6, 0.0, True),  # below, A < 0: min(-1, 0.8 * -2) = -1.6
        (-2, 1.5, {}, 3.0, 3.0, False),  # above, A < 0: min(-3, 1.2 * -2) = -3, not the clip's
        (0, 1.5, {}, 0.0, 0.0, False),  # nothing to clip
        # clip-higher, arXiv:2503.14476
        (1, 1.25, HIGHER, -1.25, -1.25, False),
        (1, 1.5, HIGHER, -1.28, 0.0, True),
        (-1, 0.75, HIGHER, 0.8, 0.0, True),  # lower bound still 1 - 0.2
        (1, 1.5, {"cliprange_high": 0.0}, -1.0, 0.0, True),  # 0 is a bound, not "none"
        # dual clip, arXiv:1912.09729
        (-2, 5.0, DUAL, 6.0, 0.0, True),  # max(-10, 3 * -2) = -6
        (-2, 2.5, DUAL, 5.0, 5.0, False),  # max(-5, -6) = -5
        (-2, 0.5, DUAL, 1.6, 0.0, True),  # the first clip's, as before
        (2, 5.0, DUAL, -2.4, 0.0, True),  # A > 0: max has no effect
    ],
)
def test_clip(advantage, ratio, options, loss, gradient, clipped):
    log_prob, old = torch.tensor([[math.log(ratio)]], requires_grad=True), torch.zeros(1, 1, requires_grad=True)
    found, metadata = compute_grpo_clip_loss(torch.tensor([[float(advantage)]]), log_prob, old, 0.2, **options)
    found.sum().backward()
    assert (found.item(), log_prob.grad.item()) == (pytest.approx(loss), pytest.approx(gradient))
    assert (metadata["clipped"].item(), metadata["ratio"].item()) == (clipped, pytest.approx(ratio))
    assert old.grad is None


def test_metadata_tells_the_two_clips_apart_and_carries_no_gradient():
    log_probs = torch.tensor([[5.0, 0.5, 1.0]]).log().requires_grad_()
    _, metadata = compute_grpo_clip_loss(torch.tensor([[-1.0]]), log_probs, torch.zeros(1, 3), 0.2, dual_clip=3.0)
    assert metadata["clipped"].tolist() == [[True, True, False]]
    assert metadata["dual_clipped"].tolist() == [[True, False, False]]
    assert [name for name, tensor in metadata.items() if tensor.requires_grad] == []
    _, metadata = compute_grpo_clip_loss(torch.tensor([[-1.0]]), log_probs, torch.zeros(1, 3), 0.2)
    assert sorted(metadata) == ["clipped", "ratio"]


# p / p_old is 2 and 1/2 on the two tokens of each row.
OLD = torch.tensor([[0.2, 0.6], [0.2, 0.6]]).log()
NEW = torch.tensor([[0.4, 0.3], [0.4, 0.3]]).log()
DELTAS = torch.tensor([[3.0], [-1.0]])
NAIVE = [[2.7488721, 3.6119184], [-0.9162907, -1.2039728]]  # -delta * log p, of ln 0.4 and ln 0.3
WITH_OLD = {"advantages": DELTAS, "old_log_probs": OLD}
LOSSES = [
    ("no_baseline", {"raw_rewards": DELTAS}, NAIVE),
    ("reinforce_with_baseline", {"advantages": DELTAS}, NAIVE),
    ("naive", {"advantages": DELTAS}, NAIVE),
    ("unclipped", WITH_OLD, [[-6.0, -1.5], [2.0, 0.5]]),  # -delta * ratio
    # 3 * min(2, 1.01) and 3 * min(0.5, 0.99); of the delta -1 the lower of -2 and -1.01, and of -0.5 and -0.99
    ("grpo_clip", {**WITH_OLD, "cliprange": 0.01}, [[-3.03, -1.5], [2.0, 0.99]]),
    # -clip(ratio) * delta * log p, with weights 1.01 and 0.99
    ("cispo", {**WITH_OLD, "cliprange": 0.01}, [[2.7763608, 3.5757992], [-0.9254536, -1.1919331]]),
]


@pytest.mark.parametrize(("kind", "arguments", "expected"), LOSSES)
def test_every_loss_by_hand_and_what_it_needs(kind, arguments, expected):
    unused = {"raw_rewards": -DELTAS} if "advantages" in arguments else {"advantages": -DELTAS}
    loss, metadata = compute_policy_gradient_loss(NEW, kind, **arguments, **unused)
    assert loss.tolist() == [pytest.approx(row) for row in expected]
    assert sorted(metadata) == ([] if expected is NAIVE else ["ratio"] if kind == "unclipped" else ["clipped", "ratio"])
    by_itself = {
        "unclipped": lambda: compute_unclipped_loss(DELTAS, NEW, OLD)[0],
        "grpo_clip": lambda: compute_grpo_clip_loss(DELTAS, NEW, OLD, 0.01)[0],
        "cispo": lambda: compute_cispo_loss(DELTAS, NEW, OLD, 0.01)[0],
    }
    assert torch.equal(by_itself.get(kind, lambda: compute_naive_policy_gradient_loss(DELTAS, NEW))(), loss)
    for missing in arguments:
        rest = {name: value for name, value in (arguments | unused).items() if name != missing}
        with pytest.raises(UserError, match=rf"'{kind}' needs {missing}[\s\S]*fix: +pass {missing}"):
            compute_policy_gradient_loss(NEW, kind, **rest)


def test_an_advantage_for_each_token_is_its_own():
    loss = compute_naive_policy_gradient_loss(torch.tensor([[2.0, 3.0]]), torch.tensor([[-1.0, -1.0]]))
    assert loss.tolist() == [[2.0, 3.0]]


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_an_absurd_ratio_gives_no_nan(advantage):
    log_probs = torch.tensor([[1000.0, math.inf, -1000.0, -math.inf, 0.0]], requires_grad=True)
    loss, _ = compute_grpo_clip_loss(torch.tensor([[advantage]]), log_probs, torch.zeros(1, 5), 0.2)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert log_probs.grad.tolist() == [[0.0, 0.0, 0.0, 0.0, -advantage]]


def test_half_precision_log_probs_are_computed_in_float32():
    log_probs, old = torch.tensor([[-1.0]], dtype=torch.bfloat16), torch.tensor([[-1.01]], dtype=torch.float32)
    loss, _ = compute_grpo_clip_loss(torch.ones(1, 1, dtype=torch.bfloat16), log_probs, old, 0.2)
    assert (loss.dtype, loss.item()) == (torch.float32, pytest.approx(-math.exp(0.01)))
    near_one = torch.tensor([[1.0078125]]).bfloat16()
    naive = compute_naive_policy_gradient_loss(near_one, -near_one)
    assert (naive.dtype, naive.item()) == (torch.float32, 1.0078125**2)  # 2**-14 would be lost in bfloat16


def clip_of(advantages, log_probs, old, cliprange=0.2, **options):
    return lambda: compute_grpo_clip_loss(*map(torch.ones, (advantages, log_probs, old)), cliprange, **options)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (clip_of((2,), (2, 2), (2, 2)), r"advantages has shape \(2,\), expected \(2, 1\)"),
        (clip_of((1, 1), (2, 3), (2, 3)), r"advantages has shape \(1, 1\), expected \(2, 1\)"),
        (clip_of((2, 1), (2, 3), (2, 4)), r"old_log_probs has shape \(2, 4\) and policy_log"),
        (clip_of((2, 1), (2,), (2,)), r"policy_log_probs has shape \(2,\), expected two dim"),
        (clip_of((1, 1), (1, 1), (1, 1), -0.1), "cliprange is -0.1, it must be at least 0"),
        (clip_of((1, 1), (1, 1), (1, 1), math.nan), "cliprange is nan"),
        (clip_of((1, 1), (1, 1), (1, 1), cliprange_high=-1.0), "cliprange_high is -1.0, it must be at least 0"),
        (clip_of((1, 1), (1, 1), (1, 1), dual_clip=1.0), "dual_clip is 1.0, it must be above 1"),
        (
            lambda: compute_policy_gradient_loss(torch.zeros(1, 2), "grpo-clip"),
            r"'grpo-clip', expected one of no_baseline, rein[\s\S]*use 'grpo_clip'",
        ),
        (lambda: compute_naive_policy_gradient_loss(torch.ones(2), torch.ones(2, 2)), r"shape \(2,\), expected"),
    ],
)
def test_wrong_shapes_bounds_and_names_are_refused(ask, message):
    with pytest.raises(UserError, match=message):
        ask()
