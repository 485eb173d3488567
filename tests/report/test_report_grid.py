"""The grid of panels: which panel holds which runs, and when there is none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from harness.report.curves import draw_grid
from harness.report.data import load_curves

Make = Callable[..., Any]
REWARDS, DELTAS, LOSSES, SEEDS = ("positions", "inclusion"), ("rewards", "centered", "max"), ("naive", "clip"), (0, 1)


def drawn(folder: Path) -> Figure | None:
    return draw_grid(load_curves(folder))


def reward_of(reward: str, delta: str, loss: str, seed: int) -> float:
    """100, 10, 1 and 0.1 times the places on the axes: every run ends at a reward of its own."""
    return 100 * REWARDS.index(reward) + 10 * DELTAS.index(delta) + LOSSES.index(loss) + 0.1 * SEEDS.index(seed)


@pytest.fixture
def grid(make_run: Make) -> Path:
    for number, (reward, delta, loss, seed) in enumerate(product(REWARDS, DELTAS, LOSSES, SEEDS)):
        point = {"task.reward": reward, "advantage.delta": delta, "loss.type": loss, "seed": seed}
        last = reward_of(reward, delta, loss, seed)
        made = make_run(point=point, seed=seed, position=number, steps=2, evaluations={0: (0.0, 3.0), 2: (last, 3.0)})
    return Path(made.folder).parent


@pytest.mark.usefixtures("style")
def test_each_panel_holds_the_lines_of_its_row_and_column(grid: Path) -> None:
    figure = drawn(grid)
    assert figure is not None
    panels = figure.axes
    assert len(panels) == 6
    assert [axes.get_title(loc="left") for axes in panels[:3]] == ["delta: rewards", "delta: centered", "delta: max"]
    assert [axes.get_ylabel() for axes in panels[::3]] == [
        "reward: positions\nvalidation reward",
        "reward: inclusion\nvalidation reward",
    ]
    assert [axes.get_xlabel() for axes in panels] == [""] * 3 + ["training step"] * 3
    for axes, (reward, delta) in zip(panels, product(REWARDS, DELTAS), strict=True):
        ends = [(line.get_xdata()[-1], round(float(line.get_ydata()[-1]), 6)) for line in axes.get_lines()]
        means = [sum(reward_of(reward, delta, loss, seed) for seed in SEEDS) / 2 for loss in LOSSES]
        assert ends == [(2, round(mean, 6)) for mean in means]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["type: naive", "type: clip"]
    assert figure.get_suptitle() == (
        "sync_k: validation reward\n2 seeds; line: mean of the seeds, band: from the lowest to the highest"
    )


@pytest.mark.usefixtures("style")
def test_two_axes_make_one_row(make_run: Make) -> None:
    for number, (delta, loss) in enumerate(product(DELTAS, LOSSES)):
        point = {"advantage.delta": delta, "loss.type": loss}
        made = make_run(point=point, position=number, steps=2, evaluations={0: (0.0, 3.0), 2: (1.0, 3.0)})
    figure = drawn(made.folder.parent)
    assert figure is not None
    assert [axes.get_ylabel() for axes in figure.axes] == ["validation reward", "", ""]


@pytest.mark.usefixtures("style")
def test_one_axis_or_arms_or_no_evaluation_make_no_grid(make_run: Make) -> None:
    one = make_run(scenario="one", point={"loss.type": "naive", "seed": 0}, evaluations={0: (0.0, 3.0)})
    assert drawn(one.folder) is None
    armed = make_run(scenario="armed", arm="a", point={"x": 1, "y": 2}, evaluations={0: (0.0, 3.0)})
    assert drawn(armed.folder) is None
    bare = make_run(scenario="bare", point={"x": 1, "y": 2})
    assert drawn(bare.folder) is None
    crowd = [make_run(scenario="crowd", point={"x": x, "y": 1}, evaluations={0: (0.0, 3.0)}) for x in range(61)]
    assert drawn(crowd[0].folder.parent) is None
