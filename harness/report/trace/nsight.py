"""Reports of Nsight Systems beside the spans of a run: the same stages on one clock, with what is in them.

A report has a clock of its own. Its ranges enclose our spans and carry stage and step, so the distance between the two
clocks is where most pairs of equal stage and step agree. It is constant while the run's clock runs; that clock stands
still while other arms have their turn, so there is one distance for each stretch between two pauses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter, itemgetter
from statistics import median

from harness.core.errors import UserError
from harness.core.intervals import Interval, both, total
from harness.core.trace import Span, Stage
from harness.probes.nsight_export import Activity, NsightExport, StageRange
from harness.report.document import Table
from harness.report.trace.chrome import Arguments, Slice, Track
from harness.results import Run, in_pipeline_order

AGREEMENTS_NS = (50_000, 2_000_000)
"""Distances that differ by less are one. First narrow, for two Generators may begin a step within a millisecond; then
wide for what is left, for a thread may lose the processor between the begins of a range and of its span."""
CLOCK_SLACK = timedelta(seconds=60)
"""How far outside of a run, by the machine's calendar time, its report may begin."""


@dataclass(frozen=True)
class MatchedReport:
    """A report whose ranges were recognised among the spans of a run.

    Attributes:
        pairs: (range, its span, what to add to the report's times to be on the run's clock), by the range's begin.
    """

    export: NsightExport
    pairs: tuple[tuple[StageRange, Span, int], ...]

    def at(self, report_ns: int) -> int:
        """Return a time of the report on the run's clock, by the last range that has begun (before all, the first)."""
        place = bisect_right(self.pairs, report_ns, key=lambda pair: pair[0].start_ns)
        return report_ns + self.pairs[max(place - 1, 0)][2]


def match_report(export: NsightExport, run: Run) -> MatchedReport:
    """Find the ranges of a report among the spans of the run.

    Raises:
        UserError: it was not recorded during the run, or less than half of its ranges have a span.
    """
    fix = f"name the run it was recorded in, not {run.folder}"
    if export.started_utc_ns is not None and run.manifest.finished_at is not None:
        # another day's run may look alike to the nanosecond's thousands, where it waits for fixed times
        begin = datetime.fromisoformat(run.manifest.started_at) - timedelta(seconds=run.manifest.startup_s or 0)
        end = datetime.fromisoformat(run.manifest.finished_at)
        at = datetime.fromtimestamp((export.started_utc_ns + export.ranges[0].start_ns) / 1e9, begin.tzinfo)
        if not begin - CLOCK_SLACK <= at <= end + CLOCK_SLACK:
            what = f"{str(export.path)!r} was recorded at {at:%Y-%m-%d %H:%M:%S}"
            bound = f"the run went from {begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} (UTC)"
            raise UserError(f"{what}; {bound}", str(export.path), fix)
    spans: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in run.spans():
        spans[span.stage, span.step].append(span)
    left, pairs = set(export.ranges), list[tuple[StageRange, Span, int]]()
    for width_ns in AGREEMENTS_NS:
        while agreeing := _largest_agreement(((item, span) for item in left for span in spans[item[2:4]]), width_ns):
            distance_ns = round(median(span.start_ns - item.start_ns for item, span in agreeing.items()))
            pairs += [(item, span, distance_ns) for item, span in agreeing.items()]
            left -= agreeing.keys()
    if 2 * len(pairs) < len(export.ranges):
        what = f"{len(pairs)} of {len(export.ranges)} NVTX ranges of {str(export.path)!r} are stages of this run"
        bound = "at least half of them must begin when a span of the same stage and step does"
        raise UserError(f"{what}; {bound}", str(export.path), fix)
    return MatchedReport(export, tuple(sorted(pairs, key=lambda pair: pair[0].start_ns)))


def _largest_agreement(pairs: Iterable[tuple[StageRange, Span]], width_ns: int) -> dict[StageRange, Span]:
    """Return pairs whose begins lie equally far apart but for the width: the most ranges there are, at least two."""
    by_distance = sorted(((span.start_ns - item.start_ns, item, span) for item, span in pairs), key=itemgetter(0))
    inside: Counter[StageRange] = Counter()  # a range may have several spans in the width, and counts once
    first, best, window = 0, 1, slice(0)
    for last, (distance, item, _) in enumerate(by_distance, start=1):
        inside[item] += 1
        while distance - by_distance[first][0] >= width_ns:
            gone = by_distance[first][1]
            first += 1
            inside[gone] -= 1
            if not inside[gone]:
                del inside[gone]
        if len(inside) > best:
            best, window = len(inside), slice(first, last)
    return {item: span for _, item, span in by_distance[window]}


