"""Charts: the points of the frames are the points of the figures, whatever the names in them are."""

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from harness.compare.judging import judgements
from harness.core.trace import Stage
from harness.report import charts
from harness.report.build import charts_of, document
from harness.report.canvas import (
    ARM_COLOURS,
    COLOUR_NAMES,
    EM,
    PART_LOOKS,
    STAGE_COLOURS,
    TIMELINE,
    VERDICTS,
    arm_looks,
    save,
)
from harness.report.charts import SECONDS, Bar, Panel
from tests.compare.recorded import recorded
from tests.report.figure_reader import axes_of, bars, boxes, legend, points, rows, texts, whiskers, xs, ys

NAN = float("nan")
EVIL = ("<script>alert(1)</script>", "$x$ and $", "_a", "\u202eabc\u0000", "\u6570\ufffe", "n" * 10_000)


def _frame(columns, *rows):
    return pd.DataFrame(list(rows), columns=columns.split())


SEEDS = _frame(
    "arm seed x value panel",
    *[(arm, seed, x, x / 10 + seed, "A") for arm in ("k1", "k2") for seed in (0, 1) for x in range(4)],
)


def test_a_line_is_the_mean_of_the_seeds_and_its_band_reaches_to_the_lowest_and_highest():
    figure = charts.curves(SEEDS, [Panel("A", "reward", levels={"target 0.5": 0.5})])
    (axes,) = axes_of(figure)
    assert points(axes) == [(x, pytest.approx(x / 10 + 0.5)) for x in range(4)]
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)
    for x in range(4):
        assert sorted({round(float(y), 9) for bx, y in band if bx == x}) == pytest.approx([x / 10, x / 10 + 1])
    assert legend(figure) == ["k1 (2 runs)", "k2 (2 runs)", "target 0.5"]
    assert ys(axes, 2) == [0.5, 0.5]
    assert [text.get_text() for text in figure.subfigs[1].texts] == ["A", "reward"]
    # an arm keeps its colour where another is missing
    (drawn,) = axes_of(charts.curves(SEEDS[SEEDS["arm"] == "k2"], [Panel("A", "x")], arms=("k1", "k2")))
    assert to_hex(drawn.lines[0].get_color()) == ARM_COLOURS[1]


def test_over_seconds_the_nth_values_are_averaged_with_their_times():
    frame = _frame("arm seed x value panel", ("a", 0, 1.0, 0.2, "S"), ("a", 0, 3.0, 0.4, "S"), ("a", 1, 2.0, 0.4, "S"))
    (axes,) = axes_of(charts.curves(frame, [Panel("S", "reward", SECONDS)]))
    assert points(axes) == [(1.5, pytest.approx(0.3)), (3.0, 0.4)]  # the second seed ended early


def test_numbers_that_are_none_are_gaps_and_steps_are_whole_and_tiny_ones_written_at_their_ticks():
    values = [1e9, NAN, math.inf, 1e9 + 3]
    frame = _frame("arm seed x value panel", *[("a", 0, step, value, "A") for step, value in enumerate(values)])
    figure = charts.curves(frame, [Panel("A", "loss")])
    (axes,) = axes_of(figure)
    assert [y for _, y in points(axes)] == [1e9, *[pytest.approx(NAN, nan_ok=True)] * 2, 1e9 + 3]
    single = charts.curves(frame.head(1), [Panel("A", "loss")])
    frame = _frame("arm seed x value panel", *[("a", 0, step, step * 1e-8, "A") for step in range(-2, 3)])
    tiny = charts.curves(frame, [Panel("A", "loss")])
    for drawn in (figure, single, tiny):
        drawn.draw_without_rendering()
        (axes,) = axes_of(drawn)
        assert all(float(tick).is_integer() for tick in axes.get_xticks())
        assert axes.yaxis.get_offset_text().get_text() == ""
    assert "\N{MINUS SIGN}1e\N{MINUS SIGN}8" in [tick.get_text() for tick in axes.get_yticklabels()]


