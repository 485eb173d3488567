"""Real runs on the arithmetic task: a few steps always, the whole curve of three seeds among the slow tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.results import Run, find_runs

RISE, FORMAT = 0.2, 0.9
"""What is promised of three seeds: the rise of the held-out answer reward, and the format reward at the end."""


def run_scenario(name: str, out: Path, *settings: str, seconds: int) -> list[Run]:
    """Run a scenario through the command line; return its runs."""
    command = [sys.executable, "-m", "harness", "run", name, *(f"--set={one}" for one in settings), f"--out={out}"]
    environment = os.environ | {"XDG_CACHE_HOME": str(out / "cache"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    runs, damaged = find_runs(out)
    assert damaged == []
    return runs


def validation(run: Run, metric: str) -> list[float]:
    """A metric of every evaluation, in their order."""
    found = [row.metric(metric) for row in run.evaluations]
    return [one.value for one in found if one is not None]


@pytest.mark.slow
def test_a_few_steps_from_random_weights_run_to_their_end(tmp_path: Path) -> None:
    settings = ("model.warm_start=false", "steps=2", "rollout_batch_size=16", "evaluation.prompts=16", "seed=1")
    (run,) = run_scenario("arithmetic", tmp_path, *settings, "evaluation.every=1", seconds=600)
    assert [row.step for row in run.steps] == [0, 1]
    for metric in ("reward", "format_reward", "answer_reward"):  # random letters hold no tags
        assert validation(run, f"validation/{metric}") == [0.0, 0.0, 0.0], metric
    assert run.manifest.parameters == 918_400  # 3 layers * 262,400 + embeddings 1024 * 128 + the last norm's 128
    prompts = {row.prompt for row in run.rollouts()}
    assert all(prompt.endswith("?\nAssistant: <think>") for prompt in prompts)
    weights = {path.name for path in (run.folder / "policy").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= weights


@pytest.mark.slow
def test_grpo_makes_arithmetic_right_more_often_on_three_seeds(tmp_path: Path) -> None:
    runs = run_scenario("arithmetic_seeds", tmp_path, seconds=5400)
    assert sorted(run.setting("seed") for run in runs) == [0, 1, 2]
    for run in runs:
        answers = validation(run, "validation/answer_reward")
        assert answers[-1] - answers[0] >= RISE
        assert validation(run, "validation/format_reward")[-1] > FORMAT
