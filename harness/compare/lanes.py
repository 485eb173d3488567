"""The time account of each lane, from spans: stages + waits + unattributed = wall-clock, to the nanosecond."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import le

from harness.compare.owned import by_lane, owned_pieces
from harness.core.intervals import Interval
from harness.core.trace import Span, Stage
from harness.results import Run


@dataclass(frozen=True, slots=True)
class LaneAccount:
    """Where one lane's time went.

    Attributes:
        wall_ns: length of the window.
        stages_ns: nanoseconds by stage, waits included; an instant under several spans goes to the one that began last.
        unattributed_ns: under no span.
    """

    lane: str
    wall_ns: int
    stages_ns: dict[Stage, int]
    unattributed_ns: int

    @property
    def busy_ns(self) -> int:
        """Nanoseconds in stages that are no waits."""
        return sum(ns for stage, ns in self.stages_ns.items() if not stage.is_wait)

    @property
    def waiting_ns(self) -> int:
        """Nanoseconds in waits."""
        return sum(ns for stage, ns in self.stages_ns.items() if stage.is_wait)

    def share(self, part_ns: int) -> float:
        """Return a part of the wall-clock as a fraction in [0, 1]; 0 for an empty window."""
        return part_ns / self.wall_ns if self.wall_ns else 0.0


def lane_account(run: Run) -> dict[str, LaneAccount]:
    """Return the account of every lane that worked or waited after start-up; empty for a run without spans."""
    spans = run.spans()
    if not spans:
        return {}
    last = run.tail
    return account_spans(spans, loop_window(spans, last.elapsed_s if last else None))


def loop_window(spans: list[Span], loop_s: float | None) -> tuple[int, int]:
    """Return (start, end) of the loop in nanoseconds.

    It starts where the last ``startup`` span ends (without one, where the first span starts) and lasts ``loop_s``
    seconds; with None, as in a run that was cut short, until the last span ends.
    """
    startups = [span.end_ns for span in spans if span.stage is Stage.STARTUP]
    start_ns = max(startups) if startups else min(span.start_ns for span in spans)
    if loop_s is not None:
        return start_ns, start_ns + round(loop_s * 1e9)
    return start_ns, max(start_ns, max(span.end_ns for span in spans))


def account_spans(spans: Iterable[Span], window: tuple[int, int]) -> dict[str, LaneAccount]:
    """Return the account of each lane with a span inside the window (start, end), in nanoseconds."""
    lanes = by_lane(spans, window)
    wall_ns = window[1] - window[0]
    accounts = {}
    for lane in in_pipeline_order(lanes):
        owned = _own_time(lanes[lane], window)
        accounts[lane] = LaneAccount(lane, wall_ns, owned, wall_ns - sum(owned.values()))
    return accounts


def in_pipeline_order(lanes: Iterable[str]) -> list[str]:
    """Sort lanes as work flows through them: Generators, Scorers, Learner, then any others; by name within."""
    kinds = ("generator", "scorer", "learner")

    def place(lane: str) -> tuple[int, str]:
        return next((index for index, kind in enumerate(kinds) if lane.startswith(kind)), len(kinds)), lane

    return sorted(lanes, key=place)


def _own_time(spans: list[Span], window: Interval) -> dict[Stage, int]:
    """Give each instant of the window to the span that began last among those open then."""
    _, stages, starts, ends, _, _ = zip(*spans, strict=True)
    if all(map(le, ends, starts[1:])):  # one thing at a time: no instant is under two spans
        return _lengths(zip(stages, starts, ends, strict=True), *window)
    return _lengths(owned_pieces(spans, window), *window)


def _lengths(spans: Iterable[tuple[Stage, int, int]], low_ns: int, high_ns: int) -> dict[Stage, int]:
    owned: dict[Stage, int] = {}
    for stage, start_ns, end_ns in spans:
        inside = (end_ns if end_ns < high_ns else high_ns) - (start_ns if start_ns > low_ns else low_ns)
        if inside > 0:
            owned[stage] = owned.get(stage, 0) + inside
    return owned
