"""What ranks cost: shares by the batch plan, collectives by mode, and seconds worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.models.config import ModelConfig
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.cost_model import CostModel
from harness.simulate.features import Group, Workload, pass_features
from harness.simulate.machine import Device, MachineProfile, load_machine
from harness.simulate.points import beyond_gpus, check_gpus_hold, load_for, spread_keys
from harness.simulate.ranks import (
    BUCKET,
    FIRST_BUCKET,
    Collective,
    Exchange,
    RankCosts,
    RankedWork,
    check_ranks_are_priced,
    modes_of,
    tokens_of,
)
from harness.simulate.simulated_run import simulate_run
from harness.transports.shards import TensorSlice, write_plans
from tests.simulate.conftest import ONE_LAG, cost, made

SHAPE = ModelConfig(1000, 100, 300, 4, 2, 2, head_dim=50, max_position_embeddings=4096)
"""Of 1,000 tokens, four layers of 100 with an MLP of 300 and two heads."""
WEIGHTS = SHAPE.num_parameters
LENGTHS = {"all_gather": 2.0, "reduce_scatter": 3.0, "all_reduce": 5.0}
"""Seconds for a GB of each collective; a hop is a thousandth of that."""


def machine(modes: Sequence[str] = ("ddp", "fsdp2", "hybrid", "tensor"), gpus: int = 0) -> MachineProfile:
    links = {"machine": 1, "network": 10} if gpus else {"machine": 1}
    collectives = [
        cost(name, {"link": link}, gb=each * slower, hop=each / 1000)
        for name, each in LENGTHS.items()
        for link, slower in links.items()
    ]
    shared = [cost(stage, position_gflop=1.0) for stage in ("old_logprobs", "update")]
    exchanges = [cost("exchange", {"mode": mode}, collective_s=2.0) for mode in modes]
    return made(*collectives, *shared, *exchanges, device=Device(name="made up", gpus=gpus))


def scenario(ranks: int, sharding: str, *changes: str) -> Scenario:
    settings = [f"placement.learner.ranks={ranks}", f"learner.sharding={sharding}", "transport.type=shared_memory"]
    return load_scenario("sync_k1", [*settings, "model.precision=float32", *changes])


APART = ("placement.colocated=false", "placement.generator.count=2", "placement.generator.cpus=0.5")


EVEN: list[Group] = [(10, (20,) * 8)] * 8


def exchanged(asked: Scenario, stage: Stage = Stage.UPDATE) -> list[Exchange]:
    work = RankedWork(asked, SHAPE)
    passes = asked.epochs_per_batch if stage is Stage.UPDATE else 1
    return work.exchanges(stage, work.plan(0, EVEN), passes * tokens_of(EVEN, work.mesh.data_ranks), passes)


def units(found: Exchange, name: str) -> dict[str, float]:
    total: dict[str, float] = {"call": 0.0, "hop": 0.0, "gb": 0.0}
    for each in found.collectives:
        if each.name == name:
            total = {key: total[key] + value for key, value in each.units.items()}
    return total


def test_a_ring_sends_its_bytes_in_as_many_hops_as_there_are_others() -> None:
    for name, ranks, count, sent in (
        ("all_gather", 4, 3, {"call": 3, "hop": 9, "gb": 6.0}),  # 3/4 of 8 GB
        ("all_reduce", 4, 3, {"call": 3, "hop": 18, "gb": 12.0}),
        ("reduce_scatter", 2, 1, {"call": 1, "hop": 1, "gb": 4.0}),
    ):
        assert Collective(name, ranks, ranks, 8.0, count).units == sent


GB = WEIGHTS * 4 / 1e9
TWO_MICROBATCHES = (4, "fsdp2", "gradient_accumulation_steps=2")
HYBRID = (8, "fsdp2", "learner.mesh.replicate=2")


@pytest.mark.parametrize(
    ("asked", "stage", "mode", "name", "calls", "gb"),
    [
        # 2 f(D) P w in each of three passes; 2.5 MB make two buckets, and there are two sums of a number
        ((4, "ddp", "epochs_per_batch=3"), Stage.UPDATE, "ddp", "all_reduce", 12, 3 * 2 * 3 / 4 * GB),
        # 2 M f(S) P w of four layers and what is outside of them
        (TWO_MICROBATCHES, Stage.UPDATE, "fsdp2", "all_gather", 2 * 2 * 5, 2 * 2 * 3 / 4 * GB),
        (TWO_MICROBATCHES, Stage.UPDATE, "fsdp2", "reduce_scatter", 5, 3 / 4 * GB),  # f(S) P r
        (TWO_MICROBATCHES, Stage.OLD_LOGPROBS, "fsdp2", "all_gather", 2 * 5, 2 * 3 / 4 * GB),  # once in each of two
        (TWO_MICROBATCHES, Stage.OLD_LOGPROBS, "fsdp2", "reduce_scatter", 0, 0),
        (HYBRID, Stage.UPDATE, "hybrid", "all_gather", 2 * 5, 2 * 3 / 4 * GB),
        (HYBRID, Stage.UPDATE, "hybrid", "all_reduce", None, 2 * 1 / 2 * GB / 4),  # 2 f(R) P r / S, and sums of nothing
    ],
)
def test_what_ranks_send_each_other(
    asked: tuple[Any, ...], stage: Stage, mode: str, name: str, calls: int | None, gb: float
) -> None:
    (found,) = exchanged(scenario(*asked), stage)
    sent = units(found, name)
    assert (found.mode, sent["gb"]) == (mode, pytest.approx(gb))
    assert calls is None or (sent["call"], sent["hop"]) == (calls, calls * 3 * (2 if name == "all_reduce" else 1))
    if mode == "hybrid":  # copies are added up between, shards within them
        assert {(each.name == "all_reduce", each.reach) for each in found.collectives} == {(False, 4), (True, 8)}
    assert mode != "ddp" or exchanged(scenario(4, "ddp"), Stage.OLD_LOGPROBS) == []


def test_buckets_are_torchs_and_all_but_the_last_may_hide_behind_the_way_back() -> None:
    large = replace(SHAPE, num_hidden_layers=200)
    work = RankedWork(scenario(2, "ddp", "gradient_accumulation_steps=4"), large)
    (found,) = work.exchanges(Stage.UPDATE, work.plan(0, EVEN), 1.0, 1)
    num_bytes = 4 * large.num_parameters
    buckets = 1 + -(-(num_bytes - FIRST_BUCKET) // BUCKET)
    assert buckets == 5
    assert found.collectives[0].count == buckets
    assert found.alone == 1 / 5
    assert found.behind == pytest.approx(2 / 3 / 4)  # of the last of four microbatches
    # of 10 s of collectives 8 may hide; there are 6 s of computing, a sixth of them to hide behind
    assert found.features(10.0, 6.0) == pytest.approx(
        {"collective_s": 10.0, "exposed_s": 9.0, "hidden_s": 1.0, "unit": 7}
    )
    assert found.features(10.0, 600.0)["hidden_s"] == pytest.approx(8.0)


def test_tensor_groups_exchange_activations_and_cut_what_data_ranks_exchange() -> None:
    data, tensor = exchanged(scenario(4, "fsdp2", "learner.mesh.tensor=2"))
    assert (data.mode, tensor.mode) == ("fsdp2", "tensor")
    assert units(data, "all_gather")["gb"] == pytest.approx(2 * 1 / 2 * WEIGHTS / 2 * 4 / 1e9)
    tokens = 8 * (10 + 8 * 19) / 2  # each data rank has half of the rows
    each = 4 * tokens * 100 * 4 / 1e9  # a N C of each of four layers
    both = units(tensor, "all_gather")["gb"] + units(tensor, "reduce_scatter")["gb"]
    assert both == pytest.approx(8 * 1 / 2 * each)  # 8 f(T) a N C for each layer
    assert tensor.features(3.0, 100.0)["exposed_s"] == 3.0
    (passed,) = exchanged(scenario(2, "fsdp2", "learner.mesh.tensor=2"), Stage.OLD_LOGPROBS)
    assert units(passed, "all_gather")["call"] == 2 * 4  # two ways in four layers


def test_two_ranks_have_the_work_of_one_between_them() -> None:
    asked, groups = scenario(2, "fsdp2", "epochs_per_batch=2"), [(7, (5, 9, 11)), (4, (8, 2, 30)), (5, (1, 2, 3))]
    work = RankedWork(asked, SHAPE)
    steps = work.updates(work.plan(0, groups), groups)
    assert [len(step) for step in steps] == [2, 2]
    whole = pass_features(SHAPE, groups, 9)
    for name in ("position_gflop", "position_layer", "logit_gb"):
        assert sum(rank[name] for rank in steps[0]) == pytest.approx(whole[name])
    assert [rank["parameter_gb"] for rank in steps[0]] == [WEIGHTS * 4 / 1e9 / 2] * 2
    assert [step[0]["call"] for step in steps] == [1.0, 0.0]
    passes = work.passes(work.plan(0, groups), groups, 2)
    assert sum(rank["position_gflop"] for rank in passes) == pytest.approx(2 * whole["position_gflop"])


def test_tensor_ranks_have_a_share_of_each_microbatch_and_all_of_its_fixed_cost() -> None:
    whole, cut = (RankedWork(scenario(*asked), SHAPE) for asked in ((1, "none"), (2, "fsdp2", "learner.mesh.tensor=2")))
    one, half = (work.updates(work.plan(0, EVEN), EVEN)[0][0] for work in (whole, cut))
    assert half["position_gflop"] == one["position_gflop"] / 2
    assert half["microbatch"] == one["microbatch"] == 1
    assert half["parameter_gb"] == one["parameter_gb"] / 2


def costs(asked: Scenario, profile: MachineProfile) -> RankCosts:
    return RankCosts("learner", CostModel(asked, profile), Workload(asked, SHAPE), profile)


def test_the_rank_with_most_tokens_sets_the_pace() -> None:
    """Eight groups of equal prompts, of which two are ten times as long: dealt in turns both are one rank's."""
    groups = [(10, (100 if number in (0, 2) else 10,) * 8) for number in range(8)]
    taken = {}
    for balance in ("round_robin", "longest_first"):
        shared = costs(scenario(2, "ddp", f"learner.balance={balance}"), machine()).shared(Stage.UPDATE, 0, groups)
        assert shared.pace_s == max(shared.computing_R)
        taken[balance] = shared
    unlike, even = taken["round_robin"], taken["longest_first"]
    assert min(even.computing_R) / max(even.computing_R) > 0.999
    assert unlike.pace_s / even.pace_s == pytest.approx(2 * max(unlike.computing_R) / sum(unlike.computing_R))
    assert unlike.pace_s / even.pace_s > 1.5
    assert sum(unlike.computing_R) == pytest.approx(sum(even.computing_R))


