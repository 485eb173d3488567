"""A static key/value cache with the views that each decoding step needs, and prompts padded to fit it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from harness.models.config import ModelConfig


class LayerColumns(NamedTuple):
    """Views of one layer's cache: the newest column's keys and values (2, R * Hkv, D), to be filled; and as ``bmm``
    wants them all keys (R * Hkv, D, T) and all values (R * Hkv, T, D) up to and with that column.
    """

    newest: Tensor
    keys_t: Tensor
    values: Tensor


class KeyValueCache:
    """Keys and values (L, 2, R, Hkv, T, D) in float32, allocated for the largest batch so far and reused.

    Prompts are aligned at their ends, so that all rows write the same column at each step.

    Args:
        config: the model's shape.
        device: where the cache lives.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._config = config
        self._arena = torch.empty(0, device=device)

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
    lengths_P: Tensor
    mask_P1TT: Tensor | None


def pad(prompts: Sequence[Sequence[int]], device: torch.device) -> PaddedPrompts:
    """Align prompts at their ends. Positions count from each prompt's first token; padding sees itself alone."""
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    token_ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    lengths_P = torch.tensor(lengths, device=device)
    columns = torch.arange(longest, device=device)
    positions_PT = columns - (longest - lengths_P)[:, None]
    mask = None
    if min(lengths) < longest:
        itself = columns == columns[:, None]
        causal = columns <= columns[:, None]
        mask = (causal & (positions_PT >= 0)[:, None, :] | itself)[:, None]
    return PaddedPrompts(token_ids, positions_PT.clamp_(min=0), lengths_P, mask)


def padding_bias(padded: PaddedPrompts, prompt_of_row: Tensor) -> Tensor | None:
    """What is added to each row's scores: -inf on the columns before its prompt, (R, 1, widest padding), or None."""
    if padded.mask_P1TT is None:
        return None
    padding_R1 = (padded.token_ids_PT.shape[1] - padded.lengths_P)[prompt_of_row][:, None]
    columns = torch.arange(int(padding_R1.max()), device=prompt_of_row.device)
    bias_RT = torch.zeros(len(prompt_of_row), len(columns), device=prompt_of_row.device)
    return bias_RT.masked_fill_(columns < padding_R1, -torch.inf)[:, None]
