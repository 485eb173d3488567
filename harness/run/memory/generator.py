"""What a Generator holds, its engine's workers, and what else a vLLM finds on its GPU."""

from __future__ import annotations

from typing import Any

from harness.engines.vllm_options import MOST_CACHE_BYTES, WORKSPACE_BYTES, Neighbours, cache_of
from harness.models.config import ModelConfig
from harness.run.memory.learner import COMPILED, COMPILED_BYTES, gives_back, learner_amounts
from harness.run.memory.table import CACHE, RUNNING, SAMPLING, WIDTH, Amount, present
from harness.scenario.derived import in_shards, places_of_colocated, workers_of
from harness.scenario.schema import Scenario

PROMPT_TOKENS = {"keywords": 48, "arithmetic": 48}
"""Tokens assumed for the longest prompt of a task, with any tokenizer; others get ``LONG_PROMPT_TOKENS``. The presets'
own tokenizers have a token for each word: 13 for two keywords, 17 for four."""
LONG_PROMPT_TOKENS = 256
SAMPLING_COPIES = 4
"""Float32 tensors of (rows, vocabulary) while a token is drawn: logits, probabilities, their sums, and a spare one."""
CUDA_BYTES = 2**29
"""A CUDA context and its kernels. Not measured here: the size usually seen on recent GPUs."""


def longest_prompt(scenario: Scenario, shape: ModelConfig, counted: int | None = None) -> int:
    """Tokens that the longest prompt is taken to have: as counted, else assumed for the task; the response must fit."""
    task: Any = scenario.task
    assumed = counted or PROMPT_TOKENS.get(task.type, LONG_PROMPT_TOKENS)
    if counted is None and task.type == "keywords" and scenario.model.type == "preset":
        assumed = 9 + 2 * task.keywords_per_prompt
    return max(1, min(assumed, shape.max_position_embeddings - scenario.sampling.max_tokens))


def sleeps(scenario: Scenario, on_gpu: bool) -> bool:
    """Whether a vLLM gives the GPU's memory back while the Learner trains; on a CPU it cannot."""
    return scenario.engine.type == "vllm" and scenario.placement.colocated and on_gpu


def generator_amounts(
    scenario: Scenario, shape: ModelConfig, prompt: int, on_gpu: bool
) -> tuple[tuple[Amount, ...], tuple[Amount, ...], tuple[Amount, ...]]:
    """Return what a Generator holds of its own, what its engine does, and what is in main memory in any case.

    Of an engine of several workers, what each of them holds: weights and cache are cut alike. In main memory are
    weights for other workers, or those of an engine asleep.
    """
    engine: Any = scenario.engine
    width, workers, asleep = WIDTH[engine.precision], workers_of(scenario), sleeps(scenario, on_gpu)
    awake = SAMPLING if asleep else RUNNING
    rows = min(engine.max_batch, max(scenario.rollout_batch_size, scenario.evaluation.prompts))
    own = shape.runs_on == "own" and engine.type == "native"
    has_both = shape.tie_word_embeddings and own  # the output matrix of its own has the last norm folded in
    weights = (shape.num_parameters + (shape.embedding_parameters if has_both else 0)) * width // workers
    row = (prompt + scenario.sampling.max_tokens) * shape.key_values_per_token
    cache = Amount(CACHE, rows * row * (WIDTH[engine.kv_cache] if own else width))
    logits = Amount("sampling logits", rows * shape.vocab_size * 4 * SAMPLING_COPIES, ("sampling",))
    if engine.type == "vllm":
        of_vllm = cache_of(engine, shape.key_values_per_token * width, engine.context or shape.max_position_embeddings)
        # on a GPU room for one row, and more as far as there is any
        least = of_vllm.num_bytes(0 if on_gpu else MOST_CACHE_BYTES // engine.tensor_parallel)
        cache = Amount(CACHE, least, awake, more=of_vllm.num_bytes(None) - least if on_gpu else 0)
        logits = Amount("vLLM's workspace", WORKSPACE_BYTES) if on_gpu else logits
    compiled = 0 if on_gpu or engine.type != "native" or width == 2 else COMPILED_BYTES["generator"]
    of_engine = (
        Amount("engine weights", weights, awake),
        cache,
        Amount("new engine weights", weights if own else 0, ("loading",)),
        logits,
        Amount(COMPILED, compiled),
    )
    to_workers = shape.num_parameters * WIDTH[getattr(scenario.model, "dtype", "float32")] if workers > 1 else 0
    in_main = (
        Amount("weights for the workers", to_workers, ("loading",)),
        Amount("engine weights, asleep", shape.num_parameters * width if asleep else 0),
    )
    received = Amount("received weights", _received(scenario, shape, on_gpu))
    return present([received]), present(of_engine), present(in_main)


def beside_vllm(scenario: Scenario, shape: ModelConfig | None) -> Neighbours:
    """Return what a Generator's GPU may have to hold beside its vLLM; without the model's shape vLLMs only are counted.

    Parts of actors share a GPU where colocated, and may where the shares that they reserve leave room for each other.
    Other arms and other programs are not counted.
    """
    placement = scenario.placement
    learner, share, count = placement.learner.gpus, placement.generator.gpus, placement.generator.count
    together = not scenario.uses_ray or placement.colocated
    engines = -(-count // places_of_colocated(scenario)) if together else min(count, max(1, int(1 / share + 1e-9)))
    if shape is None:
        return Neighbours(0, engines)
    num_bytes = engines * (_received(scenario, shape, True) + CUDA_BYTES)
    num_bytes += CUDA_BYTES if workers_of(scenario) > 1 else 0  # the Generator's own, beside its first worker's
    on_gpu = scenario.device_of(placement.learner, has_gpu=True) == "cuda"
    if on_gpu and (together or learner + share <= 1 + 1e-9):
        beside = set(SAMPLING if sleeps(scenario, on_gpu=True) and gives_back(scenario) else RUNNING)
        amounts, _ = learner_amounts(scenario, shape, longest_prompt(scenario, shape), True)
        num_bytes += sum(amount.num_bytes for amount in amounts if set(amount.phases) & beside)
        num_bytes += CUDA_BYTES if scenario.uses_ray else 0
    return Neighbours(num_bytes, engines)


def _received(scenario: Scenario, shape: ModelConfig, on_gpu: bool) -> int:
    """Bytes of the weights that lie in a Generator's process beside its engine's.

    One process has them already, and main memory that is shared holds them once, as the Learner's. Of a broadcast a
    Generator keeps every version that it may yet load, and the pieces of several ranks are put together apart.
    """
    if not scenario.uses_ray or (scenario.transport.type == "shared_memory" and not on_gpu):
        return 0
    copies = scenario.max_lag + 2 + in_shards(scenario) if scenario.transport.type == "broadcast" else 1
    return copies * shape.num_parameters * WIDTH[scenario.travel_dtype]
