"""The memory plan of each rank of a Learner: shares by mode, the largest share of rows, what to change."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UserError
from harness.engines.vllm_options import Neighbours
from harness.models.config import ModelConfig, sizes_from_hf
from harness.models.published import PUBLIC_SHAPES
from harness.run.memory.activations import Batch, layer_bytes
from harness.run.memory.check import planned_of_lanes
from harness.run.memory.fit import FreeMemory, needs, require_fit
from harness.run.memory.generator import CUDA_BYTES, beside_vllm
from harness.run.memory.learner import Shares, largest_share, shares_of
from harness.run.memory.plan import make_plan, plan_of
from harness.run.memory.table import ALWAYS, FILE_BYTES, Amount, MemoryPlan, ProcessPlan
from harness.scenario.batch_plan import plan_batch
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario

GIB = 2**30
CONFIG = PUBLIC_SHAPES["qwen2.5-math-1.5b"]
WEIGHTS = 1_543_714_304
LAYER = 46_797_824
"""Of one layer: 2 x 1536 x (1536 + 256) + 3 x 1536 x 8960 + 1536 + 2 x 256 + 2 x 1536."""
OUTSIDE = 151_936 * 1536 + 1536
PAGE = (Path(__file__).parents[2] / "docs" / "learner.md").read_text(encoding="utf-8")


def scenario(tmp_path: Path, ranks: int, **learner: Any) -> Scenario:
    more = learner.pop("more", {})
    (tmp_path / "qwen").mkdir(exist_ok=True)
    (tmp_path / "qwen" / "config.json").write_text(json.dumps(CONFIG))
    settings = {
        "model": {"type": "folder", "path": str(tmp_path / "qwen")},
        "transport": {"type": "shared_memory"},
        "placement": {"learner": {"ranks": ranks}},
        "learner": learner,
        **more,
    }
    (tmp_path / "trial.yaml").write_text(json.dumps(settings))  # JSON is YAML
    return load_scenario(tmp_path / "trial.yaml")


def plan(of: Scenario, **options: Any) -> MemoryPlan:
    shape = sizes_from_hf(CONFIG)
    assert shape is not None
    return make_plan(of, shape, **options)


def sizes(process: ProcessPlan) -> dict[str, int]:
    return {amount.name: amount.num_bytes for amount in process.amounts}


def learners(of: Scenario) -> tuple[dict[str, int], dict[str, int]]:
    first, others, *_ = plan(of).processes
    assert (first.name, first.count, others.name) == ("learner", 1, "learner, other ranks")
    assert others.count == of.placement.learner.ranks - 1
    return sizes(first), sizes(others)


def value_of(cell: str, **letters: int) -> Fraction:
    """``2 P w / (S T)`` in P w, as the docs write it."""
    number, _, divisor = cell.replace("P w", "").strip().partition("/")
    divided = 1
    for letter in re.findall(r"[A-Za-z]+", divisor):
        divided *= letters[letter]
    return Fraction(int(number.strip() or 1), divided)


MODES: dict[str, tuple[int, dict[str, Any]]] = {
    "ddp": (2, {"sharding": "ddp"}),
    "fsdp2 and hybrid": (6, {"sharding": "fsdp2", "mesh": {"replicate": 2}}),
    "tensor": (2, {"sharding": "fsdp2", "mesh": {"tensor": 2}}),
    "fsdp2 x tensor": (6, {"sharding": "fsdp2", "mesh": {"tensor": 2}}),
}


@pytest.mark.parametrize("mode", MODES)
def test_shares_are_those_of_the_docs_table(tmp_path: Path, mode: str) -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if "|" in line]
    head = next(row for row in rows if row[:2] == ["bytes", "one process"])
    table = {row[0]: row[head.index(mode)] for row in rows[rows.index(head) :] if len(row) == len(head)}
    ranks, settings = MODES[mode]
    letters = {"S": 3, "T": 2}
    found = shares_of(scenario(tmp_path, ranks, **settings))
    assert found.weights == value_of(table["weights"], **letters)
    assert found.gradients == value_of(table["gradients"], **letters)
    assert found.optimizer == value_of(table["optimizer"], **letters)
    assert found.copy == value_of(table["reference, previous policy, each"], **letters)


def test_zero_cuts_more_with_each_stage(tmp_path: Path) -> None:
    part, one = Fraction(1, 4), Fraction(1)
    expected = {
        1: Shares(one, one, 2 * part, one),
        2: Shares(one, part, 2 * part, one),
        3: Shares(part, part, 2 * part, part),
    }
    for stage, shares in expected.items():
        publish = "per_tensor" if stage == 3 else "shards"
        assert shares_of(scenario(tmp_path, 4, sharding="deepspeed", zero_stage=stage, publish=publish)) == shares


def test_fsdp2_keeps_whole_gradients_between_microbatches(tmp_path: Path) -> None:
    more = {"gradient_accumulation_steps": 2}
    of = scenario(tmp_path, 4, sharding="fsdp2", mesh={"tensor": 2}, more=more)
    assert shares_of(of).gradients == Fraction(1, 2)


def test_two_shards_by_hand(tmp_path: Path) -> None:
    rank0, other = learners(scenario(tmp_path, 2, sharding="fsdp2"))
    assert (other["policy"], other["optimizer"], other["gradients"]) == (2 * WEIGHTS, 4 * WEIGHTS, 2 * WEIGHTS)
    assert other["whole for a while"] == 4 * (4 * LAYER + 2 * OUTSIDE)
    assert "published weights" not in other
    assert rank0["published weights"] == 2 * 4 * WEIGHTS  # one segment in use, one to write
    assert rank0["whole model, to hand it out"] == 4 * WEIGHTS
    assert "whole model, to hand it out" not in other
    assert other["parts that were handed out"] == 2 * WEIGHTS


def test_gathering_to_publish_is_rank_0s(tmp_path: Path) -> None:
    rank0, other = learners(scenario(tmp_path, 2, sharding="fsdp2", publish="per_tensor"))
    assert rank0["gathered weights"] == 4 * WEIGHTS
    assert other["gathered weights"] == 4 * 151_936 * 1536  # the largest tensor


def test_tensor_ranks_share_matrices_and_what_they_keep() -> None:
    shape, batch = sizes_from_hf(CONFIG), Batch(8, 2, 32, 64)
    assert isinstance(shape, ModelConfig)
    tokens = 2 * 32 + 8 * 63
    norms, outputs, cut = 2 * 4 * 1536, 4 * 2 * 1536, 4 * (1536 + 4 * 8960)
    queries, keys = 63, 95
    attention = 4 * (8 * (1536 * queries + 2 * 256 * keys) + 8 * 12 * queries * keys)
    for ranks in (1, 2):
        packed = tokens * (norms // ranks + outputs + cut // ranks)
        assert layer_bytes(shape, batch, 4, False, tensor=ranks) == packed + attention // ranks


@pytest.mark.parametrize(("groups", "ranks"), [(8, 2), (8, 3), (3, 4), (1, 4), (2, 8), (5, 5)])
def test_the_largest_share_is_that_of_the_batch_plan(groups: int, ranks: int) -> None:
    for balance in ("longest_first", "round_robin"):
        (step,) = plan_batch([(16, [32] * 8)] * groups, step=0, ranks=ranks, balance=balance).epochs[0]
        largest = max(sum(map(len, of_rank)) for of_rank in step.microbatches)
        assert largest_share(8 * groups, 8, ranks) == largest


def test_a_start_that_needs_more_than_the_run_is_the_peak() -> None:
    amounts = (
        Amount("Python and its libraries", 10, ALWAYS),
        Amount("policy", 5),
        Amount("gradients", 5, ("gradients",)),
        Amount("gathered weights", 7, ("publish",)),
        Amount("whole model, to hand it out", 20, ("startup",)),
    )
    assert ProcessPlan("learner", "cpu", amounts).peak == 10 + 20
    assert ProcessPlan("learner", "cpu", amounts[:-1]).peak == 10 + 5 + 7


def test_ranks_add_up_and_shared_memory_counts_once(tmp_path: Path) -> None:
    of = scenario(tmp_path, 4, sharding="fsdp2")
    whole = plan(of)
    first, others, generator, *rest = whole.processes
    assert whole.total("cpu") == first.peak + 3 * others.peak + generator.peak + sum(each.peak for each in rest)
    assert "received weights" not in sizes(generator)
    own = planned_of_lanes(of, has_gpu=False)
    assert {lane for _, lane in own} == {"learner/0", "learner/1", "learner/2", "learner/3", "generator", "scorer"}
    libraries = FILE_BYTES["learner"]
    assert own["main", "learner/1"] == others.peak - libraries
    assert own["main", "learner/0"] == first.peak - libraries - 2 * 4 * WEIGHTS


def test_on_gpus_rank_0_hands_the_model_out_of_main_memory(tmp_path: Path) -> None:
    more = {"placement": {"device": "cuda", "learner": {"ranks": 2, "gpus": 1}, "generator": {"gpus": 1}}}
    processes = {
        each.name: each for each in plan(scenario(tmp_path, 2, sharding="fsdp2", more=more), has_gpu=True).processes
    }
    assert sizes(processes["host of the learner"])["whole model, to hand it out"] == 4 * WEIGHTS
    assert "whole model, to hand it out" not in sizes(processes["host of the learner, other ranks"])
    assert sizes(processes["learner, other ranks"])["CUDA"] == CUDA_BYTES


def test_colocated_ranks_fill_a_gpu_each(tmp_path: Path) -> None:
    """Three Generators are dealt to two ranks: two on rank 0's GPU, one on the other."""
    placement = {"device": "cuda", "learner": {"ranks": 2, "gpus": 1}, "generator": {"gpus": 1, "count": 3}}
    of = plan(scenario(tmp_path, 2, sharding="fsdp2", more={"placement": placement}), has_gpu=True)
    first, other, *generators = of.on("cuda")
    needed = needs([of])
    assert {each.peak for each in generators} == {generators[0].peak}
    assert needed["GPU 0"] == first.peak + 2 * generators[0].peak
    assert needed["GPU 1"] == other.peak + generators[0].peak
    assert needed.keys() == {"main memory", "GPU 0", "GPU 1"}
    vllm = {"engine": {"type": "vllm", "max_batch": 64, "context": 4096}, "transport": {"type": "nixl"}}
    beside = scenario(tmp_path, 2, sharding="fsdp2", more={"placement": placement, **vllm})
    assert beside_vllm(beside, None) == Neighbours(0, 2)


