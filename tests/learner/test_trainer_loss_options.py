"""Loss options in the training step: truncated responses, the entropy bonus, the ban on an early end, own functions."""

from collections.abc import Collection
from dataclasses import replace

import pytest
import torch

from harness.core.errors import UserError
from harness.core.types import Completion, Metric, RolloutGroup
from harness.learner import PolicyTrainer, TrainerOptions
from harness.learner.plugins import PluginAdvantage, PluginLoss
from harness.models.decoder import DecoderLM
from harness.settings.loss import LossSettings
from tests.learner import tiny_training
from tests.learner.tiny_training import (
    CONFIG,
    OPTIONS,
    changed,
    gradients,
    plain_logits,
    train_on,
    trained,
    truncated,
    with_completions,
)

EOS = 16


def groups(cut: Collection[int] = (), seed: int = 0) -> tuple[RolloutGroup, ...]:
    """Three groups of four responses, those of these numbers cut at ``max_tokens``; no response holds the end."""
    return truncated(tiny_training.groups(seed, tokens=EOS), cut)


def new_trainer(options: TrainerOptions) -> PolicyTrainer:
    return PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options, ends=(EOS,))


@pytest.mark.parametrize("aggregation", ["sequence_mean", "sequence_sum", "token_mean", "prompt_mean", "constant"])
def test_truncated_responses_carry_no_gradient_and_still_count_in_their_group(aggregation: str) -> None:
    """Other tokens in the cut responses change nothing; the advantages of the others are what they were."""
    cut = (1, 6, 7)
    options = changed(OPTIONS, loss__aggregation=aggregation, loss__constant=8, loss__mask_truncated=True)
    found, metrics = gradients(groups(cut), options)
    assert metrics["loss_mask/truncated_fraction"] == Metric(3 / 12, count=12)
    other = with_completions(
        groups(cut), lambda number, each: replace(each, token_ids=(each.token_ids + (number in cut)) % EOS)
    )
    again, _ = gradients(other, options)
    assert all(torch.equal(gradient, again[name]) for name, gradient in found.items())
    unmasked, _ = gradients(groups(cut), changed(options, loss__mask_truncated=False))
    assert max(float((unmasked[name] - gradient).abs().max()) for name, gradient in found.items()) > 1e-4
    rollouts = new_trainer(options).prepare(groups(cut)).rollouts
    uncut = new_trainer(OPTIONS).prepare(groups()).rollouts
    torch.testing.assert_close(rollouts.advantages_B1, uncut.advantages_B1)
    assert rollouts.response_mask_BT.any(dim=1).tolist() == [number not in cut for number in range(12)]


def test_the_gradient_of_the_bonus_is_minus_the_mean_entropys() -> None:
    """With rewards that are all equal only the bonus is left: its gradient against autograd on plain forward passes."""
    made = tuple(replace(group, rewards=(1.0,) * 4) for group in groups())
    loss = LossSettings(type="grpo_clip", entropy_coefficient=0.5)
    found, metrics = gradients(made, changed(OPTIONS, loss=loss, loss__aggregation="token_mean"))
    model = DecoderLM(CONFIG, seed=1)
    log_p = torch.cat(plain_logits(model, made)).log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1).mean()
    (-0.5 * entropy).backward()
    assert metrics["token_entropy"].value == pytest.approx(entropy.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-5, rtol=1e-3)


def test_with_the_ban_the_ratio_to_the_engine_is_exact() -> None:
    """An engine of the same weights that could not end within 2 tokens: ratio 1 with the ban, below it without."""
    logits = [row.detach() for row in plain_logits(DecoderLM(CONFIG, seed=1), groups())]

    def held(number: int, each: Completion) -> Completion:
        logits[number][:2, EOS] = -torch.inf
        log_probs = logits[number].log_softmax(-1).gather(1, torch.as_tensor(each.token_ids)[:, None])[:, 0]
        return replace(each, log_probs=log_probs.numpy())

    made, ratios = with_completions(groups(), held), {}
    for first in (0, 2):
        _, metrics = gradients(made, replace(OPTIONS, behaviour_is_engine=True, ban_eos_first=first), (EOS,))
        ratios[first] = (metrics["ratio/mean"].value, metrics["ratio/max"].value)
    assert ratios[2] == pytest.approx((1.0, 1.0), abs=1e-5)
    assert ratios[0][0] < 0.99  # 1 - p(end) of two tokens of about five, with p near 1 / 17
    with pytest.raises(UserError, match="ban_eos_first is 2"):
        PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, replace(OPTIONS, ban_eos_first=2))


