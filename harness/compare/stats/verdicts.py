"""From estimates to verdicts.

- **different**: p, corrected for every comparison of the experiment, is at most 5%, and the estimate reaches the
  threshold. All arms and their stages are one family, so an experiment in which nothing changed calls anything at all
  different in at most 5% of cases. Holm's correction is weighted: the arms' primary endpoints share 80%, everything
  else 20%; what is rejected leaves its share to the rest. One arm without stages pays nothing.
- **equivalent**: the whole 95% interval lies inside the threshold. These are two one-sided tests at 2.5% each, stricter
  than the usual 5% (Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987), each effect on its own.
- **inconclusive**: anything else, with the reason in words. Below six blocks always.
- **not comparable**: for reasons that the caller knows, such as another machine.

Thresholds are symmetric in logs: 3% means a ratio of 1.03 or of 1 / 1.03.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, exp, expm1, isfinite, log, log1p
from typing import Literal

from harness.compare.stats.estimates import FEWEST_BLOCKS, MOST_CORRELATION, Estimate, inflation
from harness.compare.stats.intervals import CONFIDENCE, LEVEL, POWER, holm, t_quantile
from harness.core.errors import UserError
from harness.core.experiment import FEWEST_TO_STOP

STEP = "step"
"""Name of the time of a whole training step. Other effects bear a stage's name, or that of a scenario's endpoint."""
STEP_THRESHOLD = 0.03
STAGE_THRESHOLD = 0.05
PRIMARY_WEIGHT, SECONDARY_WEIGHT = 0.8, 0.2


class Verdict(StrEnum):
    """What a comparison can say."""

    DIFFERENT = "different"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class Effect:
    """One time of one arm against that of the baseline.

    Attributes:
        ratio: exp of the mean over blocks of the log-ratio; above 1 the arm is slower. None without a block.
        low, high: ends of the 95% t-interval of ``ratio``, widened where neighbouring blocks may correlate; None where
            nothing is known of the error, as with one block.
        p: two-sided, of the same widened t; None where there is no interval.
        p_adjusted: after the correction over all comparisons of the experiment; None where no verdict is possible.
        minimum_effect: the smallest true relative change that such blocks call different in 80% of experiments, after
            all corrections, such as 0.034.
        reason: why it is inconclusive or not comparable, or what to know beside the verdict.
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
    """One time of one arm against the baseline's, to be judged; see ``Effect``.

    Attributes:
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
    whole = [*primary, *secondary]
    in_family = {place: item.estimate for place, item in enumerate(whole) if item.in_family and item.estimate}
    known = [each.correlation for each in in_family.values() if each.correlation is not None]
    if known:
        common = sum(known) / len(known)
        whole = [replace(item, estimate=item.estimate and item.estimate.sharing(common)) for item in whole]
    alike = Counter(place < len(primary) for place in in_family)
    weights = {
        place: (PRIMARY_WEIGHT if place < len(primary) else SECONDARY_WEIGHT) / alike[place < len(primary)]
        for place in in_family
    }
    estimates = [whole[place].estimate for place in in_family]
    adjusted = holm([(each and each.p) or 0.0 for each in estimates], [*weights.values()])
    told, total = dict(zip(weights, adjusted, strict=True)), sum(weights.values())
    effects = [
        _effect(item, told.get(place), LEVEL * weights[place] / total if place in told else LEVEL, len(told))
        for place, item in enumerate(whole)
    ]
    return effects[: len(primary)], effects[len(primary) :]


def _effect(item: Comparison, p_adjusted: float | None, level: float, family: int) -> Effect:
    if not (isfinite(item.threshold) and item.threshold > 0):
        raise UserError(f"the threshold is {item.threshold!r}; it must be above 0", fix="0.03 means 3%")
    estimate = item.estimate
    interval = None if estimate is None else estimate.interval()
    effect = Effect(item.name, 0, *(None,) * 6, item.threshold, Verdict.INCONCLUSIVE, of_step=item.of_step)
    if estimate is not None:
        effect = replace(
            effect,
            blocks=estimate.blocks,
            ratio=exp(estimate.point),
            p=estimate.p,
            p_adjusted=p_adjusted,
            minimum_effect=estimate.smallest_effect(item.threshold, level),
            correlation=estimate.correlation,
            widening=estimate.widening,
        )
    if estimate is not None and interval is not None:
        effect = replace(effect, low=exp(interval.low), high=exp(interval.high), degrees=estimate.degrees)
    if item.not_comparable:
        return replace(effect, verdict=Verdict.NOT_COMPARABLE, reason="; ".join(item.not_comparable))
    if interval is None or p_adjusted is None:
        return replace(effect, reason=item.lacks)
    reach = log1p(effect.threshold)
    shows, large, change = interval.excludes(0), abs(interval.value) >= reach, expm1(interval.value)
    if p_adjusted <= LEVEL and large:
        return replace(effect, verdict=Verdict.DIFFERENT)
    if interval.within(reach):
        too_small = f"a change of {change:+.1%} shows, below the {_percent(effect.threshold)} that counts"
        prints_as_zero = abs(change) < 0.0005
        return replace(effect, verdict=Verdict.EQUIVALENT, reason=too_small if shows and not prints_as_zero else None)
    ends = f"{expm1(interval.low):+.1%} to {expm1(interval.high):+.1%}"
    if shows and large:
        reason = f"among {family} comparisons such a change may be chance (p {p_adjusted:.2g} after Holm's correction)"
    elif shows:
        reason = f"a change of {change:+.1%} shows ({ends}), "
        reason += f"but not whether it reaches the {_percent(effect.threshold)} that counts"
    else:
        seen = _percent(effect.minimum_effect or 0.0)
        reason = f"the interval, {ends}, is too wide: such blocks tell changes from {seen} on"
    return replace(effect, reason=reason)


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


def blocks_needed(effect: Effect) -> int | None:
    """Return about how many blocks tell a change of the threshold, by the spread of those at hand; None of one alone.

    The smallest effect goes with 1 / sqrt(blocks). What fewer than six show is first that of six with their spread, as
    t and the widening for neighbours that may be alike are another there.
    """
    if effect.minimum_effect is None or effect.blocks < 2:
        return None
    blocks, reach = effect.blocks, log1p(effect.minimum_effect)
    if blocks < FEWEST_BLOCKS:
        most = [inflation(MOST_CORRELATION, count) * (t_quantile(0.975, count - 1) + t_quantile(POWER, count - 1))
                / count**0.5 for count in (blocks, FEWEST_BLOCKS)]  # fmt: skip
        blocks, reach = FEWEST_BLOCKS, reach * most[1] / most[0]
    return max(FEWEST_BLOCKS, ceil(blocks * (reach / log1p(effect.threshold)) ** 2))


def half_width(effect: Effect) -> float | None:
    """Return the upper half of the 95% interval as a relative change: 0.02 is 2%. None below two blocks."""
    return None if effect.ratio is None or effect.high is None else effect.high / effect.ratio - 1


def enough(effects: Sequence[Effect], blocks: int, width: float, most: int, fewest: int = FEWEST_TO_STOP) -> bool:
    """Whether the experiment may stop: ``most`` blocks are done, or ``fewest`` and every interval is narrow enough.

    By the width of intervals, never by p: looking after each block and stopping at the first p below 5% would err in
    20% of experiments without any change. Half the threshold that counts is a sensible width, since "equivalent" is
    then within reach.

    Args:
        effects: what decides, of every arm, from the ``blocks`` so far. Without one there is nothing to be narrow.
        width: wanted half of the 95% intervals, as a relative change.
        most, fewest: blocks, declared before the experiment.

    Raises:
        UserError: the width is not above 0, or ``fewest`` is below 2 or above ``most``.
    """
    if not width > 0:
        raise UserError(f"the half-width is {width!r}; it must be above 0", fix="0.01 means 1%")
    if not 2 <= fewest <= most:
        raise UserError(f"between {fewest} and {most} blocks is no range; it must be 2 <= fewest <= most")
    widths = [half_width(effect) for effect in effects]
    narrow = bool(widths) and all(each is not None and each <= width for each in widths)
    return blocks >= most or (blocks >= fewest and narrow)
