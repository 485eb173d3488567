"""What an examination found, as it is saved in ``docs/measured/holdout.json``, and how arms become tiers.

Tables and verdicts read nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Literal

from harness.settings.base import Section
from tests.holdout.plan import TierPlan

SMALL = 0.05
"""Stages below this share of a step are shown, and count in no bound."""


class Compared(Section):
    """One figure of one arm: its repeats in the order of the experiments, and the prediction with its 90% interval."""

    repeats: tuple[float, ...]
    value: float
    low: float
    high: float

    @property
    def measured(self) -> float:
        """Mean of the repeats."""
        return sum(self.repeats) / len(self.repeats)

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1; 0 where both are 0, infinite where something was predicted of nothing."""
        if self.measured <= 0:
            return 0.0 if self.value <= 0 else float("inf")
        return self.value / self.measured - 1


class Lags(Section):
    """Shares of the rollouts trained on by their lag in versions."""

    measured: dict[int, float]
    predicted: dict[int, float]


class ArmScore(Section):
    """One arm as predicted and as measured, in one tier.

    Attributes:
        step: seconds of a training step.
        stages: seconds of each stage in a step, over all lanes.
        idle: share of the time that lanes of each kind wait.
        throughput: response tokens trained on in a second.
        waste: share of the generated tokens that were never trained on.
        closed_form_s: seconds of a step by plain addition of the fitted stage costs.
        extrapolating: what left the range that was fitted.
    """

    tier: str
    arm: str
    step: Compared
    stages: dict[str, Compared]
    idle: dict[str, Compared]
    throughput: Compared
    waste: Compared
    lags: Lags
    closed_form_s: float
    extrapolating: tuple[str, ...] = ()

    def share(self, stage: str) -> float:
        """Return a stage's measured share of the step; the shares of lanes at the same time add up to more than 1."""
        return self.stages[stage].measured / self.step.measured

    @property
    def large_stages(self) -> tuple[str, ...]:
        """Stages that make up enough of the step to be held to a bound."""
        return tuple(stage for stage in self.stages if self.share(stage) >= SMALL)


class Counted(Section):
    """Measured values that lie in the interval predicted for them."""

    inside: int
    of: int

    @property
    def share(self) -> float:
        """Share inside; NaN where there is nothing."""
        return self.inside / self.of if self.of else float("nan")


class TierScore(Section):
    """A tier in one line.

    Attributes:
        error: median over the arms of the absolute error of step time.
        floor: what a perfect predictor would show; None where arms were measured once.
        closed_form: the same as ``error`` for plain addition.
        stages: the same by stage, over the arms in which the stage makes up 5% of the step.
    """

    name: str
    bound: float
    arms: tuple[str, ...]
    error: float
    floor: float | None
    closed_form: float
    stages: dict[str, float]
    coverage: Counted
    stage_coverage: Counted

    @property
    def worst_stage(self) -> str:
        """The stage with the largest error."""
        return max(self.stages, key=self.stages.__getitem__)


class Ranking(Section):
    """The order of the arms by step time: Kendall's tau of the prediction, and of one repeat against the others."""

    tau: float
    bound: float
    repeats: float | None


class ChangeScore(Section):
    """The effect of one change on step time: changed over unchanged, by ``whatif`` and as measured.

    Attributes:
        predicted, predicted_low, predicted_high: mean over the recorded runs it was replayed from, lowest and highest.
        measured, low, high: with the ends of the 95% interval; None where it has none.
        replay_error: by which share the replays of the runs as they were miss the runs at most.
    """

    start: str
    arm: str
    settings: tuple[str, ...]
    predicted: float
    predicted_low: float
    predicted_high: float
    measured: float
    low: float | None
    high: float | None
    replay_error: float


class Document(Section):
    """An examination, with six digits of each number: more would differ from machine to machine.

    Attributes:
        chosen: date of the plan.
        fitted, held_out: experiments, as SCENARIO/EXPERIMENT.
        machine: fingerprint of the machine that measured.
        draws, seed: of the forecasts.
        coverage_bounds, stage_bound: of the plan.
    """

    schema_version: Literal[2] = 2
    chosen: str
    fitted: tuple[str, ...]
    held_out: tuple[str, ...]
    machine: str
    draws: int
    seed: int
    coverage_bounds: tuple[float, float]
    stage_bound: float
    arms: tuple[ArmScore, ...]
    tiers: tuple[TierScore, ...]
    ranking: Ranking
    changes: tuple[ChangeScore, ...]

    def as_json(self) -> str:
        """Return what is saved."""
        data = json.loads(self.model_dump_json(), parse_float=lambda text: float(f"{float(text):.6g}"))
        return json.dumps(data, indent=1) + "\n"


