"""A transport sweep as a picture: milliseconds against megabytes, one line for each transport."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from harness.compare.experiments import Experiment
from harness.compare.sync_tables import sweep_points
from harness.report.style import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from harness.compare.sync import SyncPoint

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8B4513")
MARKERS = "osD^vPX*"


def draw_sweep(experiment: Experiment) -> Figure | None:
    """Draw every combination of receivers and tensors in a panel of its own; None where nothing was swept."""
    points = sweep_points(experiment)
    if not points:
        return None
    from matplotlib.figure import Figure

    kinds = sorted({(point.receivers, point.tensors) for point in points})
    columns = min(2, len(kinds))
    lines = -(-len(kinds) // columns)
    figure = Figure(figsize=(1.5 + 4.6 * columns, 1.0 + 3.8 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat
    names = list(dict.fromkeys(point.transport for point in points))
    for panel, kind in zip(axes, kinds, strict=False):
        _draw_panel(panel, [point for point in points if (point.receivers, point.tensors) == kind], names)
        panel.set_title(f"receivers: {kind[0]}, tensors: {kind[1]}")
    figure.suptitle(
        f"{label(experiment.title)}: a weight sync, from publish to the receiver's own tensors", x=0.01, ha="left"
    )
    figure.supxlabel("size of the weights, MB")
    figure.supylabel("milliseconds (median; bars from the 10th to the 90th percentile)")
    handles, texts = axes[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside right upper")
    return figure


def _draw_panel(axes: Axes, points: list[SyncPoint], names: list[str]) -> None:
    for index, name in enumerate(names):
        own = sorted((point for point in points if point.transport == name), key=lambda point: point.num_bytes)
        if not own:
            continue
        milliseconds = [1e3 * point.median_s for point in own]
        below = [1e3 * (point.median_s - point.low_s) for point in own]
        above = [1e3 * (point.high_s - point.median_s) for point in own]
        own_sizes = [point.megabytes for point in own]
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "capsize": 2}
        axes.errorbar(own_sizes, milliseconds, (below, above), label=label(name), **look)
    sizes = sorted({point.megabytes for point in points})
    copies = [1e3 * median(point.copy_s for point in points if point.megabytes == size) for size in sizes]
    axes.plot(sizes, copies, color="#777777", linestyle="--", label="plain copy in memory")
    axes.set_xscale("log")
    axes.set_yscale("log")
