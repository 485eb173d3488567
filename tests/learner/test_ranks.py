"""A Learner of several ranks against one process: the same gradients, figures and weights, whatever is shared how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.core.types import Metrics, RolloutGroup, combine_metrics
from harness.learner import PolicyTrainer, TrainerOptions
from harness.learner.ranks import FsdpRanks, Ranks
from harness.learner.trainer import plan_training_step
from harness.models.decoder import DecoderLM, decoder_without_weights
from harness.settings.learner import MeshShape, Sharding
from tests.learner.tiny_training import CONFIG, OPTIONS, changed, groups, train_on
from tests.rank_pool import RankPool

MODES: dict[str, tuple[Sharding, MeshShape]] = {
    "ddp": ("ddp", MeshShape(replicate=2)),
    "fsdp2": ("fsdp2", MeshShape(shard=2)),
    "tp": ("fsdp2", MeshShape(tensor=2)),
    "fsdp2 on 3": ("fsdp2", MeshShape(shard=3)),
    "hsdp": ("fsdp2", MeshShape(replicate=2, shard=2)),
    "fsdp2 x tp": ("fsdp2", MeshShape(shard=2, tensor=2)),
    "ddp x tp": ("ddp", MeshShape(replicate=2, tensor=2)),
    "ddp x fsdp2 x tp": ("fsdp2", MeshShape(replicate=2, shard=2, tensor=2)),
}
EVERY_MODE = [
    pytest.param(mode, marks=pytest.mark.slow if shape.ranks > 2 else ()) for mode, (_, shape) in MODES.items()
]
SHAPE = replace(CONFIG, num_key_value_heads=2)
Trained = tuple[dict[str, Tensor], dict[str, Tensor], Metrics]
"""Weights, the gradients of the last optimizer step, and the last training step's metrics."""


def sgd(trainer: PolicyTrainer) -> None:
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), trainer.options.optimizer.learning_rate)


def keep(trainer: PolicyTrainer) -> None:
    """Leave the optimizer as it is."""


def train(
    options: TrainerOptions,
    batches: Sequence[Any],
    change: Callable[[PolicyTrainer], None] = keep,
    ranks: Ranks | None = None,
    on: Callable[..., Metrics] = train_on,
    make: Callable[[], nn.Module] | None = None,
) -> Trained:
    """Train from the same initial weights, on this rank's share of each batch; the harness' own model, or one made."""
    first = ranks is None or dist.get_rank() == 0
    own = DecoderLM(SHAPE, seed=1) if first else decoder_without_weights(SHAPE)  # rank 0 hands them out
    trainer = PolicyTrainer(own if make is None else make(), 0, options, ranks=ranks)
    change(trainer)
    gradients: dict[str, Tensor] = {}
    zero_grad = trainer.optimizer.zero_grad

    def note_gradients() -> None:
        gradients.update({name: whole(parameter.grad) for name, parameter in trainer.model.named_parameters()})
        zero_grad()

    trainer.optimizer.zero_grad = note_gradients  # type: ignore[method-assign, assignment]
    metrics = on(trainer, batches, None if ranks is None else ranks.data_rank)
    return {name: whole(tensor) for name, tensor in trainer.weights().items()}, gradients, metrics


def whole(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def train_rank(rank: int, mode: str, *job: Any) -> Trained:
    options, batches, change, *make = job
    return train(options, batches, change, FsdpRanks(*MODES[mode]), train_on, *make)


def compare(pool: RankPool, mode: str, *job: Any) -> list[tuple[Trained, Trained]]:
    """Return for each rank what it has and what one process has, after comparing what all ranks must share."""
    options, batches, change, *make = job
    wanted = train(options, batches, change, None, train_on, *make)
    found = pool.run(MODES[mode][1].ranks, train_rank, mode, *job)
    for weights, gradients, metrics in found[1:]:
        assert all(torch.equal(weights[name], found[0][0][name]) for name in weights)
        assert all(torch.equal(gradients[name], found[0][1][name]) for name in gradients)
        assert metrics["loss"] == found[0][2]["loss"]
    return [(of_rank, wanted) for of_rank in found]


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6, msg=name)


