"""What is refused before anything is built, since it cannot work here; and CUDA out of memory in a part of a run."""

from __future__ import annotations

import gc
import pickle
import platform
import weakref
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from harness.core.errors import UserError
from harness.core.trace import RecordingTracer, Stage, raised_in
from harness.probes.memory import is_full_gpu
from harness.run.devices import check_gpu_is_found, slow_precision
from harness.run.errors import full_gpu_as_user_error, settings_as_arguments
from harness.run.experiment import run_scenario
from harness.run.memory.check import what_to_lower
from harness.run.memory.fit import FreeMemory
from harness.run.preflight import check_before_start
from harness.scenario.axes import expand
from harness.scenario.schema import Scenario
from tests.messages import facts
from tests.run.conftest import BUILT, Load, Patch, Planned, runs_in, unseen
from tests.stand_ins.fake_nvml import DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, FakeDevice, FakeNvml, NVMLError

WINDOW = "torch_profiler: {lanes: [learner], first_step: 3, steps: 2}\n"
TRACED = "steps: 8\narms: {plain: {}, traced: {profile: PROFILE}}\n"
GIB = 1 << 30


def check(asked: Scenario, gpus: int = 0) -> None:
    check_before_start([expand(asked)], free=FreeMemory(64 * GIB, (80 * GIB,) * gpus))


@pytest.mark.parametrize(
    ("text", "profile", "what", "fix"),
    [
        ("profile: ligth\n", "", ("ligth",), "light"),
        ("steps: 4\nprofile: PROFILE\n", WINDOW, ("steps 3 to 4", " is 3"), ""),
        ("steps: 8\nprofile: PROFILE\n", WINDOW.replace("learner", "generator1"), ("generator1",), ""),
        (TRACED, WINDOW, ("take turns by step",), "set interleaving to run"),
        ("steps: 8\nprofile: nsight\n", "", ("nsys must start the whole command",), "nsys profile"),
        ("profile: nsight\ntransport: {type: object_store}\n", "", ("there is no nsys on the PATH",), "install"),
    ],
    ids=["no such profile", "behind the last step", "no such lane", "arms in turns", "nsight", "no nsys"],
)
def test_a_profile_that_cannot_work_is_refused(
    load: Load, tmp_path: Path, monkeypatch: Patch, text: str, profile: str, what: tuple[str, ...], fix: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "mine.yaml").write_text(profile)
    with pytest.raises(UserError) as refused:
        check(load(text.replace("PROFILE", str(tmp_path / "mine.yaml"))))
    assert [said for said in what if said not in refused.value.what] == []
    assert fix in (refused.value.fix or "")


def test_profiles_that_work_are_let_through(load: Load, tmp_path: Path) -> None:
    for name in ("off", "light", "full"):
        check(load(f'steps: 8\nprofile: "{name}"\n'))
    (tmp_path / "mine.yaml").write_text(WINDOW)
    mine = str(tmp_path / "mine.yaml")
    check(load(f"steps: 5\nprofile: {mine}\n"))
    check(load(TRACED.replace("PROFILE", mine) + "interleaving: run\n"))


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="MLflow is installed")
def test_a_tracker_whose_package_is_missing_is_refused_with_the_command(load: Load) -> None:
    with pytest.raises(UserError, match="mlflow") as refused:
        check(load("trackers: [mlflow]\n"))
    assert "make install PARTS=mlflow" in (refused.value.fix or "")


VLLM = "transport: {type: nixl}\nengine: {type: vllm, tensor_parallel: 2}\n"
APART = VLLM + "placement: {colocated: false, learner: {gpus: 1}, generator: {gpus: 2, count: 2}}\n"
TOGETHER = (
    "transport: {type: nixl}\nlearner: {sharding: fsdp2}\n"
    "placement: {learner: {ranks: 2, gpus: 1}, generator: {gpus: 1, count: 4}}\n"
)


@pytest.mark.parametrize(
    ("text", "gpus", "numbers"), [(APART, 5, "5 1 1 2 2 4"), (TOGETHER, 2, "2 2 1 4 1 1")], ids=["apart", "colocated"]
)
def test_more_gpus_than_there_are_are_refused(load: Load, text: str, gpus: int, numbers: str) -> None:
    with pytest.raises(UserError) as refused:
        check(load(text), gpus - 1)
    assert facts(refused.value.what) == numbers
    check(load(text), gpus)


