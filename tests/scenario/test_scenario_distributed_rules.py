"""Rules of lag, replay, placement and transport: what each refuses, in full, and the values just inside it."""

from typing import get_args

import pytest

from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario
from harness.settings.transport import TransportName
from tests.messages import facts

LAG = {"max_lag": 1, "placement": {"colocated": False}}
NIXL = {"transport": {"type": "nixl"}}


def broken(**settings):
    return broken_rules(Scenario.model_validate(settings))


ON_GPU = {"device": "cuda", "generator": {"gpus": 0.5}, "learner": {"gpus": 0.5}}
TWO_GPUS = {"colocated": False, "device": "cuda", "generator": {"gpus": 1}, "learner": {"gpus": 1}}


def generators(count, **placement):
    return {"placement": {"generator": {"count": count}, **placement}}


DDP = {"learner": {"sharding": "ddp"}}
# The usual rollout batch has 64 / 8 = 8 prompts.
CASES = [
    ({"lag_control": "drop"}, "lag_control_has_lag", "0", "1", ["lag_control", "max_lag"]),
    ({"lag_control": "in_flight"}, "lag_control_has_lag", "0", "1", ["lag_control", "max_lag"]),
    (
        {**LAG, "lag_control": "in_flight", "engine": {"type": "a.b:C"}},
        "in_flight_engine",
        "",
        "",
        ["engine.type", "lag_control"],
    ),
    (
        {**LAG, "lag_control": "in_flight", "model": {"type": "folder", "path": "m"}},
        "in_flight_engine",
        "",
        "",
        ["model.type", "lag_control"],
    ),
    (
        {"engine": {"type": "vllm"}, "transport": {"type": "gloo"}},
        "vllm_owns_its_group",
        "",
        "",
        ["transport.type", "engine.type"],
    ),
    (
        {**generators(9), **NIXL},
        "shards_share_a_batch",
        "9 8",
        "8",
        ["placement.generator.count", "rollout_batch_size", "group_size"],
    ),
    (
        {"max_lag": 1, "lag_control": "drop", **generators(3, colocated=False), **NIXL},
        "shards_share_a_batch",
        "3 8",
        "",
        ["placement.generator.count", "rollout_batch_size", "group_size"],
    ),
    (
        {"transport": {"type": "nixl", "dtype": "engine"}, "placement": {"learner": {"ranks": 2}}, **DDP},
        "weights_have_the_engines_type",
        "2",
        "",
        ["transport.dtype", "placement.learner.ranks"],
    ),
    (
        {"transport": {"type": "nixl", "dtype": "engine"}, "model": {"type": "paced"}, "engine": {"type": "paced"}},
        "weights_have_the_engines_type",
        "",
        "",
        ["transport.dtype", "engine.type"],
    ),
    (generators(2), "actors_for_several_parts", "2 1", "1", ["placement.generator.count", "transport.type"]),
    (
        {"placement": {"scorer": {"count": 2}}},
        "actors_for_several_parts",
        "2 1",
        "1",
        ["placement.scorer.count", "transport.type"],
    ),
    ({"placement": {"address": "auto"}}, "actors_for_several_parts", "", "", ["placement.address", "transport.type"]),
    (
        {"placement": {"address": "10.0.0.1:6379"}, "transport": {"type": "shared_memory"}},
        "one_host_transport",
        "10.0.0.1 6379",
        "",
        ["transport.type", "placement.address"],
    ),
    (
        {"placement": {"address": "auto", **ON_GPU}, "transport": {"type": "cuda_ipc"}},
        "one_host_transport",
        "",
        "",
        ["transport.type", "placement.address"],
    ),
    ({"transport": {"type": "nccl"}}, "gpu_transport", "", "", ["transport.type", "placement.device"]),
    (
        {"placement": ON_GPU, "transport": {"type": "nccl"}},
        "nccl_parts_have_a_gpu_each",
        "0.5 1 0.5 1",
        "1",
        ["transport.type", "placement.generator.gpus", "placement.learner.gpus", "placement.colocated"],
    ),
    (
        {"placement": {**TWO_GPUS, "generator": {"gpus": 0.25}}, "transport": {"type": "nccl"}},
        "nccl_parts_have_a_gpu_each",
        "0.25 1",
        "1",
        ["transport.type", "placement.generator.gpus"],
    ),
    (
        {"placement": ON_GPU, "transport_sweep": {"transports": ["nccl"]}},
        "nccl_parts_have_a_gpu_each",
        "0.5 1 0.5 1",
        "1",
        ["transport_sweep.transports", "placement.generator.gpus", "placement.learner.gpus"],
    ),
    (
        {"placement": {"device": "cpu"}, "transport": {"type": "cuda_ipc"}},
        "gpu_transport",
        "",
        "",
        ["transport.type", "placement.device"],
    ),
    (
        {"placement": {"device": "cuda", "learner": {"gpus": 1}}, "transport": {"type": "nixl"}},
        "cuda_actors_reserve_gpus",
        "0 0",
        "1 0.25",
        ["placement.generator.gpus", "placement.device"],
    ),
    (
        {"placement": {"address": "auto"}, "transport": {"type": "nixl"}, "transport_sweep": {}},
        "sweep_on_one_machine",
        "",
        "",
        ["placement.address", "transport_sweep"],
    ),
    (
        {"transport_sweep": {"transports": ["nccl", "nixl"]}},
        "sweep_on_one_machine",
        "",
        "",
        ["transport_sweep.transports", "placement.device"],
    ),
    ({"model": {"type": "paced"}}, "paced_goes_together", "", "", ["model.type", "engine.type"]),
    ({"engine": {"type": "paced"}}, "paced_goes_together", "", "", ["model.type", "engine.type"]),
    ({"replay": {"sample_groups": 4}}, "replay_holds_a_batch", "0", "", ["replay.capacity", "replay.sample_groups"]),
    ({"replay": {"capacity": 7}}, "replay_holds_a_batch", "7 8", "8 0", ["replay.capacity", "rollout_batch_size"]),
    (
        {"replay": {"capacity": 16, "sample_groups": 17}},
        "replay_holds_a_batch",
        "17 16",
        "16",
        ["replay.sample_groups", "replay.capacity"],
    ),
    (
        {"replay": {"capacity": 16, "sampling": "newest"}},
        "newest_replays",
        "8 8",
        "8 0",
        ["replay.sampling", "replay.sample_groups"],
    ),
    (
        {"max_lag": 2, "placement": {"colocated": False}, "replay": {"capacity": 8, "max_age": 1}},
        "replay_age_covers_lag",
        "1 2",
        "2",
        ["replay.max_age", "max_lag"],
    ),
    (
        {**LAG, "loss": {"importance": {"mode": "tis"}}},
        "importance_has_two_policies",
        "1 0",
        "",
        ["loss.importance.mode", "max_lag", "replay.capacity", "loss.proximal"],
    ),
    (
        {"replay": {"capacity": 8}, "loss": {"importance": {"mode": "icepop"}}},
        "importance_has_two_policies",
        "0 8",
        "",
        ["loss.importance.mode", "max_lag", "replay.capacity", "loss.proximal"],
    ),
    (
        {"loss": {"importance": {"mode": "seq-mask-tis", "level": "sequence"}}},
        "sequence_mask_weighs_tokens",
        "",
        "",
        ["loss.importance.level", "loss.importance.mode"],
    ),
]


