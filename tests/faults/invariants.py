"""What must always hold, by name."""

from __future__ import annotations

from harness.core.errors import HarnessError

MOST_EVENTS = 20_000
"""A run of at most 10 steps that has more never ends; the longest of the first 10,000 schedules has a tenth of it."""

INVARIANTS = {
    "lag at start": "a Generator starts a batch at most max_lag versions behind the Learner",
    "lag at first use": "a rollout is at most max_lag versions old when it is first consumed; replayed, max_age",
    "uses": "a rollout is trained on once, under replay at most max_uses times, and never twice in one step",
    "one answer": "each order is generated once and scored once, and what is trained on is what was scored",
    "none lost": "every generated rollout is failed, dropped, trained on or unused, counted by us as by the ledger",
    "steps in order": "each step is made once, in order, of the right shards",
    "versions": "the Learner's version and that of each Generator's batches only grow, and are what was published",
    "capacity": "the replay buffer holds at most its capacity, and what entered is there or was evicted",
    "weights there": "versions that are newest, being loaded or being evaluated can be read",
    "weights held": "a Generator holds the weights that it says it holds, unless a fault made it lie",
    "in flight": "rollouts in flight and in the queue are what the loop says, and none is left at the end",
    "evaluations": "each version that is due is evaluated with exactly its weights and told once, in order",
    "time": "each lane accounts for all of its time: a span begins where the one before ended",
    "replaced": "each death is told once",
    "no idling": "when the clock goes on, nobody waits for rollouts, a batch, weights or room that is there",
    "no deadlock": "while anyone waits, something can still happen",
    "it ends": f"a run has at most {MOST_EVENTS} events",
    "right end": "a run ends early exactly where a fault must end it, and says so",
}


class Broken(HarnessError):
    """An invariant does not hold.

    Args:
        invariant: a key of ``INVARIANTS``.
        message: with the numbers.
    """

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(invariant, message)
        self.invariant, self.message = invariant, message

    def __str__(self) -> str:
        return f"{self.invariant}: {self.message}"
