"""A training step that a run has kept is made again from its folder; what was tampered with is found and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from harness.cli import main
from harness.core.errors import UserError
from harness.oracle.kept import Check, make_again
from harness.oracle.ours import ours
from harness.results.reader import find_run_folders
from harness.results.writer import KEPT_STEPS
from harness.run.experiment import run_scenario
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from tests.run.conftest import unseen
from tests.run.test_resume_run import SCENARIO, standing_in, write_scenario

KEPT = SCENARIO.replace(
    "checkpoint: {every: 2}", "checkpoint: {every: 2, keep_steps: [1], keep_steps_every: 3}"
).replace("steps: 8", "steps: 4\nminibatches_per_epoch: 2")


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    folder = tmp_path_factory.mktemp("kept")
    write_scenario(folder, KEPT, "kept.yaml")
    with standing_in(folder):
        yield load_scenario("kept.yaml")


@pytest.fixture(scope="module")
def run_folder(scenario: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs of two minibatches, a replay buffer, a KL penalty; steps 0, 1 and 3 of 4 are kept."""
    out = tmp_path_factory.mktemp("out")
    assert run_scenario(scenario, out, True, show=unseen) == 0
    return next((out / "kept").iterdir())


@pytest.fixture
def copied(run_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_folder, tmp_path / "kept"))


def found(folder: Path, scenario: Scenario, step: int = 3) -> dict[str, Check]:
    return {check.what: check for check in make_again(folder, step, scenario).checks}


def test_every_figure_of_a_kept_step_is_the_recorded_one(run_folder: Path, scenario: Scenario) -> None:
    for step in (1, 3):
        checks = found(run_folder, scenario, step)
        assert {what: (check.values, check.largest, check.differing) for what, check in checks.items()} == {
            "files": (6, 0, ()),  # of the Learner two, the reference policy, of the batch two, the result
            "rewards": (8, 0, ()),
            "advantages": (8, 0, ()),
            "loss": (4, 0, ()),
            "gradient norm": (4, 0, ()),
        }
    assert main(["oracle", str(run_folder), "--step", "0", "--environments", str(run_folder)]) == 0
    references = {path.stat().st_ino for path in run_folder.glob(f"{KEPT_STEPS}/*/reference_rank_0.safetensors")}
    assert len(references) == 1  # one copy for all three
    assert find_run_folders(run_folder) == [run_folder]


def test_each_optimizer_step_has_the_recorded_loss(run_folder: Path, scenario: Scenario) -> None:
    """Computed in float64 from the step's tensors, KL penalty and all; no figure of it is ours to choose."""
    for at in range(4):
        again = make_again(run_folder, 3, scenario, at)
        tensors, own = again.step.tensors, ours(again.step)
        assert again.step.header.loss.kl.coefficient == scenario.loss.kl.coefficient > 0
        assert own.loss == pytest.approx(again.loss, abs=1e-6 * float(tensors["advantages"].abs().mean()))
        assert len(tensors["rows"]) == 4
        assert own.advantages is not None
        assert torch.equal(own.advantages.float(), tensors["advantages"].float())
    ratios = tensors["log_probs"] - tensors["old_log_probs"]
    assert ratios[tensors["mask"].bool()].abs().max() > 1e-4  # the last one is off-policy


def test_a_tampered_reward_is_named(copied: Path, scenario: Scenario) -> None:
    path = copied / KEPT_STEPS / "step_3" / "batch.json"
    document = json.loads(path.read_text())
    ((group, _),) = document["parts"]
    group["rewards"][2] += 0.5
    path.write_text(json.dumps(document))
    checks = found(copied, scenario)
    (named,) = checks["rewards"].differing
    assert named.startswith(f"prompt {group['prompt_id']} of batch {group['step']}, rollout 2: ")
    assert "batch.json" in checks["files"].differing[0]
    assert len(checks["advantages"].differing) == 4  # of its group
    assert checks["loss"].differing
    assert checks["gradient norm"].differing
    assert main(["oracle", str(copied), "--step", "3", "--environments", str(copied)]) == 1


def test_a_tampered_token_is_seen(copied: Path, scenario: Scenario) -> None:
    home = copied / KEPT_STEPS / "step_3"
    arrays = {name: np.array(values) for name, values in load_file(home / "batch.safetensors").items()}
    group = json.loads((home / "batch.json").read_text())["parts"][0][0]
    _, first, _ = group["data"]["completions"][1]["token_ids"]
    place, tokens = first + 1, arrays["int64"]  # the second token of the second rollout
    tokens[place] = next(token for token in tokens if token > 2 and token != tokens[place])
    save_file(arrays, home / "batch.safetensors")
    checks = found(copied, scenario)
    assert "batch.safetensors" in checks["files"].differing[0]
    assert not checks["rewards"].differing  # the text is as it was
    assert not checks["advantages"].differing
    assert checks["gradient norm"].differing


def test_what_cannot_be_made_again_is_refused(copied: Path, scenario: Scenario) -> None:
    with pytest.raises(UserError, match="kept are: 0, 1, 3"):
        make_again(copied, 2, scenario)
    with pytest.raises(UserError, match="no optimizer step 4"):
        make_again(copied, 3, scenario, 4)
    with pytest.raises(UserError) as raised:
        make_again(copied, 3, load_scenario("kept.yaml", ["optimizer.learning_rate=0.5"]))
    assert "optimizer.learning_rate (was 0.001, is 0.5)" in raised.value.what
    (copied / KEPT_STEPS / "step_3" / "batch.json").write_text("{")
    assert main(["oracle", str(copied), "--step", "3"]) == 2
