"""An engine without a model: made-up responses at once, for tests of everything around an engine. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.core.errors import Interrupted
from harness.core.protocols import Tokenizer
from harness.core.types import Completion, SamplingParams
from harness.engines.requests import check_request, split_stop
from harness.engines.rng import pinned_lengths, stream_rows
from harness.models.ends import end_tokens

if TYPE_CHECKING:
    import torch

_END_PROBABILITY = 0.1
_FIRST_WORD = 2


class FakeEngine:
    """Draws tokens evenly from its vocabulary; each token after ``min_tokens`` ends the response one time in ten.

    What it draws depends on (seed, place of the prompt, sample index) only, neither on the prompts nor on any weights.
    At temperature 0 all samples of a prompt are equal, whatever the seed. ``top_p`` is ignored, and so is ``stop`` but
    for tokens, which it does not draw.

    Args:
        tokenizer: decodes; without one a response reads ``w7 w12``.
        vocab_size: token ids are below this; 0 and 1 are padding and the end of sequence.
        should_stop: polled before every prompt; true ends ``generate`` with ``Interrupted``.
        ends: tokens that end a response, of which it draws the first; None: the tokenizer's end of sequence.
    """

    context_length = None

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        *,
        vocab_size: int = 128,
        should_stop: Callable[[], bool] | None = None,
        ends: Sequence[int] | None = None,
    ) -> None:
        self._tokenizer, self._should_stop = tokenizer, should_stop
        of_tokenizer = (1,) if tokenizer is None else end_tokens(None, tokenizer)
        self._ends, self._vocab_size = of_tokenizer if ends is None else ends, vocab_size
        self.loads = 0

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int = 0) -> None:
        """Count the load. The version is not used: what is drawn depends on no weights.

        Raises:
            ValueError: there are no weights.
        """
        if not weights:
            raise ValueError("weights not loaded: there are none")
        self.loads += 1

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_samples: int,
        sampling: SamplingParams,
        seed: int,
        places: Sequence[int] | None = None,
    ) -> list[tuple[Completion, ...]]:
        """Make up ``num_samples`` responses to each prompt; see ``protocols.Engine``.

        Raises:
            UserError: bad sampling parameters, or an empty prompt.
            Interrupted: ``should_stop`` said so.
        """
        largest = max((max(prompt, default=0) for prompt in prompts), default=0)
        check_request(prompts, num_samples, sampling, largest + 1, None)
        ends = self._ends if self._tokenizer is None else (*self._ends, *split_stop(self._tokenizer, sampling.stop)[0])
        words = np.array([word for word in range(_FIRST_WORD, self._vocab_size) if word not in ends])
        groups = []
        for prompt in range(len(prompts)):
            if self._should_stop is not None and self._should_stop():
                raise Interrupted(f"sampling was stopped after {prompt} of {len(prompts)} prompts")
            streams = stream_rows([(prompt, sample) for sample in range(num_samples)], places)
            groups.append(tuple(self._completion(stream, words, sampling, seed) for stream in streams))
        return groups

    def _completion(
        self, stream: tuple[int, int], words: npt.NDArray[np.int64], sampling: SamplingParams, seed: int
    ) -> Completion:
        key = (seed % 2**64, *stream) if sampling.temperature > 0 else (0, stream[0], 0)
        longest, can_end_after = sampling.max_tokens, sampling.min_tokens
        if sampling.pinned_lengths is not None:
            (longest,) = pinned_lengths(seed, [stream], sampling.pinned_lengths).tolist()
            can_end_after = longest
        uniforms_T2 = np.random.default_rng(key).random((longest, 2))
        token_ids = words[(uniforms_T2[:, 0] * len(words)).astype(np.int64)]
        ends = np.flatnonzero(uniforms_T2[can_end_after:, 1] < _END_PROBABILITY)
        stopped = len(ends) > 0
        if stopped:
            token_ids = token_ids[: can_end_after + ends[0] + 1]
            token_ids[-1] = self._ends[0]
        log_probs = np.full(len(token_ids), np.log((1 - _END_PROBABILITY) / len(words)))
        log_probs[:can_end_after] = -np.log(len(words))
        if stopped:
            log_probs[-1] = np.log(_END_PROBABILITY)
        return Completion(
            token_ids.astype(np.int64),
            log_probs.astype(np.float32),
            self._decode(token_ids.tolist()),
            "stop" if stopped else "length",
        )

    def _decode(self, token_ids: list[int]) -> str:
        if self._tokenizer is not None:
            return self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return " ".join(f"w{token}" for token in token_ids if token not in self._ends)
