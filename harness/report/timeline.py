"""The timeline: what every lane did when, one run of each variant, on one common scale of seconds.

Shown is the run of the lowest seed, from a window of ``STEPS_SHOWN`` training steps that nobody picks by hand: the
first such window that starts after the first quarter of the run and in which no evaluation ended; where there is none,
the first one after the first quarter. It starts when the step before it ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.compare.attribution import loop_window
from harness.compare.numbers import number
from harness.core.intervals import Interval
from harness.core.trace import Span, Stage
from harness.report.data import Curves
from harness.report.style import label, line_key, patch_key, place_legend, stage_keys, stage_look
from harness.results import Run, StepRow, VersionChange, in_pipeline_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEPS_SHOWN = 6
MOST_VARIANTS = 8
LANE_INCHES, PANEL_INCHES = 0.34, 0.75  # the second is for a panel's title and margins
NARROWEST = 0.001  # of the axis: about one dot
SHARE_OF_A_NUMBER = 0.022  # of the axis: where versions follow each other faster, not every one is written out


@dataclass(frozen=True)
class Excerpt:
    """The part of a run that is shown.

    Attributes:
        window: (start, end) in nanoseconds since the run's origin.
        steps: the first and the last training step in it.
        changes: (lane, nanoseconds, policy version) of each change inside the window.
    """

    window: Interval
    steps: tuple[int, int]
    spans: tuple[Span, ...]
    changes: tuple[tuple[str, int, int], ...]

    @property
    def lanes(self) -> list[str]:
        """Lanes in the order of the work."""
        return in_pipeline_order({span.lane for span in self.spans})

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return (self.window[1] - self.window[0]) / 1e9

    @property
    def title(self) -> str:
        """Such as ``training steps 10 to 15``."""
        first, last = self.steps
        return f"training step {first}" if first == last else f"training steps {first} to {last}"

    def at(self, time_ns: int) -> float:
        """Return seconds since the window's start."""
        return (time_ns - self.window[0]) / 1e9


def choose_steps(rows: Sequence[StepRow]) -> Sequence[StepRow]:
    """Return the rows of the training steps to show, by the rule at the top of this file."""
    after_first_quarter = len(rows) // 4
    starts = range(after_first_quarter, max(after_first_quarter, len(rows) - STEPS_SHOWN) + 1)
    windows = [rows[start : start + STEPS_SHOWN] for start in starts]
    calm = [rows for rows in windows if not any(row.stages_s.get(Stage.EVALUATE.value) for row in rows)]
    return (calm or windows)[0]


def excerpt(run: Run) -> Excerpt | None:
    """Return the part of a run to show; None without spans or without a training step."""
    spans, rows = run.spans(), choose_steps(run.steps)
    if not spans or not rows:
        return None
    return excerpt_of(spans, rows, run.version_changes, loop_window(spans, None)[0])


def excerpt_of(
    spans: Sequence[Span], rows: Sequence[StepRow], changes: Sequence[VersionChange], origin_ns: int = 0
) -> Excerpt:
    """Return what happened in these training steps, at least one, which follow each other.

    Args:
        spans, changes: of the whole run.
        rows: of the steps.
        origin_ns: when the loop began, on the clock of the spans.
    """
    start_s, end_s = rows[0].elapsed_s - rows[0].wall_s, rows[-1].elapsed_s
    window = origin_ns + round(start_s * 1e9), origin_ns + round(end_s * 1e9)
    shown = [span for span in spans if span.start_ns < window[1] and span.end_ns > window[0]]
    placed = [(item.lane, origin_ns + round(item.elapsed_s * 1e9), item.version) for item in changes]
    inside = [change for change in placed if window[0] <= change[1] <= window[1]]
    return Excerpt(window, (rows[0].step, rows[-1].step), tuple(shown), tuple(inside))


def excerpts(curves: Curves) -> tuple[dict[str, Excerpt], int]:
    """Return the excerpts to show, by variant and of its first run, and how many variants have one."""
    found = {name: part for name, runs in curves.runs.items() if (part := excerpt(runs[0])) is not None}
    return dict(list(found.items())[:MOST_VARIANTS]), len(found)