def same_metrics(found: list[Metrics], wanted: Metrics) -> None:
    combined = combine_metrics(found)
    shared = {"loss", "grad_norm", "learning_rate", "optimizer/zero_gradient_steps"}  # of the whole step
    assert combined.keys() == wanted.keys()
    for name, metric in wanted.items():
        assert combined[name].value == pytest.approx(metric.value, rel=2e-4, abs=1e-6), name
        assert combined[name].count == metric.count * (len(found) if name in shared else 1), name


PLAIN = changed(OPTIONS, optimizer__max_grad_norm=None)
RICH = changed(
    OPTIONS,
    loss__type="grpo_clip",
    loss__kl__coefficient=0.05,
    loss__entropy_coefficient=0.01,
    loss__kl__monitor=True,
    loss__kl__reference="polyak",
    loss__kl__alpha=0.5,
    epochs_per_batch=2,
    minibatches_per_epoch=2,
    gradient_accumulation_steps=2,
    optimizer__max_grad_norm=0.5,
)


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_three_steps_are_those_of_one_process(mode: str, rank_pool: RankPool) -> None:
    """Of SGD to rounding; of AdamW, which divides by gradients of next to nothing, within a fiftieth of the way."""
    batches = [groups(seed, num_groups=5) for seed in range(3)]
    pairs = compare(rank_pool, mode, changed(RICH, optimizer__learning_rate=0.1), batches, sgd)
    for (weights, gradients, _), (wanted_weights, wanted_gradients, _) in pairs:
        assert_near(gradients, wanted_gradients)
        assert_near(weights, wanted_weights)
    speaking = [pair[0][2] for rank, pair in enumerate(pairs) if MODES[mode][1].speaks(rank)]
    same_metrics(speaking, pairs[0][1][2])

    ((found, _, _), (wanted, _, _)), *_ = compare(rank_pool, mode, PLAIN, batches, keep)
    start = {name: parameter.detach() for name, parameter in DecoderLM(SHAPE, seed=1).named_parameters()}
    moved = torch.cat([(wanted[name] - start[name]).flatten() for name in wanted]).norm()
    apart = torch.cat([(found[name] - wanted[name]).flatten() for name in wanted]).norm()
    assert float(apart / moved) < 0.02


def a_model_of_transformers() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM  # here, or each rank of other tests would import them

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig.from_dict(SHAPE.to_hf())).eval()


def test_a_model_that_transformers_runs_is_cut_too_and_shares_rows(rank_pool: RankPool) -> None:
    batches = [groups(seed) for seed in range(2)]
    options = changed(RICH, optimizer__learning_rate=0.1)
    pairs = compare(rank_pool, "fsdp2", options, batches, sgd, a_model_of_transformers)
    for (weights, gradients, _), (wanted_weights, wanted_gradients, _) in pairs:
        assert_near(gradients, wanted_gradients)
        assert_near(weights, wanted_weights)


def drawn_batches(ranks: int, aggregation: str) -> list[tuple[TrainerOptions, tuple[RolloutGroup, ...]]]:
    """Odd groups, a group that lost rollouts, fewer rows than ranks: drawn anew for each split."""
    rng, drawn = np.random.default_rng([ranks, len(aggregation)]), []
    for trial in range(3):
        made = list(groups(trial, num_groups=int(rng.integers(1, 5)), group_size=int(rng.integers(2, 5))))
        made[0] = without_rollouts(made[0], int(rng.integers(2, len(made[0].lengths) + 1)))
        options = changed(
            PLAIN,
            loss__aggregation=aggregation,
            loss__constant=8 if aggregation == "constant" else None,
            gradient_accumulation_steps=int(rng.integers(1, 4)),
            balance=str(rng.choice(["round_robin", "longest_first", "cost"])),
        )
        drawn.append((options, tuple(made)))
    return drawn


AGGREGATIONS = ("sequence_mean", "sequence_sum", "token_mean", "prompt_mean", "constant")


