"""When an experiment has blocks enough: by the width of its intervals, never by p.

Looking after each block and stopping at the first p below 5% would err in 20% of experiments without any change.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.compare.stats.verdicts import Effect
from harness.core.errors import UserError
from harness.core.experiment import FEWEST_TO_STOP


def half_width(effect: Effect) -> float | None:
    """Return the upper half of the 95% interval as a relative change: 0.02 is 2%. None below two blocks."""
    return None if effect.ratio is None or effect.high is None else effect.high / effect.ratio - 1


def enough(effects: Sequence[Effect], blocks: int, width: float, most: int, fewest: int = FEWEST_TO_STOP) -> bool:
    """Whether the experiment may stop: ``most`` blocks are done, or ``fewest`` and every interval is narrow enough.

    Ask after each block; half the threshold that counts is a sensible width, since "equivalent" is then within reach.

    Args:
        effects: what decides, of every arm, from the blocks so far. Without one there is nothing to be narrow.
        blocks: done so far.
        width: wanted half of the 95% intervals, as a relative change.
        most, fewest: blocks, declared before the experiment.

    Raises:
        UserError: the width is not above 0, or ``fewest`` is below 2 or above ``most``.
    """
    if not width > 0:
        raise UserError(f"the half-width is {width!r}; it must be above 0", fix="0.01 means 1%")
    if not 2 <= fewest <= most:
        raise UserError(f"between {fewest} and {most} blocks is no range; it must be 2 <= fewest <= most")
    if blocks >= most:
        return True
    widths = [half_width(effect) for effect in effects]
    return blocks >= fewest and bool(widths) and all(found is not None and found <= width for found in widths)
