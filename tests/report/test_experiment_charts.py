"""Charts of an experiment: which are drawn, what is on them, and that they are the same each time."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from harness.compare.__main__ import main
from harness.compare.judging import Judgement, judgements
from harness.compare.stats.verdicts import STEP, Effect, Verdict
from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.core.types import Metric
from harness.loop import Count, RolloutCounts
from harness.loop.replay import ReplayStats
from harness.report import experiment_charts as drawings
from harness.report.build import charts_of, document
from harness.report.canvas import save
from harness.report.document import Chart, Document, Section
from harness.report.files import save_charts
from tests.compare.recorded import only_experiment
from tests.report.figure_reader import axes_of, bars, boxes, legend, rows, texts, titles, xs, ys
from tests.stand_ins.members import lanes, made_experiment, made_run

EVALUATIONS = {0: (0.2, 12.0), 2: (0.4, 15.0), 4: (0.6, 18.0)}


def _metrics(step):
    kl = {
        f"kl/{pair}_{form}": Metric(0.01 * step, count=9)
        for pair in ("reference", "previous")
        for form in ("k3", "k1_sum")
    }
    return kl | {"grad_norm": Metric(1.0 + step), "clip_fraction": Metric(0.1 * step, count=9)}


@pytest.fixture
def experiment(make_run, tmp_path):
    """Arms k1 and k4 in two seeds each, with everything measured."""
    for arm, seed in product(("k1", "k4"), (0, 1)):
        evaluations = {step: (reward + 0.1 * seed, length) for step, (reward, length) in EVALUATIONS.items()}
        make_run(arm=arm, point={"seed": seed}, seed=seed, gap_s=0.5, evaluations=evaluations, metrics=_metrics)
    return only_experiment(tmp_path / "results")


def _charts(experiment):
    return {chart.key: chart for chart in charts_of(document(experiment, judgements(experiment)))}


# ---- which there are


def test_an_experiment_of_two_arms_with_lag_replay_and_kl(make_lagged_run, tmp_path):
    counts = RolloutCounts(Count(48, 480), dropped=Count(8, 96), trained=Count(24, 240), trained_again=Count(8, 80))
    replay = {"replay": lambda step: (ReplayStats(2 * step), 4), "ledger": counts, "lag": (1, 3)}
    for seed in (0, 1):
        make_lagged_run(arm="lag1", seed=seed, metrics=_metrics)
        settings = "replay: {capacity: 4, sampling: uniform}\n"
        make_lagged_run(arm="replay", seed=seed, metrics=_metrics, settings=settings, **replay)
    charts = _charts(only_experiment(tmp_path / "results"))
    assert " ".join(charts) == (
        "forest_replay stages lanes timeline step_time reward training kl stability lag waste sync"
    )
    assert bars(axes_of(charts["waste"])[0]) == {
        "trained on": [(0.0, 100.0), (0.0, 50.0)], "never used": [(50.0, 30.0)], "dropped as too old": [(80.0, 20.0)],
    }  # fmt: skip
    assert titles(charts["kl"])[-1] == "Reward over the same steps"


def test_what_was_not_measured_is_not_drawn(make_run, make_lagged_run):
    folder = make_run(metrics=lambda step: {}).folder
    (folder / "spans.jsonl").unlink()
    assert list(_charts(only_experiment(folder))) == ["stages", "step_time"]
    assert _charts(only_experiment(make_run(scenario="empty", steps=0, status="failed").folder)) == {}
    never = made_run(metrics={"reward/total": [0.1] * 4, "loss": [np.inf] * 4})
    assert titles(drawings.curve_charts(made_experiment(never))["training"]) == ["Training reward"]
    in_turns = make_lagged_run(max_lag=0, lag=(0, 0), settings="transport: {type: in_process}\n").folder
    assert not {"lag", "sync", "waste", "kl"} & {*_charts(only_experiment(in_turns))}


def test_pictures_are_drawn_without_the_users_settings_and_printed(experiment, tmp_path, capsys):
    names = ["forest_k4", "stages", "lanes", "timeline", "step_time", "reward", "kl", "stability"]
    with mpl.rc_context({"font.size": 33.0}):  # the user's own settings count for nothing, and are left alone
        assert main([str(tmp_path / "results"), "--plots", str(tmp_path), "--json"]) == 0
        assert mpl.rcParams["font.size"] == 33.0
    output = capsys.readouterr()
    assert output.err.splitlines() == [f"picture: {tmp_path}/{name}.png" for name in names]
    assert json.loads(output.out)["schema"] == "harness.comparison"
    usual = save(_charts(experiment)["stages"].figure, tmp_path / "usual.png")
    assert usual.read_bytes() == (tmp_path / "stages.png").read_bytes()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file'"):
        save_charts(document(experiment, []), tmp_path / "file")


def test_an_arm_cannot_name_a_picture_elsewhere_and_experiments_get_a_folder_each(make_run, tmp_path):
    chart, out = Chart("forest_../../x", "", "", Figure), tmp_path / "plots"
    paths = save_charts(Document("", "", None, (), (Section("verdicts", "", (chart,)),)), out / "own")
    assert paths == [out / "own" / "forest_..-..-x.png"]
    for scenario in ("one", "two"):
        (make_run(scenario=scenario, steps=1).folder / "spans.jsonl").unlink()
    assert main([str(tmp_path / "results"), "--all", "--plots", str(out)]) == 0
    made = {str(path.parent.relative_to(out)) for path in out.rglob("*.png")}
    assert made == {"own", "one/20261120-111500", "two/20261120-111500"}


@pytest.mark.slow
def test_pictures_need_neither_a_display_nor_a_home(experiment, tmp_path):
    home = tmp_path / "home"
    home.write_text("a file where a folder is expected")
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "harness.compare", str(experiment.folder), "--plots", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(tmp_path.glob("*.png"))) == 8


# ---- time


def test_processes_are_shares_of_the_window(experiment):
    (axes,) = axes_of(_charts(experiment)["lanes"])
    assert rows(axes) == ["generator", "scorer", "learner"] * 2
    parts = bars(axes)  # of 2 s: update 0.5, waiting 1, in no stage 0.5
    assert [parts[name][0] for name in ("update", "wait_for_batch")] == [(0.0, 25.0), (25.0, 50.0)]
    assert (parts["unattributed"][2], texts(axes)[2]) == ((75.0, 25.0), "25.0% busy")


def test_bars_are_means_over_all_runs_where_one_alone_kept_its_spans(make_run, tmp_path):
    """Steps of 1 s and 2.5 s, of which the update is 0.5 and 2 s; the run of the slow ones has no spans any more."""
    make_run(arm="k1", block=0)
    slow = [("generator", Stage.GENERATE, 0.3), ("scorer", Stage.SCORE, 0.1), ("learner", Stage.UPDATE, 2.0)]
    run = make_run(arm="k1", block=1, stages=[*slow, ("generator", Stage.WEIGHT_LOAD, 0.1)])
    (run.folder / "spans.jsonl").unlink()
    chart = _charts(only_experiment(tmp_path / "results"))["stages"]
    assert bars(axes_of(chart)[0])["update"] == [(0.4, 1.25)]
    assert chart.table is not None  # spent and on the critical path are of the same run
    assert dict(chart.table.rows)["update"].split() == ["0.500", "/", "0.500", "50.0%"]
    assert any("1 of 2 runs" in note for note in chart.table.notes)


def test_busy_and_critical_seconds_where_processes_overlap():
    """Two runs of which one has spans: both bars are of that one."""
    times = lanes(1.0, 1.4, 1.0, 0.4, {"update": 4 * 0.9, "unattributed": 4 * 0.1}, generator=0.5, learner=0.9)
    with_spans = made_run(stages_s={"generate": 0.5, "update": 0.9}, times=times)
    without = made_run(seed=1, wall_s=2.0, stages_s={"generate": 1.0, "update": 1.8})
    figures = {f"timing_s/{stage}": seconds for stage, seconds in (("generate", 0.5), ("update", 0.9))}
    with_spans.figures.update(figures, stages_s=1.4)
    (axes,) = axes_of(drawings.stages_chart(made_experiment(with_spans, without)))
    assert rows(axes) == ["busy (1 of 2)", "critical path (1 of 2)"]
    assert bars(axes) == {
        "generate": [(0.0, 0.5)], "update": [(0.5, 0.9), (0.0, 0.9)], "unattributed": [(0.9, 0.1)],
    }  # fmt: skip
    assert texts(axes) == ["1.40 s", "1.00 s"]


def test_the_steps_of_a_timeline_follow_a_rule():
    cases = [
        (40, (), (10, 15)),  # starts after a quarter
        (40, (9, 19, 29, 39), (10, 15)),
        (40, (12, 22, 32), (13, 18)),  # the first window without an evaluation
        (40, range(0, 40, 5), (10, 15)),  # there is none: the first one
        (20, (5, 8), (9, 14)),
        (4, (), (1, 3)),
        (1, (), (0, 0)),
    ]
    for steps, evaluated, shown in cases:
        assert drawings.shown_steps([float(step in evaluated) for step in range(steps)]) == shown


def test_the_timeline_has_a_row_for_each_lane_on_a_common_scale(lagged):
    """Steps 3 to 8 of 12, each of 1 s: the update from 0.2 to 0.9 s, weights loaded after 32 and after 52 ms."""
    (axes,) = axes_of(_charts(only_experiment(lagged))["timeline"])
    assert rows(axes) == ["generator", "scorer", "learner"] * 2
    assert boxes(axes, "update") == [(round(step + 0.2, 6), round(step + 0.9, 6)) for step in range(6)] * 2
    assert [text for text in texts(axes) if not text.isdigit()] == ["training steps 3 to 8 in 6.00 s"] * 2
    versions = [int(text) for text in texts(axes) if text.isdigit()]
    assert versions == [*range(3, 9), *range(4, 10)] * 2  # the Generator's, the Learner's
    assert sorted(x for line in axes.lines for x in xs(line))[:2] == pytest.approx([0.032, 0.052])


def test_a_new_part_without_weights_and_runs_without_versions(make_lagged_run, make_run):
    steps = make_lagged_run(steps=6).folder / "steps.jsonl"
    old = '[2.032,"generator",2]'
    steps.write_text(steps.read_text().replace(old, f'[1.5,"generator",-1],{old}'))
    (axes,) = axes_of(drawings.timeline_chart(only_experiment(steps.parent)))
    # steps 1 to 5; the part died half a second into the first of them
    assert texts(axes)[1:4] == ["1", "none", "2"]
    (axes,) = axes_of(drawings.timeline_chart(only_experiment(make_run().folder)))
    assert not any(text.isdigit() for text in texts(axes))


def test_a_sync_is_the_means_of_its_parts(lagged):
    """Publish 10, transfer 20, load 10 and 4 ms of verifying (2 at each end); then 10, 30, 20 and 4: 20 MB each."""
    (axes,) = axes_of(_charts(only_experiment(lagged))["sync"])
    assert {part: [length for _, length in bars] for part, bars in bars(axes).items()} == {
        "weight_publish": [10.0, 10.0], "weight_transfer": [20.0, 30.0], "weight_load": [10.0, 20.0],
        "weight_verify": [4.0, 4.0],
    }  # fmt: skip
    assert texts(axes) == ["40.0 ms, 0.500 GB/s", "60.0 ms, 0.333 GB/s"]
    assert rows(axes) == ["nixl", "object_store"]


def test_lag_is_a_histogram_of_trained_rollouts(lagged):
    """12 steps of 2 + 2 rollouts: lag 1 in all but the first; lag 3, or as much as there can be: 0, 1, 2, 3, 3, ..."""
    chart = _charts(only_experiment(lagged))["lag"]
    (axes,) = axes_of(chart)
    shares = [[round(48 * bar.get_height(), 6) for bar in bars.patches] for bars in axes.containers]
    assert shares == [[4, 44], [4, 24, 2, 18]]
    assert legend(chart) == ["lag1: mean 0.92", "lag3: mean 1.7"]  # 44 / 48; (24 + 4 + 54) / 48


# ---- learning


def test_reward_is_drawn_over_steps_and_over_seconds(experiment):
    chart = _charts(experiment)["reward"]
    over_steps, over_seconds, length, _ = axes_of(chart)
    assert xs(over_steps.lines[0]) == [0, 2, 4]
    assert ys(over_steps) == pytest.approx([0.25, 0.45, 0.65])  # mean of the seeds 0.1 apart
    assert len(over_steps.collections) == 2  # a band for each arm
    assert xs(over_seconds.lines[0]) == [1.0, 5.0, 9.0]  # 1, + 2 * 1.5 + 1, + 2 * 1.5 + 1
    assert ys(length) == [12.0, 15.0, 18.0]
    assert legend(chart) == ["k1 (2 runs)", "k4 (2 runs)", "target 0.5"]
    assert (ys(over_steps, 2), len(length.lines)) == ([0.5, 0.5], 2)  # the target is a line where rewards are


def test_curves_show_each_metric_over_the_training_steps(make_run):
    """The exact KL stands beside k3, where it is known."""

    def metrics(step):
        exact = {"kl/reference_exact": Metric(0.12 * step, count=9), "reward/total": Metric(0.1 * step, count=64)}
        exact |= {"loss": Metric(0.01 * step), "response_length": Metric(12.0, count=64)}
        return _metrics(step) | exact | {"zero_variance_fraction": Metric(0.25, count=8)}

    charts = _charts(only_experiment(make_run(metrics=metrics).folder))
    kinds = [("reference", kind) for kind in ("k3", "exact", "k1_sum")] + [("previous", "k3"), ("previous", "k1_sum")]
    assert titles(charts["kl"]) == [f"KL to the {policy} policy, {kind}" for policy, kind in kinds]
    shown = [ys(axes) for key in ("training", "kl", "stability") for axes in axes_of(charts[key])]
    lines = [(0, 0.1), (0, 0.01), (0.25, 0), (12, 0)]  # begins at, rises by
    lines += [(0, 0.01), (0, 0.12), *[(0, 0.01)] * 3, (1, 1), (0, 0.1)]
    assert shown == [pytest.approx([start + slope * step for step in range(4)]) for start, slope in lines]


def test_loss_and_reward_are_drawn_over_optimizer_steps(make_run):
    """Two optimizer steps of a training step: four training steps end at optimizer step 8."""
    folder = make_run(
        evaluations=EVALUATIONS,
        metrics=lambda step: {"reward/total": Metric(0.1 * step, count=64), "loss": Metric(0.01 * step)},
        optimizer_steps=2,
        optimizer_step_metrics=lambda step: [{"loss": Metric(float(step))}, {"loss": Metric(step + 0.5)}],
    ).folder
    trained, reward, loss = axes_of(_charts(only_experiment(folder))["optimizer_steps"])
    assert (xs(trained.lines[0]), ys(trained)) == ([0.0, 2.0, 4.0, 6.0], pytest.approx([0.0, 0.1, 0.2, 0.3]))
    assert (xs(reward.lines[0]), ys(reward)) == ([0.0, 4.0, 8.0], [0.2, 0.4, 0.6])
    assert (xs(loss.lines[0]), ys(loss)) == ([*range(8)], [step / 2 for step in range(8)])


REWARDS, DELTAS, LOSSES, SEEDS = ("positions", "inclusion"), ("rewards", "centered", "max"), ("naive", "clip"), (0, 1)


def test_each_panel_of_a_grid_holds_the_lines_of_its_point():
    """Rewards of 100, 10, 1 and 0.1 times the places on the axes: every run ends at one of its own."""

    def reward_of(reward, delta, loss, seed):
        return 100 * REWARDS.index(reward) + 10 * DELTAS.index(delta) + LOSSES.index(loss) + 0.1 * seed

    runs = []
    for number, (reward, delta, loss, seed) in enumerate(product(REWARDS, DELTAS, LOSSES, SEEDS)):
        point = {"task.reward": reward, "advantage.delta": delta, "loss.type": loss, "seed": seed}
        evaluations = {0: (0.0, 3.0), 2: (reward_of(reward, delta, loss, seed), 3.0)}
        runs.append(made_run(None, seed, 2, point=point, position=number, evaluations=evaluations))
    chart = drawings.grid_chart(made_experiment(*runs))
    points = list(product(REWARDS, DELTAS))
    assert titles(chart) == [f"reward: {reward}, delta: {delta}" for reward, delta in points]
    for axes, (reward, delta) in zip(axes_of(chart), points, strict=True):
        ends = [(xs(axes.lines[place])[-1], round(ys(axes, place)[-1], 6)) for place in range(2)]
        assert ends == [(2, round(reward_of(reward, delta, loss, 0.5), 6)) for loss in LOSSES]
    assert legend(chart) == ["type: naive (2 runs)", "type: clip (2 runs)"]


def test_one_axis_or_arms_or_no_evaluation_make_no_grid():
    def is_drawn(*points, arm=None, evaluations=EVALUATIONS):
        runs = [made_run(arm, point=point, evaluations=evaluations) for point in points]
        return drawings.grid_chart(made_experiment(*runs)) is not None

    assert is_drawn({"x": 1, "y": 2})
    assert not is_drawn({"loss.type": "naive", "seed": 0})
    assert not is_drawn({"x": 1, "y": 2}, arm="a")
    assert not is_drawn({"x": 1, "y": 2}, evaluations=None)
    assert not is_drawn(*({"x": x, "y": 1} for x in range(61)))


def test_seconds_and_rewards_of_three_arms_are_points_with_intervals():
    """Student's 97.5% quantile of 2 degrees of freedom is 4.3027: 4.3027 x 0.1 / sqrt(3) = 0.2484."""
    arms = {"a": (1.0, 0.2), "b": (1.5, 0.5), "c": (2.0, 0.7)}
    runs = {
        (arm, seed): made_run(
            arm, seed, wall_s=wall_s, evaluations={0: (0.1, 9.0), 4: (reward + 0.1 * (seed - 1), 9.0)}
        )
        for arm, (wall_s, reward) in arms.items()
        for seed in range(3)
    }
    two = [run for (arm, _), run in runs.items() if arm != "c"]
    assert drawings.scatter_chart(made_experiment(*two)) is None
    chart = drawings.scatter_chart(made_experiment(*two, runs["c", 1]))
    (axes,) = axes_of(chart)
    points = [(xs(axes.lines[place])[0], ys(axes, place)[0]) for place in range(3)]
    assert points == [pytest.approx(arms[arm]) for arm in "abc"]
    upright = [lines.get_segments()[0] for lines in axes.collections[1::2]]
    assert upright[0][:, 1].tolist() == pytest.approx([0.2 - 0.2484, 0.2 + 0.2484], abs=1e-4)
    assert len(upright[2]) == 0  # a single run has no interval


