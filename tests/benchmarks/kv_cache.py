"""A key/value cache in bfloat16 against one in float32: how far log-probabilities move, and what it costs.

The warm-started `small` preset samples 8 prompts x 8 responses of 32 forced tokens with a cache in float32; all engines
then score these tokens. Differences are against the float32 engine with its float32 cache. Speed: seconds of sampling
the same request, medians of rounds in turns.

    OMP_NUM_THREADS=1 python tests/benchmarks/kv_cache.py --rounds 7
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from harness.core.types import SamplingParams
from harness.engines.native import CachePrecision, NativeEngine, Precision, native_engine
from harness.learner.warm_start import warm_start_policy
from harness.tasks.keywords import KeywordTask

SAMPLES, TOKENS = 8, 32
KINDS: tuple[tuple[Precision, CachePrecision], ...] = (
    ("float32", "float32"),
    ("float32", "bfloat16"),
    ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="Compare key/value caches in float32 and bfloat16.",
        epilog="example:\n  OMP_NUM_THREADS=1 python tests/benchmarks/kv_cache.py --rounds 3",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds, after one that warms up")
    rounds: int = parser.parse_args().rounds
    model, tokenizer, _ = warm_start_policy("small", 0)
    prompts = [tokenizer.encode(prompt.text) for prompt in KeywordTask().train_prompts[:8]]
    engines = {
        (precision, cache): native_engine(model, tokenizer, precision=precision, kv_cache=cache)
        for precision, cache in KINDS
    }
    sampling = SamplingParams(min_tokens=TOKENS, max_tokens=TOKENS)
    sampled = engines[KINDS[0]].generate(prompts, SAMPLES, sampling, 0)
    rows = [(prompt, one.token_ids.tolist()) for prompt, group in zip(prompts, sampled, strict=True) for one in group]
    scores, seconds = {}, {kind: list[float]() for kind in engines}
    for kind, engine in engines.items():
        assert isinstance(engine, NativeEngine)
        scores[kind] = np.concatenate(engine.score(*zip(*rows, strict=True)))
    for _ in range(rounds + 1):
        for kind, engine in engines.items():
            begin = time.process_time()
            engine.generate(prompts, SAMPLES, sampling, 0)
            seconds[kind].append(time.process_time() - begin)
    print("| weights | cache | log-probs, mean difference | largest | tokens/s |\n|---|---|---|---|---|")
    for (precision, cache), found in scores.items():
        gaps = np.abs(found - scores[KINDS[0]])
        rate = len(rows) * TOKENS / statistics.median(seconds[precision, cache][1:])
        print(f"| {precision} | {cache} | {gaps.mean():.2g} | {gaps.max():.2g} | {rate:,.0f} |")


if __name__ == "__main__":
    main()
