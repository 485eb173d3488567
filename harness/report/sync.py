"""What a weight sync is made of, one bar for each variant."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from harness.compare.experiments import Experiment, Variant
from harness.compare.numbers import number
from harness.compare.sync import PARTS, percentile
from harness.compare.sync_tables import pooled, variant_syncs
from harness.core.trace import Stage
from harness.report.legend import line_key, place_legend, stage_keys, stage_look
from harness.report.style import label, variant_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STAGES = {part: Stage(f"weight_{part}") for part in PARTS}
AXIS_LABEL = "milliseconds per sync (median of each part over training steps, the first left out)"


def draw_sync(experiment: Experiment) -> Figure | None:
    """Draw publish, transfer, load and verify of each variant, stacked; None where no weights left the process."""
    variants = [variant for variant in experiment.variants if variant_syncs(variant)]
    if not variants:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.9 + max(2, len(variants)) * 0.55), layout="constrained")
    axes = figure.add_subplot()
    for row, variant in enumerate(variants):
        _draw_bar(axes, row, variant)
    axes.set_yticks(range(len(variants)), [_name(variant) for variant in variants])
    axes.set_ylim(len(variants) - 0.25, -0.75)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(AXIS_LABEL)
    axes.set_xlim(0, axes.dataLim.x1 * 1.45)
    axes.set_title(f"{label(experiment.title)}: what a weight sync is made of")
    seen = [stage for part, stage in STAGES.items() if any(pooled(variant_syncs(item), part) for item in variants)]
    whisker = line_key("publish to loaded,\np10 to p90", linewidth=1.5)
    place_legend(figure, [*stage_keys(seen), whisker])
    return figure


def _draw_bar(axes: Axes, row: int, variant: Variant) -> None:
    syncs = variant_syncs(variant)
    end = 0.0
    for part, stage in STAGES.items():
        times = pooled(syncs, part)
        if times:
            axes.barh(row, 1e3 * median(times), 0.62, end, **stage_look(stage))
            end += 1e3 * median(times)
    whole = [1e3 * seconds for seconds in pooled(syncs, "whole")]
    if not whole:
        return
    low, middle, high = (percentile(whole, percent) for percent in (10, 50, 90))
    axes.plot([low, high], [row, row], color="black", linewidth=1.5, marker="|", markersize=8)
    text = f"{number(middle)} ms, {number(syncs[0].num_bytes / middle / 1e6)} GB/s"
    axes.annotate(text, (max(end, high), row), (6, 0), textcoords="offset points", va="center")


def _name(variant: Variant) -> str:
    sync = variant_syncs(variant)[0]
    size = f"{number(sync.num_bytes / 1e6)} MB"
    named = variant_label(variant)
    return f"{named}\n{size}" if sync.transport in variant.name else f"{named}\n{label(sync.transport)}, {size}"
