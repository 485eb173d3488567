"""What a comparison of two arms found, and in which words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

STEP = "step"
"""Name of the primary endpoint: wall-clock of a training step without evaluation. Other effects bear a stage's name."""


class Verdict(StrEnum):
    """The four things that a comparison can say."""

    DIFFERENT = "different"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class Effect:
    """One time of one arm against that of the baseline.

    Attributes:
        name: ``step``, or a stage's name.
        blocks: paired blocks that the figures rest on.
        ratio: exp of the mean over blocks of the log-ratio; above 1 the arm is slower than the baseline. None where
            nothing can be said, such as without a block.
        low, high: ends of the 95% t-interval of ``ratio`` (Welch's where the arms were measured apart); None below two
            blocks.
        p: exact two-sided sign-flip probability; Welch's where the arms were measured apart. None below two blocks.
        p_adjusted: the same after Holm's correction over the stages; equal to ``p`` for the step.
        minimum_effect: the smallest true relative change that such blocks show in 80% of experiments, such as 0.034.
        threshold: the relative change that counts in practice, such as 0.03.
        verdict: see ``Verdict``.
        reason: why it is inconclusive or not comparable; or what to know beside the verdict, such as that a change
            shows but is too small to count, or that the arms were measured apart. None otherwise.
    """

    name: str
    blocks: int
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    p_adjusted: float | None
    minimum_effect: float | None
    threshold: float
    verdict: Verdict
    reason: str | None = None

    @property
    def change(self) -> float | None:
        """Relative change, such as 0.05 for 5% slower."""
        return None if self.ratio is None else self.ratio - 1

    @property
    def shows(self) -> bool:
        """Whether the 95% interval excludes "no change"; False where there is no interval."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high