def test_heads_that_an_engines_workers_cannot_share_are_refused(load: Load) -> None:
    with pytest.raises(UserError) as refused:
        check(load(VLLM.replace("2", "3")))
    said = (facts(refused.value.what), refused.value.where, facts(refused.value.fix))
    assert said == ("4 3", "engine.tensor_parallel", "1 2")  # key/value heads of the preset
    check(load(VLLM))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="which CPUs have bfloat16 is known for x86-64 alone")
def test_16_bits_on_a_cpu_without_them_are_said_with_the_settings_to_change(load: Load) -> None:
    for precision, has_gpu, has_bfloat16, is_said in (
        ("bfloat16", False, False, True),
        ("bfloat16", False, True, False),
        ("bfloat16", True, False, False),
        ("float16", False, True, True),
        ("float32", False, False, False),
    ):
        asked = load(f"model: {{precision: {precision}}}\nengine: {{type: native, precision: {precision}}}\n")
        told = slow_precision([asked], has_gpu=has_gpu, has_bfloat16=lambda known=has_bfloat16: known)
        assert ("--set engine.precision=float32 --set model.precision=float32" in told) is is_said, told
        assert is_said or told == ""


# ---- a GPU that the driver lists and PyTorch does not find: never a silent run on the CPU

H200 = FakeDevice("GPU-a", "NVIDIA H200")
OLD = FakeNvml([H200], driver="535.104.05", cuda=12020)
FREE = FreeMemory(64 * GIB, (64 * GIB,))


ON_A_GPU = "transport: {type: nixl}\nplacement: {generator: {gpus: 1}}\n"


def check_gpu(
    asked: Scenario, nvml: FakeNvml, cuda: str | None = "13.0", environment: dict[str, str] | None = None
) -> None:
    check_gpu_is_found(
        [asked], nvml=nvml, environment=environment or {}, torch_finds_gpu=lambda: False, torch_cuda=cuda
    )


def test_a_refusal_is_one_line_with_both_versions(load: Load) -> None:
    def refusal(nvml: FakeNvml, cuda: str | None = "13.0", text: str = "") -> tuple[str, str]:
        with pytest.raises(UserError) as refused:
            check_gpu(load("steps: 8\n" + text), nvml, cuda)
        return refused.value.what, refused.value.fix or ""

    for what, fix in (refusal(OLD), refusal(OLD, text=ON_A_GPU)):
        assert "\n" not in what
        for said in ("NVIDIA H200", "535.104.05", "12.2", torch.__version__, "13.0"):
            assert said in what
        for way_out in ("a driver for CUDA 13.0", "a PyTorch for CUDA 12.2", "placement.device"):
            assert way_out in fix
    what, fix = refusal(OLD, None)
    assert ("built for CPUs" in what, "driver for" in fix) == (True, False)
    _, fix = refusal(FakeNvml([H200], cuda=13010))  # versions that fit are not blamed
    assert ("MIG" in fix, "install" in fix) == (True, False)
    assert "unknown" in refusal(FakeNvml([H200], driver=NVMLError(FUNCTION_NOT_FOUND)))[0]


def test_runs_that_would_not_take_the_gpu_go_on(load: Load) -> None:
    for text in (
        "placement: {device: cpu}\n",  # on purpose
        "model: {type: paced}\nengine: {type: paced}\nloss: {type: grpo_clip}\n",  # no tensor anywhere
        "transport: {type: nixl}\n",  # actors that reserve no GPU
        "transport: {type: nixl}\nplacement: {learner: {gpus: 1}, address: auto}\n",  # other machines
    ):
        check_gpu(load("steps: 8\n" + text), OLD)
    check_gpu(load("steps: 8\n"), OLD, environment={"CUDA_VISIBLE_DEVICES": ""})  # on purpose too


def test_torch_is_asked_only_where_the_driver_lists_a_gpu(load: Load) -> None:
    asked: list[bool] = []

    def finds_gpu() -> bool:
        asked.append(True)
        return True

    for nvml in (FakeNvml(), FakeNvml(init=NVMLError(DRIVER_NOT_LOADED)), OLD):
        check_gpu_is_found([load("steps: 8\n")], nvml=nvml, environment={}, torch_finds_gpu=finds_gpu)
    assert asked == [True]


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch finds a GPU here")
def test_a_run_is_refused_before_it_starts(load: Load) -> None:
    with pytest.raises(UserError, match="PyTorch finds no GPU"):
        check_before_start([expand(load("steps: 8\n"))], free=FREE, nvml=OLD)
    check_before_start([expand(load("placement: {device: cpu}\n"))], free=FREE, nvml=OLD)


