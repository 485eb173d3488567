"""The figures of a run that a simulation predicts, computed by the same functions for simulated and for real runs.

Times are means over the measured window of ``harness.compare``: the training steps that are neither warm-up nor
profiled, evaluations included. Means and not medians, since with lag and several Generators steps of unequal length
follow each other by design.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np

from harness.compare.run_frame import step_windows, tokens_per_second
from harness.core.trace import Span, Stage
from harness.loop import RolloutCounts
from harness.results import Manifest, Run, StepRow, lane_kind
from harness.results.frames import RunTable, table_of
from harness.results.occupancy import Occupancy, loop_window, part_spans
from harness.results.rows import LedgerFigures, TailRow

SYNC_STAGES = (Stage.WEIGHT_PUBLISH, Stage.WEIGHT_TRANSFER, Stage.WEIGHT_LOAD)
WAITS_THAT_COST = (Stage.WAIT_FOR_CALL.value, Stage.WAIT_FOR_RECORDER.value)
WASTE = ("failed", "discarded", "dropped", "unused", "evicted_unused")


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """What is predicted of a run, and measured of a real one.

    Attributes:
        step_s: seconds of a training step; see ``step_time``.
        stages_s: seconds of each stage and wait in a training step, added over the lanes.
        throughput: response tokens trained on fresh, a second of these steps.
        idle: share of the measured window that lanes of a kind waited, as a mean over the lanes of that kind.
        lags: share of the rollouts trained on by their lag, in policy versions.
        waste: share of the generated rollouts that came to nothing, by cause. ``evicted_unused`` left the replay buffer
            without ever being taken; it is a part of ``unused``.
        sync_s: seconds of one weight sync (publish, transfer and load); None where no weights moved.
    """

    step_s: float
    stages_s: Mapping[str, float]
    throughput: float
    idle: Mapping[str, float] = field(default_factory=dict)
    lags: Mapping[int, float] = field(default_factory=dict)
    waste: Mapping[str, float] = field(default_factory=dict)
    sync_s: float | None = None


def table_of_rows(rows: Sequence[StepRow], tail: TailRow | None = None) -> RunTable:
    """Return rows that lie in no folder as the table that a recorded run is read into."""
    about = Manifest(scenario="", experiment="", started_at="")
    return table_of(Run(Path(), about, "completed", tuple(rows), (), tail))


def metrics_of(
    table: RunTable,
    spans: Sequence[Span],
    ledger: RolloutCounts | LedgerFigures | None,
    evicted_unused: float = 0.0,
) -> RunMetrics:
    """Put all measures of a run together.

    Args:
        table: of at least one training step.
        spans: may be none; then there is no ``idle`` and no ``sync_s``.
        ledger: what became of the rollouts; None where it is not known.
        evicted_unused: rollouts that left the replay buffer without ever being taken.
    """
    return RunMetrics(
        step_s=step_time(table),
        stages_s=stage_times(table),
        throughput=tokens_per_second(table) or 0.0,
        idle=idle_shares(table, spans),
        lags=lag_shares(table),
        waste={} if ledger is None else waste_shares(ledger, evicted_unused),
        sync_s=sync_time(spans),
    )


def metrics_of_run(run: Run) -> RunMetrics:
    """Return the measures of a run that was read from its folder.

    Raises:
        ValueError: it has no training steps.
        UserError: a file is damaged.
    """
    group_size = run.setting("group_size") or 1
    evicted = sum(metric.value for row in run.steps if (metric := row.metric("replay/evicted_unused")) is not None)
    return metrics_of(table_of(run), part_spans(run.spans()), run.ledger, evicted * group_size)


def step_time(table: RunTable) -> float:
    """Return the seconds per training step of the measured window.

    Raises:
        ValueError: there are no training steps.
    """
    if not len(table):
        raise ValueError("there are no training steps to take figures of")
    return fmean(table.wall_s[table.is_measured].tolist())


def stage_times(table: RunTable) -> dict[str, float]:
    """Return the seconds of each stage and wait per step of the measured window, in the order of ``Stage``."""
    seconds = {stage.value: each[table.is_measured] for stage, each in table.stages_s.items()}
    return {stage: fmean(each.tolist()) for stage, each in seconds.items() if each.any()}


def costs_of(stages_s: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds that are costs: of work, or of a wait for nobody (a call's way, the driver's own work)."""
    return {name: s for name, s in stages_s.items() if not Stage(name).is_wait or name in WAITS_THAT_COST}


def lag_shares(table: RunTable) -> dict[int, float]:
    """Return the share of the rollouts trained on by lag, over all steps; each use of a replayed rollout counts."""
    lags: Counter[int] = Counter()
    for each in table.lags:
        lags.update(each)
    total = lags.total()
    return {lag: number / total for lag, number in sorted(lags.items())} if total else {}


def idle_shares(table: RunTable, spans: Sequence[Span]) -> dict[str, float]:
    """Return the share of the measured window that lanes of each kind waited, as ``harness.compare`` counts it."""
    if not spans:
        return {}
    kinds: dict[str, list[float]] = {}
    for lane, share in waiting_shares(table, spans, loop_window(spans, None)[0]).items():
        kinds.setdefault(lane_kind(lane), []).append(share)
    return {kind: fmean(shares) for kind, shares in kinds.items()}


def waiting_shares(table: RunTable, spans: Sequence[Span], loop_start_ns: int) -> dict[str, float]:
    """Return the share of the measured window that each lane waited."""
    windows = np.array(step_windows(table, loop_start_ns))[table.is_measured]
    accounts = Occupancy.of(spans, windows).accounts()
    return {lane: account.share(account.waiting_ns) for lane, account in accounts.items()}


def waste_shares(ledger: RolloutCounts | LedgerFigures, evicted_unused: float) -> dict[str, float]:
    """Return the shares of the generated rollouts that came to nothing, in the order of ``WASTE``."""
    generated = ledger.generated.rollouts
    parts = ledger.failed, ledger.discarded, ledger.dropped, ledger.unused
    lost = (*(part.rollouts for part in parts), evicted_unused)
    return {name: rollouts / generated if generated else 0.0 for name, rollouts in zip(WASTE, lost, strict=True)}


def sync_time(spans: Iterable[Span]) -> float | None:
    """Return the mean seconds of publishing, transferring and loading one version once; None without any.

    The first version is left out where there are others, since first use costs more. Pieces of a stage add up.
    """
    syncs: dict[tuple[str, Stage], dict[tuple[str, int], int]] = {}
    for lane, stage, start_ns, end_ns, _, version in spans:
        if stage in SYNC_STAGES:
            found = syncs.setdefault((lane_kind(lane), stage), {})
            found[lane, version] = found.get((lane, version), 0) + end_ns - start_ns
    if not syncs:
        return None
    later = ([ns for (_, version), ns in times.items() if version > 0] or times.values() for times in syncs.values())
    return sum(map(fmean, later)) / 1e9
