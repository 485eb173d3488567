"""What follows from settings: numbers of a batch, the mesh of ranks, the age of rollouts, what a loss takes."""

from typing import Any, get_args

import pytest

from harness.scenario.derived import given_at_once, mesh_shape, microbatches, zero_stage
from harness.scenario.loop_plan import loop_plan
from harness.scenario.rules import broken_rules
from harness.settings.learner import MeshShape
from harness.settings.loss import AdvantageSettings
from harness.settings.transport import TransportName
from tests.scenario.settings import scenario_of


def test_derived_values_follow_from_the_settings() -> None:
    scenario = scenario_of(
        "rollout_batch_size: 48, group_size: 4, minibatches_per_epoch: 3, epochs_per_batch: 2, "
        "gradient_accumulation_steps: 2, steps: 25, evaluation.every: 10, evaluation.prompts: 100"
    )
    assert scenario.prompts_per_batch == 12  # 48 / 4
    assert scenario.train_batch_size == 16  # 48 / 3
    assert scenario.microbatch_size == 8  # 16 / 2
    assert scenario.optimizer_steps_per_batch == 6  # 2 * 3
    assert scenario.num_optimizer_steps == 150  # 25 * 6
    assert scenario.on_policy is False
    assert scenario.loss_constant == 32  # sampling.max_tokens
    assert scenario.num_evaluations == 4  # before, after 10, after 20, after 25
    assert scenario.num_rollouts == 25 * 48 + 4 * 100


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        ("steps: 100", "warmup_optimizer_steps", 0),
        ("steps: 100, optimizer.warmup_steps: 30", "warmup_optimizer_steps", 30),
        # 0.07 * 100 is 7.000000000000001 in floats
        ("steps: 100, optimizer.warmup_ratio: 0.07", "warmup_optimizer_steps", 7),
        # 1.5, rounded up as transformers does
        ("steps: 30, optimizer.warmup_ratio: 0.05", "warmup_optimizer_steps", 2),
        ("steps: 1, optimizer.warmup_ratio: 0.05", "warmup_optimizer_steps", 1),
        # 0.1 * 10 * 2 * 4
        (
            "steps: 10, epochs_per_batch: 2, minibatches_per_epoch: 4, optimizer.warmup_ratio: 0.1",
            "warmup_optimizer_steps",
            8,
        ),
        ("steps: 20, evaluation.every: 10", "num_evaluations", 3),  # at 0, 10, 20: the last is not counted twice
        ("replay.capacity: 32", "replay_sample_groups", 8),  # 64 / 8
        ("replay.capacity: 32, replay.sample_groups: 5", "replay_sample_groups", 5),
        ("replay.capacity: 16", "replay_max_age", 2),  # 16 groups are refilled by 2 batches of 8
        ("replay.capacity: 20", "replay_max_age", 3),  # by 3
        ("replay.capacity: 20, max_lag: 4", "replay_max_age", 7),  # and they may be 4 versions old when they enter
        ("replay.capacity: 20, replay.max_age: 1", "replay_max_age", 1),
        ("replay.capacity: 20, replay.max_age: 0", "replay_max_age", 0),
        ("steps: 1", "replay_max_age", 0),
        # the end is banned where the engine bans it
        ("sampling.min_tokens: 4", "banned_eos_tokens", 0),
        ("loss.ban_eos: true", "banned_eos_tokens", 1),
        ("loss.ban_eos: true, sampling.min_tokens: 4", "banned_eos_tokens", 4),
        ("loss.ban_eos: true, sampling.pinned_lengths: [2, 8], sampling.max_tokens: 20", "banned_eos_tokens", 20),
        ("max_lag: 1", "behaviour_is_older", True),
        ("replay.capacity: 8", "behaviour_is_older", True),
        ("epochs_per_batch: 4", "behaviour_is_older", False),
        ("steps: 1", "on_policy", True),
        ("max_lag: 1", "on_policy", False),
        ("replay.capacity: 8", "on_policy", False),
        ("epochs_per_batch: 4", "on_policy", False),
        *((f"transport.type: {kind}", "uses_ray", True) for kind in get_args(TransportName)),
        ("transport.type: in_process", "uses_ray", False),
        ("steps: 1", "uses_ray", False),
    ],
)
def test_a_number_that_follows(settings: str, name: str, value: Any) -> None:
    found = getattr(scenario_of(settings), name)
    assert (found, type(found)) == (value, type(value))


