"""Decoding with a Llama: prefill, then one token a row and step, over a static key/value cache.

Measured on a Zen 4 core (64 rows, 8 query and 4 key/value heads of 32, 30 tokens): for single queries two ``bmm`` around
a softmax take 60% of the time of ``scaled_dot_product_attention`` in float32, and 30% of its time in bfloat16. So
attention and its cache are float32 whatever the precision of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.engines.weights import InferenceWeights, LayerWeights
from harness.errors import RunStopped
from harness.models.config import ModelConfig


class _LayerCache(NamedTuple):
    """Views of one layer's keys and values: by row (R, Hkv, T, D), and flat as ``bmm`` wants them (R * Hkv, T, D)."""

    keys: Tensor
    values: Tensor
    keys_as_pairs: Tensor
    flat_keys_t: Tensor
    flat_values: Tensor


class KeyValueCache:
    """Keys and values (L, 2, R, Hkv, T, D), allocated once for the largest batch so far and reused.

    Prompts are aligned at their ends, so that all rows write the same column at each step.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._config = config
        self._arena = torch.empty(0, device=device)
        self.layers: list[_LayerCache] = []

    def allocate(self, num_rows: int, num_columns: int) -> None:
        """Make room for a new batch; what was cached is lost."""
        config = self._config
        shape = (config.num_hidden_layers, 2, num_rows, config.num_key_value_heads, num_columns, config.head_dim)
        size = torch.Size(shape).numel()
        if self._arena.numel() < size:
            self._arena = self._arena.new_empty(size)
        self._data = self._arena[:size].view(shape)
        self.resize(num_rows)

    def resize(self, num_rows: int) -> None:
        """Keep the first ``num_rows`` rows."""
        self._data = self._data[:, :, :num_rows]
        self.layers = [_layer_views(*layer) for layer in self._data]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` columns of one row over another."""
        self._data[:, :, target, :, :length] = self._data[:, :, source, :, :length]


def _layer_views(keys: Tensor, values: Tensor) -> _LayerCache:
    flat = (-1, *keys.shape[2:])
    return _LayerCache(keys, values, _as_pairs(keys), keys.view(flat).transpose(1, 2), values.view(flat))


def _as_pairs(x: Tensor) -> Tensor:
    """View (..., D) as (..., D/2) complex numbers."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def rotation_table(config: ModelConfig) -> Tensor:
    """exp(i * position * theta^(-2j/D)), complex64 (max_position_embeddings, D/2); Su et al. 2021."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
    angles = positions[:, None] / config.rope_theta**exponents
    return torch.polar(torch.ones_like(angles), angles)


