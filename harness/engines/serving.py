"""What engines of other makers (vLLM, SGLang) have in common: requests of single rows, made into completions here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor, nn

from harness.core.errors import Diverged
from harness.core.protocols import Tokenizer
from harness.core.seeds import derive_seed
from harness.core.types import Completion, SamplingParams
from harness.engines.batch import Row
from harness.engines.limits import check_request
from harness.engines.rng import pinned_lengths, stream_rows
from harness.engines.stop_strings import StopStrings, decode_text
from harness.engines.weights import check_names_and_shapes, shapes_of
from harness.models.ends import end_tokens


class ResponseRow:
    """One response on its way: what it has so far, when it ends, and what it becomes.

    End tokens and stop strings are found here too, by the same rule as in the harness' own engines. A response of
    pinned length ends with neither: its ``min_tokens`` and ``max_tokens`` are that length.

    Attributes:
        is_done: whether nothing follows.
        was_cut: whether the engine has to be told so.
    """

    def __init__(
        self,
        row: Row,
        sampling: SamplingParams,
        stops: StopStrings,
        *,
        prompt: Sequence[int] = (),
        seed: int = 0,
        length: int | None = None,
    ) -> None:
        self.row, self.stops, self.prompt, self.seed, self.is_pinned = row, stops, prompt, seed, length is not None
        self.min_tokens = sampling.min_tokens if length is None else length
        self.max_tokens = sampling.max_tokens if length is None else length
        self.token_ids: list[int] = []
        self.log_probs: list[float] = []
        self.versions: list[int] = []
        self.is_done = self.was_cut = self._ended = False

    def take(self, token_ids: Sequence[int], log_probs: Sequence[float], version: int, finish: str | None) -> None:
        """Append tokens; ``finish`` is why the engine ended the response, None where it goes on."""
        for token, log_prob in zip(token_ids, log_probs, strict=True):
            if self.is_done:
                return
            self.token_ids.append(token)
            self.log_probs.append(log_prob)
            self.versions.append(version)
            if len(self.token_ids) > self.min_tokens:
                ends = token in self.stops.ends or self.stops.is_completed_by_last(self.token_ids)
                self.is_done = self._ended = ends
        if finish is not None:
            self.is_done, self._ended = True, self._ended or finish == "stop"
        else:
            self.was_cut = self.is_done

    def completion(self, tokenizer: Tokenizer, with_versions: bool) -> Completion:
        """Return the row as a completion; raises ``Diverged`` where a log-probability is not a number."""
        log_probs_T = np.array(self.log_probs, dtype=np.float32)
        if not np.isfinite(log_probs_T).all():
            token = int(np.flatnonzero(~np.isfinite(log_probs_T))[0])
            raise Diverged(
                f"the policy's logits are not finite at prompt {self.row[0]}, sample {self.row[1]}, token {token}: "
                "its weights have diverged"
            )
        return Completion(
            np.array(self.token_ids, dtype=np.int64),
            log_probs_T,
            decode_text(tokenizer, self.token_ids),
            "stop" if self._ended else "length",
            np.array(self.versions, dtype=np.int64) if with_versions else None,
        )


def to_completions(
    rows: Sequence[ResponseRow], num_prompts: int, started_with: int, tokenizer: Tokenizer
) -> list[tuple[Completion, ...]]:
    """Return the completions of each prompt, samples in order.

    They tell versions only where the weights in place at the start did not sample every token; then all of them do.
    """
    told = any(version != started_with for row in rows for version in row.versions)
    by_prompt: list[list[Completion]] = [[] for _ in range(num_prompts)]
    for row in sorted(rows, key=lambda row: row.row):
        by_prompt[row.row[0]].append(row.completion(tokenizer, told))
    return [tuple(group) for group in by_prompt]


def response_rows(
    prompts: Sequence[Sequence[int]],
    num_samples: int,
    sampling: SamplingParams,
    seed: int,
    places: Sequence[int] | None,
    stops: StopStrings,
) -> list[ResponseRow]:
    """Return the rows of a request, each with its own seed and, where lengths are pinned, its length."""
    order = [(prompt, sample) for prompt in range(len(prompts)) for sample in range(num_samples)]
    streams, bounds = stream_rows(order, places), sampling.pinned_lengths
    lengths = pinned_lengths(seed, streams, bounds).tolist() if bounds and streams else [None] * len(order)
    return [
        ResponseRow(row, sampling, stops, prompt=prompts[row[0]], seed=derive_seed(seed, *stream), length=length)
        for row, stream, length in zip(order, streams, lengths, strict=True)
    ]


class ServingEngine(ABC):
    """An engine that takes requests: all but how rows are sampled, tokens scored and weights put in.

    Args:
        model: the policy, whose names and shapes each load must have; it is not kept.
        tokenizer: decodes.
        vocab_size, context_length: most tokens that the model knows, and that a row may have (None: not known).
        ends: tokens that end a response; None: those that policy and tokenizer name.
        max_batch: most rows sampled at a time.
        should_stop: polled while rows are sampled; true ends ``generate`` with ``Interrupted``.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        context_length: int | None,
        ends: Sequence[int] | None = None,
        max_batch: int = 256,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        self._tokenizer, self._max_batch, self._should_stop = tokenizer, max_batch, should_stop
        self._ends = end_tokens(model, tokenizer) if ends is None else ends
        self._shapes = shapes_of(dict(model.named_parameters()))
        self._second_names = shapes_of(model.state_dict())
        self._vocab_size, self.context_length = vocab_size, context_length

    @property
    def version(self) -> int:
        """Version of the weights in place, where the engine tells them apart."""
        return 0

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_samples: int,
        sampling: SamplingParams,
        seed: int,
        places: Sequence[int] | None = None,
    ) -> list[tuple[Completion, ...]]:
        """Sample ``num_samples`` responses to each prompt of token ids; arguments as in ``core.protocols.Engine``.

        Raises:
            UserError: bad sampling parameters, or a prompt that is empty, unknown to the model or too long.
            Interrupted: ``should_stop`` said so.
            Diverged: the model's logits are not numbers.
            RunStopped: the engine lost a request, gave one up, or lost a worker.
        """
        check_request(prompts, num_samples, sampling, self._vocab_size, self.context_length)
        started_with = self.version
        stops = StopStrings(self._tokenizer, sampling.stop, sampling.min_tokens, self._ends, self._vocab_size)
        rows = response_rows(prompts, num_samples, sampling, seed, places, stops)
        self._sample(rows, sampling)
        return to_completions(rows, len(prompts), started_with, self._tokenizer)

    @abstractmethod
    def _sample(self, rows: Sequence[ResponseRow], sampling: SamplingParams) -> None:
        """Have every row sampled to its end, ``max_batch`` at a time."""

    def _known(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the policy's parameters among these; buffers and second names of tied weights may be among them.

        Raises:
            ValueError: one is missing, misshapen or unknown.
        """
        check_names_and_shapes(weights, self._shapes, self._second_names)
        return {name: weights[name].detach() for name in self._shapes}
