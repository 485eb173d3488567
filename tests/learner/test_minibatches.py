"""How rows are dealt to minibatches: each once, anew in each pass, groups together, and from nothing but the seed."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from harness.scenario.batch_plan import deal
from tests.learner.tiny_training import OPTIONS, trained

GROUP_OF = torch.arange(8).repeat_interleave(4)  # 8 groups of 4 rows


def dealt(pieces: int = 4, seed: int = 0, step: int = 0, epoch: int = 0, group_of: torch.Tensor = GROUP_OF) -> list:
    rows = deal(group_of.numpy(), pieces, seed=seed, step=step, epoch=epoch)
    return [piece.tolist() for piece in rows]


def groups_in(minibatch: list[int]) -> set[int]:
    return {int(GROUP_OF[row]) for row in minibatch}


@pytest.mark.parametrize("pieces", [2, 3, 4, 5, 7, 8, 32, 40])
def test_each_row_is_in_one_minibatch_and_groups_stay_together(pieces: int) -> None:
    """Prompts to encode: 8 where minibatches hold whole groups, and one more for each border within a group."""
    for group_of in (GROUP_OF, torch.tensor([0, 0, 0, 0, 1, 2, 2])):
        minibatches = dealt(pieces, group_of=group_of)
        assert sorted(row for minibatch in minibatches for row in minibatch) == list(range(len(group_of)))
        sizes = [len(minibatch) for minibatch in minibatches]
        assert len(sizes) == min(pieces, len(group_of))
        assert max(sizes) - min(sizes) <= 1
    for epoch in range(20 if pieces <= 8 else 0):
        encoded = sum(len(groups_in(minibatch)) for minibatch in dealt(pieces, epoch=epoch))
        assert 8 <= encoded <= 8 + pieces - 1
        assert encoded == 8 or 8 % pieces


def test_the_order_follows_from_seed_training_step_and_pass() -> None:
    base = dealt(seed=1, step=2, epoch=3)
    torch.manual_seed(5)  # the global stream plays no part
    assert dealt(seed=1, step=2, epoch=3) == base
    others = [dealt(seed=2, step=2, epoch=3), dealt(seed=1, step=3, epoch=3), dealt(seed=1, step=2, epoch=4)]
    others.append(dealt(seed=1, step=3, epoch=2))
    assert all(other != base for other in others)


def test_every_group_is_as_often_in_every_minibatch() -> None:
    """2,000 passes deal each group to each of 4 minibatches 500 times, give or take sqrt(2000 * 1/4 * 3/4) = 19.4."""
    counts = Counter(
        (group, number)
        for epoch in range(2000)
        for number, minibatch in enumerate(dealt(epoch=epoch))
        for group in groups_in(minibatch)
    )
    assert len(counts) == 32
    assert max(abs(count - 500) for count in counts.values()) < 5 * 19.4


def test_a_group_at_a_border_is_cut_elsewhere_in_each_pass() -> None:
    """One group of 4 in two halves: each of the 6 pairs of rows comes first now and then, not rows 0 and 1 alone."""
    firsts = {tuple(sorted(dealt(2, epoch=epoch, group_of=torch.zeros(4).long())[0])) for epoch in range(100)}
    assert len(firsts) == 6


def test_one_minibatch_is_the_batch_as_it_is_bit_for_bit() -> None:
    options = replace(OPTIONS, epochs_per_batch=3, gradient_accumulation_steps=2)
    plain = trained(replace(options, shuffle_minibatches=False))[0]
    for seed in (0, 1):
        shuffled = trained(replace(options, shuffle_minibatches=True, seed=seed))[0]
        assert all(torch.equal(shuffled[name], weight) for name, weight in plain.items())
