"""Which rank of a Learner the others wait for, and why: it has more work, is slower, or was held up now and then.

Collectives make the seconds of a stage equal on all ranks, so the slow one is found by the seconds that its thread
computed (``RankStep``), and its cause by what it had to compute.

A thread whose processor others use too computes longer for the same, since caches are theirs in between. How much it is
crowded is known: the share of its time in which it was ready and had no processor. So ranks are compared as they would
be if equally crowded, by the line through the steps' seconds over how much more crowded one was than the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal

from harness.compare.stats.estimates import Estimate, of_blocks
from harness.core.types import RankStep

WORTH_SAYING = 0.1
"""A rank is named if it computes so much longer than the others, as a share.

Healthy ranks of a busy machine differ for the length of a run: of 22 runs the log ratio had a deviation of 0.055. With
the interval's own reach, usually 0.05, one healthy run of a hundred has a rank named, and 21% more is found in 80%.
"""
EQUAL = 0.05
"""Work that differs by less is called equal."""
CONFIDENCE = 0.99
"""Of the intervals, divided over the ranks, since the slowest of them is looked at."""
SLOPE, SLOPE_ERROR = 0.3, 0.3
"""How much longer, in ln(seconds), a thread computes for the same that never has a processor, and how far that may be
off. Measured once: 46 ms instead of 37, of a thread that had none for 70% of its time."""
FEWEST_STEPS = 4
FEW = 0.1
"""Share of the steps that may carry a one-off."""

OUTLYING = 5.0
"""Deviations by which such a step lies above the others."""

Cause = Literal["more work", "slower machine", "more work and slower machine", "other processes", "one-off"]


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that computes longest.

    Attributes:
        longer: by what share it computes longer than the mean of the others: of the typical step, or of all seconds
            where it is a one-off.
        more_work: by what share it has more to compute.
        slower: by what share it takes longer for the same.
        steps: steps that carry a one-off; else all.
    """

    rank: int
    cause: Cause
    longer: float
    more_work: float
    slower: float
    steps: int
    all_steps: int

    @property
    def sentence(self) -> str:
        """Say it in one line."""
        head = f"rank {self.rank} computes {100 * self.longer:.0f}% longer than the others"
        if self.cause == "one-off":
            return f"{head}, most of it in {self.steps} of {self.all_steps} steps: one-off"
        if abs(self.more_work) < EQUAL:
            return f"{head} at equal tokens: {self.cause}"
        share = f"{100 * abs(self.more_work):.0f}% {'more' if self.more_work > 0 else 'less'} work"
        return f"{head} with {share}: {self.cause}"


