"""ZeRO's three stages against one process: the same gradients, norms, figures and weights, whatever is cut."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.core.errors import Diverged
from harness.core.types import Metrics, RolloutGroup
from harness.learner import PolicyTrainer, TrainerOptions
from harness.learner.deepspeed import DeepSpeedRanks
from harness.learner.ranks import MakeOptimizer
from harness.models.decoder import DecoderLM, decoder_without_weights
from harness.settings.learner import ZeroStage
from tests.learner.test_ranks import PLAIN, RICH, same_metrics, without_rollouts
from tests.learner.tiny_training import CONFIG, changed, groups, train_on
from tests.rank_pool import RankPool

HERE = find_spec("deepspeed") is not None
STAGES: tuple[ZeroStage, ...] = (1, 2, 3)
Batches = tuple[tuple[RolloutGroup, ...], ...]


def needs_deepspeed(test: Any) -> Any:
    """Mark a test of ranks that start DeepSpeed."""
    return pytest.mark.slow(
        pytest.mark.skipif(not HERE, reason="deepspeed is not installed: make install PARTS=deepspeed")(test)
    )


@dataclass(frozen=True)
class Job:
    """What a rank trains; without a stage one process does."""

    options: TrainerOptions
    batches: Batches
    stage: ZeroStage | None = None
    sgd: bool = False
    checkpointing: bool = False


@dataclass(frozen=True)
class Trained:
    """What came out: weights, the gradients of the last optimizer step before they were clipped, the last metrics.

    ``pieces`` is how many numbers of policy and reference a rank holds, ``gathered`` those left whole after the step.
    """

    weights: dict[str, Tensor]
    gradients: dict[str, Tensor]
    metrics: Metrics
    pieces: list[tuple[str, int]]
    gathered: list[str]


class NotingRanks(DeepSpeedRanks):
    """Ranks that note the whole gradients, and may step SGD."""

    def __init__(self, stage: ZeroStage, sgd: bool, precision: str) -> None:
        super().__init__(stage, precision=precision)
        self._sgd, self.gradients = sgd, dict[str, Tensor]()

    def wrap_trained(self, scoring: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Any]:
        self._scoring = scoring
        rate = make_optimizer().param_groups[0]["lr"]
        return super().wrap_trained(
            scoring, (lambda: torch.optim.SGD(scoring.parameters(), rate)) if self._sgd else make_optimizer
        )

    def clip_gradients(self, parameters: Any, max_norm: float) -> float:
        from deepspeed.utils import safe_get_full_grad

        for name, parameter in self._scoring.policy.named_parameters():  # type: ignore[operator, union-attr]
            found = safe_get_full_grad(parameter)
            self.gradients[name] = torch.empty(0) if found is None else found.clone()
        return super().clip_gradients(parameters, max_norm)


def train(job: Job) -> Trained:
    """Train from the same initial weights, on this rank's share of each batch."""
    ranks = None if job.stage is None else NotingRanks(job.stage, job.sgd, job.options.precision)
    options = replace(job.options, gradient_checkpointing=job.checkpointing)
    first = ranks is None or ranks.data_rank == 0
    model = DecoderLM(CONFIG, seed=1) if first else decoder_without_weights(CONFIG)  # rank 0 hands them out
    trainer = PolicyTrainer(model, 0, options, ranks=ranks)
    gradients: dict[str, Tensor] = {}
    if ranks is None:
        note_gradients(trainer, gradients)
        if job.sgd:
            trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), options.learning_rate)
    metrics = train_on(trainer, job.batches, None if ranks is None else ranks.data_rank)
    models = [trainer.model, *([trainer.reference.model] if trainer.reference else [])]
    named = [pair for model in models for pair in model.named_parameters()]
    pieces = [] if ranks is None else [(name, ranks.held(parameter).numel()) for name, parameter in named]
    left = [name for name, parameter in named if parameter.numel()]
    weights = {name: trainer.ranks.whole(tensor).clone() for name, tensor in trainer.weights().items()}
    return Trained(weights, gradients if ranks is None else ranks.gradients, metrics, pieces, left)


