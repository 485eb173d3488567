"""What a run's folder holds as tracks: training steps, processes, policy versions, metrics, counters of the machine.

Arrows say which span made the next one possible:

    rollouts    generate(step) -> score(step) -> update(step), for each batch or shard of one
    weights     update(step) -> weight_publish(version) -> weight_load(version) of a Generator -> the first span that
                samples with it; to the publish alone where nobody took the version

Spans carry step and version, no number of their own, so that a link is drawn only where these and the order of time
leave no doubt. Each span of an arrow begins after the one before it; what does not is left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.report.trace.chrome import Arguments, Arrow, Samples, Slice, Track
from harness.results import counters, in_pipeline_order
from harness.results.counters import CounterRow
from harness.results.frames import RunTable
from harness.results.occupancy import loop_window
from harness.results.rows import SPANS

Window = tuple[int, int, str]
"""Begin and end of a training step in nanoseconds; categories ``,warmup`` and ``,profiled`` where they hold."""
_LINKED = (Stage.GENERATE, Stage.SCORE, Stage.UPDATE, Stage.WEIGHT_PUBLISH)


def run_tracks(table: RunTable) -> list[Track]:
    """Return a run's tracks from top to bottom; none where it has neither spans nor training steps.

    Raises:
        UserError: a span ends before it begins.
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
    """Return a track for each process, in the order of the work: stages, waits, and deaths where it held weights.

    A span belongs to the training step in whose window it ends, as in the run's statistics.
    """
    slices, flags = defaultdict[str, list[Slice]](list), defaultdict[str, list[Slice]](list)
    ends, marks = [end_ns for _, end_ns, _ in windows], [*(marks for _, _, marks in windows), ""]
    arrows_at = arrows(spans, table.run.setting("lag_control") != "drop")
    for place, (lane, stage, start_ns, end_ns, step, version) in enumerate(spans):
        kind = "startup"
        if stage is not Stage.STARTUP:
            kind = ("wait" if stage.is_wait else "stage") + marks[bisect_left(ends, end_ns)]
        told = {name: number for name, number in (("step", step), ("version", version)) if number >= 0}
        slices[lane].append(Slice(start_ns, end_ns, stage.value, kind, told, arrows_at.get(place, ())))
    for elapsed_s, lane, version in table.version_changes:
        if version < 0:
            at_ns = loop_ns + _nanoseconds(elapsed_s)
            flags[lane].append(Slice(at_ns, at_ns, "died; replaced", "death"))
    return [Track(lane, slices[lane], flags[lane]) for lane in in_pipeline_order({*slices, *flags})]


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
        tracks.append(Track(name, samples=samples))
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


def arrows(spans: Sequence[Span], batches_stay_whole: bool) -> dict[int, list[Arrow]]:
    """Return the arrows at each span that has any, by the span's place in ``spans``; they are numbered from 1.

    Args:
        batches_stay_whole: whether the batch ordered for a step is what the step's update trains on. Where stale
            rollouts are dropped it is not, and no arrow leads from score to update.
    """
    at: dict[int, list[Arrow]] = defaultdict(list)
    for number, (name, chain) in enumerate(chains(spans, batches_stay_whole), start=1):
        for place in chain:
            phase = "s" if place == chain[0] else "f" if place == chain[-1] else "t"
            at[place].append((name, number, phase))
    return at


def chains(spans: Sequence[Span], batches_stay_whole: bool) -> Iterator[tuple[str, list[int]]]:
    """Yield the name of each arrow, and the places in ``spans`` that it goes through.

    Shards of one step are scored in the order in which their generation ends. Where a part died there may be more
    attempts than scores: the last ones count.
    """
    places: dict[tuple[Stage, int], list[int]] = defaultdict(list)
    loads: dict[int, dict[str, int]] = defaultdict(dict)
    first_uses: dict[tuple[str, int], int] = {}
    for place in sorted(range(len(spans)), key=lambda place: spans[place].start_ns):
        lane, stage, _, _, step, version = spans[place]
        if stage in _LINKED:
            places[stage, version if stage is Stage.WEIGHT_PUBLISH else step].append(place)
        if stage is Stage.WEIGHT_LOAD:
            loads[version].setdefault(lane, place)
        if stage in (Stage.GENERATE, Stage.EVALUATE):
            first_uses.setdefault((lane, version), place)

    linked: list[tuple[str, list[int]]] = []
    for (stage, number), found in places.items():
        if stage is Stage.SCORE:
            attempts = sorted(places.get((Stage.GENERATE, number), ()), key=lambda place: spans[place].end_ns)
            update = places.get((Stage.UPDATE, number), [])[:1] if batches_stay_whole else []
            pairs = zip(attempts[-len(found) :], found[-len(attempts) :], strict=False)
            linked += [("rollouts", [*pair, *update]) for pair in pairs]
        elif stage is Stage.WEIGHT_PUBLISH:
            start = [*places.get((Stage.UPDATE, number - 1), [])[:1], found[0]]
            taken = [[load, first_uses.get((lane, number), load)] for lane, load in loads.get(number, {}).items()]
            linked += [("weights", [*start, *end]) for end in taken or [[]]]
    for name, chain in linked:
        forward = chain[:1]
        for place in chain[1:]:
            if spans[place].start_ns > spans[forward[-1]].start_ns:
                forward.append(place)
        if len(forward) > 1:
            yield name, forward
