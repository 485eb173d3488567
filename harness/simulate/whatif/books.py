"""Which recorded call a replayed one takes its time from.

First the call of the same lane and the same key (training step, policy version, rollout batch) that nobody has taken
yet, then one of a lane beside it, then one of that key that was taken before. A call that was never recorded, as one
for a rollout batch beyond the recorded ones, borrows the time of another from the steady part of the run: the n-th such
call that of number n, round and round.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from harness.core.errors import UserError
from harness.results import lane_kind
from harness.simulate.whatif.recorded import Call, Work


class Book:
    """The calls of one replay; each is handed out once, as long as there is another.

    Args:
        calls: recorded, in order of time.
        steady_from: keys from which on a call is typical: first uses and warm-up take longer.

    Attributes:
        borrowed: how many calls of each kind of work took the time of another.
    """

    def __init__(self, calls: Iterable[Call], steady_from: int) -> None:
        self.borrowed: Counter[Work] = Counter()
        self._own: dict[tuple[str, Work, int], deque[Call]] = {}
        self._taken: dict[tuple[str, Work, int], Call] = {}
        self._beside: dict[tuple[str, Work, int], list[tuple[str, Work, int]]] = {}
        by_work: dict[tuple[str, Work], list[Call]] = {}
        for call in calls:
            kind, own = lane_kind(call.lane), (call.lane, call.work, call.key)
            self._own.setdefault(own, deque()).append(call)
            beside = self._beside.setdefault((kind, call.work, call.key), [])
            if own not in beside:
                beside.append(own)
            by_work.setdefault((kind, call.work), []).append(call)
        self._typical = {place: _steady(found, steady_from) for place, found in by_work.items()}

    def knows(self, lane: str, work: Work) -> bool:
        """Whether any such call was recorded on lanes of this kind."""
        return (lane_kind(lane), work) in self._typical

    def take(self, lane: str, work: Work, key: int) -> Call:
        """Return the call to replay.

        Raises:
            UserError: no call of this kind of work was recorded.
        """
        kind = lane_kind(lane)
        for own in ((lane, work, key), *self._beside.get((kind, work, key), ())):
            if self._own.get(own):
                call = self._own[own].popleft()
                self._taken.setdefault((lane, work, key), call)
                self._taken.setdefault((kind, work, key), call)
                return call
        again = self._taken.get((lane, work, key)) or self._taken.get((kind, work, key))
        if again is not None:
            return again
        typical = self._typical.get((kind, work))
        if not typical:
            raise UserError(
                f"the run has no call of a {kind} to {work.value}, so that its time is not known",
                fix="leave out the change that asks for it",
            )
        self.borrowed[work] += 1
        return typical[key % len(typical)]


def _steady(calls: Sequence[Call], steady_from: int) -> list[Call]:
    return [call for call in calls if call.key >= steady_from] or list(calls)
