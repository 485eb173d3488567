"""Pictures of bars: the time of a training step by stage and by lane, a weight sync by part, the lag of rollouts.

All bars of time show means: seconds of the measured window, evaluations included, over its training steps. Means add
up; medians do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from harness.compare.experiments import Experiment, Variant
from harness.compare.numbers import number, percent
from harness.compare.step_times import mark
from harness.core.trace import Stage
from harness.report.data import (
    SYNC_STAGES,
    Curves,
    SyncParts,
    lags_by_variant,
    mean_lag,
    stage_seconds,
    sync_parts,
    wall_s,
)
from harness.report.style import (
    UNATTRIBUTED,
    folded,
    label,
    line_key,
    patch_key,
    place_legend,
    stage_keys,
    stage_look,
    variant_label,
)
from harness.results import in_pipeline_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


BAR_HEIGHT = 0.74
NAME_WIDTH, TITLE_WIDTH = 36, 56  # characters of a line
AXIS_LABEL = "seconds per training step (mean over the measured steps, evaluations included)"


def draw_stages(experiment: Experiment) -> Figure | None:
    """Draw one bar for each variant, its stages stacked; None where no run finished a step."""
    variants = [variant for variant in experiment.variants if any(run.steps for run in variant.runs)]
    if not variants:
        return None
    figure, axes = _canvas(len(variants), 0.5)
    for row, variant in enumerate(variants):
        wall = fmean(wall_s(variant))
        end = _stack(axes, row, stage_seconds(variant))
        axes.plot([wall, wall], [row - 0.44, row + 0.44], color="black", linewidth=2)
        axes.annotate(
            f"{number(wall)} s{mark(variant)}", (max(end, wall), row), (6, 0), textcoords="offset points", va="center"
        )
    _finish(axes, range(len(variants)), [variant_label(variant) for variant in variants])
    axes.set_title(folded(f"{label(experiment.title)}: time of a training step by stage", TITLE_WIDTH))
    stages = [stage for stage in Stage if any(stage in stage_seconds(variant) for variant in variants)]
    place_legend(figure, [*stage_keys(stages), line_key("wall-clock")])
    return figure


def draw_lanes(experiment: Experiment) -> Figure | None:
    """Draw one bar for each lane of each variant: stages, waits and the rest; None without spans."""
    bars = [(variant, lane) for variant in experiment.variants for lane in _lanes(variant)]
    if not bars:
        return None
    figure, axes = _canvas(len(bars), 0.36)
    places, seen = _grouped([variant.name for variant, _ in bars]), set[Stage]()
    for place, (variant, lane) in zip(places, bars, strict=True):
        parts, unattributed = _lane_seconds(variant, lane)
        axes.barh(place, unattributed, BAR_HEIGHT, _stack(axes, place, parts), **UNATTRIBUTED)
        seen |= set(parts)
    _finish(axes, places, _lane_names(bars))
    axes.set_title(folded(f"{label(experiment.title)}: time of a training step by lane", TITLE_WIDTH))
    place_legend(
        figure, [*stage_keys(stage for stage in Stage if stage in seen), patch_key("no stage, no wait", UNATTRIBUTED)]
    )
    return figure


def _canvas(bars: int, inches_per_bar: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.9 + max(2, bars) * inches_per_bar), layout="constrained")
    return figure, figure.add_subplot()


def _stack(axes: Axes, place: float, parts: dict[Stage, float]) -> float:
    """Draw one bar from its parts, waits last; return where it ends."""
    end = 0.0
    for stage in sorted(parts, key=lambda stage: (stage.is_wait, list(Stage).index(stage))):
        axes.barh(place, parts[stage], BAR_HEIGHT, end, **stage_look(stage))
        end += parts[stage]
    return end


def _finish(axes: Axes, places: Iterable[float], names: Sequence[str]) -> None:
    places = list(places)
    axes.set_yticks(places, [folded(name, NAME_WIDTH) for name in names])
    axes.set_ylim(places[-1] + 0.75, places[0] - 0.75)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(AXIS_LABEL)
    axes.set_xlim(0, axes.dataLim.x1 * 1.12)


def _lanes(variant: Variant) -> list[str]:
    return in_pipeline_order({lane for run in variant.runs if run.steps for lane in run.lanes})


def _lane_names(bars: Sequence[tuple[Variant, str]]) -> list[str]:
    """Name each bar; a variant's name stands with its first lane only."""
    named: list[str] = []
    before = None
    for variant, lane in bars:
        named.append(label(lane) if variant is before else f"{variant_label(variant)}   {label(lane)}")
        before = variant
    return named


