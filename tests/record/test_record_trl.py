"""The real TRL, where it is installed (``PARTS=peers``): 99% of its steps is in a stage, and what it logs agrees."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from harness.cli import main
from harness.core.trace import Stage
from harness.results import find_runs

pytest.importorskip("trl")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/record/train_with_trl.py"
STAGES = {"generate", "score", "prepare_batch", "old_logprobs", "reference_logprobs", "update"}
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ROLLOUTS, STEPS = 32, 6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from harness.learner.warm_start import warm_start_policy
    from harness.models.storage import save_policy

    policy, tokenizer, _ = warm_start_policy("tiny", 0)
    save_policy(policy, tokenizer, folder := tmp_path_factory.mktemp("policy") / "model")
    return folder


@pytest.fixture
def record(tmp_path, model, monkeypatch, capfd):
    """Record some steps of TRL; return the run, and what TRL itself has logged of each step."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def call(*settings, launcher=()):
        command = [sys.executable, *launcher, PROGRAM, model, STEPS, *settings]
        assert main(["record", "--trainer", "trl", "--out", str(tmp_path / "out"), "--", *map(str, command)]) == 0
        (run,), damaged = find_runs(tmp_path / "out")
        assert not damaged
        assert (len(run.steps), run.status) == (STEPS, "completed")
        lines = capfd.readouterr().out.splitlines()
        logs = [ast.literal_eval(line) for line in lines if line.startswith("{'loss'")]
        return run, [{name: float(value) for name, value in log.items()} for log in logs]

    return call


def check(run, logs, lanes):
    """What holds of every run: each lane's stages are its time, and tokens those that TRL logs, of all ranks."""
    assert {span.lane for span in run.spans()} == set(lanes)
    assert all(set(row.lanes) == set(lanes) for row in run.steps)
    for lane in lanes:
        spent_s = [each for row in run.steps for each in row.lanes[lane].items() if not each[0].startswith("wait_for_")]
        share = sum(seconds for _, seconds in spent_s) / sum(row.wall_s for row in run.steps)
        print(f"{lane}: {share:.2%} of its time is in a stage")
        assert share >= 0.99
        assert set().union(*(row.lanes[lane] for row in run.steps)) >= STAGES
    assert len(logs) == STEPS
    for row, log in list(zip(run.steps, logs, strict=True))[::2]:  # one batch is used in two steps
        value = {name: row.metric(name).value for name in ("response_tokens", "counted/rollouts", "loss")}
        assert value["counted/rollouts"] == ROLLOUTS
        assert value["response_tokens"] == pytest.approx(ROLLOUTS * log["completions/mean_length"], rel=1e-3)
        assert value["loss"] == pytest.approx(log["loss"], rel=1e-3)


def test_one_process(record):
    """The span around TRL's training step lies within the seconds of its own that it logs, which lack the optimizer."""
    run, logs = record()
    check(run, logs, ["learner"])
    gaps_ms = []
    for row in run.steps:
        longest_ns = max(
            span.end_ns - span.start_ns
            for span in run.spans()
            if span.step == row.step and span.stage is Stage.UPDATE  # in which all other ones lie
        )
        gaps_ms.append(1e3 * row.metric("step_time").value - longest_ns / 1e6)
    print(f"its own step_time is longer than our span by {max(gaps_ms):.3f} ms at most")
    assert min(gaps_ms) >= 0


def test_gradient_accumulation(record):
    """One training step is two of TRL's, and counts the rollouts of both."""
    run, logs = record("per_device_train_batch_size=16", "gradient_accumulation_steps=2")
    check(run, logs, ["learner"])


def test_evaluation_between_the_steps(record):
    """It is in the row of the step after it, all of it as ``evaluate``, and its rollouts are no training's."""
    run, logs = record("eval_strategy='steps'", "eval_steps=3", "per_device_eval_batch_size=16")
    check(run, logs, ["learner"])
    evaluated = [row.step for row in run.steps if "evaluate" in row.stages_s]
    assert evaluated == [3]
    assert sum(span.stage is Stage.EVALUATE and span.step == STEPS - 1 for span in run.spans()) > 0


def test_two_ranks(record):
    """Each is a lane; steps are those of rank 0, tokens and rollouts those of both."""
    run, logs = record("per_device_train_batch_size=16", launcher=RANKS)
    check(run, logs, ["learner/0", "learner/1"])
