"""Where parts compute: real run, memory plan and simulator go by one rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.models.config import PRESETS
from harness.run.devices import resolve_device
from harness.run.memory.plan import make_plan
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.cost_model import cost_key

NIXL = "transport: {type: nixl}\n"
HALVES = "generator: {gpus: 0.5}, learner: {gpus: 0.5}"


def scenario(tmp_path: Path, text: str) -> Scenario:
    path = tmp_path / "trial.yaml"
    path.write_text("steps: 2\n" + text)
    return load_scenario(path)


@pytest.mark.parametrize(
    ("text", "has_gpu", "learner", "generator"),
    [
        (NIXL + "placement: {learner: {gpus: 1}}\n", True, "cuda", "cpu"),
        (NIXL + "placement: {generator: {gpus: 1}}\n", True, "cpu", "cuda"),
        (NIXL + f"placement: {{{HALVES}}}\n", True, "cuda", "cuda"),
        (NIXL + f"placement: {{{HALVES}}}\n", False, "cpu", "cpu"),
        (NIXL, True, "cpu", "cpu"),
        ("", True, "cuda", "cuda"),
        ("", False, "cpu", "cpu"),
        ("placement: {device: cpu}\n", True, "cpu", "cpu"),
        (NIXL + f"placement: {{device: cpu, {HALVES}}}\n", True, "cpu", "cpu"),
        ("placement: {device: cuda}\n", True, "cuda", "cuda"),
        (NIXL + f"placement: {{device: cuda, {HALVES}}}\n", True, "cuda", "cuda"),
    ],
)
def test_real_run_memory_plan_and_simulator_agree(
    tmp_path: Path, text: str, has_gpu: bool, learner: str, generator: str
) -> None:
    asked = scenario(tmp_path, text)
    placement = asked.placement
    real = [resolve_device(asked, part, lambda: has_gpu) for part in (placement.learner, placement.generator)]
    simulated = [cost_key(asked, stage, 2, has_gpu)["device"] for stage in ("update", "generate")]
    planned = {
        process.name: process.device for process in make_plan(asked, PRESETS["small"], has_gpu=has_gpu).processes
    }
    assert real == simulated == [learner, generator]
    assert [planned.get(name, planned.get("run")) for name in ("learner", "generator")] == [learner, generator]


def test_a_scorer_without_a_gpu_is_on_the_cpu_whatever_the_others_ask_for(tmp_path: Path) -> None:
    asked = scenario(tmp_path, NIXL + f"placement: {{device: cuda, {HALVES}}}\n")
    assert resolve_device(asked, asked.placement.scorer, lambda: True) == "cpu"


def test_a_gpu_by_name_is_planned_and_simulated_without_one_and_refused_by_a_run(tmp_path: Path) -> None:
    asked = scenario(tmp_path, "placement: {device: cuda}\n")
    assert make_plan(asked, PRESETS["small"]).total("cuda") > 0
    assert cost_key(asked, "update", 2, has_gpu=False)["device"] == "cuda"
    with pytest.raises(UserError, match="PyTorch finds none"):
        resolve_device(asked, asked.placement.learner, lambda: False)
