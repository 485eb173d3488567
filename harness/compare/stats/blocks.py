"""Blocks: the unit of replication.

In a block every arm runs once under the same weather. Its steps are sub-samples: they lean on each other (a busy minute
slows ten of them), so a test that counts them as independent calls identical arms different about half the time. One
block gives one number, its log-ratio; all intervals and tests are over those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import UserError
from harness.results.warmup import check_times

Numbers = NDArray[np.float64]


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
