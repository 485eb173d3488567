"""What a run's folder holds as tracks: training steps, processes, policy versions, metrics, counters of the machine."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.report.trace.chrome import Arguments, Samples, Slice, Track
from harness.report.trace.flows import arrows
from harness.results import counters, in_pipeline_order
from harness.results.counters import CounterRow
from harness.results.frames import RunTable
from harness.results.jsonl import read_checked
from harness.results.occupancy import loop_window
from harness.results.rows import SPANS
from harness.results.writer import LOG

Window = tuple[int, int, str]
"""Begin and end of a training step in nanoseconds; categories ``,warmup`` and ``,profiled`` where they hold."""
_UNITS = {
    "GB/s": ("sync/bandwidth_gb_s",),
    "bytes": ("sync/bytes",),
    "tensors": ("sync/tensors",),
    "s": ("sync/",),
    "groups": ("replay/evicted_", "replay/size"),
    "nats": ("kl/", "token_entropy"),
    "tokens": ("response_length", "response_tokens", "trained_tokens", "off_policy/dropped_length"),
    "tokens/s": ("perf/throughput",),
    "rollouts": ("off_policy/dropped", "off_policy/in_flight", "off_policy/in_queue"),
    "versions": ("off_policy/", "replay/age_"),
}
"""Of metrics, by the beginnings of their names; the first that fits counts."""
_DEATH = re.compile(r"^\S+ (\d{1,9}\.\d+) s: (\S+) died \((.*)\); a new one takes its place$", re.MULTILINE)


def run_tracks(table: RunTable) -> list[Track]:
    """Return a run's tracks from top to bottom; none where it has neither spans nor training steps.

    Raises:
        UserError: a file is damaged, or a span ends before it begins.
    """
    run, spans = table.run, table.run.spans()
    for span in spans:
        if not 0 <= span.start_ns <= span.end_ns:
            what = f"a span {span.stage.value!r} of {span.lane!r} goes from {span.start_ns} to {span.end_ns} ns"
            bound = "it must begin at 0 or later and not end before that"
            raise UserError(f"{what}; {bound}", where=str(run.folder / SPANS), fix="leave this run out")
    if not spans and not len(table):
        return []
    loop_ns = loop_window(spans, None)[0] if spans else _nanoseconds(run.manifest.startup_s or 0.0)
    windows = step_windows(table, loop_ns)
    return [
        steps_track(table, windows, loop_ns),
        *_processes(table, spans, windows, loop_ns),
        *_versions(table, loop_ns),
        *metric_tracks(table, windows),
        *counter_tracks(counters.read_counters(run.folder)),
    ]


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def step_windows(table: RunTable, loop_ns: int) -> list[Window]:
    """Return the window of each training step; none overlaps the one before it by a rounding."""
    columns = (table.steps[name].tolist() for name in ("elapsed_s", "wall_s", "is_warmup", "is_profiled"))
    windows, before = list[Window](), loop_ns
    for elapsed_s, wall_s, is_warmup, is_profiled in zip(*columns, strict=True):
        start_ns = max(before, loop_ns + _nanoseconds(elapsed_s - wall_s))
        before = loop_ns + _nanoseconds(elapsed_s)
        windows.append((start_ns, before, ",warmup" * bool(is_warmup) + ",profiled" * bool(is_profiled)))
    return windows


def steps_track(table: RunTable, windows: Sequence[Window], loop_ns: int) -> Track:
    """Return the track of the training steps, with what the run was, its evaluations, and the time after its steps.

    A number that is not finite cannot be drawn as a counter: the step's slice names it.
    """
    run, about = table.run, table.run.manifest
    simulated = f"SIMULATED by the machine profile {about.simulated}" if about.simulated is not None else None
    facts = {"simulated": simulated, "scenario": about.scenario, "experiment": about.experiment, "seed": about.seed}
    told: Arguments = {name: fact for name, fact in facts.items() if fact is not None}
    track = Track("training steps", flags=[Slice(0, 0, f"{about.scenario}: {run.status}", "run", told)])
    not_finite: dict[int, list[str]] = defaultdict(list)
    for name, column in sorted(table.metrics.items()):
        for place in ((column.counts > 0) & ~column.is_finite).nonzero()[0].tolist():
            not_finite[place].append(f"{name} {column.values[place]}")
    for place, (start_ns, end_ns, marks) in enumerate(windows):
        step, version = int(table.steps["step"][place]), int(table.steps["version"][place])
        odd = {"not_finite": ", ".join(not_finite[place])} if place in not_finite else {}
        told, name = {"step": step, "version": version, **odd}, f"step {step}{marks.replace(',', ', ')}"
        track.slices.append(Slice(start_ns, end_ns, name, "step" + marks, told))
    last_ns = windows[-1][1] if windows else loop_ns
    if run.tail is not None and (end_ns := loop_ns + _nanoseconds(run.tail.elapsed_s)) > last_ns:
        track.slices.append(Slice(last_ns, end_ns, "after the last step", "step"))
    for place, elapsed_s in enumerate(table.evaluated["elapsed_s"].tolist()):
        version, at_ns = int(table.evaluated["version"][place]), loop_ns + _nanoseconds(elapsed_s)
        finite = {name: column.values for name, column in sorted(table.validation.items()) if column.is_finite[place]}
        told = {"version": version, **{name: float(values[place]) for name, values in finite.items()}}
        track.flags.append(Slice(at_ns, at_ns, f"evaluated version {version}", "evaluation", told))
    return track


def _processes(table: RunTable, spans: Sequence[Span], windows: Sequence[Window], loop_ns: int) -> list[Track]:
    """Return a track for each process, in the order of the work: its stages and waits, and its deaths.

    A span belongs to the training step in whose window it ends, as in the run's statistics.
    """
    slices, flags = defaultdict[str, list[Slice]](list), defaultdict[str, list[Slice]](list)
    kinds = {stage: "wait" if stage.is_wait else "stage" for stage in Stage} | {Stage.STARTUP: "startup"}
    ends, marks = [end_ns for _, end_ns, _ in windows], [*(marks for _, _, marks in windows), ""]
    arrows_at = arrows(spans, table.run.setting("lag_control") != "drop")
    for place, (lane, stage, start_ns, end_ns, step, version) in enumerate(spans):
        kind = kinds[stage] + ("" if stage is Stage.STARTUP else marks[bisect_left(ends, end_ns)])
        told = {name: number for name, number in (("step", step), ("version", version)) if number >= 0}
        slices[lane].append(Slice(start_ns, end_ns, stage.value, kind, told, arrows_at.get(place, ())))
    for elapsed_s, lane, reason in _deaths(table):
        at_ns = loop_ns + _nanoseconds(elapsed_s)
        flags[lane].append(Slice(at_ns, at_ns, "died; replaced", "death", reason))
    return [Track(lane, slices[lane], flags[lane]) for lane in in_pipeline_order({*slices, *flags})]


def _deaths(table: RunTable) -> list[tuple[float, str, Arguments]]:
    """Return (seconds of the loop, process, reason) of each death that the log tells of.

    The rows of a run tell of processes with weights only, by a version of -1, and give no reason: they count where the
    log does not name the process.

    Raises:
        UserError: the log cannot be read.
    """
    log = table.run.folder / LOG
    text = read_checked(log, lambda content: content.decode(errors="replace")) if os.path.lexists(log) else ""
    deaths: list[tuple[float, str, Arguments]] = [
        (float(at_s), lane, {"reason": reason}) for at_s, lane, reason in _DEATH.findall(text)
    ]
    named = {lane for _, lane, _ in deaths}
    unnamed = (change for change in table.version_changes if change.version < 0 and change.lane not in named)
    return [*deaths, *((change.elapsed_s, change.lane, {}) for change in unnamed)]


def _versions(table: RunTable, loop_ns: int) -> list[Track]:
    """Return a counter for each process of the policy version that it holds, -1 for none: the lag is their distance."""
    held: dict[str, Samples] = defaultdict(list)
    for elapsed_s, lane, version in table.version_changes:
        held[lane].append((loop_ns + _nanoseconds(elapsed_s), version))
    return [Track(f"{lane} holds", samples=held[lane], unit="version") for lane in in_pipeline_order(held)]


def metric_tracks(table: RunTable, windows: Sequence[Window]) -> list[Track]:
    """Return a counter for each metric of the steps: its value stands from the step's begin to the next step's."""
    tracks = []
    for name, column in sorted(table.metrics.items()):
        pairs = zip(windows, column.values.tolist(), column.is_finite, strict=True)
        samples = [(start_ns, value) for (start_ns, _, _), value, is_finite in pairs if is_finite]
        unit = next((unit for unit, heads in _UNITS.items() if name.startswith(heads)), "")
        tracks.append(Track(name, samples=samples, unit=unit))
    return [track for track in tracks if track.samples]


def counter_tracks(rows: Sequence[CounterRow]) -> list[Track]:
    """Return the counters of host, GPUs and processes by source, each after a track that says why any were not read.

    What counts up from an origin of its own is shown as its growth per second from each reading to the next one. What
    could not be read at all has no track.
    """
    tracks = list[Track]()
    known = counters.HOST_COUNTERS | counters.GPU_COUNTERS | counters.PROCESS_COUNTERS
    for source in counters.sources(rows):
        own = [row for row in rows if row.source == source]
        if why := dict(sorted(counters.reasons(own, source).items())):
            flag = Slice(own[0].at_ns, own[0].at_ns, "not read", "missing", why)
            tracks.append(Track(f"counters of {source}", flags=[flag]))
        for name in dict.fromkeys(name for row in own for name in row.values):
            unit, _, grows = known.get(name, ("", "", False))
            parts, title = counters.stretches(rows, source, name), f"{source}: {name}"
            if grows:
                parts, unit, title = list(map(_per_second, parts)), f"{unit or 1}/s", f"{title} per second"
            tracks.append(Track(title, samples=[sample for part in parts for sample in part], unit=unit))
    return [track for track in tracks if track.samples or track.flags]


def _per_second(part: Samples) -> Samples:
    pairs = pairwise(part)
    return [(at, (after - value) * 1e9 / (until - at)) for (at, value), (until, after) in pairs if until > at]
