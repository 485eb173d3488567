"""The figures of one run, from its files alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from statistics import fmean, median
from typing import Any

from harness.compare.attribution import (
    BlockedTime,
    LaneAccount,
    Overlap,
    account_spans,
    blocked_time,
    loop_window,
    overlap,
)
from harness.compare.learning import (
    Divergence,
    Evaluated,
    KlFigures,
    LearningFigures,
    evaluations,
    kl_figures,
    learning_figures,
    seconds_to_reward,
)
from harness.compare.step_columns import (
    StepSeries,
    is_measured,
    metric_columns,
    metric_value,
    stage_columns,
    step_series,
)
from harness.compare.sync import SyncFigures, sync_figures
from harness.core.trace import Stage
from harness.core.types import Metric
from harness.results import LedgerFigures, Run, StepRow, lane_kind
from harness.results.manifest import Manifest
from harness.results.rows import SyncRow

StageColumns = Mapping[Stage, Sequence[float]]


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One stage of one run.

    Attributes:
        median_s: median seconds over the measured training steps in which it ran, added over lanes; None if it ran in
            none. Warm-up steps and those with a profiler are not measured, unless the run has no others.
        steps: in how many measured training steps it ran.
        total_s: seconds in the whole loop, also after the last step.
        share: ``total_s`` over the loop's seconds. Shares of lanes that run at once add up to more than 1.
    """

    median_s: float | None
    steps: int
    total_s: float
    share: float


@dataclass(frozen=True)
class RunFigures:
    """What ``harness.compare`` says of one run.

    Attributes:
        steps, planned_steps: training steps made and asked for (None if unknown).
        warmup_steps, profiled_steps: those left out for either; a step that is both counts as profiled.
        learning: when the target was reached, gradients, divergence; None where ``brief``.
        settings: the resolved scenario as plain values, for reading only; empty where it was not saved.
        series: the step times that verdicts rest on; None where ``brief``, and in a run without steps.
        stages: stages and waits by name.
        all_stages: the stages without the waits, added up; its median is over measured steps without evaluation.
        whole_step: wall-clock between two step rows; its median likewise.
        loop_s: seconds of the loop, without start-up.
        reward_target: the scenario's; ``seconds_to_target`` is None where it was not reached.
        grad_norm_peak: the highest gradient norm and its step; ``grad_norm`` is the median.
        throughput: median over measured steps of the generated tokens per second.
        max_lag, lag_control, replay_capacity: the scenario's; None if unknown.
        ledger: what became of the rollouts; None in a run that did not get to its end.
        overlap: what lanes did side by side; None without spans.
        held_back: what waiting for the lag bound cost; None at lag 0, under ``drop`` and without spans.
        sync: weight syncs; None where nothing was moved.
        replaced: parts that died and were replaced.
        timed_syncs: of a transport sweep.
        metrics: combined over all steps, by name.
        last_metrics: of the last step that has them, by name.
        non_finite: in how many steps a metric was NaN or infinite, by name; those are left out of ``metrics``.
    """

    manifest: Manifest
    status: str
    steps: int
    planned_steps: int | None
    loop_s: float
    stages: dict[Stage, StageFigures]
    all_stages: StageFigures
    whole_step: StageFigures
    lanes: dict[str, LaneAccount]
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
    kl: KlFigures | None
    ledger: LedgerFigures | None
    overlap: Overlap | None
    blocked_time: BlockedTime | None
    sync: SyncFigures | None
    replaced: int = 0
    timed_syncs: tuple[SyncRow, ...] = ()
    metrics: dict[str, Metric] = field(default_factory=dict)
    last_metrics: dict[str, Metric] = field(default_factory=dict)
    non_finite: dict[str, int] = field(default_factory=dict)
    warmup_steps: int = 0
    profiled_steps: int = 0
    series: StepSeries | None = None
    learning: LearningFigures | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    folder: Path = Path()

    @property
    def measured_steps(self) -> int:
        """The steps that medians are taken over: neither warm-up nor profiled; all where each was one of these."""
        return self.steps - self.warmup_steps - self.profiled_steps or self.steps

    @property
    def step_s(self) -> float | None:
        """Median seconds of a training step without evaluation."""
        return self.whole_step.median_s

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
    def divergence(self) -> Divergence | None:
        """How the run diverged; None where it did not, or its learning is not known."""
        return self.learning.divergence if self.learning else None

    def idle_ratio(self, kind: str) -> float | None:
        """Return the share of the loop that lanes of a kind waited, as a mean over them; None without spans of any."""
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
    loop_s, walls = loop_seconds(run), [row.wall_s for row in run.steps]
    stages = stage_columns(run.steps)
    measured, plain = _measured(run.steps, stages)
    spans = run.spans() if with_spans and not brief else []
    window = loop_window(spans, run.tail.elapsed_s if run.tail else None) if spans else (0, 0)
    max_lag, lag_control = _as_int(run.setting("max_lag")), run.setting("lag_control")
    blocked = None
    if spans and max_lag and lag_control != "drop":
        blocked = blocked_time(spans, max_lag, len(run.steps))
    totals, grad_norms = _totals(run, stages), _values(run.steps, "grad_norm")
    busy = [compress(seconds, plain) for stage, seconds in stages.items() if not stage.is_wait]
    busy_s = sum(seconds for stage, seconds in totals.items() if not stage.is_wait)
    return RunFigures(
        manifest=run.manifest,
        status=run.status,
        steps=len(run.steps),
        planned_steps=_as_int(run.setting("steps")),
        loop_s=loop_s,
        stages={}
        if brief
        else {
            stage: _figures_of(compress(stages.get(stage, ()), measured), total_s, loop_s)
            for stage, total_s in totals.items()
        },
        all_stages=_figures_of(map(sum, zip(*busy, strict=True)), busy_s, loop_s),
        whole_step=_figures_of(compress(walls, plain), sum(walls), loop_s),
        lanes=account_spans(spans, window),
        first=evaluated[0] if evaluated else None,
        best=max(evaluated, key=lambda item: item.reward, default=None),
        last=evaluated[-1] if evaluated else None,
        reward_target=target,
        seconds_to_target=None if target is None else seconds_to_reward(run, target),
        optimizer_steps=sum(row.optimizer_steps for row in run.steps),
        throughput=_median(value for value, _ in _values(compress(run.steps, measured), "perf/throughput_total")),
        grad_norm=_median(value for value, _ in grad_norms),
        grad_norm_peak=max(grad_norms, default=None),
        kl=None if brief else kl_figures(run),
        max_lag=max_lag,
        lag_control=lag_control if isinstance(lag_control, str) else None,
        replay_capacity=_as_int(run.setting("replay.capacity")),
        ledger=run.ledger,
        overlap=overlap(spans, window) if spans else None,
        blocked_time=blocked,
        sync=None if brief else sync_figures(run),
        replaced=sum(run.replaced.values()),
        timed_syncs=run.syncs,
        metrics={name: column.combined for name, column in columns.items() if column.combined is not None},
        last_metrics={name: column.last for name, column in columns.items()},
        non_finite={name: column.non_finite for name, column in columns.items() if column.non_finite},
        warmup_steps=sum(row.warmup and not row.profiled for row in run.steps),
        profiled_steps=sum(row.profiled for row in run.steps),
        series=None if brief else step_series(run.steps, stages),
        learning=None if brief else learning_figures(run, target),
        settings=run.settings,
        folder=run.folder,
    )


