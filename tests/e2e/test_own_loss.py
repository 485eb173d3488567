"""A user's own loss and advantage from a folder outside of the repository, in real runs on the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from harness.results import Run, find_runs
from harness.results.manifest import MADE_OF

MODULE = '''
"""CISPO (MiniMax-M1, arXiv:2506.13585) and RLOO (Ahmadian et al. 2024), written by a user."""

import torch


def cispo(advantages, log_probs, old_log_probs, response_mask, cliprange, cliprange_high):
    assert response_mask.dtype == torch.bool
    ratio = torch.exp(torch.clamp(log_probs.detach() - old_log_probs, max=80.0))
    weight = torch.clamp(ratio, 1 - cliprange, 1 + cliprange_high)
    return -weight * advantages * log_probs, {"clipped": weight != ratio}


def by_length(response, ground_truth):
    return len(response) % 7 / 6


def leave_one_out(rewards):
    return rewards - (rewards.sum(dim=1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
'''
SCENARIO = """
task: {type: jsonl, train: prompts.jsonl, reward: "own_losses_of_e2e:by_length", reward_timeout_s: null}
model: {type: preset, preset: tiny, warm_start: false, threads: 1}
sampling: {max_tokens: 8}
rollout_batch_size: 16
group_size: 4
epochs_per_batch: 3
steps: 2
optimizer: {learning_rate: 0.01}
evaluation: {every: 2, prompts: 4, examples: 1}
interleaving: run
profile: "off"
trackers: []
arms:
  built_in:
    loss: {type: cispo, cliprange: 0.02, cliprange_high: 0.05}
    advantage.delta: leave_one_out_rewards
  own:
    loss: {type: own, cliprange: 0.02, cliprange_high: 0.05}
    loss.function: own_losses_of_e2e:cispo
    advantage.delta: own
    advantage.function: own_losses_of_e2e:leave_one_out
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with the scenario; the module lies in another one, which is on PYTHONPATH."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "own_losses_of_e2e.py").write_text(MODULE)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "own.yaml").write_text(SCENARIO)
    rows = [json.dumps({"prompt": f"Write about number {number}", "answer": str(number)}) for number in range(20)]
    (tmp_path / "work" / "prompts.jsonl").write_text("\n".join(rows))
    return tmp_path


def run(folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    paths = [str(folder / "modules"), str(Path(__file__).parents[2])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "harness", "run", "own.yaml", "--out", "results", *settings]
    return subprocess.run(
        arguments, cwd=folder / "work", env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def runs_by_arm(folder: Path) -> dict[str, Run]:
    found, damaged = find_runs(folder / "work" / "results")
    assert damaged == []
    return {str(run.manifest.arm): run for run in found}


def clipped(run: Run, name: str) -> list[float]:
    return [row.metrics[name]["mean"] for row in run.steps]


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["in_process", "object_store_numpy"])
def test_cispo_from_outside_of_the_repository_is_the_built_in_one_bit_for_bit(folder: Path, transport: str) -> None:
    done = run(folder, f"--set=transport.type={transport}", "--set=placement.colocated=true")
    assert done.returncode == 0, done.stderr
    runs = runs_by_arm(folder)
    policies = {arm: load_file(run.folder / "policy" / "model.safetensors") for arm, run in runs.items()}
    assert list(policies["own"]) == list(policies["built_in"])
    assert [name for name, weight in policies["own"].items() if not weight.equal(policies["built_in"][name])] == []
    assert clipped(runs["own"], "own/clipped") == clipped(runs["built_in"], "clip_fraction")
    assert min(clipped(runs["own"], "own/clipped")) > 0  # the weights were bounded, so the functions had work to do
    named = {key: each for key, each in runs["own"].manifest.inputs.items() if key not in MADE_OF}
    assert {key: entry["name"] for key, entry in named.items()} == {
        "task.reward": "own_losses_of_e2e:by_length",
        "loss.function": "own_losses_of_e2e:cispo",
        "advantage.function": "own_losses_of_e2e:leave_one_out",
    }
    assert len({entry["sha256"] for entry in named.values()}) == 1
    assert [key for key in runs["built_in"].manifest.inputs if key not in MADE_OF] == ["task.reward"]


def test_a_loss_that_is_not_there_is_refused_before_the_run_in_one_message(folder: Path) -> None:
    text = SCENARIO.replace("own_losses_of_e2e:cispo", "own_losses_of_e2e:cisp")
    (folder / "work" / "own.yaml").write_text(text)
    done = run(folder)
    assert done.returncode == 2
    assert "did you mean own_losses_of_e2e:cispo?" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "work" / "results").exists()
