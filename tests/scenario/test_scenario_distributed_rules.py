"""Rules of lag, replay, placement and transport: what each refuses, in full, and the values just inside it."""

import pytest

from harness.scenario import Scenario, broken_rules

LAG = {"max_lag": 1, "placement": {"colocated": False}}
NIXL = {"transport": {"type": "nixl"}}


def broken(**settings):
    return broken_rules(Scenario.model_validate(settings))


ON_GPU = {"device": "cuda", "generator": {"gpus": 0.5}, "learner": {"gpus": 0.5}}
TWO_GPUS = {"colocated": False, "device": "cuda", "generator": {"gpus": 1}, "learner": {"gpus": 1}}


def generators(count, **placement):
    return {"placement": {"generator": {"count": count}, **placement}}


# The usual rollout batch has 64 / 8 = 8 prompts.
CASES = [
    (
        {"lag_control": "drop"},
        "lag_control is drop with max_lag 0, and without lag its bound never bites that way "
        "[rule: lag_control_has_lag]",
        "set max_lag to 1 or more, or lag_control to wait",
        ["lag_control", "max_lag"],
    ),
    (
        {"lag_control": "in_flight"},
        "lag_control is in_flight with max_lag 0, and without lag its bound never bites that way "
        "[rule: lag_control_has_lag]",
        "set max_lag to 1 or more, or lag_control to wait",
        ["lag_control", "max_lag"],
    ),
    (
        {**LAG, "lag_control": "in_flight", "engine": {"type": "fake"}},
        "engine.type is fake, must be native or vllm with lag_control in_flight [rule: in_flight_engine]",
        "set engine.type to native or vllm, or lag_control to wait",
        ["engine.type", "lag_control"],
    ),
    (
        {**LAG, "lag_control": "in_flight", "model": {"type": "folder", "path": "m"}},
        "model.type is folder with lag_control in_flight: models of transformers take weights between batches "
        "[rule: in_flight_engine]",
        "set lag_control to wait, model.type to preset, or engine.type to vllm",
        ["model.type", "lag_control"],
    ),
    (
        {"engine": {"type": "vllm"}, "transport": {"type": "gloo"}},
        "transport.type is gloo with engine.type vllm, which holds its process's only torch process group already "
        "[rule: vllm_owns_its_group]",
        "set transport.type to nixl, shared_memory or object_store_numpy",
        ["transport.type", "engine.type"],
    ),
    (
        {**generators(9), **NIXL},
        "placement.generator.count is 9, must be at most 8, the prompts of a rollout batch "
        "[rule: shards_share_a_batch]",
        "set it to at most 8, or raise rollout_batch_size",
        ["placement.generator.count", "rollout_batch_size", "group_size"],
    ),
    (
        {"max_lag": 1, "lag_control": "drop", **generators(3, colocated=False), **NIXL},
        "placement.generator.count 3 does not divide the 8 prompts of a rollout batch [rule: shards_share_a_batch]",
        "with lag_control drop, set it to a divisor, so that all parts of a batch are alike",
        ["placement.generator.count", "rollout_batch_size", "group_size"],
    ),
    (
        generators(2),
        "placement.generator.count is 2, must be 1 with transport.type in_process [rule: actors_for_several_parts]",
        "set transport.type to object_store_numpy, which runs the parts as Ray actors, or placement.generator.count "
        "to 1",
        ["placement.generator.count", "transport.type"],
    ),
    (
        {"placement": {"scorer": {"count": 2}}},
        "placement.scorer.count is 2, must be 1 with transport.type in_process [rule: actors_for_several_parts]",
        "set transport.type to object_store_numpy, which runs the parts as Ray actors, or placement.scorer.count to 1",
        ["placement.scorer.count", "transport.type"],
    ),
    (
        {"placement": {"address": "auto"}},
        "placement.address is auto, must be local with transport.type in_process [rule: actors_for_several_parts]",
        "set transport.type to object_store_numpy, which runs the parts as Ray actors, or placement.address to local",
        ["placement.address", "transport.type"],
    ),
    (
        {"placement": {"address": "10.0.0.1:6379"}, "transport": {"type": "shared_memory"}},
        "transport.type is shared_memory, which works within one host, and placement.address is 10.0.0.1:6379 "
        "[rule: one_host_transport]",
        "set transport.type to nixl or object_store_numpy, or placement.address to local",
        ["transport.type", "placement.address"],
    ),
    (
        {"placement": {"address": "auto", **ON_GPU}, "transport": {"type": "cuda_ipc"}},
        "transport.type is cuda_ipc, which works within one host, and placement.address is auto "
        "[rule: one_host_transport]",
        "set transport.type to nixl or object_store_numpy, or placement.address to local",
        ["transport.type", "placement.address"],
    ),
    (
        {"transport": {"type": "nccl"}},
        "transport.type is nccl, which moves GPU memory, and placement.device is auto [rule: gpu_transport]",
        "set placement.device to cuda, or transport.type to gloo or nixl",
        ["transport.type", "placement.device"],
    ),
    (
        {"placement": ON_GPU, "transport": {"type": "nccl"}},
        "transport.type is nccl, which needs a GPU for each part, and placement.generator.gpus is 0.5, must be at "
        "least 1 and placement.learner.gpus is 0.5, must be at least 1 and placement.colocated is true, must be false "
        "[rule: nccl_parts_have_a_gpu_each]",
        "set placement.colocated to false and both gpus to 1; parts that share a GPU have cuda_ipc and nixl",
        ["transport.type", "placement.generator.gpus", "placement.learner.gpus", "placement.colocated"],
    ),
    (
        {"placement": {**TWO_GPUS, "generator": {"gpus": 0.25}}, "transport": {"type": "nccl"}},
        "transport.type is nccl, which needs a GPU for each part, and placement.generator.gpus is 0.25, must be at "
        "least 1 [rule: nccl_parts_have_a_gpu_each]",
        "set placement.colocated to false and both gpus to 1; parts that share a GPU have cuda_ipc and nixl",
        ["transport.type", "placement.generator.gpus"],
    ),
    (
        {"placement": ON_GPU, "transport_sweep": {"transports": ["nccl"]}},
        "transport_sweep.transports names nccl, which needs a GPU for each part, and placement.generator.gpus is 0.5, "
        "must be at least 1 and placement.learner.gpus is 0.5, must be at least 1 [rule: nccl_parts_have_a_gpu_each]",
        "set placement.colocated to false and both gpus to 1; parts that share a GPU have cuda_ipc and nixl",
        ["transport_sweep.transports", "placement.generator.gpus", "placement.learner.gpus"],
    ),
    (
        {"placement": {"device": "cpu"}, "transport": {"type": "cuda_ipc"}},
        "transport.type is cuda_ipc, which moves GPU memory, and placement.device is cpu [rule: gpu_transport]",
        "set placement.device to cuda, or transport.type to gloo or nixl",
        ["transport.type", "placement.device"],
    ),
    (
        {"placement": {"device": "cuda", "learner": {"gpus": 1}}, "transport": {"type": "nixl"}},
        "placement.generator.gpus is 0, must be above 0 with placement.device cuda [rule: cuda_actors_reserve_gpus]",
        "set them to 1, or to a fraction such as 0.25 to share one GPU",
        ["placement.generator.gpus", "placement.device"],
    ),
    (
        {"placement": {"address": "auto"}, "transport": {"type": "nixl"}, "transport_sweep": {}},
        "placement.address is auto, must be local with transport_sweep [rule: sweep_on_one_machine]",
        "set placement.address to local",
        ["placement.address", "transport_sweep"],
    ),
    (
        {"transport_sweep": {"transports": ["nccl", "nixl"]}},
        "transport_sweep.transports names nccl, for GPU memory, and placement.device is auto "
        "[rule: sweep_on_one_machine]",
        "set placement.device to cuda, or leave nccl out",
        ["transport_sweep.transports", "placement.device"],
    ),
    (
        {"model": {"type": "paced"}},
        "model.type is paced and engine.type is native: paced parts go together [rule: paced_goes_together]",
        "set both to paced, or neither",
        ["model.type", "engine.type"],
    ),
    (
        {"engine": {"type": "paced"}},
        "model.type is preset and engine.type is paced: paced parts go together [rule: paced_goes_together]",
        "set both to paced, or neither",
        ["model.type", "engine.type"],
    ),
    (
        {"replay": {"sample_groups": 4}},
        "replay.capacity is 0, so there is no buffer for which replay.sample_groups could mean anything "
        "[rule: replay_holds_a_batch]",
        "set replay.capacity, or leave replay.sample_groups out",
        ["replay.sample_groups"],
    ),
    (
        {"replay": {"capacity": 7}},
        "replay.capacity is 7 groups, must be at least the 8 groups of a rollout batch [rule: replay_holds_a_batch]",
        "set replay.capacity to 8 or more, or to 0 for no replay",
        ["replay.capacity", "rollout_batch_size"],
    ),
    (
        {"replay": {"capacity": 16, "sample_groups": 17}},
        "replay.sample_groups is 17, must be at most replay.capacity 16 [rule: replay_holds_a_batch]",
        "set it to at most 16",
        ["replay.sample_groups", "replay.capacity"],
    ),
    (
        {"max_lag": 2, "placement": {"colocated": False}, "replay": {"capacity": 8, "max_age": 1}},
        "replay.max_age is 1, must be at least max_lag 2 [rule: replay_age_covers_lag]",
        "set replay.max_age to 2 or more",
        ["replay.max_age", "max_lag"],
    ),
    (
        {**LAG, "loss": {"importance": {"mode": "tis"}}},
        "loss.importance.mode is tis, which with max_lag 1 and replay.capacity 0 does nothing while loss.proximal is "
        "engine [rule: importance_has_two_policies]",
        "set loss.proximal to recompute, or loss.importance.mode to off",
        ["loss.importance.mode", "loss.proximal"],
    ),
    (
        {"replay": {"capacity": 8}, "loss": {"importance": {"mode": "icepop"}}},
        "loss.importance.mode is icepop, which with max_lag 0 and replay.capacity 8 does nothing while loss.proximal "
        "is engine [rule: importance_has_two_policies]",
        "set loss.proximal to recompute, or loss.importance.mode to off",
        ["loss.importance.mode", "loss.proximal"],
    ),
    (
        {"loss": {"importance": {"mode": "seq-mask-tis", "level": "sequence"}}},
        "loss.importance.level is sequence, must be token with loss.importance.mode seq-mask-tis "
        "[rule: sequence_mask_weighs_tokens]",
        "set loss.importance.level to token, or loss.importance.mode to tis or icepop",
        ["loss.importance.level", "loss.importance.mode"],
    ),
]


