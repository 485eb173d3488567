"""From Python and its notebooks: what the commands say, as objects; and an import that stays light."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.cli import main
from harness.core.errors import UserError
from harness.simulate.forecast import Forecast

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results/reference"


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook names its folders from there."""
    monkeypatch.chdir(ROOT)


def test_the_notebook_runs_cell_by_cell_and_its_figures_are_those_of_the_runs() -> None:
    """Its code runs in order in one namespace: there is no Jupyter among what tests need."""
    notebook = json.loads((ROOT / "docs/examples/first_look.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        assert not cell.get("outputs")
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert list(names["seconds"].columns) == ["k1", "k2", "k4", "k8"]
    assert names["seconds"].loc["update", "k8"] > 4 * names["seconds"].loc["update", "k1"]
    assert names["reward"].loc[0].nunique() == 1
    assert [item.other for item in names["comparison"].verdicts] == ["k2", "k4", "k8"]
    (forecasted,) = names["forecasts"].runs
    assert forecasted.scenario.epochs_per_batch == 4
    assert forecasted.forecast.step_s.low <= forecasted.forecast.step_s.value <= forecasted.forecast.step_s.high


def test_a_comparison_prints_as_the_command_does() -> None:
    comparison = harness.compare_runs(REFERENCE / "sync_k")
    assert comparison.folder.parent == REFERENCE / "sync_k"
    assert len(comparison.results.steps) == comparison.experiment.runs["steps"].sum()
    lines = [line.rstrip() for line in repr(comparison).splitlines()]
    assert lines[0] == f"sync_k / {comparison.folder.name}"
    header = lines.index(next(line for line in lines if line.split()[:3] == ["seconds", "per", "step"]))
    assert lines[header].split()[3:] == ["k1", "k2", "k4", "k8"]
    answer = " ".join(lines[1:header])
    assert [arm for arm in ("k2", "k4", "k8") if f"{arm} from k1" in answer] == ["k2", "k4", "k8"]
    assert repr(comparison.in_full()).count("\n") > 2 * len(lines)


def test_a_forecast_is_the_one_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """In a cell of a notebook too, which runs inside an event loop that goes on behind it."""
    asked = {"steps": 8, "rollout_batch_size": 32}

    async def cell() -> Forecast:
        found = harness.simulate_scenario("sync_k1", "cpu-2-cores", asked, draws=3, allow=["versions"])
        await asyncio.sleep(0)
        return found.runs[0].forecast

    forecast = asyncio.run(cell())
    command = ["simulate", "sync_k1", "--machine", "cpu-2-cores", "--draws", "3", "--allow", "versions"]
    assert main([*command, *(f"--set={key}={value}" for key, value in asked.items())]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "seconds of a training step" in line]
    assert f"{forecast.step_s.value:.3g}" in row


def test_changes_are_those_of_the_command_line() -> None:
    for changes in ({"optimizer.learning_rate": 1e-5, "trackers": []}, ["optimizer.learning_rate=1e-5"]):
        assert harness.load_scenario("sync_k1", changes).optimizer.learning_rate == 1e-5
    assert all(hasattr(harness, name) for name in harness.__all__)


def test_what_cannot_be_is_said_in_the_same_words() -> None:
    with pytest.raises(UserError, match="changes are 'steps=3'"):
        harness.load_scenario("sync_k1", "steps=3")
    with pytest.raises(UserError, match="'engin' is nothing that can be allowed"):
        harness.simulate_scenario("sync_k1", "cpu-2-cores", allow=["engin"])
    with pytest.raises(UserError, match="no runs in"):
        harness.compare_runs(ROOT / "docs")
    with pytest.raises(AttributeError, match="rum_scenario"):
        harness.rum_scenario  # noqa: B018


@pytest.mark.slow
def test_a_run_from_a_cell_returns_its_comparison(tmp_path: Path) -> None:
    """In this process."""
    changes = {
        "model": {"type": "preset", "preset": "tiny", "warm_start": False},
        "steps": 2,
        "rollout_batch_size": 8,
        "group_size": 4,
        "evaluation": {"prompts": 4, "examples": 0},
        "profile": "off",
        "save_policy": False,
        "arms": {"k1": {}, "k2": {"epochs_per_batch": 2}},
    }
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(changes))

    async def cell() -> Any:
        return harness.run_scenario(path, {"seed": 3}, out=tmp_path / "results")

    comparison = asyncio.run(cell())
    assert comparison.folder.parent == tmp_path / "results/small"
    seeds = {arm: [each.manifest.seed for each in members] for arm, members in comparison.experiment.arms.items()}
    assert seeds == {"k1": [3], "k2": [3]}
    assert comparison.results.steps.groupby("arm").size().to_dict() == {"k1": 2, "k2": 2}
