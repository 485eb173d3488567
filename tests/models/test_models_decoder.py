"""The own language model against transformers' Llama, Mistral, Qwen2 and Qwen3 on the same weights."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.models.config import PRESETS, ModelConfig, RopeScaling
from harness.models.decoder import DecoderLM
from harness.models.layers import attention, bias_from
from harness.models.published import PUBLISHED

SHAPE = ModelConfig(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    max_position_embeddings=64,
    rope_theta=500.0,
    rms_norm_eps=1e-5,
)
SHAPES = {
    "grouped, tied": SHAPE,
    "one key head for each query head": dataclasses.replace(SHAPE, num_key_value_heads=6),
    "one key head for all": dataclasses.replace(SHAPE, num_key_value_heads=1),
    "mistral": dataclasses.replace(SHAPE, model_type="mistral", tie_word_embeddings=False),
    "qwen2, untied": dataclasses.replace(SHAPE, model_type="qwen2", tie_word_embeddings=False),
    "qwen3, tied": dataclasses.replace(SHAPE, model_type="qwen3"),
    # wavelengths from 6 to 2,200 tokens of a first context of 16: below, between and above both bounds
    "llama 3.1": dataclasses.replace(SHAPE, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 16)),
    "qwen2, positions divided": dataclasses.replace(SHAPE, model_type="qwen2", rope_scaling=RopeScaling("linear", 4.0)),
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def own_model(shape, std=0.3):
    """Weights large enough that attention is far from uniform and logits far from 0."""
    model = DecoderLM(shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(float(parameter.dim() == 1), std, generator=seeded(parameter.numel()))
    return model


def of_transformers(shape):
    """transformers' model of this shape, with weights of its own."""
    values = {name: value for name, value in shape.to_hf().items() if name != "model_type"}
    config = AutoConfig.for_model(shape.model_type, **values)
    return AutoModelForCausalLM.from_config(config, trust_remote_code=False).eval()


def as_theirs(model):
    theirs = of_transformers(model.config)
    result = theirs.load_state_dict(model.state_dict(), strict=False)
    assert result.unexpected_keys == []
    assert result.missing_keys == (["lm_head.weight"] if model.config.tie_word_embeddings else [])
    return theirs


# float32 rounds logits of 8 to 1e-6, and kernels of one CPU differ from those of another by some of these
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_of_whole_and_padded_rows_equal_those_of_transformers(shape):
    model = own_model(shape)
    theirs = as_theirs(model)
    ids, columns = torch.randint(97, (3, 17), generator=seeded()), torch.arange(17)
    lengths = torch.tensor([[17], [5], [1]])
    for mask in (columns < lengths, columns >= 17 - lengths):
        logits = model(ids, mask.long()).logits
        assert logits.isfinite().all()
        expected = theirs(ids, attention_mask=mask.long()).logits
        torch.testing.assert_close(logits[mask], expected[mask], rtol=0, atol=4e-5)
    expected = theirs.double()(ids).logits
    assert expected.std() > 1  # far from 0, so that the tolerance means something
    torch.testing.assert_close(model.double()(ids).logits, expected, rtol=0, atol=1e-5)


def test_parameters_have_the_names_shapes_and_number_of_transformers():
    published = {name: ModelConfig.from_hf({**config, "num_hidden_layers": 2}) for name, config in PUBLISHED.items()}
    for kind, shape in {**PRESETS, **published, **SHAPES}.items():
        with torch.device("meta"):
            model, theirs = DecoderLM(shape, seed=None), of_transformers(shape)
        own = {key: tuple(value.shape) for key, value in model.named_parameters()}
        assert own == {key: tuple(value.shape) for key, value in theirs.named_parameters()}, kind
        assert sum(value.numel() for value in model.parameters()) == shape.num_parameters, kind


def test_logits_far_beyond_the_first_context_equal_those_of_transformers():
    model = own_model(dataclasses.replace(SHAPES["llama 3.1"], max_position_embeddings=4096))
    ids = torch.randint(97, (1, 2000), generator=seeded())
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, as_theirs(model)(ids).logits, rtol=1e-5, atol=5e-5)


def test_a_seed_gives_the_same_weights_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    first, same, other = DecoderLM(SHAPE, seed=1), DecoderLM(SHAPE, seed=1), DecoderLM(SHAPE, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, same.state_dict()[name]), name
        assert weight.dim() == 1 or not torch.equal(weight, other.state_dict()[name]), name
    gate = first.model.layers[0].mlp.gate_proj.weight
    assert gate.std().item() == pytest.approx(0.02, rel=0.05)  # 3,840 draws: relative error 1 / sqrt(2 * 3840) = 1.1%
    for kind in ("qwen2, untied", "qwen3, tied"):  # biases start at 0, gains at 1
        rows = {name: weight for name, weight in DecoderLM(SHAPES[kind]).state_dict().items() if weight.dim() == 1}
        assert all(torch.equal(row, torch.full_like(row, not name.endswith("bias"))) for name, row in rows.items())
        assert any(name.endswith(("bias", "q_norm.weight")) for name in rows)


def test_both_attention_kernels_agree_with_gradients():
    q, k, v = (torch.randn(2, 5, heads, 8, generator=seeded(heads)).requires_grad_() for heads in (6, 3, 3))
    allowed = (torch.rand(2, 5, 5, generator=seeded()) > 0.5) | torch.eye(5, dtype=torch.bool)
    for bias in (bias_from(allowed), None):
        plain = attention(q, k, v, bias)
        fused = attention(q, k, v, bias, max_scores=0)
        torch.testing.assert_close(plain, fused, rtol=1e-5, atol=1e-5)
        gradients = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (plain, fused)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
