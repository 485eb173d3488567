"""The engine behind which a model decodes: requests cut into batches, rows that finish and leave, completions.

A *row* is one response being sampled: (prompt index, sample index). The model side, a ``DecodeBackend``, keeps its rows
in slots 0, 1, ..., and knows nothing of sampling. When rows finish, rows from the last slots move into the freed ones,
so a finished row costs nothing from the next step on. Given tokens are scored by decoding them one by one in the same
way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from harness.core.errors import Diverged, Interrupted
from harness.core.protocols import Tokenizer
from harness.core.types import Completion, SamplingParams
from harness.engines.limits import check_request, check_scored
from harness.engines.rng import pinned_lengths, row_uniforms, stream_rows
from harness.engines.sampling import draw
from harness.engines.stop_strings import StopStrings, decode_text
from harness.models.ends import end_tokens

Row = tuple[int, int]
"""(prompt index, sample index)."""


class DecodeBackend(Protocol):
    """A model that decodes one batch of rows at a time. The logits it returns are the caller's to overwrite.

    Attributes:
        vocab_size: number of logits.
        context_length: most tokens a prompt and its response may have together; None: no bound.
        version: of the weights in place; another thread may replace them.
        logits_version: of the weights that computed the logits returned last.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def context_length(self) -> int | None: ...
    @property
    def version(self) -> int: ...
    @property
    def logits_version(self) -> int: ...

    def prefill(self, prompts: Sequence[Sequence[int]], prompt_of_row: Sequence[int], max_tokens: int) -> Tensor:
        """Start a batch: run each prompt once, give every row its prompt's cache; return logits (R, V), float32.

        ``prompt_of_row`` has for each row the index into ``prompts``; at most ``max_tokens`` tokens will follow.
        """

    def step(self, token_ids_R: Tensor) -> Tensor:
        """Append one token to each row; return the logits (R, V) of the next, float32."""

    def compact(self, sources: Sequence[int], targets: Sequence[int], num_rows: int) -> None:
        """Move the rows in slots ``sources`` to slots ``targets``, then keep the first ``num_rows`` slots only."""


@dataclass(slots=True)
class DecodeStats:
    """What one ``generate`` call computed.

    ``prefill_tokens`` counts prompt tokens, once a group; ``decode_steps`` counts forward passes behind the prefill and
    ``decode_row_steps`` the rows in them: a response of n tokens takes n - 1, its first token coming from the prefill.
    """

    prefill_tokens: int = 0
    decode_steps: int = 0
    decode_row_steps: int = 0
    sampled_tokens: int = 0


