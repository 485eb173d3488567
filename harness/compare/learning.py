"""How a run's learning went: when it reached the reward target, how large its gradients were, whether it diverged.

A run has diverged where it had to stop because a loss, a gradient or a log-probability was not finite, and also where
its reward collapsed and stayed so. The second is what AdamW with gradient clipping shows: no number ever overflows,
but a step too large leaves a policy that is never rewarded; then all advantages in a group are 0, and so is the
gradient, and nothing brings the policy back.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from harness.compare.sync import percentile
from harness.core.rewards import SIGNAL_WITHOUT_SPREAD
from harness.results import EvaluationRow, Run, StepRow

REWARD, LENGTH = "validation/reward", "validation/response_length"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One evaluation: validation reward, its count of prompts, response length in tokens, and when it was."""

    reward: float
    prompts: int
    length: float | None
    step: int
    elapsed_s: float


def evaluations(run: Run) -> list[Evaluated]:
    """Return the run's evaluations in order, those without a finite validation reward left out."""
    return [item for item in map(read_evaluation, run.evaluations) if item is not None]


def seconds_to_reward(run: Run, target: float) -> float | None:
    """Return the loop's seconds at the first evaluation with a validation reward of at least ``target``.

    Nothing is interpolated between evaluations. None if no evaluation reached it.
    """
    return next((item.elapsed_s for item in evaluations(run) if item.reward >= target), None)


def read_evaluation(row: EvaluationRow) -> Evaluated | None:
    """Return the evaluation's figures, or None where it has no finite validation reward."""
    reward, length = row.metric(REWARD), row.metric(LENGTH)
    if reward is None or not math.isfinite(reward.value):
        return None
    return Evaluated(
        reward.value,
        reward.count,
        length.value if length is not None and math.isfinite(length.value) else None,
        row.step,
        row.elapsed_s,
    )


def metric_series(run: Run, name: str) -> tuple[list[int], list[float]]:
    """Return (steps, values) of a metric over the run's training steps; steps without a finite value are left out."""
    metrics = ((row.step, row.metric(name)) for row in run.steps)
    finite = [(step, metric.value) for step, metric in metrics if metric is not None and math.isfinite(metric.value)]
    return [step for step, _ in finite], [value for _, value in finite]


