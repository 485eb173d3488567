"""What samples the rollouts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.settings.base import (
    BY_COLON,
    BY_TYPE,
    OF_HARNESS,
    OF_PLUGIN,
    AtLeast1,
    Fraction,
    Parts,
    PluginName,
    PluginOptions,
    Positive,
    Precision,
    SecondsOr0,
    Settings,
)


class NativeEngineSettings(Settings):
    """The project's own sampling engine."""

    type: Literal["native"] = "native"
    """The project's own engine."""
    precision: Precision = "float32"
    """Sampling arithmetic."""
    kv_cache: Literal["float32", "bfloat16"] = "float32"
    """Precision of cached keys and values; bfloat16 halves their memory and moves log-probs a little."""
    max_batch: AtLeast1 = 256
    """How many responses are decoded together at most."""
    mismatch_bound: Positive | None = None
    """Largest gap between engine and Learner log-probs after a weight sync, else the run stops; null: not measured."""


class PacedEngineSettings(Settings):
    """An engine that sleeps instead of sampling; needs `model.type: paced`."""

    type: Literal["paced"] = "paced"
    """Sleeps instead of sampling; the weights it loads are copied into its own tensors."""
    generate_s: SecondsOr0 = 0.5
    """Seconds of one batch; several Generators divide it."""
    spread: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """How far the seconds of one batch may differ from that, as a fraction; drawn from the seed."""


class ServingEngineSettings(Settings):
    """What engines of other makers have in common."""

    precision: Precision = "float32"
    """Sampling arithmetic."""
    max_batch: AtLeast1 = 256
    """How many responses are decoded together at most."""
    mismatch_bound: Positive | None = None
    """Largest gap between engine and Learner log-probs after a weight sync; null: 1e-4 in float32, else 0.5."""


class VllmEngineSettings(ServingEngineSettings):
    """vLLM, in the Generator's process."""

    type: Literal["vllm"] = "vllm"
    """vLLM, an optional part of the installation."""
    tensor_parallel: Parts = 1
    """Workers that split each layer's matrices and key/value heads; more than 1 are processes with a GPU each."""
    context: AtLeast1 | None = None
    """Most tokens of a prompt and its response; null: the model's own limit. Less needs less memory."""
    kv_cache_gib: Positive | None = None
    """GiB for keys and values; null: what max_batch full responses need, at most 4, or half a GPU's free memory."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of a GPU's whole memory that vLLM takes; the rest of it goes to keys and values. Not with kv_cache_gib."""


class SglangEngineSettings(ServingEngineSettings):
    """SGLang."""

    type: Literal["sglang"] = "sglang"
    """SGLang; it must be installed separately."""
    memory_fraction: Fraction = 0.4
    """Share of the GPU's memory that SGLang takes for weights, keys and values."""


class PluginEngineSettings(ServingEngineSettings):
    """An engine of your own: a class that samples with the weights it is given, see docs/extending.md."""

    type: PluginName
    """Your class as `package.module:Name`."""
    options: PluginOptions = Field(default_factory=dict)
    """Keyword arguments of the class, in addition to those that every engine gets."""
    mismatch_bound: Positive | None = None
    """Largest gap between engine and Learner log-probs after a weight sync, else the run stops; null: not measured."""


EngineSettings = Annotated[
    Annotated[
        NativeEngineSettings | PacedEngineSettings | VllmEngineSettings | SglangEngineSettings,
        BY_TYPE,
        OF_HARNESS,
    ]
    | Annotated[PluginEngineSettings, OF_PLUGIN],
    BY_COLON,
]
