"""Every policy is held to ``harness.testing``, whichever model stands behind it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from harness.models.decoder import DecoderLM
from harness.models.storage import save_policy
from harness.testing import PolicyContract
from tests.contract.test_engine_contract import FIELDS, GPT2_CASE, SHAPE, TOKENIZER
from tests.models.batches import spread


def small_qwen():
    """Transformers' Qwen2, with more rows than its tokenizer has tokens.

    Whatever the folder says, transformers reads its tokenizer as Qwen's own class, which adds one token.
    """
    return Qwen2ForCausalLM(Qwen2Config(**FIELDS | {"vocab_size": len(TOKENIZER) + 8}))


def own_qwen3():
    changes = {"model_type": "qwen3", "vocab_size": len(TOKENIZER) + 8, "tie_word_embeddings": False}
    return DecoderLM(dataclasses.replace(SHAPE, **changes))


def small_llama(**changes):
    return LlamaForCausalLM(LlamaConfig.from_dict(SHAPE.to_hf() | FIELDS | changes))


POLICIES = {
    "own": (lambda: DecoderLM(SHAPE), DecoderLM),
    "own qwen3, untied": (own_qwen3, DecoderLM),
    "llama": (small_llama, DecoderLM),
    "llama with biases": (lambda: small_llama(attention_bias=True), LlamaForCausalLM),
    "qwen2": (small_qwen, DecoderLM),
    "gpt2": (GPT2_CASE.make_model, GPT2LMHeadModel),
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