def test_long_lines_are_thinned_to_means_with_the_ends_kept():
    frame = _frame("arm seed x value", *[("a", 0, step, float(step % 5 == 0)) for step in range(1000)])
    line = charts.mean_line(frame, "training step")
    assert len(line) == 200
    assert line.iloc[0].tolist() == [2.0, 0.2, 0.0, 1.0]


def test_wide_norms_get_a_log_axis_others_begin_at_zero():
    rows = [("a", 0, step, 10.0**step, "wide") for step in range(3)] + [
        ("a", 0, step, 1.0 + step, "narrow") for step in (0, 1)
    ]
    panels = [Panel(name, "L2", scale="wide") for name in ("wide", "narrow")]
    wide, narrow = axes_of(charts.curves(_frame("arm seed x value panel", *rows), panels))
    assert (wide.get_yscale(), narrow.get_yscale(), narrow.get_ylim()[0]) == ("log", "linear", 0.0)
    assert wide.get_xlim() == narrow.get_xlim()


BARS = [
    Bar("k1", "busy", {"update": 0.5, "generate": 0.4}, "0.90 s", 0.8, 1.0),
    Bar("k1", "critical path", {"unattributed": 0.2, "wait_for_batch": 0.4, "update": 0.5}),
    Bar("k2", "busy", {"update": 1.0, "score": 0.0}, "1.00 s", mark=1.1),
]


def test_bars_stack_work_then_waits_then_the_rest():
    figure = charts.bars(BARS, x_label="seconds per training step")
    (axes,) = axes_of(figure)
    assert bars(axes) == {
        "generate": [(0.0, 0.4)], "update": [(0.4, 0.5), (0.0, 0.5), (0.0, 1.0)], "wait_for_batch": [(0.5, 0.4)],
        "unattributed": [(0.9, 0.2)],
    }  # fmt: skip
    assert (rows(axes), texts(axes)) == (["busy", "critical path", "busy"], ["0.90 s", "1.00 s"])
    assert legend(figure) == ["generate", "update", "waiting", "unattributed", "lowest to highest", "wall-clock"]
    assert [xs(line) for line in axes.lines] == [[0.8, 1.0], [1.1, 1.1]]


def test_the_timeline_shows_every_span_and_marks_versions():
    spans = [
        ("sync", "generator", "generate", 0.0, 0.4), ("sync", "learner", "wait_for_batch", 0.0, 0.4),
        ("sync", "learner", "update", 0.4, 1.0), ("sync", "generator", "weight_load", 0.5, 0.5),
    ]  # fmt: skip
    changes = [("sync", "learner", *change) for change in ((0.10, -1), (0.11, 0), (1.0, 1))]
    windows = {"sync": (1.0, "training step 3 in 1.00 s"), "lag": (2.0, "no spans")}
    figure = charts.timeline(spans, changes, windows)
    (axes,) = axes_of(figure)
    assert boxes(axes, "update") == [(0.4, 1.0)]
    assert boxes(axes, "wait_for_batch") == [(0.0, 0.4)]
    assert boxes(axes, "weight_load") == [(0.5, 0.5 + 2.0 * charts.NARROWEST)]  # too short to be seen
    assert xs(axes.lines[0]) == [0.10, 0.11, 1.0]
    assert texts(axes) == ["training step 3 in 1.00 s", "no spans", "0", "1"]  # no room for the first version
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["generator", "learner", "no span"]
    assert legend(figure)[-2:] == ["unattributed", "policy version now held"]


