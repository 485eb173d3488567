"""What became of a run's rollouts, as its manifest's outcome tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Rollouts:
    """A number of rollouts and their response tokens."""

    rollouts: int
    tokens: int

    @property
    def mean_length(self) -> float | None:
        """Tokens of a rollout on average; None without rollouts."""
        return self.tokens / self.rollouts if self.rollouts else None


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    """The columns of ``harness.loop.RolloutCounts``, which says what each of them counts."""

    generated: Rollouts
    failed: Rollouts
    dropped: Rollouts
    trained: Rollouts
    trained_again: Rollouts
    unused: Rollouts

    def share(self, column: Rollouts) -> float:
        """Return a column's share of the generated rollouts; 0 where there were none."""
        return column.rollouts / self.generated.rollouts if self.generated.rollouts else 0.0


def read_ledger(outcome: Mapping[str, Any]) -> LedgerFigures | None:
    """Read the ledger of an outcome; None in a run that did not get to its end, or of before there was one.

    Raises:
        KeyError, TypeError: a column is missing or is not made of rollouts and tokens.
    """
    stored = outcome.get("ledger")
    if stored is None:
        return None
    return LedgerFigures(**{column.name: _column(stored[column.name]) for column in fields(LedgerFigures)})


def _column(stored: Any) -> Rollouts:
    if any(number.__class__ is not int for number in stored.values()):
        raise TypeError(f"{stored!r:.60} must be whole numbers")
    return Rollouts(**stored)