def test_copies_that_do_not_fit_are_to_be_cut(tmp_path: Path) -> None:
    of = plan(scenario(tmp_path, 2, sharding="ddp"))
    free = FreeMemory(needs([plan(scenario(tmp_path, 2, sharding="fsdp2"))])["main memory"])
    with pytest.raises(UserError) as refused:
        require_fit([of], free)
    assert "for optimizer" in refused.value.what
    assert (refused.value.fix or "").startswith("set learner.sharding to fsdp2, or set model.dtype to bfloat16")


OFFLOAD_ALL = {"offload": {"weights": True, "gradients": True, "optimizer": True}}
COLOCATED = {
    "placement": {"device": "cuda", "learner": {"gpus": 1}, "generator": {"gpus": 1}},
    "engine": {"type": "vllm", "precision": "bfloat16", "max_batch": 64, "context": 4096},
    "transport": {"type": "nixl"},
    "gradient_accumulation_steps": 8,
}


def way_back(process: ProcessPlan) -> int:
    return sum(sizes(process).get(name, 0) for name in ("logits", "one layer's way back"))


def test_what_is_offloaded_is_there_in_its_own_phases_alone(tmp_path: Path) -> None:
    """On a CPU it lies in a file. P = 4 WEIGHTS; a pass without gradients has as much of one layer as the way back."""
    monitor = {"loss": {"kl": {"monitor": True}}}
    kept = plan(scenario(tmp_path, 1, more=monitor)).processes[0]
    gone = plan(scenario(tmp_path, 1, more=monitor, **OFFLOAD_ALL)).processes[0]
    assert sizes(gone) == sizes(kept)
    policy, averages, copies = 4 * WEIGHTS, 8 * WEIGHTS, 8 * WEIGHTS
    always = sum(sizes(gone)[name] for name in ("Python and its libraries", "published weights", "compiled products"))
    back, activations = way_back(gone), sizes(gone)["activations"]
    phases = ("sampling", "reference_logprobs", "gradients", "optimizer_step")
    assert [gone.at(phase) - always for phase in phases] == [
        0,
        policy + copies + back,
        policy + policy + activations + back,  # the gradients are as many
        policy + policy + averages,
    ]
    everything = policy + averages + copies
    assert [kept.at(phase) - always for phase in phases] == [
        everything,
        everything + back,
        everything + policy + activations + back,
        everything + policy,
    ]
    assert (gone.gives_back, kept.gives_back) == (True, False)


