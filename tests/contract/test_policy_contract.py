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
from tests.models.batches import spread

TOKENIZER = train_tokenizer(["Write a sentence that includes the words: apple, red."], 280)
SHAPE = dataclasses.replace(PRESETS["tiny"], vocab_size=len(TOKENIZER), hidden_size=64, intermediate_size=96)
ENDS = {"bos_token_id": None, "eos_token_id": TOKENIZER.eos_token_id, "pad_token_id": TOKENIZER.pad_token_id}


FIELDS = {key: value for key, value in SHAPE.to_hf().items() if key not in ("architectures", "model_type")}


def small_qwen():
    """Transformers' Qwen2, with more rows than its tokenizer has tokens.

    Whatever the folder says, transformers reads its tokenizer as Qwen's own class, which adds one token.
    """
    return Qwen2ForCausalLM(Qwen2Config(**FIELDS | ENDS | {"vocab_size": len(TOKENIZER) + 8}))


def own_qwen3():
    changes = {"model_type": "qwen3", "vocab_size": len(TOKENIZER) + 8, "tie_word_embeddings": False}
    return DecoderLM(dataclasses.replace(SHAPE, **changes))


def small_llama(**changes):
    return LlamaForCausalLM(LlamaConfig.from_dict(SHAPE.to_hf() | ENDS | changes))


POLICIES = {
    "own": (lambda: DecoderLM(SHAPE), DecoderLM),
    "own qwen3, untied": (own_qwen3, DecoderLM),
    "llama": (small_llama, DecoderLM),
    "llama with biases": (lambda: small_llama(attention_bias=True), LlamaForCausalLM),
    "qwen2": (small_qwen, DecoderLM),
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
    folder = tmp_path_factory.mktemp("policy")
    save_policy(spread(make(), alpha=0.1), TOKENIZER, folder)
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
