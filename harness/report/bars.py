"""Bars: where the time of a training step goes, by stage and by lane.

All bars show means: seconds of the whole loop, evaluation included, over the number of training steps. Means add up;
medians do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from harness.compare.attribution import in_pipeline_order
from harness.compare.experiments import Experiment, Variant
from harness.compare.numbers import number
from harness.core.trace import Stage
from harness.report.legend import line_key, patch_key, place_legend, stage_keys, stage_look
from harness.report.style import UNATTRIBUTED, label, variant_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR_HEIGHT = 0.74
AXIS_LABEL = "seconds per training step (mean over the loop, evaluation included)"
Parts = dict[Stage, float]


def draw_stages(experiment: Experiment) -> Figure | None:
    """Draw one bar for each variant, its stages stacked; None where no run finished a step."""
    variants = [variant for variant in experiment.variants if any(run.steps for run in variant.runs)]
    if not variants:
        return None
    figure, axes = _canvas(len(variants), 0.5)
    for row, variant in enumerate(variants):
        wall = _mean([run.loop_s / run.steps for run in variant.runs if run.steps])
        end = _stack(axes, row, _stage_seconds(variant))
        axes.plot([wall, wall], [row - 0.44, row + 0.44], color="black", linewidth=2)
        axes.annotate(f"{number(wall)} s", (max(end, wall), row), (6, 0), textcoords="offset points", va="center")
    _finish(axes, range(len(variants)), [variant_label(variant) for variant in variants])
    axes.set_title(f"{label(experiment.title)}: time of a training step by stage")
    stages = [stage for stage in Stage if any(stage in _stage_seconds(variant) for variant in variants)]
    place_legend(figure, [*stage_keys(stages), line_key("wall-clock")])
    return figure


def draw_lanes(experiment: Experiment) -> Figure | None:
    """Draw one bar for each lane of each variant: stages, waits and time under no span; None without spans."""
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
    axes.set_title(f"{label(experiment.title)}: time of a training step by lane")
    place_legend(
        figure, [*stage_keys(stage for stage in Stage if stage in seen), patch_key("under no span", UNATTRIBUTED)]
    )
    return figure


def _canvas(bars: int, inches_per_bar: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.9 + max(2, bars) * inches_per_bar), layout="constrained")
    return figure, figure.add_subplot()


def _stack(axes: Axes, place: float, parts: Parts) -> float:
    """Draw one bar from its parts, waits last; return where it ends."""
    end = 0.0
    for stage in sorted(parts, key=lambda stage: (stage.is_wait, list(Stage).index(stage))):
        axes.barh(place, parts[stage], BAR_HEIGHT, end, **stage_look(stage))
        end += parts[stage]
    return end


def _finish(axes: Axes, places: Iterable[float], names: Sequence[str]) -> None:
    places = list(places)
    axes.set_yticks(places, names)
    axes.set_ylim(places[-1] + 0.75, places[0] - 0.75)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(AXIS_LABEL)
    axes.set_xlim(0, axes.dataLim.x1 * 1.12)


def _stage_seconds(variant: Variant) -> Parts:
    runs = [run for run in variant.runs if run.steps]
    stages = [stage for stage in Stage if not stage.is_wait and any(stage in run.stages for run in runs)]
    return {
        stage: _mean([run.stages[stage].total_s / run.steps if stage in run.stages else 0.0 for run in runs])
        for stage in stages
    }


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


def _lane_seconds(variant: Variant, lane: str) -> tuple[Parts, float]:
    """Return mean seconds per step of each stage and wait of a lane, and under no span."""
    pairs = [(run.lanes[lane], run.steps) for run in variant.runs if run.steps and lane in run.lanes]
    stages = [stage for stage in Stage if any(stage in account.stages_ns for account, _ in pairs)]
    parts = {
        stage: _mean([account.stages_ns.get(stage, 0) / 1e9 / steps for account, steps in pairs]) for stage in stages
    }
    return parts, _mean([account.unattributed_ns / 1e9 / steps for account, steps in pairs])


def _grouped(names: Sequence[str]) -> list[float]:
    """Return the bars' places, with a gap where the name changes."""
    places = [0.0]
    for before, after in pairwise(names):
        places.append(places[-1] + (1.0 if before == after else 1.6))
    return places


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