def draw_timeline(curves: Curves) -> Figure | None:
    """Draw each variant's excerpt, one row for each lane; None where no run has spans."""
    shown, total = excerpts(curves)
    if not shown:
        return None
    more = f" (first {MOST_VARIANTS} of {total} variants)" if total > len(shown) else ""
    return draw_excerpts(shown, f"{label(curves.experiment.title)}: what each lane did when{more}")


def draw_excerpts(shown: Mapping[str, Excerpt], heading: str) -> Figure:
    """Draw excerpts, at least one, by name: one above the other, on one common scale of seconds."""
    figure, panels = _canvas([len(part.lanes) for part in shown.values()])
    longest = max(part.seconds for part in shown.values())
    for axes, (name, part) in zip(panels, shown.items(), strict=True):
        _draw_panel(axes, part, longest)
        axes.set_title(f"{label(name)}: {part.title} in {number(part.seconds)} s")
    panels[-1].set_xlabel("seconds since the first of these steps began")
    seen = {span.stage for part in shown.values() for span in part.spans}
    marked = any(part.changes for part in shown.values())
    marks = [line_key("policy version now held", marker="v", linewidth=0, markersize=5)] if marked else []
    blank = patch_key("no stage, no wait", {"color": "white", "edgecolor": "#A8A8A8", "linewidth": 0.8})
    place_legend(figure, [*stage_keys(stage for stage in Stage if stage in seen), blank, *marks])
    figure.suptitle(heading, x=0.01, ha="left", fontsize=13)
    return figure


def _canvas(lanes: Sequence[int]) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    height = 1.5 + sum(count * LANE_INCHES + PANEL_INCHES for count in lanes)
    figure = Figure(figsize=(14, height), layout="constrained")
    grid = figure.subplots(len(lanes), 1, squeeze=False, sharex=True, height_ratios=[count + 0.6 for count in lanes])
    return figure, [row[0] for row in grid]


def _draw_panel(axes: Axes, part: Excerpt, longest: float) -> None:
    for row, lane in enumerate(part.lanes):
        for stage, times in _by_stage(part, lane, NARROWEST * longest).items():
            axes.broken_barh(times, (row - 0.28, 0.56), zorder=depth(stage), **_bar_look(stage))
        _mark_versions(axes, part, lane, row, longest)
    axes.axvline(part.seconds, color="#777777", linewidth=1.0, linestyle=":")
    axes.set_yticks(range(len(part.lanes)), [label(lane) for lane in part.lanes])
    axes.set_ylim(len(part.lanes) - 0.55, -0.75)
    axes.set_xlim(0, longest * 1.01)
    axes.grid(visible=False, axis="y")


def _by_stage(part: Excerpt, lane: str, narrowest: float) -> dict[Stage, list[tuple[float, float]]]:
    """Return (start, length) in seconds of a lane's spans, cut to the window, by stage.

    Work that takes less than ``narrowest`` seconds gets that length, so that it can be seen.
    """
    low, high = part.window
    stages: dict[Stage, list[tuple[float, float]]] = {}
    for span in part.spans:
        if span.lane == lane:
            start_ns, end_ns = max(span.start_ns, low), min(span.end_ns, high)
            length = max((end_ns - start_ns) / 1e9, 0.0 if span.stage.is_wait else narrowest)
            stages.setdefault(span.stage, []).append((part.at(start_ns), length))
    return stages


def depth(stage: Stage) -> float:
    """Draw weight stages above the generation that they interrupt, and everything above the waits."""
    if stage.is_wait:
        return 1.0
    return 3.0 if stage.value.startswith("weight_") else 2.0


def _bar_look(stage: Stage) -> dict[str, Any]:
    names = {"color": "facecolor"}
    return {names.get(key, key): value for key, value in stage_look(stage).items()}


def _mark_versions(axes: Axes, part: Excerpt, lane: str, row: int, longest: float) -> None:
    """Mark each version change with a small triangle, and write the version beside it where there is room."""
    changes = [(part.at(time_ns), version) for name, time_ns, version in part.changes if name == lane]
    free_from = 0.0
    for second, version in changes:
        axes.plot(second, row - 0.36, "v", color="black", markersize=4, zorder=4, clip_on=False)
        if second >= free_from:
            text = "none" if version < 0 else str(version)
            axes.annotate(text, (second, row - 0.36), (4, 0), textcoords="offset points", va="center", fontsize=7.5)
            free_from = second + SHARE_OF_A_NUMBER * longest
