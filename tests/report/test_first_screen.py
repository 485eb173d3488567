"""What a person reads first: the page's headline, picture and lever, in that order; the newest experiment alone."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main
from harness.core.trace import Stage
from harness.core.types import Metric
from harness.report.html.page import make_report
from harness.results import RunFolder, find_run_folders
from harness.results.reader import is_reference
from harness.run.experiment import show_results

Make = Callable[..., RunFolder]
REPOSITORY = Path(__file__).parents[2]
TRL = Path(__file__).parents[1] / "data" / "importers" / "trl_1.16_trainer_state.json"


def page_of(folder: Path, out: Path) -> str:
    make_report([folder], out)
    return out.read_text()


def test_headline_picture_lever_and_figures_come_in_this_order(make_run: Make, tmp_path: Path) -> None:
    """One step of k1 takes 0.3 + 0.1 + 0.5 + 0.1 = 1 s; k4's update takes four times as long, so 2.5 s."""
    slow = [("generator", Stage.GENERATE, 0.3), ("scorer", Stage.SCORE, 0.1), ("learner", Stage.UPDATE, 2.0)]
    rewards = {"metrics": lambda step: {"reward/total": Metric(0.1 * step, count=64)}}
    make_run(arm="k1", evaluations={0: (0.2, 12.0), 4: (0.6, 18.0)}, **rewards)
    folder = make_run(arm="k4", stages=[*slow, ("generator", Stage.WEIGHT_LOAD, 0.1)], **rewards).folder.parent
    page = page_of(folder, tmp_path / "r.html")
    marks = [
        'class="headline"',
        "Seconds of a training step by stage",
        'class="lever"',
        "tokens per second",
        "says-list",
    ]
    places = [page.index(mark, page.index("<body>")) for mark in marks if mark in page.partition("<body>")[2]]
    assert places == sorted(places)
    assert len(places) >= 4
    assert "Step time over the run." in page
    assert "Training reward" in page
    assert "training reward at the end" in page
    bars = re.findall(r"<title>update: ([\d.]+) s</title>", page)
    assert bars[:2] == ["0.500", "2.00"]


def test_bars_are_means_over_all_runs_where_one_alone_kept_its_spans(make_run: Make, tmp_path: Path) -> None:
    """Steps of 1 s and 2.5 s, of which the update is 0.5 and 2 s; the run of the slow ones has no spans any more."""
    make_run(arm="k1", block=0)
    slow = [("generator", Stage.GENERATE, 0.3), ("scorer", Stage.SCORE, 0.1), ("learner", Stage.UPDATE, 2.0)]
    run = make_run(arm="k1", block=1, stages=[*slow, ("generator", Stage.WEIGHT_LOAD, 0.1)])
    (run.folder / "spans.jsonl").unlink()
    page = page_of(run.folder.parent, tmp_path / "r.html")
    assert set(re.findall(r"<title>update: ([\d.]+) s</title>", page.partition("</figure>")[0])) == {"1.25"}


def test_the_lever_names_a_line_that_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    folder = next((REPOSITORY / "results" / "reference" / "sync_k").glob("*"))
    line = f"python -m harness whatif {(folder / 'k1').relative_to(REPOSITORY)} --scale update=0.9"
    assert line in html.unescape(page_of(folder, tmp_path / "r.html"))
    assert main(shlex.split(line)[3:]) == 0


def test_the_lever_names_no_folder_above_the_scenario_of_runs_from_elsewhere(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(arm="k1").folder
    page = page_of(folder, tmp_path / "r.html")
    assert f"whatif {folder.relative_to(folder.parents[2])} --scale update=0.9" in page


def test_what_is_all_of_it_is_said_and_not_drawn(make_lagged_run: Make, lagged: Path, tmp_path: Path) -> None:
    page = page_of(lagged, tmp_path / "r.html")
    assert 'width="100%" y="0" height="20" class="led-trained"' not in page
    assert 'width="100%" y="0" height="20" class="lag-bar"' not in page


def test_an_imported_log_shows_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "trl", str(TRL), "--out", str(tmp_path / "results")]) == 0
    page = page_of(tmp_path / "results", tmp_path / "r.html")
    for figure in (
        "Training reward",
        "Response length",
        "tokens per second, prompts included",
        "Step time over the run.",
    ):
        assert figure in page
    assert "To run it again" not in page
    assert "Seconds of a training step by stage" not in page  # the log has no stage but the evaluation
    glance = page.partition('aria-label="At a glance"')[2].partition("</table>")[0]
    assert ">-<" not in glance
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "results"), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["campaigns"][0]["variants"][0]["runs"]
    assert run["figures"]["reward_train"] == pytest.approx(0.0738, abs=0.001)  # the last of six steps
    assert run["figures"]["processed_tokens_per_s"] > 0


def test_reference_runs_are_shown_only_when_asked_for(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results"
    kept = make_run(scenario="old").folder.parent
    (results / "reference").mkdir()
    kept.rename(results / "reference" / "old")
    reference = results / "reference" / "old" / "20261120-111500"
    assert find_run_folders(results) == [reference]  # there are no others
    own = make_run(scenario="mine").folder
    assert find_run_folders(results) == [own]
    assert find_run_folders(results / "reference") == [reference]
    assert (is_reference(reference), is_reference(own)) == (True, False)
    assert main(["compare", str(results)]) == 0
    assert f"name {results / 'reference'}" in capsys.readouterr().err.replace("\n", "")
    monkeypatch.chdir(tmp_path)
    before = sorted(reference.iterdir())
    assert main(["trace", str(reference), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == "trace.json.gz"
    assert (sorted(reference.iterdir()), (tmp_path / "trace.json.gz").is_file()) == (before, True)


def test_the_end_of_a_run_is_one_line_or_figures_where_asked_for(
    make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(evaluations={0: (0.2, 12.0), 4: (0.6, 18.0)}).folder
    show_results(folder, "line")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("sync_k / 20261120-111500: sync_k: ")
    assert "0.200 to 0.600" in line
    assert line.endswith("report.html")
    show_results(folder, "json")
    found = json.loads(capsys.readouterr().out)
    assert [each["scenario"] for each in found["campaigns"]] == ["sync_k"]
