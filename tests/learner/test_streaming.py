"""A batch that comes in parts against the same batch at once: gradient, weights, figures; one process and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.core.errors import Diverged
from harness.core.types import RolloutGroup
from harness.learner import PolicyTrainer, TrainerOptions
from harness.learner.ranks import FsdpRanks, Ranks
from harness.models.decoder import DecoderLM
from tests.learner import test_ranks
from tests.learner.test_ranks import MODES, SHAPE, Trained, assert_near, same_metrics, without_rollouts
from tests.learner.tiny_training import changed, groups, train_on_parts, truncated
from tests.rank_pool import RankPool

RICH = changed(test_ranks.RICH, epochs_per_batch=1, minibatches_per_epoch=1, optimizer__learning_rate=0.1)
Parts = tuple[tuple[RolloutGroup, ...], ...]


def train(options: TrainerOptions, batches: Sequence[Parts], ranks: Ranks | None = None) -> Trained:
    return test_ranks.train(options, batches, test_ranks.sgd, ranks, train_on_parts)


def train_rank(rank: int, mode: str, options: TrainerOptions, batches: Sequence[Parts]) -> Trained:
    return train(options, batches, FsdpRanks(*MODES[mode]))


def in_parts(seed: int, *sizes: int) -> Parts:
    """The groups of a batch, one of which lost rollouts, cut into parts of so many groups."""
    made = list(groups(seed, num_groups=sum(sizes)))
    made[1] = without_rollouts(made[1], 3)
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return tuple(tuple(made[end - size : end]) for size, end in zip(sizes, ends, strict=True))


def at_once(batches: Sequence[Parts]) -> list[Parts]:
    return [(tuple(group for part in parts for group in part),) for parts in batches]


def same(found: Trained, wanted: Trained) -> None:
    for of_found, of_wanted in zip(found[:2], wanted[:2], strict=True):
        assert of_found.keys() == of_wanted.keys()
        assert_near(of_found, of_wanted)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "sequence_sum", "token_mean", "prompt_mean", "constant"])
def test_parts_have_the_gradient_of_the_whole_batch(aggregation: Any) -> None:
    """Unequal parts, a last part without groups, truncated responses left out of the loss."""
    options = changed(RICH, loss__aggregation=aggregation, loss__constant=8 if aggregation == "constant" else None)
    options = changed(options, loss__mask_truncated=True)
    batches = [in_parts(0, 1, 3), in_parts(2, 4, 0), in_parts(4, 1, 1, 1, 2)]
    cut = [tuple(truncated(part, [0]) for part in parts) for parts in batches]
    found, wanted = train(options, cut), train(options, at_once(cut))
    same(found, wanted)
    same_metrics([found[2]], wanted[2])
    assert found[2]["loss_mask/truncated_fraction"].count == 19
    assert found[2]["loss_mask/truncated_fraction"].value == pytest.approx(4 / 19)


@pytest.mark.parametrize("mode", ["ddp", "fsdp2", pytest.param("fsdp2 x tp", marks=pytest.mark.slow)])
def test_parts_on_ranks_have_the_gradient_of_the_whole_batch_in_one_process(mode: str, rank_pool: RankPool) -> None:
    """Among them a part whose only group has one rollout: one rank has no row of it."""
    options = changed(RICH, loss__aggregation="token_mean", advantage__delta="rewards")
    one = (without_rollouts(groups(9)[0], 1),)
    batches = [in_parts(0, 1, 3), in_parts(1, 3, 1, 2), in_parts(2, 4, 0), (*in_parts(3, 2, 2), one)]
    wanted = train(options, at_once(batches))
    found = rank_pool.run(MODES[mode][1].ranks, train_rank, mode, options, batches)
    for of_rank in found:
        same(of_rank, wanted)
    speaking = [of_rank[2] for rank, of_rank in enumerate(found) if MODES[mode][1].speaks(rank)]
    same_metrics(speaking, wanted[2])


def test_a_loss_that_is_not_finite_in_any_part_stops_before_the_weights_change() -> None:
    trainer = PolicyTrainer(DecoderLM(SHAPE, seed=1), 0, RICH)
    before = {name: tensor.detach().clone() for name, tensor in trainer.weights().items()}
    first, last = in_parts(0, 2, 1)
    bad = tuple(replace(group, rewards=(float("inf"), *group.rewards[1:])) for group in first)  # type: ignore[index]
    with pytest.raises(Diverged, match=r"prompts \[0, 1, 2\]"):
        train_on_parts(trainer, [(bad, last)])
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.weights().items())
    good = train_on_parts(trainer, [in_parts(0, 2, 1)])["loss"]
    wanted = train_on_parts(PolicyTrainer(DecoderLM(SHAPE, seed=1), 0, RICH), [in_parts(0, 2, 1)])["loss"]
    assert good == wanted  # nothing of the bad batch is left
