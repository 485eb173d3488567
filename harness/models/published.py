"""The ``config.json`` of public models, in what decides their sizes. No torch."""

from __future__ import annotations

from typing import Any


def _qwen2(
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    key_value_heads: int,
    vocab: int,
    *,
    context: int,
    theta: float = 1000000.0,
    tied: bool = True,
) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "max_position_embeddings": context,
        "rope_theta": theta,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_sliding_window": False,
        "sliding_window": None,
        "use_cache": True,
    }


QWEN2_5_MATH_1_5B = _qwen2(1536, 8960, 28, 12, 2, 151936, context=4096, theta=10000.0)
"""https://huggingface.co/Qwen/Qwen2.5-Math-1.5B/blob/main/config.json, which litgpt's ``litgpt/config.py`` repeats (28
layers, 12 heads, 2 key/value groups, width 1536, 8960 inside the MLP, 151936 padded tokens, 4096 positions, rotary base
10000, eps 1e-6, biases on query, key and value). The published weights are 1,543,714,304 numbers."""
TINY_QWEN2 = _qwen2(96, 128, 4, 12, 2, 2000, context=512, theta=10000.0)
"""The same architecture with next to no weights, for trials and tests; nobody has published it."""
PUBLIC_SHAPES: dict[str, dict[str, Any]] = {"qwen2.5-math-1.5b": QWEN2_5_MATH_1_5B, "tiny-qwen2": TINY_QWEN2}
"""Name -> ``config.json``."""
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-0.5B": _qwen2(896, 4864, 24, 14, 2, 151936, context=32768),
    "Qwen/Qwen2.5-1.5B": _qwen2(1536, 8960, 28, 12, 2, 151936, context=131072),
    "Qwen/Qwen2.5-3B": _qwen2(2048, 11008, 36, 16, 2, 151936, context=32768),
    "Qwen/Qwen2.5-7B": _qwen2(3584, 18944, 28, 28, 4, 152064, context=131072, tied=False),
    "Qwen/Qwen2.5-14B": _qwen2(5120, 13824, 48, 40, 8, 152064, context=131072, tied=False),
    "Qwen/Qwen2.5-32B": _qwen2(5120, 27648, 64, 40, 8, 152064, context=131072, tied=False),
}
"""Name on the hub -> ``config.json`` in what decides its size, for plans and simulations of models that are not here:
https://huggingface.co/Qwen/Qwen2.5-7B/blob/main/config.json and its sisters, which litgpt's ``litgpt/config.py``
repeats."""
