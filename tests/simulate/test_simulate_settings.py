"""What is simulated: models by size, GPUs, prompts, lanes, threads; and what is refused."""

from __future__ import annotations

import pytest

from harness.core.errors import UserError
from harness.run.memory.shape import shape_for
from harness.scenario.derived import threads_on
from harness.scenario.lanes import all_lanes, lanes_of
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.lengths import number_of_prompts
from harness.simulate.machine import Device, MachineProfile, load_machine
from harness.simulate.points import facts_of, load_for, model_keys, only_variant, steady, variants_of
from harness.tasks import JsonlTask
from tests.simulate.conftest import ABACUS, ONE_LAG, cost, made


def gpu_machine() -> MachineProfile:
    device = Device(name="Abacus GPU", gpus=8, link_gb_s=100.0, memory_gib=80.0)
    return made(cost("update", call=1.0), name="gpus", origin="datasheet", device=device)


def of_model(name: str) -> list[str]:
    return [f"{key}={value}" for key, value in model_keys(name).items()]


# Numbers of weights: what the hub's pages of these models say (safetensors, "Model size"), in full.
@pytest.mark.parametrize(
    ("size", "weights"),
    [("0.5b", 494_032_768), ("1.5b", 1_543_714_304), ("3b", 3_085_938_688), ("7b", 7_615_616_512),
     ("14b", 14_770_033_664), ("32b", 32_763_876_352)],
)  # fmt: skip
def test_a_public_size_is_a_model_of_that_many_weights(size: str, weights: int) -> None:
    loaded, added = load_for("sync_k1", load_machine(ABACUS), of_model(size))
    shape, reason = shape_for(loaded)
    assert (reason, added, shape and shape.num_parameters) == ("", (), weights)


def test_a_preset_is_laid_over_the_scenario_and_an_unknown_model_is_refused_with_what_there_is() -> None:
    loaded, _ = load_for(ONE_LAG, load_machine(ABACUS), ["steps=5", *of_model("course")])
    assert (loaded.model.type, getattr(loaded.model, "preset", None), loaded.steps) == ("preset", "course", 5)
    with pytest.raises(UserError, match=r"'8x7b'(.|\n)*small(.|\n)*7b"):
        model_keys("8x7b")


def test_each_part_gets_a_gpu_where_the_machine_has_some() -> None:
    loaded, added = load_for(ONE_LAG, gpu_machine())
    assert added == ("placement.device=cuda", "placement.generator.gpus=1", "placement.learner.gpus=1")
    assert (loaded.placement.device, loaded.placement.generator.gpus, loaded.placement.learner.gpus) == ("cuda", 1, 1)
    nccl, added = load_for("paced_overlap", gpu_machine(), ["transport.type=nccl"])  # refused without a GPU
    assert (nccl.transport.type, len(added)) == ("nccl", 3)
    asked, _ = load_for(ONE_LAG, gpu_machine(), ["placement.generator.gpus=0.5"])
    assert asked.placement.generator.gpus == 0.5  # what was typed stays
    one_process, added = load_for("sync_k1", gpu_machine())
    assert (one_process.placement.device, added) == ("cuda", ("placement.device=cuda",))


def test_arms_are_named_and_a_sweep_starts_from_one_run() -> None:
    both = load_scenario(ONE_LAG, ["blocks=1"])
    assert [variant.arm for variant in variants_of(both, None)] == ["sync", "lag1"]
    assert only_variant(both, "lag1").max_lag == 1
    with pytest.raises(UserError, match="no arm called 'lag9'"):
        variants_of(both, "lag9")
    with pytest.raises(UserError, match="2 runs") as caught:
        only_variant(both, None)
    assert "--arm: sync, lag1" in str(caught.value)
    with pytest.raises(UserError, match="no training to simulate"):
        variants_of(load_scenario("transport_sweep"), None)


def test_a_point_of_a_sweep_makes_few_steps_and_validates_little() -> None:
    settings = steady(load_scenario("sync_k1", ["steps=40"]), 12)
    assert (settings["steps"], settings["evaluation"]) == (12, {"every": 12, "prompts": 64, "examples": 0})
    assert steady(load_scenario("sync_k1", ["steps=5"]), 12)["steps"] == 5


def test_the_manifest_has_the_machine_of_the_profile() -> None:
    facts = facts_of(load_machine(ABACUS))
    assert (facts["cpu"], facts["memory_gib"], facts["fingerprint"]) == ("Abacus 3000", 24, "0123456789ab")
    assert (facts["gpus"], facts["origin"]) == ([], "measured")
    with_gpus = facts_of(gpu_machine())
    assert with_gpus["gpus"] == [{"name": "Abacus GPU", "memory_gib": 80}] * 8
    assert (with_gpus["cpu"], with_gpus["fingerprint"]) == (None, "profile gpus")


def test_prompts_of_made_up_tasks_and_of_files_that_are_not_here():
    keywords = {"type": "keywords", "train_prompts": 50, "validation_prompts": 7}
    assert number_of_prompts(Scenario(task=keywords)) == (50, 7)
    assert number_of_prompts(Scenario(task={"type": "arithmetic"})) == (4096, 256)
    assert number_of_prompts(Scenario(task={"type": "sorting"}, model={"type": "sorting"})) == (3, 3)
    elsewhere = Scenario(task={"type": "maths", "train": "nowhere.jsonl"}, evaluation={"prompts": 99})
    assert number_of_prompts(elsewhere) == (4096, 99)  # taken to have enough


@pytest.mark.parametrize("separate", [True, False])
def test_prompts_of_files_are_as_many_as_the_task_finds(tmp_path, separate):
    train, validation = tmp_path / "train.jsonl", tmp_path / "validation.jsonl"
    train.write_text("".join(f'{{"prompt": "p{n}", "answer": "a"}}\n' for n in range(23)) + "\n")
    validation.write_text('{"prompt": "v", "answer": "a"}\n')
    reward = "harness.core.keyword_reward:keyword_inclusion_reward_fn"
    files = {"train": str(train), **({"validation": str(validation)} if separate else {})}
    task = JsonlTask(str(train), reward, validation=files.get("validation"), validation_fraction=0.1)
    scenario = Scenario(task={"type": "jsonl", "reward": reward, **files})
    assert number_of_prompts(scenario) == (len(task.train_prompts), len(task.validation_prompts))
    assert number_of_prompts(scenario) == ((23, 1) if separate else (20, 3))  # a tenth of 23, rounded up


def test_lanes_are_numbered_where_there_are_several_and_threads_are_asked_for_or_a_share_of_the_cores():
    scenario = Scenario(placement={"generator": {"count": 3}})
    assert lanes_of("generator", scenario) == ["generator0", "generator1", "generator2"]
    assert all_lanes(scenario) == ("generator0", "generator1", "generator2", "scorer", "learner")
    disk = {"type": "disk"}
    for changes, threads in (
        ({"model": {"type": "preset", "threads": 3}}, 3),
        ({"placement": {"learner": {"threads": 2}}}, 2),
        ({"transport": disk, "placement": {"learner": {"cpus": 4.0}}}, 4),
        ({"transport": disk, "placement": {"learner": {"cpus": 0.5}}}, 1),
        ({"placement": {"colocated": True}}, 8),
        ({"placement": {"colocated": False}}, 4),
    ):
        scenario = Scenario(**changes)
        assert threads_on(8, scenario, scenario.placement.learner) == threads, changes
