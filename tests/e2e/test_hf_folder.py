"""A folder in Qwen2.5-Math-1.5B's architecture, made by the harness, trains and serves; only layers are fewer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from harness.core.errors import UserError
from harness.models.make_folder import make_folder
from harness.models.storage import load_policy
from harness.results import Run, find_runs
from harness.run.experiment import run_scenario
from harness.run.memory.check import check_memory
from harness.run.memory.fit import FreeMemory
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario

REWARDS = """
def by_length(response, ground_truth):
    value = len(response) % 7 / 6
    return {"reward": value, "format_reward": 1.0, "answer_reward": value}
"""
TRAINED = """
task: {type: jsonl, train: PROMPTS, reward: "REWARDS:by_length", reward_timeout_s: null}
model: {type: folder, path: FOLDER, threads: 1, gradient_checkpointing: true}
sampling: {max_tokens: 6}
rollout_batch_size: 8
group_size: 4
gradient_accumulation_steps: 2
steps: 2
optimizer: {learning_rate: 0.0001}
evaluation: {every: 2, prompts: 4, examples: 1}
trackers: [jsonl]
"""


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The public model's own width, heads and MLP; two of its 28 layers and 512 of its tokens."""
    folder = tmp_path_factory.mktemp("models") / "qwen"
    make_folder("qwen2.5-math-1.5b", folder, layers=2, vocab_size=512)
    return folder


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_folder("tiny-qwen2", folder)
    return folder


def scenario(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str = "") -> Scenario:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{n} + {n} =", "answer": str(2 * n)}) + "\n" for n in range(20)))
    module = f"rewards_of_{folder.name}"
    (tmp_path / f"{module}.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = tmp_path / "hf.yaml"
    text = TRAINED.replace("PROMPTS", str(prompts)).replace("FOLDER", str(folder)).replace("REWARDS", module)
    path.write_text(text + extra)
    return load_scenario(path)


def run(trial: Scenario, out: Path) -> Run:
    assert run_scenario(trial, out, quiet=True, show=lambda folder: None) == 0
    (found,), damaged = find_runs(out)
    assert damaged == []
    assert found.manifest.status == "completed"
    return found


def figures(result: Run, name: str) -> list[float]:
    """A metric of each training step."""
    found = [row.metric(name) for row in result.steps]
    return [metric.value for metric in found if metric is not None]


def moved(before: Path, after: Path) -> dict[str, float]:
    """The largest change of each weight."""
    old, new = (dict(load_policy(folder)[0].named_parameters()) for folder in (before, after))
    assert old.keys() == new.keys()
    return {name: float((new[name] - old[name]).detach().abs().max()) for name in old}


@pytest.mark.slow
def test_the_public_width_trains_and_serves_in_one_process(
    wide_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(scenario(wide_folder, tmp_path, monkeypatch), tmp_path / "out")
    assert len(figures(result, "grad_norm")) == 2
    assert min(figures(result, "grad_norm")) > 0
    changes = moved(wide_folder, result.folder / "policy")
    assert min(changes.values()) > 0  # every weight is trained, biases and norms too
    # Adam's first steps move a weight by at most the learning rate, a little more when gradients keep their sign
    assert max(changes.values()) < 3 * 2 * 1e-4
    assert json.loads((result.folder / "policy" / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]
    _, tokenizer = load_policy(result.folder / "policy")
    assert tokenizer.decode(tokenizer.encode("7 + 7 = 14")) == "7 + 7 = 14"


def test_the_engine_agrees_with_the_learner_after_each_update(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two passes over a batch the Learner computes its own old log-probabilities; the gap to the engine's is 0."""
    extra = "epochs_per_batch: 2\nloss: {importance: {mode: tis}}\n"
    result = run(scenario(tiny_folder, tmp_path, monkeypatch, extra), tmp_path / "out")
    gaps = figures(result, "engine_mismatch/kl")
    assert len(gaps) == 2
    assert max(map(abs, gaps)) < 1e-5


@pytest.mark.slow
def test_bfloat16_weights_train(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = scenario(tiny_folder, tmp_path, monkeypatch, "engine: {precision: bfloat16}\n")
    narrow = trial.model_copy(update={"model": trial.model.model_copy(update={"dtype": "bfloat16"})})
    result = run(narrow, tmp_path / "out")
    assert min(figures(result, "grad_norm")) > 0
    weights = load_policy(result.folder / "policy", dtype=torch.bfloat16)[0].state_dict()
    assert json.loads((result.folder / "policy" / "config.json").read_text())["dtype"] == "bfloat16"
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}


def test_its_memory_is_planned_before_it_is_loaded(
    wide_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = check_memory([scenario(wide_folder, tmp_path, monkeypatch)], FreeMemory(64 * 2**30))
    assert "optimizer 0.70 GiB" in line  # 2 x 4 x 94,383,616 bytes


def test_a_missing_folder_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    path = tmp_path / "missing.yaml"
    path.write_text("model: {type: folder, path: ./models/nothing_here}\nsteps: 1\n")
    with pytest.raises(UserError, match=r"no model folder \./models/nothing_here") as refused:
        run_scenario(load_scenario(path), tmp_path / "out", quiet=True)
    assert "python -m harness.models.make_folder --shape qwen2.5-math-1.5b" in (refused.value.fix or "")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["object_store_numpy", "shared_memory", "nixl"])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray")
def test_it_trains_and_serves_as_ray_actors(
    wide_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    extra = (
        f"transport: {{type: {transport}, verify: true}}\n"
        "placement: {learner: {cpus: 0.5}, generator: {cpus: 0.5}}\n"
    )
    result = run(scenario(wide_folder, tmp_path, monkeypatch, extra), tmp_path / "out")
    assert min(moved(wide_folder, result.folder / "policy").values()) > 0
    # float32: 4 bytes for each of 94,383,616 weights
    assert set(figures(result, "sync/bytes")) == {4 * 94_383_616}
