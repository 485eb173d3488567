"""What a Generator holds, its engine's workers, and what else a vLLM finds on its GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.engines.vllm_options import MOST_CACHE_BYTES, WORKSPACE_BYTES, Neighbours, cache_of
from harness.models.config import ModelConfig
from harness.run.memory.amounts import COMPILED, COMPILED_BYTES, CUDA_BYTES, RUNNING, SAMPLING, WIDTH, Amount, Phase
from harness.run.memory.learner import gives_back, learner_amounts, present
from harness.scenario.derived import in_shards, places_of_colocated, workers_of
from harness.scenario.schema import Scenario

PROMPT_TOKENS = {"keywords": 48, "arithmetic": 48}
"""Tokens assumed for the longest prompt of a task, with any tokenizer; others get ``LONG_PROMPT_TOKENS``. The presets'
own tokenizers have a token for each word: 13 for two keywords, 17 for four."""
LONG_PROMPT_TOKENS = 256
CACHE = "key/value cache"
SAMPLING_COPIES = 4
"""Float32 tensors of (rows, vocabulary) while a token is drawn: logits, probabilities, their sums, and a spare one."""


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


def in_main_memory(scenario: Scenario, shape: ModelConfig, on_gpu: bool) -> tuple[Amount, ...]:
    """What a Generator has in main memory wherever it computes: weights for other workers, or of an engine asleep."""
    weights = shape.num_parameters * WIDTH[getattr(scenario.model, "dtype", "float32")]
    asleep = shape.num_parameters * WIDTH[getattr(scenario.engine, "precision", "float32")]
    return present(
        (
            Amount("weights for the workers", weights if workers_of(scenario) > 1 else 0, ("loading",)),
            Amount("engine weights, asleep", asleep if sleeps(scenario, on_gpu) else 0),
        )
    )


def generator_amounts(
    scenario: Scenario, shape: ModelConfig, prompt: int, on_gpu: bool
) -> tuple[tuple[Amount, ...], tuple[Amount, ...]]:
    """Return what a Generator holds of its own, and what its engine does: weights, cache, logits.

    Of an engine of several workers, what each of them holds: weights and cache are cut alike.
    """
    engine: Any = scenario.engine
    width, workers = WIDTH[engine.precision], workers_of(scenario)
    awake = SAMPLING if sleeps(scenario, on_gpu) else RUNNING
    rows = min(engine.max_batch, max(scenario.rollout_batch_size, scenario.evaluation.prompts))
    own = shape.runs_on == "own" and engine.type == "native"
    has_both = shape.tie_word_embeddings and own  # the output matrix of its own has the last norm folded in
    table = shape.embedding_parameters if has_both else 0
    weights = (shape.num_parameters + table) * width // workers
    cache_width = WIDTH[engine.kv_cache] if own else width
    cache = Amount(
        CACHE,
        rows * (prompt + scenario.sampling.max_tokens) * shape.key_values_per_token * cache_width,
    )
    logits = Amount("sampling logits", rows * shape.vocab_size * 4 * SAMPLING_COPIES, ("sampling",))
    if engine.type == "vllm":
        cache = replace(_vllm_cache(engine, shape, width, on_gpu), phases=awake)
        logits = Amount("vLLM's workspace", WORKSPACE_BYTES) if on_gpu else logits
    of_workers = (
        Amount("engine weights", weights, awake),
        cache,
        Amount("new engine weights", weights if own else 0, ("loading",)),
        logits,
        Amount(COMPILED, 0 if on_gpu or engine.type != "native" or width == 2 else COMPILED_BYTES["generator"]),
    )
    return present([Amount("received weights", _received(scenario, shape, on_gpu))]), present(of_workers)


def vllm_share(scenario: Scenario) -> float | None:
    """Return the share of its GPU's memory that vLLM is told to take; None where the scenario names none."""
    share: float | None = getattr(scenario.engine, "gpu_memory_utilization", None)
    return share


def _vllm_cache(engine: Any, shape: ModelConfig, width: int, on_gpu: bool) -> Amount:
    """What vLLM reserves for keys and values: on a GPU room for one row, and more as far as there is any."""
    cache = cache_of(engine, shape.key_values_per_token * width, engine.context or shape.max_position_embeddings)
    if not on_gpu:
        return Amount(CACHE, cache.num_bytes(MOST_CACHE_BYTES // engine.tensor_parallel))
    least = cache.num_bytes(0)
    return Amount(CACHE, least, more=cache.num_bytes(None) - least)


def beside_vllm(scenario: Scenario, shape: ModelConfig | None) -> Neighbours:
    """Return what a Generator's GPU may have to hold beside its vLLM.

    Parts of actors share a GPU where colocated, and may where the shares that they reserve leave room for each other.
    Other arms and other programs are not counted.

    Args:
        scenario: of one run on a GPU.
        shape: of its model; None, where that is not known, counts vLLMs only.
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
        prompt = longest_prompt(scenario, shape)
        shares_time = sleeps(scenario, on_gpu=True) and gives_back(scenario)
        beside: tuple[Phase, ...] = SAMPLING if shares_time else RUNNING
        amounts = learner_amounts(scenario, shape, prompt, True)
        num_bytes += sum(amount.num_bytes for amount in amounts if set(amount.phases) & set(beside))
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
