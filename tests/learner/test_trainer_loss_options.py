"""Loss options in the training step: truncated responses, the entropy bonus, the ban on an early end, own functions."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.core.errors import UserError
from harness.core.types import Completion, GroupData, Metric, Prompt, RolloutGroup
from harness.learner import PolicyTrainer, TrainerOptions
from harness.learner.plugins import PluginAdvantage, PluginLoss
from harness.models.decoder import DecoderLM
from harness.settings.loss import LossSettings
from tests.learner.tiny_training import CONFIG, OPTIONS, changed, train_on, trained

EOS = 16
REWARDS = (0.0, 1.0, 1.0, 0.5)


def groups(truncated: Sequence[int] = (), seed: int = 0) -> tuple[RolloutGroup, ...]:
    """Three groups of four responses, those of these places cut at ``max_tokens``; no response holds the end."""
    rng, made = np.random.default_rng(seed), []
    for prompt_id in range(3):
        lengths = tuple(rng.integers(1, 9, 4).tolist())
        ends = ["length" if 4 * prompt_id + place in truncated else "stop" for place in range(4)]
        completions = tuple(
            Completion(rng.integers(0, EOS, length), rng.normal(-2, 0.1, length).astype(np.float32), "", end)
            for length, end in zip(lengths, ends, strict=True)
        )
        data = GroupData(Prompt("p", "g"), rng.integers(0, EOS, 3), completions)
        made.append(RolloutGroup(prompt_id, 0, 0, 0, lengths, data, REWARDS))
    return tuple(made)


def plain_logits(model: DecoderLM, group: RolloutGroup) -> list[torch.Tensor]:
    """Logits (T, V) that predict each response of a group, from plain forward passes."""
    prompt = torch.as_tensor(group.data.prompt_token_ids)
    rows = [torch.cat((prompt, torch.as_tensor(each.token_ids))) for each in group.data.completions]
    return [model(ids[None]).logits[0, len(prompt) - 1 : -1] for ids in rows]


def new_trainer(options: TrainerOptions) -> PolicyTrainer:
    return PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options, ends=(EOS,))


def gradients(
    made: Sequence[RolloutGroup], options: TrainerOptions
) -> tuple[dict[str, torch.Tensor], dict[str, Metric]]:
    """The gradient of the one optimizer step of the options, and the step's metrics."""
    trainer = new_trainer(changed(options, optimizer__max_grad_norm=None))
    seen: dict[str, torch.Tensor] = {}
    weights = trainer.weights().items()
    trainer.optimizer.register_step_pre_hook(lambda *_: seen.update({n: t.grad.clone() for n, t in weights}))  # type: ignore[union-attr]
    batch = trainer.prepare(made)
    return seen, trainer.train(0, batch)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "sequence_sum", "token_mean", "prompt_mean", "constant"])
