"""Reports of Nsight Systems beside the spans of a run: the same stages found again, on one clock, with what is in them.

A report has a clock of its own. Its ranges enclose our spans and carry stage and step, so the distance between the two
clocks is where most pairs of equal stage and step agree. It is constant while the run's clock runs; that clock stands
still while other arms have their turn, so there is one distance for each stretch between two pauses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter, itemgetter
from statistics import median

from harness.core.errors import UserError
from harness.core.intervals import Interval, both, merge, total
from harness.core.trace import Span, Stage
from harness.probes.nsight_export import Activity, NsightExport, StageRange
from harness.report.document import Table
from harness.report.trace.chrome import Arguments, Slice, Track, stacked_tracks
from harness.results import Run, in_pipeline_order

NVTX = "nvtx"
AGREEMENTS_NS = (50_000, 2_000_000)
"""Distances that differ by less are one. First narrow, for two Generators may begin a step within a millisecond; then
wide for what is left, for a thread may lose the processor between the begins of a range and of its span."""
CLOCK_SLACK = timedelta(seconds=60)
"""How far outside of a run, by the machine's calendar time, its report may begin."""


@dataclass(frozen=True)
class MatchedReport:
    """A report whose ranges were found again among the spans of a run.

    Attributes:
        pairs: each range that has a span, in the order of their begin.
        distances_ns: for each pair, what to add to the report's times to be on the run's clock.
        residuals_ns: for each pair, by how much its begins differ beyond that, at least 0.
    """

    export: NsightExport
    pairs: tuple[tuple[StageRange, Span], ...]
    distances_ns: tuple[int, ...]
    residuals_ns: tuple[int, ...]

    def at(self, report_ns: int) -> int:
        """Return a time of the report on the run's clock, by the last range that has begun (before all, the first)."""
        place = bisect_right(self.pairs, report_ns, key=lambda pair: pair[0].start_ns)
        return report_ns + self.distances_ns[max(place - 1, 0)]


def match_report(export: NsightExport, run: Run) -> MatchedReport:
    """Find the ranges of a report among the spans of the run.

    Raises:
        UserError: it was not recorded during the run, or less than half of its ranges have a span.
    """
    _check_calendar(export, run)
    spans: dict[tuple[str, int], list[Span]] = {}
    for span in run.spans():
        spans.setdefault((span.stage, span.step), []).append(span)
    left = set(export.ranges)
    found: list[tuple[StageRange, Span, int]] = []
    for width_ns in AGREEMENTS_NS:
        while agreeing := _largest_agreement(((i, span) for i in left for span in spans.get(i[2:4], ())), width_ns):
            distance = round(median(span.start_ns - item.start_ns for item, span in agreeing.items()))
            found += [(item, span, distance) for item, span in agreeing.items()]
            left -= agreeing.keys()
    if 2 * len(found) < len(export.ranges):
        what = f"{len(found)} of {len(export.ranges)} NVTX ranges of {str(export.path)!r} are stages of this run"
        bound = "at least half of them must begin when a span of the same stage and step does"
        raise UserError(f"{what}; {bound}", str(export.path), f"name the run it was recorded in, not {run.folder}")
    found.sort(key=lambda match: match[0].start_ns)
    return MatchedReport(
        export=export,
        pairs=tuple((item, span) for item, span, _ in found),
        distances_ns=tuple(distance for _, _, distance in found),
        residuals_ns=tuple(abs(span.start_ns - item.start_ns - distance) for item, span, distance in found),
    )


def _check_calendar(export: NsightExport, run: Run) -> None:
    """Refuse a report of another day: runs that wait for fixed times look alike to the nanosecond's thousands."""
    if export.started_utc_ns is None or run.manifest.finished_at is None:
        return
    begin = datetime.fromisoformat(run.manifest.started_at) - timedelta(seconds=run.manifest.startup_s or 0)
    end = datetime.fromisoformat(run.manifest.finished_at)
    at = datetime.fromtimestamp((export.started_utc_ns + export.ranges[0].start_ns) / 1e9, begin.tzinfo)
    if not begin - CLOCK_SLACK <= at <= end + CLOCK_SLACK:
        what = f"{str(export.path)!r} was recorded at {at:%Y-%m-%d %H:%M:%S}"
        bound = f"the run went from {begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} (UTC)"
        raise UserError(f"{what}; {bound}", str(export.path), f"name the run it was recorded in, not {run.folder}")


