"""Thousands of schedules, on as many processes as there are cores. What is found does not depend on how many."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from harness.core.errors import UserError
from tests.faults.draws import draw
from tests.faults.running import Outcome, Wiring, run_schedule

PORTION = 50
"""Schedules that a process runs before it reports."""


@dataclass
class Summary:
    """What many schedules came to.

    Attributes:
        schedules: how many were run.
        events: written down in all of them.
        most_events: of the longest one.
        ends: schedules by how they ended.
        happened: faults that really happened, by what and how.
        broken: schedule number -> the invariant that it broke.
    """

    schedules: int = 0
    events: int = 0
    most_events: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    broken: dict[int, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Count one run."""
        self.schedules += 1
        self.events += len(outcome.events)
        self.most_events = max(self.most_events, len(outcome.events))
        self.happened += outcome.happened
        if outcome.broken is None:
            self.ends[outcome.end] += 1
        else:
            self.broken[outcome.schedule.seed] = outcome.broken.invariant

    def merge(self, other: Summary) -> None:
        """Take in what other schedules came to."""
        self.schedules += other.schedules
        self.events += other.events
        self.most_events = max(self.most_events, other.most_events)
        self.ends += other.ends
        self.happened += other.happened
        self.broken |= other.broken


def search(
    first: int, schedules: int, jobs: int = 1, wiring: Wiring | None = None, told: Callable[[int], None] | None = None
) -> Summary:
    """Run the schedules ``first``, ``first + 1`` and so on.

    Args:
        first: number of the first one.
        schedules: how many.
        jobs: processes; with 1 it is this one.
        wiring: what the loop is put together from; only with one job.
        told: hears how many more schedules are done.

    Raises:
        UserError: one of the processes was killed from outside.
    """
    summary = Summary()
    portions = [(start, min(PORTION, first + schedules - start)) for start in range(first, first + schedules, PORTION)]
    for part in _parts(portions, jobs, wiring):
        summary.merge(part)
        if told is not None:
            told(part.schedules)
    return summary


def _parts(portions: list[tuple[int, int]], jobs: int, wiring: Wiring | None) -> Iterator[Summary]:
    if jobs == 1:
        yield from (_portion(first, schedules, wiring) for first, schedules in portions)
        return
    assert wiring is None, "a planted bug is searched for in one process"
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_leave_ctrl_c_to_the_parent)
    try:
        yield from pool.map(_portion, *zip(*portions, strict=True))
    except BrokenProcessPool as error:
        what = "a process of the search was killed from outside, as where memory is short"
        raise UserError(what, "--jobs", f"take fewer than {jobs} processes: --jobs 1") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _portion(first: int, schedules: int, wiring: Wiring | None = None) -> Summary:
    summary = Summary()
    for seed in range(first, first + schedules):
        summary.add(run_schedule(draw(seed), wiring))
    return summary
