"""Model folders as they are published, tiny and of random weights: one row of ``FAMILIES`` for each family.

A folder has the ``config.json`` that its makers wrote, in their version's words, with sizes that run in milliseconds;
``generation_config.json`` and a byte-level tokenizer with the family's special tokens. Weights are far wider than those
of a model that starts its training, so that what attention does shows in the log-probs.
"""

# mypy: disable-error-code="operator, union-attr, dict-item"
from __future__ import annotations

import copy
import json
import os
import string
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from harness.core.types import SamplingParams
from harness.engines.huggingface import HuggingFaceEngine
from harness.engines.native import native_engine
from harness.models.decoder import DecoderLM
from harness.models.policy import policy_log_probs, score_rows, why_padded
from harness.models.scoring import ScoreRequest
from harness.models.shared_rows import lay_out, shared_rows
from harness.models.storage import load_policy, save_policy
from harness.models.tokenizer import train_tokenizer
from tests.models.batches import padded_response_log_probs

WEIGHTS = "model.safetensors"
_TEXTS = ["What is 12 + 34? Let us think. 12 + 34 = 46, so the answer is 46."]


@dataclass(frozen=True)
class Family:
    """A family's folder.

    Attributes:
        config: its ``config.json`` but for the vocabulary and the ids of its special tokens.
        specials: special tokens of the tokenizer, in order.
        ends: those in ``eos_token_id`` of the two configs; one is written as a number, several as a list.
        eos, bos, pad: of the tokenizer; None: the first of ``ends``, or that it has none.
        padding_rows: tokens of the vocabulary that the tokenizer does not have.
        beyond: special tokens of the tokenizer that the vocabulary does not have.
        sampling: sampling defaults in ``generation_config.json``.
        tokenizer_class: in ``tokenizer_config.json``; empty: as transformers 5 writes it.
        other_head: the file holds an ``lm_head.weight`` of its own though the config ties it.
        no_prefix: what the names of the weights lack.
        buffers: masks and frequencies that older files hold beside the weights.
    """

    config: Mapping[str, Any]
    specials: Sequence[str] = ("<|endoftext|>",)
    ends: Sequence[str] = ("<|endoftext|>",)
    eos: str | None = None
    bos: str | None = None
    pad: str | None = None
    padding_rows: int = 0
    beyond: Sequence[str] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_class: str = "PreTrainedTokenizerFast"
    other_head: bool = False
    no_prefix: str = ""
    buffers: Mapping[str, Sequence[int]] = field(default_factory=dict)


_SIZES = {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "initializer_range": 0.02, "max_position_embeddings": 512}
_SILU = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_dropout": 0.0, "use_cache": True}
_LLAMA = {**_GROUPED, **_SILU, "attention_bias": False, "mlp_bias": False, "model_type": "llama", "pretraining_tp": 1}
_LLAMA |= {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0"}
_LLAMA_3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
_MISTRAL = {**_GROUPED, **_SILU, "model_type": "mistral", "architectures": ["MistralForCausalLM"]}
_MISTRAL |= {"torch_dtype": "bfloat16", "tie_word_embeddings": False}
_QWEN = {**_GROUPED, **_SILU, "rms_norm_eps": 1e-6, "max_window_layers": 2, "torch_dtype": "bfloat16"}
_QWEN_2 = {**_QWEN, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e6}
_QWEN_2 |= {"use_sliding_window": False, "sliding_window": 131072}
_QWEN_3 = {**_QWEN, "attention_bias": False, "head_dim": 32, "rope_theta": 1e6, "rope_scaling": None}
_MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
_MOE |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "output_router_logits": False, "router_aux_loss_coef": 0.001}
_QWEN_TOKENS: dict[str, Any] = {
    "tokenizer_class": "Qwen2Tokenizer",
    "specials": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "ends": ("<|im_end|>", "<|endoftext|>"),
    "pad": "<|endoftext|>",
    "padding_rows": 21,
}
_LLAMA_3_TOKENS: dict[str, Any] = {
    "specials": ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eom_id|>", "<|eot_id|>"),
    "ends": ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    "eos": "<|eot_id|>",
    "bos": "<|begin_of_text|>",
    "sampling": {"temperature": 0.6, "top_p": 0.9},
}
_MISTRAL_TOKENS: dict[str, Any] = {
    "tokenizer_class": "LlamaTokenizer",
    "specials": ("<unk>", "<s>", "</s>"),
    "ends": ("</s>",),
    "bos": "<s>",
}
_GEMMA_TOKENS: dict[str, Any] = {
    "tokenizer_class": "GemmaTokenizer",
    "specials": ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"),
    "eos": "<eos>",
    "bos": "<bos>",
    "pad": "<pad>",
}
_GEMMA: dict[str, Any] = {**_GROUPED, "head_dim": 32, "attention_bias": False, "rms_norm_eps": 1e-6}
_GEMMA |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32, "sliding_window": 8}
_YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
_MASKS = {"bias": (1, 1, 512, 512), "masked_bias": (), "rotary_emb.inv_freq": (4,)}
_LONG = [2.0 + step / 3 for step in range(12)]
_OLMO = {**_GROUPED, **_SILU, "rms_norm_eps": 1e-6, "attention_bias": False, "tie_word_embeddings": False}
_OLMO |= {"rope_theta": 500000, "torch_dtype": "float32"}

