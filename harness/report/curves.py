"""Pictures of curves: reward with response length, KL, gradient norm, learning at a glance, grids and transport sweeps.

One line for each variant, the same look in every panel, one legend for all of them. Over steps, a line is the mean over
the seeds and a band runs from the lowest to the highest of them. Over seconds, where seeds do not share their x values,
each seed has its own thin line.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from harness.compare.experiments import Experiment
from harness.compare.kl import REFERENCE_NAMES
from harness.compare.learning import Evaluated, evaluations
from harness.compare.tables import targets
from harness.report.data import (
    OPTIMIZER_STEP,
    SECONDS,
    STEP,
    Curves,
    Panel,
    Points,
    evaluated_points,
    metric_points,
    metric_values,
    needs_log_scale,
    optimizer_panels,
    over_seeds,
    sweep_lines,
    training_panels,
)
from harness.report.style import MARKERS, label, place_legend, variant_label, variant_looks
from harness.results import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from harness.compare.sync import SyncPoint


MOST_MARKERS = 12  # on one line
WIDTHS = {1: 8, 2: 12, 3: 16}  # inches, by columns


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
    found = {name: [own for run in runs if (own := points(run))] for name, runs in curves.runs.items()}
    longest = max((len(own) for runs in found.values() for own in runs), default=0)
    if not longest:
        axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", va="center", color="grey")
        return False
    thin: dict[str, Any] = {"linewidth": 1.2, "markersize": 4} if curves.several_seeds else {"linewidth": 2.0}
    for name, (colour, marker) in variant_looks(list(curves.runs)).items():
        look: dict[str, Any] = {"color": colour, "marker": marker, "markevery": -(-longest // MOST_MARKERS)}
        look |= {"markeredgecolor": "white", "markeredgewidth": 0.75}
        if over_steps and found[name]:
            x, mean, lowest, highest = zip(*over_seeds(found[name]), strict=True)
            axes.plot(x, mean, linewidth=2.0, **look)
            if len(found[name]) > 1:
                axes.fill_between(x, lowest, highest, color=colour, alpha=0.2)
        for own in () if over_steps else found[name]:
            axes.plot(*zip(*own, strict=True), **look, **thin)
    axes.set(xlabel="", ylabel="")
    if over_steps:  # there is no half step
        axes.locator_params(axis="x", integer=True)
        low, high = axes.get_xlim()
        if high - low < 1.0:
            axes.set_xlim(low - 1.0, high + 1.0)
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
    place_legend(figure, [*keys, *extra])
    heading = f"{label(curves.experiment.title)}: {what}"
    if curves.several_seeds:
        heading += "\n" + textwrap.fill(seeds, HEADING_WIDTH)
    figure.suptitle(heading, x=0.01, ha="left", fontsize=13)
    return figure


BAND = "line: mean of the seeds, band: from the lowest to the highest"


def draw_reward(curves: Curves) -> Figure | None:
    """Draw validation reward and response length over training steps and over seconds; None without evaluations."""
    if not any(evaluations(run) for run in curves.all_runs()):
        return None
    figure, grid = canvas(2, 2, height=7.0, heights=(3, 2))
    whens: tuple[Callable[[Evaluated], float], ...] = (lambda item: item.step, lambda item: item.elapsed_s)
    for column, when in enumerate(whens):
        draw(grid[0][column], curves, evaluated_points(when, lambda item: item.reward), over_steps=column == 0)
        draw(grid[1][column], curves, evaluated_points(when, lambda item: item.length), over_steps=column == 0)
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
    draw(over_steps, curves, evaluated_points(lambda item: item.step, lambda item: item.reward))
    draw(
        over_seconds, curves, evaluated_points(lambda item: item.elapsed_s, lambda item: item.reward), over_steps=False
    )
    over_steps.set(title="Reward over training steps", xlabel=STEP, ylabel="validation reward")
    over_seconds.set(title="Reward over seconds", xlabel=SECONDS)
    over_seconds.sharey(over_steps)
    if draw(norms, curves, metric_points("grad_norm")):
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
    """Draw the monitored KL figures over training steps, one column for each pair of policies; None without them.

    The validation reward stands below, over the same steps. Upright dashed lines mark from where on a run's KL to the
    reference policy grows faster; dotted lines beside k3 are the exact KL, where the model offers it.
    """
    pairs = [
        pair
        for pair in ("reference", "previous")
        if any(metric_values(curves, f"kl/{pair}_{kind}") for kind in ("k3", "k1_sum"))
    ]
    if not pairs:
        return None
    rewarded = any(map(evaluations, curves.all_runs()))
    figure, grid = canvas(3 if rewarded else 2, len(pairs), height=9.5 if rewarded else 7.0)
    keys = list[Any]()
    for column, pair in enumerate(pairs):
        draw(grid[0][column], curves, metric_points(f"kl/{pair}_k3"))
        keys += _draw_exact(curves, grid[0][column], pair)
        draw(grid[1][column], curves, metric_points(f"kl/{pair}_k1_sum"))
        grid[0][column].set(title=f"KL(policy \u2016 {_other_policy(curves, pair)})")
        for row in grid[:2]:
            row[column].axhline(0.0, color="black", linewidth=0.8, zorder=1)
        for row in grid[2:]:
            draw(row[column], curves, evaluated_points(lambda item: item.step, lambda item: item.reward))
        grid[-1][column].set(xlabel=STEP)
    for row, name in zip(grid, ("k3, nats per token", "k1, nats per response", "validation reward"), strict=False):
        row[0].set(ylabel=name)
    lagging = any(run.behaviour_is_older for run in curves.experiment.runs)
    what = "KL, estimated on sampled tokens" + ("; biased, as an older policy sampled them" if lagging else "")
    return finish(figure, curves, what, BAND, keys)


def _draw_exact(curves: Curves, axes: Axes, pair: str) -> list[Any]:
    """Draw the exact KL as a dotted line in each variant's colour; return the legend entry, once for all panels."""
    from matplotlib.lines import Line2D
    from matplotlib.patheffects import Normal, Stroke

    look: dict[str, Any] = {"linewidth": 2.0, "linestyle": (0, (1.5, 1.0)), "zorder": 5}
    look["path_effects"] = [Stroke(linewidth=3.4, foreground="black"), Normal()]
    looks, exact = variant_looks(list(curves.runs)), metric_points(f"kl/{pair}_exact")
    drawn = {name: rows for name, runs in curves.runs.items() if (rows := over_seeds(map(exact, runs)))}
    for name, rows in drawn.items():
        x, mean, _, _ = zip(*rows, strict=True)
        axes.plot(x, mean, color=looks[name][0], **look)
    wanted = drawn and pair == "reference"
    return [Line2D([], [], color="white", label="exact KL", **look)] if wanted else []


