"""Where the time of a run's loop went, from its spans: by lane, as exposed time, and side by side.

- ``account_spans`` gives each instant of a lane to one stage or wait: stages + waits + unattributed = wall-clock, to
  the nanosecond. An instant under several spans goes to the one that began last (``harness.results.lane_time``).
- ``time_by_window`` does so step by step.
- ``exposed`` divides the clock of the loop: the part of each stage that the training loop had to wait for.
- ``overlap`` says how much went on side by side, ``blocked_time`` how long the lag bound made Generators wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.compare.step_columns import measured_windows
from harness.core.intervals import Interval, both, merge, total, without
from harness.core.trace import Span, Stage
from harness.results import Run, StepRow, lane_kind, natural_order
from harness.results.lane_time import claims, take_turns

StageIntervals = dict[Stage, list[Interval]]
"""The instants of one lane by stage: disjoint intervals in nanoseconds."""


def stage_intervals(spans: Iterable[Span], window: Interval) -> dict[str, StageIntervals]:
    """Return for each lane when it was in which stage or wait, inside the window (start, end) in nanoseconds.

    Intervals of one lane never overlap, whatever their stages.
    """
    lanes: dict[str, StageIntervals] = {}
    for lane, own in _by_lane(spans, window).items():
        pieces: StageIntervals = {}
        for stage, start, end in _stage_pieces(own, window):
            pieces.setdefault(stage, []).append((start, end))
        lanes[lane] = {stage: merge(intervals) for stage, intervals in pieces.items()}
    return lanes


def _by_lane(spans: Iterable[Span], window: Interval) -> dict[str, list[Span]]:
    """Return the spans that reach into the window, by lane."""
    start_ns, end_ns = window
    lanes: dict[str, list[Span]] = {}
    for span in spans:
        lane, _, span_start_ns, span_end_ns, _, _ = span
        if span_start_ns < end_ns and span_end_ns > start_ns:
            lanes.setdefault(lane, []).append(span)
    return lanes


def _stage_pieces(spans: Sequence[Span], window: Interval) -> Iterator[tuple[Stage, int, int]]:
    """Yield (stage, start, end) of what each of one lane's spans gets inside the window."""
    if not take_turns(spans):
        for index, start_ns, end_ns in claims(spans, window):
            yield spans[index].stage, start_ns, end_ns
        return
    low_ns, high_ns = window
    for _, stage, start_ns, end_ns, _, _ in spans:
        inside = max(start_ns, low_ns), min(end_ns, high_ns)
        if inside[1] > inside[0]:
            yield stage, *inside


@dataclass(frozen=True, slots=True)
class LaneAccount:
    """Where one lane's time went.

    Attributes:
        wall_ns: length of the window.
        stages_ns: nanoseconds by stage, waits included; an instant under several spans goes to the one that began last.
        unattributed_ns: in no stage and no wait.
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
    lanes = _by_lane(spans, window)
    wall_ns = window[1] - window[0]
    accounts = {}
    for lane in in_pipeline_order(lanes):
        stages_ns = _stage_lengths(lanes[lane], window)
        accounts[lane] = LaneAccount(lane, wall_ns, stages_ns, wall_ns - sum(stages_ns.values()))
    return accounts


def in_pipeline_order(lanes: Iterable[str]) -> list[str]:
    """Sort lanes as work flows through them: Generators, Scorers, Learner, then any others; by name and number
    within."""
    kinds = ("generator", "scorer", "learner")

    def place(lane: str) -> tuple[int, list[tuple[int, str]]]:
        kind = next((index for index, kind in enumerate(kinds) if lane.startswith(kind)), len(kinds))
        return kind, natural_order(lane)

    return sorted(lanes, key=place)


def _stage_lengths(spans: Sequence[Span], window: Interval) -> dict[Stage, int]:
    """Return the nanoseconds of each stage of one lane inside the window."""
    lengths: dict[Stage, int] = {}
    for stage, start_ns, end_ns in _stage_pieces(spans, window):
        lengths[stage] = lengths.get(stage, 0) + end_ns - start_ns
    return lengths


def time_by_window(spans: Iterable[Span], windows: Sequence[Interval]) -> dict[str, dict[Stage, NDArray[np.int64]]]:
    """Return the nanoseconds that each lane was in each stage or wait, by window: lane to stage to shape [windows].

    What a lane does from one window into the next counts in each by the part that lies in it.

    Args:
        windows: (start, end) in nanoseconds, in order of time.
    """
    if not windows:
        return {}
    whole = windows[0][0], windows[-1][1]
    edges = np.asarray(windows, dtype=np.float64)
    lanes: dict[str, dict[Stage, NDArray[np.int64]]] = {}
    for lane, own in _by_lane(spans, whole).items():
        pieces: dict[Stage, list[int]] = {}
        for stage, start_ns, end_ns in _stage_pieces(own, whole):
            pieces.setdefault(stage, []).extend((start_ns, end_ns))
        lanes[lane] = {stage: _inside(np.asarray(found, dtype=np.float64), edges) for stage, found in pieces.items()}
    return lanes


def lane_accounts(
    times: Mapping[str, Mapping[Stage, NDArray[np.int64]]], kept: Sequence[bool], wall_ns: int
) -> dict[str, LaneAccount]:
    """Return the account of each lane over some windows of ``time_by_window``.

    Args:
        kept: which of the windows, which follow each other or lie apart.
        wall_ns: nanoseconds of these.
    """
    accounts = {}
    for lane in in_pipeline_order(times):
        inside = {stage: int(found[list(kept)].sum()) for stage, found in times[lane].items()}
        stages_ns = {stage: ns for stage, ns in inside.items() if ns}
        accounts[lane] = LaneAccount(lane, wall_ns, stages_ns, wall_ns - sum(stages_ns.values()))
    return accounts


def measured_lanes(rows: Sequence[StepRow], spans: Iterable[Span], loop_start_ns: int) -> dict[str, LaneAccount]:
    """Return the account of each lane over the measured window of a run's steps."""
    windows = measured_windows(rows, loop_start_ns)
    return lane_accounts(time_by_window(spans, windows), [True] * len(windows), total(windows))


