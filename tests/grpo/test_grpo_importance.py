"""Importance weights proximal / engine: every mode and level by hand, their expectations, refusals."""

import math

import pytest
import torch

from harness.core.errors import UserError
from harness.core.types import Metric
from harness.grpo.importance import importance_weights
from harness.grpo.tally import to_metrics
from harness.grpo.tokens import TokenBatch
from harness.settings.loss import ImportanceSettings

EVERY_OPTION = [
    ImportanceSettings(mode="off"),
    ImportanceSettings(mode="tis"),
    ImportanceSettings(mode="tis", level="sequence"),
    ImportanceSettings(mode="icepop"),
    ImportanceSettings(mode="icepop", level="sequence"),
    ImportanceSettings(mode="seq-mask-tis"),
]
# Ratios of three responses of 3, 2 and 1 tokens, and an empty one. Products 4 * 0.5 * 1.5 = 3, 0.25 * 0.5 = 0.125 and
# 1.5; geometric means 3 ** (1 / 3) = 1.442, 0.125 ** (1 / 2) = 0.354 and 1.5.
RATIOS = torch.tensor([[4.0, 0.5, 1.5], [0.25, 0.5, 9.0], [1.5, 9.0, 9.0], [9.0, 9.0, 9.0]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]])
ENGINE = torch.tensor([[-1.0, -2.0, -0.5], [-3.0, -0.1, -1.0], [-0.7, -1.0, -1.0], [-1.0, -1.0, -1.0]])
PROXIMAL = ENGINE + RATIOS.log()
SIX_TOKENS = 6


def weights_of(options, proximal, engine, mask=MASK):
    return importance_weights(TokenBatch(proximal, mask, old_log_probs=proximal, engine_log_probs=engine), options)


def figures(options, proximal=PROXIMAL, engine=ENGINE, mask=MASK):
    weights, tallies = weights_of(options, proximal, engine, mask)
    return weights, to_metrics(tallies)


@pytest.mark.parametrize(
    ("mode", "level", "expected", "mean", "largest", "truncated", "masked"),
    # cap 2.5, floor 0.4. Sum of the token ratios 4 + 0.5 + 1.5 + 0.25 + 0.5 + 1.5 = 8.25;
    # sum of the products, once for each token, 3 * 3 + 2 * 0.125 + 1.5 = 10.75
    [
        ("tis", "token", [[2.5, 0.5, 1.5], [0.25, 0.5, 0], [1.5, 0, 0]], 8.25, 4.0, 1, 0),
        ("tis", "sequence", [[2.5, 2.5, 2.5], [0.125, 0.125, 0], [1.5, 0, 0]], 10.75, 3.0, 3, 0),
        ("icepop", "token", [[0, 0.5, 1.5], [0, 0.5, 0], [1.5, 0, 0]], 8.25, 4.0, 2, 2),
        ("icepop", "sequence", [[0, 0, 0], [0, 0, 0], [1.5, 0, 0]], 10.75, 3.0, 5, 5),
        ("seq-mask-tis", "token", [[4.0, 0.5, 1.5], [0, 0, 0], [1.5, 0, 0]], 8.25, 4.0, 2, 2),
    ],
)
def test_every_mode_by_hand(mode, level, expected, mean, largest, truncated, masked):
    weights, metrics = figures(ImportanceSettings(mode=mode, level=level, cap=2.5, floor=0.4))
    torch.testing.assert_close(weights, torch.tensor([*expected, [0, 0, 0]], dtype=torch.float32))
    # KL, k3: mean of w - 1 - log w, with the product of all six ratios 3 * 0.125 * 1.5 = 0.5625
    gap = (8.25 - SIX_TOKENS - math.log(0.5625)) / SIX_TOKENS
    assert metrics == {
        "engine_mismatch/kl": Metric(pytest.approx(gap), "mean", SIX_TOKENS),
        "importance/mean": Metric(pytest.approx(mean / SIX_TOKENS), "mean", SIX_TOKENS),
        "importance/max": Metric(pytest.approx(largest), "max", SIX_TOKENS),
        "importance/truncated_fraction": Metric(pytest.approx(truncated / SIX_TOKENS), "mean", SIX_TOKENS),
        "importance/masked_fraction": Metric(pytest.approx(masked / SIX_TOKENS), "mean", SIX_TOKENS),
    }