FAMILIES: dict[str, Family] = {
    "Llama 2": Family(  # no rope_theta, no padding token
        {**_LLAMA, "num_key_value_heads": 4, "tie_word_embeddings": False, "torch_dtype": "float16"}
        | {"rope_scaling": None},
        **_MISTRAL_TOKENS,
        sampling={"temperature": 0.6, "top_p": 0.9},
        buffers={f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": (16,) for layer in range(2)},
    ),
    "Llama 3.2": Family(  # tied, three ends, positions scaled as llama3
        {**_LLAMA, "head_dim": 32, "rope_theta": 500000.0, "tie_word_embeddings": True}
        | {"rope_scaling": {**_LLAMA_3, "original_max_position_embeddings": 16}},
        **_LLAMA_3_TOKENS,
    ),
    "Llama 3.2 of transformers 5": Family(  # rope_parameters and dtype alone
        {name: value for name, value in _LLAMA.items() if name != "torch_dtype"}
        | {"head_dim": 32, "tie_word_embeddings": True, "dtype": "bfloat16", "transformers_version": "5.2.0"}
        | {"rope_parameters": {**_LLAMA_3, "rope_theta": 5e5, "original_max_position_embeddings": 16}},
        **_LLAMA_3_TOKENS,
        tokenizer_class="",
    ),
    "Llama, tied, another head in the file": Family(  # the config ties what the file has twice
        {**_LLAMA, "rope_theta": 10000.0, "tie_word_embeddings": True},
        **_LLAMA_3_TOKENS,
        other_head=True,
    ),
    "Llama, linear": Family(  # rope_scaling by its older key, a padding token beyond the vocabulary
        {**_LLAMA, "tie_word_embeddings": False, "rope_scaling": {"type": "linear", "factor": 4.0}},
        **{**_MISTRAL_TOKENS, "specials": ("<unk>", "<s>", "</s>", "[PAD]")},
        pad="[PAD]",
        beyond=("[PAD]",),
    ),
    "Llama, dynamic": Family(  # positions scaled by length, sampling defaults without sampling
        {**_LLAMA, "tie_word_embeddings": False, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        **_MISTRAL_TOKENS,
        sampling={"temperature": 0.9, "top_p": 0.6, "do_sample": False},
    ),
    "Mistral v0.1": Family(
        {**_MISTRAL, "sliding_window": 8, "rope_theta": 10000.0}, **_MISTRAL_TOKENS
    ),  # a sliding window
    "Mistral v0.3": Family(
        {**_MISTRAL, "sliding_window": None, "rope_theta": 1e6, "head_dim": None}, **_MISTRAL_TOKENS, padding_rows=1
    ),
    "Qwen2 with windows": Family(  # windows from the second layer on
        {**_QWEN_2, "tie_word_embeddings": False, "use_sliding_window": True, "sliding_window": 8}
        | {"max_window_layers": 1},
        **_QWEN_TOKENS,
    ),
    "Qwen2.5": Family(  # two ends, vocabulary padded
        {**_QWEN_2, "tie_word_embeddings": False},
        **_QWEN_TOKENS,
        sampling={"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
    ),
    "Qwen2 with YaRN": Family(  # positions scaled as yarn
        {**_QWEN_2, "tie_word_embeddings": False, "rope_scaling": {**_YARN, "type": "yarn"}},
        **_QWEN_TOKENS,
    ),
    "Qwen3": Family(  # norms of queries and keys
        {**_QWEN_3, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True}
        | {"sliding_window": None, "use_sliding_window": False},
        **_QWEN_TOKENS,
        sampling={"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    ),
    "Qwen3-MoE": Family(  # experts
        {**_QWEN_3, **_MOE, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}
        | {"tie_word_embeddings": False, "sliding_window": None, "use_sliding_window": False},
        **_QWEN_TOKENS,
    ),
    "Qwen3-Next": Family(  # linear attention, partial rotary, experts
        {**_QWEN_3, **_MOE, "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]}
        | {"num_hidden_layers": 4, "full_attention_interval": 4, "partial_rotary_factor": 0.25, "head_dim": 32}
        | {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "shared_expert_intermediate_size": 32}
        | {"tie_word_embeddings": False, "rope_theta": 1e7},
        **_QWEN_TOKENS,
    ),
    "Gemma 2": Family(  # soft caps of attention and logits, windows in every second layer
        {**_GEMMA, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "hidden_act": "gelu_pytorch_tanh"}
        | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "rope_theta": 10000.0}
        | {"cache_implementation": "hybrid", "torch_dtype": "float32"},
        **_GEMMA_TOKENS,
        ends=("<eos>", "<end_of_turn>"),
    ),
    "Gemma 3 (1b)": Family(  # an added token beyond the vocabulary, two bases of positions, windows
        {**_GEMMA, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 3}
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "rope_theta": 1e6}
        | {"rope_local_base_freq": 10000, "rope_scaling": None, "sliding_window_pattern": 2, "num_key_value_heads": 1}
        | {"cache_implementation": "hybrid", "torch_dtype": "bfloat16"},
        **{**_GEMMA_TOKENS, "specials": (*_GEMMA_TOKENS["specials"], "<image_soft_token>")},
        ends=("<eos>", "<end_of_turn>"),
        sampling={"top_k": 64, "top_p": 0.95},
        beyond=("<image_soft_token>",),
    ),
    "Phi-4-mini": Family(  # longrope, partial rotary
        {**_GROUPED, **_SILU, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.75}
        | {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
        | {"mlp_bias": False, "attention_bias": False}
        | {"rope_scaling": {"type": "longrope", "long_factor": _LONG, "short_factor": [1.0] * 12}}
        | {"sliding_window": 262144, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "interpolate_factor": 1},
        specials=("<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>"),
        bos="<|endoftext|>",
        pad="<|endoftext|>",
        ends=("<|end|>", "<|endoftext|>"),
        eos="<|endoftext|>",
        padding_rows=7,
        tokenizer_class="GPT2Tokenizer",
    ),
    "Granite": Family(  # four multipliers
        {**_GROUPED, **_SILU, "model_type": "granite", "architectures": ["GraniteForCausalLM"], "mlp_bias": False}
        | {"attention_bias": False, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0}
        | {"attention_multiplier": 0.0625, "rope_theta": 5e6, "tie_word_embeddings": True, "torch_dtype": "bfloat16"},
        specials=("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"),
        ends=("<|end_of_text|>",),
        bos="<|end_of_text|>",
        pad="<|end_of_text|>",
        tokenizer_class="GPT2Tokenizer",
    ),
    "Cohere2": Family(  # logits scaled, layers without positions, windows
        {**_GROUPED, "hidden_act": "silu", "model_type": "cohere2", "architectures": ["Cohere2ForCausalLM"]}
        | {"layer_norm_eps": 1e-5, "logit_scale": 0.25, "rope_theta": 50000, "sliding_window": 8, "head_dim": 32}
        | {"sliding_window_pattern": 2, "num_hidden_layers": 3, "order_of_interleaved_layers": "local_attn_first"}
        | {"attention_bias": False, "position_embedding_type": "rope_gptj", "use_gated_activation": True}
        | {"cache_implementation": "hybrid", "rotary_pct": 1.0, "use_parallel_block": True, "use_qk_norm": False}
        | {"torch_dtype": "bfloat16"},
        specials=("<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
        ends=("<|END_OF_TURN_TOKEN|>",),
        bos="<BOS_TOKEN>",
        pad="<PAD>",
        tokenizer_class="CohereTokenizer",
    ),
    "OLMo 2": Family(  # norms behind the layers and of queries and keys
        {**_OLMO, "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "num_key_value_heads": 4},
        specials=("<|endoftext|>", "<|pad|>2"),
        pad="<|pad|>2",
        padding_rows=75,
        tokenizer_class="GPT2Tokenizer",
    ),
    "OLMo 3": Family(  # windows, yarn in the full layers alone
        {**_OLMO, "model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"], "sliding_window": 8}
        | {"layer_types": ["sliding_attention", "full_attention"], "torch_dtype": "bfloat16"}
        | {"rope_scaling": {**_YARN, "attention_factor": 1.2, "beta_fast": 32, "beta_slow": 1, "rope_type": "yarn"}},
        specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>2"),
        ends=("<|im_end|>", "<|endoftext|>"),
        pad="<|pad|>2",
        padding_rows=11,
        tokenizer_class="GPT2Tokenizer",
    ),
    "SmolLM3": Family(  # layers without positions
        {**_GROUPED, **_SILU, "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "rope_theta": 5e6}
        | {"no_rope_layers": [1, 0], "no_rope_layer_interval": 2, "layer_types": ["full_attention"] * 2}
        | {"attention_bias": False, "use_sliding_window": False, "sliding_window": None, "max_window_layers": 28}
        | {"tie_word_embeddings": True, "torch_dtype": "bfloat16", "rope_scaling": None, "mlp_bias": False},
        specials=("<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>", "<|pad|>2"),
        ends=("<|im_end|>",),
        bos="<|begin_of_text|>",
        pad="<|pad|>2",
    ),
    "GPT-2": Family(  # learned positions, dropout
        {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 2}
        | {"n_ctx": 512, "n_positions": 512, "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1}
        | {"attn_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "vocab_size": 0},
        bos="<|endoftext|>",
        tokenizer_class="GPT2Tokenizer",
        no_prefix="transformer.",
        buffers={f"h.{layer}.attn.bias": (1, 1, 512, 512) for layer in range(2)},
    ),
    "GPT-OSS": Family(  # attention sinks, windows, experts with biases, yarn
        {**_GROUPED, "hidden_act": "silu", "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]}
        | {"head_dim": 32, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_per_token": 2, "intermediate_size": 32}
        | {"attention_bias": True, "rope_theta": 150000, "swiglu_limit": 7.0, "rms_norm_eps": 1e-5}
        | {"rope_scaling": {**_YARN, "beta_fast": 32.0, "beta_slow": 1.0, "rope_type": "yarn", "truncate": False}}
        | {"initial_context_length": 16, "tie_word_embeddings": False, "attention_dropout": 0.0},
        specials=("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|call|>"),
        ends=("<|return|>", "<|endoftext|>", "<|call|>"),
        bos="<|startoftext|>",
        pad="<|endoftext|>",
        padding_rows=5,
    ),
    "LFM2": Family(  # short convolutions
        {**_GROUPED, "model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "norm_eps": 1e-5, "conv_L_cache": 3}
        | {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "conv_bias": False}
        | {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 32}
        | {"rope_theta": 1e6, "tie_embedding": True, "torch_dtype": "bfloat16", "block_ff_dim": 96, "block_dim": 128},
        specials=("<|pad|>2", "<|startoftext|>", "<|endoftext|>", "<|im_end|>"),
        ends=("<|im_end|>",),
        bos="<|startoftext|>",
        pad="<|pad|>2",
        padding_rows=3,
    ),
    "GLM-4": Family(  # partial rotary, norms behind the layers
        {**_GROUPED, **_SILU, "model_type": "glm4", "architectures": ["Glm4ForCausalLM"], "partial_rotary_factor": 0.5}
        | {"head_dim": 32, "attention_bias": False, "rope_theta": 10000.0, "torch_dtype": "bfloat16"}
        | {"tie_word_embeddings": False},
        specials=("<|endoftext|>", "[MASK]", "<|user|>", "<|observation|>"),
        ends=("<|endoftext|>", "<|user|>", "<|observation|>"),
        pad="<|endoftext|>",
        padding_rows=9,
    ),
    "Pythia": Family(  # rotary_pct, parallel layers, biases
        {**_SIZES, "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu"}
        | {"max_position_embeddings": 512, "layer_norm_eps": 1e-5, "rotary_pct": 0.25, "rotary_emb_base": 20000}
        | {"use_parallel_residual": True, "tie_word_embeddings": False, "torch_dtype": "float16"},
        bos="<|endoftext|>",
        padding_rows=27,
        tokenizer_class="GPTNeoXTokenizer",
        buffers={
            f"gpt_neox.layers.{layer}.attention.{name}": shape for layer in range(2) for name, shape in _MASKS.items()
        },
    ),
    "DeepSeek V3": Family(  # latent attention, experts in groups, yarn
        {**_GROUPED, **_SILU, "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}
        | {"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16}
        | {"qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2}
        | {"topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
        | {"routed_scaling_factor": 2.5, "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
        | {"rope_theta": 10000, "tie_word_embeddings": False, "num_nextn_predict_layers": 0, "moe_layer_freq": 1}
        | {"rope_scaling": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "yarn"}}
        | {"attention_bias": False, "ep_size": 1, "torch_dtype": "bfloat16"},
        specials=("<|begin_of_sentence|>", "<|end_of_sentence|>"),
        ends=("<|end_of_sentence|>",),
        bos="<|begin_of_sentence|>",
        pad="<|end_of_sentence|>",
        padding_rows=4,
        tokenizer_class="LlamaTokenizerFast",
    ),
}


@cache
def _of_bytes() -> str:
    """A tokenizer as GPT-2's: every byte and a few merges."""
    return train_tokenizer(_TEXTS, 280).backend_tokenizer.to_str()


@cache
def _of_pieces(specials: tuple[str, ...], leading_space: bool) -> str:
    """A tokenizer as sentencepiece's: pieces of text with a mark for the space, and bytes for what no piece has."""
    pieces = sorted({*"".join(_TEXTS).replace(" ", ""), "\u2581", *string.ascii_letters})
    merges = [("\u2581", "t"), ("\u2581t", "h"), ("1", "2"), ("a", "n"), ("\u2581", "an"), ("s", "w")]
    tokens = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *map("".join, merges)]
    places = {token: place for place, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(places, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    marked = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), marked]) if leading_space else marked
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if leading_space else steps)
    return tokenizer.to_str()


def tokenizer_of(family: Family) -> Tokenizer:
    """Return the family's tokenizer: its special tokens behind the bytes, or in front of the pieces."""
    if family.tokenizer_class in ("LlamaTokenizer", "GemmaTokenizer"):
        own = tuple(text for text in family.specials if text not in family.beyond)
        tokenizer = Tokenizer.from_str(_of_pieces(own, family.tokenizer_class == "LlamaTokenizer"))
    else:
        tokenizer = Tokenizer.from_str(_of_bytes())
    tokenizer.add_special_tokens(list(family.specials))
    if family.bos is not None and family.bos != (family.eos or family.ends[0]):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A",
            pair=f"{family.bos} $A {family.bos} $B",
            special_tokens=[(family.bos, tokenizer.token_to_id(family.bos))],
        )
    return tokenizer


def _write_tokenizer(family: Family, tokenizer: Tokenizer, folder: Path) -> None:
    """Write it as transformers 4 did, or without a class as transformers 5 does."""
    names = {"eos_token": family.eos or family.ends[0], "bos_token": family.bos, "pad_token": family.pad}
    special = {name: text for name, text in names.items() if text is not None}
    if not family.tokenizer_class:
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
        return
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    added = {str(tokenizer.token_to_id(text)): {"content": text, **flags} for text in family.specials}
    unknown = {"unk_token": "<unk>"} if "<unk>" in family.specials else {}
    others = [text for text in family.specials if text not in (*special.values(), *unknown.values())]
    config = {
        "added_tokens_decoder": added,
        "additional_special_tokens": others,
        **special,
        **unknown,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
        "tokenizer_class": family.tokenizer_class,
    }
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))


def make(name: str, folder: Path) -> Path:
    """Write the family's folder, in float32, and return it."""
    family = FAMILIES[name]
    tokenizer = tokenizer_of(family)
    ids = {text: tokenizer.token_to_id(text) for text in family.specials}
    ends = [ids[text] for text in family.ends]
    special = {
        "eos_token_id": ends[0] if len(ends) == 1 else ends,
        **({} if family.bos is None else {"bos_token_id": ids[family.bos]}),
        **({} if family.pad is None or family.pad in family.beyond else {"pad_token_id": ids[family.pad]}),
    }
    vocabulary = tokenizer.get_vocab_size() - len(family.beyond) + family.padding_rows
    config = {**family.config, **special, "vocab_size": vocabulary}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    model = _with_wide_weights(
        AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder, trust_remote_code=False), dtype=torch.float32, trust_remote_code=False
        )
    )
    model.save_pretrained(folder)
    weights = load_file(folder / WEIGHTS)
    generator = torch.Generator().manual_seed(5)
    if family.other_head:
        table = weights["model.embed_tokens.weight"]
        weights["lm_head.weight"] = torch.randn(table.shape, generator=generator) * 0.25
    weights = {name.removeprefix(family.no_prefix): weight for name, weight in weights.items()}
    weights |= {name: torch.ones(shape) for name, shape in family.buffers.items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    _write_tokenizer(family, tokenizer, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    generation = {**special, **({"do_sample": True} if family.sampling else {}), **family.sampling}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    return folder


def _with_wide_weights(model: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "embed" in name or "wte" in name or "wpe" in name:
                parameter.copy_(noise * (0.06 if "Gemma" in type(model).__name__ else 0.15))
            elif name.endswith("A_log"):  # slow decay: states that have all but gone are normed up to rounding
                parameter.copy_(0.3 * noise - 2)
            elif parameter.ndim == 1:
                parameter.add_(noise, alpha=0.3)
            else:
                parameter.copy_(noise * 1.2 * parameter.shape[-1] ** -0.5)
    return model


PROMPT_LENGTHS = (5, 19, 12)
SAMPLES, TOKENS = 2, 14
PROBE = "What is that here?"
"""A text that every family's tokenizer knows."""


@dataclass(frozen=True)
class Measured:
    """How far a folder's log-probs are from those of transformers' reference attention, and what was saved.

    Attributes:
        own: the harness' own decoder runs it.
        engine: greatest difference of the engine's log-probs, of sampled and of given tokens.
        scoring: greatest difference of the Learner's, over all its layouts.
        gradients: greatest relative difference of a parameter's gradient.
        saved: greatest difference of the saved folder's log-probs.
    """

    own: bool
    engine: float
    scoring: float
    gradients: float
    saved: float


def prompts_of(vocabulary: int) -> list[list[int]]:
    """Return prompts of unlike lengths, shorter and longer than the windows."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(2, vocabulary, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]


def eager(folder: Path) -> Any:
    """Return transformers' own model of a folder, with its reference attention, in float32."""
    return AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, trust_remote_code=False
    ).eval()


def reference_log_probs(
    model: Any, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Return the log-probs of responses under a model of transformers, one row at a time without a mask."""
    found = []
    for prompt, response in zip(prompts, responses, strict=True):
        logits = model(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).logits[0]
        of_tokens = logits[len(prompt) - 1 : -1].float().log_softmax(-1)
        found.append(of_tokens.gather(1, torch.tensor(response)[:, None])[:, 0])
    return found


def gap(left: Sequence[Any], right: Sequence[Tensor]) -> float:
    """Return the greatest difference of two lists of arrays."""
    return max(float((torch.as_tensor(a) - b).abs().max()) for a, b in zip(left, right, strict=True))


def measure(folder: Path) -> Measured:
    """Compare engine, scoring and saved folder with transformers; the policy is saved as ``saved`` in the folder."""
    model, tokenizer = load_policy(folder)
    reference = eager(folder)
    own = isinstance(model, DecoderLM)
    engine = native_engine(model, tokenizer) if own else HuggingFaceEngine(copy.deepcopy(model), tokenizer)
    prompts = prompts_of(reference.get_output_embeddings().weight.shape[0])
    groups = engine.generate(prompts, SAMPLES, SamplingParams(max_tokens=TOKENS), 0)
    of_rows = [prompt for prompt in prompts for _ in range(SAMPLES)]
    sampled = [completion for group in groups for completion in group]
    all_tokens = [one.token_ids.tolist() for one in sampled]
    # rows of unlike lengths, as responses that end early are
    responses = [tokens[: max(1, TOKENS - 5 * row % 9)] for row, tokens in enumerate(all_tokens)]
    whole = reference_log_probs(reference, of_rows, all_tokens)
    expected = [row[: len(response)] for row, response in zip(whole, responses, strict=True)]
    (-torch.cat(expected).mean()).backward()
    whole, expected = ([row.detach() for row in rows] for rows in (whole, expected))
    of_engine = max(gap([one.log_probs for one in sampled], whole), gap(engine.score(of_rows, responses), expected))
    batch = _batch(prompts, responses)
    mask_BT, lengths = batch[3], [len(response) for response in responses]
    scored_BT, _ = policy_log_probs(model, *batch)
    (-scored_BT[mask_BT].mean()).backward()
    layouts = [scored_BT.detach()]
    why = "" if own else why_padded(model)
    with torch.no_grad():
        alone = [policy_log_probs(model, *_batch([p], [r]))[0][0] for p, r in zip(of_rows, responses, strict=True)]
        if not own:
            layouts.append(padded_response_log_probs(model, *batch)[0])
        if not own and not why:
            layout = lay_out(PROMPT_LENGTHS, lengths, batch[4].tolist(), per_row=SAMPLES)
            request = ScoreRequest(*batch)
            layouts.append(score_rows(model, shared_rows(request, layout, torch.float32), request)[0])
        scoring = max(gap(each_BT[mask_BT].split(lengths), expected) for each_BT in layouts)
        save_policy(model, tokenizer, folder / "saved")
        saved = gap(reference_log_probs(eager(folder / "saved"), of_rows, all_tokens), whole)
    gradients = _gradient_gap(model, reference)
    return Measured(own, of_engine, max(scoring, gap(alone, expected)), gradients, saved)


def _batch(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
    """Prompts, their lengths, responses, their mask and each one's prompt, padded with token 0."""
    prompts_PL = nn.utils.rnn.pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True)
    responses_BT = nn.utils.rnn.pad_sequence([torch.tensor(response) for response in responses], batch_first=True)
    mask_BT = torch.arange(responses_BT.shape[1]) < torch.tensor([len(row) for row in responses])[:, None]
    index_B = torch.arange(len(prompts)).repeat_interleave(len(responses) // len(prompts))
    return prompts_PL, torch.tensor([len(prompt) for prompt in prompts]), responses_BT, mask_BT, index_B


def _gradient_gap(model: nn.Module, reference: nn.Module) -> float:
    """The greatest difference of a parameter's gradient over its norm; of experts that no token went to, none."""
    theirs = {name: parameter.grad for name, parameter in reference.named_parameters()}
    return max(
        float((parameter.grad - grad).norm() / grad.norm())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and (grad := theirs[name]) is not None and grad.norm() > 0
    )


def reopen(folders: Sequence[Path], python: str, out: Path) -> dict[str, dict[str, Any]]:
    """Open folders with the transformers of another Python, which writes what it found to ``out``.

    Returns:
        Of each folder, by its path: ``log_probs`` of a row of tokens, by the reference attention, and ``ids`` of
        ``PROBE``; or ``error``, of the first that it could not open.
    """
    command = [python, Path(__file__).with_name("reopen.py"), out, PROBE, *folders]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    subprocess.run([str(part) for part in command], env=environment, check=True, capture_output=True)
    found: dict[str, dict[str, Any]] = torch.load(out)
    return found
