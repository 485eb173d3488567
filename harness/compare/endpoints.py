"""The primary endpoint of an experiment: what a scenario's ``endpoint`` says decides between its arms.

Each endpoint gives one value for a run; the runs of a block are a pair. Larger is worse, so that what is said of a
ratio holds for all of them. Rewards may be 0 and are compared by their difference: their value is exp(-reward), whose
log-ratio between two arms *is* the difference of their rewards, with its sign turned round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, expm1, log, log1p, sqrt
from statistics import fmean

from harness.compare.block_values import Primary
from harness.compare.figures import RunFigures
from harness.compare.numbers import NOTHING, change, number, reward
from harness.compare.rewards import final_reward
from harness.compare.stats import FEWEST_BLOCKS, STEP_THRESHOLD, Effect, Verdict
from harness.compare.stats.intervals import CONFIDENCE, LEVEL, POWER, t_quantile
from harness.core.experiment import MOST_BLOCKS

REWARD_THRESHOLD = 0.03
"""Difference of validation reward that counts in practice."""
SYNC_THRESHOLD = 0.05


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What decides between arms.

    Attributes:
        name: as a scenario's ``endpoint`` has it.
        words: what is measured, for sentences.
        unit: of ``shown``.
        threshold: what counts in practice: a relative change, or a difference of rewards.
        value: of one run, above 0 and larger where the run is worse; None where it was not measured.
        of_value: what a person reads of such a value.
        is_difference: whether arms are compared by the difference of what is read, not by a ratio.
    """

    name: str
    words: str
    unit: str
    threshold: float
    value: Callable[[RunFigures], float | None]
    is_difference: bool = False

    def change(self, ratio: float) -> str:
        """Write a ratio of values as a person reads it: ``+5.0%``, or ``-0.031`` for rewards."""
        return f"{-log(ratio):+.3f}" if self.is_difference else change(ratio)

    def shown(self, value: float) -> str:
        """Write a run's value as a person reads it: ``0.310 s``, or the reward."""
        return reward(-log(value)) if self.is_difference else f"{number(value)} {self.unit}"

    @property
    def primary(self) -> Primary | None:
        """What blocks are compared by; None where it is the time of a step, which every experiment has."""
        if self.name == "seconds_per_step":
            return None
        threshold = expm1(self.threshold) if self.is_difference else self.threshold
        return Primary(self.name, threshold, self.value, is_timed=not self.is_difference)

    def point_and_ends(self, effect: Effect) -> tuple[str, str]:
        """Write an effect and the ends of its interval, in rising order; ``-`` for what it has not."""
        if effect.ratio is None:
            return NOTHING, NOTHING
        if effect.low is None or effect.high is None:
            return self.change(effect.ratio), NOTHING
        low, high = (effect.high, effect.low) if self.is_difference else (effect.low, effect.high)
        return self.change(effect.ratio), f"{self.change(low)} to {self.change(high)}"

    def interval(self, effect: Effect) -> str:
        """Write an effect with its interval, for sentences."""
        point, ends = self.point_and_ends(effect)
        if point == NOTHING:
            return "no figures"
        return f"{point}, no interval" if ends == NOTHING else f"{point}, 95% interval {ends}"


def _seconds_per_step(run: RunFigures) -> float | None:
    return run.step_s


def _weight_sync_seconds(run: RunFigures) -> float | None:
    return fmean(run.sync.whole_s) if run.sync is not None and run.sync.whole_s else None


def _reward_at_rollouts(run: RunFigures) -> float | None:
    """Return exp(-reward) of the final validation; runs that are compared have the same number of rollouts by then.

    A run that diverged counts with its last reward, as in the ranking.
    """
    found = final_reward(run)
    return None if found is None else exp(-found)