def test_a_forest_has_each_effect_and_the_noise_floor_and_none_is_drawn_of_one_block():
    def effect(name, ratio, ends, verdict, blocks=6):
        low, high = ends or (None, None)
        return Effect(name, blocks, ratio, low, high, 0.03, 0.06, 0.034, 0.03 if name == STEP else 0.05, verdict)

    effects = (effect(STEP, 1.25, (1.2, 1.3), Verdict.DIFFERENT), effect("update", 0.8, (0.7, 0.9), Verdict.DIFFERENT))
    floor = effect(STEP, 1.01, (0.98, 1.04), Verdict.INCONCLUSIVE)
    chart = drawings.forest_chart(Judgement("k1", "<k2>", effects, noise_floor=floor))
    (axes,) = axes_of(chart)
    assert dict(zip(rows(axes), texts(axes), strict=True)) == {
        "whole step": "1.25 [1.20, 1.30]", "update": "0.80 [0.70, 0.90]", "k1 against itself": "1.01 [0.98, 1.04]",
    }  # fmt: skip
    assert (chart.title, legend(chart)[:3]) == ("<k2> against k1", ["faster", "slower", "cannot tell"])
    single = Judgement("k1", "k2", (effect(STEP, 1.2, None, Verdict.INCONCLUSIVE, 1),))
    assert drawings.forest_chart(single) is None
