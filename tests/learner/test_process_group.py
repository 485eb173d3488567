"""Ranks that were handed different plans say so at once, and those of one plan train, however few its rows are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from harness.core.errors import RunStopped
from harness.core.trace import NullTracer
from harness.core.types import Metrics, RolloutGroup
from harness.learner import PolicyTrainer, TrainerOptions
from harness.learner.process_group import RankGroup
from harness.learner.ranks import FsdpRanks
from harness.learner.trainer import plan_training_step
from harness.models.decoder import DecoderLM
from harness.run.rank_worker import LearnerRank
from harness.settings.learner import MeshShape, Sharding
from harness.transports.rendezvous import listen
from tests.learner.test_ranks import MODES, SHAPE, whole
from tests.learner.tiny_training import OPTIONS, changed, groups, train_on
from tests.rank_pool import RankPool

T = TypeVar("T")
TIMEOUT_S = 60.0
"""Of a collective: what hangs takes so long."""


def rank_group(rank: int) -> RankGroup:
    """Have the ranks of the pool find each other over a store, as actors do, in place of the pool's own group."""
    store = listen("127.0.0.1") if rank == 0 else None
    place: list[Any] = [("127.0.0.1", store.port) if store else None]
    ranks = dist.get_world_size()
    dist.broadcast_object_list(place)
    dist.destroy_process_group()
    return RankGroup(rank, ranks, store or place[0], cuda=False, timeout_s=TIMEOUT_S)


def outcome(call: Callable[[], T]) -> T | str:
    """What a call returns, or what it says when it stops the run."""
    try:
        return call()
    except RunStopped as error:
        return str(error)


def test_the_store_listens_on_the_interface_it_is_given_and_on_no_other() -> None:
    """Left to itself torch's store listens on all of them, and lets in whoever comes."""
    store = listen("127.0.0.1")
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            address, port, state = (*line.split()[1].split(":"), line.split()[3])
            if int(port, 16) == store.port and state == "0A":  # listens
                found.append(address)
    assert found == ["0100007F"]


def agree(rank: int, rounds: list[tuple[str, ...]]) -> list[str | float]:
    group = rank_group(rank)
    return [outcome(lambda digests=digests: group.agree("the plan", digests[rank])) for digests in rounds]  # type: ignore[misc]


def test_equal_digests_pass_and_a_different_one_is_an_error_on_each_rank_before_and_after(rank_pool: RankPool) -> None:
    """A disagreement takes no part of the collectives that follow, and a long digest counts to its last letter."""
    rounds = [("a", "a"), ("a", "b"), ("a", "a"), ("x" * 500 + "y", "x" * 500 + "z"), ("", "")]
    for found in rank_pool.run(2, agree, rounds):
        assert [isinstance(waited_s, float) for waited_s in found] == [True, False, True, False, True]
        assert all("the plan: [1] have another one than rank 0" in str(said) for said in found[1::2])


def close_and_begin_again(rank: int) -> list[bool]:
    group = rank_group(rank)
    before = dist.is_initialized()
    group.close()
    group.close()
    between = dist.is_initialized()
    alone = RankGroup(0, 1, listen("127.0.0.1"), cuda=False, timeout_s=TIMEOUT_S)
    alone.agree("what one rank says", str(rank))
    return [before, between, dist.get_world_size() == 1]


def test_a_process_can_leave_its_group_and_join_another(rank_pool: RankPool) -> None:
    assert rank_pool.run(2, close_and_begin_again) == [[True, False, True]] * 2


def learner_rank(rank: int, sharding: Sharding, shape: MeshShape, options: TrainerOptions) -> LearnerRank:
    group = rank_group(rank)
    trainer = PolicyTrainer(DecoderLM(SHAPE, seed=1), 0, options, ranks=FsdpRanks(sharding, shape))
    return LearnerRank(trainer, None, tracer=NullTracer(), group=group, publish="rank0")  # type: ignore[arg-type]