def draw_training(curves: Curves) -> Figure | None:
    """Draw training reward, loss, groups without a signal and response length over training steps; None without."""
    return _draw_panels(curves, training_panels(curves), STEP, "training steps")


def draw_optimizer_steps(curves: Curves) -> Figure | None:
    """Draw rewards and the figures of the updates over optimizer steps; None where each training step is one."""
    return _draw_panels(curves, optimizer_panels(curves), OPTIMIZER_STEP, "over optimizer steps")


def _draw_panels(curves: Curves, panels: Sequence[Panel], x_label: str, what: str) -> Figure | None:
    if not panels:
        return None
    columns = min(2, len(panels))
    figure, grid = canvas(-(-len(panels) // columns), columns, height=3.5 * -(-len(panels) // columns) + 1.0)
    axes_of = [axes for row in grid for axes in row]
    for axes, panel in zip(axes_of, panels, strict=False):
        draw(axes, curves, panel.points)
        axes.set(title=panel.title, ylabel=panel.unit, xlabel=x_label)
        axes.tick_params(labelbottom=True)  # the panel below may be an empty place
        if panel.from_zero:
            axes.set_ylim(bottom=0.0)
    for axes in axes_of[len(panels) :]:
        axes.set_visible(False)
    return finish(figure, curves, what, BAND)


def draw_stability(curves: Curves) -> Figure | None:
    """Draw gradient norm and clip fraction over training steps; None where neither was logged."""
    shown = [name for name in ("grad_norm", "clip_fraction") if metric_values(curves, name)]
    if not shown:
        return None
    figure, grid = canvas(1, len(shown), height=4.4)
    for axes, name in zip(grid[0], shown, strict=True):
        draw(axes, curves, metric_points(name))
        axes.set(xlabel=STEP)
        if name == "grad_norm":
            axes.set(title="Gradient norm before clipping", ylabel="L2 norm")
            _set_norm_scale(axes, curves)
        else:
            axes.set(title="Clip fraction", ylabel="share of response tokens")
            axes.set_ylim(0.0, max(0.01, axes.dataLim.y1 * 1.08))
    return finish(figure, curves, "gradient norm and clip fraction", BAND)


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
        return "previous policy"
    kinds = {str(kind) for run in curves.all_runs() if (kind := run.setting("loss.kl.reference"))}
    return REFERENCE_NAMES.get(kinds.pop(), "reference") if len(kinds) == 1 else "reference"


def _set_norm_scale(axes: Axes, curves: Curves) -> None:
    """Use a log scale where the norms span a wide range, else start at 0."""
    if needs_log_scale(metric_values(curves, "grad_norm")):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0.0)


SEED = "seed"
MOST_PANELS = 60
PANEL_WIDTH, PANEL_HEIGHT = 3.0, 2.7  # inches
Place = tuple[str, str, str]
"""Row, column and line of a run."""


def draw_grid(curves: Curves) -> Figure | None:
    """Draw a panel for each point of all axes but the last: columns are the last but one, rows what comes before.

    Returns:
        None where there are not two axes beside the seed, nothing was evaluated, or there are too many panels to read.
    """
    places = _places(curves)
    rows, columns, lines = ([*dict.fromkeys(place[part] for place in places)] for part in range(3))
    if not lines or len(rows) * len(columns) > MOST_PANELS or not any(map(evaluations, curves.all_runs())):
        return None
    figure, grid = _grid_canvas(len(rows), len(columns))
    rewards = evaluated_points(lambda item: item.step, lambda item: item.reward)
    for row_name, panels in zip(rows, grid, strict=True):
        for column_name, axes in zip(columns, panels, strict=True):
            of_line = {line: places.get((row_name, column_name, line), []) for line in lines}
            draw(axes, Curves(curves.experiment, of_line), rewards)
        panels[0].set_ylabel(f"{label(row_name)}\nvalidation reward" if row_name else "validation reward")
    for column_name, top, bottom in zip(columns, grid[0], grid[-1], strict=True):
        top.set_title(label(column_name), fontsize=10)
        bottom.set_xlabel(STEP)
    _grid_head(figure, curves, lines)
    return figure


def _places(curves: Curves) -> dict[Place, list[Run]]:
    """The runs by their place in the grid, in the order of the scenario; empty without two axes."""
    runs = curves.all_runs()
    keys = list(dict.fromkeys(key for run in runs for key in run.manifest.point if key != SEED))
    if len(keys) < 2 or any(run.manifest.arm for run in runs):
        return {}
    *outer, column, line = keys
    places: dict[Place, list[Run]] = {}
    for run in runs:
        point = run.manifest.point
        row = ", ".join(_named(key, point) for key in outer)
        places.setdefault((row, _named(column, point), _named(line, point)), []).append(run)
    return places


def _named(key: str, point: dict[str, Any]) -> str:
    return f"{key.rpartition('.')[2]}: {point.get(key)}"


def _grid_canvas(rows: int, columns: int) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    size = (max(8.0, PANEL_WIDTH * columns), PANEL_HEIGHT * rows + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=True, sharey="row").tolist()


def _grid_head(figure: Figure, curves: Curves, lines: Sequence[str]) -> None:
    """Give the figure its heading and the legend of its lines."""
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], color=colour, marker=marker, linewidth=2.0, label=label(name))
        for name, (colour, marker) in variant_looks(list(lines)).items()
    ]
    place_legend(figure, keys)
    heading = f"{label(curves.experiment.title)}: validation reward"
    seeds = f"\n{len({run.manifest.seed for run in curves.all_runs()})} seeds; {BAND}" if curves.several_seeds else ""
    figure.suptitle(heading + seeds, x=0.01, ha="left", fontsize=13)


