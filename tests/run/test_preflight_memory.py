"""The memory plan before a run: told in a line, refused where it cannot fit, and quick."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.core.named_files import SCENARIOS
from harness.models.published import PUBLIC_SHAPES
from harness.run.memory.check import check_memory, planned_bytes
from harness.run.memory.fit import FreeMemory, gib
from harness.run.preflight import check_before_start, free_memory
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from tests.stand_ins.fake_nvml import NOT_SUPPORTED, FakeDevice, FakeNvml, Memory, NVMLError

GIB = 2**30


@pytest.mark.parametrize("path", SCENARIOS.files(), ids=lambda path: path.stem)
def test_no_shipped_scenario_is_refused_on_a_machine_of_24_gib(path: Path) -> None:
    """12 GiB are in use, arms that take turns stand side by side, and scenarios that ask for GPUs have two."""
    scenario = load_scenario(path)
    if scenario.transport_sweep is not None:
        return  # it trains nothing
    variants = [variant for variant in expand(scenario) if not variant.block]
    points = [list(group) for _, group in itertools.groupby(variants, key=lambda variant: variant.point)]
    for gpus in ((), (80 * GIB, 80 * GIB)):
        lines: list[str] = []
        check_before_start(points, lines.append, FreeMemory(12 * GIB, gpus))
        assert (path.stem == "noise") == any("have the same settings" in line for line in lines)  # a copy on purpose
        plans = [line for line in lines if not line.startswith(("bfloat16", "float16", "note: "))]  # depends on the CPU
        assert plans
        assert all(line.startswith("memory plan: ") for line in plans)


def test_arms_that_take_turns_are_planned_together(tmp_path: Path) -> None:
    path = tmp_path / "arms.yaml"
    path.write_text("steps: 4\narms: {a: {}, b: {optimizer.learning_rate: 0.01}}\n")
    scenario = load_scenario(path)
    together: list[str] = []
    check_before_start([expand(scenario)], together.append, FreeMemory(16 * GIB))
    apart: list[str] = []
    check_before_start([expand(load_scenario(path, ["interleaving=run"]))], apart.append, FreeMemory(16 * GIB))
    needs = [float(lines[0].split("about ")[1].split(" GiB")[0]) for lines in (together, apart)]
    assert len(together) == len(apart) == 1
    assert needs[0] > needs[1]


def test_a_model_that_does_not_fit_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "qwen"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLIC_SHAPES["qwen2.5-math-1.5b"]))  # no weights: none are read
    path = tmp_path / "large.yaml"
    path.write_text(f"model: {{type: folder, path: {folder}}}\nsampling: {{max_tokens: 512}}\nsteps: 1\n")
    with pytest.raises(UserError, match=r"needs about .* of main memory, and 60\.0 GiB are free") as refused:
        check_before_start([expand(load_scenario(path))], free=FreeMemory(60 * GIB))
    assert (refused.value.fix or "").startswith("raise gradient_accumulation_steps (now 1)")


def test_this_machine_has_some_room() -> None:
    assert free_memory().main > 0


def test_what_is_compared_is_the_free_memory_of_the_visible_gpus() -> None:
    nvml = FakeNvml([FakeDevice(script={"memory": [Memory(80 * GIB, 74 * GIB)]}), FakeDevice()])
    assert free_memory(nvml).gpus == (6 * GIB, 70 * GIB)


def test_a_gpu_of_unknown_memory_is_planned_for_and_bounds_nothing(tmp_path: Path) -> None:
    nvml = FakeNvml([FakeDevice(script={"memory": [NVMLError(NOT_SUPPORTED)]})])
    free = free_memory(nvml)
    assert (free.gpus, free.has_gpu) == ((None,), True)
    path = tmp_path / "trial.yaml"
    path.write_text("steps: 1\n")
    scenario = load_scenario(path)
    planned = planned_bytes([scenario], has_gpu=True)
    assert planned["gpu"] > 0
    needed = f"about {gib(planned['main'])} of 16.0 GiB free, and {gib(planned['gpu'])} on GPUs of an unknown size free"
    assert needed in check_memory([scenario], FreeMemory(16 * GIB, free.gpus))
