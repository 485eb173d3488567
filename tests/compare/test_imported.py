"""Logs of another trainer as arms: what is said of them, and how far an interval over steps can be trusted."""

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
    assert main(["import", trainer, *typed, "--machine", "box", "--out", str(out)]) == 0
    return out


def compared(out: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["compare", str(out), "--json", *options]) == 0
    (experiment,) = json.loads(capsys.readouterr().out)["campaigns"]
    return dict(experiment)


def step_of(experiment: dict[str, Any]) -> dict[str, Any]:
    """Return the effect on a step's seconds of the only comparison."""
    (judged,) = experiment["verdicts"]
    assert judged["endpoint"] is None
    return dict(judged["step"])


def answer_of(out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["compare", str(out)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_two_verl_logs_are_two_arms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = imported(tmp_path, "verl", "colocated=verl_colocated.jsonl", "split=verl_split.jsonl")
    experiment = compared(out, capsys)
    step = step_of(experiment)
    means = [arm["runs"][0]["step"]["mean_s"] for arm in experiment["variants"]]
    assert means == pytest.approx([34.3, 27.1], abs=0.05)
    assert step["ratio"] == pytest.approx(means[1] / means[0])
    assert (step["low"], step["high"]) == pytest.approx((0.770, 0.799), abs=5e-4)
    assert (step["verdict"], step["direction"]) == ("inconclusive", "cannot tell")
    assert step["reason"] == "one run each: not repeated"
    answer = answer_of(out, capsys)
    assert (
        "split was 21.1% faster than colocated per step (-23.0% to -20.1% over their steps; one run each: not repeated)"
    ) in answer
    assert "generate -8.93 s, weight_transfer +1.8 s." in answer
    assert "validation reward 0.500 0.510" in answer


def test_two_trl_logs_have_stages_from_their_timers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = imported(tmp_path, "trl", "transformers=trl_transformers.jsonl", "vllm=trl_vllm.jsonl")
    assert step_of(compared(out, capsys))["ratio"] == pytest.approx(0.558, abs=5e-4)
    answer = answer_of(out, capsys)
    assert "vllm was 44.2% faster than transformers per step" in answer
    assert "generate -7.98 s, weight_transfer +0.594 s." in answer
    assert step_of(compared(out, capsys, "--baseline", "vllm"))["ratio"] == pytest.approx(1 / 0.558, abs=2e-3)


def test_equal_logs_and_short_ones_claim_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = imported(tmp_path / "equal", "verl", "a=verl_split.jsonl", "b=verl_split.jsonl")
    step = step_of(compared(out, capsys))
    assert step["low"] == step["ratio"] == 1 == step["high"]
    assert "Cannot tell whether b was faster per step than a: +0.0% (" in answer_of(out, capsys)
    for name, seconds in (("a", 2.0), ("b", 1.0)):
        rows = [{"step": step, "timing_s/step": seconds, "critic/score/mean": 0.5} for step in range(1, 7)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        main(["import", "verl", *(str(tmp_path / f"{name}.jsonl") for name in "ab"), "--out", str(tmp_path / "r")]) == 0
    )
    step = step_of(compared(tmp_path / "r", capsys))
    assert (step["ratio"], step["low"], step["verdict"]) == (0.5, None, "inconclusive")


def test_logs_without_seconds_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        rows = [{"step": step, "critic/score/mean": 0.5} for step in range(1, 20)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        main(["import", "verl", *(str(tmp_path / f"{name}.jsonl") for name in "ab"), "--out", str(tmp_path / "r")]) == 0
    )
    assert step_of(compared(tmp_path / "r", capsys))["ratio"] is None
    assert "no seconds per step are known of a and b" in answer_of(tmp_path / "r", capsys)


def test_a_block_is_twice_the_cube_root_of_the_steps() -> None:
    assert [block_length(steps) for steps in (10, 27, 28, 125, 1000)] == [5, 6, 7, 10, 20]


def test_the_interval_over_steps() -> None:
    """Means of 2 and 3 s without any noise; the interval grows with the noise, and is the same for the same steps."""
    interval = ratio_over_steps([2.0] * 20, [3.0] * 40)
    assert interval is not None
    assert (interval.value, interval.low, interval.high) == pytest.approx((1.5, 1.5, 1.5))
    noisy = np.random.default_rng(1).normal(2.0, 0.2, 40).tolist()
    wide = ratio_over_steps(noisy, [2.0] * 40)
    assert wide is not None
    assert wide.low < 2.0 / np.mean(noisy) < wide.high
    assert ratio_over_steps(noisy, [2.0] * 40) == wide
    back = ratio_over_steps([2.0] * 40, noisy)
    assert back is not None
    assert back.value == pytest.approx(1 / wide.value)
    assert ratio_over_steps([1.0] * 9, [1.0] * 40) is None
    assert ratio_over_steps([1.0] * 10, [1.0] * 40) is not None
    assert ratio_over_steps([0.0] * 40, [1.0] * 40) is None


def test_evaluations_at_the_same_steps_of_both_runs_are_no_chance() -> None:
    """20 s at every tenth of 38 steps of 15 s: steps that are 5% shorter are told, and 95% of equal ones are not."""
    generator, evaluations = np.random.default_rng(0), 20.0 * (np.arange(1, 39) % 10 == 0)
    told = {1.0: 0, 0.95: 0}
    for seed in range(200):
        base, other = generator.normal(15.0, 0.6, (2, 38))
        for ratio in told:
            after = (ratio * other + evaluations).tolist()
            interval = ratio_over_steps((base + evaluations).tolist(), after, seed)
            assert interval is not None
            told[ratio] += interval.excludes(1.0)
    assert told[1.0] <= 22  # 10, and nearly four standard errors
    assert told[0.95] >= 180


@pytest.mark.parametrize(("rho", "most"), [(0.0, 0.08), (0.5, 0.13)])
def test_the_interval_errs_about_as_often_as_the_docs_say(rho: float, most: float) -> None:
    """2.7% and 6.6% of 2,000 pairs of equal runs of 30 steps; here 400 pairs, and three standard errors more."""
    assert rate(30, rho, 400) < most