def test_choices_are_lines_over_numbers_and_points_over_names_with_the_one_to_take_marked():
    lags = [("a", x, 5.0 * x, 4.0 * x, 6.0 * x, x == 16, "take 4" if x == 4 else "") for x in (16, 1, 4)]
    figure = charts.choices(lags, x_label="lag", y_label="tokens a second")
    (axes,) = axes_of(figure)
    assert points(axes) == [(1.0, 5.0), (4.0, 20.0), (16.0, 80.0)]
    assert [
        points(axes, place) for place, line in enumerate(axes.lines) if line.get_markerfacecolor() == "#ffffff"
    ] == [[(16.0, 80.0)]]
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("take 4", (4, 16.0))]
    assert whiskers(axes) == [[[1.0, 4.0], [1.0, 6.0]], [[4.0, 16.0], [4.0, 24.0]], [[16.0, 64.0], [16.0, 96.0]]]
    assert (axes.get_xscale(), legend(figure)) == ("log", ["a", "90% interval", "EXTRAPOLATING"])
    named = [("", place, 5.0, 4.0, 6.0, False, "") for place in (2, 0, 1)]
    figure = charts.choices(named, names=("gloo", "disk", "nixl"), x_label="transport", y_label="y")
    assert [tick.get_text() for tick in axes_of(figure)[0].get_xticklabels()] == ["gloo", "disk", "nixl"]


def test_a_forest_has_an_interval_a_colour_and_a_number_for_each_row():
    ratios = [
        ("k2", "step", 0.8, 0.7, 0.9, "faster", 0.03), ("k2", "update", 1.3, 1.2, 9.0, "slower", 0.05),
        ("k2", "load", NAN, None, None, "cannot tell", 0.05),
    ]  # fmt: skip
    figure = charts.forest(ratios, x_label="times that of k1")
    (axes,) = axes_of(figure)
    lines = [line for line in axes.lines[1:] if len(xs(line)) == 2]
    assert [xs(line) for line in lines[:2]] == [[0.7, 0.9], [1.2, 4.0]]
    assert [to_hex(line.get_color()) for line in lines] == [VERDICTS[word][0] for *_, word, _ in ratios]
    assert texts(axes) == ["0.80 [0.70, 0.90]", "1.30 [1.20, 9.00]", "-"]
    band = axes.patches[0]
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((1 / 1.03, 1.03))
    assert (axes.get_xscale(), 1.0 in axes.get_xticks()) == ("log", True)
    assert legend(figure) == ["faster", "slower", "cannot tell", "too small to matter", "beyond the axis"]


@pytest.mark.parametrize(
    ("low", "value", "high"), [(0.995, 1.0, 1.005), (0.9, 1.0, 1.2), (0.01, 1.0, 90.0), (5.0, 20, 1e4)]
)
def test_ticks_of_a_forest_stand_apart_and_arrows_point_at_what_lies_beyond(low, value, high):
    figure = charts.forest([("arm", "long " * 4, value, low, high, "cannot tell", 0.03)], x_label="ratio")
    (axes,) = axes_of(figure)
    figure.draw_without_rendering()
    ends = [tick.label1.get_window_extent() for tick in axes.xaxis.get_major_ticks()]
    assert len(ends) == 3
    assert all(left.x1 + 5 < right.x0 for left, right in pairwise(ends))
    arrows = [(line.get_marker(), *xs(line)[:1]) for line in axes.lines if line.get_marker() in ("<", ">")]
    assert arrows == [*([("<", 0.25)] if low < 0.25 else []), *([(">", 4.0)] if high > 4 else [])]
    marks = [xs(line) for line in axes.lines if line.get_marker() == VERDICTS["cannot tell"][1]]
    assert marks == [[value]] * (value < 4)  # elsewhere the arrow stands in the point's place


def test_points_are_medians_with_whiskers_and_the_plain_copy_is_dashed():
    syncs = [("1", "nixl", 10.0, 4.0, NAN, NAN, 3.0, 9.0), ("1", "nixl", 1.0, 2.0, NAN, NAN, 1.5, 2.5)]
    copies = [("1", charts.COPY, 1.0, ms, *[NAN] * 4) for ms in (0.1, 0.3, 0.2)]
    axis = {"x_label": "MB", "y_label": "ms", "scale": "log", "has_lines": True}
    figure = charts.points([*syncs, *copies], arms=["nixl"], **axis)
    (axes,) = axes_of(figure)
    assert points(axes) == [(1.0, 2.0), (10.0, 4.0)]
    assert (points(axes, 1), axes.lines[1].get_linestyle()) == ([(1.0, 0.2)], "--")
    assert [own for own in whiskers(axes) if own] == [[[1.0, 1.5], [1.0, 2.5]], [[10.0, 3.0], [10.0, 9.0]]]
    assert (axes.get_xscale(), axes.get_yscale(), legend(figure)) == ("log", "log", ["nixl", "plain copy in memory"])


