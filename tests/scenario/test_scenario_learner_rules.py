"""Rules of a Learner's ranks: what each refuses, the values just inside it, and the mesh that follows."""

from itertools import product

import pytest

from harness.scenario.derived import given_at_once, mesh_shape, microbatches
from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario
from harness.settings.learner import MeshShape
from tests.messages import facts

SHARED = {"transport": {"type": "shared_memory"}}
RANKS = ("placement.learner.ranks",)


def of_ranks(ranks: int, sharding: str = "fsdp2", **learner: object) -> dict[str, object]:
    return {"placement": {"learner": {"ranks": ranks}}, "learner": {"sharding": sharding, **learner}, **SHARED}


APART = {"max_lag": 1, "placement": {"colocated": False, "learner": {"ranks": 2}}}


def on_nodes(
    ranks: int, per_node: list[int], *, tensor: int = 1, colocated: bool = False, cpus: float = 1
) -> dict[str, object]:
    learner = {"ranks": ranks, "per_node": per_node, "cpus": cpus}
    return of_ranks(ranks, mesh={"tensor": tensor}) | {"placement": {"learner": learner, "colocated": colocated}}


STREAM = ("stream_adds_up",)


def streamed(
    generators: int = 2, ranks: int = 1, sharding: str = "fsdp2", offload: object = None, **more: object
) -> dict[str, object]:
    learner = {"sharding": sharding, "stream": "in_order", "overlapped_publish": more.pop("overlapped_publish", False)}
    placement = {"colocated": False, "generator": {"count": generators}, "learner": {"ranks": ranks}}
    return SHARED | {"placement": placement, "learner": learner | {"offload": offload}} | more


