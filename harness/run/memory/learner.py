"""What a Learner holds: one process, or each of its ranks by mode.

P is the number of weights and w the bytes of one; the ranks are replicate x shard x tensor, R x S x T. The formulas are
those of docs/learner.md, "What each rank holds", which a test reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from harness.models.config import ModelConfig
from harness.run.memory.activations import Batch, cast_bytes, kept_bytes, layer_bytes, logit_bytes
from harness.run.memory.amounts import COMPILED, COMPILED_BYTES, RUNNING, WIDTH, Amount, Phase
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
from harness.settings.learner import MOST_ADDED_AT_ONCE, Held, MeshShape, is_resident

_LAYERS_AT_ONCE = 4
"""Layers whose numbers FSDP2 has whole at a time on the way back: the weights of one and of the next, the gradients of
that one, and those of the one before, which go to the other ranks (torch 2.13, ``_fsdp_param_group.post_backward``).
gloo needs one more while it gathers or sums up, when the layer's gradients are not there yet or no more."""
_ROOT_AT_ONCE = 2
"""The same of what is outside of the layers: its weights and its gradients, until the way back ends."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What one rank holds of the whole model for a purpose, in P w."""

    weights: Fraction
    gradients: Fraction
    optimizer: Fraction
    copy: Fraction
    """Of a reference policy, or of the previous one."""


def shares_of(scenario: Scenario) -> Shares:
    """Return what each rank holds of the model; a Learner of one process holds all of it."""
    ranks, sharding = scenario.placement.learner.ranks, scenario.learner.sharding
    one = Fraction(1)
    if ranks == 1:
        return Shares(one, one, 2 * one, one)
    part = Fraction(1, ranks)
    if sharding == "deepspeed":
        stage = zero_stage(scenario)
        weights = part if stage == 3 else one
        return Shares(weights, one if stage == 1 else part, 2 * part, weights)
    mesh = mesh_shape(scenario)
    cut = Fraction(1, mesh.shard * mesh.tensor)
    if is_copied(scenario):
        return Shares(cut, cut, 2 * cut, cut)
    waits = microbatches(scenario) > 1 and mesh.data_ranks > 1
    return Shares(cut, Fraction(1, mesh.tensor) if waits else cut, 2 * cut, cut)


def is_copied(scenario: Scenario) -> bool:
    """Whether torch's DDP runs the ranks."""
    return scenario.learner.sharding == "ddp" and scenario.learner.mesh.tensor == 1


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


def learner_amounts(
    scenario: Scenario, shape: ModelConfig, prompt: int, on_gpu: bool, rank: int = 0
) -> tuple[Amount, ...]:
    """What training holds: the policy, AdamW's two averages, copies for KL, what is published, and one microbatch.

    Args:
        scenario: the resolved scenario.
        shape: of its model.
        prompt: tokens of the longest prompt.
        on_gpu: whether it trains on a GPU.
        rank: of the Learner; all but 0 hold the same.
    """
    model: Any = scenario.model
    width = WIDTH[getattr(model, "dtype", "float32")]
    autocast = model.precision != "float32" and width == 4
    weights, shares = shape.num_parameters * width, shares_of(scenario)
    batch, tensor = _microbatch(scenario, prompt), scenario.learner.mesh.tensor if _several(scenario) else 1
    checkpointing = getattr(model, "gradient_checkpointing", False)
    kept = kept_bytes(shape, batch, width, autocast, checkpointing, on_gpu=on_gpu, tensor=tensor)
    passes: tuple[Phase, ...] = ("reference_logprobs", "gradients")
    movable = [amount for _, amount in _movable(scenario, shape)]
    buckets = movable[-1].num_bytes
    return present(
        (
            *movable,
            *_published(scenario, shape, weights, rank, on_gpu),
            Amount("gradients", round(shares.gradients * weights) - buckets, ("gradients", "optimizer_step")),
            Amount("whole for a while", _whole_for_a_while(scenario, shape, width), passes),
            Amount("activations", kept + round(cast_bytes(shape, autocast) / tensor), ("gradients",)),
            backward_amount(shape, batch, width, autocast, on_gpu, tensor),
            Amount(COMPILED, 0 if on_gpu or autocast or width == 2 else COMPILED_BYTES["learner"]),
        )
    )


