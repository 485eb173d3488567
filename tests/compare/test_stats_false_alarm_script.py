"""The scripts that measure how often verdicts are wrong: on a recording, and on simulated noise."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.trace import Stage
from harness.results import RunFolder
from tests.stand_ins.binomial import exact_interval

ROOT = Path(__file__).parents[2]
Make = Callable[..., RunFolder]


def measure(*arguments: str | Path, script: str = "false_alarm_rates") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"tests.benchmarks.{script}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_disjoint_experiments_of_two_like_arms(make_run: Make, tmp_path: Path) -> None:
    # blocks 0 to 5 differ by +-1%, so the interval holds 1; blocks 6 to 11 by 9% to 11%: one of two experiments alarms
    changes = [0.01, -0.01] * 3 + [0.09, 0.11] * 3
    for seed, change in enumerate(changes):
        for arm, factor in (("one", 1.0), ("two", 1 + change)):
            stages = [("learner", Stage.UPDATE, 0.5 * factor)]
            make_run(arm=arm, seed=seed, point={"seed": seed}, stages=stages, steps=6)
    done = measure(tmp_path / "results", "--blocks", "6", "--json", tmp_path / "rates.json")
    assert done.returncode == 0, done.stderr
    assert "50.0%" in done.stdout
    found = json.loads((tmp_path / "rates.json").read_text())
    disjoint, overlapping = found["rates"]  # four kept steps in each block: too few for the naive recipe
    low, high = exact_interval(1, 2)
    half = {"hits": 1, "trials": 2, "low": low, "high": high}
    assert disjoint == {
        "source": "sync_k", "experiments": "6 blocks, disjoint", "excludes": half, "different": half,
    }  # fmt: skip
    assert overlapping["excludes"]["trials"] == 7  # 12 - 6 + 1
    assert found["log_ratios"]["sync_k"] == pytest.approx([math.log1p(change) for change in changes])
    assert found["settings"] == {"blocks": 6, "threshold": 0.03, "seed": 0}


def test_the_recorded_step_seconds_give_the_committed_rates(tmp_path: Path) -> None:
    measured = ROOT / "docs" / "measured"
    done = measure(measured / "noise_step_seconds.json", "--json", tmp_path / "rates.json")
    assert done.returncode == 0, done.stderr
    found, committed = (
        json.loads(path.read_text()) for path in (tmp_path / "rates.json", measured / "noise_rates.json")
    )
    assert found["log_ratios"]["noise_step_seconds"] == pytest.approx(committed["log_ratios"]["noise_step_seconds"])
    hits = [[(line["experiments"], line["excludes"]["hits"]) for line in data["rates"]] for data in (found, committed)]
    assert hits[0] == hits[1]
    # the mean of the first block's eight steps, of each arm
    one = [0.08733, 0.09173, 0.10252, 0.11807, 0.12136, 0.07678, 0.0984, 0.10301]
    again = [0.11097, 0.11084, 0.09048, 0.10463, 0.09883, 0.09217, 0.09365, 0.08514]
    assert found["log_ratios"]["noise_step_seconds"][0] == pytest.approx(math.log(sum(again) / sum(one)))


@pytest.mark.parametrize("arms", [("one",), ("one", "two")])
def test_what_is_no_pair_of_like_arms_is_refused(make_run: Make, tmp_path: Path, arms: tuple[str, ...]) -> None:
    for place, arm in enumerate(arms):
        make_run(arm=arm, settings=f"steps: {4 + place}\n")
    done = measure(tmp_path / "results", "--json", tmp_path / "rates.json")
    assert done.returncode == 2
    assert "not two arms with the same settings" in done.stderr
    assert not (tmp_path / "rates.json").exists()


def test_a_recording_that_is_not_there_is_said() -> None:
    done = measure("nowhere.json")
    assert done.returncode == 2
    assert "nowhere.json" in done.stderr


@pytest.mark.slow
def test_simulated_rates_are_written_with_their_counts(tmp_path: Path) -> None:
    files = ("--json", tmp_path / "rates.json", "--markdown", tmp_path / "rates.md")
    done = measure("--experiments", "8", *files, script="verdict_rates")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "rates.json").read_text())
    assert [table["name"] for table in found["tables"]] == [
        "family", "gate", "occasions", "coverage", "widening", "power", "seen", "others",
    ]  # fmt: skip
    coverage = next(table for table in found["tables"] if table["name"] == "coverage")
    assert {cell["trials"] for row in coverage["rows"] for cell in row[1:]} == {8}
    assert (tmp_path / "rates.md").read_text().count("\n## ") == 8