@pytest.mark.parametrize(("settings", "what", "fix", "keys"), CASES)
def test_a_broken_rule_says_its_name_numbers_fix_and_keys(settings, what, fix, keys):
    problems = broken(**settings)
    assert [problem.what for problem in problems] == [what]
    assert problems[0].fix == fix
    assert [".".join(map(str, path)) for path in problems[0].paths] == keys


@pytest.mark.parametrize(
    "settings",
    [
        {**LAG, "lag_control": "drop"},
        {**LAG, "lag_control": "in_flight"},
        {**LAG, "lag_control": "in_flight", "engine": {"type": "vllm"}},
        {**LAG, "lag_control": "in_flight", "engine": {"type": "vllm"}, "model": {"type": "folder", "path": "m"}},
        {"engine": {"type": "vllm"}, **NIXL},
        {**LAG, "lag_control": "in_flight", "model": {"type": "paced"}, "engine": {"type": "paced"}},
        {**LAG, "lag_control": "wait", "engine": {"type": "fake"}},
        {**LAG, "lag_control": "wait", "model": {"type": "folder", "path": "m"}},
        {**generators(8), **NIXL},
        {**generators(3), **NIXL},
        {"max_lag": 1, "lag_control": "drop", **generators(4, colocated=False), **NIXL},
        {"placement": {"scorer": {"count": 2}}, "transport": {"type": "object_store"}},
        {"placement": {"address": "auto"}, "transport": {"type": "disk"}},
        {"transport": {"type": "shared_memory"}},
        {"placement": TWO_GPUS, "transport": {"type": "nccl"}},
        {"placement": {**TWO_GPUS, "colocated": True}, "transport_sweep": {"transports": ["nccl"]}},
        {"placement": ON_GPU, "transport": {"type": "cuda_ipc"}},
        {"placement": {"device": "cuda"}},
        {"placement": ON_GPU, "transport_sweep": {"transports": ["cuda_ipc", "nixl"]}},
        {"transport_sweep": {}},
        {"model": {"type": "paced"}, "engine": {"type": "paced"}},
        {"replay": {"capacity": 8}},
        {"replay": {"capacity": 8, "sample_groups": 8, "max_age": 0}},
        {"max_lag": 2, "placement": {"colocated": False}, "replay": {"capacity": 8, "max_age": 2}},
        {**LAG, "loss": {"importance": {"mode": "tis"}, "proximal": "recompute"}},
        {"loss": {"importance": {"mode": "tis"}}},
        {"loss": {"importance": {"mode": "seq-mask-tis", "level": "token"}}},
        {"loss": {"importance": {"mode": "icepop", "level": "sequence"}}},
    ],
)
def test_what_lies_just_inside_a_rule_is_accepted(settings):
    assert broken(**settings) == []


