"""Logs of another trainer as arms: what is said of them, and how far an interval over steps can be trusted."""

import json
from pathlib import Path

import numpy as np
import pytest

from harness.cli import main
from harness.compare.stats.bootstrap import block_length, ratio_over_steps
from harness.compare.stats.intervals import Interval

LOGS = Path(__file__).parents[1] / "data" / "importers"


def imported(out, trainer, *arms):
    """Import logs as arms: of ``tests/data/importers``, which are made up, or where their paths are whole."""
    typed = [f"{name}={LOGS / path}" for name, path in (arm.split("=") for arm in arms)]
    assert main(["import", trainer, *typed, "--machine", "box", "--out", str(out)]) == 0
    return out


def compared(out, capsys, *options):
    capsys.readouterr()
    assert main(["compare", str(out), "--json", *options]) == 0
    (experiment,) = json.loads(capsys.readouterr().out)["campaigns"]
    return dict(experiment)


def step_of(out, capsys, *options):
    """Return the effect on a step's seconds of the only comparison."""
    (judged,) = compared(out, capsys, *options)["verdicts"]
    assert judged["endpoint"] is None
    return dict(judged["step"])


def answer_of(out, capsys):
    capsys.readouterr()
    assert main(["compare", str(out)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_two_verl_logs_are_two_arms(tmp_path, capsys):
    out = imported(tmp_path, "verl", "colocated=verl_colocated.jsonl", "split=verl_split.jsonl")
    experiment = compared(out, capsys)
    step, means = (
        experiment["verdicts"][0]["step"],
        [arm["runs"][0]["step"]["mean_s"] for arm in experiment["variants"]],
    )
    assert means == pytest.approx([34.3, 27.1], abs=0.05)
    assert step["ratio"] == pytest.approx(means[1] / means[0])
    assert (step["low"], step["high"]) == pytest.approx((0.770, 0.799), abs=5e-4)
    assert (step["verdict"], step["direction"]) == ("inconclusive", "cannot tell")
    answer = answer_of(out, capsys)
    assert "Cannot tell split from colocated per step: -21.1% (-23.0% to -20.1% over their steps) in one run" in answer
    assert "generate -8.93 s, weight_transfer +1.8 s." in answer
    assert "validation reward 0.500 0.510" in answer


def test_two_trl_logs_have_stages_from_their_timers(tmp_path, capsys):
    out = imported(tmp_path, "trl", "transformers=trl_transformers.jsonl", "vllm=trl_vllm.jsonl")
    assert step_of(out, capsys)["ratio"] == pytest.approx(0.558, abs=5e-4)
    assert "generate -7.98 s, weight_transfer +0.594 s." in answer_of(out, capsys)
    assert step_of(out, capsys, "--baseline", "vllm")["ratio"] == pytest.approx(1 / 0.558, abs=2e-3)


def test_equal_logs_short_ones_and_those_without_seconds_claim_nothing(tmp_path, capsys):
    out = imported(tmp_path / "equal", "verl", "a=verl_split.jsonl", "b=verl_split.jsonl")
    step = step_of(out, capsys)
    assert step["low"] == step["ratio"] == 1 == step["high"]
    assert "Cannot tell b from a per step: +0.0% (" in answer_of(out, capsys)
    for steps, seconds, ratio in ((6, (2.0, 1.0), 0.5), (19, (None, None), None)):
        arms = []
        for name, step_s in zip("ab", seconds, strict=True):
            timed = {} if step_s is None else {"timing_s/step": step_s}
            rows = [{"step": step, "critic/score/mean": 0.5} | timed for step in range(1, steps + 1)]
            (log := tmp_path / f"{name}{steps}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            arms.append(f"{name}={log}")
        step = step_of(imported(tmp_path / str(steps), "verl", *arms), capsys)
        assert (step["ratio"], step["low"], step["verdict"]) == (ratio, None, "inconclusive")


def test_the_interval_over_steps():
    """Means of 2 and 3 s without any noise; the interval grows with the noise, and is the same for the same steps."""
    assert [block_length(steps) for steps in (10, 27, 28, 125, 1000)] == [5, 6, 7, 10, 20]  # twice the cube root
    assert ratio_over_steps([2.0] * 20, [3.0] * 40) == Interval(*[pytest.approx(1.5)] * 3)
    noisy = np.random.default_rng(1).normal(2.0, 0.2, 40).tolist()
    wide, back = ratio_over_steps(noisy, [2.0] * 40), ratio_over_steps([2.0] * 40, noisy)
    assert wide.low < 2.0 / np.mean(noisy) < wide.high
    assert ratio_over_steps(noisy, [2.0] * 40) == wide
    assert back.value == pytest.approx(1 / wide.value)
    assert ratio_over_steps([1.0] * 9, [1.0] * 40) is ratio_over_steps([0.0] * 40, [1.0] * 40) is None
    assert ratio_over_steps([1.0] * 10, [1.0] * 40) is not None


def test_evaluations_at_the_same_steps_of_both_runs_are_no_chance():
    """20 s at every tenth of 38 steps of 15 s: steps that are 5% shorter are told, and 95% of equal ones are not."""
    generator, evaluations = np.random.default_rng(0), 20.0 * (np.arange(1, 39) % 10 == 0)
    told = {1.0: 0, 0.95: 0}
    for seed in range(200):
        base, other = generator.normal(15.0, 0.6, (2, 38))
        for ratio in told:
            after = (ratio * other + evaluations).tolist()
            interval = ratio_over_steps((base + evaluations).tolist(), after, seed)
            told[ratio] += interval.excludes(1.0)
    assert told[1.0] <= 22  # 10, and nearly four standard errors
    assert told[0.95] >= 180
