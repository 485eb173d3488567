"""float16 in the training step: float32 weights, autocast, and a loss scaled up so that no gradient vanishes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.core.errors import Diverged
from harness.core.types import RolloutGroup
from harness.learner import PolicyTrainer, TrainerOptions
from harness.models.decoder import DecoderLM
from harness.settings.loss import LossSettings
from harness.settings.optimizer import OptimizerSettings
from tests.learner import tiny_training
from tests.learner.tiny_training import CONFIG

OPTIONS = TrainerOptions(
    group_size=4,
    loss=LossSettings(type="no_baseline"),
    optimizer=OptimizerSettings(learning_rate=0.001, max_grad_norm=None),
)
SCALE = 65_536.0  # torch.amp.GradScaler's first one


def groups(size_of_rewards: float) -> tuple[RolloutGroup, ...]:
    """Groups whose rewards are 0, 1, 1 and 0.5 in some order, times the size."""
    made = tiny_training.groups(seed=3)
    return tuple(
        replace(group, rewards=tuple(size_of_rewards * each for each in group.rewards or ())) for group in made
    )


def trained(
    options: TrainerOptions, size_of_rewards: float = 1.0, steps: int = 1
) -> tuple[torch.Tensor, dict[str, float]]:
    """Train from the same initial weights; return all weights in one row, and the metrics of the last step."""
    weights, metrics = tiny_training.trained(options, batches=[groups(size_of_rewards)] * steps)
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    return torch.cat([weight.flatten() for weight in weights.values()]), metrics


@pytest.mark.parametrize("size_of_rewards", [1.0, 1e-6])
def test_a_step_is_that_of_float32_also_where_gradients_are_small(size_of_rewards: float) -> None:
    """With rewards of 1e-6 the gradients of single activations lie near 6e-8, the smallest number of float16.

    Adam's first step is learning rate x sign of the gradient where that is far above its epsilon: with gradients that
    vanished, or lost their sign, weights would lie 1e-3 or 2e-3 apart.
    """
    before = torch.cat([tensor.detach().flatten() for tensor in DecoderLM(CONFIG, seed=1).parameters()])
    exact, wanted = trained(OPTIONS, size_of_rewards)
    found, metrics = trained(replace(OPTIONS, precision="float16"), size_of_rewards)
    assert metrics["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=0.01)
    assert metrics["loss"] == pytest.approx(wanted["loss"], rel=0.01)
    moved = exact - before
    assert float((found - exact).norm() / moved.norm()) < 0.1
    assert (metrics["float16/loss_scale"], metrics["float16/overflows"]) == (SCALE, 0)
    assert "float16/loss_scale" not in wanted


def test_a_gradient_that_overflows_is_computed_again_with_half_the_scale_and_no_batch_is_lost() -> None:
    """Rewards of 100: 65,536 x 100 x a share of a token is above 65,504, the largest number of float16."""
    exact, wanted = trained(OPTIONS, 100.0)
    narrow = replace(OPTIONS, precision="float16")
    (found, metrics), (_, later) = (trained(narrow, 100.0, steps) for steps in (1, 2))
    overflows = int(metrics["float16/overflows"])
    assert overflows > 0
    assert metrics["float16/loss_scale"] == SCALE / 2**overflows
    assert metrics["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=0.01)
    assert (later["float16/overflows"], later["float16/loss_scale"]) == (0, SCALE / 2**overflows)
    assert torch.isfinite(found).all()
    assert not torch.equal(found, exact)


def test_a_gradient_that_no_scale_saves_stops_the_run_and_leaves_the_weights() -> None:
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, replace(OPTIONS, precision="float16"))
    before = {name: weight.detach().clone() for name, weight in trainer.weights().items()}
    with pytest.raises(Diverged, match=r"gradient norm (inf|nan) at training step 0"):
        trainer.train(0, trainer.prepare(groups(1e12)))
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.weights().items())


def test_microbatches_add_up_to_the_same_gradient() -> None:
    """Of a loss scaled by a power of two, whose halves and wholes round alike."""
    options = replace(OPTIONS, precision="float16")
    whole, one = trained(options)
    split, several = trained(replace(options, gradient_accumulation_steps=3))
    assert several["grad_norm"] == pytest.approx(one["grad_norm"], rel=0.005)
    torch.testing.assert_close(split, whole, atol=2e-3, rtol=0)