def test_a_colocated_vllm_and_an_offloading_learner_need_what_the_larger_phase_does(tmp_path: Path) -> None:
    """The published version and the one being published stay, and so does what vLLM works in; each has a context."""
    of = scenario(tmp_path, 1, more=COLOCATED, **OFFLOAD_ALL)
    learner, generator = plan(of, has_gpu=True).on("cuda")
    stay = 2 * CUDA_BYTES + 2 * 4 * WEIGHTS + 4 * WEIGHTS + 2 * GIB  # contexts, published, received, workspace
    row = 4096 * 28_672
    sampling = stay + 2 * WEIGHTS + row
    passing = sizes(learner)["activations"] + way_back(learner)
    training = stay + max(8 * WEIGHTS + passing, 16 * WEIGHTS)
    assert needs([plan(of, has_gpu=True)])["GPU 0"] == max(sampling, training)
    assert learner.at("sampling") + generator.at("sampling") == sampling
    stays = scenario(tmp_path, 1, more=COLOCATED)
    kept = plan(stays, has_gpu=True)
    assert not kept.on("cuda")[0].gives_back
    # without offload the Learner's allocator keeps what training took, and vLLM sleeps in vain
    assert needs([kept])["GPU 0"] == kept.on("cuda")[0].peak + generator.at("sampling")
    assert kept.on("cuda")[0].peak == CUDA_BYTES + 2 * 4 * WEIGHTS + 16 * WEIGHTS + passing


