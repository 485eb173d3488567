"""Importance weights proximal / engine: every mode and level by hand, their expectations, refusals."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.core.errors import UserError
from harness.core.types import Metric
from harness.grpo.importance import importance_weights
from harness.grpo.tally import to_metrics
from harness.grpo.tokens import TokenBatch
from harness.settings.loss import ImportanceSettings

PROPERTY = settings(deadline=None, derandomize=True, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
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


def figures(options, proximal=PROXIMAL, engine=ENGINE, mask=MASK):
    weights, tallies = importance_weights(
        TokenBatch(proximal, mask, old_log_probs=proximal, engine_log_probs=engine), options
    )
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


def test_off_weighs_every_token_alike_and_reports_the_gap_only():
    weights, metrics = figures(ImportanceSettings())
    assert weights.tolist() == MASK.tolist()
    assert list(metrics) == ["engine_mismatch/kl"]


def test_the_geometric_mean_leaves_out_by_the_token_and_the_product_by_the_response():
    """Ratio 1.1 on each of 1 and 20 tokens: geometric mean 1.1 for both, product 1.1 and 1.1 ** 20 = 6.7275."""
    mask = torch.zeros(2, 20, dtype=torch.bool)
    mask[0, 0], mask[1, :] = True, True
    proximal, engine = torch.full((2, 20), math.log(1.1)), torch.zeros(2, 20)
    by_response, metrics = figures(ImportanceSettings(mode="icepop", level="sequence"), proximal, engine, mask)
    assert by_response[0, 0].item() == pytest.approx(1.1)
    assert by_response[1].tolist() == [0.0] * 20
    assert metrics["importance/max"].value == pytest.approx(6.7275, abs=1e-4)
    by_token, metrics = figures(ImportanceSettings(mode="seq-mask-tis", cap=2.0, floor=0.5), proximal, engine, mask)
    assert by_token[mask].tolist() == pytest.approx([1.1] * 21)
    assert metrics["importance/masked_fraction"].value == 0.0


def test_the_expectations_of_a_known_pair_of_policies():
    """Engine p = (.5 .3 .2), proximal q = (.4 .4 .2), ten tokens in p's shares: 5, 3 and 2.

    E_p[q / p] = 1, KL(p || q) = .5 ln(.5 / .4) + .3 ln(.3 / .4) = 0.0252672, and for f = (1 2 3) the weighted mean
    E_p[w f] is E_q[f] = .4 + .8 + .6 = 1.8, where E_p[f] is .5 + .6 + .6 = 1.7.
    """
    tokens = torch.tensor([[0] * 5 + [1] * 3 + [2] * 2])
    engine = torch.tensor([0.5, 0.3, 0.2]).log()[tokens]
    proximal = torch.tensor([0.4, 0.4, 0.2]).log()[tokens]
    weights, metrics = figures(ImportanceSettings(mode="tis"), proximal, engine, torch.ones(1, 10))
    assert (weights * (tokens + 1)).mean().item() == pytest.approx(1.8)
    assert metrics["importance/mean"].value == pytest.approx(1.0)
    assert metrics["importance/max"].value == pytest.approx(4 / 3)
    assert metrics["engine_mismatch/kl"].value == pytest.approx(0.0252672, abs=1e-6)


@pytest.mark.parametrize(
    ("mode", "bounds"),
    # NeMo-RL's docs/guides/prorlv2.md for the last two; the cap of Yao et al. 2025 for tis, which has no floor
    [("tis", (0.0, 2.0)), ("icepop", (0.5, 5.0)), ("seq-mask-tis", (0.999, 1.002))],
)
def test_every_mode_has_bounds_of_its_own(mode, bounds):
    assert ImportanceSettings(mode=mode).bounds == bounds
    assert ImportanceSettings(mode=mode, cap=3.0).bounds == (bounds[0], 3.0)
    assert ImportanceSettings(mode=mode, floor=0.25).bounds == (0.25, bounds[1])


def test_seq_mask_tis_masks_a_response_in_which_one_token_is_far_off():
    """Audit A3: with [0.5, 2] a ratio of 2981 among 64 tokens passed, geometric mean 2981 ** (1 / 64) = 1.133, and its
    weight stayed 2981; with the mode's own bounds the response is left out, and one with a mean of 1.001 is not.
    """
    log_ratio = torch.zeros(2, 64)
    log_ratio[0, 5] = 8.0  # e ** 8 = 2981
    log_ratio[1, 5] = 64 * math.log(1.001)
    weights, metrics = figures(
        ImportanceSettings(mode="seq-mask-tis"), log_ratio, torch.zeros(2, 64), torch.ones(2, 64)
    )
    assert weights[0].tolist() == [0.0] * 64
    assert weights[1, 5].item() == pytest.approx(1.001**64)  # not truncated
    assert metrics["importance/masked_fraction"].value == 0.5
    wide = ImportanceSettings(mode="seq-mask-tis", cap=2.0, floor=0.5)
    assert figures(wide, log_ratio, torch.zeros(2, 64), torch.ones(2, 64))[0].max().item() == pytest.approx(2980.958)


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
def test_no_gradient_reaches_either_policy(options):
    proximal, engine = PROXIMAL.clone().requires_grad_(), ENGINE.clone().requires_grad_()
    weights, tallies = importance_weights(
        TokenBatch(proximal, MASK, old_log_probs=proximal, engine_log_probs=engine), options
    )
    assert not weights.requires_grad
    assert [name for name, tally in tallies.items() if tally.value.requires_grad] == []


@pytest.mark.parametrize("options", EVERY_OPTION)
def test_half_precision_is_computed_in_float32_and_float64_in_its_own(options):
    assert (
        importance_weights(
            TokenBatch(
                PROXIMAL.bfloat16(), MASK, old_log_probs=PROXIMAL.bfloat16(), engine_log_probs=ENGINE.bfloat16()
            ),
            options,
        )[0].dtype
        == torch.float32
    )
    assert (
        importance_weights(
            TokenBatch(PROXIMAL.double(), MASK, old_log_probs=PROXIMAL.double(), engine_log_probs=ENGINE.double()),
            options,
        )[0].dtype
        == torch.float64
    )


@PROPERTY
@given(
    seed=st.integers(0, 10_000),
    options=st.sampled_from(EVERY_OPTION),
    poison=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]),
)
def test_rows_weigh_alike_alone_and_together_and_masked_tokens_never_matter(seed, options, poison):
    random = torch.Generator().manual_seed(seed)
    mask = torch.rand(4, 6, generator=random) < 0.6
    engine = -torch.rand(4, 6, generator=random)
    proximal = engine + 0.6 * torch.randn(4, 6, generator=random)
    together, metrics = figures(options, proximal, engine, mask)
    poisoned = figures(options, torch.where(mask, proximal, poison), torch.where(mask, engine, -poison), mask)
    assert torch.equal(poisoned[0], together)
    assert poisoned[1] == metrics
    for row in range(4):
        alone = importance_weights(
            TokenBatch(
                proximal[row, None],
                mask[row, None],
                old_log_probs=proximal[row, None],
                engine_log_probs=engine[row, None],
            ),
            options,
        )[0]
        torch.testing.assert_close(alone, together[row, None])
    assert together[~mask].tolist() == [0.0] * int((~mask).sum())
    floor, cap = options.bounds
    if options.mode == "tis":
        assert together.max() <= cap
    if options.mode == "icepop":
        kept = together[together > 0]
        assert ((kept >= floor) & (kept <= cap)).all()


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


@pytest.mark.parametrize(
    "options",
    [{"mode": "mis"}, {"level": "group"}, {"cap": 0.9}, {"cap": math.nan}, {"floor": -0.1}, {"floor": 1.1}],
)
def test_bad_settings_are_refused(options):
    with pytest.raises(ValidationError) as error:
        ImportanceSettings.model_validate(options)
    assert [each["loc"][0] for each in error.value.errors()] == list(options)


def test_importance_is_off_by_default():
    assert ImportanceSettings() == ImportanceSettings(mode="off", level="token", cap=None, floor=None)
