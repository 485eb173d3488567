"""The engine's copy of the weights: names, shapes, and what is folded into what."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from harness.engines.weights import build_weights, check_names_and_shapes
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM

TINY = PRESETS["tiny"]
CPU = torch.device("cpu")


def test_problems_are_named_and_counted():
    shapes = {"a": (2,), "b": (3, 4)}
    check_names_and_shapes({"a": torch.zeros(2), "b": torch.zeros(3, 4)}, shapes, {"c": (1,)})
    check_names_and_shapes({"a": torch.zeros(2), "b": torch.zeros(3, 4), "c": torch.zeros(1)}, shapes, {"c": (1,)})
    message = r"b is missing; a has shape \(3,\), must be \(2,\); d is unknown$"
    with pytest.raises(ValueError, match=message):
        check_names_and_shapes({"a": torch.zeros(3), "d": torch.zeros(1)}, shapes, {"c": (1,)})
    with pytest.raises(ValueError, match=r"x4 is unknown; and 5 more$"):
        check_names_and_shapes({f"x{i}": torch.zeros(1) for i in range(10)}, {}, {})


def test_a_tied_output_projection_must_equal_the_embeddings():
    state = DecoderLM(TINY).state_dict()
    embedding = state["model.embed_tokens.weight"]
    build_weights({**state, "lm_head.weight": embedding.clone()}, TINY, torch.float32, CPU)
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from the tied model\.embed_tokens\.weight"):
        build_weights({**state, "lm_head.weight": embedding + 1}, TINY, torch.float32, CPU)


def test_the_copy_has_the_precision_asked_for_and_shares_nothing():
    config = dataclasses.replace(TINY, tie_word_embeddings=False)
    state = DecoderLM(config).state_dict()
    built = build_weights(state, config, torch.bfloat16, CPU)
    x = torch.randn(2, config.hidden_size, generator=torch.Generator().manual_seed(0)).bfloat16()
    before = [built.embedding.clone(), built.head(x), built.layers[1].o(x), built.layers[0].qkv(x)]
    assert {tensor.dtype for tensor in before} == {torch.bfloat16}
    for tensor in state.values():
        tensor.zero_()
    after = [built.embedding, built.head(x), built.layers[1].o(x), built.layers[0].qkv(x)]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert all(tensor.abs().sum() > 0 for tensor in before)