SECONDS_PER_STEP = Endpoint("seconds_per_step", "seconds per step", "s", STEP_THRESHOLD, _seconds_per_step)
WEIGHT_SYNC_SECONDS = Endpoint(
    "weight_sync_seconds", "seconds of a weight sync", "s", SYNC_THRESHOLD, _weight_sync_seconds
)
REWARD_AT_ROLLOUTS = Endpoint(
    "reward_at_rollouts",
    "validation reward at equal rollouts",
    "",
    REWARD_THRESHOLD,
    _reward_at_rollouts,
    is_difference=True,
)
ENDPOINTS = {endpoint.name: endpoint for endpoint in (SECONDS_PER_STEP, WEIGHT_SYNC_SECONDS, REWARD_AT_ROLLOUTS)}


def endpoint_of(runs: Sequence[RunFigures]) -> Endpoint:
    """Return what decides between the runs of an experiment: as its scenario says, else the step time."""
    named = (run.settings.get("endpoint") for run in runs)
    return next((ENDPOINTS[name] for name in named if name in ENDPOINTS), SECONDS_PER_STEP)


def endpoint_of_effect(effect: Effect) -> Endpoint:
    """Return how an effect is written: that of an endpoint by its rules, any other as a ratio of seconds."""
    return ENDPOINTS.get(effect.name, SECONDS_PER_STEP)


def blocks_needed(effect: Effect) -> int | None:
    """Return how many blocks would reach a verdict in 80% of experiments, if effect and spread are as estimated.

    The interval of n blocks is estimate +- t * sd / sqrt(n). It must leave out "no change", at the level that is left
    after all corrections, or lie inside the threshold where the estimate does: the way to go is d, and n is the first
    with (t + t_.80) * sd / sqrt(n) <= d (Bloom, Evaluation Review 19, 1995). The sd is taken from the effect's
    interval, with all that widened it.

    Returns:
        None where it cannot be told (below two blocks), or would take more than ``MOST_BLOCKS``.
    """
    if effect.ratio is None or effect.high is None or effect.blocks < 2:
        return None
    point, reach, half = abs(log(effect.ratio)), log1p(effect.threshold), log(effect.high / effect.ratio)
    deviation = half * sqrt(effect.blocks) / t_quantile((1 + CONFIDENCE) / 2, effect.blocks - 1)
    level, way = LEVEL, reach - point
    if point >= reach:
        level, way = LEVEL * (effect.p / effect.p_adjusted if effect.p and effect.p_adjusted else 1.0), point

    def is_enough(blocks: int) -> bool:
        quantiles = t_quantile(1 - level / 2, blocks - 1) + t_quantile(POWER, blocks - 1)
        return quantiles * deviation / sqrt(blocks) <= way

    fewest = max(FEWEST_BLOCKS, effect.blocks + 1)
    return next((blocks for blocks in range(fewest, MOST_BLOCKS + 1) if is_enough(blocks)), None)


def headline(endpoint: Endpoint, base: str, other: str, effect: Effect) -> str:
    """Return the sentence that an experiment ends with: the endpoint's verdict for one arm, or what it would take."""
    said = f"{other} against {base}, {endpoint.words}: {effect.verdict.value}, {endpoint.interval(effect)}"
    if effect.verdict is Verdict.NOT_COMPARABLE:
        return f"{said} ({effect.reason})."
    if effect.verdict is not Verdict.INCONCLUSIVE:
        return f"{said}."
    if effect.blocks >= FEWEST_BLOCKS and (effect.p_adjusted is None or effect.high is None):
        return f"{said} ({effect.reason})."  # more blocks like these would not help
    needed = blocks_needed(effect)
    if needed is not None:
        return f"{said}. It had {effect.blocks} blocks; about {needed} would tell, if it stays as it is."
    if effect.blocks < 2:
        return f"{said}. It had {effect.blocks} blocks; a verdict needs {FEWEST_BLOCKS} or more."
    return f"{said}. It had {effect.blocks} blocks; more than {MOST_BLOCKS} would be needed: it lies at the threshold."
