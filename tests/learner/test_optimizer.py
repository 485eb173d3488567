"""The learning rate of each optimizer step, by hand and by transformers, and what weight decay leaves out."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
)

from harness.learner import PolicyTrainer, TrainerOptions
from harness.learner.optimizer import Schedule, make_optimizer
from harness.models.decoder import DecoderLM
from harness.settings.optimizer import OptimizerSettings
from tests.learner.tiny_training import CONFIG, OPTIONS, changed, groups


def test_the_share_of_each_optimizer_step() -> None:
    for schedule, expected in (
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
    ):
        found = [schedule.share(number) for number in range(len(expected))]
        assert found == pytest.approx(expected, abs=1e-8), schedule


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


SIZES: dict[str, Any] = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.mark.parametrize(
    "make",
    [
        lambda: LlamaForCausalLM(LlamaConfig(attention_bias=True, **SIZES)),
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=17, n_embd=16, n_layer=1, n_head=2)),
        lambda: DecoderLM(CONFIG),
    ],
    ids=["llama", "gpt2", "own"],
)
def test_weight_decay_leaves_out_what_transformers_trainer_does(make: Any) -> None:
    """Norms and biases, by name there, by dimensions here; embeddings decay."""
    made = make()
    of_theirs = set(Trainer.get_decay_parameter_names(SimpleNamespace(), made))
    names = {id(parameter): name for name, parameter in made.named_parameters()}
    decayed, left_out = make_optimizer(made, OptimizerSettings(weight_decay=0.1)).param_groups
    assert (decayed["weight_decay"], left_out["weight_decay"]) == (0.1, 0.0)
    found = [{names[id(parameter)] for parameter in group["params"]} for group in (decayed, left_out)]
    assert found == [set(names.values()) & of_theirs, set(names.values()) - of_theirs]
    assert all(found)
    assert any("embed" in name or "wte" in name for name in found[0])
