"""Decoding with the harness' own model: a static key/value cache, prefill, then one token a row and step.

Measured on a Zen 4 core (64 rows, 8 query and 4 key/value heads of 32, 30 tokens): for single queries, two ``bmm``
around a softmax take 60% of the time of ``scaled_dot_product_attention`` in float32, and 30% of its time in bfloat16.
So attention and its cache are float32 whatever the precision of the weights, unless bfloat16 is asked for: half the
memory, which is what bounds the rows of a batch on a GPU.

With a small model on one core the way into and out of each kernel costs a tenth of a step or more. Hence the buffers
and views that are made once for each number of rows, and kernels that write straight into them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.core.errors import RunStopped
from harness.engines.weights import InferenceWeights, LayerWeights
from harness.models.config import ModelConfig
from harness.models.decoder import rotation_at
from harness.models.matmul import rounded_up

_FIRST_POSITIONS = 4096
"""Rotations that are computed at once; contexts of today reach 131,072, and few responses are as long."""
PROMPT_TOKENS_ON_GPU = 2**13
"""Prompt tokens, with padding, that a GPU computes at a time: what they need beside the cache stays below 1 GB."""


class LayerColumns(NamedTuple):
    """Views of one layer's cache: the newest column's keys and values (2, R * Hkv, D), to be filled; and as ``bmm``
    wants them all keys (R * Hkv, D, T) and all values (R * Hkv, T, D) up to and with that column.
    """

    newest: Tensor
    keys_t: Tensor
    values: Tensor


class KeyValueCache:
    """Keys and values (L, 2, R, Hkv, T, D), allocated for the largest batch so far and reused.

    Prompts are aligned at their ends, so that all rows write the same column at each step.
    """

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self._config, self.dtype = config, dtype
        self._arena = torch.empty(0, dtype=dtype, device=device)

    def allocate(self, num_rows: int, num_columns: int) -> None:
        """Make room for a new batch; what was cached is lost."""
        config = self._config
        shape = (config.num_hidden_layers, 2, num_rows, config.num_key_value_heads, num_columns, config.head_dim)
        size = torch.Size(shape).numel()
        if self._arena.numel() < size:
            self._arena = self._arena.new_empty(0)  # lets go of the old one first
            self._arena = self._arena.new_empty(size)
        self._data = self._arena[:size].view(shape)
        self.resize(num_rows)

    def resize(self, num_rows: int) -> None:
        """Keep the first ``num_rows`` rows."""
        self._data = self._data[:, :, :num_rows]
        num_layers, _, _, _, num_columns, head_dim = self._data.shape
        self._flat = self._data.view(num_layers, 2, -1, num_columns, head_dim)
        self._keys_t, self._values = self._flat[:, 0].transpose(2, 3), self._flat[:, 1]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` columns of one row over another."""
        self._data[:, :, target, :, :length] = self._data[:, :, source, :, :length]

    def prompts(self, length: int) -> tuple[Tensor, ...]:
        """For each layer the keys and values (2, R, Hkv, length, D) of the first columns, to be filled."""
        return self._data[..., :length, :].unbind(0)

    def columns(self, index: int) -> list[LayerColumns]:
        """For each layer what the step that fills column ``index`` needs."""
        end = index + 1
        views = (self._flat[:, :, :, index], self._keys_t[..., :end], self._values[:, :, :end])
        return [LayerColumns(*layer) for layer in zip(*(view.unbind(0) for view in views), strict=True)]


class PaddedPrompts(NamedTuple):
    """Prompts aligned at their ends; the mask, True where a token may look, is None if none is padded."""

    token_ids_PT: Tensor
    positions_PT: Tensor
    mask_P1TT: Tensor | None


def pad(prompts: Sequence[Sequence[int]], longest: int, device: torch.device) -> PaddedPrompts:
    """Align prompts at their ends. Positions count from each prompt's first token; padding sees itself alone."""
    lengths = [len(prompt) for prompt in prompts]
    token_ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    columns, mask = torch.arange(longest, device=device), None
    positions_PT = columns - (longest - torch.tensor(lengths, device=device))[:, None]
    if min(lengths) < longest:
        itself, causal = columns == columns[:, None], columns <= columns[:, None]
        mask = (causal & (positions_PT >= 0)[:, None, :] | itself)[:, None]
    return PaddedPrompts(token_ids, positions_PT.clamp_(min=0), mask)


