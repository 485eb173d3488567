"""What a reward is, and whether the rewards of a group say anything: the one definition of each."""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from numbers import Real

ROUNDING = 16 * sys.float_info.epsilon
"""Of a reward of size 1: rewards this close differ by the order in which their parts were added, and by nothing else.

A sum of n weighted parts is off by at most about n units in the last place of the sum of their sizes (Higham, Accuracy
and Stability of Numerical Algorithms, section 4.2), so two sums of the same parts lie within 16 for eight parts.
"""


SIGNAL_WITHOUT_SPREAD = ("rewards", "max_rewards")
"""Advantages that are not 0 where all rewards of a group are equal."""


def reward_rounding(low: float, high: float) -> float:
    """Return how far apart two rewards between these may be and still count as equal.

    Parts that cancel leave a rounding error of their own size, not of the sum's, as in 0.1 + 0.2 - 0.3. Parts are of
    size 1 or more, so below that the bound gets no smaller.
    """
    return ROUNDING * max(1.0, abs(low), abs(high))


def rewards_differ(low: float, high: float) -> bool:
    """Return whether a group with this lowest and this highest reward tells one rollout from another.

    Else all its advantages are 0. With a NaN or infinity they differ, so that it is seen.
    """
    return not math.isfinite(high - low) or high - low > reward_rounding(low, high)


def reward_number(value: object) -> float:
    """Return a reward, or a part of one, as a float.

    Taken are real numbers of any kind (bool, int, float, Fraction, Decimal, numpy's) and arrays and tensors without
    dimensions.

    Raises:
        ValueError: it is none of these, or not finite; the message says what the value's text does not.
    """
    shape = getattr(value, "shape", None)
    if shape is not None and tuple(shape) != ():
        raise ValueError(f"of type {type(value).__name__} and shape {tuple(shape)}")
    number = value.item() if shape is not None and hasattr(value, "item") else value
    if not isinstance(number, Real | Decimal):
        raise ValueError(f"of type {type(value).__name__}")
    try:
        found = float(number)
    except OverflowError:
        raise ValueError("too large for a float") from None
    except ValueError:  # a signalling NaN of Decimal
        found = math.nan
    if not math.isfinite(found):
        raise ValueError
    return found
