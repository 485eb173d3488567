"""The memory plan of a run by hand: its processes and phases, the ranks of a Learner and the workers of an engine."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.engines.vllm_options import Neighbours
from harness.models.config import PRESETS, ModelConfig, sizes_from_hf
from harness.models.published import PUBLIC_SHAPES
from harness.run.memory.fit import amounts_by_name, needs
from harness.run.memory.generator import CUDA_BYTES, beside_vllm
from harness.run.memory.learner import COMPILED_BYTES, Shares, largest_share, shares_of
from harness.run.memory.plan import PROCESS_BYTES, make_plan
from harness.run.memory.table import ALWAYS, Amount, MemoryPlan, ProcessPlan
from harness.scenario.batch_plan import plan_batch
from harness.scenario.schema import Scenario

GIB, MIB = 2**30, 2**20
P = 1_543_714_304
"""Weights of the public model."""
EMBEDDING, LAYER = 151_936 * 1536, 46_797_824
LAYERS_OUTSIDE = EMBEDDING + 1536
LONG = """
engine: {precision: bfloat16, max_batch: 64}
sampling: {max_tokens: 1024}
rollout_batch_size: 64
evaluation: {prompts: 16}
"""
QWEN = PUBLIC_SHAPES["qwen2.5-math-1.5b"]


def shape(**changes: object) -> ModelConfig:
    found = sizes_from_hf({**QWEN, **changes})
    assert found is not None
    return found


OWN, PADDED = shape(), shape(use_sliding_window=True, sliding_window=4096)
"""The public model on the harness' own code; and with a window, which transformers runs over padded rows."""


def scenario(text: str, model: str = "") -> Scenario:
    whole: dict[str, Any] = yaml.safe_load(text + f"\nmodel: {{type: folder, path: qwen, {model}}}")
    return Scenario.model_validate(whole)


def plan(text: str, of: ModelConfig = OWN, model: str = "", *, has_gpu: bool = False) -> MemoryPlan:
    return make_plan(scenario(text, model), of, has_gpu=has_gpu)


def of_preset(text: str, *, has_gpu: bool = False) -> MemoryPlan:
    return make_plan(Scenario.model_validate(yaml.safe_load(text)), PRESETS["small"], has_gpu=has_gpu)


def sizes(of: MemoryPlan | ProcessPlan, name: str = "run") -> dict[str, int]:
    """Bytes of each part of a process."""
    (process,) = [each for each in of.processes if each.name == name] if isinstance(of, MemoryPlan) else [of]
    return {amount.name: amount.num_bytes for amount in process.amounts}


def test_a_run_of_the_public_model_by_hand() -> None:
    (run,) = plan(LONG, PADDED).processes
    rows, tokens = 64, 48 + 1024  # keyword prompts are taken to have 48 tokens
    assert sizes(run) == {
        "Python and its libraries": PROCESS_BYTES,
        "policy": 4 * P,
        "optimizer": 2 * 4 * P,
        "gradients": 4 * P,
        "activations": 28 * rows * (tokens - 1) * 204_800,
        "one layer's way back": rows * (tokens - 1) * 204_800,  # 14.0 GB, more than 441 x 151936 x 4 x 4 of logits
        "engine weights": 2 * P,
        "key/value cache": rows * tokens * 14_336 * 2,
        "sampling logits": rows * 151936 * 4 * 4,
        "compiled products": COMPILED_BYTES["learner"],  # the engine's weights are bfloat16
    }
    sampling = sizes(run)["sampling logits"]
    assert run.peak == sum(sizes(run).values()) - sampling


def test_the_public_model_on_the_own_code_by_hand() -> None:
    prompts, rows, queries, keys = 8, 64, 1023, 48 + 1023
    packed = prompts * 48 + rows * queries  # 65,856 tokens, each prompt once
    layer = packed * (2 * 4 * 1536 + 4 * (2 * 1536 + 1536 + 4 * 8960)) + 4 * rows * 2 * 1536 * (queries + keys)
    found = sizes(plan(LONG))
    assert found["activations"] == 28 * layer
    assert found["engine weights"] == 2 * (P + EMBEDDING)  # the head has the last norm's gain in it
    assert found["key/value cache"] == rows * 1072 * 14_336 * 4
    half = plan(LONG.replace("max_batch: 64", "max_batch: 64, kv_cache: bfloat16"))
    assert sizes(half)["key/value cache"] == rows * 1072 * 14_336 * 2