def _measured(rows: Sequence[StepRow], stages: StageColumns) -> tuple[list[bool], list[bool]]:
    """Return for each step whether it is in the medians, and whether it is in those of the whole step too.

    Warm-up and profiled steps are in none, unless all steps are such; of the others, those with an evaluation are not
    in the second, unless each has one.
    """
    measured = [is_measured(row) for row in rows]
    if not any(measured):
        measured = [True] * len(rows)
    evaluated = stages.get(Stage.EVALUATE)
    if evaluated is None:
        return measured, measured
    plain = [is_in and not seconds for is_in, seconds in zip(measured, evaluated, strict=True)]
    return measured, plain if any(plain) else measured


def stage_totals(run: Run) -> dict[Stage, float]:
    """Return the seconds of each stage and wait over the whole loop, added over lanes.

    They come from the step rows and the tail, and equal the sum of the spans that ended after start-up.
    """
    return _totals(run, stage_columns(run.steps))


def _totals(run: Run, stages: StageColumns) -> dict[Stage, float]:
    last = run.tail.stages_s if run.tail else {}
    return {
        stage: sum(stages.get(stage, ())) + last.get(stage.value, 0.0)
        for stage in Stage
        if stage in stages or stage.value in last
    }


def _figures_of(step_times: Iterable[float], total_s: float, loop_s: float) -> StageFigures:
    times = [seconds for seconds in step_times if seconds > 0.0]
    return StageFigures(_median(times), len(times), total_s, total_s / loop_s if loop_s else 0.0)


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
