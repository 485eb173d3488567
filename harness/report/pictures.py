"""The pictures of an experiment: PNG files, the same data giving the same file. Loads seaborn and pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harness.compare.experiments import Experiment
from harness.core.errors import UserError
from harness.report.bars import draw_lag, draw_lanes, draw_stages, draw_sync
from harness.report.curves import (
    draw_grid,
    draw_kl,
    draw_learning,
    draw_optimizer_steps,
    draw_reward,
    draw_stability,
    draw_sweep,
    draw_training,
)
from harness.report.data import Curves, load_curves
from harness.report.scatter import draw_scatter
from harness.report.style import picture_style, save
from harness.report.timeline import draw_timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAR_PICTURES: dict[str, Callable[[Experiment], Figure | None]] = {
    "stages.png": draw_stages,
    "lanes.png": draw_lanes,
    "sync.png": draw_sync,
    "sweep.png": draw_sweep,
    "scatter.png": draw_scatter,
}
CURVE_PICTURES: dict[str, Callable[[Curves], Figure | None]] = {
    "timeline.png": draw_timeline,
    "reward.png": draw_reward,
    "training.png": draw_training,
    "optimizer_steps.png": draw_optimizer_steps,
    "kl.png": draw_kl,
    "stability.png": draw_stability,
    "learning.png": draw_learning,
    "grid.png": draw_grid,
    "lag.png": draw_lag,
}


def make_pictures(experiment_folder: Path, out_dir: Path) -> list[Path]:
    """Draw an experiment's pictures; what was not measured is left out.

    Args:
        experiment_folder: an experiment's folder, or a run's.
        out_dir: made if needed; files of the same names are replaced.

    Returns:
        the files, in the order of ``BAR_PICTURES`` and ``CURVE_PICTURES``.

    Raises:
        UserError: there is no readable run, or ``out_dir`` cannot be written to.
    """
    curves = load_curves(experiment_folder)
    paths = []
    with picture_style():
        for name, figure in _figures(curves):
            paths.append(_saved(figure, out_dir / name))
    return paths


def _saved(figure: Figure, path: Path) -> Path:
    try:
        return save(figure, path)
    except OSError as error:
        what = f"cannot write pictures to {str(path.parent)!r}: {error.strerror or error}"
        raise UserError(what, where=str(path.parent), fix="name another folder with --plots DIR") from error


def _figures(curves: Curves) -> Iterator[tuple[str, Figure]]:
    for name, draw_bars in BAR_PICTURES.items():
        if (figure := draw_bars(curves.experiment)) is not None:
            yield name, figure
    for name, draw_curves in CURVE_PICTURES.items():
        if (figure := draw_curves(curves)) is not None:
            yield name, figure
