"""Ranks that were handed different plans say so at once, and those of one plan train, however few its rows are."""

from __future__ import annotations

import threading
import time
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
from tests.learner.tiny_training import OPTIONS, changed, groups
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


def outcome(call: Callable[[], T]) -> tuple[T | str, float]:
    """What a call returns, or what it says when it stops the run, and its seconds."""
    start = time.monotonic()
    try:
        found: T | str = call()
    except RunStopped as error:
        found = str(error)
    return found, time.monotonic() - start


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
    return [outcome(lambda digests=digests: group.agree("the plan", digests[rank]))[0] for digests in rounds]  # type: ignore[misc]


def test_equal_digests_pass_and_a_different_one_is_an_error_on_each_rank_before_and_after(rank_pool: RankPool) -> None:
    """A disagreement takes no part of the collectives that follow, and a long digest counts to its last letter."""
    rounds = [("a", "a"), ("a", "b"), ("a", "a"), ("x" * 500 + "y", "x" * 500 + "z"), ("", "")]
    said = "the Learner's ranks do not agree on the plan: [1] have another one than rank 0"
    for found in rank_pool.run(2, agree, rounds):
        assert [isinstance(waited_s, float) for waited_s in found] == [True, False, True, False, True]
        assert found[1::2] == [said, said]


@pytest.mark.slow
def test_the_error_names_all_ranks_that_differ_from_rank_0(rank_pool: RankPool) -> None:
    rounds = [("a", "a", "b"), ("a", "b", "a"), ("a", "b", "c"), ("a", "b", "b")]
    for found in rank_pool.run(3, agree, rounds):
        named = [str(said).partition("plan: ")[2].partition(" have")[0] for said in found]
        assert named == ["[2]", "[1]", "[1, 2]", "[1, 2]"]


def close_and_begin_again(rank: int) -> list[bool]:
    group = rank_group(rank)
    before = dist.is_initialized()
    group.close()
    group.close()
    between = dist.is_initialized()
    store = listen("127.0.0.1")
    alone = RankGroup(0, 1, store, cuda=False, timeout_s=TIMEOUT_S)
    alone.agree("what one rank says", str(rank))
    return [before, between, dist.get_world_size() == 1]


def test_a_process_can_leave_its_group_and_join_another(rank_pool: RankPool) -> None:
    assert rank_pool.run(2, close_and_begin_again) == [[True, False, True]] * 2


def learner_rank(rank: int, sharding: Sharding, shape: MeshShape, options: TrainerOptions) -> LearnerRank:
    group = rank_group(rank)
    trainer = PolicyTrainer(DecoderLM(SHAPE, seed=1), 0, options, ranks=FsdpRanks(sharding, shape))
    return LearnerRank(trainer, None, tracer=NullTracer(), group=group, publish="rank0")  # type: ignore[arg-type]


