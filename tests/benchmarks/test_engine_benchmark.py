"""Sampling with the native engine and with transformers' on the same weights: 8 prompts of 13 tokens, 8 responses each.

The small preset, 32 forced tokens, one thread. ``engines.py`` interleaves them with ``generate`` and knows the bound.
"""

from __future__ import annotations

import pytest
import torch

from harness.core.types import SamplingParams
from harness.engines.huggingface import HuggingFaceEngine
from harness.engines.native import native_engine
from harness.engines.rng import row_uniforms
from harness.engines.sampling import draw
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.tokenizer import train_tokenizer
from tests.benchmarks.engines import llama_of

PROMPTS, GROUP_SIZE, PROMPT_LENGTH, RESPONSE_LENGTH = 8, 8, 13, 32
CONFIG = PRESETS["small"]
FORCED = SamplingParams(min_tokens=RESPONSE_LENGTH, max_tokens=RESPONSE_LENGTH)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([""], 258)


def prompts():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(2, CONFIG.vocab_size, (PROMPTS, PROMPT_LENGTH), generator=generator).tolist()


@pytest.mark.benchmark(group="64 responses of 32 tokens")
@pytest.mark.parametrize(
    "kind", ["native float32", pytest.param("native bfloat16", marks=pytest.mark.slow), "transformers"]
)
def test_engines(benchmark, tokenizer, timed, kind):
    if kind == "transformers":
        engine = HuggingFaceEngine(llama_of(DecoderLM(CONFIG), tokenizer), tokenizer)
    else:
        engine = native_engine(DecoderLM(CONFIG), tokenizer, precision=kind.split()[1])
    asked = prompts()[: None if timed else 1]
    benchmark.pedantic(engine.generate, (asked, GROUP_SIZE, FORCED, 0), rounds=5, warmup_rounds=1)
    assert engine.last_stats.sampled_tokens == len(asked) * GROUP_SIZE * RESPONSE_LENGTH
    benchmark.extra_info["tokens"] = engine.last_stats.sampled_tokens


@pytest.mark.benchmark(group="loading weights")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_load_weights(benchmark, tokenizer, precision):
    model = DecoderLM(CONFIG)
    engine, weights = native_engine(model, tokenizer, precision=precision), model.state_dict()
    assert benchmark(engine.load_weights, weights) is None


@pytest.mark.benchmark(group="drawing 64 tokens of 1024")
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_draw(benchmark, top_p):
    logits = torch.randn(64, CONFIG.vocab_size, generator=torch.Generator().manual_seed(0))
    uniforms = torch.from_numpy(row_uniforms(0, [(0, sample) for sample in range(64)], 1)[0])
    tokens, _ = benchmark(lambda: draw(logits.clone(), SamplingParams(top_p=top_p), uniforms))
    assert tokens.shape == (64,)