def note_gradients(trainer: PolicyTrainer, into: dict[str, Tensor]) -> None:
    clip = trainer.ranks.clip_gradients

    def noting(parameters: Any, max_norm: float) -> float:
        into.update({name: parameter.grad.clone() for name, parameter in trainer.model.named_parameters()})  # type: ignore[union-attr]
        return clip(parameters, max_norm)

    trainer.ranks.clip_gradients = noting  # type: ignore[method-assign]


def train_all(rank: int, jobs: list[Job]) -> list[Trained]:
    """One process group for all jobs: DeepSpeed keeps the first one it sees."""
    return [train(job) for job in jobs]


@pytest.fixture(scope="module")
def run_jobs() -> Iterator[Callable[[int, list[Job]], list[list[Trained]]]]:
    """Runs jobs on so many new ranks; returns for each job what each rank has."""
    code = "from deepspeed.accelerator import get_accelerator as a; a().create_op_builder('ShareMemCommBuilder').load()"
    subprocess.run(  # a minute when it was never compiled here, longer than a rank may take
        [sys.executable, "-c", code], env=os.environ | {"DS_ACCELERATOR": "cpu"}, check=True, capture_output=True
    )
    pools: list[RankPool] = []

    def run(ranks: int, jobs: list[Job]) -> list[list[Trained]]:
        pools.append(RankPool())
        found = pools[-1].run(ranks, train_all, jobs)
        pools[-1].close()
        return [list(of_job) for of_job in zip(*found, strict=True)]

    yield run
    for pool in pools:
        pool.close()


def agree(found: list[Trained]) -> None:
    """Assert what all ranks must share."""
    for other in found[1:]:
        assert all(torch.equal(other.weights[name], found[0].weights[name]) for name in found[0].weights)
        assert other.metrics["loss"] == found[0].metrics["loss"]
        assert other.metrics["grad_norm"] == found[0].metrics["grad_norm"]


@needs_deepspeed
def test_five_steps_are_those_of_one_process(run_jobs: Any) -> None:
    """SGD exactly; AdamW, which divides by gradients of next to nothing, within a fiftieth of the way."""
    batches = tuple(groups(seed, num_groups=5) for seed in range(5))
    trained = [
        Job(changed(RICH, optimizer__learning_rate=0.1), batches, sgd=True),
        Job(changed(RICH, optimizer__learning_rate=0.1), batches, sgd=True, checkpointing=True),
        Job(PLAIN, batches),
        Job(changed(RICH, optimizer__weight_decay=0.1), batches),
    ]
    jobs = [replace(job, stage=stage) for stage in STAGES for job in trained]
    wanted = [train(job) for job in trained]
    start = {name: parameter.detach() for name, parameter in DecoderLM(CONFIG, seed=1).named_parameters()}
    for number, (job, found) in enumerate(zip(jobs, run_jobs(2, jobs), strict=True)):
        one = wanted[number % len(trained)]
        agree(found)
        if job.sgd:
            same_metrics([each.metrics for each in found], one.metrics)
            for name, gradient in one.gradients.items():
                torch.testing.assert_close(found[0].gradients[name], gradient, rtol=0, atol=1e-6, msg=name)
                torch.testing.assert_close(found[0].weights[name], one.weights[name], rtol=0, atol=1e-6, msg=name)
        moved = torch.cat([(one.weights[name] - start[name]).flatten() for name in start]).norm()
        apart = torch.cat([(found[0].weights[name] - one.weights[name]).flatten() for name in start]).norm()
        assert float(apart / moved) < (1e-5 if job.sgd else 0.02), (job.stage, number)


