"""Whether the machine kept its speed over an experiment, seen by a fixed piece of work done before each block.

The bounds are those of torch.utils.benchmark for its spread (10% noteworthy, 25% significant), here of the coefficient
of variation, and 5% for a straight line through the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.results.warmup import check_times

UNSTABLE_CV = 0.10
UNSTABLE_SLOPE = 0.05
REFUSED = 0.25
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Drift:
    """How one piece of work of the speed probe varied over the blocks.

    Attributes:
        work: its name, such as ``copy``.
        blocks: how many times it was done.
        cv: standard deviation over mean, such as 0.04.
        slope: change from the first block to the last along the straight line of least squares, over the mean; above 0
            the machine became slower.
    """

    work: str
    blocks: int
    cv: float
    slope: float

    @property
    def unstable(self) -> bool:
        """Whether a verdict needs the caution that the environment was unstable."""
        return self.cv > UNSTABLE_CV or abs(self.slope) > UNSTABLE_SLOPE

    @property
    def refuses_gate(self) -> bool:
        """Whether the environment was too unstable for a gate to decide anything."""
        return max(self.cv, abs(self.slope)) > REFUSED

    @property
    def sentence(self) -> str | None:
        """What to tell the user; None where the machine kept its speed."""
        if not self.unstable:
            return None
        return (
            f"environment unstable: over {self.blocks} blocks the speed probe's {self.work} work varied by "
            f"{self.cv:.0%} and drifted by {self.slope:+.0%} (bounds {UNSTABLE_CV:.0%} and {UNSTABLE_SLOPE:.0%})"
        )


def speed_drift(seconds: Mapping[str, Sequence[float]]) -> Drift | None:
    """Return the drift of the piece of work that was worst relative to its bounds; None below three blocks.

    Args:
        seconds: name of the work to its seconds before each block, in time order.

    Raises:
        UserError: a time is not a number above 0.
    """
    drifts = [_drift(work, times) for work, times in seconds.items() if len(times) >= FEWEST]
    return max(drifts, key=lambda drift: max(drift.cv / UNSTABLE_CV, abs(drift.slope) / UNSTABLE_SLOPE), default=None)


def _drift(work: str, times: Sequence[float]) -> Drift:
    check_times(times, f"the speed probe's {work} work")
    values = np.asarray(times, dtype=np.float64)
    place = np.arange(len(values)) - (len(values) - 1) / 2
    per_block = float(place @ values / (place @ place))
    mean = float(values.mean())
    return Drift(work, len(values), float(values.std(ddof=1)) / mean, per_block * (len(values) - 1) / mean)
