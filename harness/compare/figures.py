"""The figures of one run, from its files alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from harness.compare.attribution import (
    BlockedTime,
    LaneAccount,
    Overlap,
    account_spans,
    blocked_time,
    lane_accounts,
    loop_window,
    overlap,
    time_by_window,
)
from harness.compare.checkpoints import CheckpointCost, checkpoint_cost
from harness.compare.kl import kl_remark
from harness.compare.learning import (
    Divergence,
    Evaluated,
    LearningFigures,
    evaluations,
    learning_figures,
    seconds_to_reward,
)
from harness.compare.step_columns import (
    StepSeries,
    measured_rows,
    measured_windows,
    metric_columns,
    metric_value,
    stage_columns,
    step_series,
    step_window,
    tokens_per_second,
    with_tail,
)
from harness.compare.sync import SyncFigures, percentile, sync_figures
from harness.core.intervals import Interval, total
from harness.core.trace import Span, Stage
from harness.core.types import Metric, RankStep
from harness.results import LedgerFigures, Run, StepRow, WarmUp, lane_kind, part_of
from harness.results.lane_time import parts_as_lanes
from harness.results.manifest import Manifest
from harness.results.rows import SyncRow


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One stage of one run, or its whole steps, over the measured window.

    Attributes:
        mean_s: seconds in the window over its training steps, added over lanes; 0.0 where it ran in other steps only.
        steps: in how many steps of the window it ran.
        share: its part of the window's seconds. Shares of lanes that run at once add up to more than 1.
        total_s: seconds in the whole loop.
    """

    mean_s: float
    steps: int
    share: float
    total_s: float


@dataclass(frozen=True, slots=True)
class SingleSteps:
    """How the single steps of the measured window spread, in seconds: the 10th percentile, the median and the 90th."""

    p10_s: float
    median_s: float
    p90_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """The measured window: the training steps that figures of time rest on.

    Attributes:
        first, last: numbers of its first and last training step. A last evaluation after the last step is part of it.
        steps: in the window; of the run there are ``all_steps``.
        seconds: of the clock.
    """

    first: int
    last: int
    steps: int
    all_steps: int
    seconds: float


