"""The training step on a tiny model: gradients do not depend on the split, stages run when needed, NaN stops."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.types import Metric, Metrics, RolloutGroup
from harness.learner import PolicyTrainer
from harness.learner.trainer import plan_training_step
from harness.models.decoder import DecoderLM
from harness.settings.loss import ImportanceSettings, KlSettings, LossSettings
from tests.learner.tiny_training import (
    CONFIG,
    OPTIONS,
    changed,
    gradients,
    groups,
    plain_logits,
    train_on,
    trained,
    with_completions,
)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "sequence_sum", "token_mean", "prompt_mean", "constant"])
def test_microbatches_change_memory_and_nothing_else(aggregation: str) -> None:
    options = changed(OPTIONS, loss__aggregation=aggregation, loss__constant=8)
    whole, whole_metrics = trained(options)
    for pieces in (5, 12):
        split, split_metrics = trained(replace(options, gradient_accumulation_steps=pieces))
        assert_close(split, whole, 1e-5)
        for name in ("loss", "grad_norm", "token_entropy"):
            assert split_metrics[name] == pytest.approx(whole_metrics[name], abs=1e-5)


def assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], tolerance: float = 1e-4) -> None:
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, atol=tolerance, rtol=1e-4, msg=name)


def test_on_the_first_pass_the_ratio_is_one_and_later_passes_move_it_and_clip() -> None:
    metrics = trained(OPTIONS)[1]
    assert (metrics["ratio/mean"], metrics["ratio/max"], metrics["clip_fraction"]) == (1.0, 1.0, 0.0)
    metrics = trained(replace(OPTIONS, epochs_per_batch=8))[1]
    assert metrics["ratio/max"] > 1.2
    assert 0.0 < metrics["clip_fraction"] < 1.0


def test_monitored_kl_is_zero_at_first_and_then_grows_and_its_penalty_holds_the_policy_back() -> None:
    options = changed(OPTIONS, loss__kl__monitor=True)
    first, later = (trained(options, steps=steps)[1] for steps in (1, 4))
    for which in ("reference", "previous"):
        assert first[f"kl/{which}_k3"] == pytest.approx(0.0, abs=1e-6)
        assert later[f"kl/{which}_k3"] > 1e-4
    assert later["kl/reference_k3"] > later["kl/previous_k3"]  # three updates away against one
    held = trained(changed(options, loss__kl__coefficient=5.0), steps=4)[1]
    assert held["kl/reference_k3"] < later["kl/reference_k3"] / 2


def by_hand(model: DecoderLM, temperature: float = 1.0) -> list[torch.Tensor]:
    """log softmax(logits / temperature) of the tokens of each response, from plain forward passes."""
    tokens = [torch.as_tensor(each.token_ids)[:, None] for group in groups() for each in group.data.completions]
    logits = plain_logits(model, groups())
    return [
        (row / temperature).log_softmax(-1).gather(1, of_row)[:, 0] for row, of_row in zip(logits, tokens, strict=True)
    ]


def sampled_by(log_probs: list[torch.Tensor]) -> tuple[RolloutGroup, ...]:
    """The same groups with these as the engine's log-probs, one tensor for each response."""
    return with_completions(groups(), lambda number, each: replace(each, log_probs=log_probs[number].numpy()))


def advantages_by_hand() -> list[float]:
    """(r - mean) / std; every group's rewards are 0, 1, 1 and 0.5 in some order: mean 0.625, variance 0.6875 / 3."""
    rewards = [reward for group in groups() for reward in group.rewards or ()]
    return [(reward - 0.625) / (0.6875 / 3) ** 0.5 for reward in rewards]


