"""Bytes that a training forward keeps for the way back: layers, and the logits behind them.

The way of counting is that of Korthikanti et al. 2022, arXiv:2205.05198, section 4: every tensor that a product, a norm
or an activation needs for its gradient, once. Their 34 s b h + 5 a s^2 b bytes is for GPT layers with dropout in 16
bits; here are RMSNorm, rotary positions, grouped queries, a gated MLP and no dropout, counted on the code that runs.
Letters: h hidden, q all query heads, k all key heads, i inside of the MLP.

Arguments of all: ``width`` is the bytes of one trained weight, 4 or 2; ``autocast`` says whether products are computed
in 16 bits over float32 weights; on a GPU the harness' own attention always takes the fused kernel; ``tensor`` ranks cut
each matrix of the harness' own model, and what is returned is for one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.models.config import ModelConfig
from harness.models.limits import MAX_LOGITS, PIECE_LOGITS, keeps_scores


@dataclass(frozen=True, slots=True)
class Batch:
    """One microbatch: ``rows`` responses of ``response`` tokens to ``prompts`` prompts of ``prompt`` tokens."""

    rows: int
    prompts: int
    prompt: int
    response: int

    def tokens(self, shape: ModelConfig) -> int:
        """Tokens that are run: in the harness' own model a group shares its prompt, else every row carries its own."""
        if shape.runs_on == "own":
            return self.prompts * self.prompt + self.rows * (self.response - 1)
        return self.rows * (self.prompt + self.response - 1)


def layer_bytes(
    shape: ModelConfig, batch: Batch, width: int, autocast: bool, *, on_gpu: bool = False, tensor: int = 1
) -> int:
    """Bytes that one layer keeps of one microbatch.

    transformers' Llama or Qwen2 with fused attention runs padded rows, where key heads are repeated. Each norm has its
    input and the normed values in float32; in bfloat16 the norm's output, or under autocast its cast for each of the
    five products that take it; query, keys, values and output of the attention, 4q; gate, its activation, up and their
    product, 4i.

    The harness' own layer packs tokens, and attention sees padded rows. Packed, for each token: the normed values and
    the output of both norms, the attention's output, 4i of the MLP, and the normed heads where the model norms them.
    Padded, for each row: queries, keys and values, and the probabilities unless the kernel is fused. A tensor rank has
    some of the heads and of the MLP's width for all tokens, norms for some of the tokens, and their outputs for all,
    since the matrices behind them take these.
    """
    heads = shape.num_attention_heads // tensor
    h, q, i = shape.hidden_size, heads * shape.head_dim, shape.intermediate_size // tensor
    k = shape.num_key_value_heads // tensor * shape.head_dim
    tokens, narrow = batch.tokens(shape), 2 if autocast or width == 2 else 4
    if shape.runs_on != "own":
        q, i = shape.query_size, shape.intermediate_size
        if narrow == 4:
            return tokens * 4 * (6 * h + 4 * q + 4 * i)
        return tokens * (16 * h + 2 * (5 * h * (width != 2) + 4 * q + 4 * i))
    packed = tokens * (2 * 4 * h // tensor + narrow * (2 * h + q + 4 * i))
    packed += tokens * 4 * (q + k) if shape.head_norms else 0
    queries, keys = batch.response - 1, batch.prompt + batch.response - 1
    scores = batch.rows * heads * queries * keys
    if on_gpu or not keeps_scores(scores, keys, shape.head_dim):
        return packed + (narrow if on_gpu else 4) * batch.rows * (2 * q * queries + 2 * q * keys)
    return packed + 4 * (batch.rows * (q * queries + 2 * k * keys) + scores)


def kept_bytes(
    shape: ModelConfig,
    batch: Batch,
    width: int,
    autocast: bool,
    checkpointing: bool,
    *,
    on_gpu: bool = False,
    tensor: int = 1,
) -> int:
    """Bytes that all layers keep of one microbatch; with checkpointing the inputs of all and the insides of one."""
    one = layer_bytes(shape, batch, width, autocast, on_gpu=on_gpu, tensor=tensor)
    if not checkpointing:
        return shape.num_hidden_layers * one
    return shape.num_hidden_layers * (batch.tokens(shape) // tensor) * shape.hidden_size * width + one


def logit_bytes(shape: ModelConfig, batch: Batch, width: int, autocast: bool, *, on_gpu: bool = False) -> int:
    """Bytes of logits at their worst, see ``models.head``: those kept, and what a piece needs beside its own."""
    device = "cuda" if on_gpu else "cpu"
    kept, piece = (
        min(batch.rows * batch.response, max(1, most[device] // shape.vocab_size))
        for most in (MAX_LOGITS, PIECE_LOGITS)
    )
    return shape.vocab_size * (4 * kept + piece * (4 + (2 if autocast or width == 2 else 0)))
