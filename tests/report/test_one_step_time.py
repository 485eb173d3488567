"""The walk of a step's seconds: from the spans to frame, JSON, console, Markdown, page and charts, the same number."""

import io
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from harness.compare.experiment import gather
from harness.compare.judging import judgements
from harness.compare.numbers import change, number, percent
from harness.compare.steadiness import step_ratio
from harness.core.trace import Stage
from harness.report.as_json import comparison
from harness.report.build import charts_of, document
from harness.report.files import page
from harness.report.markdown import markdown
from harness.report.terminal import print_document
from harness.results import find_run_folders, load_run
from harness.simulate.metrics import metrics_of_run
from tests.run_folders import RunPlan, write_run
from tests.step_runs import write_steps

# of steps 2 to 11, which are measured: in flat 10 x (0.2 + 0.3) s and evaluations of 0.7 s in two of them; in hidden
# 8 x (0.2 + 0.3) s, 2 x (0.2 + 4.3) s and an evaluation of 1 s. Of each 0.2 s of generation 0.05 s are a weight load.
STEP_S = {"flat": 6.4 / 10, "hidden": 14.0 / 10}
STAGES_S = {
    "flat": {"generate": 0.15, "weight_load": 0.05, "update": 0.3, "evaluate": 0.14},
    "hidden": {"generate": 0.15, "weight_load": 0.05, "update": 1.1, "evaluate": 0.1},
}
RATIO = 14.0 / 6.4
MEDIAN_S = 0.5


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")

    def make_run(**fields):
        return write_run(results, replace(RunPlan(), **fields))

    uneven = [0.3] * 12
    uneven[4] = uneven[9] = 4.3
    more = {"generate_s": 0.2, "load_s": 0.05, "interleaving": "run"}
    write_steps(make_run, "flat", [0.3] * 12, evaluate_s={0: 9.0, 5: 0.7, 11: 0.7}, **more)
    write_steps(make_run, "hidden", uneven, evaluate_s={11: 1.0}, **more)
    (experiment,), _ = gather([results])
    stream = io.StringIO()
    made = document(experiment, judgements(experiment))
    print_document(Console(file=stream, width=120), made, full=True)
    (as_json,) = comparison([experiment], [])["campaigns"]
    return SimpleNamespace(
        experiment=experiment,
        document=made,
        console=[line.split() for line in stream.getvalue().splitlines()],
        markdown=markdown(made, full=True),
        page=page([made]),
        arms={arm["name"]: arm for arm in as_json["variants"]},
        simulator={folder.name: metrics_of_run(load_run(folder)) for folder in find_run_folders(results)},
    )


def _rows(shown, header):
    """Return the cells of the rows of the page that start with this."""
    rows = re.findall(rf'<th scope="row">{re.escape(header)}(?: \([^<]*)?</th>((?:<td[^>]*>[^<]*</td>)+)', shown)
    return [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in rows]


def _axes(outputs, key):
    (chart,) = (chart for chart in charts_of(outputs.document) if chart.key == key)
    (axes,) = [axes for cell in chart.figure.subfigs for axes in cell.axes]
    return axes


def test_seconds_per_step_are_the_same_everywhere(outputs):
    frame = outputs.experiment.runs.set_index("arm")
    steps = outputs.experiment.results.steps.query("not is_warmup").groupby("arm")["wall_s"].mean()
    for arm, expected in STEP_S.items():
        (run,) = outputs.arms[arm]["runs"]
        assert run["step"]["mean_s"] == run["figures"]["step_s"] == pytest.approx(expected)
        assert run["step"]["median_s"] == run["figures"]["median_step_s"] == pytest.approx(MEDIAN_S)
        everywhere = [steps[arm], frame.loc[arm, "step_s"], outputs.experiment.mean(arm, "step_s")]
        everywhere += [sum(run["exposed_s"].values()), outputs.simulator[arm].step_s]
        assert everywhere == pytest.approx([expected] * 5)
    short = [number(seconds) for seconds in STEP_S.values()]
    flat, hidden = (f"{seconds} 100.0%" for seconds in short)
    for cells in ([*short, change(RATIO)], [flat, hidden]):
        assert ["whole", "step", *" ".join(cells).split()] in outputs.console
        assert f"| whole step | {' | '.join(cells)} |" in outputs.markdown
    assert _rows(outputs.page, "whole step") == [[*short, change(RATIO)], [flat, hidden]]
    assert step_ratio(outputs.experiment, "flat", "hidden") == pytest.approx(RATIO)
    assert outputs.arms["hidden"]["step_ratio"] == pytest.approx(RATIO)
    _, answer, _ = outputs.document.answer  # between what was unequal and what is left without it
    assert f"hidden from flat per step: {change(RATIO)} in one run each" in answer.text


def test_the_parts_of_a_step_are_the_same_everywhere(outputs):
    frame = outputs.experiment.runs.set_index("arm")
    for place, (arm, stages) in enumerate(STAGES_S.items()):
        (run,) = outputs.arms[arm]["runs"]
        read = {stage: figures for stage, figures in run["stages"].items() if not Stage(stage).is_wait}
        assert {stage: figures["mean_s"] for stage, figures in read.items()} == pytest.approx(stages)
        assert sum(stages.values()) == pytest.approx(STEP_S[arm])  # the lanes took turns
        for stage, seconds in stages.items():
            share = seconds / STEP_S[arm]
            # on the critical path too: the Learner waits for what the Generator does
            everywhere = [frame.loc[arm, f"timing_s/{stage}"], outputs.simulator[arm].stages_s[stage]]
            assert [*everywhere, run["exposed_s"][stage]] == pytest.approx([seconds] * 3)
            assert read[stage]["share"] == pytest.approx(share)
            at_a_glance, busy_and_critical, in_full = (row[place].split() for row in _rows(outputs.page, stage))
            assert at_a_glance == [number(seconds)]
            assert busy_and_critical == [number(seconds), "/", number(seconds), percent(share)]
            assert in_full == [number(seconds), percent(share)]
            cells = [row[-2 * (2 - place) :][:2] for row in outputs.console if row[:1] == [stage]]
            assert in_full in cells
            in_lanes = sum(lane["stages_s"].get(stage, 0.0) for lane in run["lanes"].values())
            assert in_lanes == pytest.approx(10 * seconds)
        for lane in run["lanes"].values():
            assert lane["wall_s"] == pytest.approx(10 * STEP_S[arm])
            assert sum(lane["stages_s"].values()) + lane["unattributed_s"] == pytest.approx(lane["wall_s"])


def test_what_is_drawn_is_what_is_written(outputs):
    axes = _axes(outputs, "stages")
    for place, (arm, stages) in enumerate(STAGES_S.items()):
        drawn = {str(bars.get_label()): bars.patches[place].get_width() for bars in axes.containers}
        assert drawn == pytest.approx(stages), arm
    assert [text.get_text() for text in axes.texts] == [f"{number(seconds)} s" for seconds in STEP_S.values()]
    update = next(bars for bars in _axes(outputs, "lanes").containers if bars.get_label() == "update")
    shares = [100 * STAGES_S[arm]["update"] / STEP_S[arm] for arm in STEP_S]
    assert [bar.get_width() for bar in update.patches] == pytest.approx(shares)