def _movable(scenario: Scenario, shape: ModelConfig) -> list[tuple[Held, Amount]]:
    """What a rank holds that ``learner.offload`` may move away, each in the phases in which it is on the device."""
    width, leaving = WIDTH[getattr(scenario.model, "dtype", "float32")], offloaded(scenario)
    weights, shares = shape.num_parameters * width, shares_of(scenario)
    averaged = scenario.needs_reference and scenario.loss.kl.reference == "polyak" and width < 4
    buckets = shares.copy * weights if is_copied(scenario) and _several(scenario) else 0

    def held(kind: Held, name: str, num_bytes: Fraction | float) -> tuple[Held, Amount]:
        at: dict[Phase, Any] = {"loading": "sampling"}  # which is all of the time between two training steps
        phases = tuple(phase for phase in RUNNING if is_resident(kind, at.get(phase, phase), leaving))
        return kind, Amount(name, round(num_bytes), phases)

    return [
        held("weights", "policy", shares.weights * weights),
        held("optimizer", "optimizer", shares.optimizer * weights),
        held("reference", "reference and previous policy", _copies(scenario) * shares.copy * weights),
        held(
            "reference",
            "float32 average of the reference policy",
            4 * shape.num_parameters * shares.copy if averaged else 0,
        ),
        held("gradients", "gradient buckets", buckets),
    ]


def gives_back(scenario: Scenario) -> bool:
    """Whether a Learner leaves what it does not use to others.

    Where weights leave, its allocator is emptied behind each training step; behind an optimizer that left before, it
    would still keep the gradients.
    """
    return "weights" in offloaded(scenario)


def kept_in_main_memory(scenario: Scenario, shape: ModelConfig, on_gpu: bool) -> tuple[Amount, ...]:
    """Return what a rank on a GPU has in main memory: what it offloads, pinned, and kept from then on; whole policies.

    A Learner on a CPU has what it offloads in a file. In one process, an engine that would read offloaded weights gets
    a copy. transformers loads a model into main memory, the harness its own where it computes; a policy is saved from
    main memory. Of several ranks see ``startup_amounts``.
    """
    leaving = offloaded(scenario)
    moved = [amount.num_bytes for kind, amount in _movable(scenario, shape) if kind in leaving - {"gradients"}]
    weights = shape.num_parameters * WIDTH[getattr(scenario.model, "dtype", "float32")]
    copies = published_copies(scenario) if on_one_thread(scenario) else 0
    whole = weights if on_gpu and not _several(scenario) else 0
    return present(
        (
            Amount("model, as transformers loads it", whole if shape.runs_on == "transformers" else 0, ("startup",)),
            Amount("policy, to be saved", whole if scenario.save_policy else 0, ("publish",)),
            Amount("offloaded", sum(moved) if on_gpu else 0),
            Amount("published weights", copies * weights if on_gpu else 0),
        )
    )


