"""What checkpoints cost a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean, median
from typing import Any

from harness.compare.numbers import number
from harness.core.intervals import Interval, total
from harness.core.trace import Span, Stage
from harness.results import Run, lane_kind
from harness.results.occupancy import Occupancy

FEWEST_BESIDE = 3
"""Updates with writing beside them, and without, from which on their lengths are compared."""


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """What checkpoints cost a run; medians over them.

    Attributes:
        every: training steps from one to the next.
        step_s: of a training step without them.
        blocked_s: in which the Learner waits for one.
        exposed_s: of these, those in which nobody worked for the batch that it would train on next.
        pending_s: from then until an asynchronous one counts; else 0.
        slowed_s: by which writing one makes training beside it longer; 0 where that is not known.
    """

    every: int
    step_s: float
    blocked_s: float
    exposed_s: float
    pending_s: float = 0.0
    slowed_s: float = 0.0

    @property
    def cost_s(self) -> float:
        """By which one makes training longer."""
        return self.exposed_s + self.slowed_s


def has_kept_steps(run: Run) -> bool:
    """Whether a run kept training steps, whose saves are of the same stage as its checkpoints."""
    return bool(run.setting("checkpoint.keep_steps") or run.setting("checkpoint.keep_steps_every"))


def checkpoint_cost(run: Run, spans: Sequence[Span], steps: Collection[int], step_s: float) -> CheckpointCost | None:
    """Return what checkpoints cost a run; None where it made none or kept steps, or its steps took no time.

    Args:
        spans: with the ranks of a Learner as one lane.
        steps: its measured training steps, by number.
        step_s: mean seconds of these.
    """
    every: Any = run.setting("checkpoint.every")
    by_kind: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_kind[lane_kind(span.lane)].append(span)
    blocking = (Stage.CHECKPOINT, Stage.WAIT_FOR_CHECKPOINT)
    blocked = _by_version(span for span in by_kind["learner"] if span.stage in blocking)
    if not every or not blocked or not steps or has_kept_steps(run):
        return None
    writing = [span for span in spans if span.stage is Stage.CHECKPOINT_WRITE]
    written = _by_version(writing)
    measured = [version for version in blocked if version in steps] or list(blocked)
    samplers = [span for span in (*by_kind["generator"], *by_kind["scorer"]) if not span.stage.is_wait]
    exposed = [_exposed_s(blocked[version], version, samplers) for version in measured]
    pending_ns = [
        max(0, max(end for _, end in written[version]) - max(end for _, end in blocked[version]))
        for version in measured
        if version in written
    ]
    slowed_s = _slowed_s(by_kind["learner"], writing, steps)
    plain_s = step_s - sum(exposed) / len(steps) - slowed_s / int(every)
    if plain_s <= 0:
        return None
    blocked_s = median(total(blocked[version]) for version in measured) / 1e9
    pending_s = median(pending_ns) / 1e9 if pending_ns else 0.0
    return CheckpointCost(int(every), plain_s, blocked_s, median(exposed), pending_s, slowed_s)


def _exposed_s(blocked: Sequence[Interval], version: int, samplers: Sequence[Span]) -> float:
    """Seconds by which the next training step begins later: those that no Generator or Scorer works towards it."""
    scored = [span.end_ns for span in samplers if span.stage is Stage.SCORE and span.step == version]
    ready_ns = max(scored, default=0)
    towards = [s._replace(end_ns=min(s.end_ns, ready_ns)) for s in samplers if s.start_ns < ready_ns]
    beside = Occupancy.of(towards, sorted(blocked)).overlap()
    return beside.loop_s - beside.busy_s


def _slowed_s(learner: Sequence[Span], writing: Sequence[Span], steps: Collection[int]) -> float:
    """Seconds by which updates with writing beside them are longer, for each checkpoint that was written meanwhile."""
    updates = sorted((span for span in learner if span.stage is Stage.UPDATE and span.step in steps), key=itemgetter(2))
    table = Occupancy.of(writing, [(span.start_ns, span.end_ns) for span in updates])
    lasted_s, beside_s = Counter[int](), Counter[int]()
    for span, (start, end), written_s in zip(updates, table.windows.tolist(), table.by_window().sum(1), strict=True):
        lasted_s[span.step] += (end - start) / 1e9
        beside_s[span.step] += written_s
    touched = [lasted for step, lasted in lasted_s.items() if beside_s[step] > lasted / 2]
    alone = [lasted for step, lasted in lasted_s.items() if beside_s[step] == 0]
    if min(len(touched), len(alone)) < FEWEST_BESIDE:
        return 0.0
    checkpoints = len({span.version for span in writing} & {*steps})
    return max(0.0, (fmean(touched) - fmean(alone)) * len(touched) / max(1, checkpoints))


def _by_version(spans: Iterable[Span]) -> dict[int, list[Interval]]:
    intervals: dict[int, list[Interval]] = defaultdict(list)
    for span in spans:
        intervals[span.version].append((span.start_ns, span.end_ns))
    return intervals


def checkpoint_sentence(name: str, cost: CheckpointCost) -> str:
    """Say what checkpoints cost."""
    share = cost.cost_s / (cost.every * cost.step_s + cost.cost_s)
    text = f"{name}: a checkpoint stalls the Learner for {number(cost.blocked_s)} s"
    if cost.exposed_s < cost.blocked_s:
        text += f", {number(cost.exposed_s)} s of which delay the next step"
    if cost.pending_s:
        text += f", counts {number(cost.pending_s)} s later"
    if cost.slowed_s:
        text += f", makes training beside it {number(cost.slowed_s)} s longer"
    every = "training step" if cost.every == 1 else f"{cost.every} training steps"
    return f"{text}: {number(100 * share)}% of the time with one every {every}."
