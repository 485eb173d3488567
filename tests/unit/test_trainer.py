"""The training step on a tiny model: gradients do not depend on the split, stages run when needed, NaN stops."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.errors import Interrupted, RunStopped
from harness.grpo import LossOptions
from harness.learner import PolicyTrainer, TrainerOptions
from harness.models.config import ModelConfig
from harness.models.decoder import DecoderLM
from harness.types import Completion, GroupData, Prompt, RolloutGroup

CONFIG = ModelConfig(
    vocab_size=17,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=32,
)
OPTIONS = TrainerOptions(group_size=4, loss=LossOptions("grpo_clip"), learning_rate=1e-2)


def groups(seed: int = 0, num_groups: int = 3, group_size: int = 4) -> tuple[RolloutGroup, ...]:
    rng = np.random.default_rng(seed)
    made = []
    for prompt_id in range(num_groups):
        lengths = rng.integers(1, 9, group_size)
        completions = tuple(
            Completion(rng.integers(0, 17, length), rng.normal(-2, 0.1, length).astype(np.float32), "", "stop")
            for length in lengths
        )
        data = GroupData(Prompt("p", "g"), rng.integers(0, 17, int(rng.integers(2, 6))), completions)
        rewards = tuple(float(reward) for reward in rng.permutation([0.0, 1.0, 1.0, 0.5])[:group_size])
        made.append(RolloutGroup(prompt_id, 0, 0, 0, tuple(map(int, lengths)), data, rewards))
    return tuple(made)


def trained(options: TrainerOptions, steps: int = 1) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Train from the same initial weights; return the weights and the last step's metrics."""
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options)
    for step in range(steps):
        batch = trainer.prepare(groups(seed=step))
        if options.needs_old_log_probs:
            trainer.compute_old_log_probs(batch)
        if options.needs_reference:
            trainer.compute_reference_log_probs(batch)
        metrics = trainer.train(step, batch)
    weights = {name: tensor.detach().clone() for name, tensor in trainer.weights().items()}
    return weights, {name: metric.value for name, metric in metrics.items()}


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
@pytest.mark.parametrize("pieces", [2, 3, 5, 12])
def test_microbatches_change_memory_and_nothing_else(aggregation: str, pieces: int) -> None:
    options = replace(OPTIONS, aggregation=aggregation, constant=8)
    whole, whole_metrics = trained(options)
    split, split_metrics = trained(replace(options, gradient_accumulation_steps=pieces))
    for name, weight in whole.items():
        torch.testing.assert_close(split[name], weight, atol=1e-5, rtol=1e-4)
    for name in ("loss", "grad_norm", "token_entropy"):
        assert split_metrics[name] == pytest.approx(whole_metrics[name], abs=1e-5)


def test_on_the_first_pass_the_ratio_is_one() -> None:
    metrics = trained(OPTIONS)[1]
    assert metrics["ratio/mean"] == metrics["ratio/max"] == 1.0
    assert metrics["clip_fraction"] == 0.0


def test_later_passes_move_the_ratio_and_clip() -> None:
    metrics = trained(replace(OPTIONS, epochs_per_batch=8))[1]
    assert metrics["ratio/max"] > 1.2
    assert 0.0 < metrics["clip_fraction"] < 1.0


def test_a_skipped_old_pass_gives_what_the_pass_would_give() -> None:
    """One epoch with a monitored KL computes the old log-probs; the same weights must come out without."""
    skipped = trained(OPTIONS)[0]
    computed = trained(replace(OPTIONS, monitor_kl=True))[0]
    for name, weight in skipped.items():
        torch.testing.assert_close(computed[name], weight, atol=1e-5, rtol=1e-4)


def test_monitored_kl_is_zero_at_first_and_then_grows() -> None:
    first = trained(replace(OPTIONS, monitor_kl=True), steps=1)[1]
    later = trained(replace(OPTIONS, monitor_kl=True), steps=4)[1]
    for which in ("reference", "previous"):
        assert first[f"kl/{which}_k3"] == pytest.approx(0.0, abs=1e-6)
        assert later[f"kl/{which}_k3"] > 1e-4
    assert later["kl/reference_k3"] > later["kl/previous_k3"]  # three updates away against one


def test_a_recloned_reference_is_the_current_policy() -> None:
    options = replace(OPTIONS, monitor_kl=True)
    kept = trained(replace(options, reclone_every=10), steps=3)[1]
    renewed = trained(replace(options, reclone_every=2), steps=3)[1]
    assert renewed["kl/reference_k3"] == pytest.approx(0.0, abs=1e-6)  # re-cloned after step 1, so policy 2 = reference
    assert kept["kl/reference_k3"] > 1e-4


def test_a_kl_penalty_holds_the_policy_back() -> None:
    free = trained(replace(OPTIONS, monitor_kl=True), steps=6)[1]
    held = trained(replace(OPTIONS, monitor_kl=True, loss=LossOptions(kl_coefficient=5.0)), steps=6)[1]
    assert held["kl/reference_k3"] < free["kl/reference_k3"] / 2


def test_with_lag_the_engine_log_probs_are_the_old_ones() -> None:
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, replace(OPTIONS, max_lag=1))
    batch = trainer.prepare(groups())
    assert not trainer.options.needs_old_log_probs
    assert batch.rollouts.old_log_probs_BT is not None
    first = groups()[0].data.completions[0].log_probs
    np.testing.assert_allclose(batch.rollouts.old_log_probs_BT[0, : len(first)].numpy(), first)


def test_minibatches_make_one_optimizer_step_each() -> None:
    options = replace(OPTIONS, minibatches_per_epoch=3, epochs_per_batch=2)
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options)
    batch = trainer.prepare(groups())
    trainer.compute_old_log_probs(batch)
    metrics = trainer.train(0, batch)
    assert options.optimizer_steps_per_batch == 6
    assert metrics["grad_norm"].count == 6


def test_learning_rate_warm_up_starts_small() -> None:
    start = {name: tensor.detach().clone() for name, tensor in DecoderLM(CONFIG, seed=1).named_parameters()}

    def moved(options: TrainerOptions) -> float:
        return max(float((weight - start[name]).abs().max()) for name, weight in trained(options)[0].items())

    # Adam's first step moves each weight by at most the learning rate: 1e-2, or 1e-2 / 10 in the first of ten.
    assert moved(OPTIONS) == pytest.approx(1e-2, rel=0.01)
    assert moved(replace(OPTIONS, warmup_steps=10)) == pytest.approx(1e-3, rel=0.01)


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


def test_a_stop_signal_is_heard_between_microbatches() -> None:
    asked = iter([False, True])
    options = replace(OPTIONS, gradient_accumulation_steps=3)
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options, lambda: next(asked))
    with pytest.raises(Interrupted, match="training step 0"):
        trainer.train(0, trainer.prepare(groups()))
