"""The learning rate of each optimizer step, by hand and by transformers, and what weight decay leaves out."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Trainer,
    get_scheduler,
)

from harness.learner import PolicyTrainer, TrainerOptions
from harness.learner.optimizer import Schedule, make_optimizer
from harness.models.decoder import DecoderLM
from harness.settings.optimizer import OptimizerSettings
from tests.learner.tiny_training import CONFIG, OPTIONS, changed, groups, trained


def shares(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.share(number) for number in range(steps)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(), [1, 1, 1]),
        (Schedule(warmup_steps=1), [0, 1, 1]),
        (Schedule(warmup_steps=4), [0, 0.25, 0.5, 0.75, 1, 1]),
        # after two steps of warm-up four are left: p = 0, 1/4, 2/4, 3/4, and from the end on 1
        (Schedule("linear", 2, 6), [0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0]),
        # 0.2 + 0.8 * (1 - p)
        (Schedule("linear", 0, 4, 0.2), [1, 0.8, 0.6, 0.4, 0.2, 0.2]),
        # (1 + cos(pi p)) / 2: cos 0 = 1, cos 45 deg = 0.70710678, cos 90 deg = 0, cos 135 deg = -0.70710678
        (Schedule("cosine", 0, 4), [1, 0.85355339, 0.5, 0.14644661, 0, 0]),
        # 0.1 + 0.9 of those: 0.1 + 0.76819805, 0.1 + 0.45, 0.1 + 0.13180195
        (Schedule("cosine", 1, 5, 0.1), [0, 1, 0.86819805, 0.55, 0.23180195, 0.1]),
        # a warm-up beyond the end is cut with the run
        (Schedule("cosine", 8, 4), [0, 0.125, 0.25, 0.375]),
    ],
)
def test_the_share_of_each_optimizer_step(schedule: Schedule, expected: list[float]) -> None:
    assert shares(schedule, len(expected)) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "specific", "schedule"),
    [
        ("constant", {}, Schedule()),
        ("constant_with_warmup", {}, Schedule(warmup_steps=3)),
        ("linear", {}, Schedule("linear", 3, 20)),
        ("cosine", {}, Schedule("cosine", 3, 20)),
        ("cosine_with_min_lr", {"min_lr_rate": 0.1}, Schedule("cosine", 3, 20, 0.1)),
    ],
)
def test_the_schedules_are_those_of_transformers(name: str, specific: dict[str, float], schedule: Schedule) -> None:
    """On the old code a warm-up of 3 steps began at a third of the learning rate, not at 0."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    theirs = get_scheduler(name, optimizer, 3, 20, scheduler_specific_kwargs=specific)
    rates = []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    assert [1e-3 * share for share in shares(schedule, 20)] == pytest.approx(rates, rel=1e-12, abs=1e-18)


def rates_of(options: TrainerOptions, steps: range) -> list[list[float]]:
    """What each optimizer step of these training steps logs as its learning rate."""
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options)
    found = []
    for step in steps:
        batch = trainer.prepare(groups(seed=step))
        trainer.compute_old_log_probs(batch)
        mean = trainer.train(step, batch)["learning_rate"]
        rates = [metrics["learning_rate"].value for metrics in trainer.optimizer_step_metrics]
        assert (mean.value, mean.count) == (pytest.approx(sum(rates) / len(rates)), len(rates))
        found.append(rates)
    return found


def test_the_learning_rate_of_a_step_depends_on_its_number_alone() -> None:
    """Two passes of two minibatches are four numbers a training step, the same in step 1 with and without step 0."""
    options = changed(
        OPTIONS,
        epochs_per_batch=2,
        minibatches_per_epoch=2,
        schedule=Schedule("linear", 2, 12),
        optimizer__learning_rate=0.01,
    )
    whole = rates_of(options, range(3))
    # n / 2, then 1 - (n - 2) / 10 for n = 2 to 11, of 0.01
    assert whole[0] == pytest.approx([0, 0.005, 0.01, 0.009])
    assert whole[1] == pytest.approx([0.008, 0.007, 0.006, 0.005])
    assert whole[2] == pytest.approx([0.004, 0.003, 0.002, 0.001])
    assert rates_of(options, range(1, 3)) == whole[1:]


