"""How a run's learning went: when it reached the reward target, how large its gradients were, whether it diverged.

A run has diverged where it had to stop because a loss, a gradient or a log-probability was not finite, and also where
its reward collapsed and stayed so. The second is what AdamW with gradient clipping shows: no number ever overflows,
but a step too large leaves a policy that is never rewarded; then all advantages in a group are 0, and so is the
gradient, and nothing brings the policy back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.compare.evaluations import Evaluated, evaluations
from harness.compare.growth import metric_series
from harness.compare.sync import percentile
from harness.results import Run

COLLAPSED = 0.1
"""Share of the best validation reward at or below which every later reward must be."""
FEWEST_REWARDED = 20
"""Rewarded prompts behind the best validation reward below which a fall to a tenth may be chance.

With 20 expected of n prompts, 2 or fewer come about by chance with a probability of 5e-7 (Poisson).
"""
TRAIN_REWARD, GRAD_NORM = "reward/total", "grad_norm"


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


@dataclass(frozen=True, slots=True)
class LearningFigures:
    """What became of a run's learning; None where the run does not tell.

    Attributes:
        target_step: policy version of the first evaluation that reached the reward target.
        grad_norm_p95: of the training steps' gradient norms, before clipping.
        max_grad_norm: the scenario's; larger gradients are scaled down to it.
        scaled_down: share of training steps with a (mean) gradient norm above that.
    """

    target_step: int | None
    grad_norm_p95: float | None
    max_grad_norm: float | None
    scaled_down: float | None
    divergence: Divergence | None


def learning_figures(run: Run, target: float | None) -> LearningFigures:
    """Return the figures of one run."""
    norms = [value for value in metric_series(run, GRAD_NORM)[1] if math.isfinite(value)]
    largest = run.setting("optimizer.max_grad_norm")
    bound = float(largest) if isinstance(largest, int | float) else None
    evaluated = evaluations(run)
    reached = (item.step for item in evaluated if target is not None and item.reward >= target)
    return LearningFigures(
        target_step=next(reached, None),
        grad_norm_p95=percentile(norms, 95) if norms else None,
        max_grad_norm=bound,
        scaled_down=sum(norm > bound for norm in norms) / len(norms) if norms and bound is not None else None,
        divergence=divergence(run, evaluated),
    )


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