def test_what_leaves_a_gpu_lies_in_main_memory(tmp_path: Path) -> None:
    """Pinned: policy and averages of the Learner, and the weights of a vLLM that sleeps."""
    hosts = {
        each.name: each for each in plan(scenario(tmp_path, 1, more=COLOCATED, **OFFLOAD_ALL), has_gpu=True).on("cpu")
    }
    assert sizes(hosts["host of the learner"])["offloaded"] == 12 * WEIGHTS
    assert sizes(hosts["host of the generator"])["engine weights, asleep"] == 2 * WEIGHTS
    optimizer = scenario(tmp_path, 1, more=COLOCATED, offload={"optimizer": True})
    hosts = {each.name: each for each in plan(optimizer, has_gpu=True).on("cpu")}
    assert sizes(hosts["host of the learner"])["offloaded"] == 8 * WEIGHTS
    learner = plan(optimizer, has_gpu=True).on("cuda")[0]
    assert not learner.gives_back  # the gradients would still be the allocator's
    assert "optimizer" not in {amount.name for amount in learner.amounts if "gradients" in amount.phases}


def test_ddps_buckets_stay_unless_they_are_offloaded(tmp_path: Path) -> None:
    first, _ = learners(scenario(tmp_path, 2, sharding="ddp"))
    assert ("gradients" in first, first["gradient buckets"]) == (False, 4 * WEIGHTS)  # the gradients lie in them
    for settings, during in (({}, 4 * WEIGHTS), (OFFLOAD_ALL, 0)):
        buckets = [
            amount
            for amount in plan(scenario(tmp_path, 2, sharding="ddp", **settings)).processes[0].amounts
            if amount.name == "gradient buckets" and "sampling" in amount.phases
        ]
        assert sum(amount.num_bytes for amount in buckets) == during