def train_by_hand(
    temperature: float,
    minibatches: Sequence[Sequence[int]],
    old: list[torch.Tensor] | None = None,
    weights: list[torch.Tensor] | None = None,
) -> DecoderLM:
    """Clipped GRPO steps (ratio range 0.8 to 1.2, mean over tokens, then responses), gradients of norm 1 at most.

    ``old`` is what the ratio divides by, the policy before the first step if not given; ``weights`` holds one factor
    for each token's loss.
    """
    model = DecoderLM(CONFIG, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    old = old or [scored.detach() for scored in by_hand(model, temperature)]
    weights = weights or [torch.ones_like(row) for row in old]
    advantages = advantages_by_hand()
    for rows in minibatches:
        now = by_hand(model, temperature)
        losses = []
        for row in rows:
            ratio = (now[row] - old[row]).exp()
            surrogate = torch.minimum(ratio * advantages[row], ratio.clamp(0.8, 1.2) * advantages[row])
            losses.append(-(surrogate * weights[row]).mean())
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        norm = sum(float(parameter.grad.square().sum()) for parameter in model.parameters()) ** 0.5
        for parameter in model.parameters():
            parameter.grad *= min(1.0, 1.0 / norm)
        optimizer.step()
    return model


def test_two_minibatches_are_two_steps_on_the_two_halves() -> None:
    options = replace(OPTIONS, minibatches_per_epoch=2, shuffle_minibatches=False, temperature=2.0)
    expected = train_by_hand(2.0, [range(6), range(6, 12)]).state_dict()  # 12 rollouts
    first_half_twice = train_by_hand(2.0, [range(6), range(6)]).state_dict()
    assert_close(trained(options)[0], expected)
    assert max(float((first_half_twice[name] - expected[name]).abs().max()) for name in expected) > 5e-3


def test_shuffled_minibatches_are_steps_on_the_rows_that_were_dealt() -> None:
    """Two passes of two minibatches, other ones in each pass."""
    options = replace(OPTIONS, minibatches_per_epoch=2, epochs_per_batch=2, seed=7)
    plan = plan_training_step(0, groups(), options, 1)
    rows = [minibatch.microbatches[0][0].tolist() for dealt in plan.epochs for minibatch in dealt]
    assert len({tuple(sorted(minibatch)) for minibatch in rows}) == 4
    expected = train_by_hand(1.0, rows).state_dict()
    halves = train_by_hand(1.0, [range(6), range(6, 12)] * 2).state_dict()
    assert_close(trained(options)[0], expected)
    assert max(float((halves[name] - expected[name]).abs().max()) for name in expected) > 5e-3


MODES = [
    ImportanceSettings(mode="tis"),
    ImportanceSettings(mode="tis", level="sequence"),
    ImportanceSettings(mode="icepop"),
    ImportanceSettings(mode="icepop", level="sequence"),
    ImportanceSettings(mode="seq-mask-tis"),
]


def own_log_probs(temperature: float = 1.0) -> list[torch.Tensor]:
    return [scored.detach() for scored in by_hand(DecoderLM(CONFIG, seed=1), temperature)]


def older_log_probs() -> list[torch.Tensor]:
    """Those of an engine that is far off: own / engine ranges from e^-1.5 = 0.22 to e^1.5 = 4.48."""
    rng = np.random.default_rng(3)
    return [own - torch.from_numpy(rng.uniform(-1.5, 1.5, len(own)).astype(np.float32)) for own in own_log_probs()]


RECOMPUTED: dict[str, str] = {"loss__proximal": "recompute", "loss__type": "grpo_clip"}


@pytest.mark.parametrize("importance", MODES)
@pytest.mark.parametrize(("temperature", "behaviour_is_engine"), [(1.0, False), (2.0, True)])
def test_an_engine_that_agrees_gives_weights_of_one_and_the_uncorrected_gradient(
    importance: ImportanceSettings, temperature: float, behaviour_is_engine: bool
) -> None:
    """Lag 0 in float32; the engine's log-probs come from plain forward passes, the Learner's from shared prompts."""
    made = sampled_by(own_log_probs(temperature))
    plain = replace(OPTIONS, temperature=temperature)
    corrected = changed(
        plain,
        behaviour_is_engine=behaviour_is_engine,
        **RECOMPUTED,
        loss__importance=importance,
        loss__kl__monitor=True,
    )
    metrics = trained(corrected, batches=[made])[1]
    assert metrics["importance/mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["importance/max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["importance/truncated_fraction"] == metrics["importance/masked_fraction"] == 0.0
    gap, other = (
        ("off_policy/kl", "engine_mismatch/kl") if behaviour_is_engine else ("engine_mismatch/kl", "off_policy/kl")
    )
    assert metrics[gap] == pytest.approx(0.0, abs=1e-6)
    assert other not in metrics
    assert ("kl/biased" in metrics) == behaviour_is_engine
    expected = gradients(made, plain)[0]
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-2
    assert_close(gradients(made, corrected)[0], expected, 1e-6)


def test_a_recomputed_proximal_policy_is_clipped_against_and_weighted_by_the_engine_in_every_pass() -> None:
    """The weights stay those of the policy before the first of the two passes, and are truncated at 2."""
    own, engine = own_log_probs(), older_log_probs()
    importance = ImportanceSettings(mode="tis", cap=2.0)
    options = changed(OPTIONS, epochs_per_batch=2, behaviour_is_engine=True, **RECOMPUTED, loss__importance=importance)
    assert options.needs_old_log_probs
    weights_found, metrics = trained(options, batches=[sampled_by(engine)])
    weights = [(mine - theirs).exp().clamp(max=2.0) for mine, theirs in zip(own, engine, strict=True)]
    assert sum(int((row == 2).sum()) for row in weights) > 5
    expected = train_by_hand(1.0, [range(12), range(12)], own, weights).state_dict()
    unweighted = train_by_hand(1.0, [range(12), range(12)], own).state_dict()
    assert_close(weights_found, expected)
    assert max(float((unweighted[name] - expected[name]).abs().max()) for name in expected) > 5e-3
    ratios = torch.cat([(mine - theirs).exp() for mine, theirs in zip(own, engine, strict=True)])
    assert metrics["importance/mean"] == pytest.approx(float(ratios.mean()), rel=1e-4)
    assert metrics["importance/max"] == pytest.approx(float(ratios.max()), rel=1e-4)
    assert metrics["importance/truncated_fraction"] == pytest.approx(float((ratios > 2).float().mean()))
    assert metrics["off_policy/kl"] == pytest.approx(float((ratios - 1 - ratios.log()).mean()), rel=1e-3)


def test_one_pass_needs_no_old_log_probs_for_its_weights() -> None:
    """The policy's own detached log-probs are the proximal ones: the weights are the same as if they were computed."""
    importance = ImportanceSettings(mode="icepop")
    options = changed(OPTIONS, behaviour_is_engine=True, **RECOMPUTED, loss__importance=importance)
    assert not options.needs_old_log_probs
    engine = older_log_probs()
    weights = []
    for mine, theirs in zip(own_log_probs(), engine, strict=True):
        ratio = (mine - theirs).exp()
        weights.append(torch.where((ratio < 0.5) | (ratio > 5.0), 0.0, ratio))  # IcePop's own bounds
    weights_found, metrics = trained(options, batches=[sampled_by(engine)])
    assert_close(weights_found, train_by_hand(1.0, [range(12)], weights=weights).state_dict())
    masked = float((torch.cat(weights) == 0).float().mean())
    assert 0.2 < masked < 0.8
    assert metrics["importance/masked_fraction"] == pytest.approx(masked)
    assert metrics["ratio/max"] == 1.0


def test_without_a_mode_the_proximal_policy_is_clipped_against_and_no_weight_corrects() -> None:
    """The recomputed one logs the gap; the engine's own has none."""
    engine, passes = older_log_probs(), [range(12), range(12)]
    for proximal, old in (("recompute", own_log_probs()), ("engine", engine)):
        options = changed(OPTIONS, epochs_per_batch=2, behaviour_is_engine=True, loss__proximal=proximal)
        weights_found, metrics = trained(options, batches=[sampled_by(engine)])
        assert_close(weights_found, train_by_hand(1.0, passes, old).state_dict())
        logged = {name.partition("/")[0] for name in metrics} & {"importance", "engine_mismatch", "off_policy"}
        assert logged == ({"off_policy"} if proximal == "recompute" else set())
        assert proximal == "engine" or metrics["off_policy/kl"] > 0.1


def test_which_log_probs_are_computed_and_compared() -> None:
    for behaviour_is_engine, proximal, mode, epochs, monitor_kl, old_log_probs, compared in (
        (False, "engine", "off", 1, False, False, False),  # the ratio is 1
        (False, "engine", "off", 2, False, True, False),
        (False, "engine", "off", 1, True, True, False),  # p of the monitored KL
        (False, "recompute", "off", 1, False, False, False),  # fresh rollouts: as with "engine"
        (False, "engine", "tis", 1, False, False, True),
        (False, "engine", "tis", 2, False, True, True),
        (True, "engine", "off", 1, False, False, False),
        (True, "engine", "off", 8, False, False, False),  # the engine's are the old ones
        (True, "engine", "off", 8, True, True, False),  # p of the monitored KL
        (True, "recompute", "off", 1, True, True, True),
        (True, "recompute", "off", 2, False, True, True),
        (True, "recompute", "tis", 1, False, False, True),
        (True, "recompute", "tis", 2, True, True, True),
    ):
        options = changed(
            OPTIONS,
            behaviour_is_engine=behaviour_is_engine,
            loss__proximal=proximal,
            loss__importance=ImportanceSettings(mode=mode),
            epochs_per_batch=epochs,
            loss__kl__monitor=monitor_kl,
        )
        found = options.needs_old_log_probs, options.compares_engine
        assert found == (old_log_probs, compared), (behaviour_is_engine, proximal, mode, epochs, monitor_kl)


@pytest.mark.parametrize(("proximal", "epochs"), [("engine", 1), ("recompute", 2)])
def test_the_monitored_kl_is_of_the_policy_of_this_step_whatever_the_lag(proximal: str, epochs: int) -> None:
    options = changed(OPTIONS, loss__kl__monitor=True, epochs_per_batch=epochs, optimizer__learning_rate=0.01)
    first, second = sampled_by(own_log_probs()), sampled_by(older_log_probs())

    def second_step(behaviour_is_engine: bool) -> Metrics:
        trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options)  # one history of weights for both
        train_on(trainer, [first])
        trainer.options = changed(options, behaviour_is_engine=behaviour_is_engine, loss__proximal=proximal)
        return train_on(trainer, [second], first_step=1)

    fresh, lagging = second_step(False), second_step(True)
    names = {name for name in fresh if name.startswith("kl/")}
    assert {name: lagging[name] for name in names} == {name: fresh[name] for name in names}
    assert min(fresh["kl/reference_k3"].value, fresh["kl/previous_k3"].value) > 1e-6
    assert ("kl/biased" in fresh, lagging["kl/biased"]) == (False, Metric(1.0))


def test_no_metric_name_is_a_path_prefix_of_another() -> None:
    loss = LossSettings(importance=ImportanceSettings(mode="tis"), kl=KlSettings(coefficient=0.1))
    for behaviour_is_engine in (False, True):
        options = changed(OPTIONS, behaviour_is_engine=behaviour_is_engine, loss=loss)
        names = list(trained(changed(options, loss__proximal="recompute", loss__kl__monitor=True))[1])
        assert [(a, b) for a in names for b in names if b.startswith(f"{a}/")] == []


def test_the_metrics_of_each_optimizer_step_are_kept() -> None:
    """Two passes of three minibatches: six, whose mean is the training step's."""
    options = replace(OPTIONS, epochs_per_batch=2, minibatches_per_epoch=3)
    assert options.optimizer_steps_per_batch == 6
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options)
    batch = trainer.prepare(groups())
    trainer.compute_old_log_probs(batch)
    metrics = trainer.train(0, batch)
    losses = [step["loss"].value for step in trainer.optimizer_step_metrics]
    assert (len(losses), len(set(losses)), metrics["grad_norm"].count) == (6, 6, 6)
    assert sum(losses) / 6 == pytest.approx(metrics["loss"].value)
    assert all({"grad_norm", "clip_fraction"} <= step.keys() for step in trainer.optimizer_step_metrics)