def test_weights_move_by_the_learning_rate_of_the_step() -> None:
    """With both of Adam's decays at 0 a step moves a weight by the learning rate, whatever its gradient."""
    options = changed(OPTIONS, schedule=Schedule("cosine", 2, 6), optimizer__betas=(0.0, 0.0))
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options)
    seen = [{name: tensor.detach().clone() for name, tensor in trainer.weights().items()}]
    for step in range(6):
        trainer.train(step, trainer.prepare(groups(seed=step)))
        seen.append({name: tensor.detach().clone() for name, tensor in trainer.weights().items()})
    moves = [max(float((now[name] - then[name]).abs().max()) for name in then) for then, now in pairwise(seen)]
    assert moves == pytest.approx([0.0, 5e-3, 1e-2, 8.5355e-3, 5e-3, 1.4645e-3], rel=0.01)


SIZES: dict[str, Any] = {
    "vocab_size": 17,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: LlamaForCausalLM(LlamaConfig(attention_bias=True, **SIZES)), id="llama"),
        pytest.param(lambda: Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=True, **SIZES)), id="qwen2"),
        pytest.param(lambda: GPT2LMHeadModel(GPT2Config(vocab_size=17, n_embd=16, n_layer=1, n_head=2)), id="gpt2"),
        pytest.param(lambda: DecoderLM(CONFIG), id="own"),
    ],
)
def test_weight_decay_leaves_out_what_transformers_trainer_does(model: Any) -> None:
    """Norms and biases, by name there, by dimensions here; embeddings decay. The old code had one group for all."""
    made = model()
    of_theirs = set(Trainer.get_decay_parameter_names(SimpleNamespace(), made))
    names = {id(parameter): name for name, parameter in made.named_parameters()}
    decayed, left_out = make_optimizer(made, OptimizerSettings(weight_decay=0.1)).param_groups
    assert (decayed["weight_decay"], left_out["weight_decay"]) == (0.1, 0.0)
    found = [{names[id(parameter)] for parameter in group["params"]} for group in (decayed, left_out)]
    assert found == [set(names.values()) & of_theirs, set(names.values()) - of_theirs]
    assert all(found)
    assert any("embed" in name or "wte" in name for name in found[0])


def test_matrices_decay_and_norms_do_not() -> None:
    """Without a gradient a step multiplies by 1 - learning rate * decay, 1 - 0.1 * 0.5 = 0.95: the matrices only."""
    model = DecoderLM(CONFIG, seed=1)
    optimizer = make_optimizer(model, OptimizerSettings(learning_rate=0.1, weight_decay=0.5))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    kept = set()
    for name, parameter in model.named_parameters():
        factor = 0.95 if parameter.ndim == 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor, rtol=1e-6, atol=0)
        kept |= {name} if factor == 1.0 else set()
    # two layers with two norms each, and the last one
    assert len(kept) == 5
    assert all("norm" in name for name in kept)


def test_without_decay_two_groups_are_one_bit_for_bit() -> None:
    models = [DecoderLM(CONFIG, seed=1) for _ in range(2)]
    optimizers = [
        make_optimizer(models[0], OptimizerSettings(learning_rate=1e-2)),
        torch.optim.AdamW(models[1].parameters(), 1e-2, (0.9, 0.95), weight_decay=0.0, fused=True),
    ]
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for parameters in zip(*(model.parameters() for model in models), strict=True):
            gradient = torch.randn(parameters[0].shape, generator=generator)
            for parameter in parameters:
                parameter.grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))


def test_a_decay_in_training_moves_the_matrices() -> None:
    plain, decayed = trained(OPTIONS)[0], trained(changed(OPTIONS, optimizer__weight_decay=1.0))[0]
    moved = {name for name in plain if not torch.equal(plain[name], decayed[name])}
    assert moved == {name for name, weight in plain.items() if weight.ndim == 2}
