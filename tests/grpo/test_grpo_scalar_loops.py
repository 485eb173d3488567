"""Every loss, level, aggregation, importance mode and KL against loops over tokens in float64, gradients too."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.grpo.advantages import DELTAS, deltas_per_group, group_deltas
from harness.grpo.aggregate import loss_denominator, prompt_tokens
from harness.grpo.loss import surrogate_loss
from harness.grpo.policy_gradient import LOSSES, NAIVE
from harness.grpo.tokens import TokenBatch
from harness.settings.loss import WITH_RATIO, ImportanceSettings, KlSettings, LossSettings

NAN = math.nan
ROWS, WIDTH = 4, 5
LENGTHS = (5, 3, 1, 0)
PROMPTS = (0, 1, 0, 1)
LOSSES_AND_LEVELS = [*product(LOSSES, ["token"]), *product(WITH_RATIO, ["sequence"])]
IMPORTANCE = [
    ImportanceSettings(mode="off"),
    ImportanceSettings(mode="tis"),
    ImportanceSettings(mode="tis", level="sequence"),
    ImportanceSettings(mode="icepop", cap=1.5),
    ImportanceSettings(mode="icepop", level="sequence"),
    ImportanceSettings(mode="seq-mask-tis", cap=1.2, floor=0.8),
]
KL = [
    (0.0, "k3", False),
    *((0.3, estimator, weighted) for estimator in ("k1", "k2", "k3") for weighted in (False, True)),
]


class Case:
    """Random tensors of one batch, as lists of rows of floats, the masked places left out."""

    def __init__(self, seed):
        random = torch.Generator().manual_seed(seed)

        def normal(scale, *shape):
            return scale * torch.randn(*shape, generator=random, dtype=torch.float64)

        log_probs = -3 * torch.rand(ROWS, WIDTH, generator=random, dtype=torch.float64) - 0.1
        old = log_probs + normal(0.3, ROWS, WIDTH)
        tensors = {"log_probs": log_probs, "old": old, "engine": old + normal(0.4, ROWS, WIDTH)}
        tensors["reference"] = log_probs + normal(0.5, ROWS, WIDTH)
        tensors["entropy"] = normal(1.0, ROWS, WIDTH).abs()
        self.mask = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]
        self.tensors = {name: torch.where(self.mask, tensor, NAN) for name, tensor in tensors.items()}
        self.rows = {
            name: [tensor[row, :length].tolist() for row, length in enumerate(LENGTHS)]
            for name, tensor in tensors.items()
        }
        self.advantages, self.rewards = normal(1.0, ROWS, 1), normal(1.0, ROWS, 1)


def importance_weight(option, row, token, case):
    """The weight of one token, from its row's old and engine log-probs."""
    gaps = [old - engine for old, engine in zip(case.rows["old"][row], case.rows["engine"][row], strict=True)]
    ratio = math.exp(sum(gaps) if option.level == "sequence" else gaps[token])
    floor, cap = option.bounds
    match option.mode:
        case "off":
            return 1.0
        case "tis":
            return min(ratio, cap)
        case "icepop":
            return ratio if floor <= ratio <= cap else 0.0
        case "seq-mask-tis":
            return ratio if floor <= math.exp(sum(gaps) / len(gaps)) <= cap else 0.0
        case other:
            raise AssertionError(f"there are no loops for {other}")


def token_loss(options, row, token, current, case):
    """The loss of one token; ``current`` are the row's log-probs, which differ from the case's by what is varied."""
    frozen, old = case.rows["log_probs"][row], case.rows["old"][row]
    log_ratios = [now - then for now, then in zip(current, old, strict=True)]
    frozen_ratios = [now - then for now, then in zip(frozen, old, strict=True)]
    ratio, held = math.exp(log_ratios[token]), math.exp(frozen_ratios[token])
    token_ratio = ratio
    if options.ratio_level == "sequence":
        ratio = math.exp(sum(log_ratios) / len(log_ratios))
        held = math.exp(sum(frozen_ratios) / len(frozen_ratios))
    low, high = options.clip_range
    advantage = case.advantages[row, 0].item()
    match options.type:
        case "no_baseline":
            loss = -case.rewards[row, 0].item() * current[token]
        case "naive" | "reinforce_with_baseline":
            loss = -advantage * current[token]
        case "unclipped":
            loss = -ratio * advantage
        case "grpo_clip":
            objective = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
            if options.dual_clip is not None and advantage < 0:
                objective = max(objective, options.dual_clip * advantage)
            loss = -objective
        case "cispo":
            loss = -min(max(held, 1 - low), 1 + high) * advantage * current[token]
        case other:
            raise AssertionError(f"there are no loops for {other}")
    loss *= importance_weight(options.importance, row, token, case)
    gap = current[token] - case.rows["reference"][row][token]
    kl = {"k1": gap, "k2": gap * gap / 2, "k3": math.exp(-gap) - 1 + gap}[options.kl.estimator]
    loss += options.kl.coefficient * kl * (token_ratio if options.kl.weighted_by_ratio else 1.0)
    return loss - options.entropy_coefficient * case.rows["entropy"][row][token]


