"""Whether the machine kept its speed over an experiment, seen by the speed probe between the training steps.

What the probe leaves of log step times had a standard deviation of 0.28 (``docs/measured/machine_speed.json``), so it
tells a machine that is twice as busy, and not one that is 10% slower: a swing is said from 50% on, beside a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.results.warmup import check_times

UNSTABLE = 0.5


class Drift(NamedTuple):
    """How the speed probe varied over the blocks: standard deviation over mean, and the change from the first block to
    the last along the straight line of least squares, over the mean; above 0 the machine became slower."""

    blocks: int
    cv: float
    slope: float

    @property
    def sentence(self) -> str | None:
        """What to tell the user; None where the machine kept its speed as far as the probe can tell."""
        if max(self.cv, abs(self.slope)) <= UNSTABLE:
            return None
        return (
            f"the machine was not equally busy: over {self.blocks} blocks the speed probe between the steps varied by "
            f"{self.cv:.0%} and drifted by {self.slope:+.0%}"
        )


def speed_drift(seconds: Sequence[float]) -> Drift | None:
    """Return how the probe drifted from its seconds in each block, in time order; None below three blocks.

    Raises:
        UserError: a time is not a number above 0.
    """
    if len(seconds) < 3:
        return None
    check_times(seconds, "the speed probe")
    values = np.asarray(seconds, dtype=np.float64)
    slope, mean = np.polyfit(np.arange(len(values)), values, 1)[0], values.mean()
    return Drift(len(values), float(values.std(ddof=1) / mean), float(slope * (len(values) - 1) / mean))