KL, POLYAK = "loss: {kl: {monitor: true}}\n", "loss: {kl: {coefficient: 0.1, reference: polyak, alpha: 0.1}}\n"
AVERAGE = "float32 average of the reference policy"
ACTORS, NIXL = "transport: {type: shared_memory}\n", "transport: {type: nixl}\n"
RANKS = ACTORS + "placement: {learner: {ranks: 2}}\n"
FSDP, DDP = (f"{RANKS}learner: {{sharding: {mode}}}\n" for mode in ("fsdp2", "ddp"))
ON_GPUS = FSDP.replace("learner: {ranks: 2}", "device: cuda, learner: {ranks: 2, gpus: 1}, generator: {gpus: 1}")
ONE_ON_GPU = "placement: {device: cuda}\n"
PER_TENSOR = RANKS + "learner: {sharding: fsdp2, publish: per_tensor}\n"
ASYNCHRONOUS = "checkpoint: {every: 2, asynchronous: true}\n"
LAG = "max_lag: 1\nplacement: {colocated: false}\n"
ENGINE_TYPE = LONG + "transport: {type: nixl, dtype: engine}\n"
OTHERS = "learner, other ranks"
AMOUNTS: list[tuple[str, str, str, dict[str, int | None]]] = [
    # text, of the model, process, bytes of parts; None: it has none
    (LONG + KL, "", "run", {"reference and previous policy": 2 * 4 * P}),
    (LONG + POLYAK, "dtype: bfloat16", "run", {"reference and previous policy": 2 * P, AVERAGE: 4 * P}),
    (LONG + POLYAK, "dtype: float32", "run", {"reference and previous policy": 4 * P, AVERAGE: None}),
    (LONG, "dtype: bfloat16", "run", {"policy": 2 * P, "optimizer": 4 * P, "gradients": 2 * P}),
    (LONG, "precision: bfloat16", "run", {"activations": 28 * 64 * 1071 * 123_904 + 2 * P}),  # with a narrow copy of P
    (LONG + LAG, "", "run", {"published weights": 2 * 4 * P}),
    # what travels in the engine's type is copied first
    (ENGINE_TYPE, "", "learner", {"published weights": 2 * 2 * P, "weights in the engine's type": 2 * P}),
    (ENGINE_TYPE, "", "generator", {"received weights": 2 * P}),
    (LONG + NIXL, "", "generator", {"received weights": 4 * P}),
    (LONG + ACTORS, "", "generator", {"received weights": None}),  # it maps the Learner's
    (ASYNCHRONOUS, "", "run", {"copy for checkpoints": 3 * 4 * P}),  # weights and Adam's two averages
    (ASYNCHRONOUS + KL, "", "run", {"copy for checkpoints": 4 * 4 * P}),
    (ASYNCHRONOUS + POLYAK, "", "run", {"copy for checkpoints": 4 * 4 * P}),
    ("checkpoint: {every: 2}\n", "", "run", {"copy for checkpoints": None}),
]


@pytest.mark.parametrize(("text", "model", "process", "expected"), AMOUNTS)
def test_what_a_setting_brings(text: str, model: str, process: str, expected: dict[str, int | None]) -> None:
    found = sizes(plan(text, PADDED, model), process)
    assert {name: found.get(name) for name in expected} == expected


def test_parts_that_overlap_add_up() -> None:
    (run,) = plan(LONG + LAG, PADDED).processes
    assert run.overlapping
    assert run.peak == sum(sizes(run).values())


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