def test_own_loss_and_advantage_train_as_the_built_in_ones_bit_for_bit() -> None:
    own = changed(
        OPTIONS,
        loss__type="own",
        loss__cliprange=0.1,
        loss__cliprange_high=0.2,
        own_advantage=PluginAdvantage("docs.examples.own_loss.losses:leave_one_out", 4),
        epochs_per_batch=3,
        own_loss=PluginLoss("docs.examples.own_loss.losses:cispo"),
    )
    built_in = changed(own, loss__type="cispo", own_loss=None, own_advantage=None)
    built_in = changed(built_in, advantage__delta="leave_one_out_rewards")
    (weights, metrics), (others, wanted) = trained(own, steps=3), trained(built_in, steps=3)
    assert [name for name in weights if not torch.equal(weights[name], others[name])] == []
    assert 0 < metrics["own/clip_fraction"] == wanted["clip_fraction"] < 1


def test_an_own_advantage_hears_of_lengths_and_of_what_was_cut() -> None:
    seen: list[dict[str, torch.Tensor]] = []

    def advantage(**of_groups: torch.Tensor) -> torch.Tensor:
        seen.append(of_groups)
        return of_groups["rewards"] * 2

    trainer, made = new_trainer(replace(OPTIONS, own_advantage=advantage)), groups((1, 6))
    rollouts = trainer.prepare(made).rollouts
    assert seen[0]["truncated"].nonzero().tolist() == [[0, 1], [1, 2]]
    assert seen[0]["lengths"].tolist() == [list(group.lengths) for group in made]
    assert rollouts.advantages_B1[:, 0].tolist() == [2 * reward for group in made for reward in group.rewards]
    with pytest.raises(UserError, match=r"the groups have \[3, 4\] rewards"):
        trainer.prepare((replace(made[0], rewards=(0.0, 1.0, 0.5)), *made[1:]))


@pytest.mark.parametrize("accumulation", [1, 5])
def test_the_share_of_responses_with_a_weight_in_the_loss_is_counted(accumulation: int) -> None:
    """Of 12: group 0 has equal rewards but for their last bit, group 1 lost two cut ones, and in group 2 all count."""
    options = changed(OPTIONS, loss__mask_truncated=True, gradient_accumulation_steps=accumulation)
    near, *rest = groups((4, 7))
    made = (replace(near, rewards=(0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2)), *rest)
    metrics = gradients(made, options)[1]
    assert metrics["advantage/nonzero_fraction"] == Metric(pytest.approx(6 / 12), count=12)
    assert metrics["loss_mask/truncated_fraction"] == Metric(pytest.approx(2 / 12), count=12)
    assert metrics["optimizer/zero_gradient_steps"] == Metric(0.0, "sum")


@pytest.mark.parametrize("case", ["equal", "near", "cut"])
def test_optimizer_steps_without_a_gradient_are_counted(case: str) -> None:
    """They still move the weights, by AdamW's averages of the gradients before."""
    rewards = {"equal": (0.3,) * 4, "near": (0.1 + 0.2, 0.3) * 2}.get(case, (0.0, 1.0, 1.0, 0.5))
    cut = range(12) if case == "cut" else ()
    dead = tuple(replace(group, rewards=rewards) for group in groups(cut, seed=1))
    trainer = new_trainer(changed(OPTIONS, minibatches_per_epoch=3, loss__mask_truncated=True))

    def weights() -> torch.Tensor:
        return torch.cat([weight.detach().flatten() for weight in trainer.weights().values()])

    first = weights()
    metrics = train_on(trainer, [dead])
    assert metrics["optimizer/zero_gradient_steps"] == Metric(3.0, "sum", 3)
    assert metrics["advantage/nonzero_fraction"].value == metrics["grad_norm"].value == 0.0
    assert torch.equal(weights(), first)
    train_on(trainer, [groups()], first_step=1)
    before = weights()
    assert train_on(trainer, [dead], first_step=2)["optimizer/zero_gradient_steps"].value == 3.0
    assert float((weights() - before).abs().max()) > 1e-4


def test_a_training_step_without_groups_changes_nothing_and_says_no_loss() -> None:
    trainer = new_trainer(changed(OPTIONS, loss__kl__monitor=True))
    before = {name: weight.detach().clone() for name, weight in trainer.weights().items()}
    assert trainer.train(0, None) == {}
    assert trainer.optimizer_step_metrics == []
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.weights().items())
    assert "step 0" not in trainer.last_good
