"""Which process of a run holds how many bytes of what. Arithmetic only: nothing is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from harness.memory_plan.activations import Batch, cast_bytes, kept_bytes, layer_bytes, logit_bytes
from harness.memory_plan.shape import Shape
from harness.scenario import Scenario

Phase = Literal["held", "sampling", "loading", "update"]

PROMPT_TOKENS = {"keywords": 48, "arithmetic": 48}
"""Tokens assumed for the longest prompt of a task, with any tokenizer; others get ``LONG_PROMPT_TOKENS``."""
LONG_PROMPT_TOKENS = 256
PROCESS_BYTES = 576 * 2**20
"""What a run in one process holds before it loads anything: torch, transformers and the rest; see docs/memory.md."""
ACTOR_BYTES = {"learner": 320 * 2**20, "generator": 320 * 2**20, "scorer": 208 * 2**20, "ray and driver": 368 * 2**20}
"""What each process of a run with actors holds before it loads anything, pages that processes share counted in parts
(PSS): fewer libraries than a run in one process, and one copy of them for all; see docs/memory.md."""
VLLM_BYTES = 288 * 2**20
"""What vLLM adds to its process before it loads anything, likewise."""
RAY_BYTES = 416 * 2**20
"""Ray's own processes beside the parts, likewise."""
CUDA_BYTES = 2**29
"""A CUDA context and its kernels. Not measured here: the size usually seen on recent GPUs."""
SAMPLING_COPIES = 4
"""Float32 tensors of (rows, vocabulary) while a token is drawn: logits, probabilities, their sums, and a spare one."""
_WIDTH = {"float32": 4, "bfloat16": 2}
_PUBLISHED_COPIES = 2
"""Versions that a transport keeps at the sender: the one in use, and the one being published."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes for one purpose: ``held`` from start to end, or only during a phase."""

    name: str
    num_bytes: int
    phase: Phase = "held"


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """What one process of a run holds.

    Attributes:
        name: the part, or ``run`` for all parts in one process.
        device: where the amounts lie.
        amounts: purposes and bytes.
        overlapping: whether the Generator samples while the Learner trains, so that their phases add up.
        count: how many such processes there are.
        gpus: share of a GPU that one reserves; 0 on a GPU takes the first, as all runs of one process do.
    """

    name: str
    device: Literal["cpu", "cuda"]
    amounts: tuple[Amount, ...]
    overlapping: bool = False
    count: int = 1
    gpus: float = 0.0

    def of(self, phase: Phase) -> int:
        """Bytes of this phase."""
        return sum(amount.num_bytes for amount in self.amounts if amount.phase == phase)

    @property
    def peak(self) -> int:
        """Most bytes that one such process holds at a time."""
        sampling = max(self.of("sampling"), self.of("loading"))
        passing = sampling + self.of("update") if self.overlapping else max(sampling, self.of("update"))
        return self.of("held") + passing


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a run holds, process by process, and the prompt length that was assumed."""

    processes: tuple[ProcessPlan, ...]
    shape: Shape
    prompt_tokens: int

    def total(self, device: Literal["cpu", "cuda"]) -> int:
        """Peak bytes of all processes together."""
        return sum(process.count * process.peak for process in self.processes if process.device == device)


def make_plan(
    scenario: Scenario, shape: Shape, *, on_gpu: bool = False, prompt_tokens: int | None = None
) -> MemoryPlan:
    """Add up what a run of this scenario holds.

    Args:
        scenario: the resolved scenario; its model must have weights.
        shape: of the model that the scenario names.
        on_gpu: whether Generator and Learner compute on a GPU; else everything is main memory.
        prompt_tokens: of the longest prompt; None assumes a number for the task.
    """
    assumed = prompt_tokens or PROMPT_TOKENS.get(scenario.task.type, LONG_PROMPT_TOKENS)
    prompt = max(1, min(assumed, shape.context - scenario.sampling.max_tokens))
    device: Literal["cpu", "cuda"] = "cuda" if on_gpu else "cpu"
    learner = learner_amounts(scenario, shape, prompt, on_gpu)
    generator = generator_amounts(scenario, shape, prompt)
    if not scenario.uses_ray:
        base = _libraries(PROCESS_BYTES + _engine_bytes(scenario))
        amounts = (_cuda() if on_gpu else base, *learner, *generator)
        run = ProcessPlan("run", device, amounts, overlapping=scenario.max_lag > 0)
        hosts = (ProcessPlan("host of the GPU", "cpu", (base,)),) if on_gpu else ()
        return MemoryPlan((run, *hosts), shape, prompt)
    return MemoryPlan(_actors(scenario, learner, generator, on_gpu), shape, prompt)


def _actors(
    scenario: Scenario, learner: tuple[Amount, ...], generator: tuple[Amount, ...], on_gpu: bool
) -> tuple[ProcessPlan, ...]:
    """The processes of a run with Ray actors; parts on GPUs have a process in main memory too."""
    placement = scenario.placement
    device: Literal["cpu", "cuda"] = "cuda" if on_gpu else "cpu"
    of_learner = _libraries(ACTOR_BYTES["learner"])
    of_generator = _libraries(ACTOR_BYTES["generator"] + _engine_bytes(scenario))
    of_driver = _libraries(ACTOR_BYTES["ray and driver"])
    count = placement.generator.count
    processes = [
        ProcessPlan("learner", device, (_cuda() if on_gpu else of_learner, *learner), gpus=placement.learner.gpus),
        ProcessPlan(
            "generator",
            device,
            (_cuda() if on_gpu else of_generator, *generator),
            count=count,
            gpus=placement.generator.gpus,
        ),
        ProcessPlan("scorer", "cpu", (_libraries(ACTOR_BYTES["scorer"]),), count=placement.scorer.count),
        ProcessPlan("ray and driver", "cpu", (of_driver, Amount("Ray", RAY_BYTES))),
    ]
    if on_gpu:
        processes.append(ProcessPlan("host of the learner", "cpu", (of_learner,)))
        processes.append(ProcessPlan("host of the generator", "cpu", (of_generator,), count=count))
    return tuple(processes)


def learner_amounts(scenario: Scenario, shape: Shape, prompt: int, on_gpu: bool) -> tuple[Amount, ...]:
    """What training holds: the policy, AdamW's two averages, copies for KL, what is published, and one microbatch."""
    model: Any = scenario.model
    width = _WIDTH[getattr(model, "dtype", "float32")]
    autocast = model.precision == "bfloat16" and width == 4
    weights = shape.num_parameters * width
    kl = scenario.loss.kl
    copies = int(kl.monitor or kl.coefficient > 0) + int(kl.monitor)
    rows = scenario.microbatch_size
    batch = Batch(rows, min(rows, math.ceil(rows / scenario.group_size)), prompt, scenario.sampling.max_tokens)
    checkpointing = getattr(model, "gradient_checkpointing", False)
    kept = kept_bytes(shape, batch, width, autocast, checkpointing, on_gpu=on_gpu)
    return tuple(
        amount
        for amount in (
            Amount("policy", weights),
            Amount("optimizer", 2 * weights),
            Amount("reference and previous policy", copies * weights),
            Amount("published weights", _published(scenario) * weights),
            Amount("gradients", weights, "update"),
            Amount("activations", kept + cast_bytes(shape, autocast), "update"),
            backward_amount(shape, batch, width, autocast, on_gpu),
        )
        if amount.num_bytes
    )