class BatchEngine:
    """Samples and scores with a backend: all of an engine but the way in which weights get there.

    Log-probabilities are those of the distribution a token was drawn from: after temperature and top-p, and without the
    end tokens among the first ``min_tokens`` tokens. At temperature 0 they are those of temperature 1. Completions tell
    the versions of their tokens only where the weights in place when ``generate`` began did not sample every token of
    the call; then all of them do.

    Args:
        max_batch: most rows decoded at a time; larger requests are served in turns.
        should_stop: polled before every token; true ends ``generate`` with ``Interrupted``.
        ends: tokens that end a response; None: those that ``model``, where it is given, and tokenizer name.

    Attributes:
        last_stats: what the last ``generate`` computed.
        weights_in_use: held while the backend computes.
    """

    weights_in_use: AbstractContextManager[Any] = nullcontext()

    def __init__(
        self,
        backend: DecodeBackend,
        tokenizer: Tokenizer,
        *,
        model: nn.Module | None = None,
        max_batch: int = 256,
        should_stop: Callable[[], bool] | None = None,
        ends: Sequence[int] | None = None,
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch is {max_batch}, must be at least 1")
        self._backend, self._tokenizer, self._max_batch = backend, tokenizer, max_batch
        self._should_stop, self._ends = should_stop, end_tokens(model, tokenizer) if ends is None else ends
        self.last_stats = DecodeStats()

    @property
    def context_length(self) -> int | None:
        """Most tokens a prompt and its response may have together; None: no bound."""
        return self._backend.context_length

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
            RunStopped: the model's logits are not numbers, or no weights were loaded.
        """
        with self.weights_in_use, torch.inference_mode():
            backend = self._backend
            check_request(prompts, num_samples, sampling, backend.vocab_size, backend.context_length)
            stops = StopStrings(self._tokenizer, sampling.stop, sampling.min_tokens, self._ends, backend.vocab_size)
            self.last_stats = DecodeStats()
            started_with = backend.version
            batches = []
            for rows in split_into_batches(len(prompts), num_samples, self._max_batch):
                batch = _Rows(rows, stream_rows(rows, places), sampling, seed, stops)
                self._run(batch, prompts, sampling, seed)
                batch.check_finite()
                batches.append(batch)
            told = any((batch.versions_T != started_with).any() for batch in batches)
            completions = [each for batch in batches for each in batch.completions(self._tokenizer, told)]
        return [tuple(completions[first : first + num_samples]) for first in range(0, len(completions), num_samples)]

    def score(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[npt.NDArray[np.float32]]:
        """Return the log-probabilities (T,) of each response's tokens, as ``core.protocols.ScoringEngine`` says."""
        with self.weights_in_use, torch.inference_mode():
            return forced_log_probs(self._scoring_backend(), prompts, responses)

    def _scoring_backend(self) -> DecodeBackend:
        """One that loses nothing when it starts a batch, with the weights loaded last."""
        return self._backend

    def _run(self, batch: _Rows, prompts: Sequence[Sequence[int]], sampling: SamplingParams, seed: int) -> None:
        rows, stats = batch.rows, self.last_stats
        first_prompt, last_prompt = rows[0][0], rows[-1][0]
        wanted = prompts[first_prompt : last_prompt + 1]
        self._poll(0, sampling)
        logits_RV = self._backend.prefill(wanted, [row[0] - first_prompt for row in rows], sampling.max_tokens)
        stats.prefill_tokens += sum(len(prompt) for prompt in wanted)
        uniforms_TR = None
        if sampling.temperature > 0:
            uniforms_TR = torch.from_numpy(row_uniforms(seed, batch.streams, sampling.max_tokens))
            uniforms_TR = uniforms_TR.to(logits_RV.device)
        while True:
            tokens_R = self._draw(batch, logits_RV, sampling, uniforms_TR)
            if batch.is_done:
                break
            self._poll(batch.length, sampling)
            logits_RV = self._backend.step(tokens_R)
            stats.decode_steps += 1
            stats.decode_row_steps += len(tokens_R)
        stats.sampled_tokens += int(batch.lengths_R.sum())

    def _draw(self, batch: _Rows, logits_RV: Tensor, sampling: SamplingParams, uniforms_TR: Tensor | None) -> Tensor:
        """Draw and record a token for each live row, let finished rows leave, and return the tokens that go on."""
        uniforms_R = None if uniforms_TR is None else batch.of_live_rows(uniforms_TR[batch.length])
        goes_on = sampling.pinned_lengths is not None or batch.length < sampling.min_tokens
        tokens_R, log_probs_R = draw(logits_RV, sampling, uniforms_R, batch.ends if goes_on else ())
        finished = batch.record(*_on_host(tokens_R, log_probs_R), self._backend.logits_version)
        if finished is None or batch.is_done:
            return tokens_R
        sources, targets, num_rows = batch.drop(finished)
        self._backend.compact(sources, targets, num_rows)
        tokens_R[targets] = tokens_R[sources]
        return tokens_R[:num_rows]

    def _poll(self, length: int, sampling: SamplingParams) -> None:
        """Called before every forward pass."""
        if self._should_stop is not None and self._should_stop():
            raise Interrupted(f"sampling was stopped after {length} of at most {sampling.max_tokens} tokens")


def _on_host(tokens_R: Tensor, log_probs_R: Tensor) -> tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.float32]]:
    """Both by one copy, since each waits for the device."""
    if tokens_R.device.type == "cpu":
        return tokens_R.numpy(), log_probs_R.numpy()
    both_2R = torch.stack((tokens_R.int(), log_probs_R.view(torch.int32))).cpu().numpy()
    return both_2R[0], both_2R[1].view(np.float32)