def test_sampling_settings_become_the_engines_parameters() -> None:
    params = scenario_of("sampling.top_p: 0.5, sampling.stop: [a], sampling.max_tokens: 7").sampling.to_params()
    found = (params.temperature, params.top_p, params.min_tokens, params.max_tokens, params.stop)
    assert found == (1.0, 0.5, 1, 7, ("a",))


def test_a_part_that_streams_has_its_share_of_the_microbatches() -> None:
    """64 responses of 8 prompts for 3 Generators, 24 at most; of 4 microbatches 2 for each part."""
    settings = "transport.type: shared_memory, placement.generator.count: 3, gradient_accumulation_steps: 4"
    scenario = scenario_of(f"{settings}, placement.colocated: false, learner.stream: in_order")
    assert (microbatches(scenario), given_at_once(scenario)) == (2, 24)
    whole = scenario_of(settings)
    assert (microbatches(whole), given_at_once(whole)) == (4, 64)


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ("learner.sharding: none", MeshShape()),
        ("@fsdp2", MeshShape()),
        ("learner.sharding: ddp, placement.learner.ranks: 2, transport.type: nixl", MeshShape(replicate=2)),
        ("@fsdp2, placement.learner.ranks: 3", MeshShape(shard=3)),
        ("@fsdp2, placement.learner.ranks: 2", MeshShape(shard=2)),
        ("@fsdp2, placement.learner.ranks: 8, learner.mesh: {replicate: 2, tensor: 2}", MeshShape(2, 2, 2)),
        (
            "learner.sharding: ddp, placement.learner.ranks: 4, learner.mesh.tensor: 2, transport.type: nixl",
            MeshShape(2, 1, 2),
        ),
        ("@fsdp2, placement.learner.ranks: 2, learner.mesh.tensor: 2", MeshShape(tensor=2)),
        ("@deepspeed, placement.learner.ranks: 3", MeshShape(1, 3, 1)),
    ],
)
def test_the_mesh_that_follows(settings: str, shape: MeshShape) -> None:
    scenario = scenario_of(settings)
    assert broken_rules(scenario) == []
    assert mesh_shape(scenario) == shape
    assert shape.ranks == scenario.placement.learner.ranks


def test_ranks_of_a_tensor_group_take_the_same_rollouts_and_one_of_them_speaks() -> None:
    shape = MeshShape(2, 2, 2)
    assert [shape.data_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [rank for rank in range(8) if shape.speaks(rank)] == [0, 2, 4, 6]
    assert shape.data_ranks == 4


def test_deepspeeds_stage_is_two_unless_told_otherwise() -> None:
    assert zero_stage(scenario_of("@deepspeed, placement.learner.ranks: 3")) == 2
    assert zero_stage(scenario_of("@deepspeed, placement.learner.ranks: 2, learner.zero_stage: 3")) == 3


@pytest.mark.parametrize(
    ("advantage", "loss_type", "delta"),
    [
        ({}, "grpo_clip", "normalized_rewards"),
        ({}, "naive", "normalized_rewards"),
        ({}, "no_baseline", "rewards"),
        ({"normalize_by_std": False}, "unclipped", "centered_rewards"),
        ({"normalize_by_std": False}, "no_baseline", "rewards"),
        ({"delta": "max_rewards"}, "grpo_clip", "max_rewards"),
        ({"delta": "centered_rewards"}, "grpo_clip", "centered_rewards"),
    ],
)
def test_the_delta_that_is_not_named_follows(advantage: dict[str, Any], loss_type: Any, delta: str) -> None:
    assert AdvantageSettings(**advantage).delta_for(loss_type) == delta


def test_the_loop_is_told_of_the_prompts_that_it_may_draw() -> None:
    for text, attempts in (("dynamic_sampling: {}", 0), ("dynamic_sampling.attempts: 3", 3)):
        plan = loop_plan(scenario_of(text), 100, 10)
        assert (plan.dynamic_sampling.attempts, plan.num_prompts) == (attempts, 100)