def test_each_optimizer_step_ends_with_its_slowest_rank() -> None:
    groups = [(10, (100,) * 8), (10, (10,) * 8), (10, (10,) * 8), (10, (100,) * 8)]
    asked = scenario(2, "ddp", "minibatches_per_epoch=2", "shuffle_minibatches=false", "learner.balance=round_robin")
    shared = costs(asked, machine()).shared(Stage.UPDATE, 0, groups)
    assert shared.computing_R[0] == pytest.approx(shared.computing_R[1])  # each has a long group once
    assert shared.pace_s > 1.5 * shared.computing_R[0]  # and waits for the other once


def test_a_stage_is_as_long_as_the_pace_and_the_exchange() -> None:
    asked = scenario(2, "fsdp2")
    stage = costs(asked, machine()).stages(0, EVEN)[Stage.UPDATE]
    gathered, reduced = 2 * 0.5 * WEIGHTS * 4 / 1e9, 0.5 * WEIGHTS * 4 / 1e9
    collective_s = 2.0 * gathered + 0.002 * 2 * 5 + 3.0 * reduced + 0.003 * 5 + 0.005 * 2 * 2
    assert stage.exchanged["fsdp2"]["collective_s"] == pytest.approx(collective_s)
    assert stage.exchange_s == pytest.approx(2 * collective_s)  # the profile's exchange takes twice the collectives
    assert stage.seconds == stage.pace_s + stage.exchange_s