def split_into_batches(num_prompts: int, num_samples: int, max_batch: int) -> Iterator[list[Row]]:
    """Yield the rows of each batch: whole groups, as many as fit, or pieces of one group if a group is too large."""
    if num_samples > max_batch:
        for prompt in range(num_prompts):
            for first in range(0, num_samples, max_batch):
                yield [(prompt, sample) for sample in range(first, min(first + max_batch, num_samples))]
        return
    groups = max_batch // num_samples
    for first in range(0, num_prompts, groups):
        last = min(first + groups, num_prompts)
        yield [(prompt, sample) for prompt in range(first, last) for sample in range(num_samples)]


def fill_holes(finished: npt.NDArray[np.bool_]) -> tuple[list[int], list[int], int]:
    """Plan how the rows that go on close ranks: (slots to move from, slots to move to, number of rows left)."""
    num_left = int((~finished).sum())
    targets = np.flatnonzero(finished[:num_left])
    sources = num_left + np.flatnonzero(~finished[num_left:])
    return sources.tolist(), targets.tolist(), num_left


class _Rows:
    """What the rows of one batch have sampled so far, and which row sits in which slot."""

    def __init__(
        self, rows: Sequence[Row], streams: Sequence[Row], sampling: SamplingParams, seed: int, stops: StopStrings
    ) -> None:
        shape, bounds = (sampling.max_tokens, len(rows)), sampling.pinned_lengths
        self.rows, self.streams, self._sampling, self._stops = rows, streams, sampling, stops
        self._pinned_R = None if bounds is None else pinned_lengths(seed, streams, bounds)
        self.ends, self._ends_E1 = stops.ends, np.array(stops.ends, dtype=np.int64)[:, None]
        self._token_ids_TR = np.zeros(shape, dtype=np.int64)
        self._log_probs_TR = np.zeros(shape, dtype=np.float32)
        self._versions_T = np.zeros(sampling.max_tokens, dtype=np.int64)
        self._row_in_slot = np.arange(len(rows))
        self._rows_on_device: Tensor | None = None  # the same, since a row left
        self._stopped_at_R = np.zeros(len(rows), dtype=np.int64)
        self.length = 0

    @property
    def is_done(self) -> bool:
        """Whether no row needs another token."""
        return self.length == self._sampling.max_tokens or bool(self._stopped_at_R.all())

    @property
    def lengths_R(self) -> npt.NDArray[np.int64]:
        """Tokens of each row so far."""
        return np.where(self._stopped_at_R, self._stopped_at_R, self.length)

    @property
    def versions_T(self) -> npt.NDArray[np.int64]:
        """The policy version that sampled each token, up to the longest row's: all rows step together."""
        return self._versions_T[: self.length]

    def of_live_rows(self, values_R: Tensor) -> Tensor:
        """Pick, from one value for each row, those of the rows still in a slot, in the order of the slots."""
        if len(self._row_in_slot) == len(self.rows):
            return values_R
        if self._rows_on_device is None:
            self._rows_on_device = torch.from_numpy(self._row_in_slot).to(values_R.device)
        return values_R[self._rows_on_device]

    def record(
        self, tokens: npt.NDArray[np.integer[Any]], log_probs: npt.NDArray[np.float32], version: int
    ) -> npt.NDArray[np.bool_] | None:
        """Append a token, sampled by ``version``, to the row in each slot; return which slots it finishes, if any."""
        self._token_ids_TR[self.length, self._row_in_slot] = tokens
        self._log_probs_TR[self.length, self._row_in_slot] = log_probs
        self._versions_T[self.length] = version
        self.length += 1
        finished = self._finished(tokens)
        if not finished.any():
            return None
        self._stopped_at_R[self._row_in_slot[finished]] = self.length
        return finished

    def _finished(self, tokens: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
        if self._pinned_R is not None:
            return np.asarray(self._pinned_R[self._row_in_slot] == self.length)
        if self.length <= self._sampling.min_tokens:
            return np.zeros(len(tokens), dtype=np.bool_)
        finished = (tokens == self._ends_E1).any(0)
        if self._stops:
            for slot, token in enumerate(tokens.tolist()):
                if not finished[slot] and self._stops.is_suspect(token):
                    row = self._row_in_slot[slot]
                    finished[slot] = self._stops.completed_by_last(self._token_ids_TR[: self.length, row].tolist())
        return finished

    def drop(self, finished: npt.NDArray[np.bool_]) -> tuple[list[int], list[int], int]:
        """Let the finished slots' rows leave; return the plan by which the others close ranks."""
        sources, targets, num_rows = fill_holes(finished)
        self._row_in_slot[targets] = self._row_in_slot[sources]
        self._row_in_slot, self._rows_on_device = self._row_in_slot[:num_rows].copy(), None
        return sources, targets, num_rows

    def check_finite(self) -> None:
        """Raise ``Diverged`` where a log-probability is not a number."""
        if not np.isfinite(self._log_probs_TR).all():
            token, row = np.argwhere(~np.isfinite(self._log_probs_TR))[0].tolist()
            raise Diverged(
                f"the policy's logits are not finite at prompt {self.rows[row][0]}, sample {self.rows[row][1]}, "
                f"token {token}: its weights have diverged"
            )

    def completions(self, tokenizer: Tokenizer, with_versions: bool) -> Iterator[Completion]:
        """The rows as completions, in the order they were given."""
        for row, length in enumerate(self.lengths_R.tolist()):
            token_ids = self._token_ids_TR[:length, row].copy()
            yield Completion(
                token_ids,
                self._log_probs_TR[:length, row].copy(),
                decode_text(tokenizer, token_ids.tolist()),
                "stop" if self._stopped_at_R[row] and self._pinned_R is None else "length",
                self._versions_T[:length].copy() if with_versions else None,
            )


def forced_log_probs(
    backend: DecodeBackend, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> list[npt.NDArray[np.float32]]:
    """Return the log-probabilities (T,) of each response's tokens; what the backend was decoding is lost.

    Raises:
        UserError: a prompt or response is empty, unknown to the model, or too long together.
    """
    check_scored(prompts, responses, backend.vocab_size, backend.context_length)
    if not responses:
        return []
    rows_S = np.arange(len(responses))  # which row sits in each slot
    found: list[list[float]] = [[] for _ in responses]
    logits_SV = backend.prefill(prompts, range(len(prompts)), max(map(len, responses)))
    for place in range(max(map(len, responses))):
        rows = rows_S.tolist()
        tokens_S = torch.tensor([responses[row][place] for row in rows], device=logits_SV.device)
        log_probs_S = logits_SV.log_softmax(-1).gather(1, tokens_S[:, None])[:, 0]
        for row, log_prob in zip(rows, log_probs_S.tolist(), strict=True):
            found[row].append(log_prob)
        finished_S = np.array([len(responses[row]) == place + 1 for row in rows])
        if finished_S.all():
            break
        if finished_S.any():
            sources, targets, left = fill_holes(finished_S)
            backend.compact(sources, targets, left)
            rows_S[targets], tokens_S[targets] = rows_S[sources], tokens_S[sources]
            rows_S, tokens_S = rows_S[:left], tokens_S[:left]
        logits_SV = backend.step(tokens_S)
    return [np.array(log_probs, dtype=np.float32) for log_probs in found]