def test_nsight_traces_cuda_in_one_process_that_computes_on_a_gpu(load: Load) -> None:
    for text, traced in (("", True), ("device: cpu", False), ("learner: {gpus: 1}, device: cpu", False)):
        with pytest.raises(UserError) as refused:
            check_before_start([expand(load(f"profile: nsight\nplacement: {{{text}}}\n"))], free=FREE)
        (trace,) = [word for word in (refused.value.fix or "").split() if word.startswith("--trace=")]
        assert ("cuda" in trace) is traced, text


# ---- a GPU that is full: one line with part, stage and sizes, and what to lower

TWO = "steps: 2\n"
TOLD = (
    "CUDA out of memory. Tried to allocate 2.25 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is "
    "free. Including non-PyTorch memory, this process has 77.90 GiB memory in use."
)


def test_which_errors_say_that_a_gpu_is_full() -> None:
    assert is_full_gpu(torch.OutOfMemoryError(TOLD))
    assert is_full_gpu(torch.AcceleratorError("CUDA error: out of memory"))  # a context, a stream
    assert is_full_gpu(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not is_full_gpu(RuntimeError("CUDA error: device-side assert triggered"))
    assert not is_full_gpu(ValueError("out of memory"))


def test_commands_that_only_sample_say_which_arguments_to_lower() -> None:
    with pytest.raises(UserError, match=r" 2\.25 GiB, and 1\.20 GiB ") as told, settings_as_arguments():
        raise torch.OutOfMemoryError(TOLD)
    assert "--batch" in (told.value.fix or "")
    with pytest.raises(RuntimeError, match="other"), settings_as_arguments():
        raise RuntimeError("other")


def test_an_arm_whose_gpu_is_full_says_so_in_a_line_and_the_others_go_on(load: Load, tmp_path: Path) -> None:
    asked = load("steps: 3\nevaluation: {prompts: 8}\narms:\n  full: {}\n  other: {epochs_per_batch: 2}\n")
    with pytest.raises(UserError) as told:
        run_scenario(asked, tmp_path / "out", True, Planned({1: [(1, torch.OutOfMemoryError(TOLD))]}, "epochs"), unseen)
    assert "\n" not in told.value.what
    for said in ("full", "update of the learner", "2.25 GiB", "1.20 GiB"):
        assert said in told.value.what
    assert (told.value.fix or "").startswith("raise gradient_accumulation_steps (now 1) (for activations, ")
    runs = runs_in(tmp_path / "out")
    assert {name: run.manifest.status for name, run in runs.items()} == {"full": "failed", "other": "completed"}
    assert "2.25 GiB" in str(runs["full"].manifest.error)


def test_a_gpu_that_is_full_while_parts_are_built(load: Load, tmp_path: Path) -> None:
    parts = Planned({0: [(BUILT, torch.OutOfMemoryError(TOLD))]})
    with pytest.raises(UserError, match=r"startup of the run: .* 2\.25 GiB"):
        run_scenario(load(TWO), tmp_path / "out", True, parts, unseen)
    other = "no room for the KV cache\nand a stack"  # of another library
    with pytest.raises(UserError, match="no room for the KV cache\n"), full_gpu_as_user_error(load(TWO)):
        raise torch.OutOfMemoryError(other)


def test_tensors_of_the_failed_arm_are_given_back(load: Load) -> None:
    seen: list[weakref.ref[torch.Tensor]] = []

    def fails() -> None:
        activations = torch.zeros(3)
        seen.append(weakref.ref(activations))
        raise torch.OutOfMemoryError(TOLD)

    with pytest.raises(UserError) as told, full_gpu_as_user_error(load(TWO)):
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


def test_settings_to_change_are_those_of_the_part_that_was_full(load: Load) -> None:
    halves = "placement: {generator: {gpus: 0.5}, learner: {gpus: 0.5}}\n"
    asked = load("steps: 2\nevaluation: {prompts: 64}\ntransport: {type: nixl}\n" + halves)
    for part, expected in (
        ("learner", "raise gradient_accumulation_steps (now 1) (for activations, "),
        ("generator", "set engine.precision to bfloat16 (for engine weights, "),
        ("scorer", "take a GPU with more free memory"),
    ):
        assert what_to_lower(asked, part).startswith(expected), part
