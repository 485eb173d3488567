"""The script that measures false alarms on recorded runs, on experiments whose alarms are known."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.compare.stats import wilson_interval
from harness.core.trace import Stage
from harness.results import RunFolder

ROOT = Path(__file__).parents[2]
Make = Callable[..., RunFolder]


def measure(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.benchmarks.false_alarm_rates", *arguments]
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
    assert "sync_k: live arms" in done.stdout
    assert "50.0%" in done.stdout
    found = json.loads((tmp_path / "rates.json").read_text())
    disjoint, overlapping = found["rates"]  # four kept steps in each block: too few for the naive recipe
    low, high = wilson_interval(1, 2)
    half = {"hits": 1, "trials": 2, "low": low, "high": high}
    assert disjoint == {
        "source": "sync_k: live arms", "experiments": "6 blocks, disjoint", "excludes": half, "different": half,
    }  # fmt: skip
    assert overlapping["excludes"]["trials"] == 7  # 12 - 6 + 1
    assert found["log_ratios"]["sync_k: live arms"] == pytest.approx([math.log1p(change) for change in changes])
    assert found["settings"] == {"blocks": 6, "steps": 10, "threshold": 0.03, "simulated": 0, "seed": 0}


def test_one_long_run_is_cut_into_blocks(make_run: Make, tmp_path: Path) -> None:
    make_run(scenario="long", steps=122)
    done = measure(tmp_path / "results", "--blocks", "6", "--steps", "5", "--json", tmp_path / "rates.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "rates.json").read_text())
    # 120 kept steps: 12 blocks of 5 + 5, two disjoint experiments; one naive window of 100; all steps take 1.0 s
    assert [(line["experiments"], line["excludes"]["hits"], line["excludes"]["trials"]) for line in found["rates"]] == [
        ("6 blocks, disjoint", 0, 2),
        ("6 blocks, all windows", 0, 7),
        ("naive, 50 + 50 steps, disjoint", 0, 1),
        ("naive, 50 + 50 steps, all windows", 0, 21),
        ("6 blocks, disjoint", 0, 2),
        ("6 blocks, all windows", 0, 7),
    ]
    assert [len(ratios) for ratios in found["log_ratios"].values()] == [12, 12]


def test_unlike_arms_are_refused(make_run: Make, tmp_path: Path) -> None:
    make_run(arm="one", settings="steps: 4\n")
    make_run(arm="two", settings="steps: 5\n")
    done = measure(tmp_path / "results", "--json", tmp_path / "rates.json")
    assert done.returncode == 2
    assert "the arms 'one' and 'two' have different settings" in done.stderr
    assert not (tmp_path / "rates.json").exists()


def test_the_simulated_noise_is_judged_too() -> None:
    done = measure("--simulated", "50")
    assert done.returncode == 0, done.stderr
    assert "simulated noise: live arms" in done.stdout
    assert "naive, 50 + 50 steps" in done.stdout


def test_nothing_to_do_is_said() -> None:
    done = measure()
    assert done.returncode == 2
    assert "name recorded results, or give --simulated TRIALS" in done.stderr
