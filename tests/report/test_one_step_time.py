"""The same number for the same thing: console, Markdown, JSON, page, pictures and simulator are read side by side."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from harness.compare import Experiment, gather
from harness.compare.as_json import comparison
from harness.compare.findings import findings
from harness.compare.numbers import change, number, percent
from harness.compare.stats import Effect, Verdict
from harness.compare.step_times import step_ratio
from harness.compare.verdicts import judgements
from harness.core.trace import Stage
from harness.report.bars import draw_lanes, draw_stages
from harness.report.data import ReportData, read_report_data
from harness.report.html.page import make_report
from harness.report.text import markdown, print_comparison
from harness.results import RunFolder, find_run_folders, load_run
from harness.simulate.metrics import RunMetrics, metrics_of_run
from tests.step_runs import write_steps

Make = Callable[..., RunFolder]
ROOT = Path(__file__).parents[2]
# of steps 2 to 11, which are measured: in flat 10 x (0.2 + 0.3) s and evaluations of 0.7 s in two of them; in hidden
# 8 x (0.2 + 0.3) s, 2 x (0.2 + 4.3) s and an evaluation of 1 s. Of each 0.2 s of generation 0.05 s are a weight load.
STEP_S = {"flat": 6.4 / 10, "hidden": 14.0 / 10}
STAGES_S = {
    "flat": {"generate": 0.15, "weight_load": 0.05, "update": 0.3, "evaluate": 0.14},
    "hidden": {"generate": 0.15, "weight_load": 0.05, "update": 1.1, "evaluate": 0.1},
}
RATIO = 14.0 / 6.4
MEDIAN_S = {"flat": 0.5, "hidden": 0.5}


@dataclass(frozen=True)
class Outputs:
    """Everything that is said of one experiment."""

    experiment: Experiment
    console: dict[str, list[str]]
    markdown: str
    variants: dict[str, dict[str, Any]]
    sentences: str
    page: str
    report_data: ReportData
    simulator: dict[str, RunMetrics]


@pytest.fixture
def outputs(make_run: Make, tmp_path: Path) -> Outputs:
    uneven = [0.3] * 12
    uneven[4] = uneven[9] = 4.3
    more = {"generate_s": 0.2, "load_s": 0.05, "interleaving": "run"}
    write_steps(make_run, "flat", [0.3] * 12, evaluate_s={0: 9.0, 5: 0.7, 11: 0.7}, **more)
    write_steps(make_run, "hidden", uneven, evaluate_s={11: 1.0}, **more)
    results = tmp_path / "results"
    (experiment,), _ = gather([results])
    stream = io.StringIO()
    print_comparison(Console(file=stream, width=200), [experiment], [experiment])
    lines = [re.split(r"\s{2,}", line.strip()) for line in stream.getvalue().splitlines()]
    (found,) = comparison([experiment], [])["campaigns"]
    make_report([results], tmp_path / "report.html", everything=True)
    folders = find_run_folders(results)
    return Outputs(
        experiment=experiment,
        console={line[0]: line[1:] for line in reversed(lines) if line},
        markdown=markdown([experiment], [experiment]),
        variants={variant["name"]: variant for variant in found["variants"]},
        sentences=" ".join(finding.text for finding in findings(experiment)),
        page=(tmp_path / "report.html").read_text(encoding="utf-8"),
        report_data=read_report_data(experiment.folder, folders),
        simulator={folder.name: metrics_of_run(load_run(folder)) for folder in folders},
    )


def _cells(page: str, header: str) -> list[str]:
    """Return the cells of the first row of the page that starts with this."""
    (row,) = re.findall(rf'<th scope="row">{re.escape(header)}</th>((?:<td[^>]*>[^<]*</td>)+)', page)[:1]
    return re.findall(r"<td[^>]*>([^<]*)</td>", row)


def _bars(figure: Figure | None) -> dict[float, float]:
    """Return the length of the stack of bars at each place."""
    assert figure is not None
    (axes,) = figure.axes
    ends: dict[float, float] = {}
    for patch in axes.patches:
        place = round(patch.get_y() + patch.get_height() / 2, 6)
        ends[place] = max(ends.get(place, 0.0), patch.get_x() + patch.get_width())
    return ends


def test_seconds_per_step_are_the_same_everywhere(outputs: Outputs) -> None:
    for variant in outputs.experiment.variants:
        name, expected = variant.name, STEP_S[variant.name]
        assert variant.runs[0].step_s == pytest.approx(expected)
        (run,) = outputs.variants[name]["runs"]
        assert run["step"]["mean_s"] == run["figures"]["step_s"] == pytest.approx(expected)
        assert run["step"]["median_s"] == run["figures"]["median_step_s"] == pytest.approx(MEDIAN_S[name])
        assert outputs.simulator[name].step_s == pytest.approx(expected)
        assert _cells(outputs.page, name)[0] == number(expected)  # at a glance
        exposed = variant.runs[0].exposed
        assert exposed is not None
        assert exposed.wall_ns / 1e9 / variant.runs[0].measured_steps == pytest.approx(expected)
    flat, hidden = (f"{number(STEP_S[name])} 100.0%" for name in ("flat", "hidden"))
    assert [" ".join(cell.split()) for cell in outputs.console["whole step"]] == [flat, hidden]
    assert f"| whole step | {flat} | {hidden} |" in outputs.markdown
    assert _cells(outputs.page, "whole step") in ([flat, hidden], [flat.replace(" ", "  "), hidden.replace(" ", "  ")])
    assert f"({number(STEP_S['hidden'])} s against {number(STEP_S['flat'])} s" in outputs.sentences


def test_the_ratio_is_the_same_everywhere(outputs: Outputs) -> None:
    assert outputs.variants["hidden"]["step_ratio"] == pytest.approx(RATIO)
    assert f"hidden against flat: {RATIO:.2f} times the seconds per step" in outputs.sentences
    assert "1.00 times in the median of single steps" in outputs.sentences
    assert _cells(outputs.page, "hidden")[1] == f"{RATIO:.2f}"


def test_the_parts_of_a_step_are_the_same_everywhere(outputs: Outputs) -> None:
    for place, (name, stages) in enumerate(STAGES_S.items()):
        (run,) = outputs.variants[name]["runs"]
        found = {stage: figures for stage, figures in run["stages"].items() if not Stage(stage).is_wait}
        assert {stage: figures["mean_s"] for stage, figures in found.items()} == pytest.approx(stages)
        assert sum(stages.values()) == pytest.approx(STEP_S[name])  # the lanes took turns
        for stage, seconds in stages.items():
            share = seconds / STEP_S[name]
            assert found[stage]["share"] == pytest.approx(share)
            row = next(row for header, row in outputs.console.items() if header.split(" ")[0] == stage)
            assert row[2 * place : 2 * place + 2] == [number(seconds), percent(share)] or row[place] == (
                f"{number(seconds)} {percent(share):>6}"
            )
            assert outputs.simulator[name].stages_s[stage] == pytest.approx(seconds)
            # the Learner waits for what the Generator does, so all of it is exposed
            assert run["exposed"]["stages_s"][stage] / 10 == pytest.approx(seconds)
            assert f"{stage}: {number(seconds)} s" in outputs.page
        in_lanes = [lane["stages_s"] for lane in run["lanes"].values()]
        for stage, seconds in stages.items():
            assert sum(lane.get(stage, 0.0) for lane in in_lanes) == pytest.approx(10 * seconds)
        for lane in run["lanes"].values():
            assert lane["wall_s"] == pytest.approx(10 * STEP_S[name])
            assert sum(lane["stages_s"].values()) + lane["unattributed_s"] == pytest.approx(lane["wall_s"])


@pytest.mark.usefixtures("style")
def test_what_is_drawn_is_what_is_written(outputs: Outputs) -> None:
    stages = draw_stages(outputs.experiment)
    expected = list(STEP_S.values())
    assert list(_bars(stages).values()) == pytest.approx(expected)
    assert stages is not None
    (axes,) = stages.axes
    assert [line.get_xdata()[0] for line in axes.lines] == pytest.approx(expected)  # the mark of the whole step
    assert [text.get_text() for text in axes.texts] == [f"{number(seconds)} s" for seconds in expected]
    # two lanes of each arm, each as long as a step
    assert list(_bars(draw_lanes(outputs.experiment)).values()) == pytest.approx(
        [seconds for seconds in expected for _ in range(2)]
    )


def test_the_page_says_what_its_committed_runs_say() -> None:
    """The same functions, over the runs that docs/measuring.md names; the verdict's ratio is that of the tables."""
    page = " ".join((ROOT / "docs" / "measuring.md").read_text(encoding="utf-8").split())
    (one_block,), _ = gather([ROOT / "results" / "reference" / "sync_k"])
    base, _, k4, k8 = one_block.variants
    ratios = {arm.name: step_ratio(base, arm) for arm in (k4, k8)}
    assert f"k = 8 passes over each batch took {ratios['k8']:.2f} times the seconds per step of k = 1" in page
    assert f"k = 4 took {ratios['k4']:.2f} times" in page
    (blocks,), _ = gather([ROOT / "results" / "reference" / "sync_k1-vs-sync_k2"])
    judged, noise = judgements(blocks)
    step, floor = judged.step, noise.step
    assert step.ratio == pytest.approx(step_ratio(blocks.variants[0], blocks.variants[1]))
    assert f"Step time `{step.verdict}`, {_interval(step)}" in page
    stages = {effect.name: effect for effect in judged.stages if effect.verdict is Verdict.DIFFERENT}
    assert list(stages) == ["old_logprobs", "update"]
    assert f"`update` took {_percent(stages['update'].ratio)} longer" in page
    assert f"adds {_percent(stages['old_logprobs'].ratio)} of a step" in page
    assert floor.ratio is not None
    assert f"is {100 * abs(floor.ratio - 1):.1f}% apart ({change(floor.low)} to {change(floor.high)})" in page


def _percent(ratio: float | None) -> str:
    assert ratio is not None
    return f"{100 * (ratio - 1):.1f}%"


def _interval(effect: Effect) -> str:
    return f"{change(effect.ratio)} (95% interval {change(effect.low)} to {change(effect.high)})"