def over_optimizer_steps(run: Run, name: str) -> list[tuple[int, float]]:
    """Return (number of the optimizer step, value) of a metric over the whole run.

    Training steps with a single optimizer step give their own figure; those of which no optimizer steps were kept, as
    in older runs, are left out where they made several.
    """
    points, done = list[tuple[int, float]](), 0
    for row in run.steps:
        values = row.optimizer_step_metrics.get(name, ())
        single = row.metric(name) if row.optimizer_steps == 1 else None
        if single is not None:
            values = (single.value,)
        places = (done + place * row.optimizer_steps // len(values) for place in range(len(values)))
        points += [(place, value) for place, value in zip(places, values, strict=True) if math.isfinite(value)]
        done += row.optimizer_steps
    return points


COLLAPSED = 0.1
"""Share of the best validation reward at or below which every later reward must be."""
FEWEST_REWARDED = 20
"""Rewarded prompts behind the best validation reward below which a fall to a tenth may be chance.

With 20 expected of n prompts, 2 or fewer come about by chance with a probability of 5e-7 (Poisson).
"""
TRAIN_REWARD, GRAD_NORM, NO_SIGNAL = "reward/total", "grad_norm", "zero_variance_fraction"
WEIGHED, LEFT_OUT = "advantage/nonzero_fraction", "loss_mask/truncated_fraction"
FAILED_BATCHES = "score/failed_batches"


@dataclass(frozen=True, slots=True)
class Divergence:
    """A run that diverged.

    Attributes:
        step: the training step that could not be made; or the first from which on every reward was too low.
        stopped: whether the run had to stop.
        best: the best evaluation before, in a collapse.
    """

    step: int
    stopped: bool
    best: Evaluated | None = None


FEWEST_LOOKS = 5
"""Evaluations before the one that reached a reward below which it says when that was only to within an interval."""


@dataclass(frozen=True, slots=True)
class LearningFigures:
    """What became of a run's learning; None where the run does not tell.

    Attributes:
        target_step: policy version of the first evaluation that reached the reward target.
        target_within: training steps between the evaluation before and that one; None where it was not reached, or at
            least ``FEWEST_LOOKS`` evaluations came before.
        grad_norm_p95: of the training steps' gradient norms, before clipping.
        max_grad_norm: the scenario's; larger gradients are scaled down to it.
        scaled_down: share of training steps with a (mean) gradient norm above that.
        signal: what of the run had nothing to learn from; None where that was not logged.
    """

    target_step: int | None
    target_within: int | None
    grad_norm_p95: float | None
    max_grad_norm: float | None
    scaled_down: float | None
    divergence: Divergence | None
    signal: Signal | None = None


def learning_figures(run: Run, target: float | None) -> LearningFigures:
    """Return the figures of one run."""
    norms = metric_series(run, GRAD_NORM)[1]
    largest = run.setting("optimizer.max_grad_norm")
    bound = float(largest) if isinstance(largest, int | float) else None
    evaluated = evaluations(run)
    before = list(takewhile(lambda item: target is None or item.reward < target, evaluated))
    target_step = evaluated[len(before)].step if len(before) < len(evaluated) else None
    within = None if target_step is None else target_step - (before[-1].step if before else 0)
    return LearningFigures(
        target_step=target_step,
        target_within=within if within and len(before) < FEWEST_LOOKS else None,
        grad_norm_p95=percentile(norms, 95) if norms else None,
        max_grad_norm=bound,
        scaled_down=sum(norm > bound for norm in norms) / len(norms) if norms and bound is not None else None,
        divergence=divergence(run, evaluated),
        signal=signal(run),
    )


Cause = Literal["failed", "equal", "cut", "weight", "gradient"]


@dataclass(frozen=True, slots=True)
class Signal:
    """How much of a run's training steps had something to learn from.

    Attributes:
        missing: share of training steps without: no rollout had a weight in the loss, or the gradient was 0.
        causes: of these, the most frequent first. ``failed``: no group had a reward. ``equal``: within every group the
            rewards were equal. ``cut``: every response was cut at ``max_tokens`` and left out. ``weight``: every
            rollout had the advantage 0, or was left out. ``gradient``: it was 0 although advantages were not.
        moved: of these steps, those in which the optimizer moved the weights all the same.
        weighed: share of all rollouts trained on that had an advantage other than 0 and were in the loss; None where it
            was not logged, and for a loss of the user's own, which need not look at advantages.
    """

    missing: float
    causes: tuple[Cause, ...]
    moved: int
    weighed: float | None


def signal(run: Run) -> Signal | None:
    """Return what of the run had nothing to learn from; None where no step tells."""
    if not any(row.metric(name) for row in run.steps for name in (GRAD_NORM, WEIGHED, NO_SIGNAL)):
        return None
    decays = bool(run.setting("optimizer.weight_decay"))
    causes, moved, has_averages = Counter[Cause](), 0, False
    for row in run.steps:
        has_gradient = bool(_value(row, GRAD_NORM))
        if (cause := _cause(run, row)) is not None:
            causes[cause] += 1
            moved += cause != "failed" and (has_gradient or has_averages or decays)
        has_averages = has_averages or has_gradient
    steps = () if run.setting("loss.function") else run.steps
    shares = [metric for row in steps if (metric := row.metric(WEIGHED)) is not None]
    rollouts = sum(each.count for each in shares)
    weighed = math.fsum(each.value * each.count for each in shares) / rollouts if rollouts else None
    return Signal(causes.total() / len(run.steps), tuple(cause for cause, _ in causes.most_common()), moved, weighed)


def _cause(run: Run, row: StepRow) -> Cause | None:
    """Return why a training step had nothing to learn from; None where it had, or where nothing tells."""
    if _value(row, FAILED_BATCHES) and not row.optimizer_steps:
        return "failed"
    no_gradient: Cause | None = "gradient" if _value(row, GRAD_NORM) == 0.0 else None
    weighed, equal = _value(row, WEIGHED), _value(row, NO_SIGNAL) == 1.0
    if weighed is None:  # of an older run, or another trainer's
        delta = run.setting("advantage.delta")
        subtracts = run.setting("loss.type") != "no_baseline" and delta not in (*SIGNAL_WITHOUT_SPREAD, "own")
        return "equal" if equal and subtracts else no_gradient
    if weighed > 0 or (no_gradient is None and run.setting("loss.function")):
        return no_gradient
    return "equal" if equal else "cut" if _value(row, LEFT_OUT) == 1.0 else "weight"


def _value(row: StepRow, name: str) -> float | None:
    metric = row.metric(name)
    return None if metric is None else metric.value


def divergence(run: Run, evaluated: Sequence[Evaluated]) -> Divergence | None:
    """Return how a run diverged; None where it did not, or did not get to its end for another reason."""
    stopped = run.manifest.outcome.get("diverged")
    if isinstance(stopped, dict) and isinstance(stopped.get("step"), int):
        return Divergence(stopped["step"], stopped=True)
    if run.status != "completed" or not evaluated:
        return None
    best = max(evaluated, key=lambda item: item.reward)
    floor = COLLAPSED * best.reward
    if evaluated[-1].reward > floor or best.reward * best.prompts < FEWEST_REWARDED:
        return None
    steps, rewards = metric_series(run, TRAIN_REWARD)
    seen = [*zip(steps, rewards, strict=True), *((item.step, item.reward) for item in evaluated)]
    return Divergence(1 + max(int(step) for step, reward in seen if reward > floor), stopped=False, best=best)
