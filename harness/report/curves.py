"""Curves over training: reward with response length, KL, gradient norm with clip fraction, and learning at a glance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from harness.compare.learning import Evaluated, evaluations, metric_series
from harness.compare.tables import targets
from harness.report.lines import Curves, Points, canvas, draw, finish
from harness.report.style import variant_looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEP, SECONDS = "training step", "seconds of the loop"
BAND = "line: mean of the seeds, band: from the lowest to the highest"
LOG_ABOVE = 20.0  # highest over lowest value of the gradient norm


def draw_reward(curves: Curves) -> Figure | None:
    """Draw validation reward and response length over training steps and over seconds; None without evaluations."""
    if not any(evaluations(run) for run in curves.all_runs()):
        return None
    figure, grid = canvas(2, 2, height=7.0, heights=(3, 2))
    whens: tuple[Callable[[Evaluated], float], ...] = (lambda item: item.step, lambda item: item.elapsed_s)
    for column, when in enumerate(whens):
        draw(grid[0][column], curves, _evaluated(when, lambda item: item.reward), over_steps=column == 0)
        draw(grid[1][column], curves, _evaluated(when, lambda item: item.length), over_steps=column == 0)
    grid[0][0].set(title="Reward over training steps", ylabel="validation reward")
    grid[0][1].set(title="Reward over seconds")
    grid[1][0].set(title="Response length", xlabel=STEP, ylabel="tokens per response")
    grid[1][1].set(xlabel=SECONDS)
    for row in grid:
        row[1].sharey(row[0])
    seeds = f"over steps, {BAND}; over seconds, one line for each seed"
    return finish(figure, curves, "validation reward and response length", seeds, _target_lines(curves, grid[0]))


def draw_learning(curves: Curves) -> Figure | None:
    """Draw reward over steps and over seconds beside the gradient norm, to compare the points of an experiment.

    None for a single variant, and without evaluations. A cross marks where a run diverged.
    """
    if len(curves.runs) < 2 or not any(evaluations(run) for run in curves.all_runs()):
        return None
    figure, grid = canvas(1, 3, height=5.0)
    over_steps, over_seconds, norms = grid[0]
    draw(over_steps, curves, _evaluated(lambda item: item.step, lambda item: item.reward))
    draw(over_seconds, curves, _evaluated(lambda item: item.elapsed_s, lambda item: item.reward), over_steps=False)
    over_steps.set(title="Reward over training steps", xlabel=STEP, ylabel="validation reward")
    over_seconds.set(title="Reward over seconds", xlabel=SECONDS)
    over_seconds.sharey(over_steps)
    if draw(norms, curves, _metric("grad_norm")):
        _set_norm_scale(norms, curves)
    norms.set(title="Gradient norm before clipping", xlabel=STEP, ylabel="L2 norm")
    seeds = f"over steps, {BAND}; over seconds, one line for each seed"
    keys = [*_target_lines(curves, (over_steps, over_seconds)), *_mark_divergence(curves, over_steps)]
    return finish(figure, curves, "what each learned", seeds, keys)


def _mark_divergence(curves: Curves, axes: Axes) -> list[Any]:
    """Mark the training steps at which runs diverged, on the line of reward 0; return the legend entry."""
    from matplotlib.lines import Line2D

    looks = variant_looks(list(curves.runs))
    marks = list[Any]()
    for variant in curves.experiment.variants:
        found = [run.learning.divergence.step for run in variant.runs if run.learning and run.learning.divergence]
        if found:
            colour, _ = looks[variant.name]
            marks += axes.plot(
                found, [0.0] * len(found), linestyle="", marker="X", markersize=11, color=colour,
                markeredgecolor="black", zorder=5, clip_on=False,
            )  # fmt: skip
    if not marks:
        return []
    return [Line2D([], [], linestyle="", marker="X", markersize=9, color="white", markeredgecolor="black",
                   label="diverged")]  # fmt: skip


def draw_kl(curves: Curves) -> Figure | None:
    """Draw the monitored KL figures over training steps, one column for each pair of policies; None without them."""
    pairs = [pair for pair in ("reference", "previous") if _logged(curves, f"kl/{pair}_k3", f"kl/{pair}_k1_sum")]
    if not pairs:
        return None
    figure, grid = canvas(2, len(pairs), height=7.0)
    for column, pair in enumerate(pairs):
        draw(grid[0][column], curves, _metric(f"kl/{pair}_k3"))
        draw(grid[1][column], curves, _metric(f"kl/{pair}_k1_sum"))
        grid[0][column].set(title=f"KL(sampling policy \u2016 {_other_policy(curves, pair)})")
        grid[1][column].set(xlabel=STEP)
        for row in grid:
            row[column].axhline(0.0, color="black", linewidth=0.8, zorder=1)
    grid[0][0].set(ylabel="k3, nats per token")
    grid[1][0].set(ylabel="k1, nats per response")
    lagging = any(run.behaviour_is_older for run in curves.experiment.runs)
    what = "KL, estimated on sampled tokens" + ("; biased, as an older policy sampled them" if lagging else "")
    return finish(figure, curves, what, BAND)


def draw_stability(curves: Curves) -> Figure | None:
    """Draw gradient norm and clip fraction over training steps; None where neither was logged."""
    shown = [name for name in ("grad_norm", "clip_fraction") if _logged(curves, name)]
    if not shown:
        return None
    figure, grid = canvas(1, len(shown), height=4.4)
    for axes, name in zip(grid[0], shown, strict=True):
        draw(axes, curves, _metric(name))
        axes.set(xlabel=STEP)
        if name == "grad_norm":
            axes.set(title="Gradient norm before clipping", ylabel="L2 norm")
            _set_norm_scale(axes, curves)
        else:
            axes.set(title="Clip fraction", ylabel="share of response tokens")
            axes.set_ylim(0.0, max(0.01, axes.dataLim.y1 * 1.08))
    return finish(figure, curves, "gradient norm and clip fraction", BAND)


def _evaluated(when: Callable[[Evaluated], float], figure: Callable[[Evaluated], float | None]) -> Points:
    def points(run: Any) -> list[tuple[float, float]]:
        pairs = [(when(item), figure(item)) for item in evaluations(run)]
        return [(x, y) for x, y in pairs if y is not None]

    return points


def _metric(name: str) -> Points:
    return lambda run: list(zip(*metric_series(run, name), strict=True))


def _logged(curves: Curves, *names: str) -> bool:
    return any(metric_series(run, name)[1] for run in curves.all_runs() for name in names)


def _target_lines(curves: Curves, panels: Sequence[Axes]) -> list[Any]:
    """Draw the scenario's reward target into the panels; return its legend entry."""
    keys = []
    for target in targets(curves.experiment.runs):
        lines = [axes.axhline(target, color="black", linewidth=1.0, linestyle=":", zorder=1) for axes in panels]
        lines[0].set_label(f"target {target:g}")
        keys.append(lines[0])
    return keys


def _other_policy(curves: Curves, pair: str) -> str:
    if pair == "previous":
        return "policy of the step before"
    kinds = {run.kl.reference for run in curves.experiment.runs if run.kl}
    if len(kinds) != 1:
        return "reference"
    return {"frozen": "initial policy", "reclone": "re-cloned reference"}.get(str(kinds.pop()), "reference")


def _set_norm_scale(axes: Axes, curves: Curves) -> None:
    """Use a log scale where the norms span a wide range, else start at 0."""
    values = [value for run in curves.all_runs() for value in metric_series(run, "grad_norm")[1]]
    lowest = min(values)
    if lowest > 0 and max(values) / lowest > LOG_ABOVE:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0.0)