def row_loss(options, aggregation, row, current, case):
    """The share of one row in the batch's loss."""
    divisor = {
        "sequence_mean": ROWS * max(LENGTHS[row], 1),
        "sequence_sum": ROWS,
        "token_mean": sum(LENGTHS),
        "prompt_mean": 2 * sum(LENGTHS[other] for other in range(ROWS) if PROMPTS[other] == PROMPTS[row]),
        "constant": ROWS * 8,
    }[aggregation]
    return sum(token_loss(options, row, token, current, case) for token in range(LENGTHS[row])) / divisor


def weights_of(mask, aggregation):
    prompts = torch.tensor(PROMPTS)
    return loss_denominator(mask, aggregation, 8, prompts).token_weights(mask, prompt_tokens(mask, prompts))


def derivative(options, aggregation, row, token, case, step=1e-5):
    """Central difference of the row's share by one log-prob."""
    values = []
    for change in (step, -step):
        current = list(case.rows["log_probs"][row])
        current[token] += change
        values.append(row_loss(options, aggregation, row, current, case))
    return (values[0] - values[1]) / (2 * step)


def test_each_loss_is_naive_or_has_a_ratio():
    assert {*NAIVE} | {*WITH_RATIO} == {*LOSSES}
    assert not {*NAIVE} & {*WITH_RATIO}


@pytest.mark.parametrize(
    ("loss_type", "level", "aggregation"),  # of which the loss knows the weights alone
    [(*loss, "prompt_mean") for loss in LOSSES_AND_LEVELS]
    + [("grpo_clip", "token", name) for name in ("sequence_mean", "sequence_sum", "token_mean", "constant")],
)
def test_value_and_gradient_are_those_of_loops_over_tokens(loss_type, level, aggregation):
    for number, (importance, (coefficient, estimator, weighted)) in enumerate(product(IMPORTANCE, KL)):
        case = Case(number)
        options = LossSettings(
            type=loss_type,
            cliprange=None if number % 3 == 0 else 0.15,
            cliprange_high=None if number % 3 == 0 else 0.25,
            dual_clip=1.3 if loss_type == "grpo_clip" and number % 2 else None,
            importance=importance,
            ratio_level=level,
            entropy_coefficient=0.2 if number % 2 else 0.0,
            kl=KlSettings(coefficient=coefficient, estimator=estimator, weighted_by_ratio=weighted),
        )
        log_probs = case.tensors["log_probs"].clone().requires_grad_()
        entropy = case.tensors["entropy"].clone().requires_grad_()
        loss, tallies = surrogate_loss(
            TokenBatch(
                log_probs,
                case.mask,
                raw_rewards=case.rewards,
                advantages=case.advantages,
                old_log_probs=case.tensors["old"],
                reference_log_probs=case.tensors["reference"],
                entropy=entropy,
                engine_log_probs=case.tensors["engine"],
            ),
            weights_of(case.mask, aggregation),
            options,
        )
        loss.backward()
        rows = [row_loss(options, aggregation, row, case.rows["log_probs"][row], case) for row in range(ROWS)]
        assert loss.item() == pytest.approx(math.fsum(rows), abs=1e-6)
        for row, length in enumerate(LENGTHS):
            slopes = [derivative(options, aggregation, row, token, case) for token in range(length)]
            assert log_probs.grad[row, :length].tolist() == pytest.approx(slopes, abs=1e-6)
            assert log_probs.grad[row, length:].tolist() == [0.0] * (WIDTH - length)
        if options.entropy_coefficient:
            shares = weights_of(case.mask, aggregation)
            assert entropy.grad.flatten().tolist() == pytest.approx((-0.2 * shares).flatten().tolist(), abs=1e-9)
        else:
            assert entropy.grad is None
        assert all(math.isfinite(tally.value.item()) for tally in tallies.values())


