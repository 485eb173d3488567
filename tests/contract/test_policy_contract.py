"""Every policy is held to ``harness.testing``, whichever model stands behind it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.storage import save_policy
from harness.models.tokenizer import train_tokenizer
from harness.testing import PolicyContract

TOKENIZER = train_tokenizer(["Write a sentence that includes the words: apple, red."], 280)
SHAPE = dataclasses.replace(PRESETS["tiny"], vocab_size=len(TOKENIZER), hidden_size=64, intermediate_size=96)
ENDS = {"bos_token_id": None, "eos_token_id": TOKENIZER.eos_token_id, "pad_token_id": TOKENIZER.pad_token_id}


def small_qwen():
    """Transformers' Qwen2, with more rows than its tokenizer has tokens.

    Whatever the folder says, transformers reads its tokenizer as Qwen's own class, which adds one token.
    """
    fields = {key: value for key, value in SHAPE.to_hf().items() if key not in ("architectures", "model_type")}
    return Qwen2ForCausalLM(Qwen2Config(**fields | ENDS | {"vocab_size": len(TOKENIZER) + 8}))


def windowed_qwen():
    """A Qwen2 that the own model refuses; the window is wider than any row of these tests."""
    fields = {key: value for key, value in SHAPE.to_hf().items() if key not in ("architectures", "model_type")}
    window = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}
    return Qwen2ForCausalLM(Qwen2Config(**fields | ENDS | window | {"vocab_size": len(TOKENIZER) + 8}))


def small_shape(model_type, **changes):
    return dataclasses.replace(SHAPE, model_type=model_type, vocab_size=len(TOKENIZER) + 8, **changes)


def small_llama(**changes):
    return LlamaForCausalLM(LlamaConfig.from_dict(SHAPE.to_hf() | ENDS | changes))


POLICIES = {
    "own": (lambda: DecoderLM(SHAPE), DecoderLM),
    "own, untied": (lambda: DecoderLM(dataclasses.replace(SHAPE, tie_word_embeddings=False)), DecoderLM),
    "llama": (small_llama, DecoderLM),
    "llama with biases": (lambda: small_llama(attention_bias=True), LlamaForCausalLM),
    "qwen2": (small_qwen, DecoderLM),
    "own qwen2": (lambda: DecoderLM(small_shape("qwen2")), DecoderLM),
    "own qwen3, untied": (lambda: DecoderLM(small_shape("qwen3", tie_word_embeddings=False)), DecoderLM),
    "qwen2 with a sliding window": (windowed_qwen, Qwen2ForCausalLM),
    "gpt2": (
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=len(TOKENIZER), n_embd=64, n_layer=2, n_head=4, **ENDS)),
        GPT2LMHeadModel,
    ),
}


@pytest.fixture(scope="module", params=POLICIES.values(), ids=POLICIES)
def saved(request, tmp_path_factory):
    """A folder with weights spread widely enough for logits far from uniform, and the class that must load it."""
    make, loaded_as = request.param
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    folder = tmp_path_factory.mktemp("policy")
    save_policy(model, TOKENIZER, folder)
    return folder, loaded_as


class TestPolicies(PolicyContract):
    """Each of them."""

    @pytest.fixture(autouse=True)
    def chosen(self, saved):
        self.folder, self.loaded_as = saved

    def test_loads_as_the_right_class(self, policy):
        model, tokenizer = policy
        assert type(model) is self.loaded_as
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id)
