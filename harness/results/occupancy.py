"""Who was in which stage when: one table of a run's spans, from which every figure of time is a sum.

Each instant of a lane belongs to one span, the one that began last: of two that begin at once the shorter, of two
equal ones the later in the list. Calls under way and the recorder get only what no other span claims, for an actor may
be busy with something else meanwhile. So the stages of a lane never add up to more than the clock, and stages + waits +
the rest that nothing claims = wall-clock, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.core.trace import Span, Stage, in_order
from harness.results.rows import LaneSeconds, in_pipeline_order, lane_kind, part_of

Integers = NDArray[np.int64]
NEAREST_FIRST = tuple(map(Stage, (
    "score", "weight_load", "weight_verify", "weight_transfer", "weight_publish", "generate", "evaluate",
)))  # fmt: skip
"""Stages of the lanes that the Learner waits for, the nearest to its next batch first."""
PRECEDENCE = (*NEAREST_FIRST, *(stage for stage in Stage if not stage.is_wait and stage not in NEAREST_FIRST))
"""Who owns an instant in which the Learner waits and several stages run in other lanes: the first of these."""


class StageTable:
    """What is asked of stages by their place in a table: ours, then those of another trainer by name.

    Attributes:
        is_wait, is_last, is_work: a wait; one that gets only what no other span claims; neither wait nor start-up.
        claims, learner_claims: how strong a claim on an instant is: another lane's while the Learner waits, and the
            Learner's; 0: a wait.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self.codes = {stage: code for code, stage in enumerate(self.stages)}
        self.is_wait = np.array([stage.is_wait for stage in self.stages])
        self.is_last = np.array([stage in (Stage.WAIT_FOR_CALL, Stage.WAIT_FOR_RECORDER) for stage in self.stages])
        self.is_work = ~self.is_wait & np.array([stage is not Stage.STARTUP for stage in self.stages])
        order = [*PRECEDENCE, *self.stages[len(Stage) :]]
        count = len(self.stages)
        self.claims = np.array([0 if stage.is_wait else count - order.index(stage) for stage in self.stages])
        self.learner_claims = np.where(self.is_wait, 0, count - np.arange(count))


_OURS = StageTable(tuple(Stage))


def _table_of(spans: Sequence[Span]) -> StageTable:
    others = {span.stage for span in spans if span.stage not in _OURS.codes}
    return StageTable(in_order([*Stage, *others])) if others else _OURS


@dataclass(frozen=True, slots=True)
class LaneAccount:
    """Where one lane's time in the windows went: to stages and waits, and the rest to none of them."""

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


@dataclass(frozen=True, slots=True)
class Exposure:
    """How the clock (``wall_ns``) divides among the stages that the loop had to wait for, and what no stage owns."""

    wall_ns: int
    stages_ns: dict[Stage, int]
    nobody_ns: int


@dataclass(frozen=True, slots=True)
class Overlap:
    """Work of the lanes against the clock: all stages but waits and start-up.

    Attributes:
        loop_s: length of the windows.
        worked_s: added over lanes.
        busy_s, together_s: in which at least one lane worked, and at least two.
    """

    loop_s: float
    worked_s: float
    busy_s: float
    together_s: float