def test_in_one_process_offloaded_weights_are_published_as_copies(tmp_path: Path) -> None:
    more = {"transport": {"type": "in_process"}, "placement": {"device": "cuda"}}
    run, host = plan(scenario(tmp_path, 1, more=more, **OFFLOAD_ALL), has_gpu=True).processes
    assert "published weights" not in sizes(run)
    assert sizes(host)["published weights"] == 2 * 4 * WEIGHTS
    assert run.peak == max(run.at("sampling"), run.at("gradients"), run.at("optimizer_step"))
    assert {"policy", "optimizer"} & {amount.name for amount in run.amounts if "sampling" in amount.phases} == set()


def test_an_engine_of_two_workers_divides_weights_and_cache(tmp_path: Path) -> None:
    engine = {"type": "vllm", "precision": "bfloat16", "max_batch": 1, "context": 32}
    one, two = (
        {
            each.name: each
            for each in plan(scenario(tmp_path, 1, more={"engine": engine | {"tensor_parallel": n}})).processes
        }
        for n in (1, 2)
    )
    workers = two["generator, workers"]
    assert (workers.count, "engine weights" in sizes(two["generator"])) == (2, False)
    assert sizes(workers)["engine weights"] == WEIGHTS == sizes(one["generator"])["engine weights"] // 2
    row = 32 * 28_672  # ten rows: one, eight spare ones, and one more
    assert sizes(workers)["key/value cache"] == 10 * row // 2 == sizes(one["generator"])["key/value cache"] // 2
    assert sizes(two["generator"])["weights for the workers"] == 4 * WEIGHTS
    assert two["generator"].at("sampling") == sizes(two["generator"])["Python and its libraries"]


def test_an_engine_of_two_workers_has_two_gpus(tmp_path: Path) -> None:
    """Generators on GPUs 1 and 2, 3 and 4; what arrives, and the Generator's own context, on the first of each."""
    more = {
        "engine": {"type": "vllm", "precision": "bfloat16", "max_batch": 1, "context": 32, "tensor_parallel": 2},
        "placement": {
            "device": "cuda",
            "colocated": False,
            "learner": {"gpus": 1},
            "generator": {"gpus": 2, "count": 2},
        },
        "transport": {"type": "nixl"},
    }
    of = scenario(tmp_path, 1, more=more)
    needed = needs([plan(of, has_gpu=True)])
    worker = CUDA_BYTES + WEIGHTS + 32 * 28_672 // 2 + 2 * GIB
    first = worker + CUDA_BYTES + 4 * WEIGHTS
    assert [needed[f"GPU {index}"] for index in (1, 2, 3, 4)] == [first, first, worker, worker]
    assert needed.keys() == {"main memory", *(f"GPU {index}" for index in range(5))}
    assert beside_vllm(of, sizes_from_hf(CONFIG)) == Neighbours(4 * WEIGHTS + 2 * CUDA_BYTES, 1)


def test_a_copy_for_asynchronous_checkpoints_is_in_main_memory() -> None:
    def planned(**checkpoint: object) -> dict[str, int]:
        scenario = Scenario.model_validate({"checkpoint": checkpoint, "model": {"preset": "tiny"}})
        plan, _ = plan_of(scenario, has_gpu=False)
        assert plan is not None
        return {amount.name: amount.num_bytes for process in plan.processes for amount in process.amounts}

    amounts = planned(every=2, asynchronous=True)
    assert amounts["copy for checkpoints"] == 3 * amounts["policy"]  # weights and Adam's two averages
    assert "copy for checkpoints" not in planned(every=2)