def nsight_table(reports: Sequence[MatchedReport]) -> Table:
    """Return seconds by process and stage: of the NVTX ranges, of our spans, of what the report saw in the ranges."""
    header = ("process", "stage", "ranges", "NVTX", "spans", "OS calls", "kernels", "copies")
    notes = (
        *map(_note, reports),
        "Spans: those of the ranges. OS calls: time that the stage's own threads spent in them, waits among it.",
        "Kernels, copies: time within the stage in which a device did one for the process; -: none were traced.",
    )
    rows = tuple(row for report in reports for row in _rows(report))
    return Table("Nsight Systems: seconds in each stage of the capture", header, rows, notes, words=2)


def _note(report: MatchedReport) -> str:
    counts = f"{len(report.pairs)} of {len(report.export.ranges)} ranges are spans of the run"
    apart_us = [abs(span.start_ns - item.start_ns - distance_ns) / 1e3 for item, span, distance_ns in report.pairs]
    clocks = len({distance_ns for _, _, distance_ns in report.pairs})
    on = "one clock distance" if clocks == 1 else f"{clocks} clock distances"
    agree = f"begins agree to {median(apart_us):.1f} us in the middle and {max(apart_us):.1f} us at most, on {on}"
    return f"{report.export.path.name}: {counts}; {agree}."


def _rows(report: MatchedReport) -> Iterator[tuple[str, ...]]:
    export = report.export
    for lane in in_pipeline_order({span.lane for _, span, _ in report.pairs}):
        for stage in Stage:
            pairs = [pair[:2] for pair in report.pairs if pair[1].lane == lane and pair[1].stage is stage]
            if pairs:
                ranges, spans = zip(*pairs, strict=True)
                own = (_seconds(item[:2] for item in ranges), _seconds(span[2:4] for span in spans))
                busy = (_seconds_inside(ranges, kind) for kind in (export.os_calls, export.kernels, export.copies))
                yield (lane, stage.value, str(len(ranges)), *own, *busy)


def _seconds_inside(ranges: Sequence[StageRange], activities: Sequence[Activity] | None) -> str:
    """Return the time within the ranges in which one of their threads, or their process, was busy."""
    if activities is None:
        return "-"
    windows: dict[int, list[Interval]] = defaultdict(list)
    for item in ranges:
        for owner in (item.process, *item.threads):
            windows[owner].append(item[:2])
    busy: dict[int, list[Interval]] = {owner: [] for owner in windows}
    for one in activities:
        if one.owner in busy:
            busy[one.owner].append(one[:2])
    return _seconds(part for owner, times in windows.items() for part in both(times, busy[owner]))


def _seconds(intervals: Iterable[Interval]) -> str:
    return f"{total(intervals) / 1e9:.6f}"


def nsight_tracks(report: MatchedReport) -> list[Track]:
    """Return tracks on the run's clock: ranges, OS calls by thread, kernels and copies by stream."""
    export, tracks = report.export, dict[str, Track]()
    items: list[tuple[str, str, StageRange | Activity, str, Arguments]] = [
        ("NVTX ranges", "nvtx", item, item.stage, {"step": item.step}) for item, _, _ in report.pairs
    ]
    for kind, activities in (("OS calls", export.os_calls), ("kernels", export.kernels), ("copies", export.copies)):
        ordered = sorted(activities or (), key=attrgetter("place"))
        items += [(f"{kind}, {one.place}", kind, one, one.name, {}) for one in ordered]
    for name, kind, item, shown, arguments in items:
        start_ns = report.at(item.start_ns)  # what was under way when the run began is cut there
        times = max(start_ns, 0), start_ns + item.end_ns - item.start_ns
        track = tracks.setdefault(name, Track(f"Nsight Systems, {export.path.stem}: {name}"))
        track.slices.append(Slice(*times, shown, kind, arguments))
    return list(tracks.values())
