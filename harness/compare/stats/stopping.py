"""When an experiment has blocks enough: by the width of its interval, never by p.

Looking after each block and stopping at the first p below 5% would err in 20% of experiments without any change.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1

from harness.compare.stats.estimates import of_blocks
from harness.compare.stats.intervals import Numbers
from harness.core.errors import UserError

FEWEST_TO_STOP = 10
MOST_BLOCKS = 40


def half_width(log_ratios: Sequence[float] | Numbers) -> float | None:
    """Return the upper half of the 95% interval as a relative change: 0.02 is 2%. None below two blocks."""
    estimate = of_blocks(log_ratios)
    interval = None if estimate is None else estimate.interval()
    return None if interval is None else expm1(interval.high - interval.point)


def enough(
    log_ratios: Sequence[float] | Numbers, width: float, fewest: int = FEWEST_TO_STOP, most: int = MOST_BLOCKS
) -> bool:
    """Whether the experiment may stop: ``most`` blocks are done, or ``fewest`` and the interval is narrow enough.

    Ask after each block; half the threshold that counts is a sensible width, since "equivalent" is then within reach.

    Args:
        log_ratios: of the blocks so far, in the order in which they ran.
        width: wanted half of the 95% interval, as a relative change.
        fewest, most: blocks, declared before the experiment.

    Raises:
        UserError: the width is not above 0, or ``fewest`` is below 2 or above ``most``.
    """
    if not width > 0:
        raise UserError(f"the half-width is {width!r}; it must be above 0", fix="0.01 means 1%")
    if not 2 <= fewest <= most:
        raise UserError(f"between {fewest} and {most} blocks is no range; it must be 2 <= fewest <= most")
    if len(log_ratios) >= most:
        return True
    found = half_width(log_ratios) if len(log_ratios) >= fewest else None
    return found is not None and found <= width
