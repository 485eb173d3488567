"""From blocks to a verdict.

- **different**: the test rejects "no change" and the estimate reaches the threshold. For the step, the one primary
  endpoint, the test is the 95% t-interval. For stages it is the sign-flip test after Holm's correction over all of
  them, so that an experiment in which no stage changed names any at all in at most 5% of cases; the stage's own
  interval has to exclude "no change" too.
- **equivalent**: the whole 95% interval lies inside the threshold. These are two one-sided tests at 2.5% each, stricter
  than the usual 5% (Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987). Each stage is on its own
  here: Holm guards against false alarms, not against false calm.
- **inconclusive**: anything else, with the reason in words. Below six blocks always.
- **not comparable**: for reasons that the caller knows, such as an unstable machine.

Thresholds are symmetric in logs: 3% means a ratio of 1.03 or of 1 / 1.03.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp, expm1, isfinite, log1p

import numpy as np

from harness.compare.stats.intervals import (
    LEVEL,
    Interval,
    Numbers,
    effect_shown,
    fewest_blocks,
    hodges_lehmann,
    holm,
    minimum_effect,
    sign_flip_p,
    t_interval,
    welch_error,
    welch_interval,
    welch_p,
)
from harness.core.errors import UserError
from harness.results.warmup import check_times

STEP = "step"
"""Name of the primary endpoint: wall-clock of a training step without evaluation. Other effects bear a stage's name."""


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
        name: ``step``, or a stage's name.
        blocks: paired blocks that the figures rest on.
        ratio: exp of the mean over blocks of the log-ratio; above 1 the arm is slower than the baseline. None where
            nothing can be said, such as without a block.
        low, high: ends of the 95% t-interval of ``ratio`` (Welch's where the arms were measured apart); None below two
            blocks.
        p: exact two-sided sign-flip probability; Welch's where the arms were measured apart. None below two blocks.
        p_adjusted: the same after Holm's correction over the stages; equal to ``p`` for the step.
        minimum_effect: the smallest true relative change that such blocks show in 80% of experiments, such as 0.034.
        threshold: the relative change that counts in practice, such as 0.03.
        verdict: what it comes to.
        reason: why it is inconclusive or not comparable; or what to know beside the verdict, such as that a change
            shows but is too small to count, or that the arms were measured apart. None otherwise.
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

    @property
    def change(self) -> float | None:
        """Relative change, such as 0.05 for 5% slower."""
        return None if self.ratio is None else self.ratio - 1

    @property
    def shows(self) -> bool:
        """Whether the 95% interval excludes "no change"; False where there is no interval."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


@dataclass(frozen=True, slots=True)
class PairedBlock:
    """One block's kept step times of the baseline and of one arm.

    Attributes:
        before: seconds of the baseline's steps, each > 0.
        after: the same of the arm.
        alternated: whether the arms took turns step by step, so that step i of one is the neighbour in time of step i
            of the other.

    Raises:
        UserError: no times, a time that is not a number above 0, or alternated arms with unlike numbers of steps.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    alternated: bool

    def __post_init__(self) -> None:
        check_times(self.before, "the baseline")
        check_times(self.after, "the arm")
        if self.alternated and len(self.before) != len(self.after):
            raise UserError(
                f"alternated arms have {len(self.before)} and {len(self.after)} steps; they must be pairs",
                fix="keep only the steps that both arms have (PairedBlock.from_steps does)",
            )

    @classmethod
    def from_steps(
        cls, before: Mapping[int, float], after: Mapping[int, float], alternated: bool
    ) -> PairedBlock | None:
        """Make a block of seconds by step number; None where no step is left.

        A time of 0 is left out: a stage that did not occur in a step has no ratio. Of alternated arms only the steps
        that both have are kept.
        """
        mine = {step: seconds for step, seconds in sorted(before.items()) if seconds != 0}
        theirs = {step: seconds for step, seconds in sorted(after.items()) if seconds != 0}
        if alternated:
            shared = [step for step in mine if step in theirs]
            mine, theirs = {step: mine[step] for step in shared}, {step: theirs[step] for step in shared}
        if not mine or not theirs:
            return None
        return cls(tuple(mine.values()), tuple(theirs.values()), alternated)


def log_ratio(block: PairedBlock) -> float:
    """Return the block's log-ratio of arm to baseline; above 0 the arm was slower.

    Alternated: the median over steps of log after_i - log before_i, so that weather common to neighbours cancels step
    by step. Otherwise: log median(after) - log median(before). Medians, since a hiccup is no property of an arm.
    """
    if block.alternated:
        return float(np.median(np.log(block.after) - np.log(block.before)))
    return float(np.log(np.median(block.after)) - np.log(np.median(block.before)))


def log_ratios(blocks: Sequence[PairedBlock]) -> Numbers:
    """Return the log-ratio of each block, shape [blocks]."""
    return np.array([log_ratio(block) for block in blocks], dtype=np.float64)


def log_medians(blocks: Sequence[Sequence[float]], whose: str) -> Numbers:
    """Return the log of each block's median step time, shape [blocks]: for arms that were measured apart.

    Raises:
        UserError: a block without times, or with a time that is not a number above 0.
    """
    for times in blocks:
        check_times(times, whose)
    return np.array([np.log(np.median(times)) for times in blocks], dtype=np.float64)


FEWEST_BLOCKS = 6
"""Below this there is no verdict: with five blocks that all agree the sign-flip p is still 0.0625."""
STEP_THRESHOLD = 0.03
STAGE_THRESHOLD = 0.05
APART = "measured apart: what the machine did between the two occasions counts as a change too"


@dataclass(frozen=True, slots=True)
class BlockSummary:
    """What to print beside a verdict.

    Attributes:
        blocks: how many.
        hodges_lehmann: ratio of arm to baseline, hardly moved by one wild block; None without blocks.
        slower: blocks in which the arm was the slower one.
    """

    blocks: int
    hodges_lehmann: float | None
    slower: int


def summarise(blocks: Sequence[PairedBlock]) -> BlockSummary:
    """Return the robust estimate and in how many blocks the arm was slower."""
    values = log_ratios(blocks)
    middle = hodges_lehmann(values)
    return BlockSummary(len(values), None if middle is None else exp(middle), int(np.sum(values > 0)))


def judge_step(
    blocks: Sequence[PairedBlock],
    threshold: float = STEP_THRESHOLD,
    *,
    not_comparable: Sequence[str] = (),
    name: str = STEP,
) -> Effect:
    """Judge the primary endpoint.

    Args:
        threshold: relative change that counts in practice.
        not_comparable: sentences that forbid a verdict; the figures are given all the same.

    Raises:
        UserError: the threshold is not a number above 0.
    """
    effect, interval = _measured(name, blocks, threshold)
    rejects = interval is not None and interval.excludes(0)
    return _judged(effect, interval, rejects, not_comparable)


def judge_stages(
    stages: Mapping[str, Sequence[PairedBlock]],
    threshold: float = STAGE_THRESHOLD,
    *,
    not_comparable: Sequence[str] = (),
) -> tuple[Effect, ...]:
    """Judge each stage, in the order given. Holm's family is every stage that has a p.

    With many stages more than six blocks are needed before any can be called different (``fewest_blocks``).

    Args:
        stages: a stage's name to its blocks, without the blocks in which the stage took no time.
        threshold, not_comparable: as for ``judge_step``.

    Raises:
        UserError: the threshold is not a number above 0.
    """
    measured = [_measured(name, blocks, threshold) for name, blocks in stages.items()]
    known = [effect.p for effect, _ in measured if effect.p is not None]
    adjusted = iter(holm(known))
    judged = []
    for effect, interval in measured:
        p = None if effect.p is None else next(adjusted)
        effect = replace(effect, p_adjusted=p)
        judged.append(_judged(effect, interval, p is not None and p <= LEVEL, not_comparable, family=len(known)))
    return tuple(judged)


def judge_apart(
    before: Sequence[Sequence[float]],
    after: Sequence[Sequence[float]],
    threshold: float = STEP_THRESHOLD,
    *,
    not_comparable: Sequence[str] = (),
    name: str = STEP,
) -> Effect:
    """Judge blocks that were not interleaved, such as a stored baseline against today's, by Welch's test.

    Weaker than an experiment with both arms, and the effect says so: each occasion's weather stays in the difference.
    ``Effect.blocks`` is the smaller number of the two; ``Effect.p`` is Welch's, since nothing can change its sign.

    Args:
        before, after: for each block its kept step times in seconds.
        threshold, not_comparable: as for ``judge_step``.

    Raises:
        UserError: the threshold or a time is not a number above 0, or a block is empty.
    """
    base, other = log_medians(before, "the baseline"), log_medians(after, "the arm")
    interval = welch_interval(base, other)
    shown = None if interval is None else effect_shown(*welch_error(base, other))
    point = float(np.mean(other) - np.mean(base)) if len(base) and len(other) else None
    effect = _effect(name, min(len(base), len(other)), point, interval, welch_p(base, other), shown, threshold)
    judged = _judged(effect, interval, interval is not None and interval.excludes(0), not_comparable)
    return replace(judged, reason=f"{judged.reason}; {APART}" if judged.reason else APART)


def _measured(name: str, blocks: Sequence[PairedBlock], threshold: float) -> tuple[Effect, Interval | None]:
    values = log_ratios(blocks)
    interval = t_interval(values)
    point = float(np.mean(values)) if len(values) else None
    p = sign_flip_p(values) if interval else None
    return _effect(name, len(values), point, interval, p, minimum_effect(values), threshold), interval


def _effect(
    name: str,
    blocks: int,
    point: float | None,
    interval: Interval | None,
    p: float | None,
    shown: float | None,
    threshold: float,
) -> Effect:
    """Return an effect without its verdict."""
    if not (isfinite(threshold) and threshold > 0):
        raise UserError(f"the threshold is {threshold!r}; it must be above 0", fix="0.03 means 3%")
    return Effect(
        name=name,
        blocks=blocks,
        ratio=None if point is None else exp(point),
        low=exp(interval.low) if interval else None,
        high=exp(interval.high) if interval else None,
        p=p,
        p_adjusted=p,
        minimum_effect=shown,
        threshold=threshold,
        verdict=Verdict.INCONCLUSIVE,
    )


def _judged(
    effect: Effect, interval: Interval | None, rejects: bool, not_comparable: Sequence[str], family: int = 1
) -> Effect:
    """Return the effect with its verdict and reason."""
    if not_comparable:
        return replace(effect, verdict=Verdict.NOT_COMPARABLE, reason="; ".join(not_comparable))
    if interval is None or effect.blocks < FEWEST_BLOCKS:
        return replace(effect, reason=f"{effect.blocks} of {FEWEST_BLOCKS} blocks")
    reach = log1p(effect.threshold)
    shows, large, change = interval.excludes(0), abs(interval.point) >= reach, expm1(interval.point)
    if rejects and shows and large:
        return replace(effect, verdict=Verdict.DIFFERENT)
    if interval.within(reach):
        too_small = f"a change of {change:+.1%} shows, below the {_percent(effect.threshold)} that counts"
        prints_as_zero = abs(change) < 0.0005
        return replace(effect, verdict=Verdict.EQUIVALENT, reason=too_small if shows and not prints_as_zero else None)
    if shows and large:
        if effect.blocks < (needed := fewest_blocks(family)):
            reason = f"{effect.blocks} blocks cannot tell {family} stages apart; at least {needed} can"
        else:
            corrected = f"p {effect.p_adjusted:.2g} after Holm's correction"
            reason = f"among {family} stages such a change may be chance ({corrected})"
    elif shows:
        reason = f"a change of {change:+.1%} shows ({_range(interval)}), "
        reason += f"but not whether it reaches the {_percent(effect.threshold)} that counts"
    else:
        shown = _percent(effect.minimum_effect or 0.0)
        reason = f"the interval, {_range(interval)}, is too wide: such blocks show changes from {shown} on"
    return replace(effect, reason=reason)


def _range(interval: Interval) -> str:
    return f"{expm1(interval.low):+.1%} to {expm1(interval.high):+.1%}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"


FEWEST_TO_STOP = 10
MOST_BLOCKS = 40


def half_width(blocks: Sequence[PairedBlock]) -> float | None:
    """Return the upper half of the 95% interval as a relative change: 0.02 is 2%. None below two blocks."""
    interval = t_interval(log_ratios(blocks))
    return None if interval is None else expm1(interval.high - interval.point)


def enough(
    blocks: Sequence[PairedBlock], half_width: float, fewest: int = FEWEST_TO_STOP, most: int = MOST_BLOCKS
) -> bool:
    """Whether the experiment may stop: ``most`` blocks are done, or ``fewest`` and the interval is narrow enough.

    Ask after each block; half the threshold that counts is a sensible width, since "equivalent" is then within reach.

    Args:
        half_width: wanted half of the 95% interval, as a relative change.
        fewest, most: blocks, declared before the experiment.

    Raises:
        UserError: the half-width is not above 0, or ``fewest`` is below 2 or above ``most``.
    """
    return narrow_enough(log_ratios(blocks), half_width, fewest, most)


def narrow_enough(values: Sequence[float] | Numbers, half_width: float, fewest: int, most: int) -> bool:
    """Answer ``enough`` for log-ratios, one for each block."""
    if not half_width > 0:
        raise UserError(f"the half-width is {half_width!r}; it must be above 0", fix="0.01 means 1%")
    if not 2 <= fewest <= most:
        raise UserError(f"between {fewest} and {most} blocks is no range; it must be 2 <= fewest <= most")
    if len(values) >= most:
        return True
    interval = t_interval(values) if len(values) >= fewest else None
    return interval is not None and expm1(interval.high - interval.point) <= half_width
