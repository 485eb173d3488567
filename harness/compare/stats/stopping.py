"""When an experiment has enough blocks: a rule declared beforehand, on the width of the interval, never on p.

Stopping as soon as p falls below 5% would call like arms different far more often than that. The width is nearly blind
to the estimate, yet not free: an experiment stops a little early where its blocks happen to lie close. In 40,000
simulated experiments of normal log-ratios for each of six wanted half-widths, from 0.3 to 1 times the log-ratios'
spread, the 95% interval at the end covered the truth in 93.5% at worst when looking from the 10th block on (the
default), and in about 92.5% from the 6th. A fixed number of blocks covers 95%. ``tests/compare/test_false_alarms.py``
repeats the worst case.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1

from harness.compare.stats.blocks import Numbers, PairedBlock, log_ratios
from harness.compare.stats.intervals import t_interval
from harness.core.errors import UserError

FEWEST = 10
MOST = 40


def half_width(blocks: Sequence[PairedBlock]) -> float | None:
    """Return the upper half of the 95% interval as a relative change: 0.02 is 2%. None below two blocks."""
    interval = t_interval(log_ratios(blocks))
    return None if interval is None else expm1(interval.high - interval.point)


def enough(blocks: Sequence[PairedBlock], half_width: float, fewest: int = FEWEST, most: int = MOST) -> bool:
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
    """Say the same of log-ratios, one for each block; see ``enough``."""
    if not half_width > 0:
        raise UserError(f"the half-width is {half_width!r}; it must be above 0", fix="0.01 means 1%")
    if not 2 <= fewest <= most:
        raise UserError(f"between {fewest} and {most} blocks is no range; it must be 2 <= fewest <= most")
    if len(values) >= most:
        return True
    interval = t_interval(values) if len(values) >= fewest else None
    return interval is not None and expm1(interval.high - interval.point) <= half_width