def refused_and_trained(rank: int, mode: str) -> tuple[list[str], list[bool], Metrics, set[int]]:
    """What two bad steps are refused with, whether they left the weights, and a good step behind them.

    One has a microbatch more on rank 1, whose backward pass would wait for one that rank 0 never makes, and one a
    reward that is no number, of group 1 of 4, which is rank 1's, dealt in turns.
    """
    worker, made = learner_rank(rank, *MODES[mode], OPTIONS), groups(4, num_groups=4)
    seen = set[int]()
    for parameter in worker._policy_trainer.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: seen.add(threading.get_native_id()))

    def weights() -> dict[str, Tensor]:
        return {name: whole(tensor) for name, tensor in worker.trainer.weights().items()}

    before = weights()
    plan, other = (
        plan_training_step(4, made, replace(OPTIONS, gradient_accumulation_steps=n), 2) for n in (1, 1 + rank)
    )
    assert len(other.epochs[0][0].microbatches[rank]) == 1 + rank
    bad = (made[0], replace(made[1], rewards=(float("nan"), 0.0, 1.0, 0.5)), *made[2:])
    said, untouched = [], []
    for step in (
        lambda: worker.update_together(4, made, other),
        lambda: worker.update_together(2, bad, plan_training_step(2, bad, OPTIONS, 2)),
    ):
        said.append(str(outcome(step)))
        untouched.append(all(torch.equal(tensor, before[name]) for name, tensor in weights().items()))
    result = worker.update_together(4, made, plan).result  # nothing of the refused steps is left in any collective
    assert result is not None
    return said, untouched, result.metrics, seen ^ {threading.get_native_id()}


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_what_one_rank_has_otherwise_stops_all_before_the_optimizer_step_and_the_next_step_is_whole(
    mode: str, rank_pool: RankPool
) -> None:
    """And a backward pass on a CPU runs in the thread whose clocks are read."""
    alone = PolicyTrainer(DecoderLM(SHAPE, seed=1), 0, OPTIONS)
    wanted = alone.train(0, alone.prepare(groups(4, num_groups=4)))
    for said, untouched, metrics, other_threads in rank_pool.run(2, refused_and_trained, mode):
        assert said[0].endswith("do not agree on the plan of training step 4: [1] have another one than rank 0")
        assert said[1].startswith("the loss is nan and the gradient norm nan at training step 2, epoch 0, minibatch 0")
        assert untouched == [True, True]
        assert metrics["loss"].value == pytest.approx(wanted["loss"].value, abs=1e-6)
        assert metrics["grad_norm"].value == pytest.approx(wanted["grad_norm"].value, rel=1e-4)
        assert other_threads == set()


FEW = changed(
    OPTIONS,
    advantage__delta="rewards",
    loss__type="grpo_clip",
    loss__kl__coefficient=0.05,
    loss__kl__monitor=True,
    epochs_per_batch=2,
    gradient_accumulation_steps=2,
    loss__mask_truncated=True,
)


def one_row() -> tuple[RolloutGroup, ...]:
    (group,) = groups(3, num_groups=1, group_size=1)
    return (replace(group, rewards=(0.5,)),)


def few_rows(rank: int, mode: str) -> tuple[dict[str, Tensor], Metrics, list[int]]:
    worker, made = learner_rank(rank, *MODES[mode], FEW), one_row()
    plan = plan_training_step(0, made, FEW, 2)
    result = worker.update_together(0, made, plan).result
    assert result is not None
    return {name: whole(t) for name, t in worker.trainer.weights().items()}, result.metrics, plan.rows_of(rank).tolist()


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_a_plan_of_one_row_for_two_ranks_is_agreed_on_and_trained(mode: str, rank_pool: RankPool) -> None:
    """As after faults: the rank without rows takes part, and reports nothing but what all know."""
    alone = PolicyTrainer(DecoderLM(SHAPE, seed=1), 0, FEW)
    wanted = train_on(alone, [one_row()])
    found = rank_pool.run(2, few_rows, mode)
    assert [rows for _, _, rows in found] == [[0], []]
    for weights, metrics, _ in found:
        assert metrics["loss"].value == pytest.approx(wanted["loss"].value, abs=1e-6)
        assert metrics["grad_norm"].value == pytest.approx(wanted["grad_norm"].value, rel=1e-4)
        for name, tensor in alone.weights().items():
            torch.testing.assert_close(weights[name], tensor.detach(), rtol=0, atol=1e-4, msg=name)
    assert found[0][1].keys() == wanted.keys()
    assert sorted(found[1][1]) == ["grad_norm", "learning_rate", "loss", "optimizer/zero_gradient_steps"]