def _largest_agreement(pairs: Iterable[tuple[StageRange, Span]], width_ns: int) -> dict[StageRange, Span]:
    """Return pairs whose begins lie equally far apart but for the width: the most ranges there are, at least two."""
    by_distance = sorted(((span.start_ns - item.start_ns, item, span) for item, span in pairs), key=itemgetter(0))
    inside: Counter[StageRange] = Counter()
    first, best, window = 0, 1, slice(0)
    for last, (distance, item, _) in enumerate(by_distance, start=1):
        inside[item] += 1
        while distance - by_distance[first][0] >= width_ns:
            gone = by_distance[first][1]
            inside[gone] -= 1
            if not inside[gone]:
                del inside[gone]
            first += 1
        if len(inside) > best:
            best, window = len(inside), slice(first, last)
    return {item: span for _, item, span in by_distance[window]}


_MEANINGS = (
    "Spans: those of the ranges found. OS calls: time that the stage's own threads spent in them, waits among it.",
    "Kernels, copies: time within the stage in which a device did one for the process; -: none were traced.",
)


def nsight_table(reports: Sequence[MatchedReport]) -> Table:
    """Return seconds by lane and stage: of the NVTX ranges, of our spans, and of what the report saw in the ranges."""
    rows = [row for report in reports for row in _rows(report)]
    notes = [_note(report) for report in reports]
    header = ("lane", "stage", "ranges", "NVTX", "spans", "OS calls", "kernels", "copies")
    return Table(
        "Nsight Systems: seconds in each stage of the capture", header, tuple(rows), (*notes, *_MEANINGS), words=2
    )


def _rows(report: MatchedReport) -> Iterator[tuple[str, ...]]:
    pairs: dict[tuple[str, Stage], list[tuple[StageRange, Span]]] = {}
    for item, span in report.pairs:
        pairs.setdefault((span.lane, span.stage), []).append((item, span))
    export = report.export
    busy = [_by_owner(activities) for activities in (export.os_calls, export.kernels, export.copies)]
    for lane in in_pipeline_order({lane for lane, _ in pairs}):
        for stage in [stage for stage in Stage if (lane, stage) in pairs]:
            ranges, spans = zip(*pairs[lane, stage], strict=True)
            own = (total(item[:2] for item in ranges), total(span[2:4] for span in spans))
            cells = [
                *map(_seconds, own),
                *(_seconds(_inside(ranges, kind)) if kind is not None else "-" for kind in busy),
            ]
            yield (lane, stage.value, str(len(ranges)), *cells)


def _by_owner(activities: Iterable[Activity] | None) -> dict[int, list[Interval]] | None:
    """Return when each thread or process had one; None where none were traced."""
    if activities is None:
        return None
    found: dict[int, list[Interval]] = {}
    for one in activities:
        found.setdefault(one.owner, []).append((one.start_ns, one.end_ns))
    return {owner: merge(times) for owner, times in found.items()}


def _inside(ranges: Iterable[StageRange], busy: Mapping[int, list[Interval]]) -> int:
    """Return nanoseconds within the ranges in which one of their threads, or their process, was busy."""
    windows: dict[int, list[Interval]] = {}
    for item in ranges:
        for owner in (item.process, *item.threads):
            windows.setdefault(owner, []).append((item.start_ns, item.end_ns))
    return total(part for owner, times in windows.items() for part in both(times, busy.get(owner, ())))


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.6f}"


def _note(report: MatchedReport) -> str:
    ranges, pairs = len(report.export.ranges), len(report.pairs)
    stretches = len(set(report.distances_ns))
    middle, largest = median(report.residuals_ns) / 1e3, max(report.residuals_ns) / 1e3
    on = "one clock distance" if stretches == 1 else f"{stretches} clock distances"
    agree = f"begins agree to {middle:.1f} us in the middle and {largest:.1f} us at most, on {on}"
    return f"{report.export.path.name}: {pairs} of {ranges} ranges found among the spans; {agree}."


def nsight_tracks(report: MatchedReport) -> list[Track]:
    """Return tracks on the run's clock: ranges, OS calls by thread, kernels and copies by stream."""
    title, export = f"Nsight Systems, {report.export.path.stem}", report.export
    rows = {"NVTX ranges": [_slice(report, item, item.stage, NVTX, (("step", item.step),)) for item, _ in report.pairs]}
    for kind, activities in (("OS calls", export.os_calls), ("kernels", export.kernels), ("copies", export.copies)):
        for one in sorted(activities or (), key=attrgetter("place")):
            rows.setdefault(f"{kind}, {one.place}", []).append(_slice(report, one, one.name, kind))
    return [track for name, slices in rows.items() for track in stacked_tracks(f"{title}: {name}", slices)]


def _slice(
    report: MatchedReport, item: StageRange | Activity, name: str, kind: str, arguments: Arguments = ()
) -> Slice:
    """Return it on the run's clock, in its own length; what was under way when the run began is cut there."""
    start_ns = report.at(item.start_ns)
    return Slice(max(start_ns, 0), start_ns + item.end_ns - item.start_ns, name, (kind,), arguments)
