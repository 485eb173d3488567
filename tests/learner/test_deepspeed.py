"""ZeRO's three stages against one process: the same gradients, norms, figures and weights, whatever is cut."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any

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
from tests.learner.test_ranks import PLAIN, RICH, assert_near, drawn_batches, same_metrics
from tests.learner.tiny_training import CONFIG, changed, groups, train_on
from tests.rank_pool import RankPool

STAGES: tuple[ZeroStage, ...] = (1, 2, 3)
Batches = tuple[tuple[RolloutGroup, ...], ...]


pytestmark = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="deepspeed is not installed: make install PARTS=deepspeed"
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
            trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), options.optimizer.learning_rate)
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


FIVE = tuple(groups(seed, num_groups=5) for seed in range(5))
FAST = changed(RICH, optimizer__learning_rate=0.1)
STEPS = [
    Job(FAST, FIVE, sgd=True),
    Job(FAST, FIVE, sgd=True, checkpointing=True),
    Job(PLAIN, FIVE),
    Job(changed(RICH, optimizer__weight_decay=0.1), FIVE),
]
CUT = Job(RICH, (groups(0), groups(1)), 3)
NARROW = Job(replace(PLAIN, precision="bfloat16"), (groups(0), groups(1)))


def splits(ranks: int) -> list[Job]:
    """Odd groups, a group that lost rollouts, fewer rows than ranks, microbatches without rows."""
    return [
        Job(options, (made,))
        for name in ("sequence_mean", "token_mean", "constant")
        for options, made in drawn_batches(ranks, name)[:2]
    ]


def at_each_stage(jobs: list[Job]) -> list[Job]:
    return [replace(job, stage=stage) for stage in STAGES for job in jobs]


def run_on_rank(rank: int, ranks: int) -> dict[str, Any]:
    """All jobs in one process group: DeepSpeed keeps the first one it sees."""
    found: dict[str, Any] = {"splits": [train(job) for job in at_each_stage(splits(ranks))]}
    if ranks == 2:
        found["steps"] = [train(job) for job in at_each_stage(STEPS)]
        found["cut"] = [train(CUT)]
        found["bfloat16"] = [train(job) for job in at_each_stage([NARROW])]
        found["diverged"] = diverge()
    return found


@pytest.fixture(scope="module")
def on_ranks() -> Callable[[int], list[dict[str, Any]]]:
    """What each of so many ranks found; run once for all tests."""

    @cache
    def run(ranks: int) -> list[dict[str, Any]]:
        code = "from deepspeed.accelerator import get_accelerator as a"
        code += "; a().create_op_builder('ShareMemCommBuilder').load()"  # a minute when it was never compiled here
        environment = os.environ | {"DS_ACCELERATOR": "cpu"}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
        with closing(RankPool()) as pool, pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.rank_pool.START_S", 600.0)  # for all jobs together
            return pool.run(ranks, run_on_rank, ranks)

    return run


def by_job(found: list[dict[str, Any]], name: str) -> list[list[Trained]]:
    """What each rank has of each job, after comparing what all ranks must share."""
    jobs = [list(of_job) for of_job in zip(*(of_rank[name] for of_rank in found), strict=True)]
    for first, *others in jobs:
        for other in others:
            assert all(torch.equal(other.weights[weight], first.weights[weight]) for weight in first.weights)
            assert other.metrics["loss"] == first.metrics["loss"]
            assert other.metrics["grad_norm"] == first.metrics["grad_norm"]
    return jobs


def test_five_steps_are_those_of_one_process(on_ranks: Any) -> None:
    """SGD exactly; AdamW, which divides by gradients of next to nothing, within a fiftieth of the way."""
    wanted = [train(job) for job in STEPS]
    start = {name: parameter.detach() for name, parameter in DecoderLM(CONFIG, seed=1).named_parameters()}
    for number, found in enumerate(by_job(on_ranks(2), "steps")):
        job, one = STEPS[number % len(STEPS)], wanted[number % len(STEPS)]
        if job.sgd:
            same_metrics([each.metrics for each in found], one.metrics)
            assert_near(found[0].gradients, one.gradients)
            assert_near(found[0].weights, one.weights)
        moved = torch.cat([(one.weights[name] - start[name]).flatten() for name in start]).norm()
        apart = torch.cat([(found[0].weights[name] - one.weights[name]).flatten() for name in start]).norm()
        assert float(apart / moved) < (1e-5 if job.sgd else 0.02), number


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_any_split_has_the_gradient_of_one_process(ranks: int, on_ranks: Any) -> None:
    jobs = splits(ranks)
    wanted = [train(job) for job in jobs]
    for number, (found, *_) in enumerate(by_job(on_ranks(ranks), "splits")):
        one = wanted[number % len(jobs)]
        assert found.metrics["loss"].value == pytest.approx(one.metrics["loss"].value, abs=1e-6)
        assert found.metrics["grad_norm"].value == pytest.approx(one.metrics["grad_norm"].value, rel=1e-5)
        assert_near(found.gradients, one.gradients)


def test_stage_three_cuts_policy_and_reference_and_leaves_nothing_gathered(on_ranks: Any) -> None:
    sizes = {name: parameter.numel() for name, parameter in DecoderLM(CONFIG, seed=1).named_parameters()}
    (found,) = by_job(on_ranks(2), "cut")
    for each in found:
        assert each.pieces == [(name, -(-size // 2)) for _ in range(2) for name, size in sizes.items()]
        assert each.gathered == []


def test_bfloat16_trains_as_one_process_does(on_ranks: Any) -> None:
    """Another split rounds elsewhere; other weights round everywhere."""
    one, exact = train(NARROW), train(Job(PLAIN, NARROW.batches))

    def gap(other: Trained) -> float:
        return max(float((gradient - other.gradients[name]).abs().max()) for name, gradient in one.gradients.items())

    for found, *_ in by_job(on_ranks(2), "bfloat16"):
        assert gap(found) < gap(exact) / 10


def diverge() -> list[tuple[bool, bool]]:
    """Of each stage: whether a batch with a reward that is no number, of rank 1's, left the weights, and a good one
    behind it gave those of one process."""
    said = []
    for stage in STAGES:
        trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, PLAIN, ranks=DeepSpeedRanks(stage))
        bad, good = list(groups(0)), groups(1)
        bad[1] = replace(bad[1], rewards=(float("nan"), 1.0, 0.0, 0.5))

        def apart(other: dict[str, Tensor], trainer: PolicyTrainer = trainer) -> float:
            return max(
                float((trainer.ranks.whole(w) - other[name]).abs().max()) for name, w in trainer.weights().items()
            )

        before = {name: trainer.ranks.whole(tensor).clone() for name, tensor in trainer.weights().items()}
        with pytest.raises(Diverged, match="the loss is nan"):
            trainer.train(0, trainer.prepare(tuple(bad)))
        untouched = apart(before) == 0
        trainer.train(0, trainer.prepare(good))
        one = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, PLAIN)
        one.train(0, one.prepare(good))
        said.append((untouched, apart({name: tensor.detach() for name, tensor in one.weights().items()}) < 1e-4))
    return said


def test_a_loss_that_is_no_number_changes_no_weight_on_any_rank(on_ranks: Any) -> None:
    assert [of_rank["diverged"] for of_rank in on_ranks(2)] == [[(True, True)] * 3] * 2