def test_batches_may_hold_any_number_of_groups_of_any_size() -> None:
    """Replay, drops and failed groups: every batch is trained on, each group against its own mean."""
    options = changed(OPTIONS, advantage__delta="centered_rewards", minibatches_per_epoch=3)
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options)
    mixed = (*groups(0, 1, 4), *groups(1, 1, 2), *groups(2, 1, 3))
    optimizer_steps = []
    for step, made in enumerate((groups(0, 3, 4), groups(1, 1, 4), groups(2, 5, 3), groups(3, 1, 2), mixed)):
        batch = trainer.prepare(made)
        of_groups = [torch.tensor(group.rewards) for group in made]
        centred = torch.cat([rewards - rewards.mean() for rewards in of_groups])[:, None]
        torch.testing.assert_close(batch.rollouts.advantages_B1, centred)
        trainer.compute_old_log_probs(batch)
        optimizer_steps.append(trainer.train(step, batch)["grad_norm"].count)
    assert optimizer_steps == [3, 3, 3, 2, 3]  # two rollouts cannot be cut into three minibatches
    assert batch.rollouts.prompt_index_B.tolist() == [0] * 4 + [1] * 2 + [2] * 3


def test_batches_that_cannot_be_trained_on_are_refused() -> None:
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, replace(OPTIONS, group_size=3))
    with pytest.raises(UserError, match="a group has 4 rewards, group_size is 3"):
        trainer.prepare(groups())
    with pytest.raises(UserError, match="there is no group"):
        trainer.prepare(())
    with pytest.raises(UserError, match=r"rewards have shape \(1, 0\)"):
        trainer.prepare((replace(groups(group_size=3)[0], rewards=None),))


