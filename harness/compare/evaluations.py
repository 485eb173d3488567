"""The validation rewards of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.results import EvaluationRow, Run

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