def test_actors_have_a_process_each_with_libraries_of_its_own() -> None:
    made = of_preset("engine: {type: vllm}\nplacement: {generator: {count: 2}}\n" + ACTORS)
    found = [(each.name, each.count, sizes(each)["Python and its libraries"] // MIB) for each in made.processes]
    of_each = [("learner", 1, 320), ("generator", 2, 320 + 288), ("scorer", 1, 240), ("ray and driver", 1, 368)]
    assert found == of_each
    assert made.total("cpu") == sum(process.count * process.peak for process in made.processes)
    together = amounts_by_name([made] * 2)["Python and its libraries"]
    assert together == MIB * (2 * (320 + 2 * 608 + 240) + 368)


def test_parts_on_gpus_have_processes_in_main_memory_too() -> None:
    text = "placement: {device: cuda, generator: {count: 3, gpus: 1}, learner: {gpus: 1}}\nsave_policy: false\n"
    made = of_preset(NIXL + text, has_gpu=True)
    assert made.total("cpu") == MIB * (4 * (320 + 512) + 240 + 368 + 416)  # with CUDA in each on a GPU
    for of, loaded in ((PADDED, 4 * P), (OWN, 0)):  # what transformers runs is loaded there first
        host = plan(LONG, of, has_gpu=True).processes[1]
        assert sizes(host).get("model, as transformers loads it", 0) == loaded
        assert sizes(host)["policy, to be saved"] == 4 * P
        assert host.peak == PROCESS_BYTES + GIB // 2 + 4 * P  # one after the other


def test_prompts_and_products_of_a_preset_are_planned_as_they_were_measured() -> None:
    """With its own tokenizer a keyword prompt has 13 tokens for two words and 17 for four."""
    for text, tokens in (("steps: 1", 13), ("task: {keywords_per_prompt: 4}", 17)):
        assert of_preset(text).prompt_tokens == tokens
    both, half = "model: {precision: float32}\n", "model: {precision: bfloat16}\nengine: {precision: bfloat16}\n"
    compiled = [
        sum(each.num_bytes for each in of_preset(text, has_gpu=gpu).processes[0].amounts if "compiled" in each.name)
        for text, gpu in ((both, False), (half, False), (both, True))
    ]
    assert compiled == [180 * MIB, 0, 0]


# ---- the ranks of a Learner

PAGE = (Path(__file__).parents[2] / "docs" / "learner.md").read_text(encoding="utf-8")


def ranks_of(ranks: int, learner: str, more: str = "") -> Scenario:
    return scenario(f"{ACTORS}placement: {{learner: {{ranks: {ranks}}}}}\nlearner: {{{learner}}}\n{more}")


def value_of(cell: str, **letters: int) -> Fraction:
    """``2 P w / (S T)`` in P w, as the docs write it."""
    number, _, divisor = cell.replace("P w", "").strip().partition("/")
    divided = 1
    for letter in re.findall(r"[A-Za-z]+", divisor):
        divided *= letters[letter]
    return Fraction(int(number.strip() or 1), divided)


@pytest.mark.parametrize(
    ("mode", "ranks", "learner"),
    [
        ("ddp", 2, "sharding: ddp"),
        ("fsdp2 and hybrid", 6, "sharding: fsdp2, mesh: {replicate: 2}"),
        ("tensor", 2, "sharding: fsdp2, mesh: {tensor: 2}"),
        ("fsdp2 x tensor", 6, "sharding: fsdp2, mesh: {tensor: 2}"),
    ],
)
def test_shares_are_those_of_the_docs_table(mode: str, ranks: int, learner: str) -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if "|" in line]
    head = next(row for row in rows if row[:2] == ["bytes", "one process"])
    table = {row[0]: row[head.index(mode)] for row in rows[rows.index(head) :] if len(row) == len(head)}
    purposes = ("weights", "gradients", "optimizer", "reference, previous policy, each")
    assert shares_of(ranks_of(ranks, learner)) == Shares(*(value_of(table[each], S=3, T=2) for each in purposes))


PART, ONE = Fraction(1, 4), Fraction(1)


@pytest.mark.parametrize(
    ("learner", "more", "shares"),
    [
        ("sharding: deepspeed, zero_stage: 1", "", Shares(ONE, ONE, 2 * PART, ONE)),
        ("sharding: deepspeed, zero_stage: 2", "", Shares(ONE, PART, 2 * PART, ONE)),
        ("sharding: deepspeed, zero_stage: 3, publish: per_tensor", "", Shares(PART, PART, 2 * PART, PART)),
        # FSDP2 keeps whole gradients between microbatches
        (
            "sharding: fsdp2, mesh: {tensor: 2}",
            "gradient_accumulation_steps: 2\n",
            Shares(PART, Fraction(1, 2), 2 * PART, PART),
        ),
    ],
)
def test_shares_of_four_ranks(learner: str, more: str, shares: Shares) -> None:
    assert shares_of(ranks_of(4, learner, more)) == shares


@pytest.mark.parametrize(("groups", "ranks"), [(8, 2), (8, 3), (3, 4), (1, 4), (2, 8), (5, 5)])
def test_the_largest_share_is_that_of_the_batch_plan(groups: int, ranks: int) -> None:
    for balance in ("longest_first", "round_robin"):
        (step,) = plan_batch([(16, [32] * 8)] * groups, step=0, ranks=ranks, balance=balance).epochs[0]
        largest = max(sum(map(len, of_rank)) for of_rank in step.microbatches)
        assert largest_share(8 * groups, 8, ranks) == largest


def test_ranks_add_up_and_shared_memory_counts_once() -> None:
    whole = plan(FSDP.replace("ranks: 2", "ranks: 4"))
    first, others, generator, *rest = whole.processes
    assert (first.lanes, first.count, others.lanes) == (("learner/0",), 1, tuple(f"learner/{n}" for n in (1, 2, 3)))
    assert whole.total("cpu") == first.peak + 3 * others.peak + generator.peak + sum(each.peak for each in rest)
    assert "received weights" not in sizes(generator)
    libraries = 80 * MIB  # pages of files, which other processes map too
    assert (others.own_peak, first.own_peak) == (others.peak - libraries, first.peak - libraries - 2 * 4 * P)


def test_colocated_ranks_fill_a_gpu_each() -> None:
    """Three Generators are dealt to two ranks: two on rank 0's GPU, one on the other."""
    text = ON_GPUS.replace("generator: {gpus: 1}", "generator: {gpus: 1, count: 3}")
    made = plan(text, has_gpu=True)
    first, other, *generators = made.on("cuda")
    assert {each.peak for each in generators} == {generators[0].peak}
    needed = needs([made])
    assert needed.keys() == {"main memory", "GPU 0", "GPU 1"}
    assert needed["GPU 0"] == first.peak + 2 * generators[0].peak
    assert needed["GPU 1"] == other.peak + generators[0].peak
    vllm = text.replace("shared_memory", "nixl") + "engine: {type: vllm, max_batch: 64, context: 4096}\n"
    assert beside_vllm(scenario(vllm), None) == Neighbours(0, 2)


# ---- what is offloaded, and what colocated parts take of one GPU

OFFLOAD = "learner: {offload: {weights: true, gradients: true, optimizer: true}}\n"
OPTIMIZER = "learner: {offload: {optimizer: true}}\n"
COLOCATED = f"""{NIXL}
placement: {{device: cuda, learner: {{gpus: 1}}, generator: {{gpus: 1}}}}
engine: {{type: vllm, precision: bfloat16, max_batch: 64, context: 4096}}
gradient_accumulation_steps: 8
"""


def way_back(process: ProcessPlan) -> int:
    return sum(sizes(process).get(name, 0) for name in ("logits", "one layer's way back"))


def test_what_is_offloaded_is_there_in_its_own_phases_alone() -> None:
    """On a CPU it lies in a file. A pass without gradients has as much of one layer as the way back."""
    kept, gone = (plan(ACTORS + KL + more).processes[0] for more in ("", OFFLOAD))
    assert sizes(gone) == sizes(kept)
    policy, averages, copies = 4 * P, 8 * P, 8 * P
    always = sum(sizes(gone)[name] for name in ("Python and its libraries", "published weights", "compiled products"))
    back, activations = way_back(gone), sizes(gone)["activations"]
    phases = ("sampling", "reference_logprobs", "gradients", "optimizer_step")
    assert [gone.at(phase) - always for phase in phases] == [  # type: ignore[arg-type]
        0,
        policy + copies + back,
        policy + policy + activations + back,  # the gradients are as many
        policy + policy + averages,
    ]
    everything = policy + averages + copies
    assert [kept.at(phase) - always for phase in phases] == [  # type: ignore[arg-type]
        everything,
        everything + back,
        everything + policy + activations + back,
        everything + policy,
    ]
    assert (gone.gives_back, kept.gives_back) == (True, False)


def test_a_colocated_vllm_and_an_offloading_learner_need_what_the_larger_phase_does() -> None:
    """The published version and the one being published stay, and so does what vLLM works in; each has a context."""
    leaving, kept = (plan(COLOCATED + more, has_gpu=True) for more in (OFFLOAD, ""))
    learner, generator = leaving.on("cuda")
    stay = 2 * CUDA_BYTES + 2 * 4 * P + 4 * P + 2 * GIB  # contexts, published, received, workspace
    row = 4096 * 28_672
    sampling = stay + 2 * P + row
    passing = sizes(learner)["activations"] + way_back(learner)
    training = stay + max(8 * P + passing, 16 * P)
    assert needs([leaving])["GPU 0"] == max(sampling, training)
    assert learner.at("sampling") + generator.at("sampling") == sampling
    stays = kept.on("cuda")[0]
    # without offload the Learner's allocator keeps what training took, and vLLM sleeps in vain
    assert (stays.gives_back, stays.peak) == (False, CUDA_BYTES + 2 * 4 * P + 16 * P + passing)
    assert needs([kept])["GPU 0"] == stays.peak + generator.at("sampling")


def test_without_weights_that_leave_an_offloading_learner_gives_nothing_back() -> None:
    learner = plan(COLOCATED + OPTIMIZER, has_gpu=True).on("cuda")[0]
    assert not learner.gives_back  # the gradients would still be the allocator's
    assert "optimizer" not in {amount.name for amount in learner.amounts if "gradients" in amount.phases}


def test_ddps_buckets_stay_unless_they_are_offloaded() -> None:
    for settings, during in (("", 4 * P), (OFFLOAD.removeprefix("learner: {").removesuffix("}\n"), 0)):
        more = f", {settings}" if settings else ""
        first = plan(RANKS + f"learner: {{sharding: ddp{more}}}\n").processes[0]
        assert ("gradients" in sizes(first), sizes(first)["gradient buckets"]) == (False, 4 * P)  # they lie in them
        held = [each for each in first.amounts if each.name == "gradient buckets" and "sampling" in each.phases]
        assert sum(each.num_bytes for each in held) == during


# ---- the workers of an engine

VLLM = "engine: {type: vllm, precision: bfloat16, max_batch: 1, context: 32, tensor_parallel: N}\n"


def test_an_engine_of_two_workers_has_two_gpus() -> None:
    """Generators on GPUs 1 and 2, 3 and 4; what arrives, and the Generator's own context, on the first of each."""
    placement = "placement: {device: cuda, colocated: false, learner: {gpus: 1}, generator: {gpus: 2, count: 2}}\n"
    text = NIXL + placement + VLLM.replace("N", "2")
    needed = needs([plan(text, has_gpu=True)])
    worker = CUDA_BYTES + P + 32 * 28_672 // 2 + 2 * GIB
    first = worker + CUDA_BYTES + 4 * P
    assert [needed[f"GPU {index}"] for index in (1, 2, 3, 4)] == [first, first, worker, worker]
    assert needed.keys() == {"main memory", *(f"GPU {index}" for index in range(5))}
    assert beside_vllm(scenario(text), OWN) == Neighbours(4 * P + 2 * CUDA_BYTES, 1)


# ---- parts by hand

HANDED_OUT, ROW = "whole model, to hand it out", 32 * 28_672
ONE_WORKER, TWO_WORKERS = (ACTORS + VLLM.replace("N", n) for n in "12")
HOST, ASLEEP = "host of the learner", {"engine weights, asleep": 2 * P}
OF_OTHERS = {"policy": 2 * P, "optimizer": 4 * P, "gradients": 2 * P, "parts that were handed out": 2 * P}
OF_OTHERS |= {"whole for a while": 4 * (4 * LAYER + 2 * LAYERS_OUTSIDE)}
TEN_ROWS = {"key/value cache": 10 * ROW}  # one, eight spare ones, and one more


@pytest.mark.parametrize(
    ("text", "has_gpu", "process", "expected"),
    [
        (FSDP, False, "learner", {"published weights": 2 * 4 * P, HANDED_OUT: 4 * P}),  # one in use, one to write
        (FSDP, False, OTHERS, {**OF_OTHERS, "published weights": None, HANDED_OUT: None}),
        (PER_TENSOR, False, "learner", {"gathered weights": 4 * P}),  # which the others have one tensor at a time
        (PER_TENSOR, False, OTHERS, {"gathered weights": 4 * EMBEDDING}),
        (ON_GPUS, True, HOST, {HANDED_OUT: 4 * P}),  # of main memory
        (ON_GPUS, True, f"{HOST}, other ranks", {HANDED_OUT: None}),
        (ON_GPUS, True, OTHERS, {"CUDA": CUDA_BYTES}),
        # what leaves a GPU is pinned in main memory: policy and averages, and the weights of a vLLM that sleeps
        (COLOCATED + OFFLOAD, True, HOST, {"offloaded": 12 * P}),
        (COLOCATED + OFFLOAD, True, "host of the generator", ASLEEP),
        (COLOCATED + OPTIMIZER, True, HOST, {"offloaded": 8 * P}),
        # in one process offloaded weights are published as copies
        (ONE_ON_GPU + OFFLOAD, True, "run", {"published weights": None}),
        (ONE_ON_GPU + OFFLOAD, True, "host of the GPU", {"published weights": 2 * 4 * P}),
        # an engine of two workers divides weights and cache
        (ONE_WORKER, False, "generator", {"engine weights": 2 * P, **TEN_ROWS}),
        (TWO_WORKERS, False, "generator, workers", {"engine weights": P, "key/value cache": 5 * ROW}),
        (
            TWO_WORKERS,
            False,
            "generator",
            {"engine weights": None, "key/value cache": None, "weights for the workers": 4 * P},
        ),
    ],
)
def test_parts_of_ranks_and_workers(text: str, has_gpu: bool, process: str, expected: dict[str, int | None]) -> None:
    found = sizes(plan(text, has_gpu=has_gpu), process)
    assert {name: found.get(name) for name in expected} == expected