def test_truncated_responses_carry_no_gradient_and_still_count_in_their_group(aggregation: str) -> None:
    """Other tokens in the cut responses change nothing; the advantages of the others are what they were."""
    cut = (1, 6, 7)
    options = changed(OPTIONS, loss__aggregation=aggregation, loss__constant=8, loss__mask_truncated=True)
    found, metrics = gradients(groups(cut), options)
    assert metrics["loss_mask/truncated_fraction"] == Metric(3 / 12, count=12)
    other = [replace(group) for group in groups(cut)]
    for number in cut:
        data: GroupData = other[number // 4].data
        completions = list(data.completions)
        old = completions[number % 4]
        completions[number % 4] = replace(old, token_ids=(old.token_ids + 1) % EOS)
        other[number // 4] = replace(other[number // 4], data=replace(data, completions=tuple(completions)))
    again, _ = gradients(other, options)
    assert all(torch.equal(gradient, again[name]) for name, gradient in found.items())
    unmasked, _ = gradients(groups(cut), changed(options, loss__mask_truncated=False))
    assert max(float((unmasked[name] - gradient).abs().max()) for name, gradient in found.items()) > 1e-4
    # rewards 0 1 1 0.5: the mean 0.625 is that of all four
    rollouts = new_trainer(options).prepare(groups(cut)).rollouts
    centred = torch.tensor(REWARDS) - 0.625
    expected = (centred / centred.pow(2).sum().div(3).sqrt()).repeat(3)[:, None]
    torch.testing.assert_close(rollouts.advantages_B1, expected, atol=1e-5, rtol=1e-5)
    assert rollouts.response_mask_BT.any(dim=1).tolist() == [number not in cut for number in range(12)]


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_batch_of_truncated_responses_only_changes_nothing(pieces: int) -> None:
    options = changed(OPTIONS, loss__mask_truncated=True, gradient_accumulation_steps=pieces)
    found, metrics = gradients(groups(range(12)), options)
    assert metrics["loss"].value == metrics["grad_norm"].value == 0.0
    assert metrics["loss_mask/truncated_fraction"].value == 1.0
    assert all(float(gradient.abs().max()) == 0.0 for gradient in found.values())


def test_the_gradient_of_the_bonus_is_minus_the_mean_entropys() -> None:
    """With rewards that are all equal only the bonus is left: its gradient against autograd on plain forward passes."""
    made = tuple(replace(group, rewards=(1.0,) * 4) for group in groups())
    loss = LossSettings(type="grpo_clip", entropy_coefficient=0.5)
    found, metrics = gradients(made, changed(OPTIONS, loss=loss, loss__aggregation="token_mean"))
    model = DecoderLM(CONFIG, seed=1)
    log_p = torch.cat([row for group in made for row in plain_logits(model, group)]).log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1).mean()
    (-0.5 * entropy).backward()
    assert metrics["token_entropy"].value == pytest.approx(entropy.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-5, rtol=1e-3)


def test_with_the_ban_the_ratio_to_the_engine_is_exact() -> None:
    """An engine of the same weights that could not end within 2 tokens: ratio 1 with the ban, below it without."""
    made = []
    for group in groups():
        completions = []
        for completion, logits in zip(
            group.data.completions, plain_logits(DecoderLM(CONFIG, seed=1), group), strict=True
        ):
            held = logits.detach().clone()
            held[:2, EOS] = -torch.inf
            log_probs = held.log_softmax(-1).gather(1, torch.as_tensor(completion.token_ids)[:, None])[:, 0].numpy()
            completions.append(replace(completion, log_probs=log_probs))
        made.append(replace(group, data=replace(group.data, completions=tuple(completions))))
    ratios = {}
    for first in (0, 2):
        _, metrics = gradients(made, replace(OPTIONS, behaviour_is_engine=True, ban_eos_first=first))
        ratios[first] = (metrics["ratio/mean"].value, metrics["ratio/max"].value)
    assert ratios[2] == pytest.approx((1.0, 1.0), abs=1e-5)
    assert ratios[0][0] < 0.99  # 1 - p(end) of two tokens of about five, with p near 1 / 17
    with pytest.raises(UserError, match="ban_eos_first is 2"):
        PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, replace(OPTIONS, ban_eos_first=2))


def test_own_loss_and_advantage_train_as_the_built_in_ones_bit_for_bit() -> None:
    own = changed(
        OPTIONS,
        loss__type="own",
        loss__cliprange=1.0,
        loss__cliprange_high=4.0,
        own_advantage=PluginAdvantage("docs.examples.own_loss.losses:leave_one_out", 4),
        epochs_per_batch=3,
        own_loss=PluginLoss("docs.examples.own_loss.losses:cispo"),
    )
    built_in = changed(own, loss__type="cispo", own_advantage=None, advantage__delta="leave_one_out_rewards")
    (weights, _), (others, _) = trained(own, steps=3), trained(built_in, steps=3)
    assert [name for name in weights if not torch.equal(weights[name], others[name])] == []


def test_an_own_advantage_hears_of_lengths_and_of_what_was_cut() -> None:
    seen: list[dict[str, torch.Tensor]] = []

    def advantage(**of_groups: torch.Tensor) -> torch.Tensor:
        seen.append(of_groups)
        return of_groups["rewards"] * 2

    trainer, made = new_trainer(replace(OPTIONS, own_advantage=advantage)), groups((1, 6))
    rollouts = trainer.prepare(made).rollouts
    assert seen[0]["truncated"].nonzero().tolist() == [[0, 1], [1, 2]]
    assert seen[0]["lengths"].tolist() == [list(group.lengths) for group in made]
    assert rollouts.advantages_B1[:, 0].tolist() == [2 * reward for reward in REWARDS] * 3
    with pytest.raises(UserError, match=r"the groups have \[3, 4\] rewards"):
        trainer.prepare((replace(made[0], rewards=REWARDS[:3]), *made[1:]))


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
    rewards = {"equal": (0.3,) * 4, "near": (0.1 + 0.2, 0.3) * 2}.get(case, REWARDS)
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
