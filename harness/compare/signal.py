"""Whether a run had anything to learn from, and whether it diverged.

A run has diverged where it had to stop for a number that was not finite, and also where its reward collapsed for good:
with AdamW and clipping no number ever overflows, but a policy that is never rewarded has no gradient to bring it back.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

import numpy as np

from harness.core.rewards import SIGNAL_WITHOUT_SPREAD
from harness.results.frames import RunTable

COLLAPSED = 0.1
"""Share of the best validation reward at or below which every later reward must be."""
FEWEST_REWARDED = 20
"""Rewarded prompts behind the best validation reward below which a fall to a tenth may be chance.

With 20 expected of n prompts, 2 or fewer come about by chance with a probability of 5e-7 (Poisson).
"""
TRAIN_REWARD, GRAD_NORM, NO_SIGNAL = "reward/total", "grad_norm", "zero_variance_fraction"
WEIGHED, LEFT_OUT = "advantage/nonzero_fraction", "loss_mask/truncated_fraction"
FAILED_BATCHES = "score/failed_batches"

Cause = Literal["failed", "equal", "cut", "weight", "gradient"]


class Divergence(NamedTuple):
    """How a run diverged: at ``step`` it had to stop, or from there on every reward was too low."""

    step: int
    stopped: bool


def divergence(table: RunTable) -> Divergence | None:
    """Return how a run diverged; None where it did not, or did not get to its end for another reason."""
    evaluated = table.rewards
    stopped = table.run.manifest.outcome.get("diverged")
    if isinstance(stopped, dict) and isinstance(stopped.get("step"), int):
        return Divergence(stopped["step"], stopped=True)
    if table.run.status != "completed" or not len(evaluated):
        return None
    best = int(evaluated.reward.argmax())
    floor = COLLAPSED * float(evaluated.reward[best])
    rewarded = float(evaluated.reward[best] * evaluated.prompts[best])
    if evaluated.reward[-1] > floor or rewarded < FEWEST_REWARDED:
        return None
    steps, rewards = table.series(TRAIN_REWARD)
    above = np.concatenate([steps[rewards > floor], evaluated.step[evaluated.reward > floor]])
    return Divergence(1 + int(above.max()), stopped=False)


class Signal(NamedTuple):
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


def signal(table: RunTable) -> Signal | None:
    """Return what of the run had nothing to learn from; None where no step tells."""
    if not any(name in table.metrics for name in (GRAD_NORM, WEIGHED, NO_SIGNAL)):
        return None
    names, unlogged = (GRAD_NORM, WEIGHED, NO_SIGNAL, LEFT_OUT, FAILED_BATCHES), np.full(len(table), np.nan)
    norms, weighed, equal, cut, failed = (
        table.metrics[name].values if name in table.metrics else unlogged for name in names
    )
    own_loss, decays = bool(table.run.setting("loss.function")), bool(table.run.setting("optimizer.weight_decay"))
    delta, loss = table.run.setting("advantage.delta"), table.run.setting("loss.type")
    subtracts = loss != "no_baseline" and delta not in (*SIGNAL_WITHOUT_SPREAD, "own")
    unweighed = (weighed <= 0) & ~(own_loss & (norms != 0))
    unknown = np.isnan(weighed)  # in an older run, or another trainer's
    causes = np.select(
        [
            (failed > 0) & (table.steps["optimizer_steps"] == 0),
            (unknown & subtracts | unweighed) & (equal == 1),
            unweighed & (cut == 1),
            unweighed,
            norms == 0,
        ],
        ["failed", "equal", "cut", "weight", "gradient"],
        "",
    )
    has_averages = np.logical_or.accumulate((norms != 0) & ~np.isnan(norms))
    moved = (causes != "") & (causes != "failed") & (has_averages | decays)
    known: list[Cause] = causes[causes != ""].tolist()
    shares = None if own_loss or WEIGHED not in table.metrics else table.metrics[WEIGHED].combined
    most_common = tuple(cause for cause, _ in Counter(known).most_common())
    return Signal(len(known) / len(table), most_common, int(moved.sum()), shares)
