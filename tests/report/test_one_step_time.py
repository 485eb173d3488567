"""The walk of a step's seconds: from the spans to frame, JSON, console, Markdown, page and charts, the same number."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from rich.console import Console

from harness.compare.experiment import Experiment, gather
from harness.compare.judging import direction, judgements
from harness.compare.numbers import change, number, percent
from harness.compare.stats.verdicts import Effect, Verdict
from harness.compare.steadiness import step_ratio
from harness.core.trace import Stage
from harness.report.as_json import comparison
from harness.report.build import charts_of, document
from harness.report.document import Document
from harness.report.files import page
from harness.report.markdown import markdown
from harness.report.terminal import print_document
from harness.results import RunFolder, find_run_folders, load_run
from harness.simulate.metrics import RunMetrics, metrics_of_run
from tests.run_folders import RunPlan, write_run
from tests.step_runs import write_steps

ROOT = Path(__file__).parents[2]
# of steps 2 to 11, which are measured: in flat 10 x (0.2 + 0.3) s and evaluations of 0.7 s in two of them; in hidden
# 8 x (0.2 + 0.3) s, 2 x (0.2 + 4.3) s and an evaluation of 1 s. Of each 0.2 s of generation 0.05 s are a weight load.
STEP_S = {"flat": 6.4 / 10, "hidden": 14.0 / 10}
STAGES_S = {
    "flat": {"generate": 0.15, "weight_load": 0.05, "update": 0.3, "evaluate": 0.14},
    "hidden": {"generate": 0.15, "weight_load": 0.05, "update": 1.1, "evaluate": 0.1},
}
RATIO = 14.0 / 6.4
MEDIAN_S = 0.5


@dataclass(frozen=True)
class Outputs:
    """Everything that is said of one experiment."""

    experiment: Experiment
    document: Document
    console: list[list[str]]
    markdown: str
    page: str
    arms: dict[str, dict[str, Any]]
    simulator: dict[str, RunMetrics]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    results = tmp_path_factory.mktemp("results")

    def make_run(**fields: Any) -> RunFolder:
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
    return Outputs(
        experiment=experiment,
        document=made,
        console=[line.split() for line in stream.getvalue().splitlines()],
        markdown=markdown(made, full=True),
        page=page([made]),
        arms={arm["name"]: arm for arm in as_json["variants"]},
        simulator={folder.name: metrics_of_run(load_run(folder)) for folder in find_run_folders(results)},
    )


def _rows(shown: str, header: str) -> list[list[str]]:
    """Return the cells of the rows of the page that start with this."""
    rows = re.findall(rf'<th scope="row">{re.escape(header)}(?: \([^<]*)?</th>((?:<td[^>]*>[^<]*</td>)+)', shown)
    return [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in rows]


def _axes(outputs: Outputs, key: str) -> Axes:
    (chart,) = (chart for chart in charts_of(outputs.document) if chart.key == key)
    (axes,) = [axes for cell in chart.figure.subfigs for axes in cell.axes]
    return axes


def test_seconds_per_step_are_the_same_everywhere(outputs: Outputs) -> None:
    frame = outputs.experiment.runs.set_index("arm")
    for arm, expected in STEP_S.items():
        assert outputs.experiment.results.steps.query("arm == @arm and not is_warmup")["wall_s"].mean() == (
            pytest.approx(expected)
        )
        assert frame.loc[arm, "step_s"] == pytest.approx(expected)
        assert outputs.experiment.mean(arm, "step_s") == pytest.approx(expected)
        (run,) = outputs.arms[arm]["runs"]
        assert run["step"]["mean_s"] == run["figures"]["step_s"] == pytest.approx(expected)
        assert run["step"]["median_s"] == run["figures"]["median_step_s"] == pytest.approx(MEDIAN_S)
        assert sum(run["exposed_s"].values()) == pytest.approx(expected)
        assert outputs.simulator[arm].step_s == pytest.approx(expected)
    short = [number(seconds) for seconds in STEP_S.values()]
    assert ["whole", "step", *short, change(RATIO)] in outputs.console
    assert f"| whole step | {short[0]} | {short[1]} | {change(RATIO)} |" in outputs.markdown
    flat, hidden = (f"{seconds} 100.0%" for seconds in short)
    assert ["whole", "step", *flat.split(), *hidden.split()] in outputs.console
    assert f"| whole step | {flat} | {hidden} |" in outputs.markdown
    assert _rows(outputs.page, "whole step") == [[*short, change(RATIO)], [flat, hidden]]


def test_the_ratio_is_the_same_everywhere(outputs: Outputs) -> None:
    assert step_ratio(outputs.experiment, "flat", "hidden") == pytest.approx(RATIO)
    assert outputs.arms["hidden"]["step_ratio"] == pytest.approx(RATIO)
    (answer,) = outputs.document.answer
    assert answer.text.startswith(f"hidden was {RATIO:.1f} times as slow as flat per step")
    assert [change(RATIO) in text for text in (outputs.page, outputs.markdown)] == [True, True]


def test_the_parts_of_a_step_are_the_same_everywhere(outputs: Outputs) -> None:
    frame = outputs.experiment.runs.set_index("arm")
    for place, (arm, stages) in enumerate(STAGES_S.items()):
        (run,) = outputs.arms[arm]["runs"]
        read = {stage: figures for stage, figures in run["stages"].items() if not Stage(stage).is_wait}
        assert {stage: figures["mean_s"] for stage, figures in read.items()} == pytest.approx(stages)
        assert sum(stages.values()) == pytest.approx(STEP_S[arm])  # the lanes took turns
        for stage, seconds in stages.items():
            share = seconds / STEP_S[arm]
            assert frame.loc[arm, f"timing_s/{stage}"] == pytest.approx(seconds)
            assert read[stage]["share"] == pytest.approx(share)
            assert outputs.simulator[arm].stages_s[stage] == pytest.approx(seconds)
            assert run["exposed_s"][stage] == pytest.approx(seconds)  # the Learner waits for what the Generator does
            at_a_glance, busy_and_critical, in_full = _rows(outputs.page, stage)
            assert at_a_glance[place] == number(seconds)
            assert busy_and_critical[place].split() == [number(seconds), "/", number(seconds), percent(share)]
            assert in_full[place].split() == [number(seconds), percent(share)]
            cells = [row for row in outputs.console if row[:1] == [stage]]
            assert any(row[-2 * (2 - place) :][:2] == [number(seconds), percent(share)] for row in cells)
        in_lanes = [lane["stages_s"] for lane in run["lanes"].values()]
        for stage, seconds in stages.items():
            assert sum(lane.get(stage, 0.0) for lane in in_lanes) == pytest.approx(10 * seconds)
        for lane in run["lanes"].values():
            assert lane["wall_s"] == pytest.approx(10 * STEP_S[arm])
            assert sum(lane["stages_s"].values()) + lane["unattributed_s"] == pytest.approx(lane["wall_s"])


def test_what_is_drawn_is_what_is_written(outputs: Outputs) -> None:
    axes = _axes(outputs, "stages")
    for place, (arm, stages) in enumerate(STAGES_S.items()):
        drawn = {str(bars.get_label()): bars.patches[place].get_width() for bars in axes.containers}
        assert drawn == pytest.approx(stages), arm
    assert [text.get_text() for text in axes.texts] == [f"{number(seconds)} s" for seconds in STEP_S.values()]
    lanes = _axes(outputs, "lanes")
    ends = [patch.get_x() + patch.get_width() for bars in lanes.containers for patch in bars.patches]
    assert max(ends) == pytest.approx(100.0)
    update = next(bars for bars in lanes.containers if bars.get_label() == "update")
    assert [bar.get_width() for bar in update.patches] == pytest.approx(
        [100 * STAGES_S[arm]["update"] / STEP_S[arm] for arm in STEP_S]
    )


def test_the_page_says_what_its_committed_runs_say() -> None:
    """The same functions, over the runs that docs/measuring.md names; the verdict's ratio is that of the tables."""
    text = " ".join((ROOT / "docs" / "measuring.md").read_text(encoding="utf-8").split())
    (one_block,), _ = gather([ROOT / "results" / "reference" / "sync_k"])
    ratios = {arm: step_ratio(one_block, "k1", arm) for arm in ("k4", "k8")}
    assert f"k = 8 passes over each batch took {ratios['k8']:.2f} times the seconds per step of k = 1" in text
    assert f"k = 4 took {ratios['k4']:.2f} times" in text
    (blocks,), _ = gather([ROOT / "results" / "reference" / "sync_k1-vs-sync_k2"])
    judged, noise = judgements(blocks)
    step, floor = judged.step, noise.step
    assert step.ratio == pytest.approx(step_ratio(blocks, judged.base, judged.other))
    assert f"Step time {_interval(step)}: {direction(step)}." in text
    stages = {effect.name: effect for effect in judged.effects[1:] if effect.verdict is Verdict.DIFFERENT}
    assert list(stages) == ["old_logprobs", "update"]
    assert f"`update` took {_percent(stages['update'].ratio)} longer" in text
    assert f"adds {_percent(stages['old_logprobs'].ratio)} of a step" in text
    assert floor.ratio is not None
    assert f"is {100 * abs(floor.ratio - 1):.1f}% apart ({change(floor.low)} to {change(floor.high)})" in text


def _percent(ratio: float | None) -> str:
    assert ratio is not None
    return f"{100 * (ratio - 1):.1f}%"


def _interval(effect: Effect) -> str:
    return f"{change(effect.ratio)} (95% interval {change(effect.low)} to {change(effect.high)})"