def padding_bias(padding_R: Tensor, widest: int) -> Tensor | None:
    """What is added to each row's scores: -inf on the columns before its prompt, (R, 1, widest), or None."""
    if widest == 0:
        return None
    padding_R1, columns = padding_R[:, None], torch.arange(widest, device=padding_R.device)
    bias_RT = torch.zeros(len(padding_R), widest, device=padding_R.device)
    return bias_RT.masked_fill_(columns < padding_R1, -torch.inf)[:, None]


def rotation_table(config: ModelConfig, length: int) -> Tensor:
    """exp(i * position * frequency), complex64 (length, D/2); Su et al. 2021."""
    cos, sin = rotation_at(torch.arange(length), config)
    return torch.complex(cos, sin).squeeze(1)


class _Buffers:
    """What a step overwrites, made once for each number of rows; some of it seen in two ways."""

    def __init__(self, config: ModelConfig, num_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        groups, group_size, head_dim = config.num_key_value_heads, config.queries_per_key, config.head_dim
        self.normed_RC = torch.empty(num_rows, config.hidden_size, dtype=dtype, device=device)
        # what qkv's pairs (R, F = Hkv * (G + 2) * D/2) are multiplied with, 1 for the values; and without the values
        rotation = torch.ones(num_rows, groups, group_size + 2, head_dim // 2, dtype=torch.complex64, device=device)
        self.rotation_RF, self.rotation = rotation.view(num_rows, -1), rotation[:, :, : group_size + 1]
        # the pairs when rotated: among them queries (R * Hkv, G, D), keys and values (2, R * Hkv, D)
        rotated = torch.empty_like(rotation)
        heads = torch.view_as_real(rotated).view(num_rows * groups, group_size + 2, head_dim)
        self.rotated_RF = rotated.view(num_rows, -1)
        self.queries, self.keys_values = heads[:, :group_size], heads[:, group_size:].transpose(0, 1)
        # the attention's output, (R * Hkv, G, D) and (R, Hq * D)
        self.attended = torch.empty(num_rows * groups, group_size, head_dim, device=device)
        self.attended_RC = self.attended.view(num_rows, config.query_size)


class CachedDecoder:
    """The ``DecodeBackend`` of the native engine.

    ``weights``, laid out by ``build_weights``, must be set before the first batch. They may be replaced at any moment,
    from another thread too: a prefill or step computes with the ones that it found when it began, the next one with the
    new ones, over the cache of the old.

    Args:
        dtype: of the weights.
        cache_dtype: of the cached keys and values, and of the products with them.

    Attributes:
        prompt_tokens: most tokens of prompts, with padding, that are computed at a time; None: all of a batch.
    """

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, device: torch.device, cache_dtype: torch.dtype = torch.float32
    ) -> None:
        self.config, self._dtype, self._device = config, dtype, device
        self.weights: InferenceWeights | None = None
        self.logits_version = 0
        self.prompt_tokens = None if device.type == "cpu" else PROMPT_TOKENS_ON_GPU
        self._cache = KeyValueCache(config, device, cache_dtype)
        self._rotations = rotation_table(config, min(config.max_position_embeddings, _FIRST_POSITIONS)).to(device)
        self._norm_floor = torch.tensor(math.sqrt(config.hidden_size * config.rms_norm_eps), device=device)
        self._head_norm_floor = torch.tensor(math.sqrt(config.head_dim * config.rms_norm_eps), device=device)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context_length(self) -> int:
        return self.config.max_position_embeddings

    @property
    def version(self) -> int:
        return self._loaded().version

    def prefill(self, prompts: Sequence[Sequence[int]], prompt_of_row: Sequence[int], max_tokens: int) -> Tensor:
        weights, lengths = self._loaded(), [len(prompt) for prompt in prompts]
        self.logits_version, self._length = weights.version, max(lengths)
        rows = torch.tensor(prompt_of_row, device=self._device)
        if self._length + max_tokens > len(self._rotations):
            needed = min(2 * (self._length + max_tokens), self.context_length)
            self._rotations = rotation_table(self.config, needed).to(self._device)
        self._positions_R = torch.tensor(lengths, device=self._device)[rows]
        widest = self._length - min(lengths[prompt] for prompt in prompt_of_row)
        self._padding_R1T = padding_bias(self._length - self._positions_R, widest)
        self._cache.allocate(len(rows), self._length + max_tokens - 1)
        self._buffers = _Buffers(self.config, len(rows), self._dtype, self._device)
        at_once = len(prompts) if self.prompt_tokens is None else max(1, self.prompt_tokens // self._length)
        logits = [
            self._prefill_part(weights, prompts[first : first + at_once], first, prompt_of_row)
            for first in range(0, len(prompts), at_once)
        ]
        return torch.cat(logits)[rows]

    def _prefill_part(
        self, weights: InferenceWeights, prompts: Sequence[Sequence[int]], first: int, prompt_of_row: Sequence[int]
    ) -> Tensor:
        """Fill the cache of these prompts' rows; return the prompts' logits. ``first`` is the number of the first."""
        padded, of_part = pad(prompts, self._length, self._device), [prompt - first for prompt in prompt_of_row]
        slots = [slot for slot, prompt in enumerate(of_part) if 0 <= prompt < len(prompts)]
        rows = torch.tensor([of_part[slot] for slot in slots], device=self._device)
        hidden = weights.embedding[padded.token_ids_PT]
        rotation = self._rotations[padded.positions_PT][:, :, None, None]
        places = slice(None) if len(slots) == len(of_part) else torch.tensor(slots, device=self._device)
        for layer, cached in zip(weights.layers, self._cache.prompts(self._length), strict=True):
            is_last = layer is weights.layers[-1]
            q, k, v = self._prompt_heads(hidden, layer, rotation)
            cached[0][places], cached[1][places] = k[rows].to(cached.dtype), v[rows].to(cached.dtype)
            hidden = self._prompt_layer(hidden, q, k, v, layer, padded, is_last)
        return weights.head(self._norm(hidden, torch.empty_like(hidden))).float()

    def step(self, token_ids_R: Tensor) -> Tensor:
        weights, buffers = self._loaded(), self._buffers
        self.logits_version = weights.version
        num_rows = len(token_ids_R)
        x_RC = weights.embedding.index_select(0, F.pad(token_ids_R, (0, len(self._positions_R) - num_rows)))
        buffers.rotation[:] = self._rotations.index_select(0, self._positions_R)[:, None, None]
        for layer, columns in zip(weights.layers, self._cache.columns(self._length), strict=True):
            self._attend(x_RC, layer, columns)
            x_RC = self._finish_layer(x_RC, buffers.attended_RC, layer, buffers.normed_RC)
        self._positions_R += 1
        self._length += 1
        return weights.head(self._norm(x_RC, buffers.normed_RC))[:num_rows].float()

    def compact(self, sources: Sequence[int], targets: Sequence[int], num_rows: int) -> None:
        for source, target in zip(sources, targets, strict=True):
            self._cache.move(source, target, self._length)
            self._positions_R[target] = self._positions_R[source]
            if self._padding_R1T is not None:
                self._padding_R1T[target] = self._padding_R1T[source]
        num_slots = rounded_up(num_rows)  # the slots behind the rows decode on, and nobody looks
        if num_slots >= len(self._positions_R):
            return
        self._cache.resize(num_slots)
        self._buffers = _Buffers(self.config, num_slots, self._dtype, self._device)
        self._positions_R = self._positions_R[:num_slots]
        if self._padding_R1T is not None:
            self._padding_R1T = self._padding_R1T[:num_slots]

    def _loaded(self) -> InferenceWeights:
        if self.weights is None:
            raise RunStopped("the engine was asked to generate before any weights were loaded")
        return self.weights

    def _norm(self, x_RC: Tensor, out_RC: Tensor) -> Tensor:
        """RMSNorm (Zhang and Sennrich 2019) without its gain and without its factor sqrt(C), which the weights hold.

        x / sqrt(mean(x^2) + eps) = sqrt(C) * x / hypot(|x|, sqrt(C * eps)): three kernels, ``F.rms_norm`` runs six.
        """
        x_RC = x_RC.float()
        length_R1 = torch.linalg.vector_norm(x_RC, dim=-1, keepdim=True)
        return torch.div(x_RC, torch.hypot(length_R1, self._norm_floor), out=out_RC)

    def _norm_heads(self, heads_RF: Tensor, layer: LayerWeights) -> None:
        """Norm the queries and the key of each group in place, where the model does; as ``_norm``, with the gain."""
        if layer.head_gains is None:
            return
        groups = heads_RF.view(len(heads_RF), self.config.num_key_value_heads, -1, self.config.head_dim)
        queries_and_key = groups[:, :, :-1]
        lengths = torch.linalg.vector_norm(queries_and_key, dim=-1, keepdim=True)
        queries_and_key.div_(torch.hypot(lengths, self._head_norm_floor)).mul_(layer.head_gains)

    def _attend(self, x_RC: Tensor, layer: LayerWeights, columns: LayerColumns) -> None:
        """Attention of each row's newest token over its cache, into ``attended``; the query heads of a key share it."""
        buffers = self._buffers
        heads_RF = layer.qkv(self._norm(x_RC, buffers.normed_RC)).float()
        self._norm_heads(heads_RF, layer)
        torch.mul(heads_RF.view(torch.complex64), buffers.rotation_RF, out=buffers.rotated_RF)
        columns.newest.copy_(buffers.keys_values)
        scores = torch.bmm(buffers.queries.to(self._cache.dtype), columns.keys_t).float()
        if self._padding_R1T is not None:
            scores.view(len(x_RC), -1, scores.shape[2])[:, :, : self._padding_R1T.shape[2]] += self._padding_R1T
        probabilities = torch.softmax(scores, -1)
        if self._cache.dtype is torch.float32:
            torch.bmm(probabilities, columns.values, out=buffers.attended)
        else:
            buffers.attended.copy_(torch.bmm(probabilities.to(self._cache.dtype), columns.values))

    def _finish_layer(self, x_RC: Tensor, attended_RC: Tensor, layer: LayerWeights, normed_RC: Tensor) -> Tensor:
        """Output projection and SwiGLU (Shazeer 2020), each added to the residual stream."""
        x_RC = layer.o.plus(attended_RC.to(self._dtype), x_RC)
        self._norm(x_RC, normed_RC)
        return layer.down.plus(layer.up.times(normed_RC, layer.gate.silu(normed_RC)), x_RC)

    def _prompt_heads(self, x_PTC: Tensor, layer: LayerWeights, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries (P, Hq, T, D) and keys, and values, (P, Hkv, T, D)."""
        x, config = x_PTC.flatten(0, 1), self.config
        heads = layer.qkv(self._norm(x, torch.empty_like(x))).float()
        self._norm_heads(heads, layer)
        heads = heads.view(*x_PTC.shape[:2], config.num_key_value_heads, -1, config.head_dim)
        qk, v = heads[..., :-1, :], heads[..., -1, :]
        rotated = torch.view_as_real(torch.view_as_complex(qk.unflatten(-1, (-1, 2))) * rotation).flatten(-2)
        q = rotated[..., :-1, :].permute(0, 2, 3, 1, 4).flatten(1, 2)
        return q, rotated[..., -1, :].transpose(1, 2), v.transpose(1, 2)

    def _prompt_layer(
        self, x_PTC: Tensor, q: Tensor, k: Tensor, v: Tensor, layer: LayerWeights, padded: PaddedPrompts, is_last: bool
    ) -> Tensor:
        """One layer's hidden states over whole prompts (P, T, C); of the last layer those of the last tokens (P, C).

        Behind the last layer's keys and values only the last token of a prompt matters.
        """
        mask = padded.mask_P1TT
        if is_last:
            x_PTC, q = x_PTC[:, -1:], q[:, :, -1:]
            mask = None if mask is None else mask[:, :, -1:]
        if self._device.type != "cpu":  # with grouped heads no fused kernel takes a mask, nor float32
            is_flash = mask is None and self._dtype is not torch.float32
            times = 1 if is_flash else q.shape[1] // k.shape[1]
            q, k, v = q.to(self._dtype), *(part.to(self._dtype).repeat_interleave(times, 1) for part in (k, v))
        attended = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None and not is_last, scale=1.0, enable_gqa=q.shape[1] != k.shape[1]
        )
        x = x_PTC.flatten(0, 1)
        x = self._finish_layer(x, attended.transpose(1, 2).reshape(len(x), -1), layer, torch.empty_like(x))
        return x if is_last else x.view(x_PTC.shape)
