"""A GPU's energy by stage, from its energy counter and the spans. Nothing is lost: stages + rest = total.

The counter is the board's, and is sampled a few times a second; between samples it is taken to grow evenly. So a
stage's energy is told where the stage lasts at least ``TOLD_ALONE_S``, or where it lasts at least one sampling period
and, over all steps, ``TOLD_ALONE_S``. Shorter ones would get their neighbours' mean power.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.compare.resources import NOT_SAMPLED
from harness.compare.sampled import Sampled, sampled
from harness.core.intervals import Interval, clip
from harness.core.trace import Span, Stage
from harness.results.counters import CounterRow, reasons

TOLD_ALONE_S = 1.0
_COVERED_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class StageEnergy:
    """One stage's part.

    Attributes:
        joules: None where ``reason`` says why it cannot be told.
        seconds: in which the stage was under way on at least one lane.
        occurrences: spans of it.
        over_steps: told as a sum over short occurrences, whose ends fall between samples.
    """

    joules: float | None
    seconds: float
    occurrences: int
    over_steps: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class EnergyAccount:
    """Where a GPU's energy went. ``total_j`` = the stages' joules + ``untold_j`` + ``rest_j``.

    Attributes:
        untold_j: of stages whose own part cannot be told.
        rest_j: while no stage was under way.
    """

    source: str
    total_j: float
    stages: Mapping[Stage, StageEnergy]
    untold_j: float
    rest_j: float


def energy_account(
    rows: Sequence[CounterRow],
    spans: Iterable[Span],
    source: str,
    window: Interval,
    lanes: Collection[str] | None = None,
) -> tuple[EnergyAccount | None, str | None]:
    """Return the account of one GPU, or None and the reason.

    Where several stages are under way at once, they share the energy of that time equally. Waits take no part.

    Args:
        source: such as ``gpu0``.
        window: (start, end) in nanoseconds of the run's clock.
        lanes: those that work on this GPU; all of them by default.
    """
    counter = sampled(rows, source, "energy_j")
    total_j = counter.growth(window)
    if total_j is None:
        known = {**reasons(rows, "gpu"), **reasons(rows, source)}
        return None, known.get("energy_j") or known.get("gpu") or NOT_SAMPLED
    work = [span for span in spans if _counts(span, lanes)]
    parts = _Parts(counter, window)
    for start_ns, end_ns, stages in _pieces(work, window):
        parts.add((start_ns, end_ns), stages)
    stages_told = {stage: _told(stage, work, parts, counter.period_ns / 1e9) for stage in parts.joules}
    untold_j = sum(parts.joules[stage] for stage, part in stages_told.items() if part.joules is None)
    told_j = sum(part.joules for part in stages_told.values() if part.joules is not None)
    rest_j = max(0.0, total_j - told_j - untold_j)
    return EnergyAccount(source, total_j, stages_told, untold_j, rest_j), None


def _counts(span: Span, lanes: Collection[str] | None) -> bool:
    return not span.stage.is_wait and span.stage is not Stage.STARTUP and (lanes is None or span.lane in lanes)


class _Parts:
    """What each stage has got so far."""

    def __init__(self, counter: Sampled, window: Interval) -> None:
        self._counter, self.window = counter, window
        self.joules: dict[Stage, float] = {}
        self.nanoseconds: dict[Stage, float] = {}
        self.covered_ns: dict[Stage, float] = {}

    def add(self, piece: Interval, stages: Collection[Stage]) -> None:
        """Share out a piece of time."""
        joules, covered_ns = self._counter.growth(piece) or 0.0, self._counter.covered_ns(piece)
        for stage in stages:
            self.joules[stage] = self.joules.get(stage, 0.0) + joules / len(stages)
            self.nanoseconds[stage] = self.nanoseconds.get(stage, 0.0) + piece[1] - piece[0]
            self.covered_ns[stage] = self.covered_ns.get(stage, 0.0) + covered_ns


def _pieces(spans: Sequence[Span], window: Interval) -> Iterator[tuple[int, int, tuple[Stage, ...]]]:
    """Yield the pieces of the window in which the same stages are under way, with at least one of them."""
    edges = []
    for span in spans:
        for start_ns, end_ns in clip([(span.start_ns, span.end_ns)], window):
            edges += [(start_ns, 1, span.stage), (end_ns, -1, span.stage)]
    edges.sort(key=lambda edge: edge[0])
    under_way: dict[Stage, int] = {}
    for (start_ns, change, stage), following in pairwise([*edges, (window[1], 0, Stage.UPDATE)]):
        under_way[stage] = under_way.get(stage, 0) + change
        stages = tuple(stage for stage, count in under_way.items() if count)
        if stages and following[0] > start_ns:
            yield start_ns, following[0], stages


def _told(stage: Stage, work: Sequence[Span], parts: _Parts, period_s: float) -> StageEnergy:
    own = [span for span in work if span.stage is stage]
    lengths = [end - start for span in own for start, end in clip([(span.start_ns, span.end_ns)], parts.window)]
    seconds, each_s = parts.nanoseconds[stage] / 1e9, sum(lengths) / len(lengths) / 1e9
    reason = _why_untold(seconds, each_s, parts.covered_ns[stage] / 1e9, period_s)
    joules = parts.joules[stage] if reason is None else None
    return StageEnergy(joules, seconds, len(lengths), reason is None and each_s < TOLD_ALONE_S, reason)


def _why_untold(seconds: float, each_s: float, covered_s: float, period_s: float) -> str | None:
    if covered_s < _COVERED_SHARE * seconds:
        return "the counters do not cover it"
    if each_s < TOLD_ALONE_S and each_s < period_s:
        return f"it lasts {each_s:.2g} s, less than a sampling period of {period_s:.2g} s"
    if seconds < TOLD_ALONE_S:
        return f"it lasts {seconds:.2g} s in all, less than {TOLD_ALONE_S:g} s"
    return None
