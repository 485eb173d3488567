"""The examination to look at: each arm's predicted step time against the measured one, and what stages are off by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import UserError
from harness.report.style import label, picture_style, save, variant_looks
from tests.holdout.document import ArmScore, Document
from tests.holdout.judging import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BANDS = (15, 10, 5)
ROW_INCHES = 0.32
Looks = dict[str, tuple[tuple[float, float, float], str]]


def save_picture(document: Document, path: Path) -> Path:
    """Draw an examination into a PNG file.

    Raises:
        UserError: it cannot be written.
    """
    try:
        with picture_style():
            return save(draw(document), path)
    except OSError as error:
        raise UserError(f"cannot write the picture {str(path)!r}: {error.strerror or error}", str(path)) from error


def draw(document: Document) -> Figure:
    """Draw both halves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 2.4 + ROW_INCHES * len(document.arms)), layout="constrained")
    steps, stages = figure.subplots(1, 2, width_ratios=(1.25, 1))
    looks = variant_looks([tier.name for tier in document.tiers])
    _draw_steps(steps, document, looks)
    _draw_stages(stages, document, looks)
    return figure


def _draw_steps(axes: Axes, document: Document, looks: Looks) -> None:
    """Draw a row for each arm: its prediction with the interval, and its repeats, against their mean."""
    for shade, band in enumerate(BANDS):
        axes.axvspan(-band, band, color=str(0.95 - 0.045 * shade), linewidth=0, zorder=1)
    axes.axvline(0, color="black", linewidth=0.8, zorder=2)
    named: set[str] = set()
    for row, arm in enumerate(document.arms):
        _draw_arm(axes, row, arm, looks, _tier_label(document, arm.tier) if arm.tier not in named else None)
        named.add(arm.tier)
    repeats = [(_off(arm, value), row) for row, arm in enumerate(document.arms) for value in arm.step.repeats]
    axes.plot(*zip(*repeats, strict=True), "|", color="black", markersize=9, label="measured repeats", zorder=4)
    axes.set_yticks(range(len(document.arms)), [_arm_label(arm) for arm in document.arms])
    axes.set_ylim(len(document.arms) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("step time against the mean of its repeats, %; grey: within 5, 10 and 15%")
    axes.set_title("Held-out runs: predicted step time, with 90% interval")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.09), ncols=2, fontsize=9)


def _draw_arm(axes: Axes, row: int, arm: ArmScore, looks: Looks, name: str | None) -> None:
    colour, marker = looks[arm.tier]
    low, value, high = (_off(arm, seconds) for seconds in (arm.step.low, arm.step.value, arm.step.high))
    axes.plot([low, high], [row, row], color=colour, linewidth=2, zorder=3)
    axes.plot([value], [row], marker, color=colour, markersize=7, label=name, linestyle="none", zorder=5)


def _off(arm: ArmScore, seconds: float) -> float:
    return 100 * (seconds / arm.step.measured - 1)


def _arm_label(arm: ArmScore) -> str:
    return f"{label(arm.arm)}: {arm.step.value:.3f} s for {arm.step.measured:.3f} s"


def _tier_label(document: Document, name: str) -> str:
    tier = next(tier for tier in document.tiers if tier.name == name)
    return f"{label(name)}: off by {percent(tier.error)} in the median (bound {percent(tier.bound, 0)})"


def _draw_stages(axes: Axes, document: Document, looks: Looks) -> None:
    stages = list(dict.fromkeys(stage for arm in document.arms for stage in arm.large_stages))
    bound = 100 * document.stage_bound
    axes.axvspan(-bound, bound, color="0.9", linewidth=0, zorder=1)
    axes.axvline(0, color="black", linewidth=0.8, zorder=2)
    tiers = [tier.name for tier in document.tiers]
    for arm in document.arms:
        colour, marker = looks[arm.tier]
        shift = 0.6 * ((tiers.index(arm.tier) + 0.5) / len(tiers) - 0.5)
        for stage in arm.large_stages:
            error, row = 100 * arm.stages[stage].error, stages.index(stage) + shift
            axes.plot(error, row, marker, color=colour, markersize=6, alpha=0.8, zorder=3)
    axes.set_yticks(range(len(stages)), stages)
    axes.set_ylim(len(stages) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"predicted against measured, %; grey: within {percent(document.stage_bound, 0)}")
    axes.set_title("Stages of 5% of a step or more, by arm")
