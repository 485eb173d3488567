"""From estimates to verdicts.

- **different**: p, corrected for every comparison of the experiment, is at most 5%, and the estimate reaches the
  threshold. All arms and their stages are one family, so an experiment in which nothing changed calls anything at all
  different in at most 5% of cases. Holm's correction is weighted: the arms' primary endpoints share 80%, everything
  else 20%; what is rejected leaves its share to the rest. One arm without stages pays nothing.
- **equivalent**: the whole 95% interval lies inside the threshold. These are two one-sided tests at 2.5% each, stricter
  than the usual 5% (Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987). Each effect is on its own
  here: Holm guards against false alarms, not against false calm.
- **inconclusive**: anything else, with the reason in words. Below six blocks always.
- **not comparable**: for reasons that the caller knows, such as another machine.

Thresholds are symmetric in logs: 3% means a ratio of 1.03 or of 1 / 1.03.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp, expm1, isfinite, log, log1p
from typing import Literal

from harness.compare.stats.estimates import FEWEST_BLOCKS, Estimate
from harness.compare.stats.intervals import CONFIDENCE, LEVEL, Interval, holm, t_quantile
from harness.core.errors import UserError

STEP = "step"
"""Name of the time of a whole training step. Other effects bear a stage's name, or that of a scenario's endpoint."""
STEP_THRESHOLD = 0.03
STAGE_THRESHOLD = 0.05
PRIMARY_WEIGHT, SECONDARY_WEIGHT = 0.8, 0.2


class Verdict(StrEnum):
    """The four things that a comparison can say."""

    DIFFERENT = "different"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class Effect:
    """One time of one arm against that of the baseline.

    Attributes:
        name: ``step``, a stage's name, or that of the scenario's endpoint.
        blocks: that the figures rest on.
        ratio: exp of the mean over blocks of the log-ratio; above 1 the arm is slower than the baseline. None where
            nothing can be said, such as without a block.
        low, high: ends of the 95% t-interval of ``ratio``, widened where neighbouring blocks may correlate; None where
            nothing is known of the error, as with one block.
        p: two-sided, of the same widened t; None where there is no interval.
        p_adjusted: after the correction over all comparisons of the experiment; None where no verdict is possible.
        minimum_effect: the smallest true relative change that such blocks call different in 80% of experiments, after
            all corrections, such as 0.034.
        threshold: the relative change that counts in practice, such as 0.03.
        verdict: what it comes to.
        reason: why it is inconclusive or not comparable; or what to know beside the verdict, such as that a change
            shows but is too small to count. None otherwise.
        correlation: of neighbouring blocks, half from this effect and half from the whole experiment; None where it
            was not estimated.
        widening: by how much the interval is wider than that of independent blocks, at least 1.
        of_step: whether the ratio is (baseline's step + what the arm adds to it) / baseline's step: for a stage that
            one of the two lacks. Below 1 it is the inverse, of what the arm leaves out.
        degrees: of freedom of the interval; None means ``blocks - 1``.
    """

    name: str
    blocks: int
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    p_adjusted: float | None
    minimum_effect: float | None
    threshold: float
    verdict: Verdict
    reason: str | None = None
    correlation: float | None = None
    widening: float = 1.0
    of_step: bool = False
    degrees: float | None = None

    @property
    def label(self) -> str:
        """The name for a table."""
        if self.name == STEP:
            return "whole step"
        return f"{self.name}, in steps" if self.of_step else self.name

    @property
    def shows(self) -> bool:
        """Whether the 95% interval excludes "no change"; False where there is no interval."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    def ends(self, comparisons: int = 1) -> tuple[float, float] | None:
        """Return the ends of the interval of ``ratio``, corrected for so many comparisons; None without one.

        By Bonferroni: all of so many intervals hold their truths in at least 95% of experiments.
        """
        if self.ratio is None or self.low is None or self.high is None:
            return None
        if comparisons == 1:
            return self.low, self.high
        degrees = self.blocks - 1 if self.degrees is None else self.degrees
        tail = (1 - CONFIDENCE) / 2
        wider = t_quantile(1 - tail / comparisons, degrees) / t_quantile(1 - tail, degrees)
        point = log(self.ratio)
        return exp(point + wider * (log(self.low) - point)), exp(point + wider * (log(self.high) - point))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One time of one arm against the baseline's, to be judged.

    Attributes:
        name, threshold, of_step: as of ``Effect``.
        estimate: None where there is nothing to estimate from.
        not_comparable: sentences that forbid a verdict; the figures are given all the same.
        undecided: what is missing for any verdict, whatever the figures; None where nothing is.
    """

    name: str
    estimate: Estimate | None
    threshold: float
    of_step: bool = False
    not_comparable: tuple[str, ...] = ()
    undecided: str | None = None

    @property
    def in_family(self) -> bool:
        """Whether this could be called different, and so counts among the comparisons that are corrected for."""
        known = self.estimate is not None and self.estimate.error is not None
        return known and not self.not_comparable and self.lacks is None

    @property
    def lacks(self) -> str | None:
        """What is missing for any verdict, in words."""
        if self.undecided is not None:
            return self.undecided
        blocks = 0 if self.estimate is None else self.estimate.blocks
        return f"{blocks} of {FEWEST_BLOCKS} blocks" if blocks < FEWEST_BLOCKS else None


def judge(primary: Sequence[Comparison], secondary: Sequence[Comparison] = ()) -> tuple[list[Effect], list[Effect]]:
    """Judge all comparisons of an experiment together, and return their effects in the order given.

    Args:
        primary: the primary endpoint of each arm.
        secondary: everything else of each arm, such as its stages.

    Raises:
        UserError: a threshold is not a number above 0.
    """
    whole = _sharing_correlation([*primary, *secondary])
    shares = [PRIMARY_WEIGHT / max(1, sum(item.in_family for item in primary))] * len(primary)
    shares += [SECONDARY_WEIGHT / max(1, sum(item.in_family for item in secondary))] * len(secondary)
    members = {place: item.estimate.p or 0.0 for place, item in enumerate(whole) if item.in_family and item.estimate}
    weights = [shares[place] for place in members]
    adjusted, total = dict(zip(members, holm([*members.values()], weights), strict=True)), sum(weights)
    effects = []
    for place, item in enumerate(whole):
        level = LEVEL * shares[place] / total if place in adjusted else LEVEL
        effects.append(_effect(item, adjusted.get(place), level, len(members)))
    return effects[: len(primary)], effects[len(primary) :]


def _sharing_correlation(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with the correlation of blocks estimated from all that can be judged."""
    estimates = [item.estimate for item in comparisons if item.in_family and item.estimate is not None]
    known = [estimate.correlation for estimate in estimates if estimate.correlation is not None]
    if not known:
        return list(comparisons)
    common = sum(known) / len(known)
    return [replace(item, estimate=item.estimate and item.estimate.sharing(common)) for item in comparisons]


def _effect(item: Comparison, p_adjusted: float | None, level: float, family: int) -> Effect:
    """Return the effect with its verdict.

    Args:
        level: at which its p is judged before any other comparison was rejected.
        family: number of comparisons that were corrected for.
    """
    if not (isfinite(item.threshold) and item.threshold > 0):
        raise UserError(f"the threshold is {item.threshold!r}; it must be above 0", fix="0.03 means 3%")
    estimate = item.estimate
    interval = None if estimate is None else estimate.interval()
    effect = Effect(
        name=item.name,
        blocks=0 if estimate is None else estimate.blocks,
        ratio=None if estimate is None else exp(estimate.point),
        low=exp(interval.low) if interval else None,
        high=exp(interval.high) if interval else None,
        p=None if estimate is None else estimate.p,
        p_adjusted=p_adjusted,
        minimum_effect=None if estimate is None else estimate.smallest_effect(item.threshold, level),
        threshold=item.threshold,
        verdict=Verdict.INCONCLUSIVE,
        correlation=None if estimate is None else estimate.correlation,
        widening=1.0 if estimate is None else estimate.widening,
        of_step=item.of_step,
        degrees=None if estimate is None or estimate.error is None else estimate.degrees,
    )
    if item.not_comparable:
        return replace(effect, verdict=Verdict.NOT_COMPARABLE, reason="; ".join(item.not_comparable))
    if interval is None or p_adjusted is None:
        return replace(effect, reason=item.lacks)
    return _judged(effect, interval, p_adjusted, family)


def _judged(effect: Effect, interval: Interval, p_adjusted: float, family: int) -> Effect:
    reach = log1p(effect.threshold)
    shows, large, change = interval.excludes(0), abs(interval.value) >= reach, expm1(interval.value)
    if p_adjusted <= LEVEL and large:
        return replace(effect, verdict=Verdict.DIFFERENT)
    if interval.within(reach):
        too_small = f"a change of {change:+.1%} shows, below the {_percent(effect.threshold)} that counts"
        prints_as_zero = abs(change) < 0.0005
        return replace(effect, verdict=Verdict.EQUIVALENT, reason=too_small if shows and not prints_as_zero else None)
    if shows and large:
        reason = f"among {family} comparisons such a change may be chance (p {p_adjusted:.2g} after Holm's correction)"
    elif shows:
        reason = f"a change of {change:+.1%} shows ({_range(interval)}), "
        reason += f"but not whether it reaches the {_percent(effect.threshold)} that counts"
    else:
        seen = _percent(effect.minimum_effect or 0.0)
        reason = f"the interval, {_range(interval)}, is too wide: such blocks tell changes from {seen} on"
    return replace(effect, reason=reason)


def _range(interval: Interval) -> str:
    return f"{expm1(interval.low):+.1%} to {expm1(interval.high):+.1%}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"


def side_of_limit(effect: Effect, limit: float, comparisons: int = 1) -> Literal["above", "below", "neither"]:
    """Return on which side of 1 + limit the whole interval lies; ``neither`` where it reaches it or is unknown.

    ``above`` of any of ``comparisons`` arms that are all at the limit at most is said in 2.5% of experiments at most.

    Args:
        limit: relative change, such as 0.05.
        comparisons: arms that are judged side by side, for which the interval is corrected.
    """
    ends = effect.ends(comparisons)
    if ends is None:
        return "neither"
    return "above" if ends[0] > 1 + limit else "below" if ends[1] < 1 + limit else "neither"
