"""CUDA out of memory in a part: one line with part, stage and sizes, and the memory plan's numbers to lower."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.core.errors import UserError
from harness.core.trace import RecordingTracer, Stage, raised_in
from harness.core.types import RolloutGroup, UpdateResult
from harness.probes.memory import is_full_gpu
from harness.results import find_runs
from harness.run.errors import full_gpu_as_user_error, settings_as_arguments
from harness.run.experiment import run_scenario
from harness.run.memory.check import what_to_lower
from harness.run.parts import RunningParts
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.parts import SimulatedLearner
from tests.stand_ins.simulated_parts import SleepingTimeline, build_simulated_parts, constant, simulated_learner

TOLD = (
    "CUDA out of memory. Tried to allocate 2.25 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is "
    "free. Including non-PyTorch memory, this process has 77.90 GiB memory in use."
)


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (torch.OutOfMemoryError(TOLD), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),  # a context, a stream
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_which_errors_say_that_a_gpu_is_full(error: Exception, full: bool) -> None:
    assert is_full_gpu(error) is full


def test_commands_that_only_sample_say_which_arguments_to_lower() -> None:
    with pytest.raises(UserError) as told, settings_as_arguments():
        raise torch.OutOfMemoryError(TOLD)
    assert told.value.what == "CUDA ran out of memory: tried to allocate 2.25 GiB, and 1.20 GiB were free"
    assert "--batch" in (told.value.fix or "")
    with pytest.raises(RuntimeError, match="other"), settings_as_arguments():
        raise RuntimeError("other")


def scenario(tmp_path: Path, text: str) -> Scenario:
    path = tmp_path / "trial.yaml"
    path.write_text(text)
    return load_scenario(path)


class FullLearner(SimulatedLearner):
    """Its GPU is full in the update of step 1."""

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        assert isinstance(self.timeline, SleepingTimeline)
        with self.timeline.tracer.span(self.lane, Stage.UPDATE, step, step):
            if step == 1:
                raise torch.OutOfMemoryError(TOLD)
        return await super().update(step, groups)


def build(asked: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
    """The parts of the first arm have a GPU that is too small."""
    parts = build_simulated_parts(asked, tracer, should_stop)
    return (
        parts
        if asked.epochs_per_batch == 2
        else replace(parts, learner=simulated_learner(tracer, constant(0.0), of=FullLearner))
    )


def test_an_arm_whose_gpu_is_full_says_so_in_a_line_and_the_others_go_on(tmp_path: Path) -> None:
    text = "steps: 3\nevaluation: {prompts: 8}\narms:\n  full: {}\n  other: {epochs_per_batch: 2}\n"
    asked = scenario(tmp_path, text)
    with pytest.raises(UserError) as told:
        run_scenario(asked, tmp_path / "out", True, build=build, show=lambda folder: None)
    assert "\n" not in told.value.what
    for said in ("full", "update of the learner", "2.25 GiB", "1.20 GiB"):
        assert said in told.value.what
    assert (told.value.fix or "").startswith("raise gradient_accumulation_steps (now 1) (for activations, ")
    runs = {run.folder.name: run for run in find_runs(tmp_path / "out")[0]}
    assert {name: run.manifest.status for name, run in runs.items()} == {"full": "failed", "other": "completed"}
    assert "2.25 GiB" in str(runs["full"].manifest.error)


def test_a_gpu_that_is_full_while_parts_are_built(tmp_path: Path) -> None:
    def cannot(*_: object) -> RunningParts:
        raise torch.OutOfMemoryError(TOLD)

    with pytest.raises(UserError, match=r"startup of the run: .* 2\.25 GiB"):
        run_scenario(scenario(tmp_path, "steps: 2\n"), tmp_path / "out", True, build=cannot, show=lambda folder: None)


def test_what_another_library_says_of_it_is_passed_on(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="memory: no room for the KV cache\n"),
        full_gpu_as_user_error(scenario(tmp_path, "steps: 2\n")),
    ):
        raise torch.OutOfMemoryError("no room for the KV cache\nand a stack")


def test_tensors_of_the_failed_arm_are_given_back(tmp_path: Path) -> None:
    seen: list[weakref.ref[torch.Tensor]] = []

    def fails() -> None:
        activations = torch.zeros(3)
        seen.append(weakref.ref(activations))
        raise torch.OutOfMemoryError(TOLD)

    with pytest.raises(UserError) as told, full_gpu_as_user_error(scenario(tmp_path, "steps: 2\n")):
        fails()
    gc.collect()
    assert seen[0]() is None
    assert isinstance(told.value.__cause__, torch.OutOfMemoryError)


def test_an_error_carries_its_innermost_span_through_a_pickle() -> None:
    tracer, elsewhere = RecordingTracer(lambda: 7), RecordingTracer(lambda: 9)
    error = torch.OutOfMemoryError(TOLD)
    with pytest.raises(torch.OutOfMemoryError), tracer.span("learner", Stage.OLD_LOGPROBS, 3, 3):
        raise error
    crossed = pickle.loads(pickle.dumps(error))
    with pytest.raises(torch.OutOfMemoryError), elsewhere.underway("learner", Stage.UPDATE, 3, 3):
        raise crossed
    assert raised_in(crossed) == ("learner", Stage.OLD_LOGPROBS, 7, 3, 3)
    assert raised_in(ValueError()) is None


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("learner", "raise gradient_accumulation_steps (now 1) (for activations, "),
        ("generator", "set engine.precision to bfloat16 (for engine weights, "),
        ("scorer", "take a GPU with more free memory"),
    ],
)
def test_settings_to_change_are_those_of_the_part_that_was_full(tmp_path: Path, part: str, expected: str) -> None:
    halves = "placement: {generator: {gpus: 0.5}, learner: {gpus: 0.5}}\n"
    asked = scenario(tmp_path, "steps: 2\nevaluation: {prompts: 64}\ntransport: {type: nixl}\n" + halves)
    assert what_to_lower(asked, part).startswith(expected)
