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
from statistics import NormalDist, fmean
from typing import Literal

from harness.compare.stats.onset import FEWEST_POINTS as FEWEST_FOR_ONSET
from harness.compare.stats.onset import Onset, growth_onset
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


FEWEST_POINTS = 8
_CURVATURES = tuple(0.25 * number for number in range(-32, 33))
Shape = Literal["linear", "exponential", "saturating", "falling", "no clear trend"]


@dataclass(frozen=True, slots=True)
class Growth:
    """The shape of a series.

    Attributes:
        curvature: c in y = a + b (exp(c s) - 1) / c, s running from 0 at the first step to 1 at the last; 0 is a line.
        r_squared: share of the variance that the curve explains.
        linear_r_squared: the same for the line.
    """

    shape: Shape
    curvature: float
    r_squared: float
    linear_r_squared: float
    points: int


def growth(steps: Sequence[float], values: Sequence[float]) -> Growth | None:
    """Describe how a series grows; None for fewer than ``FEWEST_POINTS`` points or a constant series.

    The curve y = a + b (exp(c s) - 1) / c is fitted by least squares for c from -8 to 8. It counts as a bend only where
    it leaves at most 90% of the line's squared error, and as no clear trend where it explains less than half of the
    variance.
    """
    if len(values) < FEWEST_POINTS:
        return None
    span = steps[-1] - steps[0]
    positions = [(step - steps[0]) / span for step in steps]
    total = _squared_error([1.0] * len(values), values)
    if total <= 0.0:
        return None

    def bend(curvature: float, position: float) -> float:
        return position if curvature == 0.0 else math.expm1(curvature * position) / curvature

    errors = {c: _squared_error([bend(c, s) for s in positions], values) for c in _CURVATURES}
    best = min(errors, key=lambda c: (errors[c], abs(c)))
    line = errors[0.0]
    if errors[best] > 0.9 * line:
        best = 0.0
    explained = 1.0 - errors[best] / total
    shape: Shape = "linear" if best == 0.0 else "exponential" if best > 0.0 else "saturating"
    if explained < 0.5:
        shape = "no clear trend"
    elif (correlation(positions, values) or 0.0) < 0.0:
        shape = "falling"
    return Growth(shape, best, explained, 1.0 - line / total, len(values))


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Pearson's correlation, or None for fewer than four pairs or a constant series."""
    count = len(first)
    if count < 4:
        return None
    mean_first, mean_second = math.fsum(first) / count, math.fsum(second) / count
    products = math.fsum((a - mean_first) * (b - mean_second) for a, b in zip(first, second, strict=True))
    scale = _centred_squares(first, mean_first) * _centred_squares(second, mean_second)
    return products / math.sqrt(scale) if scale > 0 else None


def correlation_interval(value: float, pairs: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of a correlation over four pairs or more: tanh(atanh(r) +- z / sqrt(n - 3)), Fisher's.

    It takes the pairs for independent. Those of one run are not quite: both figures drift as the run goes on.
    """
    if abs(value) >= 1.0:
        return value, value
    middle = math.atanh(value)
    reach = NormalDist().inv_cdf((1 + confidence) / 2) / math.sqrt(pairs - 3)
    return math.tanh(middle - reach), math.tanh(middle + reach)


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


def kl_against_reward(run: Run, name: str) -> tuple[float, int] | None:
    """Correlate a KL figure with the validation reward of the same policy version.

    Training step t measures policy version t, so an evaluation of version v is paired with the row of step v.

    Returns:
        Pearson's correlation and the number of pairs, or None where there are too few.
    """
    by_step = dict(zip(*metric_series(run, name), strict=True))
    pairs = [(by_step[item.step], item.reward) for item in evaluations(run) if item.step in by_step]
    value = correlation([kl for kl, _ in pairs], [reward for _, reward in pairs])
    return None if value is None else (value, len(pairs))


def _squared_error(regressor: Sequence[float], values: Sequence[float]) -> float:
    """Return the squared error of the best a + b x; of the best constant where x is constant."""
    count = len(values)
    mean_x, mean_y = math.fsum(regressor) / count, math.fsum(values) / count
    squares = _centred_squares(regressor, mean_x)
    total = _centred_squares(values, mean_y)
    if squares == 0.0:
        return total
    products = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(regressor, values, strict=True))
    return max(0.0, total - products * products / squares)


def _centred_squares(values: Sequence[float], mean: float) -> float:
    return math.fsum((value - mean) ** 2 for value in values)


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


KL_NAMES = ("kl/reference_k3", "kl/reference_k1")  # the first that a run has is described
REFERENCE_NAMES = {
    "frozen": "initial policy",
    "reclone": "re-cloned reference",
    "polyak": "Polyak-averaged reference",
}
"""What the reference policy of each ``loss.kl.reference`` is called in words."""


@dataclass(frozen=True, slots=True)
class KlFigures:
    """How a run's KL to the reference policy went.

    Attributes:
        name: of the metric.
        reference: ``loss.kl.reference``: ``frozen`` (the initial policy), ``reclone``, ``polyak``; or None.
        with_reward: its correlation with the validation reward and the number of pairs, or None.
        judged: whether an onset was looked for: there are points enough, and the reference stays the same.
        onset: where it begins to grow faster; None where no such step is found.
        reward_after: mean validation reward of the evaluations after the onset, less the best one up to it, and the
            number of those after; None without an onset or an evaluation on either side.
    """

    name: str
    reference: str | None
    growth: Growth | None
    with_reward: tuple[float, int] | None
    judged: bool = False
    onset: Onset | None = None
    reward_after: tuple[float, int] | None = None


def kl_figures(run: Run) -> KlFigures | None:
    """Describe the KL to the reference policy, or return None where it was not monitored."""
    for name in KL_NAMES:
        steps, values = metric_series(run, name)
        if values:
            reference = run.setting("loss.kl.reference")
            follows = reference in ("reclone", "polyak")  # then KL falls, or settles, whatever the policy does
            judged = len(values) >= FEWEST_FOR_ONSET and not follows
            onset = growth_onset(steps, values) if judged else None
            return KlFigures(
                name=name,
                reference=reference if isinstance(reference, str) else None,
                growth=growth(steps, values),
                with_reward=kl_against_reward(run, name),
                judged=judged,
                onset=onset,
                reward_after=None if onset is None else reward_after(evaluations(run), onset.step),
            )
    return None


def reward_after(evaluated: Sequence[Evaluated], step: float) -> tuple[float, int] | None:
    """Return the mean reward of the evaluations after a training step less the best one up to it, and their number."""
    before = [item.reward for item in evaluated if item.step <= step]
    after = [item.reward for item in evaluated if item.step > step]
    return (fmean(after) - max(before), len(after)) if before and after else None