TRANSPORT_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8B4513")


def draw_sweep(experiment: Experiment) -> Figure | None:
    """Draw every combination of receivers and tensors in a panel of its own; None where nothing was swept."""
    kinds = sweep_lines(experiment)
    if not kinds:
        return None
    from matplotlib.figure import Figure

    columns = min(2, len(kinds))
    lines = -(-len(kinds) // columns)
    figure = Figure(figsize=(1.5 + 4.6 * columns, 1.0 + 3.8 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat
    for panel, ((receivers, tensors), lines_of_it) in zip(axes, kinds.items(), strict=False):
        _draw_sizes(panel, lines_of_it)
        panel.set_title(f"receivers: {receivers}, tensors: {tensors}")
    figure.suptitle(
        f"{label(experiment.title)}: a weight sync, from publish to the receiver's own tensors", x=0.01, ha="left"
    )
    figure.supxlabel("size of the weights, MB")
    figure.supylabel("milliseconds (median; bars from the 10th to the 90th percentile)")
    place_legend(figure, axes[0].get_legend_handles_labels()[0])
    return figure


def _draw_sizes(axes: Axes, by_transport: dict[str, list[SyncPoint]]) -> None:
    for index, (name, own) in enumerate(by_transport.items()):
        if not own:
            continue
        milliseconds = [1e3 * point.median_s for point in own]
        below = [1e3 * (point.median_s - point.low_s) for point in own]
        above = [1e3 * (point.high_s - point.median_s) for point in own]
        own_sizes = [point.megabytes for point in own]
        colour, marker = TRANSPORT_COLOURS[index % len(TRANSPORT_COLOURS)], MARKERS[index % len(MARKERS)]
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "capsize": 2}
        axes.errorbar(own_sizes, milliseconds, (below, above), label=label(name), **look)
    points = [point for own in by_transport.values() for point in own]
    sizes = sorted({point.megabytes for point in points})
    copies = [1e3 * median(point.copy_s for point in points if point.megabytes == size) for size in sizes]
    axes.plot(sizes, copies, color="#777777", linestyle="--", label="plain copy in memory")
    axes.set_xscale("log")
    axes.set_yscale("log")