def _lane_seconds(variant: Variant, lane: str) -> tuple[dict[Stage, float], float]:
    """Return mean seconds per step of each stage and wait of a lane, and in neither."""
    pairs = [(run.lanes[lane], run.measured_steps) for run in variant.runs if run.steps and lane in run.lanes]
    stages = [stage for stage in Stage if any(stage in account.stages_ns for account, _ in pairs)]
    parts = {
        stage: fmean([account.stages_ns.get(stage, 0) / 1e9 / steps for account, steps in pairs]) for stage in stages
    }
    return parts, fmean([account.unattributed_ns / 1e9 / steps for account, steps in pairs])


def _grouped(names: Sequence[str]) -> list[float]:
    """Return the bars' places, with a gap where the name changes."""
    places = [0.0]
    for before, after in pairwise(names):
        places.append(places[-1] + (1.0 if before == after else 1.6))
    return places


SYNC_LABEL = "milliseconds per sync (mean of each part over the measured training steps)"


def draw_sync(experiment: Experiment) -> Figure | None:
    """Draw publish, transfer, load and verify of each variant, stacked; None where no weights left the process."""
    found = [(variant, parts) for variant in experiment.variants if (parts := sync_parts(variant)) is not None]
    if not found:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.9 + max(2, len(found)) * 0.55), layout="constrained")
    axes = figure.add_subplot()
    for row, (_, sync) in enumerate(found):
        _draw_sync(axes, row, sync)
    axes.set_yticks(range(len(found)), [folded(_sync_name(variant, sync), NAME_WIDTH) for variant, sync in found])
    axes.set_ylim(len(found) - 0.25, -0.75)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(SYNC_LABEL)
    axes.set_xlim(0, axes.dataLim.x1 * 1.45)
    axes.set_title(folded(f"{label(experiment.title)}: what a weight sync is made of", TITLE_WIDTH))
    seen = [stage for stage in SYNC_STAGES.values() if any(stage in sync.parts_ms for _, sync in found)]
    whisker = line_key("publish to loaded,\np10 to p90", linewidth=1.5)
    place_legend(figure, [*stage_keys(seen), whisker])
    return figure


def _draw_sync(axes: Axes, row: int, sync: SyncParts) -> None:
    end = 0.0
    for stage, milliseconds in sync.parts_ms.items():
        axes.barh(row, milliseconds, 0.62, end, **stage_look(stage))
        end += milliseconds
    if sync.whole_ms is None:
        return
    low, mean, high = sync.whole_ms
    axes.plot([low, high], [row, row], color="black", linewidth=1.5, marker="|", markersize=8)
    text = f"{number(mean)} ms, {number(sync.num_bytes / mean / 1e6)} GB/s"
    axes.annotate(text, (max(end, high), row), (6, 0), textcoords="offset points", va="center")


def _sync_name(variant: Variant, sync: SyncParts) -> str:
    transport = "" if sync.transport is None else f"{label(sync.transport)}, "
    return f"{variant_label(variant)}\n{transport}{number(sync.num_bytes / 1e6)} MB"


LAG_COLOUR = "#0072B2"


def draw_lag(curves: Curves) -> Figure | None:
    """Draw a histogram for each variant, as shares of the rollouts it trained on; None where no rollout lagged."""
    lags = lags_by_variant(curves)
    if not lags:
        return None
    highest = max(lag for found in lags.values() for lag in found)
    figure, panels = _lag_canvas(len(lags))
    names = {variant.name: variant_label(variant) for variant in curves.experiment.variants}
    for axes, (name, found) in zip(panels, lags.items(), strict=True):
        _draw_lags(axes, found, highest)
        axes.set_title(f"{names[name]}: mean {number(mean_lag(found))}")
    panels[-1].set_xlabel("lag of a trained rollout, in policy versions (that of its oldest token)")
    figure.supylabel("share of trained rollouts", fontsize=11)
    heading = f"{label(curves.experiment.title)}: how old the trained rollouts were"
    figure.suptitle(heading, x=0.01, ha="left", fontsize=13)
    return figure


def _lag_canvas(panels: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.4 + 1.35 * panels), layout="constrained")
    grid = figure.subplots(panels, 1, squeeze=False, sharex=True, sharey=True)
    return figure, [row[0] for row in grid]


def _draw_lags(axes: Axes, lags: Counter[int], highest: int) -> None:
    total = lags.total()
    for lag, rollouts in sorted(lags.items()):
        axes.bar(lag, rollouts / total, 0.8, color=LAG_COLOUR, linewidth=0.0)
        axes.annotate(
            percent(rollouts / total), (lag, rollouts / total), (0, 2), textcoords="offset points", ha="center",
            fontsize=8 if highest <= 12 else 6,
        )  # fmt: skip
    axes.set_xlim(-0.6, highest + 0.6)
    axes.set_ylim(0.0, 1.25)
    axes.set_yticks([0.0, 0.5, 1.0], ["0%", "50%", "100%"])
    axes.locator_params(axis="x", integer=True)
    axes.grid(visible=False, axis="x")
