"""What is refused before anything is built: profiles, windows, profilers and trackers that cannot work here."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.run.devices import slow_precision
from harness.run.experiment import run_scenario
from harness.run.memory.fit import FreeMemory
from harness.run.preflight import check_before_start
from harness.scenario.axes import Variant, expand
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from tests.messages import facts

TORCH = "torch_profiler: {lanes: [learner], first_step: 3, steps: 2}\n"


def points(tmp_path: Path, text: str) -> list[list[Variant]]:
    return [expand(scenario(tmp_path, text))]


def scenario(tmp_path: Path, text: str) -> Scenario:
    path = tmp_path / "trial.yaml"
    path.write_text(text)
    return load_scenario(path)


def profile(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["off", "light", "full"])
def test_profiles_that_work_everywhere_are_let_through(tmp_path: Path, name: str) -> None:
    check_before_start(points(tmp_path, f'steps: 8\nprofile: "{name}"\n'))


def test_an_unknown_profile_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ligth") as refused:
        check_before_start(points(tmp_path, "profile: ligth\n"))
    assert "light" in (refused.value.fix or "")


def test_a_window_behind_the_last_step_is_refused(tmp_path: Path) -> None:
    name = profile(tmp_path, TORCH)
    with pytest.raises(UserError, match="profiles steps 3 to 4, and the last step of the run is 3"):
        check_before_start(points(tmp_path, f"steps: 4\nprofile: {name}\n"))


def test_a_lane_that_the_run_has_not_is_refused(tmp_path: Path) -> None:
    name = profile(tmp_path, TORCH.replace("learner", "generator1"))
    with pytest.raises(UserError, match="no lane 'generator1' to profile"):
        check_before_start(points(tmp_path, f"steps: 8\nprofile: {name}\n"))


def test_arms_that_take_steps_in_one_process_cannot_be_told_apart_by_a_profiler(tmp_path: Path) -> None:
    name = profile(tmp_path, TORCH)
    arms = f"steps: 8\narms: {{plain: {{}}, traced: {{profile: {name}}}}}\n"
    with pytest.raises(UserError, match="looks at the whole process, in which arms take turns by step") as refused:
        check_before_start(points(tmp_path, arms))
    assert (refused.value.where, refused.value.fix) == (
        "arm traced",
        "set interleaving to run, or take a transport other than in_process",
    )
    check_before_start(points(tmp_path, arms + "interleaving: run\n"))


def test_nsight_without_nsys_is_refused_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    text = "steps: 8\nprofile: nsight\ntransport: {type: object_store}\n"
    out = tmp_path / "results"
    with pytest.raises(UserError, match="there is no nsys on the PATH"):
        run_scenario(scenario(tmp_path, text), out, quiet=True, show=lambda folder: None)
    assert not out.exists()


def test_nsight_of_an_in_process_run_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nsys must start the whole command") as refused:
        check_before_start(points(tmp_path, "steps: 8\nprofile: nsight\n"))
    assert "nsys profile" in (refused.value.fix or "")


def test_a_tracker_whose_package_is_missing_is_refused_with_the_command(tmp_path: Path) -> None:
    try:
        import mlflow  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match="the tracker 'mlflow' needs") as refused:
            check_before_start(points(tmp_path, "trackers: [mlflow]\n"))
        assert "make install PARTS=mlflow" in (refused.value.fix or "")
    else:
        check_before_start(points(tmp_path, "trackers: [mlflow]\n"))


def test_heads_that_an_engines_workers_cannot_share_are_refused(tmp_path: Path) -> None:
    text = "transport: {type: nixl}\nengine: {type: vllm, tensor_parallel: 3}\n"
    with pytest.raises(UserError) as refused:
        check_before_start(points(tmp_path, text))
    assert (facts(refused.value.what), refused.value.where, facts(refused.value.fix)) == (
        "4 3",  # key/value heads of the preset
        "engine.tensor_parallel",
        "1 2",
    )
    check_before_start(points(tmp_path, text.replace("3", "2")))


def test_more_gpus_than_the_machine_has_are_refused_with_the_numbers(tmp_path: Path) -> None:
    text = (
        "transport: {type: nixl}\nengine: {type: vllm, tensor_parallel: 2}\n"
        "placement: {colocated: false, learner: {gpus: 1}, generator: {gpus: 2, count: 2}}\n"
    )
    with pytest.raises(UserError) as refused:
        check_before_start(points(tmp_path, text), free=FreeMemory(64 << 30, (80 << 30,) * 4))
    assert facts(refused.value.what) == "5 1 1 2 2 4"
    check_before_start(points(tmp_path, text), free=FreeMemory(64 << 30, (80 << 30,) * 5))
    colocated = (
        "transport: {type: nixl}\nlearner: {sharding: fsdp2}\n"
        "placement: {learner: {ranks: 2, gpus: 1}, generator: {gpus: 1, count: 4}}\n"
    )
    with pytest.raises(UserError) as refused:
        check_before_start(points(tmp_path, colocated), free=FreeMemory(64 << 30, (80 << 30,)))
    assert facts(refused.value.what) == "2 2 1 4 1 1"
    check_before_start(points(tmp_path, colocated), free=FreeMemory(64 << 30, (80 << 30,) * 2))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="which CPUs have bfloat16 is known for x86-64 alone")
def test_bfloat16_on_a_cpu_without_it_is_said_with_the_settings_to_change(tmp_path: Path) -> None:
    both = "model: {type: preset, precision: bfloat16}\nengine: {type: native, precision: bfloat16}\n"
    ((variant,),) = points(tmp_path, both)
    told = slow_precision([variant.scenario], has_gpu=False, has_bfloat16=lambda: False)
    assert "--set engine.precision=float32 --set model.precision=float32" in told
    assert slow_precision([variant.scenario], has_gpu=False, has_bfloat16=lambda: True) == ""
    assert slow_precision([variant.scenario], has_gpu=True, has_bfloat16=lambda: False) == ""
    ((narrow,),) = points(tmp_path, both.replace("bfloat16", "float16"))
    assert "--set engine.precision=float32" in slow_precision([narrow.scenario], False, has_bfloat16=lambda: True)
    ((plain,),) = points(tmp_path, both.replace("bfloat16", "float32"))
    assert slow_precision([plain.scenario], has_gpu=False, has_bfloat16=lambda: False) == ""