def checkpoint_copy(scenario: Scenario, shape: ModelConfig) -> tuple[Amount, ...]:
    """Return what a rank keeps in main memory for asynchronous checkpoints: its share of what is saved."""
    if scenario.checkpoint.every is None or not scenario.checkpoint.asynchronous:
        return ()
    return (Amount("copy for checkpoints", state_bytes(scenario, shape) // scenario.placement.learner.ranks),)


def state_bytes(scenario: Scenario, shape: ModelConfig) -> int:
    """Return what a checkpoint has of the Learner, each element written by one rank.

    That is the policy, AdamW's averages, the previous policy and a reference that follows.
    """
    weights = shape.num_parameters * WIDTH[getattr(scenario.model, "dtype", "float32")]
    follows = scenario.needs_reference and scenario.loss.kl.reference == "polyak"
    return (3 + int(scenario.loss.kl.monitor) + int(follows)) * weights


def startup_amounts(scenario: Scenario, shape: ModelConfig, rank: int) -> tuple[tuple[Amount, ...], tuple[Amount, ...]]:
    """Return what a rank holds while the model is handed out: whole policies, in main memory, and the parts that stay.

    Rank 0 has the whole policy until the last tensor is handed out, and one copy beside it while a reference or a
    previous policy is. The others have their parts alone, or all the same where transformers or DeepSpeed runs the
    model.
    """
    if not _several(scenario):
        return (), ()
    model: Any = scenario.model
    weights = shape.num_parameters * WIDTH[getattr(model, "dtype", "float32")]
    copies, shares = _copies(scenario), shares_of(scenario)
    has_whole = rank == 0 or shape.runs_on == "transformers" or scenario.learner.sharding == "deepspeed"
    whole = (1 + min(copies, 1)) * weights if has_whole else 0
    parts = round((max(copies, 1) if has_whole else copies + 1) * shares.copy * weights)
    return (
        present([Amount("whole model, to hand it out", whole, ("startup",))]),
        present([Amount("parts that were handed out", parts, ("startup",))]),
    )


def backward_amount(
    shape: ModelConfig, batch: Batch, width: int, autocast: bool, on_gpu: bool, tensor: int = 1
) -> Amount:
    """What passes on the way back: first the gradient of the logits, then that of one layer after the other.

    The gradients inside of a layer are taken to be as large as what it keeps: each has the shape of a kept tensor. A
    pass without gradients, for log-probabilities, has as much of one layer at a time.
    """
    part = replace(shape, vocab_size=math.ceil(shape.vocab_size / tensor))
    logits = logit_bytes(part, batch, width, autocast, on_gpu=on_gpu)
    layer = layer_bytes(shape, batch, width, autocast, on_gpu=on_gpu, tensor=tensor)
    name, num_bytes = max((("logits", logits), ("one layer's way back", layer)), key=lambda item: item[1])
    return Amount(name, num_bytes, ("reference_logprobs", "gradients"))


def present(amounts: Iterable[Amount]) -> tuple[Amount, ...]:
    """Return the amounts that are not nothing."""
    return tuple(amount for amount in amounts if amount.num_bytes or amount.more)


def _several(scenario: Scenario) -> bool:
    return scenario.placement.learner.ranks > 1


def _copies(scenario: Scenario) -> int:
    """Frozen policies beside the trained one."""
    return int(scenario.needs_reference) + int(scenario.loss.kl.monitor)


def _microbatch(scenario: Scenario, prompt: int) -> Batch:
    """The largest microbatch of the rank that has most rows."""
    mesh = mesh_shape(scenario) if _several(scenario) else MeshShape()
    share = largest_share(given_at_once(scenario), scenario.group_size, mesh.data_ranks)
    rows = math.ceil(share / microbatches(scenario))
    return Batch(rows, min(rows, math.ceil(rows / scenario.group_size)), prompt, scenario.sampling.max_tokens)


def _whole_for_a_while(scenario: Scenario, shape: ModelConfig, width: int) -> int:
    """Bytes that a rank gathers and gives back again while it trains; see ``_LAYERS_AT_ONCE``."""
    if not _several(scenario) or is_copied(scenario):
        return 0
    outside = shape.num_parameters - shape.num_hidden_layers * shape.layer_parameters
    if scenario.learner.sharding == "deepspeed":
        bucket = min(MOST_ADDED_AT_ONCE, shape.num_parameters)
        layers = 2 * shape.layer_parameters + outside if zero_stage(scenario) == 3 else 0
        return (bucket + layers) * width
    mesh = mesh_shape(scenario)
    if mesh.data_ranks == 1:
        return 0
    most = _LAYERS_AT_ONCE if mesh.shard > 1 else _LAYERS_AT_ONCE - 1  # one piece is gathered without a buffer
    at_once = min(most, shape.num_hidden_layers + 1) * shape.layer_parameters + _ROOT_AT_ONCE * outside
    return round(Fraction(at_once * width, mesh.tensor))


def published_copies(scenario: Scenario) -> int:
    """Versions that a transport keeps at the sender: those in use, and the one being published.

    Colocated parts of one process share the weights themselves, unless these leave.
    """
    if on_one_thread(scenario) and "weights" not in offloaded(scenario):
        return 0
    return scenario.max_lag + 2 if scenario.uses_ray else 2


def _published(scenario: Scenario, shape: ModelConfig, weights: int, rank: int, on_gpu: bool) -> tuple[Amount, ...]:
    """What is published, and on rank 0 what was gathered to be."""
    if on_gpu and on_one_thread(scenario):
        return ()  # see ``kept_in_main_memory``
    travelling = shape.num_parameters * WIDTH[scenario.travel_dtype]
    held, shared = published_copies(scenario) * travelling, scenario.transport.type == "shared_memory"
    name = "published weights"
    if not _several(scenario):
        converted = 0 if travelling == weights else travelling
        return Amount(name, held, shared=shared), Amount("weights in the engine's type", converted, ("publish",))
    whole_anyway = shares_of(scenario).weights == 1 and scenario.learner.publish != "rank0"
    to_gather = 0 if whole_anyway else weights
    if in_shards(scenario):
        own = (held if rank == 0 else 0) if shared else held // scenario.placement.learner.ranks
        gathered = to_gather if scenario.save_policy else 0
    else:
        own, gathered = held if rank == 0 else 0, to_gather
    if rank:  # one tensor at a time
        gathered = min(gathered, max(shape.embedding_parameters, shape.hidden_size * shape.intermediate_size) * 4)
    return Amount(name, own, shared=shared), Amount("gathered weights", gathered, ("publish",))
