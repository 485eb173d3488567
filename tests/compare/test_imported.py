"""Logs of another trainer as arms: the answer in four lines, and how far an interval over steps can be trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli import main
from harness.compare.stats.bootstrap import block_length, ratio_over_steps
from tests.benchmarks.imported_rates import rate

LOGS = Path(__file__).parents[1] / "data" / "importers"


def imported(out: Path, trainer: str, *arms: str) -> Path:
    """Import logs of ``tests/data/importers``, which are made up, as arms."""
    typed = [f"{name}={LOGS / path}" for name, path in (arm.split("=") for arm in arms)]
    assert main(["import", trainer, *typed, "--machine", "box", "-o", str(out)]) == 0
    return out


def compared(out: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["compare", str(out), "--json", *options]) == 0
    (experiment,) = json.loads(capsys.readouterr().out)["campaigns"]
    return dict(experiment)


def test_two_verl_logs_answer_in_four_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = imported(tmp_path, "verl", "colocated=verl_colocated.jsonl", "split=verl_split.jsonl")
    experiment = compared(out, capsys)
    (effect,) = experiment["imported"]["effects"]
    assert (effect["name"], effect["baseline"], effect["variant"]) == ("step", "colocated", "split")
    means = [variant["runs"][0]["step"]["mean_s"] for variant in experiment["variants"]]
    assert effect["ratio"] == pytest.approx(means[1] / means[0])
    assert effect["low"] < effect["ratio"] < effect["high"] < 0.85
    assert (effect["verdict"], effect["direction"]) == ("inconclusive", "faster")
    assert effect["reason"] == "one run each: not repeated"
    (verdict,) = experiment["verdicts"]
    assert (verdict["step"]["ratio"], verdict["step"]["low"]) == (effect["ratio"], effect["low"])
    speed, stages, rewards, verdict = experiment["imported"]["sentences"]
    assert speed.startswith("split is 27% faster per step than colocated (22% to 32%): ")
    assert speed.endswith(": 27.1 against 34.3 s, steps 2 to 23; one run each: not repeated.")
    assert stages == (
        "Largest differences in seconds, colocated and split: "
        "generate 21.4 and 12.5, weight_transfer 0.800 and 2.60, update 8.96 and 8.86."
    )
    assert "in validation 0.500 (colocated) and 0.510 (split)" in rewards
    assert verdict.startswith("Verdict: inconclusive, as runs were not repeated")
    assert main(["compare", str(out)]) == 0
    assert "split is 27% faster per step than colocated" in capsys.readouterr().out.split("\n\n")[0]


def test_two_trl_logs_answer_with_stages_from_their_timers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = imported(tmp_path, "trl", "transformers=trl_transformers.jsonl", "vllm=trl_vllm.jsonl")
    speed, stages, rewards, _ = compared(out, capsys)["imported"]["sentences"]
    assert speed.startswith("vllm is 79% faster per step than transformers (72% to 86%): 9.29 against 16.6 s")
    assert "generate 11.0 and 2.99, weight_transfer 0.000 and 0.594, update 3.97 and 3.99" in stages
    assert rewards == "Reward at the end: in training 0.491 (transformers) and 0.504 (vllm)."
    other_way = compared(out, capsys, "--baseline", "vllm")["imported"]
    assert other_way["effects"][0]["direction"] == "slower"
    assert other_way["sentences"][0].startswith("transformers is 79% slower per step than vllm (73% to 86%): ")


def test_equal_logs_and_short_ones_claim_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = imported(tmp_path / "equal", "verl", "a=verl_split.jsonl", "b=verl_split.jsonl")
    said = compared(out, capsys)["imported"]
    assert said["effects"][0]["direction"] == "cannot tell"
    assert said["sentences"][0].startswith("Cannot tell whether b is faster per step than a, between ")
    for name, seconds in (("a", 2.0), ("b", 1.0)):
        rows = [{"step": step, "timing_s/step": seconds, "critic/score/mean": 0.5} for step in range(1, 7)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["import", "verl", *(str(tmp_path / f"{name}.jsonl") for name in "ab"), "-o", str(tmp_path / "r")]) == 0
    said = compared(tmp_path / "r", capsys)["imported"]
    assert (said["effects"][0]["ratio"], said["effects"][0]["low"]) == (0.5, None)
    assert said["sentences"][0].startswith("b is 100% faster per step than a (too few steps for an interval): ")


def test_logs_without_seconds_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        rows = [{"step": step, "critic/score/mean": 0.5} for step in range(1, 20)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["import", "verl", *(str(tmp_path / f"{name}.jsonl") for name in "ab"), "-o", str(tmp_path / "r")]) == 0
    said = compared(tmp_path / "r", capsys)["imported"]
    assert said["sentences"][0] == "Cannot tell which is faster per step: no seconds in the log of a and b."
    assert said["effects"][0]["ratio"] is None


def test_a_block_is_twice_the_cube_root_of_the_steps() -> None:
    assert [block_length(steps) for steps in (10, 27, 28, 125, 1000)] == [5, 6, 7, 10, 20]


def test_the_interval_over_steps() -> None:
    """Means of 2 and 3 s without any noise; the interval grows with the noise, and is the same for the same steps."""
    interval = ratio_over_steps([2.0] * 20, [3.0] * 40)
    assert interval is not None
    assert (interval.point, interval.low, interval.high) == pytest.approx((1.5, 1.5, 1.5))
    noisy = np.random.default_rng(1).normal(2.0, 0.2, 40).tolist()
    wide = ratio_over_steps(noisy, [2.0] * 40)
    assert wide is not None
    assert wide.low < 2.0 / np.mean(noisy) < wide.high
    assert ratio_over_steps(noisy, [2.0] * 40) == wide
    back = ratio_over_steps([2.0] * 40, noisy)
    assert back is not None
    assert back.point == pytest.approx(1 / wide.point)
    assert ratio_over_steps([1.0] * 9, [1.0] * 40) is None
    assert ratio_over_steps([0.0] * 40, [1.0] * 40) is None


@pytest.mark.parametrize(("rho", "most"), [(0.0, 0.08), (0.5, 0.13)])
def test_the_interval_errs_about_as_often_as_the_docs_say(rho: float, most: float) -> None:
    """4.9% and 7.8% of 2,000 pairs of equal runs of 30 steps; here 400 pairs, and three standard errors more."""
    assert rate(30, rho, 400) < most