def _inside(pieces: NDArray[np.float64], windows: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how much of the disjoint pieces lies in each window.

    Args:
        pieces: start, end, start, end and so on, in order.
        windows: shape [windows, 2].
    """
    lengths = pieces[1::2] - pieces[::2]
    until = np.repeat(np.cumsum(lengths), 2)
    until[::2] -= lengths  # what lies before the start of each piece, and before its end
    found = np.diff(np.interp(windows, pieces, until), axis=1)[:, 0]
    return np.rint(found).astype(np.int64)


_NEAREST_FIRST = (
    Stage.SCORE,
    Stage.WEIGHT_LOAD,
    Stage.WEIGHT_VERIFY,
    Stage.WEIGHT_TRANSFER,
    Stage.WEIGHT_PUBLISH,
    Stage.GENERATE,
    Stage.EVALUATE,
)
PRECEDENCE = (*_NEAREST_FIRST, *(stage for stage in Stage if not stage.is_wait and stage not in _NEAREST_FIRST))
"""Who owns an instant in which the Learner waits and several stages run in other lanes: the first of these."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """How a window divides among the stages that the loop had to wait for.

    Attributes:
        wall_ns: length of the window; the sum of all that follows.
        stages_ns: exposed nanoseconds by stage, without waits, in the order of ``Stage``.
        nobody_ns: nanoseconds that no stage owns.
    """

    wall_ns: int
    stages_ns: dict[Stage, int]
    nobody_ns: int

    def share(self, part_ns: int) -> float:
        """Return a part of the window as a fraction in [0, 1]; 0 for an empty window."""
        return part_ns / self.wall_ns if self.wall_ns else 0.0


def exposed(spans: Iterable[Span], window: Interval) -> Exposure | None:
    """Divide the window (start, end), in nanoseconds, among the stages; None without a Learner's span.

    Time spent counts every second that a lane worked; lanes that work side by side make it add up to more than the
    clock. Exposed time divides the clock: each instant of the loop goes to exactly one of these, in this order.

    1. The stage that the Learner is in: the loop advances through the Learner's updates, so its work is always exposed.
    2. While the Learner waits, the stage of the other lanes that it waits for. Where several run at once, the one
       nearest to the Learner's next batch: ``score``, then the weight stages from ``weight_load`` back to
       ``weight_publish`` (a Generator that loads cannot generate yet), then ``generate``, then ``evaluate``, then
       anything else.
    3. Nobody: the Learner waits and no lane works (calls between actors, and the event loop), or no span says what the
       Learner does.

    So exposed times and the time that no stage owns add up to the loop, to the nanosecond, and a stage that hides
    behind the Learner's work is exposed for 0 seconds however long it takes.
    """
    lanes = stage_intervals(spans, window)
    learners = [stages for lane, stages in lanes.items() if lane_kind(lane) == "learner"]
    others = [stages for lane, stages in lanes.items() if lane_kind(lane) != "learner"]
    if not learners:
        return None
    waits = merge(piece for stages in learners for stage in stages if stage.is_wait for piece in stages[stage])
    taken = _claim([window], learners, tuple(stage for stage in Stage if not stage.is_wait))
    busy = [piece for pieces in taken.values() for piece in pieces]
    shared = _claim(without(waits, busy), others, PRECEDENCE)
    times = {stage: total(taken.get(stage, [])) + total(shared.get(stage, [])) for stage in Stage}
    wall_ns = window[1] - window[0]
    known = {stage: ns for stage, ns in times.items() if ns}
    return Exposure(wall_ns, known, wall_ns - sum(known.values()))


def exposed_in(spans: Sequence[Span], windows: Iterable[Interval]) -> Exposure | None:
    """Divide several windows, such as the measured steps, as ``exposed`` divides one."""
    parts = [part for window in windows if (part := exposed(spans, window)) is not None]
    if not parts:
        return None
    stages = [stage for stage in Stage if any(stage in part.stages_ns for part in parts)]
    return Exposure(
        wall_ns=sum(part.wall_ns for part in parts),
        stages_ns={stage: sum(part.stages_ns.get(stage, 0) for part in parts) for stage in stages},
        nobody_ns=sum(part.nobody_ns for part in parts),
    )


def _claim(free: list[Interval], lanes: list[StageIntervals], order: Iterable[Stage]) -> StageIntervals:
    """Give the free instants to the stages that the lanes are in then; an earlier stage of the order goes first."""
    claimed: StageIntervals = {}
    for stage in order:
        wanted = [piece for stages in lanes for piece in stages.get(stage, ())]
        if wanted:
            claimed[stage] = both(free, wanted)
            free = without(free, claimed[stage])
    return claimed


WORK = frozenset(stage for stage in Stage if not stage.is_wait and stage is not Stage.STARTUP)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Work of the lanes against the clock. A lane's work is the union of its stages, without waits.

    Attributes:
        loop_s: seconds of the loop that were looked at.
        worked_s: seconds that the lanes worked, added over lanes: what they would take one after the other, if their
            stages took as long then.
        busy_s: seconds in which at least one lane worked.
        together_s: seconds in which at least two lanes worked.
    """

    loop_s: float
    worked_s: float
    busy_s: float
    together_s: float

    @property
    def saved_s(self) -> float:
        """Seconds that working side by side saved against one lane after the other."""
        return self.worked_s - self.busy_s


def overlap(spans: Sequence[Span], windows: Sequence[Interval]) -> Overlap:
    """Return the overlap of the lanes inside the windows (start, end), in nanoseconds."""
    lanes: dict[str, list[Interval]] = {}
    for lane, stage, start_ns, end_ns, _, _ in spans:
        if stage in WORK:
            lanes.setdefault(lane, []).append((start_ns, end_ns))
    work = [both(intervals, windows) for intervals in lanes.values()]
    worked_ns = sum([end - start for intervals in work for start, end in intervals])
    lengths = (total(windows), worked_ns, *_depths(work))
    return Overlap(*(length / 1e9 for length in lengths))


def _depths(work: Sequence[Sequence[Interval]]) -> tuple[int, int]:
    """Return how long at least one and at least two of the groups of disjoint intervals went on, in one sweep.

    An edge is twice its place, plus 1 for a start: plain numbers sort several times as fast as pairs.
    """
    edges = [2 * start + 1 for intervals in work for start, _ in intervals]
    edges += [2 * end for intervals in work for _, end in intervals]
    edges.sort()
    one = two = depth = before = 0
    for edge in edges:
        place = edge >> 1
        if depth:
            one += place - before
            if depth > 1:
                two += place - before
        depth += 1 if edge & 1 else -1
        before = place
    return one, two


@dataclass(frozen=True, slots=True)
class BlockedTime:
    """How the lag bound held the Generators back.

    Attributes:
        batches: rollout batches before which at least one Generator waited for newer weights because of the bound.
        bound_batches: batches that the bound applied to.
        seconds: of these waits, as a mean over the Generators.
    """

    batches: int
    bound_batches: int
    seconds: float


def blocked_time(spans: Sequence[Span], max_lag: int, steps: int) -> BlockedTime:
    """Return how often and how long ``max_lag`` held the Generators back.

    Batch b needs policy version b - max_lag at least, so the first ``max_lag + 1`` batches wait for no training step.
    Waits after the last batch (``step`` is the number of steps then) are not the bound's.
    """
    generators = {lane for lane in {span.lane for span in spans} if lane_kind(lane) == "generator"}
    waits = [
        span for span in spans if span.stage is Stage.WAIT_FOR_WEIGHTS and span.lane in generators
        and max_lag < span.step < steps and span.end_ns > span.start_ns
    ]  # fmt: skip
    by_lane = [total((span.start_ns, span.end_ns) for span in waits if span.lane == lane) for lane in generators]
    seconds = sum(by_lane) / max(1, len(generators)) / 1e9
    return BlockedTime(len({span.step for span in waits}), max(0, steps - max_lag - 1), seconds)


@dataclass(frozen=True, slots=True)
class OverlapBound:
    """How short a loop could become if its lanes worked side by side all the time and their stages took no longer.

    Attributes:
        loop_s: seconds of the loop as it was.
        worked_s: seconds of work, added over lanes: the loop's length if nothing overlapped and nobody waited in vain.
        lane: the busiest lane.
        shortest_s: its seconds of work, below which the loop cannot fall.
    """

    loop_s: float
    worked_s: float
    lane: str
    shortest_s: float

    @property
    def speedup(self) -> float:
        """How many times as fast the loop would be: at least 1."""
        return self.loop_s / self.shortest_s


def overlap_bound(lanes: Mapping[str, LaneAccount]) -> OverlapBound | None:
    """Return the bound on what overlapping the lanes could gain; None where no lane worked."""
    if not lanes:
        return None
    busiest = max(lanes.values(), key=lambda account: account.busy_ns)
    if busiest.busy_ns <= 0:
        return None
    worked_ns = sum(account.busy_ns for account in lanes.values())
    return OverlapBound(busiest.wall_ns / 1e9, worked_ns / 1e9, busiest.lane, busiest.busy_ns / 1e9)