@needs_deepspeed
@pytest.mark.parametrize("ranks", [2, 3])
def test_any_split_has_the_gradient_of_one_process(ranks: int, run_jobs: Any) -> None:
    """Odd groups, a group that lost rollouts, fewer rows than ranks, microbatches without rows."""
    rng = np.random.default_rng(ranks)
    jobs = []
    for trial in range(6):
        made = list(groups(trial, num_groups=int(rng.integers(1, 5)), group_size=int(rng.integers(2, 5))))
        made[0] = without_rollouts(made[0], int(rng.integers(2, len(made[0].lengths) + 1)))
        aggregation = ("sequence_mean", "token_mean", "constant")[trial % 3]
        options = changed(
            PLAIN,
            loss__aggregation=aggregation,
            loss__constant=8 if aggregation == "constant" else None,
            gradient_accumulation_steps=int(rng.integers(1, 4)),
            balance=str(rng.choice(["round_robin", "longest_first", "cost"])),
        )
        jobs.extend(Job(options, (tuple(made),), stage) for stage in STAGES)
    for job, found in zip(jobs, run_jobs(ranks, jobs), strict=True):
        one = train(replace(job, stage=None))
        agree(found)
        assert found[0].metrics["loss"].value == pytest.approx(one.metrics["loss"].value, abs=1e-6)
        assert found[0].metrics["grad_norm"].value == pytest.approx(one.metrics["grad_norm"].value, rel=1e-5)
        for name, gradient in one.gradients.items():
            torch.testing.assert_close(found[0].gradients[name], gradient, rtol=0, atol=1e-6, msg=name)


@needs_deepspeed
def test_stage_three_cuts_policy_and_reference_and_leaves_nothing_gathered(run_jobs: Any) -> None:
    sizes = {name: parameter.numel() for name, parameter in DecoderLM(CONFIG, seed=1).named_parameters()}
    ((*found,),) = run_jobs(2, [Job(RICH, (groups(0), groups(1)), 3)])
    for each in found:
        assert each.pieces == [(name, -(-size // 2)) for _ in range(2) for name, size in sizes.items()]
        assert each.gathered == []


def gap(one: Trained, other: Trained) -> float:
    """The largest difference between two gradients."""
    return max(float((one.gradients[name] - other.gradients[name]).abs().max()) for name in one.gradients)


@needs_deepspeed
def test_bfloat16_trains_as_one_process_does(run_jobs: Any) -> None:
    options = replace(PLAIN, precision="bfloat16")
    jobs = [Job(options, (groups(0), groups(1)), stage) for stage in STAGES]
    one = train(replace(jobs[0], stage=None))
    exact = train(Job(PLAIN, jobs[0].batches))
    for found in run_jobs(2, jobs):
        agree(found)
        assert (
            gap(found[0], one) < gap(one, exact) / 10
        )  # another split rounds elsewhere; other weights round everywhere


def diverge(rank: int) -> list[tuple[str, bool]]:
    """Meet a batch with rewards that are no numbers, of which rank 1 trains on one; then go on."""
    said = []
    for stage in STAGES:
        trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, PLAIN, ranks=DeepSpeedRanks(stage))
        bad, good = list(groups(0)), groups(1)
        bad[1] = replace(bad[1], rewards=(float("nan"), 1.0, 0.0, 0.5))
        before = {name: trainer.ranks.whole(tensor).clone() for name, tensor in trainer.weights().items()}
        with pytest.raises(Diverged) as caught:
            trainer.train(0, trainer.prepare(tuple(bad)))
        same = all(torch.equal(trainer.ranks.whole(tensor), before[name]) for name, tensor in trainer.weights().items())
        said.append((str(caught.value)[:15], same))
        trainer.train(0, trainer.prepare(good))
        one = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, PLAIN)
        one.train(0, one.prepare(good))
        wanted = {name: tensor.detach() for name, tensor in one.weights().items()}
        apart = [
            float((trainer.ranks.whole(each) - wanted[name]).abs().max()) for name, each in trainer.weights().items()
        ]
        said.append(("goes on", max(apart) < 1e-4))
    return said


@needs_deepspeed
def test_a_loss_that_is_no_number_changes_no_weight_on_any_rank(run_jobs: Any) -> None:
    pool = RankPool()
    found = pool.run(2, diverge)
    pool.close()
    assert found == [[("the loss is nan", True), ("goes on", True)] * 3] * 2