def test_ranks_that_are_not_on_one_machine_are_priced_over_the_network() -> None:
    inside, across = (
        costs(scenario(4, "fsdp2"), machine(gpus=gpus)).shared(Stage.UPDATE, 0, EVEN).exchanged["fsdp2"]
        for gpus in (4, 2)
    )
    hops = 0.002 * 10 * 3 + 0.003 * 5 * 3 + 0.005 * 2 * 6
    assert across["collective_s"] - hops == pytest.approx(10 * (inside["collective_s"] - hops))


def test_each_rank_publishes_a_piece_of_each_tensor() -> None:
    """As the real plan has it, for ranks that hold copies as for ranks that hold pieces."""
    tensors = (
        TensorSlice("a", torch.float32, (8, 8), (0, 0), (8, 8)),
        TensorSlice("b", torch.float32, (12,), (0,), (12,)),
    )
    assert [len(plan.written) for plan in write_plans([tensors] * 4)] == [len(tensors)] * 4
    for sharding in ("ddp", "fsdp2"):
        work = Workload(scenario(4, sharding), SHAPE)
        first = work.sync(first=True)
        published, transferred, loaded = (
            work.sync_stage(stage, part, first=True)
            for stage, part in (
                (Stage.WEIGHT_PUBLISH, "learner"),
                (Stage.WEIGHT_TRANSFER, "generator"),
                (Stage.WEIGHT_LOAD, "generator"),
            )
        )
        assert (published["gb"], published["tensor"]) == (first["gb"] / 4, first["tensor"])
        assert (transferred["gb"], transferred["tensor"]) == (first["gb"], 4 * first["tensor"])
        assert loaded == first


