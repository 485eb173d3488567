"""The track of a run's training steps, and its metrics as counters over the step that they belong to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.core.types import Metric
from harness.report.trace.events import Arguments, Instant, Sample, Slice, Track
from harness.results import EvaluationRow, StepRow, TailRow

STEP, EVALUATION, WARMUP, PROFILED = "step", "evaluation", "warmup", "profiled"
FIRST_SHOWN = (
    "off_policy/mean",
    "off_policy/max",
    "off_policy/in_flight",
    "off_policy/in_queue",
    "replay/size",
    "reward/total",
    "perf/throughput_total",
    "grad_norm",
)
_UNITS = {
    "grad_norm": "",
    "kl/": "nats",
    "off_policy/": "versions",
    "off_policy/dropped": "rollouts",
    "off_policy/dropped_length": "tokens",
    "off_policy/in_flight": "rollouts",
    "off_policy/in_queue": "rollouts",
    "perf/throughput": "tokens/s",
    "replay/age_mean": "versions",
    "replay/evicted_unused": "groups",
    "replay/size": "groups",
    "response_length": "tokens",
    "response_tokens": "tokens",
    "sync/": "s",
    "sync/bandwidth_gb_s": "GB/s",
    "sync/bytes": "bytes",
    "sync/tensors": "tensors",
    "token_entropy": "nats",
    "trained_tokens": "tokens",
}


class StepWindow(NamedTuple):
    """When a training step's row was open, and what is to be known of it: ``warmup``, ``profiled``."""

    start_ns: int
    end_ns: int
    marks: tuple[str, ...]


def step_windows(rows: Iterable[StepRow], loop_start_ns: int) -> list[StepWindow]:
    """Return the window of each row; they follow each other, and never overlap by a rounding."""
    windows: list[StepWindow] = []
    before = loop_start_ns
    for row in rows:
        end_ns = max(before, loop_start_ns + round(row.elapsed_s * 1e9))
        start_ns = min(end_ns, max(before, loop_start_ns + round((row.elapsed_s - row.wall_s) * 1e9)))
        marks = [mark for mark, is_set in ((WARMUP, row.warmup), (PROFILED, row.profiled)) if is_set]
        windows.append(StepWindow(start_ns, end_ns, tuple(marks)))
        before = end_ns
    return windows


def steps_track(
    rows: Sequence[StepRow],
    windows: Sequence[StepWindow],
    evaluations: Iterable[EvaluationRow],
    tail: TailRow | None,
    loop_start_ns: int,
) -> Track:
    """Return the track of the training steps, of the evaluations told, and of what came after the last step."""
    track = Track("training steps")
    for row, window in zip(rows, windows, strict=True):
        name = ", ".join((f"step {row.step}", *window.marks))
        track.slices.append(
            Slice(window.start_ns, window.end_ns, name, (STEP, *window.marks), _arguments(row, window.marks))
        )
    last_ns = windows[-1].end_ns if windows else loop_start_ns
    if tail is not None and loop_start_ns + round(tail.elapsed_s * 1e9) > last_ns:
        end_ns = loop_start_ns + round(tail.elapsed_s * 1e9)
        track.slices.append(Slice(last_ns, end_ns, "after the last step", (STEP,)))
    track.instants = [_evaluated(row, loop_start_ns) for row in evaluations]
    return track


def metric_tracks(rows: Sequence[StepRow], windows: Sequence[StepWindow]) -> list[Track]:
    """Return a counter for each metric of the steps: its value stands from the step's begin to the next step's.

    A number that is not finite cannot be drawn; the step's slice names it.
    """
    found: dict[str, list[Sample]] = {}
    for row, window in zip(rows, windows, strict=True):
        for name, metric in _metrics(row).items():
            if math.isfinite(metric.value):
                found.setdefault(name, []).append(Sample(window.start_ns, metric.value))
    return [Track(name, samples=found[name], unit=metric_unit(name)) for name in sorted(found, key=_place)]


def metric_unit(name: str) -> str:
    """Return a metric's unit by its name or the longest known beginning of it; empty for a plain number."""
    return max(((len(head), unit) for head, unit in _UNITS.items() if name.startswith(head)), default=(0, ""))[1]


def _place(name: str) -> tuple[int, str]:
    return (FIRST_SHOWN.index(name) if name in FIRST_SHOWN else len(FIRST_SHOWN)), name


def _metrics(row: StepRow) -> dict[str, Metric]:
    """Return the row's metrics; the lag also from runs that saved no more than its histogram."""
    found = {name: metric for name in row.metrics if (metric := row.metric(name)) is not None}
    rollouts = sum(row.lags.values())
    if rollouts:
        mean = sum(lag * number for lag, number in row.lags.items()) / rollouts
        found.setdefault("off_policy/mean", Metric(mean, count=rollouts))
        found.setdefault("off_policy/max", Metric(max(row.lags), "max", rollouts))
    return found


def _arguments(row: StepRow, marks: Sequence[str]) -> Arguments:
    values = {name: metric.value for name, metric in sorted(_metrics(row).items())}
    odd = [f"{name} {value}" for name, value in values.items() if not math.isfinite(value)]
    flags = tuple((mark, True) for mark in marks)
    not_finite = (("not_finite", ", ".join(odd)),) if odd else ()
    return (("step", row.step), ("version", row.version), *flags, *not_finite)


def _evaluated(row: EvaluationRow, loop_start_ns: int) -> Instant:
    metrics = {name: metric for name in sorted(row.metrics) if (metric := row.metric(name)) is not None}
    values = tuple((name, metric.value) for name, metric in metrics.items() if math.isfinite(metric.value))
    at_ns = loop_start_ns + round(row.elapsed_s * 1e9)
    return Instant(at_ns, f"evaluated version {row.version}", (EVALUATION,), (("version", row.version), *values))
