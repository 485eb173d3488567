"""The kinds of engine a scenario may name, and what may be written about each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.scenario.sections import AtLeast1, Fraction, NotNegative, Positive, Precision, Section


class NativeEngineSettings(Section):
    """The project's own sampling engine."""

    type: Literal["native"] = "native"
    """The project's own engine."""
    precision: Precision = "float32"
    """Sampling arithmetic."""
    max_batch: AtLeast1 = 256
    """How many responses are decoded together at most."""
    mismatch_bound: Positive | None = None
    """Largest gap between engine and Learner log-probs after a weight sync, else the run stops; null: not measured."""


class FakeEngineSettings(Section):
    """An engine that makes up tokens at once, for tests."""

    type: Literal["fake"] = "fake"
    """The engine of the tests."""


class PacedEngineSettings(Section):
    """An engine that sleeps instead of sampling; goes with `model.type: paced`."""

    type: Literal["paced"] = "paced"
    """Sleeps instead of sampling; the weights it loads are copied into its own tensors."""
    generate_s: NotNegative = 0.5
    """Seconds of one batch; several Generators share it out."""
    spread: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """How far the seconds of one batch may differ from that, as a fraction; drawn from the seed."""


class ServingEngineSettings(Section):
    """What engines of other makers have in common."""

    precision: Precision = "float32"
    """Sampling arithmetic."""
    max_batch: AtLeast1 = 256
    """How many responses are decoded together at most."""
    mismatch_bound: Positive | None = None
    """Largest gap between engine and Learner log-probs after a weight sync; null: 1e-4 in float32, 0.5 in bfloat16."""


class VllmEngineSettings(ServingEngineSettings):
    """vLLM, in the Generator's process."""

    type: Literal["vllm"] = "vllm"
    """vLLM; `make install-vllm` adds it."""
    context: AtLeast1 | None = None
    """Most tokens of a prompt and its response; null: what the model was made for. Less needs less memory."""
    kv_cache_gib: Positive | None = None
    """GiB for keys and values; null: what max_batch full responses need, at most 4, or half a GPU's room."""


class SglangEngineSettings(ServingEngineSettings):
    """SGLang, for machines with a GPU."""

    type: Literal["sglang"] = "sglang"
    """SGLang; it has to be installed by hand."""
    memory_fraction: Fraction = 0.4
    """Share of the GPU's memory that SGLang takes for weights, keys and values."""
