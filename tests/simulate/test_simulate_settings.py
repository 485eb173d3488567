"""What is simulated: models by size, counts of parts, GPUs, Learners; and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.models.published import PUBLISHED
from harness.run.memory.shape import shape_for
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.machine import Device, MachineProfile, StageCost, load_machine
from harness.simulate.points import facts_of, load_for, model_keys, only_variant, steady, variants_of

ABACUS = Path(__file__).parents[1] / "stand_ins" / "abacus.yaml"
ONE_LAG = str(ABACUS.with_name("one_lag.yaml"))


def gpu_machine(link_gb_s: float | None = 100.0) -> MachineProfile:
    device = Device(name="Abacus GPU", gpus=8, link_gb_s=link_gb_s, memory_gib=80.0)
    update = StageCost(
        stage="update",
        seconds={"call": 1.0, "microbatch": 0.1, "position_gflop": 2.0, "parameter_gb": 0.5},
        covariance=((1.0, 0.0, 0.5, 0.0), (0.0, 1.0, 0.0, 0.0), (0.5, 0.0, 4.0, 0.0), (0.0, 0.0, 0.0, 1.0)),
    )
    others = tuple(
        StageCost(stage=stage, seconds={"call": 1.0, "position_gflop": 2.0}) for stage in ("old_logprobs", "generate")
    )
    return MachineProfile(
        name="gpus",
        origin="datasheet",
        made="2026-11-21",
        device=device,
        sources=("made up",),
        stages=(update, *others),
    )


def scenario(*changes: str) -> Scenario:
    return load_scenario("sync_k1", ["transport.type=shared_memory", "placement.colocated=false", *changes])


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
    assert (reason, added) == ("", ())
    assert shape is not None
    assert shape.num_parameters == weights
    assert len(PUBLISHED) == 6


def test_a_preset_is_laid_over_the_scenario() -> None:
    loaded, _ = load_for(ONE_LAG, load_machine(ABACUS), ["steps=5", *of_model("course")])
    assert (loaded.model.type, getattr(loaded.model, "preset", None), loaded.steps) == ("preset", "course", 5)


def test_an_unknown_model_is_refused_with_what_there_is() -> None:
    with pytest.raises(UserError, match="no model '8x7b'") as caught:
        model_keys("8x7b")
    assert "small" in str(caught.value)
    assert "7b" in str(caught.value)


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
    settings = steady(scenario("steps=40"), 12)
    assert (settings["steps"], settings["evaluation"]) == (12, {"every": 12, "prompts": 64, "examples": 0})
    assert steady(scenario("steps=5"), 12)["steps"] == 5


def test_the_manifest_has_the_machine_of_the_profile() -> None:
    facts = facts_of(load_machine(ABACUS))
    assert (facts["cpu"], facts["memory_gib"], facts["fingerprint"]) == ("Abacus 3000", 24, "0123456789ab")
    assert (facts["gpus"], facts["origin"]) == ([], "measured")
    with_gpus = facts_of(gpu_machine())
    assert with_gpus["gpus"] == [{"name": "Abacus GPU", "memory_gib": 80}] * 8
    assert (with_gpus["cpu"], with_gpus["fingerprint"]) == (None, "profile gpus")