def test_loss_and_old_log_probs_are_those_of_the_temperature() -> None:
    """Without a ratio the loss is the mean of -A * log p, which moves with the temperature; GRPO's is 0 at ratio 1."""
    options = changed(OPTIONS, temperature=0.5, loss__type="reinforce_with_baseline")
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options)
    batch = trainer.prepare(groups())
    trainer.compute_old_log_probs(batch)
    old_BT, scored = batch.rollouts.old_log_probs_BT, own_log_probs(0.5)
    assert old_BT is not None
    for row, log_probs in enumerate(scored):
        torch.testing.assert_close(old_BT[row, : len(log_probs)], log_probs, atol=1e-5, rtol=1e-5)
    losses = [-advantage * float(row.mean()) for advantage, row in zip(advantages_by_hand(), scored, strict=True)]
    assert trainer.train(0, batch)["loss"].value == pytest.approx(sum(losses) / 12, abs=1e-5)


def test_advantages_follow_the_options() -> None:
    """(r - mean) / (std + eps) with an eps of 1; ``by hand`` has those of an eps of next to nothing."""
    batch = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, changed(OPTIONS, advantage__eps=1.0)).prepare(groups())
    std = (0.6875 / 3) ** 0.5
    expected = torch.tensor([[advantage * std / (std + 1)] for advantage in advantages_by_hand()])
    torch.testing.assert_close(batch.rollouts.advantages_B1, expected, atol=1e-5, rtol=1e-5)


