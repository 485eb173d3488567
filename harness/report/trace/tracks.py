"""What a run's folder holds as tracks: training steps, lanes, policy versions, metrics, counters of the machine."""

from __future__ import annotations

import math
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from harness.compare.attribution import loop_window
from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.core.types import Metric
from harness.report.trace.chrome import Arguments, Arrow, Instant, Sample, Slice, Track, stacked_tracks
from harness.report.trace.flows import arrows
from harness.results import EvaluationRow, Run, StepRow, VersionChange, in_pipeline_order, natural_order, part_of
from harness.results.counters import (
    GPU_COUNTERS,
    HOST_COUNTERS,
    PROCESS_COUNTERS,
    CounterRow,
    is_growing,
    read_counters,
    reasons,
    sources,
    stretches,
)
from harness.results.jsonl import read_checked
from harness.results.writer import LOG

STAGE, WAIT, STARTUP, VERSION, DEATH = "stage", "wait", "startup", "version", "death"
RUN, STEP, EVALUATION, WARMUP, PROFILED, MISSING = "run", "step", "evaluation", "warmup", "profiled", "missing"
DIED = "died; replaced"
_UNITS = {
    "grad_norm": "",
    "kl/": "nats",
    "off_policy/": "versions",
    "off_policy/dropped": "rollouts",
    "off_policy/dropped_length": "tokens",
    "off_policy/in_flight": "rollouts",
    "off_policy/in_queue": "rollouts",
    "perf/throughput": "tokens/s",
    "replay/age_max": "versions",
    "replay/age_mean": "versions",
    "replay/evicted_": "groups",
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
_DEATH_LINE = re.compile(r"\S+ (\d{1,9}\.\d+) s: (\S+) died \((.*)\); a new one takes its place")


def run_tracks(run: Run) -> list[Track]:
    """Return a run's tracks from top to bottom.

    Raises:
        UserError: a file is damaged, or a span ends before it begins.
    """
    spans = run.spans()
    for span in spans:
        if not 0 <= span.start_ns <= span.end_ns:
            what = f"a span {span.stage.value!r} of {span.lane!r} goes from {span.start_ns} to {span.end_ns} ns"
            bound = "it must begin at 0 or later and not end before that"
            raise UserError(f"{what}; {bound}", where=str(run.folder / "spans.jsonl"), fix="leave this run out")
    loop_ns = loop_window(spans, None)[0] if spans else round((run.manifest.startup_s or 0.0) * 1e9)
    windows = step_windows(run.steps, loop_ns)
    return [
        steps_track(run, windows, loop_ns),
        *lane_tracks(run, spans, windows, loop_ns),
        *version_tracks(run.version_changes, loop_ns),
        *metric_tracks(run.steps, windows),
        *resource_tracks(read_counters(run.folder)),
    ]


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


def steps_track(run: Run, windows: Sequence[StepWindow], loop_start_ns: int) -> Track:
    """Return the track of the training steps, with what the run was, its evaluations, and the time after its steps."""
    track = Track("training steps", instants=[_description(run)])
    for row, window in zip(run.steps, windows, strict=True):
        name = ", ".join((f"step {row.step}", *window.marks))
        arguments = _step_arguments(row, window.marks)
        track.slices.append(Slice(window.start_ns, window.end_ns, name, (STEP, *window.marks), arguments))
    last_ns = windows[-1].end_ns if windows else loop_start_ns
    if run.tail is not None and (end_ns := loop_start_ns + round(run.tail.elapsed_s * 1e9)) > last_ns:
        track.slices.append(Slice(last_ns, end_ns, "after the last step", (STEP,)))
    track.instants += [_evaluated(row, loop_start_ns) for row in run.evaluations]
    return track


def _description(run: Run) -> Instant:
    manifest = run.manifest
    simulated = f"SIMULATED by the machine profile {manifest.simulated}" if manifest.simulated is not None else None
    died = ", ".join(
        f"{lane} {times} times" for lane, times in sorted(run.replaced.items(), key=lambda it: natural_order(it[0]))
    )
    facts = {
        "simulated": simulated,
        "scenario": manifest.scenario,
        "experiment": manifest.experiment,
        "status": run.status,
        "seed": manifest.seed,
        "died": died or None,
    }
    told = tuple((name, value) for name, value in facts.items() if value is not None)
    return Instant(0, f"{manifest.scenario}: {run.status}", (RUN,), told)


def _step_arguments(row: StepRow, marks: Sequence[str]) -> Arguments:
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


class Death(NamedTuple):
    """The part on a lane died; ``elapsed_s`` in seconds of the loop. The reason may hold any text."""

    elapsed_s: float
    lane: str
    reason: str


def read_deaths(log: Path) -> list[Death]:
    """Return the deaths that a run's log tells of; none where there is no log. See ``RunRecorder.on_replaced``.

    The rows of a run say it of lanes with weights only, and give no reason.

    Raises:
        UserError: the log cannot be read.
    """
    if not os.path.lexists(log):
        return []
    text = read_checked(log, lambda content: content.decode(errors="replace"))
    found = [match for line in text.split("\n") if (match := _DEATH_LINE.fullmatch(line))]
    return [Death(float(match[1]), match[2], match[3]) for match in found]


def lane_tracks(run: Run, spans: Sequence[Span], windows: Sequence[StepWindow], loop_start_ns: int) -> list[Track]:
    """Return a track for each lane, in pipeline order: stages, waits, policy versions taken, deaths.

    A span belongs to the training step in whose window it ends, as in the run's statistics. Of a lane that the log does
    not name, a version of -1 stands for its death.
    """
    slices = _stage_slices(spans, windows, arrows(spans, run.setting("lag_control") != "drop"))
    deaths = read_deaths(run.folder / LOG)
    told = {death.lane for death in deaths}
    first_rank = {part_of(lane): lane for lane in reversed(in_pipeline_order(slices))}
    instants: dict[str, list[Instant]] = {}
    for change in run.version_changes:
        if change.version >= 0 or change.lane not in told:
            instants.setdefault(first_rank.get(change.lane, change.lane), []).append(_taken(change, loop_start_ns))
    for death in deaths:
        at_ns = loop_start_ns + round(death.elapsed_s * 1e9)
        instants.setdefault(death.lane, []).append(Instant(at_ns, DIED, (DEATH,), (("reason", death.reason),)))
    lanes = in_pipeline_order(slices.keys() | instants.keys())
    return [track for lane in lanes for track in stacked_tracks(lane, slices.get(lane, ()), instants.get(lane, ()))]


def _stage_slices(
    spans: Sequence[Span], windows: Sequence[StepWindow], arrows_at: Mapping[int, Sequence[Arrow]]
) -> dict[str, list[Slice]]:
    ends = [window.end_ns for window in windows]
    found: dict[str, list[Slice]] = {}
    for place, span in enumerate(spans):
        index = bisect_left(ends, span.end_ns)
        marks = windows[index].marks if index < len(windows) and span.stage is not Stage.STARTUP else ()
        kind = STARTUP if span.stage is Stage.STARTUP else WAIT if span.stage.is_wait else STAGE
        facts = tuple((name, value) for name, value in (("step", span.step), ("version", span.version)) if value >= 0)
        here = tuple(arrows_at.get(place, ()))
        item = Slice(span.start_ns, span.end_ns, span.stage.value, (kind, *marks), facts, here)
        found.setdefault(span.lane, []).append(item)
    return found


def _taken(change: VersionChange, loop_start_ns: int) -> Instant:
    at_ns = loop_start_ns + round(change.elapsed_s * 1e9)
    if change.version < 0:
        return Instant(at_ns, DIED, (DEATH,))
    return Instant(at_ns, f"version {change.version}", (VERSION,), (("version", change.version),))


def version_tracks(changes: Iterable[VersionChange], loop_start_ns: int) -> list[Track]:
    """Return a counter for each lane of the policy version that it holds, -1 for none; the lag is their distance."""
    held: dict[str, list[Sample]] = {}
    for elapsed_s, lane, version in changes:
        held.setdefault(lane, []).append(Sample(loop_start_ns + round(elapsed_s * 1e9), version))
    return [Track(f"{lane} holds", samples=held[lane], unit="version") for lane in in_pipeline_order(held)]


def metric_tracks(rows: Sequence[StepRow], windows: Sequence[StepWindow]) -> list[Track]:
    """Return a counter for each metric of the steps: its value stands from the step's begin to the next step's.

    A number that is not finite cannot be drawn; the step's slice names it.
    """
    found: dict[str, list[Sample]] = {}
    for row, window in zip(rows, windows, strict=True):
        for name, metric in _metrics(row).items():
            if math.isfinite(metric.value):
                found.setdefault(name, []).append(Sample(window.start_ns, metric.value))
    return [Track(name, samples=found[name], unit=metric_unit(name)) for name in sorted(found)]


def metric_unit(name: str) -> str:
    """Return a metric's unit by its name or the longest known beginning of it; empty for a plain number."""
    return max(((len(head), unit) for head, unit in _UNITS.items() if name.startswith(head)), default=(0, ""))[1]


def _metrics(row: StepRow) -> dict[str, Metric]:
    """Return the row's metrics; the lag also from runs that saved no more than its histogram."""
    found = {name: metric for name in row.metrics if (metric := row.metric(name)) is not None}
    rollouts = sum(row.lags.values())
    if rollouts:
        mean = sum(lag * number for lag, number in row.lags.items()) / rollouts
        found.setdefault("off_policy/mean", Metric(mean, count=rollouts))
        found.setdefault("off_policy/max", Metric(max(row.lags), "max", rollouts))
    return found


def resource_tracks(rows: Sequence[CounterRow]) -> list[Track]:
    """Return the counters of host, GPUs and processes by source, each after a track that says why any were not read.

    What counts up from an origin of its own is shown as its growth per second between two readings. What could not be
    read at all has no track.
    """
    tracks = []
    for source in sources(rows):
        own = [row for row in rows if row.source == source]
        if why := tuple(sorted(reasons(own, source).items())):
            tracks.append(Track(f"counters of {source}", instants=[Instant(own[0].at_ns, "not read", (MISSING,), why)]))
        names = dict.fromkeys(name for row in own for name in row.values)
        tracks += [track for name in names if (track := _counter_track(source, name, rows)).samples]
    return tracks


def _counter_track(source: str, name: str, rows: Sequence[CounterRow]) -> Track:
    parts = stretches(rows, source, name)
    known = (table[name].unit for table in (HOST_COUNTERS, GPU_COUNTERS, PROCESS_COUNTERS) if name in table)
    unit, title = next(known, ""), f"{source}: {name}"
    if not is_growing(name):
        return Track(title, samples=[Sample(*sample) for part in parts for sample in part], unit=unit)
    rates = [sample for part in parts for sample in _per_second(part)]
    return Track(f"{title} per second", samples=rates, unit=f"{unit}/s" if unit else "1/s")


def _per_second(part: Sequence[tuple[int, float]]) -> list[Sample]:
    """Return the growth from each reading to the next one; after the last one the value before it stays on show."""
    pairs = [(first, second) for first, second in pairwise(part) if second[0] > first[0]]
    return [Sample(at, (after - value) * 1e9 / (until - at)) for (at, value), (until, after) in pairs]
