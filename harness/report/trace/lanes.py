"""The tracks of a run's lanes: stages and waits as slices, arrows between them, policy versions taken."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from harness.compare.attribution import in_pipeline_order
from harness.core.trace import Span, Stage
from harness.report.trace.deaths import Death
from harness.report.trace.events import Arguments, Instant, Sample, Slice, Track
from harness.report.trace.flows import Ends, arrows
from harness.report.trace.nesting import without_crossings
from harness.report.trace.steps import StepWindow
from harness.results import VersionChange

STAGE, WAIT, STARTUP, VERSION, DEATH = "stage", "wait", "startup", "version", "death"
DIED = "died; replaced"
_NO_ARROWS = Ends()


def lane_tracks(
    spans: Sequence[Span],
    windows: Sequence[StepWindow],
    changes: Iterable[VersionChange],
    deaths: Sequence[Death],
    loop_start_ns: int,
    batches_stay_whole: bool,
) -> list[Track]:
    """Return a track for each lane, in pipeline order.

    Args:
        windows: of the training steps; a span belongs to the one in which it ends, as in the run's statistics.
        changes: the policy versions taken, in seconds of the loop.
        deaths: as the log tells of them; of a lane that it does not name, a version of -1 stands for its death.
        batches_stay_whole: see ``arrows``.
    """
    slices = _slices(spans, windows, arrows(spans, batches_stay_whole))
    told = {death.lane for death in deaths}
    instants: dict[str, list[Instant]] = {}
    for change in changes:
        if change.version >= 0 or change.lane not in told:
            instants.setdefault(change.lane, []).append(_taken(change, loop_start_ns))
    for death in deaths:
        at_ns = loop_start_ns + round(death.elapsed_s * 1e9)
        instants.setdefault(death.lane, []).append(Instant(at_ns, DIED, (DEATH,), (("reason", death.reason),)))
    lanes = in_pipeline_order(slices.keys() | instants.keys())
    return [stacked_track(lane, slices.get(lane, ()), instants.get(lane, ())) for lane in lanes]


def version_tracks(changes: Iterable[VersionChange], loop_start_ns: int) -> list[Track]:
    """Return a counter for each lane of the policy version that it holds, -1 for none; the lag is their distance."""
    held: dict[str, list[Sample]] = {}
    for elapsed_s, lane, version in changes:
        held.setdefault(lane, []).append(Sample(loop_start_ns + round(elapsed_s * 1e9), version))
    return [Track(f"{lane} holds", samples=held[lane], unit="version") for lane in in_pipeline_order(held)]


def stacked_track(name: str, slices: Iterable[Slice], instants: Iterable[Instant] = ()) -> Track:
    """Return a track; what crosses other slices stands on tracks below it."""
    first, *others = without_crossings(slices) or [[]]
    track = Track(name, slices=first, instants=list(instants))
    names = [f"{name}, crossing{f' {number}' if number > 1 else ''}" for number in range(1, len(others) + 1)]
    track.children = [Track(below, slices=row) for below, row in zip(names, others, strict=True)]
    return track


def _slices(
    spans: Sequence[Span], windows: Sequence[StepWindow], arrows_at: Mapping[int, Ends]
) -> dict[str, list[Slice]]:
    ends = [window.end_ns for window in windows]
    found: dict[str, list[Slice]] = {}
    for place, span in enumerate(spans):
        index = bisect_left(ends, span.end_ns)
        marks = windows[index].marks if index < len(windows) and span.stage is not Stage.STARTUP else ()
        here = arrows_at.get(place, _NO_ARROWS)
        categories = (_category(span.stage), *marks)
        item = Slice(span.start_ns, span.end_ns, span.stage.value, categories, _arguments(span))
        found.setdefault(span.lane, []).append(item._replace(flows=tuple(here.flows), last_of=tuple(here.last_of)))
    return found


def _category(stage: Stage) -> str:
    if stage is Stage.STARTUP:
        return STARTUP
    return WAIT if stage.is_wait else STAGE


def _arguments(span: Span) -> Arguments:
    return tuple((name, value) for name, value in (("step", span.step), ("version", span.version)) if value >= 0)


def _taken(change: VersionChange, loop_start_ns: int) -> Instant:
    at_ns = loop_start_ns + round(change.elapsed_s * 1e9)
    if change.version < 0:
        return Instant(at_ns, DIED, (DEATH,))
    return Instant(at_ns, f"version {change.version}", (VERSION,), (("version", change.version),))
