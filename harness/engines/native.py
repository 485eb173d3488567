"""The harness' own engine: batched sampling from its own model, tuned for one CPU core and runnable anywhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from harness.core.errors import UserError
from harness.core.protocols import Tokenizer
from harness.engines.batch import BatchEngine
from harness.engines.decode import CachedDecoder
from harness.engines.huggingface import HuggingFaceEngine
from harness.engines.sorting import SortingEngine
from harness.engines.weights import build_weights
from harness.models.config import ModelConfig
from harness.models.decoder import DecoderLM
from harness.models.sorting import SortingModel

Precision = Literal["float32", "bfloat16", "float16"]
CachePrecision = Literal["float32", "bfloat16"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class NativeEngine(BatchEngine):
    """Samples from its own copy of the policy's weights; it has none until ``load_weights``.

    Weights may be loaded on one thread while ``generate`` runs on another: each token is drawn, and its log-probability
    taken, from one consistent set of weights, and ``Completion.versions`` says from which. Keys and values cached by
    older weights stay, as in PipelineRL (Piche et al. 2025, arXiv:2509.19128): later tokens attend to them, so their
    log-probabilities are not quite those of a pass of the new weights over the whole sequence. On a GPU both threads
    must launch on one stream, which keeps the order of writing, reading and reusing memory.

    On a GPU a token costs what the host needs to launch some 22 kernels a layer, whatever the number of rows
    (docs/measured/h100.md).

    Args:
        precision: of weights and hidden states.
        kv_cache: precision of cached keys and values and of the products with them; softmax is float32 either way.
        options: of ``BatchEngine``.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        *,
        precision: Precision = "float32",
        kv_cache: CachePrecision = "float32",
        device: str | torch.device = "cpu",
        **options: Any,
    ) -> None:
        self.config, self.precision, self._device = config, precision, torch.device(device)
        self._new_decoder = partial(CachedDecoder, config, _DTYPES[precision], self._device, _DTYPES[kv_cache])
        self._decoder = self._new_decoder()
        super().__init__(self._decoder, tokenizer, **options)
        self._scoring: CachedDecoder | None = None

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int = 0) -> None:
        """Put a copy of these weights, by Hugging Face name, in the place of the engine's own.

        A ``generate`` that runs on another thread goes on with them at its next token, without stopping meanwhile.

        Raises:
            ValueError: one is missing, misshapen or unknown; the old weights stay.
        """
        with torch.inference_mode():
            self._decoder.weights = build_weights(
                weights, self.config, _DTYPES[self.precision], self._device, version=version
            )

    def _scoring_backend(self) -> CachedDecoder:
        if self._scoring is None:
            self._scoring = self._new_decoder()
        self._scoring.weights = self._decoder.weights
        return self._scoring


def native_engine(
    model: nn.Module,
    tokenizer: Tokenizer,
    *,
    precision: Precision = "float32",
    kv_cache: CachePrecision = "float32",
    device: str | torch.device = "cpu",
    max_batch: int = 256,
    should_stop: Callable[[], bool] | None = None,
    ends: Sequence[int] | None = None,
) -> NativeEngine | HuggingFaceEngine | SortingEngine:
    """Return the harness' own engine for a policy, with a copy of its weights.

    A ``DecoderLM`` gets the ``NativeEngine``, a ``SortingModel`` the ``SortingEngine``; a model of transformers is
    copied into a ``HuggingFaceEngine``. Responses end with ``ends``; None: with those that policy and tokenizer name.

    Raises:
        UserError: ``kv_cache`` for a policy that does not run on the project's own code.
    """
    if kv_cache != "float32" and not isinstance(model, DecoderLM):
        raise UserError(
            f"{type(model).__name__} keeps its own cache, not one in {kv_cache}", "engine.kv_cache", "leave it out"
        )
    dtype = _DTYPES[precision]
    options: dict[str, Any] = {"max_batch": max_batch, "should_stop": should_stop, "ends": ends}
    if isinstance(model, SortingModel):
        return SortingEngine(model, tokenizer, dtype=dtype, device=device, **options)
    if not isinstance(model, DecoderLM):
        return HuggingFaceEngine(copy.deepcopy(model).to(device=device, dtype=dtype), tokenizer, **options)
    options |= {"precision": precision, "kv_cache": kv_cache, "device": device, "model": model}
    engine = NativeEngine(model.config, tokenizer, **options)
    engine.load_weights(model.state_dict())
    return engine