def test_without_a_baseline_the_loss_is_weighed_by_the_rewards_themselves() -> None:
    """So groups of one rollout, which have no deviation, can be trained on."""
    options = changed(OPTIONS, group_size=1, loss__type="no_baseline", advantage__delta="normalized_rewards")
    made = groups(group_size=1)
    batch = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options).prepare(made)
    assert batch.rollouts.advantages_B1.tolist() == [list(group.rewards or ()) for group in made]


def test_dropout_is_off_so_that_the_ratio_compares_one_policy_with_itself() -> None:
    model = DecoderLM(CONFIG, seed=1).train()
    PolicyTrainer(model, 0, OPTIONS)
    assert not any(module.training for module in model.modules())


def test_a_loss_that_is_not_finite_stops_with_every_figure_and_keeps_the_weights() -> None:
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, OPTIONS)
    good = trainer.train(0, trainer.prepare(groups()))
    before = {name: tensor.detach().clone() for name, tensor in trainer.weights().items()}
    poisoned = trainer.prepare(groups(seed=1))
    advantages = poisoned.rollouts.advantages_B1.clone()
    advantages[2] = float("nan")
    poisoned.rollouts = replace(poisoned.rollouts, advantages_B1=advantages)
    last_good = f"step 0: loss {good['loss'].value:.6g}"
    expected = rf"the loss is nan .* training step 1, epoch 0, minibatch 0, prompts \[0, 1, 2\]; .* {last_good}"
    with pytest.raises(RunStopped, match=expected):
        trainer.train(1, poisoned)
    assert all(torch.equal(before[name], weight) for name, weight in trainer.weights().items())
    assert all(weight.grad is None for weight in trainer.weights().values())  # nothing left for a later step


def test_a_stop_signal_is_heard_between_microbatches_and_between_minibatches() -> None:
    """Of three minibatches the first has made its step, the second is not begun."""
    for options, where in (
        (replace(OPTIONS, gradient_accumulation_steps=3), "training step 0"),
        (
            replace(OPTIONS, minibatches_per_epoch=3, shuffle_minibatches=False),
            "training step 0, epoch 0, minibatch 1,",
        ),
    ):
        asked = iter([False, True])
        trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options, lambda asked=asked: next(asked))  # type: ignore[misc]
        with pytest.raises(Interrupted, match=where):
            trainer.train(0, trainer.prepare(groups()))
    weights = {name: weight.detach() for name, weight in trainer.weights().items()}
    assert_close(weights, train_by_hand(1.0, [range(4)]).state_dict())