def train_on_different_plans(
    rank: int, mode: str, made: tuple[RolloutGroup, ...]
) -> tuple[str, float, bool, Metrics, list[int]]:
    """One more microbatch on rank 1, whose backward pass would wait for one that rank 0 never makes."""
    sharding, shape = MODES[mode]
    worker = learner_rank(rank, sharding, shape, OPTIONS)
    before = {name: whole(tensor) for name, tensor in worker.trainer.weights().items()}
    plans = [plan_training_step(4, made, replace(OPTIONS, gradient_accumulation_steps=1 + own), 2) for own in (0, rank)]
    sizes = [len(plans[1].epochs[0][0].microbatches[rank])]
    refused, seconds = outcome(lambda: worker.update_together(4, made, plans[1]))
    assert isinstance(refused, str)
    untouched = all(torch.equal(whole(tensor), before[name]) for name, tensor in worker.trainer.weights().items())
    result = worker.update_together(4, made, plans[0]).result  # nothing of the refused step is left in any collective
    assert result is not None
    return refused, seconds, untouched, result.metrics, sizes


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_one_microbatch_more_on_one_rank_is_an_error_and_no_hang(mode: str, rank_pool: RankPool) -> None:
    found = rank_pool.run(2, train_on_different_plans, mode, groups(4))
    said = "the Learner's ranks do not agree on the plan of training step 4: [1] have another one than rank 0"
    for rank, (refused, seconds, untouched, metrics, sizes) in enumerate(found):
        assert refused == said
        assert seconds < TIMEOUT_S / 2
        assert untouched
        assert sizes == [1 + rank]
        assert metrics["loss"] == found[0][3]["loss"]


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
    sharding, shape = MODES[mode]
    worker = learner_rank(rank, sharding, shape, FEW)
    made = one_row()
    plan = plan_training_step(0, made, FEW, shape.data_ranks)
    result = worker.update_together(0, made, plan).result
    assert result is not None
    return {name: whole(t) for name, t in worker.trainer.weights().items()}, result.metrics, plan.rows_of(rank).tolist()


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_a_plan_of_one_row_for_two_ranks_is_agreed_on_and_trained(mode: str, rank_pool: RankPool) -> None:
    """As after faults: the rank without rows takes part, and reports nothing but what all know."""
    alone = PolicyTrainer(DecoderLM(SHAPE, seed=1), 0, FEW)
    batch = alone.prepare(one_row())
    alone.compute_old_log_probs(batch)
    alone.compute_reference_log_probs(batch)
    wanted = alone.train(0, batch)
    found = rank_pool.run(2, few_rows, mode)
    assert [rows for _, _, rows in found] == [[0], []]
    for weights, metrics, _ in found:
        assert metrics["loss"].value == pytest.approx(wanted["loss"].value, abs=1e-6)
        assert metrics["grad_norm"].value == pytest.approx(wanted["grad_norm"].value, rel=1e-4)
        for name, tensor in alone.weights().items():
            torch.testing.assert_close(weights[name], tensor.detach(), rtol=0, atol=1e-4, msg=name)
    assert found[0][1].keys() == wanted.keys()
    assert sorted(found[1][1]) == ["grad_norm", "learning_rate", "loss", "optimizer/zero_gradient_steps"]


def train_on_a_reward_that_is_no_number(rank: int, mode: str, made: tuple[RolloutGroup, ...]) -> tuple[str, bool]:
    sharding, shape = MODES[mode]
    worker = learner_rank(rank, sharding, shape, OPTIONS)
    before = {name: whole(tensor) for name, tensor in worker.trainer.weights().items()}
    said, _ = outcome(lambda: worker.update_together(2, made, plan_training_step(2, made, OPTIONS, 2)))
    untouched = all(torch.equal(whole(tensor), before[name]) for name, tensor in worker.trainer.weights().items())
    return str(said), untouched


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_a_loss_that_is_not_finite_on_one_rank_stops_all_before_the_optimizer_step(
    mode: str, rank_pool: RankPool
) -> None:
    """Group 1 of 4 is rank 1's, dealt in turns; rank 0 says the same of it, and the weights are as they were."""
    made = list(groups(4, num_groups=4))
    made[1] = replace(made[1], rewards=(float("nan"), 0.0, 1.0, 0.5))
    found = rank_pool.run(2, train_on_a_reward_that_is_no_number, mode, tuple(made))
    assert found[0] == found[1]
    said, untouched = found[0]
    assert said.startswith("the loss is nan and the gradient norm nan at training step 2, epoch 0, minibatch 0")
    assert untouched


def threads_of_gradients(rank: int, mode: str) -> bool:
    sharding, shape = MODES[mode]
    worker, seen, made = learner_rank(rank, sharding, shape, OPTIONS), set[int](), groups(4, num_groups=4)
    for parameter in worker._policy_trainer.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: seen.add(threading.get_native_id()))
    worker.update_together(2, made, plan_training_step(2, made, OPTIONS, 2))
    return seen == {threading.get_native_id()}


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_a_backward_pass_on_a_cpu_runs_in_the_thread_whose_clocks_are_read(mode: str, rank_pool: RankPool) -> None:
    assert rank_pool.run(2, threads_of_gradients, mode) == [True, True]