class LlamaDecoder:
    """The ``DecodeBackend`` of the native engine.

    ``weights``, laid out by ``build_weights``, must be set before the first batch. They may be replaced between any two
    steps; the next step uses the new ones, over the cache of the old.

    Args:
        config: the model's shape.
        device: where everything lives.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self.config, self._device = config, device
        self.weights: InferenceWeights | None = None
        self._cache = KeyValueCache(config, device)
        self._rotations = rotation_table(config).to(device)

    @property
    def vocab_size(self) -> int:
        """See ``DecodeBackend``."""
        return self.config.vocab_size

    @property
    def context_length(self) -> int:
        """See ``DecodeBackend``."""
        return self.config.max_position_embeddings

    def prefill(self, prompts: Sequence[Sequence[int]], prompt_of_row: Sequence[int], max_tokens: int) -> Tensor:
        """See ``DecodeBackend``."""
        weights, padded = self._loaded(), _pad(prompts, self._device)
        length = padded.token_ids_PT.shape[1]
        rows = torch.tensor(prompt_of_row, device=self._device)
        self._cache.allocate(len(prompt_of_row), length + max_tokens - 1)
        self._length, self._positions_R = length, padded.lengths_P[rows]
        self._padding_R1T = None if padded.mask_P1TT is None else _padding_bias(padded, rows)
        hidden = weights.embedding[padded.token_ids_PT]
        rotation = self._rotations[padded.positions_PT].unsqueeze(2)
        for index, (layer, cache) in enumerate(zip(weights.layers, self._cache.layers, strict=True)):
            is_last = index == len(weights.layers) - 1
            hidden = self._prefill_layer(hidden, layer, cache, rotation, padded.mask_P1TT, rows, is_last)
        logits_PV = weights.head(self._norm(hidden)).float()
        return logits_PV[rows]

    def step(self, token_ids_R: Tensor) -> Tensor:
        """See ``DecodeBackend``."""
        weights = self._loaded()
        hidden = weights.embedding.index_select(0, token_ids_R)
        rotation = self._rotations.index_select(0, self._positions_R).unsqueeze(1)
        for layer, cache in zip(weights.layers, self._cache.layers, strict=True):
            hidden = self._decode_layer(hidden, layer, cache, rotation)
        self._positions_R += 1
        self._length += 1
        return weights.head(self._norm(hidden)).float()

    def compact(self, sources: Sequence[int], targets: Sequence[int], num_rows: int) -> None:
        """See ``DecodeBackend``."""
        for source, target in zip(sources, targets, strict=True):
            self._cache.move(source, target, self._length)
            self._positions_R[target] = self._positions_R[source]
            if self._padding_R1T is not None:
                self._padding_R1T[target] = self._padding_R1T[source]
        self._cache.resize(num_rows)
        self._positions_R = self._positions_R[:num_rows]
        if self._padding_R1T is not None:
            self._padding_R1T = self._padding_R1T[:num_rows]

    def _loaded(self) -> InferenceWeights:
        if self.weights is None:
            raise RunStopped("the engine was asked to generate before any weights were loaded")
        return self.weights

    def _norm(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.config.hidden_size,), None, self.config.rms_norm_eps)

    def _decode_layer(self, x_RC: Tensor, weights: LayerWeights, cache: _LayerCache, rotation: Tensor) -> Tensor:
        config, length = self.config, self._length
        heads = weights.qkv(self._norm(x_RC)).float().view(len(x_RC), -1, config.head_dim)
        pairs = _as_pairs(heads)
        num_q, num_kv = config.num_attention_heads, config.num_key_value_heads
        q = torch.view_as_real(pairs[:, :num_q] * rotation).view(-1, config.queries_per_key, config.head_dim)
        torch.mul(pairs[:, num_q : num_q + num_kv], rotation, out=cache.keys_as_pairs[:, :, length])
        cache.values[:, :, length] = heads[:, num_q + num_kv :]
        scores = torch.bmm(q, cache.flat_keys_t[:, :, : length + 1])
        if self._padding_R1T is not None:
            width = self._padding_R1T.shape[2]
            scores.view(len(x_RC), num_q, -1)[:, :, :width] += self._padding_R1T
        attended = torch.bmm(torch.softmax(scores, -1), cache.flat_values[:, : length + 1])
        return self._finish_layer(x_RC, attended.view(len(x_RC), -1), weights)

    def _finish_layer(self, x_RC: Tensor, attended: Tensor, weights: LayerWeights) -> Tensor:
        """Output projection and SwiGLU (Shazeer 2020), each added to the residual stream."""
        x_RC = weights.o.plus(attended.to(x_RC.dtype), x_RC)
        normed = self._norm(x_RC)
        return weights.down.plus(weights.up.times(normed, weights.gate.silu(normed)), x_RC)

    def _prefill_layer(
        self,
        x_PTC: Tensor,
        weights: LayerWeights,
        cache: _LayerCache,
        rotation: Tensor,
        mask_P1TT: Tensor | None,
        rows: Tensor,
        is_last: bool,
    ) -> Tensor:
        """One layer over all prompt tokens (P, T, C); the last one returns the hidden states of the last tokens (P, C).

        Behind the last layer's keys and values only the last token of a prompt matters.
        """
        config, (num_prompts, length, width) = self.config, x_PTC.shape
        x = x_PTC.reshape(-1, width)
        heads = weights.qkv(self._norm(x)).float().view(num_prompts, length, -1, config.head_dim)
        num_q, num_kv = config.num_attention_heads, config.num_key_value_heads
        rotated = torch.view_as_real(_as_pairs(heads[:, :, : num_q + num_kv]) * rotation).flatten(-2)
        q, k = rotated.transpose(1, 2).split((num_q, num_kv), dim=1)
        v = heads[:, :, num_q + num_kv :].transpose(1, 2)
        cache.keys[:, :, :length] = k[rows]
        cache.values[:, :, :length] = v[rows]
        if is_last:
            q, x = q[:, :, -1:], x_PTC[:, -1]
            mask_P1TT = None if mask_P1TT is None else mask_P1TT[:, :, -1:]
        attended = F.scaled_dot_product_attention(
            q, k, v, mask_P1TT, is_causal=mask_P1TT is None and not is_last, scale=1.0, enable_gqa=num_q != num_kv
        )
        x = self._finish_layer(x, attended.transpose(1, 2).reshape(len(x), -1), weights)
        return x if is_last else x.view(x_PTC.shape)


class _PaddedPrompts(NamedTuple):
    """Prompts aligned at their ends; the mask, True where a token may look, is None if none is padded."""

    token_ids_PT: Tensor
    positions_PT: Tensor
    lengths_P: Tensor
    mask_P1TT: Tensor | None


def _pad(prompts: Sequence[Sequence[int]], device: torch.device) -> _PaddedPrompts:
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    token_ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    lengths_P = torch.tensor(lengths, device=device)
    columns = torch.arange(longest, device=device)
    positions_PT = columns - (longest - lengths_P)[:, None]
    mask = None
    if min(lengths) < longest:
        own = columns == columns[:, None]
        causal = columns <= columns[:, None]
        mask = (causal & (positions_PT >= 0)[:, None, :] | own)[:, None]
    return _PaddedPrompts(token_ids, positions_PT.clamp_(min=0), lengths_P, mask)


def _padding_bias(padded: _PaddedPrompts, rows: Tensor) -> Tensor:
    """What is added to each row's scores: -inf on the columns in front of its prompt, (R, 1, widest padding)."""
    longest = padded.token_ids_PT.shape[1]
    padding_R1 = (longest - padded.lengths_P)[rows][:, None]
    columns = torch.arange(int(padding_R1.max()), device=rows.device)
    return torch.zeros(len(rows), len(columns), device=rows.device).masked_fill_(columns < padding_R1, -torch.inf)[
        :, None
    ]
