"""A GPU that the driver lists and PyTorch does not find: refused with both versions, never a silent run on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.core.errors import UserError
from harness.run.devices import check_gpu_is_found
from harness.run.memory.fit import FreeMemory
from harness.run.preflight import check_before_start
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from tests.stand_ins.fake_nvml import DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, FakeDevice, FakeNvml, NVMLError

H200 = FakeDevice("GPU-a", "NVIDIA H200")
OLD = FakeNvml([H200], driver="535.104.05", cuda=12020)
FREE = FreeMemory(64 * 2**30, (64 * 2**30,))


def scenario(tmp_path: Path, text: str = "") -> Scenario:
    path = tmp_path / "trial.yaml"
    path.write_text("steps: 8\n" + text)
    return load_scenario(path)


def finds_none() -> bool:
    return False


def refusal(asked: Scenario, nvml: FakeNvml, torch_cuda: str | None) -> UserError:
    with pytest.raises(UserError) as refused:
        check_gpu_is_found([asked], nvml=nvml, environment={}, torch_finds_gpu=finds_none, torch_cuda=torch_cuda)
    return refused.value


def test_a_driver_older_than_the_cuda_of_torch_is_one_line_with_both_versions(tmp_path: Path) -> None:
    error = refusal(scenario(tmp_path), OLD, "13.0")
    assert "\n" not in error.what
    for said in ("NVIDIA H200", "535.104.05", "12.2", torch.__version__, "13.0"):
        assert said in error.what
    for way_out in ("a driver for CUDA 13.0", "a PyTorch for CUDA 12.2", "placement.device"):
        assert way_out in (error.fix or "")


def test_a_torch_without_cuda_on_a_machine_with_a_gpu_needs_no_other_driver(tmp_path: Path) -> None:
    error = refusal(scenario(tmp_path), OLD, None)
    assert "built for CPUs" in error.what
    assert "driver for" not in (error.fix or "")


def test_versions_that_fit_are_not_blamed(tmp_path: Path) -> None:
    fix = refusal(scenario(tmp_path), FakeNvml([H200], cuda=13010), "13.0").fix or ""
    assert "install" not in fix
    assert "MIG" in fix


def test_a_driver_that_does_not_tell_its_version_is_refused_all_the_same(tmp_path: Path) -> None:
    silent = FakeNvml([H200], driver=NVMLError(FUNCTION_NOT_FOUND))
    assert "unknown" in refusal(scenario(tmp_path), silent, "13.0").what


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ("placement: {device: cpu}\n", {}),  # on purpose
        ("", {"CUDA_VISIBLE_DEVICES": ""}),  # on purpose too
        ("model: {type: paced}\nengine: {type: paced}\nloss: {type: grpo_clip}\n", {}),  # no tensor anywhere
        ("transport: {type: nixl}\n", {}),  # actors that reserve no GPU
        ("transport: {type: nixl}\nplacement: {learner: {gpus: 1}, address: auto}\n", {}),  # other machines
    ],
)
def test_runs_that_would_not_take_the_gpu_go_on(tmp_path: Path, text: str, environment: dict[str, str]) -> None:
    check_gpu_is_found([scenario(tmp_path, text)], nvml=OLD, environment=environment, torch_finds_gpu=finds_none)


def test_actors_that_reserve_a_gpu_are_refused(tmp_path: Path) -> None:
    refusal(scenario(tmp_path, "transport: {type: nixl}\nplacement: {generator: {gpus: 1}}\n"), OLD, "13.0")


def test_torch_is_asked_only_where_the_driver_lists_a_gpu(tmp_path: Path) -> None:
    asked: list[bool] = []

    def finds_gpu() -> bool:
        asked.append(True)
        return True

    for nvml in (FakeNvml(), FakeNvml(init=NVMLError(DRIVER_NOT_LOADED)), OLD):
        check_gpu_is_found([scenario(tmp_path)], nvml=nvml, environment={}, torch_finds_gpu=finds_gpu)
    assert asked == [True]


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch finds a GPU here")
def test_a_run_is_refused_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="PyTorch finds no GPU"):
        check_before_start([expand(scenario(tmp_path))], free=FREE, nvml=OLD)
    check_before_start([expand(scenario(tmp_path, "placement: {device: cpu}\n"))], free=FREE, nvml=OLD)


@pytest.mark.parametrize(
    ("text", "traced"),
    [("", True), ("placement: {device: cpu}\n", False), ("placement: {learner: {gpus: 1}, device: cpu}\n", False)],
)
def test_nsight_traces_cuda_in_one_process_that_computes_on_a_gpu(tmp_path: Path, text: str, traced: bool) -> None:
    with pytest.raises(UserError) as refused:
        check_before_start([expand(scenario(tmp_path, text + "profile: nsight\n"))], free=FREE)
    (trace,) = [word for word in (refused.value.fix or "").split() if word.startswith("--trace=")]
    assert ("cuda" in trace) is traced
