"""How a curve is drawn: one line for each variant, the same look in every panel, one legend for all of them.

Over steps, a line is the mean over the seeds and a band runs from the lowest to the highest of them. Over seconds,
where seeds do not share their x values, each seed has its own thin line.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.compare.experiments import Experiment
from harness.report.style import label, variant_label, variant_looks
from harness.results import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_MARKERS = 12  # on one line
WIDTHS = {1: 8, 2: 12, 3: 16}  # inches, by columns
Points = Callable[[Run], list[tuple[float, float]]]


@dataclass(frozen=True)
class Curves:
    """An experiment, and the rows of its runs by the variant's name."""

    experiment: Experiment
    runs: dict[str, list[Run]]

    @property
    def several_seeds(self) -> bool:
        """Whether a variant has more than one run."""
        return any(len(runs) > 1 for runs in self.runs.values())

    def all_runs(self) -> list[Run]:
        """Return every run, variant by variant."""
        return [run for runs in self.runs.values() for run in runs]

    def table(self, points: Points) -> dict[str, list[Any]]:
        """Return the points of all runs as columns variant, run, x and y."""
        numbered = [(name, index, run) for name, runs in self.runs.items() for index, run in enumerate(runs)]
        rows = [(name, index, x, y) for name, index, run in numbered for x, y in points(run)]
        columns = zip(*rows, strict=True) if rows else ([], [], [], [])
        return {name: list(column) for name, column in zip(("variant", "run", "x", "y"), columns, strict=True)}


def canvas(rows: int, columns: int, height: float, heights: Sequence[float] | None = None) -> tuple[Figure, list[Any]]:
    """Return an empty figure and its axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTHS[columns], height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex="col", height_ratios=heights)
    return figure, axes.tolist()


def draw(axes: Axes, curves: Curves, points: Points, over_steps: bool = True) -> bool:
    """Draw one curve for each variant that has points, with markers, so that colour is not all that tells them apart.

    Returns:
        whether there was anything to draw; if not, the panel says so.
    """
    import seaborn as sns

    data = curves.table(points)
    if not data["x"]:
        axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", va="center", color="grey")
        return False
    names = list(curves.runs)
    looks = variant_looks(names)
    longest = max(Counter(zip(data["variant"], data["run"], strict=True)).values())
    thin: dict[str, Any] = {"linewidth": 1.2, "markersize": 4} if curves.several_seeds else {"linewidth": 2.0}
    by_seed: dict[str, Any] = {"estimator": None, "units": "run", **thin}
    by_variant: dict[str, Any] = {"errorbar": ("pi", 100), "linewidth": 2.0}
    sns.lineplot(
        data=data,
        x="x",
        y="y",
        hue="variant",
        hue_order=names,
        palette={name: colour for name, (colour, _) in looks.items()},
        style="variant",
        style_order=names,
        markers={name: marker for name, (_, marker) in looks.items()},
        markevery=-(-longest // MOST_MARKERS),
        dashes=False,
        legend=False,
        ax=axes,
        **(by_variant if over_steps else by_seed),
    )
    axes.set(xlabel="", ylabel="")
    return True


HEADING_WIDTH = 80
"""Characters of a line of the heading, which shares its height with the legend."""


def finish(figure: Figure, curves: Curves, what: str, seeds: str, extra: Sequence[Any] = ()) -> Figure:
    """Give the figure its heading and the legend of its variants.

    Args:
        what: what the figure shows, for the heading.
        seeds: how seeds are drawn; said where there are several.
        extra: further legend entries.
    """
    from matplotlib.lines import Line2D

    looks = variant_looks(list(curves.runs))
    names = {variant.name: variant_label(variant) for variant in curves.experiment.variants}
    keys = [
        Line2D([], [], color=colour, marker=marker, linewidth=2.0, label=names[name])
        for name, (colour, marker) in looks.items()
    ]
    figure.legend(handles=[*keys, *extra], loc="outside right upper", frameon=False)
    heading = f"{label(curves.experiment.title)}: {what}"
    if curves.several_seeds:
        heading += "\n" + textwrap.fill(seeds, HEADING_WIDTH)
    figure.suptitle(heading, x=0.01, ha="left", fontsize=13)
    return figure
