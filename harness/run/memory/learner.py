"""What a Learner holds: one process, or each of its ranks by mode.

P is the number of weights and w the bytes of one; the ranks are replicate x shard x tensor, R x S x T. The formulas are
those of docs/learner.md, "What each rank holds", which a test reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from harness.models.config import ModelConfig
from harness.run.memory.activations import Batch, kept_bytes, layer_bytes, logit_bytes
from harness.run.memory.table import RUNNING, WIDTH, Amount, Phase, present
from harness.scenario.derived import (
    given_at_once,
    in_shards,
    mesh_shape,
    microbatches,
    offloaded,
    on_one_thread,
    zero_stage,
)
from harness.scenario.schema import Scenario
from harness.settings.learner import MOST_ADDED_AT_ONCE, Held, is_resident

COMPILED = "compiled products"
COMPILED_BYTES = {"generator": 108 * 2**20, "learner": 72 * 2**20}
"""oneDNN's code for the shapes of a part's float32 products on a CPU: 180 and 120 of 0.6 MiB (torch 2.13, AVX2). In
sync_k1 (in float32) and quickstart Generators made 176 and 201, Learners 69 and 187: more as responses grow longer."""
_LAYERS_AT_ONCE = 4
"""Layers whose numbers FSDP2 has whole at a time on the way back: the weights of one and of the next, the gradients of
that one, and those of the one before, which go to the other ranks (torch 2.13, ``_fsdp_param_group.post_backward``).
gloo needs one more while it gathers or sums up, when the layer's gradients are not there yet or no more."""
_ROOT_AT_ONCE = 2
"""The same of what is outside of the layers: its weights and its gradients, until the way back ends."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What one rank holds of the whole model for a purpose, in P w; ``copy`` of a reference or previous policy."""

    weights: Fraction
    gradients: Fraction
    optimizer: Fraction
    copy: Fraction


def shares_of(scenario: Scenario) -> Shares:
    """Return what each rank holds of the model; a Learner of one process holds all of it."""
    ranks, one = scenario.placement.learner.ranks, Fraction(1)
    if ranks == 1:
        return Shares(one, one, 2 * one, one)
    part = Fraction(1, ranks)
    if scenario.learner.sharding == "deepspeed":
        stage = zero_stage(scenario)
        weights = part if stage == 3 else one
        return Shares(weights, one if stage == 1 else part, 2 * part, weights)
    mesh = mesh_shape(scenario)
    cut = Fraction(1, mesh.shard * mesh.tensor)
    waits = not _is_copied(scenario) and microbatches(scenario) > 1 and mesh.data_ranks > 1
    return Shares(cut, Fraction(1, mesh.tensor) if waits else cut, 2 * cut, cut)


def _is_copied(scenario: Scenario) -> bool:
    """Whether torch's DDP runs several ranks."""
    settings = scenario.learner
    return scenario.placement.learner.ranks > 1 and settings.sharding == "ddp" and settings.mesh.tensor == 1