def test_weights_that_leave_as_a_whole_are_gathered_first() -> None:
    gathered = scenario(4, "fsdp2", "learner.publish=per_tensor")
    whole, work = costs(gathered, machine()), Workload(gathered, SHAPE)
    first = work.sync(first=True)
    assert work.sync_stage(Stage.WEIGHT_PUBLISH, "learner", first=True) == first
    gb, tensors = first["gb"], first["tensor"]
    assert whole.gather_s(0) == pytest.approx(2.0 * 3 / 4 * gb + 0.002 * 3 * tensors)  # f(S T) P w
    assert costs(scenario(4, "ddp", "learner.publish=rank0"), machine()).gather_s(0) == 0


def test_what_is_not_priced_is_refused_by_name() -> None:
    assert modes_of(scenario(8, "fsdp2", "learner.mesh.replicate=2", "learner.mesh.tensor=2")) == ("hybrid", "tensor")
    check_ranks_are_priced(scenario(2, "ddp"), machine(["ddp"]))
    inside = (each for each in machine(gpus=2).stages if each.where.get("link") != "network")
    lacking = made(*inside, device=Device(name="made up", gpus=2))
    check_ranks_are_priced(scenario(2, "ddp"), lacking)
    zero = scenario(2, "deepspeed", "learner.zero_stage=3", "learner.publish=per_tensor")
    for asked, profile, said in (
        (scenario(2, "fsdp2"), machine(["ddp"]), r"the mode fsdp2, which 2 ranks need(.|\n)*it has ddp"),
        (zero, machine(), "mode zero3"),
        (scenario(2, "ddp", "learner.stream=in_order", *APART), machine(), "learner.stream"),
        (scenario(4, "ddp"), lacking, "all_reduce between machines, which 4 ranks need"),
        (
            scenario(2, "ddp"),
            made(cost("update", call=1.0)),
            "mode ddp, all_reduce within a machine",
        ),  # of before ranks
    ):
        with pytest.raises(UserError, match=said):
            check_ranks_are_priced(asked, profile)


