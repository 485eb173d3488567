"""The sampling engine of the sorting toy: all positions' logits come from the prompt, and are drawn one after another.

It is the model side of the harness' own sampling loop, so that seeds, streams, temperature and versions mean what they
mean for every other engine.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harness.core.protocols import Tokenizer
from harness.core.types import Completion, SamplingParams
from harness.engines.batch import BatchEngine
from harness.engines.limits import check_sampling
from harness.engines.weights import check_names_and_shapes, shapes_of
from harness.models.sorting import SortingModel


@dataclass(frozen=True, eq=False)
class _Loaded:
    """A model that nobody changes any more."""

    model: SortingModel
    version: int


class _SortingBackend:
    """Keeps the logits (P, T, V) of a batch's prompts; a step only looks up the next position of each row."""

    context_length = None

    def __init__(self, loaded: _Loaded) -> None:
        self.loaded = loaded
        self.vocab_size = loaded.model.vocab_size
        self.logits_version = loaded.version
        self._computed_by: _Loaded | None = None

    @property
    def version(self) -> int:
        return self.loaded.version

    def prefill(self, prompts: Sequence[Sequence[int]], prompt_of_row: Sequence[int], max_tokens: int) -> Tensor:
        device = self.loaded.model.embedding.device
        longest = max(map(len, prompts))
        padded = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
        self._prompts_PL = torch.tensor(padded, device=device)
        self._lengths_P = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._prompt_of_row_R = torch.tensor(prompt_of_row, device=device)
        self._position, self._computed_by = 0, None
        return self._next_logits()

    def step(self, token_ids_R: Tensor) -> Tensor:
        # the tokens so far have no influence
        self._position += 1
        return self._next_logits()

    def compact(self, sources: Sequence[int], targets: Sequence[int], num_rows: int) -> None:
        self._prompt_of_row_R[targets] = self._prompt_of_row_R[sources]
        self._prompt_of_row_R = self._prompt_of_row_R[:num_rows]

    def _next_logits(self) -> Tensor:
        loaded = self.loaded  # once: another thread may load weights meanwhile
        if loaded is not self._computed_by:
            self._logits_PTV = loaded.model(self._prompts_PL, self._lengths_P).float()
            self._computed_by, self.logits_version = loaded, loaded.version
        return self._logits_PTV[self._prompt_of_row_R, self._position]


class SortingEngine(BatchEngine):
    """Samples from its own copy of a sorting model, a number for each position of the response.

    A response that has all its positions has ended by itself (``stop``); ``max_tokens`` below that cuts it
    (``length``), and a larger one means nothing. New weights are in place at the next position.

    Args:
        model: copied.
        dtype, device: of the copy.
        options: of ``BatchEngine``; ``ends`` end a response before its last position.
    """

    _backend: _SortingBackend

    def __init__(
        self,
        model: SortingModel,
        tokenizer: Tokenizer,
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        **options: Any,
    ) -> None:
        copied = copy.deepcopy(model).to(device=device, dtype=dtype).requires_grad_(False)
        super().__init__(_SortingBackend(_Loaded(copied, 0)), tokenizer, model=model, **options)

    def load_weights(self, weights: Mapping[str, Tensor], version: int = 0) -> None:
        """Put a copy of these weights in the place of the engine's own.

        Raises:
            ValueError: one is missing, misshapen or unknown; the old weights stay.
        """
        own = self._backend.loaded.model.state_dict()
        check_names_and_shapes(weights, shapes_of(own), {})
        model = copy.deepcopy(self._backend.loaded.model)
        model.load_state_dict({name: weights[name].detach() for name in own})
        self._backend.loaded = _Loaded(model, version)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_samples: int,
        sampling: SamplingParams,
        seed: int,
        places: Sequence[int] | None = None,
    ) -> list[tuple[Completion, ...]]:
        check_sampling(sampling, num_samples)
        model = self._backend.loaded.model
        model.check_prompt_length(max(map(len, prompts), default=0))
        most = min(sampling.max_tokens, model.response_length)
        fewest = min(sampling.min_tokens, most) if self._ends else 0  # where nothing ends a response, none is banned
        bounded = replace(sampling, max_tokens=most, min_tokens=fewest)
        return [
            tuple(
                each if len(each.token_ids) < model.response_length else replace(each, finish_reason="stop")
                for each in group
            )
            for group in super().generate(prompts, num_samples, bounded, seed, places)
        ]

    def score(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[npt.NDArray[np.float32]]:
        self._backend.loaded.model.check_prompt_length(max(map(len, prompts), default=0))
        return super().score(prompts, responses)

    def _scoring_backend(self) -> _SortingBackend:
        return _SortingBackend(self._backend.loaded)