def backward_amount(shape: Shape, batch: Batch, width: int, autocast: bool, on_gpu: bool) -> Amount:
    """What passes on the way back: first the gradient of the logits, then that of one layer after the other.

    The gradients inside of a layer are taken to be as large as what it keeps: each has the shape of a kept tensor.
    """
    logits = logit_bytes(shape, batch, width, autocast)
    layer = layer_bytes(shape, batch, width, autocast, on_gpu=on_gpu)
    return Amount(*max((("logits", logits), ("one layer's way back", layer)), key=lambda item: item[1]), "update")


def generator_amounts(scenario: Scenario, shape: Shape, prompt: int) -> tuple[Amount, ...]:
    """What sampling holds: the engine's weights, those that arrived, its cache, and the logits of one token a row."""
    engine: Any = scenario.engine
    if engine.type == "fake":
        return ()
    width = _WIDTH[engine.precision]
    rows = min(engine.max_batch, max(scenario.rollout_batch_size, scenario.evaluation.prompts))
    own = shape.runs_on == "own" and engine.type == "native"
    table = shape.embedding_parameters if shape.tied and own else 0  # its output matrix has the last norm folded in
    weights = (shape.num_parameters + table) * width
    tokens = rows * (prompt + scenario.sampling.max_tokens)
    cache = tokens * shape.key_values_per_token * (4 if own else width)
    arrived = shape.num_parameters * _WIDTH[getattr(scenario.model, "dtype", "float32")]
    return tuple(
        amount
        for amount in (
            Amount("engine weights", weights),
            Amount("received weights", arrived if scenario.uses_ray else 0),
            Amount("key/value cache", cache),
            Amount("new engine weights", weights if own else 0, "loading"),
            Amount("sampling logits", rows * shape.vocab_size * 4 * SAMPLING_COPIES, "sampling"),
        )
        if amount.num_bytes
    )


def stored_weights(scenario: Scenario, shape: Shape | None) -> int:
    """Return the bytes of weights that Ray's object store holds at a time for this scenario.

    Args:
        scenario: the resolved scenario; also a transport sweep.
        shape: of its model; None where that is not known, which counts as nothing.
    """
    sweep = scenario.transport_sweep
    if not any(kind.startswith("object_store") for kind in (sweep.transports if sweep else [scenario.transport.type])):
        return 0
    if sweep:
        return round(_PUBLISHED_COPIES * max(sweep.megabytes) * 1e6)
    width = _WIDTH[getattr(scenario.model, "dtype", "float32")]
    return _PUBLISHED_COPIES * shape.num_parameters * width if shape else 0


def _published(scenario: Scenario) -> int:
    """Copies of the weights that wait to be loaded; colocated parts of one process share the weights themselves."""
    if not scenario.uses_ray and scenario.placement.colocated:
        return 0
    return _PUBLISHED_COPIES


def _libraries(num_bytes: int) -> Amount:
    return Amount("Python and its libraries", num_bytes)


def _engine_bytes(scenario: Scenario) -> int:
    return VLLM_BYTES if scenario.engine.type == "vllm" else 0


def _cuda() -> Amount:
    return Amount("CUDA", CUDA_BYTES)