MESH = ["placement.learner.ranks", "learner.mesh.replicate", "learner.mesh.tensor"]
CASES = [
    (of_ranks(2, "none"), "ranks_share_something", "2 1", "1", ["placement.learner.ranks", "learner.sharding"]),
    (
        of_ranks(2) | {"transport": {"type": "in_process"}},
        "ranks_share_something",
        "2 1",
        "",
        ["placement.learner.ranks", "transport.type"],
    ),
    (
        of_ranks(2) | {"transport": {"type": "gloo"}},
        "ranks_share_something",
        "2",
        "",
        ["transport.type", "placement.learner.ranks"],
    ),
    (
        of_ranks(2) | {"model": {"type": "paced"}, "engine": {"type": "paced"}},
        "ranks_share_something",
        "2 1",
        "1",
        ["placement.learner.ranks", "model.type"],
    ),
    (
        of_ranks(2) | {"placement": {"learner": {"ranks": 2}, "address": "auto"}, "transport": {"type": "nixl"}},
        "ranks_share_something",
        "2",
        "",
        ["placement.interface", "placement.learner.ranks", "placement.address"],
    ),
    (of_ranks(3, mesh={"replicate": 2}), "mesh_takes_all_ranks", "3 2 2 1", "4", MESH),
    (of_ranks(6, mesh={"replicate": 2, "tensor": 2}), "mesh_takes_all_ranks", "6 4 2 2", "8", MESH),
    (of_ranks(3, "ddp", mesh={"tensor": 2}), "mesh_takes_all_ranks", "3 2 1 2", "4", MESH),
    (
        of_ranks(4, "ddp", mesh={"replicate": 2}),
        "mesh_takes_all_ranks",
        "2",
        "2",
        ["learner.mesh.replicate", "learner.sharding"],
    ),
    (
        of_ranks(9) | {"minibatches_per_epoch": 8},
        "ranks_have_rows",
        "9 8",
        "8",
        ["placement.learner.ranks", "rollout_batch_size", "minibatches_per_epoch"],
    ),
    (
        of_ranks(2, "deepspeed", offload={"weights": True, "optimizer": True}),
        "offload_has_something",
        "",
        "2",
        ["learner.offload.weights", "learner.offload.optimizer", "learner.sharding"],
    ),
    (
        {"model": {"type": "paced"}, "engine": {"type": "paced"}, "learner": {"offload": {"gradients": True}}},
        "offload_has_something",
        "",
        "",
        ["learner.offload.gradients", "model.type"],
    ),
    (
        {"learner": {"overlapped_publish": True}},
        "publish_overlaps_training",
        "0",
        "1",
        ["learner.overlapped_publish", "max_lag"],
    ),
    (
        {
            "learner": {"overlapped_publish": True},
            "max_lag": 1,
            "placement": {"colocated": False},
            "transport": {"type": "gloo"},
        },
        "publish_overlaps_training",
        "",
        "",
        ["learner.overlapped_publish", "transport.type"],
    ),
    (
        of_ranks(2, overlapped_publish=True, publish="per_tensor") | APART,
        "publish_overlaps_training",
        "",
        "",
        ["learner.overlapped_publish", "learner.publish"],
    ),
    (
        of_ranks(2, overlapped_publish=True, offload={"weights": True}) | APART,
        "publish_overlaps_training",
        "",
        "",
        ["learner.overlapped_publish", "learner.offload"],
    ),
    (
        on_nodes(3, [2, 2]),
        "ranks_stand_on_nodes",
        "2 2 4 3",
        "4",
        ["placement.learner.per_node", "placement.learner.ranks"],
    ),
    (
        on_nodes(4, [3, 1], tensor=2),
        "ranks_stand_on_nodes",
        "3 1 2",
        "",
        ["placement.learner.per_node", "learner.mesh.tensor"],
    ),
    (
        on_nodes(3, [2, 1], colocated=True),
        "ranks_stand_on_nodes",
        "2 1",
        "",
        ["placement.learner.per_node", "placement.colocated"],
    ),
    (
        on_nodes(3, [2, 1], cpus=0),
        "ranks_stand_on_nodes",
        "2 1",
        "1",
        ["placement.learner.per_node", "placement.learner.cpus"],
    ),
    (streamed(generators=1), *STREAM, "1 2", "2", ["learner.stream", "placement.generator.count"]),
    (streamed(placement={"generator": {"count": 2}}), *STREAM, "", "", ["learner.stream", "placement.colocated"]),
    (streamed(epochs_per_batch=2), *STREAM, "2 1", "1", ["learner.stream", "epochs_per_batch"]),
    (streamed(minibatches_per_epoch=2), *STREAM, "2 1", "1", ["learner.stream", "minibatches_per_epoch"]),
    (streamed(max_lag=1, replay={"capacity": 16}), *STREAM, "16 0", "0", ["learner.stream", "replay.capacity"]),
    (streamed(max_lag=1, lag_control="drop"), *STREAM, "", "", ["learner.stream", "lag_control"]),
    (streamed(advantage={"delta": "batch_whitened_rewards"}), *STREAM, "", "", ["learner.stream", "advantage.delta"]),
    (
        streamed(advantage={"delta": "own", "function": "own:advantage"}),
        *STREAM,
        "",
        "",
        ["learner.stream", "advantage.delta"],
    ),
    (streamed(model={"precision": "float16"}), *STREAM, "16 16 32", "", ["learner.stream", "model.precision"]),
    (streamed(ranks=2, sharding="deepspeed"), *STREAM, "2", "", ["learner.stream", "learner.sharding"]),
    (streamed(offload={"optimizer": True}), *STREAM, "", "", ["learner.stream", "learner.offload"]),
    (
        {"faults": {"slow_rank": {"rank": 0, "share": 0.3}}},
        "rank_faults_strike",
        "1",
        "2",
        ["faults.slow_rank", "placement.learner.ranks"],
    ),
    (
        of_ranks(2) | {"faults": {"slow_rank": {"rank": 2, "share": 0.3}}},
        "rank_faults_strike",
        "2 2 1",
        "1",
        ["faults.slow_rank.rank", "placement.learner.ranks"],
    ),
    (
        of_ranks(2, "deepspeed") | {"checkpoint": {"every": 5}},
        "checkpoints_have_a_state",
        "5",
        "",
        ["checkpoint.every", "learner.sharding"],
    ),
    (
        {"model": {"type": "paced"}, "engine": {"type": "paced"}, "checkpoint": {"every": 5}},
        "checkpoints_have_a_state",
        "5",
        "",
        ["checkpoint.every", "model.type"],
    ),
    (
        {"interleaving": "step", "checkpoint": {"every": 5}},
        "arms_in_turns_make_no_checkpoints",
        "5",
        "",
        ["checkpoint.every", "interleaving"],
    ),
    (
        {"save_policy": False, "save_policy_every": 5},
        "kept_policies_are_saved",
        "5",
        "",
        ["save_policy_every", "save_policy"],
    ),
    (
        {"model": {"type": "paced"}, "engine": {"type": "paced"}, "checkpoint": {"keep_steps_every": 5}},
        "checkpoints_have_a_state",
        "5",
        "",
        ["checkpoint.keep_steps_every", "model.type"],
    ),
    (
        {"steps": 8, "checkpoint": {"keep_steps": (2, 9)}},
        "kept_steps_are_made",
        "9 8 7",
        "0 7",
        ["checkpoint.keep_steps", "steps"],
    ),
    (
        of_ranks(2)
        | {"placement": {"device": "cuda", "learner": {"ranks": 2, "gpus": 0.5}, "generator": {"gpus": 0.5}}},
        "ranks_have_a_gpu_each",
        "2 1",
        "1",
        ["placement.learner.gpus", "placement.learner.ranks"],
    ),
]


