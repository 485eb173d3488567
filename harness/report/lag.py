"""How old the rollouts were that each variant trained on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from harness.compare.numbers import number, percent
from harness.report.lines import Curves
from harness.report.style import label, variant_label
from harness.results import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOUR = "#0072B2"


def trained_by_lag(runs: list[Run]) -> Counter[int]:
    """Return lag -> rollouts trained on, over all steps of all runs; each use of a replayed rollout counts."""
    lags: Counter[int] = Counter()
    for run in runs:
        for row in run.steps:
            lags.update(row.lags)
    return lags


def draw_lag(curves: Curves) -> Figure | None:
    """Draw a histogram for each variant, as shares of the rollouts it trained on; None where no rollout lagged."""
    lags = {name: found for name, runs in curves.runs.items() if (found := trained_by_lag(runs))}
    highest = max((lag for found in lags.values() for lag in found), default=0)
    if highest == 0:
        return None
    figure, panels = _canvas(len(lags))
    names = {variant.name: variant_label(variant) for variant in curves.experiment.variants}
    for axes, (name, found) in zip(panels, lags.items(), strict=True):
        _draw_panel(axes, found, highest)
        axes.set_title(f"{names[name]}: mean {number(_mean(found))}")
    panels[-1].set_xlabel("lag of a trained rollout, in policy versions (that of its oldest token)")
    figure.supylabel("share of trained rollouts", fontsize=11)
    heading = f"{label(curves.experiment.title)}: how old the trained rollouts were"
    figure.suptitle(heading, x=0.01, ha="left", fontsize=13)
    return figure


def _canvas(panels: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.4 + 1.35 * panels), layout="constrained")
    grid = figure.subplots(panels, 1, squeeze=False, sharex=True, sharey=True)
    return figure, [row[0] for row in grid]


def _draw_panel(axes: Axes, lags: Counter[int], highest: int) -> None:
    total = lags.total()
    for lag, rollouts in sorted(lags.items()):
        axes.bar(lag, rollouts / total, 0.8, color=COLOUR, linewidth=0.0)
        axes.annotate(
            percent(rollouts / total), (lag, rollouts / total), (0, 2), textcoords="offset points", ha="center",
            fontsize=8 if highest <= 12 else 6,
        )  # fmt: skip
    axes.set_xlim(-0.6, highest + 0.6)
    axes.set_ylim(0.0, 1.25)
    axes.set_yticks([0.0, 0.5, 1.0], ["0%", "50%", "100%"])
    axes.locator_params(axis="x", integer=True)
    axes.grid(visible=False, axis="x")


def _mean(lags: Counter[int]) -> float:
    return sum(lag * rollouts for lag, rollouts in lags.items()) / lags.total()