def _of_names(names):
    curves = _frame("arm seed x value panel", *[(name, 0, step, step, "A") for name in names for step in (0, 1)])
    spans = [(name, name, "generate", 0.0, 1.0) for name in names]
    changes = [(name, name, 0.5, 1) for name in names]
    ratios = [(name, name, 1.1, 1.0, 1.2, "same", 0.03) for name in names]
    syncs = [(name, name, 1.0, 2.0, NAN, NAN, 1.0, 3.0) for name in names]
    title = names[-1]
    return {
        "curves": lambda: charts.curves(curves, [Panel("A", title)], title=title),
        "bars": lambda: charts.bars(
            [Bar(name, name, {name: 1.0}, "1 s") for name in names], x_label=title, title=title
        ),
        "timeline": lambda: charts.timeline(spans, changes, {name: (1.0, name) for name in names}, title=title),
        "forest": lambda: charts.forest(ratios, x_label=title, title=title),
        "points": lambda: charts.points(syncs, x_label=title, y_label=title, arms=names, title=title),
        "lags": lambda: charts.lags([(name, 1, 2) for name in names], title=title),
    }


@pytest.mark.parametrize("kind", sorted(_of_names(("a",))))
def test_names_are_neither_formulas_nor_hidden_nor_boxes(kind, tmp_path):
    """No warning of a missing glyph or a hidden entry."""
    figure = _of_names(EVIL)[kind]()
    assert save(figure, tmp_path / "one.png").stat().st_size > 1000
    shown = {text.get_text() for text in _shown_texts(figure)}
    for name in ("<script>alert(1)</script>", r"\$x\$ and \$", "_a", r"\u202eabc\x00", r"\u6570\ufffe"):
        assert any(text.lstrip().startswith(name[:12]) for text in shown), name
    assert not any(text.startswith("_") for text in legend(figure))
    assert max(map(len, shown)) <= int(TIMELINE / EM) + 5


def test_each_stage_and_arm_has_a_look_of_its_own():
    assert set(STAGE_COLOURS) == {stage for stage in Stage if not stage.is_wait}
    assert len({str(look) for look in PART_LOOKS.values()}) == len(PART_LOOKS)
    looks = arm_looks([f"lr={index}" for index in range(40)])
    assert len({(look["color"], look["marker"]) for look in looks.values()}) == 40
    assert len(COLOUR_NAMES) == len(set(COLOUR_NAMES.values()))
    assert not {*ARM_COLOURS} & {colour.lower() for colour in STAGE_COLOURS.values()}


@pytest.mark.parametrize("name", ["async_lag1", "transport_sweep"])
def test_no_text_overlaps_another_or_leaves_its_cell(name):
    (experiment,) = recorded(name)
    for chart in charts_of(document(experiment, judgements(experiment))):
        figure = chart.figure
        figure.draw_without_rendering()
        boxes = [
            (text.get_text(), text.get_window_extent()) for text in _shown_texts(figure) if text.get_text().strip()
        ]
        assert len(boxes) > 10
        for index, (name, box) in enumerate(boxes):
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, name
            assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, name
            for other, other_box in boxes[index + 1 :]:
                assert not box.overlaps(other_box), (name, other)


def _shown_texts(figure):
    every = list(figure.texts)
    for cell in figure.subfigs:
        every += [*cell.texts, *(text for legend in cell.legends for text in legend.get_texts())]
    for axes in axes_of(figure):
        every += [*axes.texts, axes.xaxis.label]
        for axis in (axes.xaxis, axes.yaxis):
            every += [tick.label1 for tick in axis._update_ticks()]
    return every