def load_document(path: Path) -> Document:
    """Read an examination.

    Raises:
        ValueError: it is of another form or version.
    """
    return Document.model_validate_json(path.read_bytes())


def tier_score(name: str, plan: TierPlan, arms: Sequence[ArmScore]) -> TierScore:
    """Sum up the arms of a tier."""
    large = dict.fromkeys(stage for arm in arms for stage in arm.large_stages)
    return TierScore(
        name=name,
        bound=plan.bound,
        arms=tuple(arm.arm for arm in arms),
        error=median(abs(arm.step.error) for arm in arms),
        floor=noise_floor([arm.step.repeats for arm in arms]),
        closed_form=median(abs(arm.closed_form_s / arm.step.measured - 1) for arm in arms),
        stages={
            stage: median(abs(arm.stages[stage].error) for arm in arms if stage in arm.large_stages) for stage in large
        },
        coverage=coverage([arm.step for arm in arms]),
        stage_coverage=coverage([arm.stages[stage] for arm in arms for stage in arm.large_stages]),
    )


def noise_floor(repeats: Sequence[Sequence[float]]) -> float | None:
    """Return the median absolute error that a perfect predictor would show, from repeats of the same arms.

    It would know each arm's true mean, and still miss the measured mean of n repeats by sd / sqrt(n). A repeat lies
    sd x sqrt((n - 1) / n) from the mean of all n, so |repeat / mean - 1| / sqrt(n - 1) is spread as the perfect
    predictor's error is. The median goes over all repeats of all arms. None where no arm has two repeats.

    Args:
        repeats: measured values of each arm.
    """
    distances = [
        abs(value / fmean(values) - 1) / sqrt(len(values) - 1)
        for values in repeats
        if len(values) > 1
        for value in values
    ]
    return median(distances) if distances else None


def coverage(figures: Sequence[Compared]) -> Counted:
    """Count the repeats that lie in the predicted intervals, their ends included."""
    hits = sum(figure.low <= value <= figure.high for figure in figures for value in figure.repeats)
    return Counted(inside=hits, of=sum(len(figure.repeats) for figure in figures))


def lag_distance(mine: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """Return how far apart two distributions of lag are, in versions: Wasserstein's distance of order 1.

    The area between the two cumulative distributions; 1 means that one is the other shifted by a version. Weights need
    not add up to 1, and none may be without any.
    """
    totals = sum(mine.values()), sum(theirs.values())
    gap = area = 0.0
    for lag in range(min((*mine, *theirs)), max((*mine, *theirs))):
        gap += mine.get(lag, 0) / totals[0] - theirs.get(lag, 0) / totals[1]
        area += abs(gap)
    return area


def mean_lag(lags: Mapping[int, float]) -> float:
    """Return the mean lag in versions."""
    return sum(lag * weight for lag, weight in lags.items()) / sum(lags.values())


def ranking(arms: Sequence[ArmScore], bound: float) -> Ranking:
    """Compare the order of the arms by predicted step time with the measured one."""
    return Ranking(
        tau=kendall_tau([arm.step.value for arm in arms], [arm.step.measured for arm in arms]),
        bound=bound,
        repeats=tau_between_repeats([arm.step.repeats for arm in arms]),
    )


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return Kendall's tau-b of two rankings: 1 where every pair of arms is in the right order, -1 where none is."""
    from scipy.stats import kendalltau  # here, since it takes a second to load

    return float(kendalltau(predicted, measured).statistic)


def tau_between_repeats(repeats: Sequence[Sequence[float]]) -> float | None:
    """Return the mean tau of one repeat of all arms against the mean of their others: what noise leaves of a ranking.

    None where an arm has fewer than two repeats.

    Args:
        repeats: measured values of each arm, in the same order of repeats.
    """
    count = min(map(len, repeats))
    if count < 2:
        return None
    taus = []
    for left_out in range(count):
        others = [fmean([*values[:left_out], *values[left_out + 1 : count]]) for values in repeats]
        taus.append(kendall_tau(others, [values[left_out] for values in repeats]))
    return fmean(taus)
