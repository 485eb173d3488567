"""Pictures: which are drawn, what is on them, that they are the same each time, and where they cannot be drawn."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.compare.__main__ import main
from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.core.types import Metric, Metrics
from harness.report.bars import draw_lag, draw_lanes, draw_stages, draw_sync
from harness.report.curves import (
    draw_kl,
    draw_optimizer_steps,
    draw_reward,
    draw_stability,
    draw_training,
)
from harness.report.data import load_curves
from harness.report.pictures import make_pictures
from harness.report.scatter import draw_scatter
from harness.report.style import STAGE_COLOURS, folded, label, line_key, picture_style, place_legend, variant_looks
from harness.report.timeline import draw_timeline
from harness.results import RunFolder

Make = Callable[..., RunFolder]
EVALUATIONS = {0: (0.2, 12.0), 2: (0.4, 15.0), 4: (0.6, 18.0)}
SETTINGS = "steps: 4\nreward_target: 0.5\nloss: {kl: {reference: frozen}}\n"


def _metrics(step: int) -> Metrics:
    kl = {
        f"kl/{pair}_{form}": Metric(0.01 * step, count=9)
        for pair in ("reference", "previous")
        for form in ("k3", "k1_sum")
    }
    return kl | {"grad_norm": Metric(1.0 + step), "clip_fraction": Metric(0.1 * step, count=9)}


@pytest.fixture
def experiment(make_run: Make, tmp_path: Path) -> Path:
    """Arms k1 and k4 in two seeds each, with everything measured."""
    for arm in ("k1", "k4"):
        for seed in (0, 1):
            make_run(
                arm=arm,
                point={"seed": seed},
                seed=seed,
                gap_s=0.5,
                evaluations={step: (reward + 0.1 * seed, length) for step, (reward, length) in EVALUATIONS.items()},
                metrics=_metrics,
                settings=SETTINGS,
            )
    return tmp_path / "results" / "sync_k" / "20261120-111500"


def _axes(figure: Figure | None) -> list[Axes]:
    assert figure is not None
    return figure.axes


def _legend(figure: Figure | None) -> list[str]:
    assert figure is not None
    return [text.get_text() for text in figure.legends[0].get_texts()]


def _bars(axes: Axes) -> list[tuple[float, float, float]]:
    """Return (centre, start, length) of every horizontal bar."""
    rectangles = [patch for container in axes.containers for patch in container.patches]
    return [
        (round(bar.get_y() + bar.get_height() / 2, 6), round(bar.get_x(), 6), round(bar.get_width(), 6))
        for bar in rectangles
    ]


def test_every_picture_is_a_png_and_the_same_each_time(experiment: Path, tmp_path: Path) -> None:
    first = make_pictures(experiment, tmp_path / "one")
    names = ["stages.png", "lanes.png", "timeline.png", "reward.png", "kl.png", "stability.png", "learning.png"]
    assert [path.name for path in first] == names
    assert {path.parent for path in first} == {tmp_path / "one"}
    for path, again in zip(first, make_pictures(experiment, tmp_path / "two"), strict=True):
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n")
        assert data == again.read_bytes()
        width = int.from_bytes(data[16:20], "big")
        assert width >= 1200  # 8 inches or more at 150 dots each


def test_what_was_not_measured_is_not_drawn(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(metrics=lambda step: {}).folder
    (folder / "spans.jsonl").unlink()
    assert [path.name for path in make_pictures(folder, tmp_path / "out")] == ["stages.png"]
    empty = make_run(scenario="empty", steps=0, status="failed").folder
    assert make_pictures(empty, tmp_path / "none") == []


@pytest.mark.usefixtures("style")
def test_stage_bars_show_mean_seconds_per_step(experiment: Path) -> None:
    figure = draw_stages(load_curves(experiment).experiment)
    (axes,) = _axes(figure)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["k1 (2 seeds)", "k4 (2 seeds)"]
    # generate 0.3, score 0.1, update 0.5, load 0.1, and an evaluation of 1 s in the last two of four steps: 0.5
    k1 = [bar for bar in _bars(axes) if bar[0] == 0.0]
    assert k1 == [(0.0, 0.0, 0.3), (0.0, 0.3, 0.1), (0.0, 0.4, 0.5), (0.0, 0.9, 0.1), (0.0, 1.0, 0.5)]
    # wall-clock adds the gap: (2 * 1.5 + 1) / 2 = 2
    assert [text.get_text() for text in axes.texts] == ["2.00 s", "2.00 s"]
    assert _legend(figure) == ["generate", "score", "update", "weight_load", "evaluate", "wall-clock"]
    assert axes.get_title(loc="left") == "sync_k: time of a training step by stage"
    assert axes.get_xlabel().startswith("seconds per training step")


@pytest.mark.usefixtures("style")
def test_lane_bars_close_with_waits_and_unattributed_time(experiment: Path) -> None:
    figure = draw_lanes(load_curves(experiment).experiment)
    (axes,) = _axes(figure)
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == ["k1 (2 seeds)   generator", "scorer", "learner", "k4 (2 seeds)   generator", "scorer", "learner"]
    learner = [bar for bar in _bars(axes) if bar[0] == 2.0]
    # update 0.5, waiting 0.5 + 0.5, under no span 0.5: 2 s together
    assert learner == [(2.0, 0.0, 0.5), (2.0, 0.5, 1.0), (2.0, 1.5, 0.5)]
    assert _legend(figure)[-2:] == ["waiting", "no stage, no wait"]


@pytest.mark.usefixtures("style")
def test_reward_is_drawn_over_steps_and_over_seconds(experiment: Path) -> None:
    figure = draw_reward(load_curves(experiment))
    over_steps, over_seconds, length, _ = _axes(figure)
    mean = over_steps.lines[0]
    assert list(mean.get_xdata()) == [0, 2, 4]
    assert list(mean.get_ydata()) == pytest.approx([0.25, 0.45, 0.65])  # mean of the seeds 0.1 apart
    assert len(over_steps.collections) == 2  # a band for each arm
    seeds = over_seconds.lines[:4]  # two arms of two seeds, before the target
    assert [list(line.get_xdata()) for line in seeds] == [[1.0, 5.0, 9.0]] * 4  # 1, + 2 * 1.5 + 1, + 2 * 1.5 + 1
    assert list(length.lines[0].get_ydata()) == [12.0, 15.0, 18.0]
    assert _legend(figure) == ["k1 (2 seeds)", "k4 (2 seeds)", "target 0.5"]
    assert [over_steps.get_ylabel(), length.get_ylabel(), length.get_xlabel()] == [
        "validation reward",
        "tokens per response",
        "training step",
    ]


@pytest.mark.usefixtures("style")
def test_kl_says_which_two_policies(experiment: Path) -> None:
    figure = draw_kl(load_curves(experiment))
    reference, previous, per_response, _, reward, _ = _axes(figure)
    assert reference.get_title(loc="left") == "KL(policy \u2016 initial policy)"
    assert previous.get_title(loc="left") == "KL(policy \u2016 previous policy)"
    assert (reference.get_ylabel(), per_response.get_ylabel()) == ("k3, nats per token", "k1, nats per response")
    assert list(reference.lines[0].get_ydata()) == pytest.approx([0.0, 0.01, 0.02, 0.03])
    assert list(reward.lines[0].get_xdata()) == [0.0, 2.0, 4.0]  # below KL, over the same steps
    assert reward.get_xlim() == reference.get_xlim()


@pytest.mark.usefixtures("style")
def test_a_kl_of_one_pair_takes_one_column(make_run: Make) -> None:
    folder = make_run(metrics=lambda step: {"kl/previous_k3": Metric(0.1, count=9)}).folder
    top, bottom = _axes(draw_kl(load_curves(folder)))
    assert len(top.lines) == 2  # the curve and the line at 0
    assert [text.get_text() for text in bottom.texts] == ["not logged"]


@pytest.mark.usefixtures("style")
def test_the_exact_kl_stands_beside_k3_where_it_is_known(make_run: Make) -> None:
    """Old code: not drawn."""
    figures = {"kl/reference_k3": 0.1, "kl/reference_k1_sum": 0.2, "kl/reference_exact": 0.12}
    folder = make_run(metrics=lambda step: {name: Metric(value * step, count=9) for name, value in figures.items()})
    figure = draw_kl(load_curves(folder.folder))
    top, bottom = _axes(figure)
    assert list(top.lines[1].get_ydata()) == pytest.approx([0.0, 0.12, 0.24, 0.36])
    assert (len(top.lines), len(bottom.lines)) == (3, 2)  # each with the line at 0
    assert _legend(figure)[-1] == "exact KL"


def _training_metrics(step: int) -> Metrics:
    rewards = {"reward/total": Metric(0.1 * step, count=64), "zero_variance_fraction": Metric(0.25, count=8)}
    return rewards | {"loss": Metric(0.01 * step), "response_length": Metric(12.0, count=64)}


@pytest.mark.usefixtures("style")
def test_training_curves_show_reward_loss_signal_and_length(make_run: Make) -> None:
    figure = draw_training(load_curves(make_run(metrics=_training_metrics).folder))
    reward, loss, signal, length = _axes(figure)
    assert list(reward.lines[0].get_ydata()) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert list(loss.lines[0].get_ydata()) == pytest.approx([0.0, 0.01, 0.02, 0.03])
    assert (list(signal.lines[0].get_ydata()), list(length.lines[0].get_ydata())) == ([0.25] * 4, [12.0] * 4)
    _check_texts(figure, fewest=12)


@pytest.mark.usefixtures("style")
def test_loss_and_reward_are_drawn_over_optimizer_steps(make_run: Make) -> None:
    """Two optimizer steps of a training step: four training steps end at optimizer step 8.

    Old code: no training reward.
    """
    folder = make_run(
        evaluations=EVALUATIONS,
        metrics=_training_metrics,
        optimizer_steps=2,
        optimizer_step_metrics=lambda step: [{"loss": Metric(float(step))}, {"loss": Metric(step + 0.5)}],
    ).folder
    figure = draw_optimizer_steps(load_curves(folder))
    trained, reward, loss = _axes(figure)[:3]
    assert list(trained.lines[0].get_xdata()) == [0.0, 2.0, 4.0, 6.0]
    assert list(trained.lines[0].get_ydata()) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert (list(reward.lines[0].get_xdata()), list(reward.lines[0].get_ydata())) == ([0.0, 4.0, 8.0], [0.2, 0.4, 0.6])
    assert list(loss.lines[0].get_xdata()) == [float(step) for step in range(8)]
    assert list(loss.lines[0].get_ydata()) == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    assert draw_optimizer_steps(load_curves(make_run(scenario="single").folder)) is None
    _check_texts(figure, fewest=12)


@pytest.mark.usefixtures("style")
def test_gradient_norms_over_a_wide_range_get_a_log_axis(experiment: Path, make_run: Make) -> None:
    norm, clip = _axes(draw_stability(load_curves(experiment)))
    assert (norm.get_yscale(), norm.get_ylim()[0]) == ("linear", 0.0)
    assert list(clip.lines[0].get_ydata()) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    wide = make_run(scenario="wide", metrics=lambda step: {"grad_norm": Metric(10.0**step)}).folder
    (norm,) = _axes(draw_stability(load_curves(wide)))
    assert norm.get_yscale() == "log"


def _shown_texts(figure: Figure) -> list[Text]:
    """Return every text that is drawn; tick labels outside the axis are not."""
    texts = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        texts += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts]  # type: ignore[attr-defined]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            texts += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [text for text in texts if text.get_visible() and text.get_text().strip()]


@pytest.mark.usefixtures("style")
def test_no_text_overlaps_another_or_leaves_the_picture(experiment: Path) -> None:
    curves = load_curves(experiment)
    figures = [draw_stages(curves.experiment), draw_lanes(curves.experiment), draw_timeline(curves)]
    for figure in [*figures, draw_reward(curves), draw_kl(curves), draw_stability(curves)]:
        _check_texts(figure, fewest=15)


@pytest.mark.usefixtures("style")
def test_no_text_of_the_pictures_of_syncs_and_lag_overlaps_another(lagged: Path) -> None:
    curves = load_curves(lagged)
    for figure in (draw_sync(curves.experiment), draw_lag(curves), draw_timeline(curves)):
        _check_texts(figure, fewest=12)


def _check_texts(figure: Figure | None, fewest: int) -> None:
    assert figure is not None
    figure.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent()) for text in _shown_texts(figure)]
    assert len(boxes) > fewest
    for index, (name, box) in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, name
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, name
        for other, other_box in boxes[index + 1 :]:
            assert not box.overlaps(other_box), (name, other)


def test_every_stage_has_its_own_colour() -> None:
    stages = [stage for stage in Stage if not stage.is_wait]
    assert set(STAGE_COLOURS) == set(stages)
    assert len(set(STAGE_COLOURS.values())) == len(stages)


def test_many_variants_keep_their_own_looks() -> None:
    looks = variant_looks([f"lr={index}" for index in range(14)])
    assert len(set(looks.values())) == 14


def test_labels_are_neither_formulas_nor_hidden() -> None:
    assert [label(text) for text in ("a$b$", "_hidden", "x\ny", "k" * 80)] == [
        r"a\$b\$",
        " _hidden",
        r"x\ny",
        "k" * 57 + "...",
    ]


def test_the_users_settings_are_left_alone() -> None:
    with mpl.rc_context({"font.size": 33.0}):
        with picture_style():
            assert mpl.rcParams["font.size"] == 11
        assert mpl.rcParams["font.size"] == 33.0


def test_a_folder_that_cannot_be_written_is_an_error(experiment: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write pictures to"):
        make_pictures(experiment, tmp_path / "file")


def test_plots_are_drawn_on_request_and_their_paths_printed(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, plots = make_run().folder, tmp_path / "plots"
    assert main([str(folder), "--plots", str(plots), "--format", "json"]) == 0
    output = capsys.readouterr()
    names = ("stages.png", "lanes.png", "timeline.png", "training.png")
    assert output.err.splitlines() == [f"picture: {plots}/{name}" for name in names]
    assert sorted(path.name for path in plots.iterdir()) == sorted(names)
    assert "picture" not in output.out


def test_several_experiments_get_a_folder_each(make_run: Make, tmp_path: Path) -> None:
    for scenario in ("one", "two"):
        (make_run(scenario=scenario).folder / "spans.jsonl").unlink()
    assert main([str(tmp_path / "results"), "--all", "--plots", str(tmp_path / "plots")]) == 0
    found = sorted(path.relative_to(tmp_path / "plots") for path in (tmp_path / "plots").rglob("*.png"))
    assert [str(path) for path in found] == [
        f"{scenario}/20261120-111500/{name}.png" for scenario in ("one", "two") for name in ("stages", "training")
    ]


@pytest.mark.slow
def test_pictures_need_neither_a_display_nor_a_home(experiment: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file where a folder is expected")
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "harness.compare", str(experiment), "--plots", str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / "out").glob("*.png"))) == 7


@pytest.mark.usefixtures("style")
def test_text_of_users_is_drawn_as_it_stands() -> None:
    """What the font lacks is written out: a box for each of two names would make them one."""
    assert label("caf\u00e9 \u6570\U0001f642") == "caf\u00e9 \\u6570\\U0001f642"
    assert label("a^2_b%<i>&amp;") == "a^2_b%<i>&amp;"
    assert folded(r"cost in \$ " * 3, 12).splitlines() == [r"cost in \$"] * 3
    assert folded("lr=1e-10\nlag 4", 36) == "lr=1e-10\nlag 4"


@pytest.mark.usefixtures("style")
def test_a_picture_is_as_high_as_its_legend() -> None:
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.add_subplot()
    place_legend(figure, [line_key(f"learning_rate=1e-{number} and a long name behind it") for number in range(30)])
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert len(_legend(figure)) == 30
    assert 0 <= legend.y0 < legend.y1 <= figure.bbox.y1
    assert axes.get_window_extent().x1 < legend.x0
    assert axes.get_window_extent().width > 0.4 * figure.bbox.width


@pytest.mark.usefixtures("style")
def test_steps_are_whole_and_numbers_that_are_none_are_gaps(make_run: Make, tmp_path: Path) -> None:
    values = {0: 0.0, 1: math.nan, 2: 1e9 + 2, 3: 1e9 + 3}
    make_run(
        metrics=lambda step: {"reward/total": Metric(values[step]), "loss": Metric(math.inf)}, settings="steps: 4\n"
    )
    curves = load_curves(tmp_path / "results" / "sync_k" / "20261120-111500")
    figure = draw_training(curves)
    (axes,) = [axes for axes in _axes(figure) if axes.get_visible()]
    drawn = np.asarray(axes.lines[0].get_ydata()).tolist()
    assert [None if math.isnan(value) else value for value in drawn] == [0.0, None, 1e9 + 2, 1e9 + 3]
    assert figure is not None
    figure.draw_without_rendering()
    ticks = [tick.get_text() for tick in axes.get_xticklabels()]
    assert all(float(tick.replace("\u2212", "-")).is_integer() for tick in ticks)
    assert len(set(ticks)) == len(ticks)
    assert axes.yaxis.get_offset_text().get_text() == ""
    point = make_run(
        scenario="point", steps=1, metrics=lambda step: {"loss": Metric(1e-6)}, settings="steps: 1\n"
    ).folder
    figure = draw_training(load_curves(point))
    assert figure is not None
    figure.draw_without_rendering()
    ticks = [tick.get_text().replace("\u2212", "-") for tick in figure.axes[0].get_xticklabels()]
    assert [float(tick).is_integer() for tick in ticks] == [True] * len(ticks)


def test_seconds_and_rewards_of_three_arms_are_points_with_intervals(make_run: Make, tmp_path: Path) -> None:
    """Student's 97.5% quantile of 2 degrees of freedom is 4.3027: 4.3027 x 0.1 / sqrt(3) = 0.2484."""
    arms = {"a": (1.0, 0.2), "b": (1.5, 0.5), "c": (2.0, 0.7)}  # an evaluation adds 0.5 s to each measured step

    def write(arm: str, seconds: float, reward: float, seed: int, status: str = "completed") -> None:
        evaluations = {0: (0.1, 9.0), 4: (reward + 0.1 * (seed - 1), 9.0)}
        pace = {"pace": lambda step: seconds - 0.5, "evaluations": evaluations}
        make_run(arm=arm, seed=seed, block=seed, position=ord(arm), status=status, **pace)

    for arm, (seconds, reward) in arms.items():
        if arm == "c":
            write(arm, seconds, reward, seed=1)
        for seed in range(3) if arm != "c" else ():
            write(arm, seconds, reward, seed)
        if arm == "b":
            assert draw_scatter(load_curves(tmp_path / "results").experiment) is None  # two arms
    write("d", 9.0, 0.9, seed=0, status="interrupted")  # its last reward is not its final one
    with picture_style():
        figure = draw_scatter(load_curves(tmp_path / "results").experiment)
    (axes,) = _axes(figure)
    drawn = [container for container in axes.containers if container.lines[0] is not None]
    places = [tuple(np.asarray(container.lines[0].get_data()).ravel()) for container in drawn]
    assert places == [pytest.approx(arms[arm]) for arm in "abc"]
    ends = [[line.get_segments()[0] for line in container.lines[2]] for container in drawn]
    assert [len(found) for found in ends] == [2, 2, 0]  # a single run has no interval
    assert ends[0][1][:, 1] == pytest.approx([0.2 - 0.2484, 0.2 + 0.2484], abs=1e-4)
    assert _legend(figure) == ["a", "b", "c"]