def test_uneven_nodes_and_tensor_groups_within_them_are_fine() -> None:
    for settings in (on_nodes(3, [2, 1]), on_nodes(6, [4, 2], tensor=2)):
        assert broken_rules(Scenario.model_validate(settings)) == []


def test_a_stream_goes_with_ranks_lag_and_weights_that_leave_beside_it() -> None:
    for ranks, lag, control in product((1, 2), (0, 1), ("wait", "in_flight")):
        if lag or control == "wait":
            settings = streamed(ranks=ranks, max_lag=lag, lag_control=control, overlapped_publish=lag > 0)
            assert broken_rules(Scenario.model_validate(settings)) == []


def test_a_part_that_streams_has_its_share_of_the_microbatches() -> None:
    """64 responses of 8 prompts for 3 Generators, 24 at most; of 4 microbatches 2 for each part."""
    scenario = Scenario.model_validate(streamed(generators=3, gradient_accumulation_steps=4))
    assert (microbatches(scenario), given_at_once(scenario)) == (2, 24)
    whole = scenario.model_copy(update={"learner": scenario.learner.model_copy(update={"stream": None})})
    assert (microbatches(whole), given_at_once(whole)) == (4, 64)


def test_a_fault_of_the_last_rank_is_taken() -> None:
    faults = {"slow_rank": {"rank": 1, "share": 0.3}}
    assert broken_rules(Scenario.model_validate(of_ranks(2) | {"steps": 8, "faults": faults})) == []


@pytest.mark.parametrize(("step", "is_one"), [(7, True), (8, False)])
def test_the_last_of_eight_steps_that_can_be_kept_is_7(step: int, is_one: bool) -> None:
    scenario = Scenario.model_validate({"steps": 8, "checkpoint": {"keep_steps": (step,)}})
    assert (broken_rules(scenario) == []) == is_one


def test_moving_is_refused_for_what_has_nothing_to_move_alone() -> None:
    for settings in (of_ranks(2, "ddp", offload={"gradients": True}), {"learner": {"offload": {"weights": True}}}):
        assert broken_rules(Scenario.model_validate(settings)) == []
    measured_alone = of_ranks(2, "deepspeed", offload={})
    assert broken_rules(Scenario.model_validate(measured_alone)) == []


@pytest.mark.parametrize(("settings", "rule", "said", "advised", "keys"), CASES)
def test_a_broken_rule_says_its_name_numbers_fix_and_keys(settings, rule, said, advised, keys, message_is):
    (problem,) = broken_rules(Scenario.model_validate(settings))
    what, _, named = problem.what.partition(" [rule: ")
    found = [number for number in facts(what).split() if number.isdigit()]
    assert (named, " ".join(found)) == (f"{rule}]", said)
    assert sorted(".".join(map(str, path)) for path in problem.paths) == sorted(keys)
    message_is(f"{problem.what}\n{problem.fix}")


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        (of_ranks(1, "none"), MeshShape()),
        (of_ranks(1), MeshShape()),
        (of_ranks(2, "ddp"), MeshShape(replicate=2)),
        (of_ranks(3), MeshShape(shard=3)),
        (of_ranks(2), MeshShape(shard=2)),
        (of_ranks(8, mesh={"replicate": 2, "tensor": 2}), MeshShape(2, 2, 2)),
        (of_ranks(4, "ddp", mesh={"tensor": 2}), MeshShape(2, 1, 2)),
        (of_ranks(2, mesh={"tensor": 2}), MeshShape(tensor=2)),
    ],
)
def test_the_mesh_that_follows(settings, shape):
    scenario = Scenario.model_validate(settings)
    assert broken_rules(scenario) == []
    assert mesh_shape(scenario) == shape
    assert shape.ranks == scenario.placement.learner.ranks


def test_ranks_of_a_tensor_group_take_the_same_rollouts_and_one_of_them_speaks():
    shape = MeshShape(2, 2, 2)
    assert [shape.data_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [rank for rank in range(8) if shape.speaks(rank)] == [0, 2, 4, 6]
    assert shape.data_ranks == 4
