"""The pictures of overlap, weight syncs and lag: which part of a run they show, and what is on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from harness.core.trace import Stage
from harness.report.bars import draw_lag, draw_sync
from harness.report.data import load_curves, trained_by_lag
from harness.report.pictures import make_pictures
from harness.report.style import STAGE_COLOURS
from harness.report.timeline import choose_steps, draw_timeline, excerpt
from harness.results import RunFolder, StepRow, load_run

Make = Callable[..., RunFolder]


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


def _row(step: int, evaluated: bool = False) -> StepRow:
    return StepRow(step, step + 1, 1.0, step + 1.0, 1, {}, {"evaluate": 0.5} if evaluated else {"update": 0.5}, {})


@pytest.mark.parametrize(
    ("steps", "evaluated", "shown"),
    [
        (40, (), range(10, 16)),  # starts after a quarter
        (40, (9, 19, 29, 39), range(10, 16)),
        (40, (12, 22, 32), range(13, 19)),  # the first window without an evaluation
        (40, range(0, 40, 5), range(10, 16)),  # there is none: the first one
        (20, (5, 8), range(9, 15)),
        (4, (), range(1, 4)),
        (1, (), range(1)),
        (0, (), range(0)),
    ],
)
def test_the_steps_of_a_timeline_follow_a_rule(steps: int, evaluated: Sequence[int], shown: range) -> None:
    rows = [_row(step, step in evaluated) for step in range(steps)]
    assert [row.step for row in choose_steps(rows)] == list(shown)


def test_the_excerpt_holds_the_window_its_spans_and_changes(lagged: Path) -> None:
    part = excerpt(load_run(lagged / "lag1,seed=0"))
    assert part is not None
    # steps 3 to 8 of 12; the loop starts at 2 s and a step takes 1 s
    assert (part.steps, part.window, part.seconds) == ((3, 8), (5_000_000_000, 11_000_000_000), 6.0)
    assert part.lanes == ["generator", "scorer", "learner"]
    # loaded after 10 + 20 + 2 ms (transfer, verify, load), published 0.91 s into the step
    assert part.changes[:3] == (
        ("generator", 5_032_000_000, 3),
        ("learner", 5_910_000_000, 4),
        ("generator", 6_032_000_000, 4),
    )
    assert len(part.changes) == 12
    assert min(span.start_ns for span in part.spans) == 5_000_000_000
    assert max(span.end_ns for span in part.spans) == 11_000_000_000


@pytest.mark.usefixtures("style")
def test_the_timeline_has_a_row_for_each_lane_on_a_common_scale(lagged: Path) -> None:
    figure = draw_timeline(load_curves(lagged))
    first, second = _axes(figure)
    assert [tick.get_text() for tick in first.get_yticklabels()] == ["generator", "scorer", "learner"]
    assert first.get_xlim() == second.get_xlim() == (0.0, 6.0 * 1.01)
    assert first.get_title(loc="left") == "lag1: training steps 3 to 8 in 6.00 s"
    update = next(item for item in first.collections if _colour(item) == STAGE_COLOURS[Stage.UPDATE])
    boxes = [path.get_extents() for path in update.get_paths()]
    # from 0.2 to 0.9 s of each step, on the third row
    assert [round(box.x0, 6) for box in boxes] == [0.2, 1.2, 2.2, 3.2, 4.2, 5.2]
    assert {(round(box.width, 6), round((box.y0 + box.y1) / 2, 6)) for box in boxes} == {(0.7, 2.0)}
    assert [text.get_text() for text in first.texts][:6] == ["3", "4", "5", "6", "7", "8"]  # the Generator's versions
    assert [text.get_text() for text in first.texts][6:] == ["4", "5", "6", "7", "8", "9"]  # the Learner's
    assert _legend(figure)[-3:] == ["waiting", "no stage, no wait", "policy version now held"]


@pytest.mark.usefixtures("style")
def test_a_new_part_without_weights_is_marked_so(make_lagged_run: Make) -> None:
    folder = make_lagged_run(steps=6).folder
    steps = folder / "steps.jsonl"
    old = '[2.032,"generator",2]'
    assert old in steps.read_text()
    steps.write_text(steps.read_text().replace(old, f'[1.5,"generator",-1],{old}'))
    (axes,) = _axes(draw_timeline(load_curves(folder)))
    # steps 1 to 5; the part died half a second into the first of them
    assert [text.get_text() for text in axes.texts][:3] == ["1", "none", "2"]


def _colour(item: Any) -> str:
    return to_hex(item.get_facecolor()[0]).upper()


@pytest.mark.usefixtures("style")
def test_runs_of_before_versions_were_recorded_have_a_timeline_without_marks(make_run: Make) -> None:
    figure = draw_timeline(load_curves(make_run().folder))
    assert _legend(figure) == ["generate", "score", "update", "weight_load", "waiting", "no stage, no wait"]


@pytest.mark.usefixtures("style")
def test_short_work_is_still_seen(make_run: Make) -> None:
    stages = [("generator", Stage.GENERATE, 1.0), ("scorer", Stage.SCORE, 1e-5)]
    (axes,) = _axes(draw_timeline(load_curves(make_run(stages=stages).folder)))
    score = next(item for item in axes.collections if _colour(item) == STAGE_COLOURS[Stage.SCORE])
    # steps 1 to 3, 1.00001 s each: a thousandth of that
    assert [round(path.get_extents().width, 5) for path in score.get_paths()] == [0.003] * 3


@pytest.mark.usefixtures("style")
def test_versions_in_quick_succession_are_not_all_written_out(make_lagged_run: Make) -> None:
    quick = make_lagged_run(arm="quick", steps=12).folder
    make_lagged_run(arm="slow", steps=12)
    slow = quick.parent / "slow,seed=0"
    _stretch(slow, 100)
    first, second = _axes(draw_timeline(load_curves(quick.parent)))
    # the axis is 600 s long and a number needs 2.2% of it, 13 s: of 6 versions in 6 s the first is written
    assert [text.get_text() for text in first.texts] == ["3", "4"]
    assert len(second.texts) == 12


def _stretch(folder: Path, factor: int) -> None:
    """Have everything in a run take longer."""
    lines = (folder / "spans.jsonl").read_text().splitlines()
    spans = [json.loads(line) for line in lines[1:]]
    for span in spans:
        for edge in ("start_ns", "end_ns"):
            if span["stage"] != "startup":
                span[edge] = 2_000_000_000 + factor * (span[edge] - 2_000_000_000)
    (folder / "spans.jsonl").write_text("\n".join([lines[0], *map(json.dumps, spans), ""]))
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    for row in rows:
        for name in ("wall_s", "elapsed_s"):
            if name in row:
                row[name] *= factor
        for change in row.get("version_changes", ()):
            change[0] *= factor
    (folder / "steps.jsonl").write_text("\n".join([*map(json.dumps, rows), ""]))


@pytest.mark.usefixtures("style")
def test_sync_bars_stack_the_medians_of_the_parts(lagged: Path) -> None:
    figure = draw_sync(load_curves(lagged).experiment)
    (axes,) = _axes(figure)
    # publish 10, transfer 20, load 10 and 4 ms of verifying (2 at each end); then 10, 30, 20 and 4
    assert [bar for bar in _bars(axes) if bar[0] == 0.0] == [(0, 0, 10), (0, 10, 20), (0, 30, 10), (0, 40, 4)]
    assert [bar for bar in _bars(axes) if bar[0] == 1.0] == [(1, 0, 10), (1, 10, 30), (1, 40, 20), (1, 60, 4)]
    # 20 MB in 40 and in 60 ms
    assert [text.get_text() for text in axes.texts] == ["40.0 ms, 0.500 GB/s", "60.0 ms, 0.333 GB/s"]
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == ["lag1 (2 seeds)\nnixl, 20.0 MB", "lag3 (2 seeds)\nobject_store, 20.0 MB"]
    parts = ["weight_publish", "weight_transfer", "weight_load", "weight_verify"]
    assert _legend(figure) == [*parts, "publish to loaded,\np10 to p90"]


@pytest.mark.usefixtures("style")
def test_lag_is_a_histogram_of_trained_rollouts(lagged: Path) -> None:
    # of 12 steps of 2 + 2 rollouts: lag 1 in all but the first; lag 3, or as much as there can be: 0, 1, 2, 3, 3, ...
    assert trained_by_lag([load_run(lagged / "lag1,seed=0")]) == {0: 4, 1: 44}
    assert trained_by_lag([load_run(lagged / "lag3,seed=0")]) == {0: 4, 1: 24, 2: 2, 3: 18}
    figure = draw_lag(load_curves(lagged))
    first, second = _axes(figure)
    assert [round(bar.get_height(), 6) for bar in first.patches] == [round(4 / 48, 6), round(44 / 48, 6)]
    assert [text.get_text() for text in second.texts] == ["8.3%", "50.0%", "4.2%", "37.5%"]
    assert [axes.get_title(loc="left") for axes in (first, second)] == [
        "lag1 (2 seeds): mean 0.917",  # 44 / 48
        "lag3 (2 seeds): mean 1.71",  # (24 + 4 + 54) / 48
    ]


@pytest.mark.usefixtures("style")
def test_runs_without_lag_or_syncs_have_no_picture_of_them(make_lagged_run: Make) -> None:
    folder = make_lagged_run(max_lag=0, lag=(0, 0), settings="transport: {type: in_process}\n").folder
    curves = load_curves(folder.parent)
    assert draw_lag(curves) is None
    assert draw_sync(curves.experiment) is None


@pytest.mark.usefixtures("style")
def test_all_pictures_of_an_asynchronous_experiment(lagged: Path, tmp_path: Path) -> None:
    names = [path.name for path in make_pictures(lagged, tmp_path / "out")]
    assert names == [
        "stages.png",
        "lanes.png",
        "sync.png",
        "timeline.png",
        "reward.png",
        "training.png",
        "learning.png",
        "lag.png",
    ]
