"""The arms of an experiment in one picture: seconds per step against the last validation reward."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from harness.compare.experiments import FEWEST_SEEDS, Experiment
from harness.compare.rewards import final_reward
from harness.compare.stats import t_interval
from harness.report.style import label, line_key, place_legend, variant_looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST_ARMS = 3


def scatter_points(experiment: Experiment) -> dict[str, tuple[list[float], list[float]]]:
    """Return, by arm, the seconds per step and the last validation rewards of the runs that have both."""
    points = {}
    for variant in experiment.variants:
        pairs = [(run.step_s, final_reward(run)) for run in variant.runs]
        both = [(seconds, reward) for seconds, reward in pairs if seconds is not None and reward is not None]
        if both:
            points[variant.name] = [seconds for seconds, _ in both], [reward for _, reward in both]
    return points


def draw_scatter(experiment: Experiment) -> Figure | None:
    """Draw a point for each arm, its 95% intervals from ``FEWEST_SEEDS`` runs on; None below ``FEWEST_ARMS`` arms."""
    points = scatter_points(experiment)
    if len(points) < FEWEST_ARMS:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.6), layout="constrained")
    axes = figure.add_subplot()
    keys = []
    for name, (colour, marker) in variant_looks(list(points)).items():
        seconds, rewards = points[name]
        look: dict[str, Any] = {"color": colour, "marker": marker, "linewidth": 0, "markersize": 8}
        axes.errorbar(
            fmean(seconds), fmean(rewards), _reach(rewards), _reach(seconds), capsize=3, elinewidth=1.2, **look
        )
        keys.append(line_key(label(name), **look))
    axes.set(xlabel="seconds per training step", ylabel="last validation reward")
    axes.set_title(f"{label(experiment.title)}: seconds per step and reward")
    axes.margins(0.1)
    place_legend(figure, keys)
    if any(len(seconds) >= FEWEST_SEEDS for seconds, _ in points.values()):
        figure.supxlabel("bars: 95% interval over the runs of an arm", fontsize=9)
    return figure


def _reach(values: list[float]) -> float | None:
    """Return how far the interval reaches to either side of the mean; None of too few runs."""
    interval = t_interval(values) if len(values) >= FEWEST_SEEDS else None
    return None if interval is None else interval.high - interval.point