def test_a_learner_on_a_gpu_reserves_it_too():
    placement = {"device": "cuda", "generator": {"gpus": 1}, "learner": {"gpus": 0}}
    (problem,) = broken(placement=placement, **NIXL)
    assert "cuda_actors_reserve_gpus" in problem.what
    assert problem.paths == (("placement", "learner", "gpus"), ("placement", "device"))


@pytest.mark.parametrize(
    ("settings", "older"),
    [({}, False), ({"max_lag": 1}, True), ({"replay": {"capacity": 8}}, True), ({"epochs_per_batch": 4}, False)],
)
def test_with_lag_or_replay_rollouts_may_be_of_an_older_policy(settings, older):
    scenario = Scenario.model_validate(settings)
    assert scenario.behaviour_is_older is older
    assert scenario.on_policy is (not older and scenario.epochs_per_batch == 1)


def test_any_transport_out_of_the_process_takes_ray():
    kinds = ["object_store", "object_store_numpy", "nixl", "gloo", "nccl", "cuda_ipc", "disk", "shared_memory"]
    assert all(Scenario.model_validate({"transport": {"type": kind}}).uses_ray for kind in kinds)
    assert not Scenario.model_validate({"transport": {"type": "in_process"}}).uses_ray
    assert not Scenario().uses_ray


def test_a_step_takes_as_many_groups_as_a_batch_has_unless_told_otherwise():
    assert Scenario.model_validate({"replay": {"capacity": 32}}).replay_sample_groups == 8  # 64 / 8
    assert Scenario.model_validate({"replay": {"capacity": 32, "sample_groups": 5}}).replay_sample_groups == 5


@pytest.mark.parametrize(
    ("settings", "age"),
    [
        ({"replay": {"capacity": 16}}, 2),  # 16 groups are refilled by 2 batches of 8
        ({"replay": {"capacity": 20}}, 3),  # by 3
        ({"replay": {"capacity": 20}, "max_lag": 4}, 7),  # and they may be 4 versions old when they enter
        ({"replay": {"capacity": 20, "max_age": 1}}, 1),
        ({"replay": {"capacity": 20, "max_age": 0}}, 0),
        ({}, 0),
    ],
)
def test_a_replayed_group_may_be_as_old_as_a_full_buffer_makes_it(settings, age):
    assert Scenario.model_validate(settings).replay_max_age == age
