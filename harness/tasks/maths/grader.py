"""Whether two answers mean the same: by exact rules first, symbolically after that."""

from __future__ import annotations

from functools import cache

from harness.tasks.maths.answers import agree_exactly
from harness.tasks.maths.symbolic import SymbolicComparer

SYMBOLIC_TIMEOUT_S = 2.0


class AnswerGrader:
    """Compares answers; any thread may call it.

    Args:
        symbolic_timeout_s: seconds that the symbolic comparison of one answer may take; then the answer is wrong.

    Attributes:
        symbolic: compares what exact rules cannot decide, and counts what became of it.
    """

    def __init__(self, symbolic_timeout_s: float = SYMBOLIC_TIMEOUT_S) -> None:
        self.symbolic = SymbolicComparer(symbolic_timeout_s)

    def __call__(self, answer: str, ground_truth: str) -> bool:
        """Return whether the answer means the same as the ground truth; False where nobody can tell."""
        verdict = agree_exactly(answer, ground_truth)
        return self.symbolic(answer, ground_truth) if verdict is None else verdict

    def close(self) -> None:
        """End the process of the symbolic comparison; the next one starts another."""
        self.symbolic.close()


@cache
def shared_grader() -> AnswerGrader:
    """Return this process's grader, for reward functions that are called without one."""
    return AnswerGrader()