@pytest.mark.parametrize(("settings", "rule", "said", "advised", "keys"), CASES, ids=[case[1] for case in CASES])
def test_a_broken_rule_says_its_name_numbers_fix_and_keys(settings, rule, said, advised, keys, message_is):
    (problem,) = broken(**settings)
    what, _, named = problem.what.partition(" [rule: ")
    assert (named, facts(what), facts(problem.fix)) == (f"{rule}]", said, advised)
    assert sorted(".".join(map(str, path)) for path in problem.paths) == sorted(keys)
    message_is(f"{problem.what}\n{problem.fix}")


@pytest.mark.parametrize(
    "settings",
    [
        {**LAG, "lag_control": "drop"},
        {**LAG, "lag_control": "in_flight"},
        {**LAG, "lag_control": "in_flight", "engine": {"type": "vllm"}},
        {**LAG, "lag_control": "in_flight", "engine": {"type": "vllm"}, "model": {"type": "folder", "path": "m"}},
        {"engine": {"type": "vllm"}, **NIXL},
        {**LAG, "lag_control": "in_flight", "model": {"type": "paced"}, "engine": {"type": "paced"}},
        {**LAG, "lag_control": "wait", "engine": {"type": "a.b:C"}},
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
    assert all(Scenario.model_validate({"transport": {"type": kind}}).uses_ray for kind in get_args(TransportName))
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
