"""Bytes kept for the way back: by hand, and against the tensors that autograd really keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from harness.models.config import PRESETS, ModelConfig, TransformersConfig, sizes_from_hf
from harness.models.decoder import DecoderLM, checkpoint_layers
from harness.models.limits import MAX_LOGITS, MAX_SCORES, PIECE_LOGITS
from harness.models.policy import policy_log_probs
from harness.models.published import PUBLIC_SHAPES
from harness.run.memory.activations import Batch, kept_bytes, layer_bytes, logit_bytes
from tests.models.batches import padded_response_log_probs

QWEN = PUBLIC_SHAPES["qwen2.5-math-1.5b"]
NARROW = {**QWEN, "hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 6, "vocab_size": 300}
LENGTHS, GROUP, RESPONSE = (20, 12), 4, 33
BATCH = Batch(rows=8, prompts=2, prompt=20, response=33)


def shape(config: dict[str, object]) -> ModelConfig:
    found = sizes_from_hf(config)
    assert found is not None
    return found


def of_transformers(config: dict[str, object]) -> ModelConfig:
    return TransformersConfig(**dataclasses.asdict(shape(config)))


def qwen(layers: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    values = {key: value for key, value in NARROW.items() if key not in ("model_type", "architectures")}
    return Qwen2ForCausalLM(Qwen2Config(**{**values, "num_hidden_layers": layers})).to(dtype).eval()


def own(layers: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    return DecoderLM(dataclasses.replace(PRESETS["small"], num_hidden_layers=layers)).to(dtype)


def own_qwen2(layers: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    return DecoderLM(dataclasses.replace(ModelConfig.from_hf(NARROW), num_hidden_layers=layers)).to(dtype)


def own_qwen3(layers: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    return DecoderLM(dataclasses.replace(PRESETS["small"], num_hidden_layers=layers, model_type="qwen3")).to(dtype)


def bytes_kept(model: nn.Module, autocast: bool, *, padded: bool = False) -> int:
    """Bytes of the distinct tensors that autograd keeps of a forward pass, weights left out.

    ``padded``: of transformers' rows that share no prompt, which the plan counts.
    """
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(2, 300, (2, max(LENGTHS)), generator=generator)
    responses = torch.randint(2, 300, (2 * GROUP, RESPONSE), generator=generator)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), torch.autocast("cpu", enabled=autocast):
        (padded_response_log_probs if padded else policy_log_probs)(
            model,
            prompts,
            torch.tensor(LENGTHS),
            responses,
            torch.ones_like(responses, dtype=torch.bool),
            torch.arange(2).repeat_interleave(GROUP),
            with_entropy=True,
        )
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def test_a_token_of_the_public_model_by_hand() -> None:
    # float32: 4 x (6 x 1536 + 4 x 1536 + 4 x 8960) = 4 x 51,200 bytes a token and layer
    one = Batch(rows=1, prompts=1, prompt=1, response=1)
    assert layer_bytes(of_transformers(QWEN), one, 4, autocast=False) == 204_800
    # under autocast: 16 x 1536 + 2 x (5 x 1536 + 4 x 1536 + 4 x 8960) = 24,576 + 99,328
    assert layer_bytes(of_transformers(QWEN), one, 4, autocast=True) == 123_904
    # bfloat16 weights: 16 x 1536 + 2 x (4 x 1536 + 4 x 8960) = 24,576 + 83,968
    assert layer_bytes(of_transformers(QWEN), one, 2, autocast=False) == 108_544


def test_tokens_of_a_batch() -> None:
    assert BATCH.tokens(of_transformers(NARROW)) == 8 * (20 + 32)
    assert BATCH.tokens(PRESETS["small"]) == 2 * 20 + 8 * 32


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)]
)
@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (qwen, of_transformers(NARROW)),
        (own, PRESETS["small"]),
        (own_qwen2, shape(NARROW)),
        (own_qwen3, dataclasses.replace(PRESETS["small"], model_type="qwen3")),
    ],
    ids=["transformers' qwen2", "own llama", "own qwen2", "own qwen3"],
)
def test_a_layer_keeps_what_is_planned(
    make: Callable[..., nn.Module], sizes: ModelConfig, dtype: torch.dtype, autocast: bool
) -> None:
    """The second layer's share of what autograd keeps, against the plan, to within a tenth; autocast's casts apart."""
    two, one = (bytes_kept(make(layers, dtype), autocast, padded=make is qwen) for layers in (2, 1))
    real = two - one
    planned = layer_bytes(sizes, BATCH, dtype.itemsize, autocast)
    if autocast:  # a narrow copy of each matrix
        vectors = 2 * sizes.hidden_size
        vectors += (
            sizes.query_size + 2 * sizes.key_size
        ) * sizes.attention_bias + 2 * sizes.head_dim * sizes.head_norms
        planned += 2 * (sizes.layer_parameters - vectors)
    assert planned == pytest.approx(real, rel=0.1)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)]
)
def test_rows_that_share_a_prompt_keep_less_than_is_planned(
    dtype: torch.dtype, autocast: bool, checkpointing: bool
) -> None:
    """Masks included: less in all layers than rows that share none, which the plan counts."""
    shared, padded = qwen(2, dtype), qwen(2, dtype)
    if checkpointing:
        for model in (shared, padded):
            checkpoint_layers(model)
    assert bytes_kept(shared, autocast) < 0.9 * bytes_kept(padded, autocast, padded=True)


@pytest.mark.parametrize("make", [qwen, own], ids=["qwen2", "own"])
def test_checkpointing_keeps_the_inputs_of_layers(make: Callable[..., nn.Module]) -> None:
    three, two = make(3), make(2)
    for model in (three, two):
        checkpoint_layers(model)
    tokens, width = (BATCH.tokens(of_transformers(NARROW)), 384) if make is qwen else (sum(LENGTHS) + 8 * 32, 256)
    real, other = (bytes_kept(model, autocast=False, padded=make is qwen) for model in (three, two))
    real -= other
    assert real == pytest.approx(tokens * width * 4, rel=0.01)
    planned = [
        kept_bytes(dataclasses.replace(of_transformers(NARROW), num_hidden_layers=layers), BATCH, 4, False, True)
        for layers in (2, 3)
    ]
    assert planned[1] - planned[0] == BATCH.tokens(of_transformers(NARROW)) * 384 * 4


def test_logits_are_bounded_by_what_is_kept_and_one_piece() -> None:
    many = Batch(rows=4, prompts=1, prompt=64, response=1024)
    kept, piece = MAX_LOGITS["cpu"] // 151936, PIECE_LOGITS["cpu"] // 151936
    assert (kept, piece) == (883, 220)  # of the 4,096 tokens
    assert logit_bytes(shape(QWEN), many, 4, autocast=False) == (883 + 220) * 151936 * 4
    assert logit_bytes(shape(QWEN), many, 4, autocast=False, on_gpu=True) == (1766 + 1766) * 151936 * 4
    few = Batch(rows=1, prompts=1, prompt=64, response=100)
    assert logit_bytes(shape(QWEN), few, 4, autocast=True) == 100 * 151936 * (4 + 4 + 2)


def test_own_attention_keeps_scores_only_where_rows_and_keys_are_few() -> None:
    def padded(batch: Batch) -> int:  # what is kept of rows, beside that of packed tokens
        packed = layer_bytes(few, dataclasses.replace(batch, rows=0, prompts=1, prompt=batch.tokens(few)), 4, False)
        return layer_bytes(few, batch, 4, False) - packed

    few = PRESETS["small"]  # 8 heads of 32, 4 of keys: scores are kept up to 64 keys
    assert padded(Batch(1, 1, 1, 64)) == 4 * (256 * 63 + 2 * 128 * 64 + 8 * 63 * 64)
    assert padded(Batch(1, 1, 2, 64)) == 4 * (2 * 256 * 63 + 2 * 256 * 65)
    rows = MAX_SCORES // (8 * 63 * 64)
    assert padded(Batch(rows, 1, 1, 64)) == rows * padded(Batch(1, 1, 1, 64))
    assert padded(Batch(rows + 1, 1, 1, 64)) == (rows + 1) * 4 * (2 * 256 * 63 + 2 * 256 * 64)
