"""An engine for policies of any architecture: transformers computes, the harness samples.

Slower than the native engine, which runs the harness' own model, but bound by the same contract. Prompts run once a
group and finished rows leave, so it does less work than ``generate`` on the same model.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from harness.core.errors import UserError
from harness.core.protocols import Tokenizer
from harness.engines.batch import BatchEngine
from harness.engines.weights import check_names_and_shapes, shapes_of
from harness.models.config import context_length


class TransformersBackend:
    """The ``DecodeBackend`` of any causal language model of transformers that keeps a ``Cache``.

    Args:
        model: in evaluation mode; its weights must not change while a batch is decoded.
    """

    version = logits_version = 0  # one set of weights serves a whole call, so none needs a name of its own

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        self._takes = inspect.signature(model.forward).parameters.keys() & {"position_ids", "logits_to_keep"}

    @property
    def vocab_size(self) -> int:
        return int(self._model.get_output_embeddings().weight.shape[0])

    @property
    def context_length(self) -> int | None:
        return context_length(self._model.config)

    def prefill(self, prompts: Sequence[Sequence[int]], prompt_of_row: Sequence[int], max_tokens: int) -> Tensor:
        longest = max(len(prompt) for prompt in prompts)
        device = self._model.device
        token_ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._mask = (torch.arange(longest, device=device) >= longest - lengths[:, None]).long()
        self._cache: Any = None
        logits_PV = self._forward(token_ids, (self._mask.cumsum(-1) - 1).clamp_(min=0))
        rows = torch.tensor(prompt_of_row, device=device)
        self._select(rows)
        self._positions_R = lengths[rows]
        return logits_PV[rows]

    def step(self, token_ids_R: Tensor) -> Tensor:
        self._mask = torch.cat((self._mask, torch.ones_like(self._mask[:, :1])), dim=1)
        logits_RV = self._forward(token_ids_R[:, None], self._positions_R[:, None])
        self._positions_R = self._positions_R + 1
        return logits_RV

    def compact(self, sources: Sequence[int], targets: Sequence[int], num_rows: int) -> None:
        kept = torch.arange(num_rows, device=self._mask.device)
        kept[list(targets)] = torch.tensor(sources, dtype=torch.long, device=kept.device)
        self._select(kept)
        self._positions_R = self._positions_R[kept]

    def _forward(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        options: dict[str, Any] = {"position_ids": positions} if "position_ids" in self._takes else {}
        if "logits_to_keep" in self._takes:
            options["logits_to_keep"] = 1
        output = self._model(
            input_ids=token_ids, attention_mask=self._mask, past_key_values=self._cache, use_cache=True, **options
        )
        self._cache = output.past_key_values
        return output.logits[:, -1].float()

    def _select(self, rows: Tensor) -> None:
        if not hasattr(self._cache, "reorder_cache"):
            raise UserError(
                f"{type(self._model).__name__} keeps no cache whose rows can be copied",
                "model.path",
                "choose an architecture that transformers decodes with a Cache",
            )
        self._cache.reorder_cache(rows)
        self._mask = self._mask[rows]


class HuggingFaceEngine(BatchEngine):
    """Samples from any causal language model of transformers.

    One set of weights serves a whole ``generate``, and ``Completion.versions`` is always None: loading writes into the
    model's own tensors, so it waits until a call that runs on another thread has ended, and so does ``score``.

    Args:
        model: becomes the engine's own, weights and all: hand over a copy of a model that is trained elsewhere.
        options: of ``BatchEngine``.
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, **options: Any) -> None:
        self._model = model.eval().requires_grad_(False)
        super().__init__(TransformersBackend(model), tokenizer, model=model, **options)
        self.weights_in_use = threading.Lock()

    def load_weights(self, weights: Mapping[str, Tensor], version: int = 0) -> None:
        """Copy these weights over the engine's own, once no ``generate`` runs; no version is told.

        Buffers and the second name of a tied weight may be among them.

        Raises:
            ValueError: one is missing, misshapen or unknown; the old weights stay.
        """
        own = self._model.state_dict()
        check_names_and_shapes(weights, shapes_of(dict(self._model.named_parameters())), shapes_of(own))
        with self.weights_in_use, torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)
