"""Rules of a Learner under DeepSpeed: what each refuses, in full, and the values just inside it."""

import pytest

from harness.scenario.derived import mesh_shape, zero_stage
from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario
from harness.settings.learner import MeshShape
from tests.messages import facts


def settings(ranks=2, model=None, **learner):
    return {
        "placement": {"learner": {"ranks": ranks}},
        "transport": {"type": "shared_memory"},
        "learner": {"sharding": "deepspeed", **learner},
        "model": model or {},
    }


HALF = {"type": "folder", "path": "m", "dtype": "bfloat16", "precision": "bfloat16"}
CASES = [
    (
        settings(sharding="fsdp2", zero_stage=3),
        "zero_stage_is_deepspeeds",
        "3 2",
        "",
        ["learner.zero_stage", "learner.sharding"],
    ),
    (
        settings(mesh={"tensor": 2}),
        "deepspeed_takes_one_dimension",
        "2 1",
        "1 2",
        ["learner.mesh.tensor", "learner.sharding"],
    ),
    (
        settings(4, mesh={"replicate": 2}),
        "deepspeed_takes_one_dimension",
        "2 1",
        "1 2",
        ["learner.mesh.replicate", "learner.sharding"],
    ),
    (
        settings(zero_stage=3),
        "deepspeed_takes_one_dimension",
        "3",
        "",
        ["learner.publish", "learner.zero_stage"],
    ),
    (
        settings(model={"precision": "float16"}),
        "deepspeed_trains_float32",
        "16 16 32",
        "16 32",
        ["model.precision", "learner.sharding"],
    ),
    (settings(model=HALF), "deepspeed_trains_float32", "16 32", "32 16 2", ["model.dtype", "learner.sharding"]),
]
IDS = ["stage", "tensor", "replicate", "publish", "float16", "weights_of_16_bits"]


@pytest.mark.parametrize(("settings", "rule", "said", "advised", "keys"), CASES, ids=IDS)
def test_a_broken_rule_says_its_name_numbers_fix_and_keys(settings, rule, said, advised, keys, message_is):
    (problem,) = broken_rules(Scenario.model_validate(settings))
    what, _, named = problem.what.partition(" [rule: ")
    assert (named, facts(what), facts(problem.fix)) == (f"{rule}]", said, advised)
    assert sorted(".".join(map(str, path)) for path in problem.paths) == sorted(keys)
    message_is(f"{problem.what}\n{problem.fix}")


@pytest.mark.parametrize(
    "settings",
    [
        settings(),
        settings(zero_stage=1),
        settings(zero_stage=3, publish="per_tensor", mesh={"tensor": 1, "replicate": 1}),
        settings(3, model={"precision": "bfloat16"}),
        settings(1, zero_stage=3, model={"precision": "float16"}),
    ],
)
def test_what_lies_just_inside_a_rule_is_accepted(settings):
    assert broken_rules(Scenario.model_validate(settings)) == []


def test_the_stage_is_two_unless_told_otherwise_and_all_ranks_are_cut_over():
    scenario = Scenario.model_validate(settings(3))
    assert zero_stage(scenario) == 2
    assert zero_stage(Scenario.model_validate(settings(zero_stage=3))) == 3
    assert mesh_shape(scenario) == MeshShape(1, 3, 1)