def test_a_simulated_run_of_ranks_takes_the_time_of_its_stages() -> None:
    others = ("generate", "score", "prepare_batch", "weight_publish", "weight_transfer", "weight_load")
    free = (cost(stage) for stage in ("weight_verify", "call", "record", "save_policy"))
    profile = made(*machine().stages, *(cost(stage, call=0.5) for stage in others), *free)
    pinned = ("sampling.pinned_lengths=[8,8]", "steps=2", "evaluation.every=2")
    took = []
    for asked in (scenario(1, "none", *pinned), scenario(2, "ddp", *pinned)):
        found = simulate_run(asked, profile, shape=SHAPE)
        took.append(next((s.end_ns - s.start_ns) / 1e9 for s in found.spans if s.stage is Stage.UPDATE))
    gradients = 5.0 * WEIGHTS * 4 / 1e9 + 0.005 * 2 * 4
    assert took[1] == pytest.approx(took[0] / 2 + 2 * gradients, rel=1e-6)
    with pytest.raises(UserError, match="mode ddp"):
        simulate_run(scenario(2, "ddp", *pinned), made(cost("update", call=1.0)))


def test_gpus_are_spread_over_ranks_and_generators() -> None:
    base = scenario(1, "none", "gradient_accumulation_steps=8").model_dump(mode="json")
    keys = spread_keys({"gpus": 64, "learner_share": 0.25, "sharding": "hybrid"}, base, 8)
    assert keys == {
        "placement.learner.ranks": 16,
        "placement.generator.count": 48,
        "learner.sharding": "fsdp2",
        "learner.mesh.replicate": 2,  # a copy on each of two machines
        "gradient_accumulation_steps": 1,  # half of 8 rows would be fewer than one microbatch
    }
    # of more than one machine whole ones: 12 ranks are 8; on one machine as many as the share says
    halves = (spread_keys({"gpus": gpus, "learner_share": 0.5}, base, 8) for gpus in (24, 6))
    assert [(keys["placement.learner.ranks"], keys["placement.generator.count"]) for keys in halves] == [
        (8, 16),
        (3, 3),
    ]
    assert spread_keys({"placement.learner.ranks": 4}, base, 8) == {"gradient_accumulation_steps": 2}
    assert spread_keys({"max_lag": 1}, base, 8) == {}


def of_size(billions: int) -> list[str]:
    return ["model.type=folder", f"model.path=Qwen/Qwen2.5-{billions}B"]


def test_a_point_that_no_gpu_has_the_memory_for_is_refused_with_what_would_fit() -> None:
    """7.6 billion weights in one process without shared ones: P w = 28.4 GiB; policy, AdamW, gradients are four.

    With DDP's buckets and the activations of eight ranks it is 147 GiB.
    """
    profile = load_machine("h100-sxm")
    small, _ = load_for("sizing_ranks", profile)
    check_gpus_hold(small, profile)
    ddp, _ = load_for("sizing_ranks", profile, ["placement.learner.ranks=8", "learner.sharding=ddp", *of_size(7)])
    large, _ = load_for(ONE_LAG, profile, of_size(7))
    one_process, _ = load_for("sync_k1", profile, of_size(32))
    short = beyond_gpus(large, profile)
    assert list(short) == ["learner", "generator"]
    assert short["learner"] > 4 * 4 * 7_615_616_512
    shards = ["ranks 16, learner.sharding fsdp2, transport.type shared_memory", "model.dtype bfloat16"]
    for asked, said, fixes in (
        (ddp, "the learner would need 147 GiB .* a GPU of h100-sxm has 80 GiB", []),
        (large, "the learner would need", ["ranks 4, learner.sharding fsdp2, learner.publish shards;"]),
        (one_process, "with the generator in its process would need 673 GiB", shards),
    ):
        with pytest.raises(UserError, match=said) as refused:
            check_gpus_hold(asked, profile)
        assert all(fix in str(refused.value.fix) for fix in fixes)
    keys = ["learner.sharding=fsdp2", "learner.publish=shards", *of_size(7)]
    for ranks, left in ((4, ["generator"]), (2, ["learner", "generator"])):  # what was named fits, and no fewer
        asked, _ = load_for(ONE_LAG, profile, [f"placement.learner.ranks={ranks}", *keys])
        assert list(beyond_gpus(asked, profile)) == left