def largest_share(rows: int, group_size: int, ranks: int) -> int:
    """Return the rows of the rank that has most of a minibatch; see ``harness.scenario.batch_plan``.

    Groups stay whole and are taken to be equally long; where there are fewer than ranks, the largest are halved.
    """
    groups = math.ceil(rows / group_size)
    if groups >= ranks:
        return min(rows, math.ceil(groups / ranks) * group_size)
    sizes = [group_size] * groups
    while len(sizes) < ranks and max(sizes) > 1:
        largest = sizes.pop(sizes.index(max(sizes)))
        sizes += [largest // 2, largest - largest // 2]
    return max(sizes)


def gives_back(scenario: Scenario) -> bool:
    """Whether a Learner leaves what it does not use to others.

    Where weights leave, its allocator is emptied behind each training step; behind an optimizer that left before, it
    would still keep the gradients.
    """
    return "weights" in offloaded(scenario)


def state_bytes(scenario: Scenario, shape: ModelConfig) -> int:
    """Return what a checkpoint has of the Learner, each element written by one rank.

    That is the policy, AdamW's averages, the previous policy and a reference that follows.
    """
    weights = shape.num_parameters * WIDTH[getattr(scenario.model, "dtype", "float32")]
    follows = scenario.needs_reference and scenario.loss.kl.reference == "polyak"
    return (3 + int(scenario.loss.kl.monitor) + int(follows)) * weights


def learner_amounts(
    scenario: Scenario, shape: ModelConfig, prompt: int, on_gpu: bool, rank: int = 0
) -> tuple[tuple[Amount, ...], tuple[Amount, ...]]:
    """Return what training holds where it computes, and what in main memory in any case.

    The policy, AdamW's two averages, copies for KL, what is published, and one microbatch. ``prompt`` is the tokens of
    the longest prompt; all ranks but 0 hold the same.

    What a GPU's rank offloads is pinned in main memory and kept from then on; a Learner on a CPU has it in a file. In
    one process, an engine that would read offloaded weights gets a copy. transformers loads a model into main memory,
    the harness its own where it computes; a policy is saved from main memory.

    Of several ranks, rank 0 has the whole policy in main memory until the last tensor is handed out, and one copy
    beside it while a reference or a previous policy is. The others have their parts alone, or all the same where
    transformers or DeepSpeed runs the model.
    """
    model: Any = scenario.model
    several, on_thread = scenario.placement.learner.ranks > 1, on_one_thread(scenario)
    width = WIDTH[getattr(model, "dtype", "float32")]
    autocast = model.precision != "float32" and width == 4
    weights, shares, leaving = shape.num_parameters * width, shares_of(scenario), offloaded(scenario)
    copies = int(scenario.needs_reference) + int(scenario.loss.kl.monitor)
    averaged = scenario.needs_reference and scenario.loss.kl.reference == "polyak" and width < 4
    buckets = round(shares.copy * weights) if _is_copied(scenario) else 0
    movable: list[tuple[Held, str, Fraction | int]] = [
        ("weights", "policy", shares.weights * weights),
        ("optimizer", "optimizer", shares.optimizer * weights),
        ("reference", "reference and previous policy", copies * shares.copy * weights),
        (
            "reference",
            "float32 average of the reference policy",
            4 * shape.num_parameters * shares.copy if averaged else 0,
        ),
        ("gradients", "gradient buckets", buckets),
    ]
    at: dict[Phase, Any] = {"loading": "sampling"}  # which is all of the time between two training steps
    held = [
        Amount(name, round(size), tuple(phase for phase in RUNNING if is_resident(kind, at.get(phase, phase), leaving)))
        for kind, name, size in movable
    ]
    moved = sum(round(size) for kind, _, size in movable if kind in leaving - {"gradients"})

    tensor = scenario.learner.mesh.tensor if several else 1
    data_ranks = mesh_shape(scenario).data_ranks if several else 1
    rows = largest_share(given_at_once(scenario), scenario.group_size, data_ranks)
    rows = math.ceil(rows / microbatches(scenario))
    batch = Batch(rows, min(rows, math.ceil(rows / scenario.group_size)), prompt, scenario.sampling.max_tokens)
    checkpointing = getattr(model, "gradient_checkpointing", False)
    kept = kept_bytes(shape, batch, width, autocast, checkpointing, on_gpu=on_gpu, tensor=tensor)
    cast = round(2 * shape.num_parameters / tensor) if autocast else 0  # 16-bit copies, until the gradients are there
    # what passes on the way back: first the gradient of the logits, then that of one layer after the other, which is
    # taken to be as large as what the layer keeps; a pass without gradients has as much of one layer at a time
    cut = replace(shape, vocab_size=math.ceil(shape.vocab_size / tensor))
    layer = layer_bytes(shape, batch, width, autocast, on_gpu=on_gpu, tensor=tensor)
    logits = logit_bytes(cut, batch, width, autocast, on_gpu=on_gpu)
    passing = ("logits", logits) if logits >= layer else ("one layer's way back", layer)
    passes: tuple[Phase, ...] = ("reference_logprobs", "gradients")
    compiled = 0 if on_gpu or autocast or width == 2 else COMPILED_BYTES["learner"]

    shared = on_thread and "weights" not in leaving  # the engine's weights are the policy's
    versions = 0 if shared else scenario.max_lag + 2 if scenario.uses_ray else 2
    has_whole = rank == 0 or shape.runs_on == "transformers" or scenario.learner.sharding == "deepspeed"
    whole = (1 + min(copies, 1)) * weights if several and has_whole else 0
    handed_out = (max(copies, 1) if has_whole else copies + 1) * shares.copy * weights if several else 0
    alone_on_gpu = weights if on_gpu and not several else 0
    saves = scenario.checkpoint.every is not None and scenario.checkpoint.asynchronous
    state = state_bytes(scenario, shape) // scenario.placement.learner.ranks if saves else 0
    return present(
        (
            *held,
            *(() if on_gpu and on_thread else _published(scenario, shape, weights, versions, rank)),
            Amount("gradients", round(shares.gradients * weights) - buckets, ("gradients", "optimizer_step")),
            Amount("whole for a while", _whole_for_a_while(scenario, shape, width), passes),
            Amount("activations", kept + cast, ("gradients",)),
            Amount(*passing, passes),
            Amount(COMPILED, compiled),
            Amount("parts that were handed out", round(handed_out), ("startup",)),
        )
    ), present(
        (
            Amount("whole model, to hand it out", whole, ("startup",)),
            Amount("copy for checkpoints", state),
            Amount(
                "model, as transformers loads it", alone_on_gpu if shape.runs_on == "transformers" else 0, ("startup",)
            ),
            Amount("policy, to be saved", alone_on_gpu if scenario.save_policy else 0, ("publish",)),
            Amount("offloaded", moved if on_gpu else 0),
            Amount("published weights", versions * weights if on_gpu and on_thread else 0),
        )
    )


def _whole_for_a_while(scenario: Scenario, shape: ModelConfig, width: int) -> int:
    """Bytes that a rank gathers and gives back again while it trains; see ``_LAYERS_AT_ONCE``."""
    if scenario.placement.learner.ranks == 1 or _is_copied(scenario):
        return 0
    outside = shape.num_parameters - shape.num_hidden_layers * shape.layer_parameters
    if scenario.learner.sharding == "deepspeed":
        layers = 2 * shape.layer_parameters + outside if zero_stage(scenario) == 3 else 0
        return (min(MOST_ADDED_AT_ONCE, shape.num_parameters) + layers) * width
    mesh = mesh_shape(scenario)
    if mesh.data_ranks == 1:
        return 0
    most = _LAYERS_AT_ONCE if mesh.shard > 1 else _LAYERS_AT_ONCE - 1  # one piece is gathered without a buffer
    at_once = min(most, shape.num_hidden_layers + 1) * shape.layer_parameters + _ROOT_AT_ONCE * outside
    return round(Fraction(at_once * width, mesh.tensor))


def _published(scenario: Scenario, shape: ModelConfig, weights: int, versions: int, rank: int) -> tuple[Amount, ...]:
    """What is published, in ``versions``: those in use and the next one; and on rank 0 what was gathered to be."""
    travelling = shape.num_parameters * WIDTH[scenario.travel_dtype]
    held, shared = versions * travelling, scenario.transport.type == "shared_memory"
    name = "published weights"
    if scenario.placement.learner.ranks == 1:
        converted = 0 if travelling == weights else travelling
        return Amount(name, held, shared=shared), Amount("weights in the engine's type", converted, ("publish",))
    to_gather = 0 if shares_of(scenario).weights == 1 and scenario.learner.publish != "rank0" else weights
    own = held if rank == 0 else 0
    if in_shards(scenario):
        own = own if shared else held // scenario.placement.learner.ranks
        to_gather = to_gather if scenario.save_policy else 0
    if rank:  # one tensor at a time
        to_gather = min(to_gather, max(shape.embedding_parameters, shape.hidden_size * shape.intermediate_size) * 4)
    return Amount(name, own, shared=shared), Amount("gathered weights", to_gather, ("publish",))
