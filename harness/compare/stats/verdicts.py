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
from math import exp, expm1, isfinite, log1p

import numpy as np

from harness.compare.stats.blocks import PairedBlock, log_medians, log_ratios
from harness.compare.stats.effects import STEP, Effect, Verdict
from harness.compare.stats.intervals import (
    Interval,
    effect_shown,
    hodges_lehmann,
    minimum_effect,
    t_interval,
    welch_error,
    welch_interval,
)
from harness.compare.stats.significance import LEVEL, fewest_blocks, holm, sign_flip_p, welch_p
from harness.core.errors import UserError

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

    With many stages more than six blocks are needed before any can be called different; see ``fewest_blocks``.

    Args:
        stages: a stage's name to its blocks, without the blocks in which the stage took no time.
        threshold, not_comparable: see ``judge_step``.

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
        threshold, not_comparable: see ``judge_step``.

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
    shows, large = interval.excludes(0), abs(interval.point) >= reach
    if rejects and shows and large:
        return replace(effect, verdict=Verdict.DIFFERENT)
    if interval.within(reach):
        return replace(effect, verdict=Verdict.EQUIVALENT, reason=_small_change(effect, interval) if shows else None)
    if shows and large:
        return replace(effect, reason=_may_be_chance(effect, family))
    return replace(effect, reason=_may_be_small(effect, interval) if shows else _too_wide(effect, interval))


def _small_change(effect: Effect, interval: Interval) -> str | None:
    """Say that a change is there and does not matter; None where it would print as zero."""
    change = expm1(interval.point)
    if abs(change) < 0.0005:
        return None
    return f"a change of {change:+.1%} shows, below the {_percent(effect.threshold)} that counts"


def _may_be_small(effect: Effect, interval: Interval) -> str:
    return (
        f"a change of {expm1(interval.point):+.1%} shows ({_range(interval)}), "
        f"but not whether it reaches the {_percent(effect.threshold)} that counts"
    )


def _may_be_chance(effect: Effect, family: int) -> str:
    needed = fewest_blocks(family)
    if effect.blocks < needed:
        return f"{effect.blocks} blocks cannot tell {family} stages apart; at least {needed} can"
    return f"among {family} stages such a change may be chance (p {effect.p_adjusted:.2g} after Holm's correction)"


def _too_wide(effect: Effect, interval: Interval) -> str:
    shown = effect.minimum_effect or 0.0
    return f"the interval, {_range(interval)}, is too wide: such blocks show changes from {_percent(shown)} on"


def _range(interval: Interval) -> str:
    return f"{expm1(interval.low):+.1%} to {expm1(interval.high):+.1%}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"