def spread_out(rank: int, ranks: int) -> list[list[Trained]]:
    """Of each aggregation what came out of each batch."""
    shape = MeshShape(shard=ranks)
    return [
        [train(options, [made], keep, FsdpRanks("fsdp2", shape)) for options, made in drawn_batches(ranks, aggregation)]
        for aggregation in AGGREGATIONS
    ]


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (3, 4))])
def test_any_split_has_the_gradient_of_one_process(ranks: int, rank_pool: RankPool) -> None:
    found = rank_pool.run(ranks, spread_out, ranks)
    drawn = [batch for aggregation in AGGREGATIONS for batch in drawn_batches(ranks, aggregation)]
    of_batches = zip(*([each for of_one in of_rank for each in of_one] for of_rank in found), strict=True)
    for (options, made), of_ranks in zip(drawn, of_batches, strict=True):
        case, (_, wanted, metrics) = str(options.loss.aggregation), train(options, [made])
        for _, gradients, of_rank in of_ranks:
            assert of_rank["loss"].value == pytest.approx(metrics["loss"].value, abs=1e-6), case
            assert_near(gradients, wanted)
            assert of_rank["optimizer/zero_gradient_steps"] == metrics["optimizer/zero_gradient_steps"], case
        weighed = combine_metrics([of_rank for *_, of_rank in of_ranks])["advantage/nonzero_fraction"]
        assert weighed.value == pytest.approx(metrics["advantage/nonzero_fraction"].value), case
        assert weighed.count == sum(len(group.lengths) for group in made), case


def without_rollouts(group: RolloutGroup, count: int) -> RolloutGroup:
    """The group with its first rollouts only, as after a failure or of a replay sample."""
    assert group.rewards is not None
    data = replace(group.data, completions=group.data.completions[:count])
    return replace(group, lengths=group.lengths[:count], rewards=group.rewards[:count], data=data)


def pieces(rank: int) -> list[tuple[str, int]]:
    trainer = PolicyTrainer(DecoderLM(SHAPE, seed=1), 0, RICH, ranks=FsdpRanks("fsdp2", MeshShape(shard=2)))
    held = [*trainer.model.named_parameters(), *trainer.reference.model.named_parameters()]  # type: ignore[union-attr]
    return [(name, parameter.to_local().numel()) for name, parameter in held if isinstance(parameter, DTensor)]


def test_every_parameter_of_policy_and_reference_is_cut(rank_pool: RankPool) -> None:
    """Rank 0 has the larger half of its rows."""
    shapes = [(name, parameter.shape) for name, parameter in DecoderLM(SHAPE, seed=1).named_parameters()]
    halves = [(name, -(-shape[0] // 2) * shape[1:].numel(), shape.numel()) for name, shape in shapes]
    first, second = rank_pool.run(2, pieces)
    assert first == [(name, half) for name, half, _ in halves] * 2
    assert second == [(name, size - half) for name, half, size in halves] * 2


def test_the_plans_of_all_ranks_cover_each_row_once() -> None:
    made = groups(3, num_groups=7)
    for balance in ("round_robin", "longest_first", "cost"):
        options = replace(RICH, balance=balance)
        plan, same, other = (plan_training_step(step, made, options, 3) for step in (2, 2, 3))
        for minibatches in plan.epochs:
            rows = [row for step in minibatches for rank in step.microbatches for piece in rank for row in piece]
            assert sorted(rows) == list(range(28))
            for step in minibatches:
                assert len({len(of_rank) for of_rank in step.microbatches}) == 1
                assert step.num_sequences == sum(len(piece) for rank in step.microbatches for piece in rank)
        assert plan.digest == same.digest != other.digest


def test_cost_tells_long_responses_from_many_where_tokens_do_not() -> None:
    """Four groups of 104 tokens: one response of 100, or two of 50, whose attention has half of the pairs."""

    def group(lengths: tuple[int, ...]) -> RolloutGroup:
        return replace(groups()[0], lengths=lengths, prompt_length=4, data=None, rewards=(0.0,) * len(lengths))

    made = (group((100,)), group((50, 50)), group((100,)), group((50, 50)))
    shared = {}
    for balance in ("longest_first", "cost"):
        options = replace(PLAIN, balance=balance, group_cost=lambda prompt, lengths: sum(n * n for n in lengths))
        plan = plan_training_step(0, made, options, 2)
        shared[balance] = [plan.groups_of(rank) for rank in range(2)]
        assert plan.imbalance == 1.0
    assert shared["longest_first"] == [[0, 2], [1, 3]]
    assert shared["cost"] == [[0, 1], [2, 3]]