@dataclass(frozen=True)
class Occupancy:
    """The pieces of time that each span has, cut at the borders of the windows, lane by lane and in order of time.

    Attributes:
        lanes: those with a span that reaches in between the first window's start and the last one's end.
        windows: (start, end) in nanoseconds, shape [windows, 2], in order and disjoint; such as the training steps.
        table: of the stages.
        lane, span, stage, window: of each piece its place in ``lanes``, in the spans, in ``table`` and in ``windows``;
            shape [pieces], as are the two that follow.
    """

    lanes: tuple[str, ...]
    windows: Integers
    table: StageTable
    lane: Integers
    span: Integers
    stage: Integers
    window: Integers
    start_ns: Integers
    end_ns: Integers

    @classmethod
    def of(cls, spans: Sequence[Span], windows: ArrayLike | None = None) -> Occupancy:
        """Make the table.

        Args:
            windows: (start, end) in nanoseconds, in order of time; an instant in two of them is the first one's. What
                lies outside is left out. None: one window, from the first start to the last end.
        """
        starts = np.array([span.start_ns for span in spans], dtype=np.int64)
        ends = np.array([span.end_ns for span in spans], dtype=np.int64)
        if windows is None:
            windows = [(starts.min(), ends.max())] if len(spans) else []
        bounds = np.array(windows, dtype=np.int64).reshape(-1, 2)
        bounds[1:, 0] = np.maximum(bounds[1:, 0], np.maximum.accumulate(bounds[:-1, 1]))
        bounds[:, 1] = np.maximum(bounds[:, 0], bounds[:, 1])
        reach = (starts < bounds[-1, 1]) & (ends > bounds[0, 0]) if len(bounds) else np.zeros(len(spans), dtype=bool)
        places = np.flatnonzero(reach)
        inside = [spans[place] for place in places.tolist()]
        codes = {name: code for code, name in enumerate(dict.fromkeys(span.lane for span in inside))}
        lane = np.array([codes[span.lane] for span in inside], dtype=np.int64)
        table = _table_of(inside)
        stage = np.array([table.codes[span.stage] for span in inside], dtype=np.int64)
        owner, start_ns, end_ns = _shared_out(lane, table.is_last[stage], starts[places], ends[places])
        piece, window, start_ns, end_ns = _cut(start_ns, end_ns, bounds)
        own = owner[piece]
        return cls(tuple(codes), bounds, table, lane[own], places[own], stage[own], window, start_ns, end_ns)

    def within(self, windows: Sequence[bool]) -> Occupancy:
        """Return the table of some of the windows, those where it says True; all lanes stay."""
        chosen = np.array(windows, dtype=bool)
        inside = chosen[self.window]
        names = "lane", "span", "stage", "start_ns", "end_ns"
        columns = {name: getattr(self, name)[inside] for name in names}
        window = (np.cumsum(chosen) - 1)[self.window[inside]]
        return replace(self, windows=self.windows[chosen], window=window, **columns)

    @property
    def wall_ns(self) -> int:
        """Length of the windows."""
        return int((self.windows[:, 1] - self.windows[:, 0]).sum())

    def accounts(self) -> dict[str, LaneAccount]:
        """Return where the time of each lane went, in the order in which work flows through them."""
        accounts, wall_ns = {}, self.wall_ns
        table = dict(zip(self.lanes, self._sums(self.lane, len(self.lanes)).tolist(), strict=True))
        for lane in in_pipeline_order(self.lanes):
            stages_ns = {stage: ns for stage, ns in zip(self.table.stages, table[lane], strict=True) if ns}
            accounts[lane] = LaneAccount(lane, wall_ns, stages_ns, wall_ns - sum(stages_ns.values()))
        return accounts

    def by_window(self) -> NDArray[np.float64]:
        """Return the seconds of each stage and wait in each window, added over lanes: shape [windows, stages]."""
        return self._sums(self.window, len(self.windows)) / 1e9

    def lanes_by_window(self) -> list[LaneSeconds]:
        """Return the seconds of each window by lane and stage, those that are above 0."""
        shape = len(self.windows), len(self.lanes), len(self.table.stages)
        sums = self._sums(self.window * len(self.lanes) + self.lane, shape[0] * shape[1]).reshape(shape)
        found: list[LaneSeconds] = [{} for _ in self.windows]
        for window, lane, stage in np.argwhere(sums > 0).tolist():
            of_lane = found[window].setdefault(self.lanes[lane], {})
            of_lane[self.table.stages[stage].value] = float(sums[window, lane, stage]) / 1e9
        return found

    def _sums(self, row: Integers, rows: int) -> Integers:
        """Return nanoseconds by row and stage, shape [rows, stages]; exact up to 2^53 (104 days)."""
        count = len(self.table.stages)
        sums = np.bincount(row * count + self.stage, self.end_ns - self.start_ns, rows * count)
        return sums.astype(np.int64).reshape(rows, count)

    def seconds(self, spans: Sequence[Span], first: int = 0) -> LaneSeconds:
        """Return the seconds of spans, those from place ``first`` on, by lane and stage: 0.0 where others have all."""
        lengths = self._of_spans[first : first + len(spans)].tolist()
        lengths += [0.0] * (len(spans) - len(lengths))
        lanes: dict[str, dict[str, float]] = {}
        for span, ns in zip(spans, lengths, strict=True):
            stages = lanes.setdefault(span.lane, {})
            stages[span.stage.value] = stages.get(span.stage.value, 0.0) + ns
        return {lane: {stage: ns / 1e9 for stage, ns in stages.items()} for lane, stages in lanes.items()}

    @cached_property
    def _of_spans(self) -> NDArray[np.float64]:
        """Nanoseconds of each span, up to the last that has any."""
        return np.bincount(self.span, self.end_ns - self.start_ns).astype(np.float64)

    def exposed(self) -> Exposure | None:
        """Divide the clock among the stages; None where the Learner is none of the lanes.

        Each instant of the loop goes to exactly one of these, in this order:

        1. the stage that the Learner is in, for the loop advances through its updates;
        2. while the Learner waits, the stage of the other lanes that is nearest to its next batch, by ``PRECEDENCE``;
        3. nobody: the Learner waits and no lane works, or no span says what the Learner does.

        So a stage that hides behind the Learner's work is exposed for 0 seconds however long it takes.
        """
        learners = np.array([lane_kind(lane) == "learner" for lane in self.lanes], dtype=bool)
        if not learners.any():
            return None
        edges = np.unique(np.concatenate((self.start_ns, self.end_ns)))
        first, last = np.searchsorted(edges, self.start_ns), np.searchsorted(edges, self.end_ns)
        mine = learners[self.lane]
        own, claims = self.table.learner_claims, self.table.claims
        learner = _painted(first[mine], last[mine], own[self.stage[mine]], len(edges))
        others = _painted(first[~mine], last[~mine], claims[self.stage[~mine]], len(edges))
        lengths, known = np.diff(edges, append=edges[-1:]), len(claims) + 1
        works, awaited = learner > 0, (learner == 0) & (others > 0)
        own_ns = np.bincount(learner[works], lengths[works], known)[own]
        found = own_ns + np.bincount(others[awaited], lengths[awaited], known)[claims]
        stages_ns = {stage: int(ns) for stage, ns in zip(self.table.stages, found, strict=True) if ns}
        wall_ns = self.wall_ns
        return Exposure(wall_ns, stages_ns, wall_ns - sum(stages_ns.values()))

    def overlap(self) -> Overlap:
        """Return how much the lanes worked side by side."""
        work = self.table.is_work[self.stage]
        times = np.concatenate((self.start_ns[work], self.end_ns[work]))
        order = np.argsort(times)
        depth, lengths = np.cumsum(np.where(order < len(times) // 2, 1, -1))[:-1], np.diff(times[order])
        worked_ns = (self.end_ns - self.start_ns)[work].sum()
        parts_ns = self.wall_ns, worked_ns, lengths[depth > 0].sum(), lengths[depth > 1].sum()
        return Overlap(*(int(ns) / 1e9 for ns in parts_ns))


def loop_window(spans: Sequence[Span], loop_s: float | None) -> tuple[int, int]:
    """Return (start, end) of the loop in nanoseconds.

    It starts where the last ``startup`` span ends (without one, where the first span starts) and lasts ``loop_s``
    seconds; with None, as in a run that was cut short, until the last span ends.
    """
    startups = [span.end_ns for span in spans if span.stage is Stage.STARTUP]
    start_ns = max(startups) if startups else min(span.start_ns for span in spans)
    if loop_s is not None:
        return start_ns, start_ns + round(loop_s * 1e9)
    return start_ns, max(start_ns, max(span.end_ns for span in spans))


def part_spans(spans: Sequence[Span], beside: Sequence[Span] = ()) -> list[Span]:
    """Return the spans with all lanes of a part as one: those of a Learner's ranks as the lane ``learner``.

    The part is in a stage while any of its lanes is, and waits while one of them waits and none works. So two ranks
    that work side by side are one Learner that works, and its seconds are never those of both added up. Spans of the
    same stage, step and version that touch are one. Parts of one lane are left as they are.

    Args:
        spans: of all lanes.
        beside: spans that are not returned, but may have instants of those that are.
    """
    whole = [span for span in spans if span.lane == part_of(span.lane)]
    if len(whole) == len(spans):
        return whole
    several = [span for span in spans if span.lane != part_of(span.lane)]
    table = Occupancy.of([*several, *beside])
    own = table.span < len(several)
    start_ns, end_ns = table.start_ns[own], table.end_ns[own]
    owners = [several[place] for place in table.span[own].tolist()]
    codes: dict[tuple[str, Stage, int, int], int] = {}
    keys = [codes.setdefault((part_of(s.lane), s.stage, s.step, s.version), len(codes)) for s in owners]
    kind, kinds = np.array(keys, dtype=np.int64), list(codes)
    for part in dict.fromkeys(part for part, _, _, _ in kinds):
        works, waits = (
            np.array([name == part and stage.is_wait is is_wait for name, stage, _, _ in kinds])[kind]
            for is_wait in (False, True)
        )
        work, *work_ns = _united(kind[works], start_ns[works], end_ns[works])
        wait, *wait_ns = _united(kind[waits], start_ns[waits], end_ns[waits])
        _, busy_from, busy_until = _united(np.zeros_like(work), *work_ns)
        limits = np.iinfo(np.int64)
        free = np.stack((np.append(limits.min, busy_until), np.append(busy_from, limits.max)), axis=1)
        piece, _, *free_ns = _cut(wait_ns[0], wait_ns[1], free)
        columns = (work, wait[piece]), *zip(work_ns, free_ns, strict=True)
        pieces = zip(*(np.concatenate(column).tolist() for column in columns), strict=True)
        for place, start, end in sorted(pieces):
            _, stage, step, version = kinds[place]
            whole.append(Span(part, stage, start, end, step, version))
    return sorted(whole, key=lambda span: span.end_ns)


def _shared_out(
    lane: Integers, is_last: NDArray[np.bool_], start_ns: Integers, end_ns: Integers
) -> tuple[Integers, Integers, Integers]:
    """Return (span, start, end) of what each span gets of its lane's time, in order of lane and time: [pieces] each."""
    weakest_first = np.lexsort((-end_ns, start_ns, ~is_last))
    strength = np.empty_like(weakest_first)
    strength[weakest_first] = np.arange(len(lane))
    times, lanes = np.concatenate((start_ns, end_ns)), np.concatenate((lane, lane))
    order = np.lexsort((times, lanes))
    times, lanes = times[order], lanes[order]
    is_new = np.ones(len(times), dtype=bool)
    is_new[1:] = (times[1:] != times[:-1]) | (lanes[1:] != lanes[:-1])
    edge = np.empty_like(order)
    edge[order] = np.cumsum(is_new) - 1
    edges = times[is_new]
    owner = _painted(edge[: len(lane)], edge[len(lane) :], strength, len(edges))
    changes = np.concatenate(([0], np.flatnonzero(owner[1:] != owner[:-1]) + 1))
    owned = np.flatnonzero(owner[changes[:-1]] >= 0)  # nobody has the last cell
    begins, ends = changes[owned], changes[owned + 1]
    return weakest_first[owner[begins]], edges[begins], edges[ends]


def _painted(first: Integers, last: Integers, strength: Integers, cells: int) -> Integers:
    """Return for each cell the strongest of the ranges that cover it; -1 where none does: shape [cells].

    A range is two overlapping blocks of 2^k cells. Each block is noted at its first cell; then the blocks of each size,
    from the largest on, pass on to their two halves.

    Args:
        first, last, strength: ranges [first, last) and their strengths, at least -1: shape [ranges].
    """
    painted = np.full(cells, -1, dtype=np.int64)
    size = np.frexp(np.maximum(last - first, 0))[1] - 1  # k; -1 where a range has no cell
    for k in range(int(size.max(initial=-1)), -1, -1):
        own, block = size == k, 1 << k
        np.maximum.at(painted, first[own], strength[own])
        if k:
            np.maximum.at(painted, last[own] - block, strength[own])
            half = block // 2
            painted[half:] = np.maximum(painted[half:], painted[:-half])
    return painted


def _cut(start_ns: Integers, end_ns: Integers, windows: Integers) -> tuple[Integers, Integers, Integers, Integers]:
    """Return (piece, window, start, end) of every part of a piece that lies in one of the disjoint windows."""
    first = np.searchsorted(windows[:, 1], start_ns, side="right")
    counts = np.maximum(np.searchsorted(windows[:, 0], end_ns, side="left") - first, 0)
    piece = np.repeat(np.arange(len(start_ns)), counts)
    window = np.arange(len(piece)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    start_ns, end_ns = np.maximum(start_ns[piece], windows[window, 0]), np.minimum(end_ns[piece], windows[window, 1])
    return piece, window, start_ns, end_ns


def _united(group: Integers, start_ns: Integers, end_ns: Integers) -> tuple[Integers, Integers, Integers]:
    """Return (group, start, end) of the union of each group's pieces; those that touch are one."""
    groups, times = np.concatenate((group, group)), np.concatenate((start_ns, end_ns))
    is_end = np.arange(len(times)) >= len(group)
    order = np.lexsort((is_end, times, groups))
    depth = np.cumsum(np.where(is_end[order], -1, 1))
    ends = depth == 0
    begins = np.append(True, ends[:-1]) if len(ends) else ends
    return groups[order][ends], times[order][begins], times[order][ends]
