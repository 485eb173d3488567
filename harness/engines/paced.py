"""An engine that sleeps instead of sampling, and loads weights for real: to measure transports and the loop itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harness.core.errors import Interrupted, RunStopped
from harness.core.seeds import derive_seed
from harness.core.types import Completion, SamplingParams
from harness.engines.limits import check_request
from harness.engines.rng import stream_rows
from harness.engines.weights import check_names_and_shapes, shapes_of

SLICE_S = 0.01
"""Longest sleep between two polls of ``should_stop``."""
RESPONSE_TOKENS = 8
"""Length of a response, its end of sequence included, where the sampling parameters allow it."""

_PAD, _END, _FIRST_BYTE = 0, 1, 2
_FIRST_MADE_UP = _FIRST_BYTE + 256
_MADE_UP_TOKENS = 1000


class PacedTokenizer:
    """One token for each byte of UTF-8. Above them lie the tokens that ``PacedEngine`` makes up, which have no text."""

    eos_token_id, pad_token_id = _END, _PAD

    def encode(self, text: str, **options: Any) -> list[int]:
        """Return a token for each byte."""
        return [_FIRST_BYTE + byte for byte in text.encode()]

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        """Return the text of the tokens that are bytes."""
        return bytes(token - _FIRST_BYTE for token in token_ids if _FIRST_BYTE <= token < _FIRST_MADE_UP).decode(
            errors="replace"
        )

    def __len__(self) -> int:
        """Return the number of tokens there are."""
        return _FIRST_MADE_UP + _MADE_UP_TOKENS


class PacedEngine:
    """Takes a fixed time for a batch and makes its tokens up; what it makes up depends on no weights.

    A call for n of a batch's ``prompts_per_batch`` prompts sleeps n / prompts_per_batch of the batch's seconds, so that
    several engines share a batch out as real ones would; an evaluation of more prompts takes longer alike. Token t of
    the T tokens of a response counts as sampled when t / T of that time is over, by the weights loaded last: loading on
    another thread meanwhile shows in ``Completion.versions``.

    Tokens depend on (seed, place of the prompt, sample index) only; log-probabilities are 0 and texts empty.

    Args:
        generate_s: seconds of one batch.
        spread: how far they may differ from that, as a fraction; drawn evenly from the call's seed.
        prompts_per_batch: prompts of a whole batch.
        should_stop: polled at least every ``SLICE_S``; true ends ``generate`` with ``Interrupted``.

    Attributes:
        weights: its own tensors by name, into which weights are copied.
    """

    context_length = None

    def __init__(
        self,
        generate_s: float,
        spread: float,
        prompts_per_batch: int,
        *,
        device: str = "cpu",
        should_stop: Callable[[], bool] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._generate_s, self._spread, self._prompts_per_batch = generate_s, spread, prompts_per_batch
        self._device, self._should_stop, self._sleep, self._clock = device, should_stop, sleep, clock
        self._loads: list[tuple[float, int]] = []  # seconds on the clock when a version was in place
        self.weights: dict[str, Tensor] = {}

    def load_weights(self, weights: Mapping[str, Tensor], version: int = 0) -> None:
        """Copy these weights into the engine's own tensors; the first load allocates them.

        Raises:
            ValueError: there are none, or one is missing, misshapen or unknown; the old weights stay.
        """
        if not weights:
            raise ValueError("weights not loaded: there are none")
        if not self.weights:
            made: dict[str, Any] = {"requires_grad": False, "device": self._device}
            self.weights = {name: torch.empty_like(tensor, **made) for name, tensor in weights.items()}
        check_names_and_shapes(weights, shapes_of(self.weights), {})
        with torch.no_grad():
            for name, own in self.weights.items():
                own.copy_(weights[name])
        self._loads.append((self._clock(), version))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_samples: int,
        sampling: SamplingParams,
        seed: int,
        places: Sequence[int] | None = None,
    ) -> list[tuple[Completion, ...]]:
        """Sleep, then make up ``num_samples`` responses to each prompt.

        Raises:
            UserError: bad sampling parameters, or an empty prompt.
            Interrupted: ``should_stop`` said so.
            RunStopped: no weights were loaded.
        """
        largest = max((max(prompt, default=0) for prompt in prompts), default=0)
        check_request(prompts, num_samples, sampling, largest + 1, None)
        if not self._loads:
            raise RunStopped("the engine was asked to generate before any weights were loaded")
        started_with, started_s = self._loads[-1][1], self._clock()
        seconds = self.seconds(len(prompts), seed, places[0] if places else 0)
        self._wait(started_s, seconds)
        length = min(_whole_length(sampling), sampling.max_tokens)
        versions_T = self._versions(started_s + np.arange(length) / length * seconds)
        told = versions_T if (versions_T != started_with).any() else None
        return [
            tuple(_completion(stream, sampling, seed, told) for stream in stream_rows(rows, places))
            for rows in ([(prompt, sample) for sample in range(num_samples)] for prompt in range(len(prompts)))
        ]

    def seconds(self, num_prompts: int, seed: int, place: int = 0) -> float:
        """Return how long a call takes whose first prompt has this place in the batch."""
        share = num_prompts / self._prompts_per_batch
        drawn = np.random.default_rng(derive_seed(seed + place, "pace")).uniform(-1, 1)
        return self._generate_s * share * (1 + self._spread * drawn)

    def _wait(self, start_s: float, seconds: float) -> None:
        """Sleep in equal slices, whose number does not depend on how long each of them really took."""
        slices = max(1, math.ceil(seconds / SLICE_S))
        for index in range(slices):
            if self._should_stop is not None and self._should_stop():
                raise Interrupted(f"sampling was stopped after {index} of {slices} parts of {seconds:g} s")
            left_s = start_s + seconds * (index + 1) / slices - self._clock()
            if left_s > 0:
                self._sleep(left_s)

    def _versions(self, moments_T: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the version in place at each moment, none of which is before the first load."""
        at_s, versions = zip(*self._loads, strict=True)
        return np.array(versions, dtype=np.int64)[np.searchsorted(at_s, moments_T, side="right") - 1]


def _whole_length(sampling: SamplingParams) -> int:
    """Tokens of a response that is not cut; the last one, the end of sequence, comes behind ``min_tokens`` others."""
    return max(RESPONSE_TOKENS, sampling.min_tokens + 1)


def _completion(
    stream: tuple[int, int], sampling: SamplingParams, seed: int, versions_T: npt.NDArray[np.int64] | None
) -> Completion:
    whole = _whole_length(sampling)
    length = min(whole, sampling.max_tokens)
    key = (seed % 2**64, *stream) if sampling.temperature > 0 else (0, stream[0], 0)
    token_ids = np.random.default_rng(key).integers(_FIRST_MADE_UP, _FIRST_MADE_UP + _MADE_UP_TOKENS, whole)
    token_ids[-1] = _END
    return Completion(
        token_ids[:length].copy(),
        np.zeros(length, dtype=np.float32),
        "",
        "stop" if length == whole else "length",
        None if versions_T is None else versions_T.copy(),
    )