def find_straggler(steps: Sequence[Sequence[RankStep]]) -> Straggler | None:
    """Return the rank that the others wait for, and why; None where there is none, or where it cannot be told.

    Of each step s, d_s = ln(seconds that the rank computed / mean of the others), w_s is the same of its work (the
    plan's cost), v_s = d_s - w_s that of seconds for equal work, and x_s by how much more of its time than the others
    it was ready and had no processor. The rank with most seconds is named if the interval of d_s where x = 0 lies above
    ln(1 + ``WORTH_SAYING``), and so are its causes by those of w_s and v_s; where neither lies there alone, both are.
    If only the plain mean of d_s lies there, and that of x_s above ``WORTH_SAYING``, the cause is other processes. The
    intervals are widened as far as neighbouring steps may resemble each other (``estimates``).

    Else it is a one-off if all its seconds exceed the others' by that much, and half of this is gone without the steps
    that lie more than ``OUTLYING`` deviations above the median, a tenth of all at most. The deviation is that of the
    median of absolute ones (Leys et al. 2013).

    Args:
        steps: of the measured window, each rank by rank; fewer than four say nothing.
    """
    known = [of_ranks for of_ranks in steps if all(rank.computing_s and rank.cost > 0 for rank in of_ranks)]
    ranks = min((len(of_ranks) for of_ranks in known), default=0)
    if ranks < 2 or len(known) < FEWEST_STEPS:
        return None
    totals = [sum(_seconds(of_ranks[rank]) for of_ranks in known) for rank in range(ranks)]
    slowest = totals.index(max(totals))
    own_s = [_seconds(of_ranks[slowest]) for of_ranks in known]
    others_s = [_of_others([_seconds(each) for each in of_ranks], slowest) for of_ranks in known]
    longer = [math.log(own / others) for own, others in zip(own_s, others_s, strict=True)]
    work = [
        math.log(of_ranks[slowest].cost / _of_others([each.cost for each in of_ranks], slowest)) for of_ranks in known
    ]
    slower = [seconds - share for seconds, share in zip(longer, work, strict=True)]
    crowded = [_crowding(of_ranks[slowest]) - _of_others(list(map(_crowding, of_ranks)), slowest) for of_ranks in known]
    told = [_where_equally_crowded(longer, crowded), _mean(work), _where_equally_crowded(slower, crowded)]
    shares = [math.expm1(each.point) for each in told]
    if _exceeds(told[0], ranks):
        causes = [name for name, each in (("more work", told[1]), ("slower machine", told[2])) if _exceeds(each, ranks)]
        cause: Cause = " and ".join(causes or ["more work", "slower machine"])  # type: ignore[assignment]
        return Straggler(slowest, cause, shares[0], shares[1], shares[2], len(known), len(known))
    plain = _mean(longer)
    if _exceeds(plain, ranks) and _exceeds(_mean(crowded), ranks):
        share = math.expm1(plain.point)
        return Straggler(slowest, "other processes", share, shares[1], shares[2], len(known), len(known))
    excess = [own - others for own, others in zip(own_s, others_s, strict=True)]
    middle = median(excess)
    spread = 1.4826 * median(abs(each - middle) for each in excess)  # of a normal distribution its standard deviation
    few = [each for each in excess if each > middle + OUTLYING * spread]
    whole, without_few = sum(excess) / sum(others_s), (sum(excess) - sum(few)) / sum(others_s)
    if whole > WORTH_SAYING and few and len(few) <= math.ceil(FEW * len(known)) and without_few < whole / 2:
        return Straggler(slowest, "one-off", whole, shares[1], shares[2], len(few), len(known))
    return None


def _seconds(rank: RankStep) -> float:
    assert rank.computing_s is not None
    return rank.computing_s


def _of_others(values: Sequence[float], one: int) -> float:
    return fmean(value for place, value in enumerate(values) if place != one)


def _crowding(rank: RankStep) -> float:
    """Return the share of its time in which it was ready and had no processor; 0 where that is not known."""
    ready_s = rank.runnable_s or 0.0
    return ready_s / (ready_s + _seconds(rank))


def _mean(values: Sequence[float]) -> Estimate:
    found = of_blocks(values)
    assert found is not None
    return found


def _where_equally_crowded(values: Sequence[float], crowded: Sequence[float]) -> Estimate:
    """Return where the line of the values over ``crowded`` is at 0, with its error.

    Its slope is the mean of the one by least squares and of ``SLOPE``, weighted by their precisions: steps that are all
    crowded alike say nothing of it (Gelman et al., Bayesian Data Analysis, 3rd edition, 2.5).
    """
    centre, count = fmean(crowded), len(values)
    squares = sum((each - centre) ** 2 for each in crowded)
    slope, precision = SLOPE, 1 / SLOPE_ERROR**2
    if squares > 0:
        own = sum((each - centre) * value for each, value in zip(crowded, values, strict=True)) / squares
        error = _mean([value - own * each for each, value in zip(crowded, values, strict=True)]).error
        own_precision = squares / max(count * (error or 0.0) ** 2, 1e-12)
        slope = (slope * precision + own * own_precision) / (precision + own_precision)
        precision += own_precision
    found = _mean([value - slope * each for each, value in zip(crowded, values, strict=True)])
    assert found.error is not None
    return replace(found, error=math.hypot(found.error, centre / math.sqrt(precision)))


def _exceeds(estimate: Estimate, ranks: int) -> bool:
    interval = estimate.interval(1 - (1 - CONFIDENCE) / ranks)
    return interval is not None and interval.low > math.log1p(WORTH_SAYING)
