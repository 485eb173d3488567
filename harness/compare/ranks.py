"""Which rank of a Learner the others wait for, and why: it has more work, is slower, or was held up now and then.

Collectives make the seconds of a stage equal on all ranks, so the slow one is found by the seconds that its thread
computed (``RankStep``), and its cause by what it had to compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from harness.compare.stats.intervals import t_interval
from harness.core.types import RankStep

WORTH_SAYING = 0.05
"""A rank is named if it computes so much longer than the others, as a share: collectives cost more than less gains."""
CONFIDENCE = 0.99
"""Of the intervals, divided over the ranks, since the slowest of them is looked at."""
FEWEST_STEPS = 4
FEW = 0.1
"""Share of the steps that may carry a one-off."""

OUTLYING = 5.0
"""Deviations by which such a step lies above the others."""

Cause = Literal["more work", "slower machine", "more work and slower machine", "one-off"]


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
        if abs(self.more_work) < WORTH_SAYING:
            return f"{head} at equal tokens: {self.cause}"
        share = f"{100 * abs(self.more_work):.0f}% {'more' if self.more_work > 0 else 'less'} work"
        return f"{head} with {share}: {self.cause}"


def find_straggler(steps: Sequence[Sequence[RankStep]]) -> Straggler | None:
    """Return the rank that the others wait for, and why; None where there is none, or where it cannot be told.

    Of each step s, d_s = ln(seconds that the rank computed / mean of the others), w_s is the same of its work (the
    plan's cost), and v_s = d_s - w_s that of seconds for equal work. The rank with most seconds is named if the
    t-interval of the mean of d_s lies above ln(1 + ``WORTH_SAYING``), and so are its causes by those of w_s and v_s.
    Where neither lies there alone, both are. Else it is a one-off if all its seconds exceed the others' by that much,
    and half of this is gone without the steps that lie more than ``OUTLYING`` deviations above the median, a tenth of
    all at most. The deviation is that of the median of absolute ones (Leys et al. 2013).

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
    shares = [math.expm1(fmean(values)) for values in (longer, work, slower)]
    if _exceeds(longer, ranks):
        causes = [name for name, values in (("more work", work), ("slower machine", slower)) if _exceeds(values, ranks)]
        cause: Cause = " and ".join(causes or ["more work", "slower machine"])  # type: ignore[assignment]
        return Straggler(slowest, cause, shares[0], shares[1], shares[2], len(known), len(known))
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


def _exceeds(log_ratios: Sequence[float], ranks: int) -> bool:
    interval = t_interval(log_ratios, 1 - (1 - CONFIDENCE) / ranks)
    return interval is not None and interval.low > math.log1p(WORTH_SAYING)