def test_off_is_the_default_weighs_every_token_alike_and_reports_the_gap_only():
    weights, metrics = figures(ImportanceSettings())
    assert weights.tolist() == MASK.tolist()
    assert list(metrics) == ["engine_mismatch/kl"]


@pytest.mark.parametrize(
    ("mode", "bounds"),
    # NeMo-RL's docs/guides/prorlv2.md for the last two; the cap of Yao et al. 2025 for tis, which has no floor
    [("tis", (0.0, 2.0)), ("icepop", (0.5, 5.0)), ("seq-mask-tis", (0.999, 1.002))],
)
def test_every_mode_has_bounds_of_its_own(mode, bounds):
    assert ImportanceSettings(mode=mode).bounds == bounds
    assert ImportanceSettings(mode=mode, cap=3.0).bounds == (bounds[0], 3.0)
    assert ImportanceSettings(mode=mode, floor=0.25).bounds == (0.25, bounds[1])


@pytest.mark.parametrize("options", EVERY_OPTION)
@pytest.mark.parametrize("bound", [2.0, 1.0])
def test_equal_policies_give_exactly_one(options, bound):
    options = ImportanceSettings(mode=options.mode, level=options.level, cap=bound, floor=1 / bound)
    weights, metrics = figures(options, ENGINE, ENGINE)
    assert weights.tolist() == MASK.tolist()
    assert metrics["engine_mismatch/kl"].value == 0.0
    if options.mode != "off":
        assert [metrics[f"importance/{name}_fraction"].value for name in ("truncated", "masked")] == [0.0, 0.0]
        assert [metrics[f"importance/{name}"].value for name in ("mean", "max")] == [1.0, 1.0]


@pytest.mark.parametrize("options", EVERY_OPTION)
def test_no_gradient_reaches_either_policy_and_float32_is_the_least(options):
    weights, tallies = weights_of(options, PROXIMAL.clone().requires_grad_(), ENGINE.clone().requires_grad_())
    assert not weights.requires_grad
    assert [name for name, tally in tallies.items() if tally.value.requires_grad] == []
    for given_as, wanted in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        assert weights_of(options, PROXIMAL.to(given_as), ENGINE.to(given_as))[0].dtype == wanted


@pytest.mark.parametrize(
    ("options", "expected"),
    # the first token's log ratio is 300, and counts as 80 in a ratio; it puts the geometric mean out of range too
    [
        (ImportanceSettings(mode="tis"), [2.0, 1.0]),
        (ImportanceSettings(mode="tis", level="sequence"), [2.0, 2.0]),
        (ImportanceSettings(mode="icepop"), [0.0, 1.0]),
        (ImportanceSettings(mode="icepop", level="sequence"), [0.0, 0.0]),
        (ImportanceSettings(mode="seq-mask-tis"), [0.0, 0.0]),
    ],
)
def test_a_ratio_out_of_all_bounds_stays_finite(options, expected):
    proximal, engine = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-301.0, -1.0]])
    weights, metrics = figures(options, proximal, engine, torch.ones(1, 2))
    assert weights.tolist() == [expected]
    assert metrics["importance/max"].value == pytest.approx(math.exp(80), rel=1e-4)


@pytest.mark.parametrize("options", [option for option in EVERY_OPTION if option.mode != "off"])
def test_a_log_prob_that_is_no_number_is_not_masked_away(options):
    engine = ENGINE.clone()
    engine[0, 1] = math.nan
    weights, metrics = figures(options, PROXIMAL, engine)
    assert math.isnan(weights[0, 1])
    assert math.isnan(metrics["importance/mean"].value)


def test_shapes_are_checked():
    with pytest.raises(UserError, match=r"engine_log_probs has shape \(4, 2\) and policy_log_probs has shape"):
        TokenBatch(PROXIMAL, MASK, engine_log_probs=ENGINE[:, :2])
    with pytest.raises(UserError, match=r"response_mask has shape \(3, 3\)"):
        TokenBatch(PROXIMAL, MASK[:3])
    with pytest.raises(UserError, match=r"policy_log_probs has shape \(3,\), expected two dimensions"):
        TokenBatch(PROXIMAL[0], MASK[0])