def test_gspo_clips_whole_responses_and_reports_so():
    """Ratios of the tokens 1.5 and 1 / 1.5 (mean 1), and 1.2 three times (mean 1.2), of responses with A = 1."""
    ratios, mask = torch.tensor([[1.5, 1 / 1.5, 9.0], [1.2, 1.2, 1.2]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    tokens = TokenBatch(ratios.log(), mask, advantages=torch.ones(2, 1), old_log_probs=torch.zeros(2, 3))
    weights = loss_denominator(mask).token_weights(mask)
    for level, value, clipped in (("sequence", 1.0 + 1.1, 3), ("token", (1.1 + 1 / 1.5) / 2 + 1.1, 4)):
        options = LossSettings(type="grpo_clip", cliprange=0.1, ratio_level=level)
        loss, tallies = surrogate_loss(tokens, weights, options)
        found = tallies["clip_fraction"]
        assert loss.item() == pytest.approx(-value / 2)
        assert (found.value.item(), found.count.item()) == (clipped, 5)


@pytest.mark.parametrize(
    ("options", "clip_range"),
    [
        (LossSettings(), (0.2, 0.2)),  # PPO, arXiv:1707.06347
        (LossSettings(ratio_level="sequence"), (3e-4, 4e-4)),  # GSPO, arXiv:2507.18071, section 5.1
        (LossSettings(type="cispo"), (1.0, 4.0)),  # weights from 0 to 5
        (LossSettings(type="cispo", cliprange=0.3), (0.3, 0.3)),
        (LossSettings(type="cispo", cliprange_high=2.0), (1.0, 2.0)),
        (LossSettings(cliprange=0.1, cliprange_high=0.28), (0.1, 0.28)),
    ],
)
def test_every_type_has_a_clip_range_of_its_own(options, clip_range):
    assert options.clip_range == clip_range


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_times_the_ratio_k1_and_k3_have_the_gradient_of_the_kl_wherever_the_tokens_came_from(estimator):
    """Expectations over a vocabulary of four, tokens of an older policy; KL(p || q) by definition, with autograd."""
    logits = torch.tensor([0.4, -0.3, 0.1, 0.9], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    reference = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)

    def gradient(value):
        return torch.autograd.grad(value, logits)[0]

    log_p = logits.log_softmax(0)
    truth = gradient((log_p.exp() * (log_p - reference.log())).sum())
    found = {}
    for weighted in (False, True):
        log_p = logits.log_softmax(0)
        loss, _ = surrogate_loss(
            TokenBatch(
                log_p[:, None],
                torch.ones(4, 1),
                advantages=torch.zeros(4, 1),
                old_log_probs=old.log()[:, None],
                reference_log_probs=reference.log()[:, None],
            ),
            old[:, None],
            LossSettings(type="naive", kl=KlSettings(coefficient=1.0, estimator=estimator, weighted_by_ratio=weighted)),
        )
        found[weighted] = (gradient(loss) - truth).abs().max().item()
    assert found[False] > 0.05
    assert (found[True] < 1e-9) == (estimator != "k2")  # weighted k2 is that of E[d * d / 2], another divergence


def by_loops(groups, delta):
    """Advantages of one delta by loops over the groups, eps 1e-6."""

    def mean(values):
        return math.fsum(values) / len(values)

    def deviation(values):
        return math.sqrt(math.fsum((value - mean(values)) ** 2 for value in values) / (len(values) - 1)) + 1e-6

    every_reward = [reward for group in groups for reward in group]
    every_centred = [reward - mean(group) for group in groups for reward in group]
    found = []
    for group in groups:
        for place, reward in enumerate(group):
            centred = reward - mean(group)
            found.append(
                {
                    "rewards": reward,
                    "centered_rewards": centred,
                    "normalized_rewards": centred / deviation(group),
                    "max_rewards": reward * (reward == max(group)),
                    "max_centered_rewards": centred * (reward == max(group)),
                    "leave_one_out_rewards": reward - mean(group[:place] + group[place + 1 :]),
                    "batch_normalized_rewards": centred / deviation(every_reward),
                    "batch_whitened_rewards": centred / deviation(every_centred),
                }[delta]
            )
    return found


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    groups=st.lists(
        st.lists(st.integers(-8, 8).map(lambda eighths: eighths / 8), min_size=2, max_size=5), min_size=1, max_size=5
    ),
    delta=st.sampled_from(DELTAS),
)
def test_advantages_are_those_of_loops_over_the_groups(groups, delta):
    expected = pytest.approx(by_loops(groups, delta), abs=1e-5)
    assert deltas_per_group(groups, delta).tolist() == expected
    if len({len(group) for group in groups}) == 1:
        assert group_deltas(torch.tensor(groups), len(groups[0]), delta).tolist() == expected


def test_the_baselines_of_three_papers_on_one_example():
    """Rewards 0 1 1 1 | 0 0 0 1: means 3/4 and 1/4, standard deviation of all eight sqrt(2 / 7), of the centred ones
    sqrt(8 * 3/16 / 7) = sqrt(3 / 14)."""
    groups = [[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]]
    centred = [-0.75, 0.25, 0.25, 0.25, -0.25, -0.25, -0.25, 0.75]
    loo = deltas_per_group(groups, "leave_one_out_rewards").tolist()
    assert loo == pytest.approx([value * 4 / 3 for value in centred])  # 0 - 1, 1 - 2/3 ..., and 1 - 0
    batch = deltas_per_group(groups, "batch_normalized_rewards").tolist()
    assert batch == pytest.approx([value / math.sqrt(2 / 7) for value in centred], abs=1e-5)
    whitened = deltas_per_group(groups, "batch_whitened_rewards").tolist()
    assert whitened == pytest.approx([value / math.sqrt(3 / 14) for value in centred], abs=1e-5)