@dataclass(frozen=True)
class RunFigures:
    """What ``harness.compare`` says of one run.

    Attributes:
        steps, planned_steps: training steps made and asked for (None if unknown).
        warmup_steps, profiled_steps: those left out for either; a step that is both counts as profiled.
        learning: when the target was reached, gradients, divergence; None where ``brief``.
        settings: the resolved scenario as plain values, for reading only; empty where it was not saved.
        series: the step times that verdicts rest on; None where ``brief``, and in a run without steps.
        warm_up: how many of the first steps are warm-up, and whether the others keep one level.
        window: the measured window; None in a run without steps.
        single_steps: the spread of its steps; None likewise.
        stages: stages and waits by name. Where spans were read they are those of the lanes, step by step.
        all_stages: the stages without the waits, added up.
        lanes: where the time of each lane went in the measured window; of the loop in a run without steps.
        parts: the same of each part: all ranks of a Learner are one.
        rank_steps: what each rank did in each measured step; empty where the Learner is one process.
        loop_s: seconds of the loop, without start-up.
        reward_target: the scenario's; ``seconds_to_target`` is None where it was not reached.
        grad_norm_peak: the highest gradient norm and its step; ``grad_norm`` is the median.
        throughput: generated tokens per second of the measured window.
        max_lag, lag_control, replay_capacity: the scenario's; None if unknown.
        ledger: what became of the rollouts; None in a run that did not get to its end.
        overlap: what lanes did side by side in the measured window; None without spans.
        held_back: what waiting for the lag bound cost; None at lag 0, under ``drop`` and without spans.
        sync: weight syncs; None where nothing was moved.
        replaced: parts that died and were replaced.
        timed_syncs: of a transport sweep.
        checkpoints: what they cost; None without any, and without spans.
        metrics: combined over all steps, by name.
        last_metrics: of the last step that has them, by name.
        rewards: the mean training reward of each step, of its fresh rollouts; empty where ``brief``.
        non_finite: in how many steps a metric was NaN or infinite, by name; those are left out of ``metrics``.
    """

    manifest: Manifest
    status: str
    steps: int
    planned_steps: int | None
    loop_s: float
    stages: dict[Stage, StageFigures]
    all_stages: StageFigures
    warm_up: WarmUp
    window: Window | None
    single_steps: SingleSteps | None
    lanes: dict[str, LaneAccount]
    parts: dict[str, LaneAccount]
    rank_steps: list[tuple[RankStep, ...]]
    first: Evaluated | None
    best: Evaluated | None
    last: Evaluated | None
    reward_target: float | None
    seconds_to_target: float | None
    optimizer_steps: int
    throughput: float | None
    grad_norm: float | None
    grad_norm_peak: tuple[float, int] | None
    max_lag: int | None
    lag_control: str | None
    replay_capacity: int | None
    kl: str | None
    ledger: LedgerFigures | None
    overlap: Overlap | None
    blocked_time: BlockedTime | None
    sync: SyncFigures | None
    replaced: int = 0
    timed_syncs: tuple[SyncRow, ...] = ()
    checkpoints: CheckpointCost | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    last_metrics: dict[str, Metric] = field(default_factory=dict)
    non_finite: dict[str, int] = field(default_factory=dict)
    warmup_steps: int = 0
    profiled_steps: int = 0
    series: StepSeries | None = None
    learning: LearningFigures | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    rewards: tuple[float, ...] = ()
    folder: Path = Path()

    @property
    def measured_steps(self) -> int:
        """The steps of the measured window."""
        return self.window.steps if self.window else 0

    @property
    def step_s(self) -> float | None:
        """Seconds per training step: those of the measured window over its steps, evaluations included.

        None where no time is known.
        """
        return self.window.seconds / self.window.steps if self.window and self.window.seconds > 0 else None

    @property
    def median_step_s(self) -> float | None:
        """Median of the single steps of the measured window, in seconds: beside ``step_s``, never in its place."""
        return self.single_steps.median_s if self.single_steps else None

    @property
    def is_steady(self) -> bool | None:
        """Whether the steps of the measured window keep one level; None where there are too few to tell."""
        return self.warm_up.steady

    @property
    def is_completed(self) -> bool:
        """Whether the run got to its end."""
        return self.status == "completed"

    @property
    def row_steps(self) -> int:
        """Training steps that a row stands for: more than one only in some logs of other trainers."""
        about = self.manifest.outcome.get("imported")
        return int(about.get("steps_per_row") or 1) if isinstance(about, dict) else 1

    @property
    def is_imported(self) -> bool:
        """Whether the run was read from another trainer's log, which tells no counts of prompts and optimizer steps."""
        return "imported" in self.manifest.outcome

    @property
    def behaviour_is_older(self) -> bool:
        """Whether rollouts may come from an older policy than the one that a training step starts with."""
        return bool(self.max_lag or self.replay_capacity)

    @property
    def training_reward(self) -> float | None:
        """Mean training reward of the last tenth of the steps that logged one; None where none did."""
        found = self.rewards[-max(1, len(self.rewards) // 10) :]
        return fmean(found) if found else None

    @property
    def divergence(self) -> Divergence | None:
        """How the run diverged; None where it did not, or its learning is not known."""
        return self.learning.divergence if self.learning else None

    def idle_ratio(self, kind: str) -> float | None:
        """Return the mean share of the measured window that lanes of a kind waited; None without spans of any."""
        accounts = [account for lane, account in self.lanes.items() if lane_kind(lane) == kind]
        return fmean(account.share(account.waiting_ns) for account in accounts) if accounts else None

    def mean(self, name: str) -> float | None:
        """Return a metric combined over all steps (a mean weighted by its counts), or None."""
        metric = self.metrics.get(name)
        return metric.value if metric is not None and math.isfinite(metric.value) else None

    def at_end(self, name: str) -> float | None:
        """Return a metric of the last step that has it, or None."""
        metric = self.last_metrics.get(name)
        return metric.value if metric is not None and math.isfinite(metric.value) else None


def run_figures(run: Run, brief: bool = False, with_spans: bool = True) -> RunFigures:
    """Compute the figures of one run.

    Args:
        brief: leave out stages, lanes, syncs, KL and step metrics, and with them most of the work: enough for one line
            of an overview.
        with_spans: read the spans too, which lanes, overlap and the lag bound's waits are computed from.

    Raises:
        UserError: the spans or the scenario of the run are damaged.
    """
    evaluated = evaluations(run)
    target = None if run.manifest.simulated else _as_float(run.setting("reward_target"))  # it has no rewards
    columns = {} if brief else metric_columns(run.steps)
    spans, rows = run.spans() if with_spans and not brief else [], with_tail(run.steps, run.tail)
    as_parts = parts_as_lanes(spans) if any(span.lane != part_of(span.lane) for span in spans) else spans
    times = _span_times(run, rows, spans, as_parts)
    stages = {} if brief else stage_columns(rows, times.by_step_s)
    series = step_series(rows, stages)
    measured = series.measured() if series else None
    max_lag, lag_control = _as_int(run.setting("max_lag")), run.setting("lag_control")
    blocked = None
    if spans and max_lag and lag_control != "drop":
        blocked = blocked_time(spans, max_lag, len(run.steps))
    totals, grad_norms = _totals(run, rows, stages), _values(run.steps, "grad_norm")
    of_stages = {stage: _figures_of([stage], measured, total_s) for stage, total_s in totals.items()}
    busy = [stage for stage in totals if not stage.is_wait]
    return RunFigures(
        manifest=run.manifest,
        status=run.status,
        steps=len(run.steps),
        planned_steps=_as_int(run.setting("steps")),
        loop_s=loop_seconds(run),
        stages={} if brief else of_stages,
        all_stages=_figures_of(busy, measured, sum(totals[stage] for stage in busy)),
        warm_up=run.warm_up,
        window=_window(run, measured),
        single_steps=_single_steps(measured),
        lanes=times.lanes,
        parts=times.parts,
        rank_steps=[row.ranks for row in measured_rows(run.steps) if row.ranks],
        first=evaluated[0] if evaluated else None,
        best=max(evaluated, key=lambda item: item.reward, default=None),
        last=evaluated[-1] if evaluated else None,
        reward_target=target,
        seconds_to_target=None if target is None else seconds_to_reward(run, target),
        optimizer_steps=sum(row.optimizer_steps for row in run.steps),
        throughput=tokens_per_second(rows),
        grad_norm=_median(value for value, _ in grad_norms),
        grad_norm_peak=max(grad_norms, default=None),
        kl=None if brief else kl_remark(run),
        max_lag=max_lag,
        lag_control=lag_control if isinstance(lag_control, str) else None,
        replay_capacity=_as_int(run.setting("replay.capacity")),
        ledger=run.ledger,
        overlap=overlap(as_parts, times.windows) if spans else None,
        blocked_time=blocked,
        sync=None if brief else sync_figures(run),
        replaced=sum(run.replaced.values()),
        timed_syncs=run.syncs,
        checkpoints=checkpoint_cost(run, as_parts, measured) if spans else None,
        metrics={name: column.combined for name, column in columns.items() if column.combined is not None},
        last_metrics={name: column.last for name, column in columns.items()},
        non_finite={name: column.non_finite for name, column in columns.items() if column.non_finite},
        warmup_steps=sum(row.warmup and not row.profiled for row in run.steps),
        profiled_steps=sum(row.profiled for row in run.steps),
        series=None if brief else series,
        learning=None if brief else learning_figures(run, target),
        rewards=() if brief else tuple(value for value, _ in _values(run.steps, "reward/total")),
        settings=run.settings,
        folder=run.folder,
    )


@dataclass(frozen=True, slots=True)
class _SpanTimes:
    """What a run's spans say of its time; all empty without spans.

    Attributes:
        by_step_s: seconds of each stage of a lane, step by step, those of a Learner's ranks as one lane.
        lanes: the account of each lane over the measured window.
        parts: the same of each part, where a Learner of several ranks is one.
        windows: the measured window in nanoseconds, in several parts where profiled steps lie between.
    """

    by_step_s: dict[str, dict[Stage, list[float]]]
    lanes: dict[str, LaneAccount]
    parts: dict[str, LaneAccount]
    windows: list[Interval]


def _span_times(run: Run, rows: Sequence[StepRow], spans: list[Span], as_parts: list[Span]) -> _SpanTimes:
    if not spans:
        return _SpanTimes({}, {}, {}, [])
    loop = loop_window(spans, run.tail.elapsed_s if run.tail else None)
    if not rows:
        return _SpanTimes({}, account_spans(spans, loop), account_spans(as_parts, loop), [loop])
    windows = measured_windows(rows, loop[0])
    measured = {row.step for row in measured_rows(rows)}
    kept, of_rows = [row.step in measured for row in rows], [step_window(row, loop[0]) for row in rows]
    found = time_by_window(spans, of_rows)
    lanes = lane_accounts(found, kept, total(windows))
    by_part = found if as_parts is spans else time_by_window(as_parts, of_rows)
    parts = lanes if as_parts is spans else lane_accounts(by_part, kept, total(windows))
    by_step_s = {part: {stage: (ns / 1e9).tolist() for stage, ns in stages.items()} for part, stages in by_part.items()}
    return _SpanTimes(by_step_s, lanes, parts, windows)


def _window(run: Run, measured: StepSeries | None) -> Window | None:
    if measured is None:
        return None
    steps = measured.steps
    return Window(steps[0], steps[-1], len(steps), len(run.steps), sum(measured.wall_s))


def _single_steps(measured: StepSeries | None) -> SingleSteps | None:
    if measured is None:
        return None
    low, middle, high = (percentile(measured.wall_s, percent) for percent in (10, 50, 90))
    return SingleSteps(low, middle, high)


def _totals(run: Run, rows: Sequence[StepRow], stages: Mapping[Stage, Sequence[float]]) -> dict[Stage, float]:
    """Return each stage's seconds in the steps, and in the tail where the rows do not have it yet."""
    has_tail = run.tail is None or (bool(rows) and rows[-1].elapsed_s == run.tail.elapsed_s)
    last = {} if has_tail or run.tail is None else run.tail.stages_s
    return {
        stage: sum(stages.get(stage, ())) + last.get(stage.value, 0.0)
        for stage in Stage
        if stage in stages or stage.value in last
    }


def _figures_of(stages: Sequence[Stage], measured: StepSeries | None, total_s: float) -> StageFigures:
    """Return the figures of some stages together."""
    if measured is None:
        return StageFigures(0.0, 0, 0.0, total_s)
    columns = [measured.stages_s[stage] for stage in stages if stage in measured.stages_s]
    seconds = [sum(step) for step in zip(*columns, strict=True)]
    spent_s, window_s = sum(seconds), sum(measured.wall_s)
    share = spent_s / window_s if window_s else 0.0
    return StageFigures(spent_s / len(measured.steps), sum(value > 0 for value in seconds), share, total_s)


def loop_seconds(run: Run) -> float:
    """Return the seconds from the loop's start to the last row that closes a window (a step or the tail)."""
    if run.tail is not None:
        return run.tail.elapsed_s
    return run.steps[-1].elapsed_s if run.steps else 0.0


def _values(rows: Iterable[StepRow], name: str) -> list[tuple[float, int]]:
    """Return (value, step) of a metric in the steps where it is finite."""
    values = ((metric_value(row.metrics, name), row.step) for row in rows)
    return [(value, step) for value, step in values if value is not None and math.isfinite(value)]


def _median(values: Iterable[float]) -> float | None:
    values = list(values)
    return median(values) if values else None


def _as_float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
