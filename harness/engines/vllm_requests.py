"""The requests in a vLLM of this process: what each is told, how all are taken further and held still, and their rows.

Without vLLM itself, so that what it is told can be tested anywhere.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.core.errors import Diverged, RunStopped
from harness.core.protocols import Tokenizer
from harness.core.types import Completion, SamplingParams
from harness.engines.batch import Row
from harness.engines.rng import pinned_lengths
from harness.engines.stop_strings import StopStrings, decode_text

Sink = Callable[[Any, int], None]
"""Takes what vLLM says of one request after a step, and the version of the weights that made the step."""

_NUMBERS = itertools.count()


class Requests:
    """The requests in a vLLM, which any thread may take one step further; what comes out goes to whoever asked.

    Attributes:
        version: of the weights in place.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._turnstile, self._lock = threading.Lock(), threading.Lock()
        self._sinks: dict[str, Sink] = {}
        self.version = 0

    @contextmanager
    def paused(self) -> Iterator[Any]:
        """Hold all requests between two steps. Whoever waits here comes before the next step, even of a busy thread."""
        with self._turnstile, self._lock:
            yield self._engine

    def add(self, token_ids: Sequence[int], params: Any, sink: Sink) -> str:
        """Add a request; return its name."""
        name = f"{next(_NUMBERS)}"
        with self.paused() as engine:
            engine.add_request(name, {"type": "token", "prompt_token_ids": [int(token) for token in token_ids]}, params)
            self._sinks[name] = sink
        return name

    def step(self) -> bool:
        """Take all requests one step further; return whether there were any: another thread may have ended the last."""
        with self.paused() as engine:
            if not engine.has_unfinished_requests():
                return False
            for output in engine.step():
                sink = self._sinks.get(output.request_id)
                if output.finished:
                    self._sinks.pop(output.request_id, None)
                if sink is not None:
                    sink(output, self.version)
            return True

    def drop(self, names: Sequence[str]) -> None:
        """End requests that nobody needs any more."""
        alive = [name for name in names if self._sinks.pop(name, None) is not None]
        if alive:
            with self.paused() as engine:
                engine.abort_request(alive)


def lengths_of(streams: Mapping[Row, Row], sampling: SamplingParams, seed: int) -> Mapping[Row, int]:
    """Return the pinned length of each row, given the stream that it draws from; empty where none is."""
    if sampling.pinned_lengths is None or not streams:
        return {}
    drawn = pinned_lengths(seed, list(streams.values()), sampling.pinned_lengths)
    return dict(zip(streams, drawn.tolist(), strict=True))


def row_options(sampling: SamplingParams, seed: int, *, ends: Sequence[int], length: int | None) -> dict[str, Any]:
    """Return what vLLM's ``SamplingParams`` is told of one row.

    Args:
        sampling: of the request.
        seed: of the row.
        ends: tokens that end a response.
        length: where it is pinned; such a row must not draw an end token before it.
    """
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p if sampling.temperature > 0 else 1.0,
        "min_tokens": sampling.min_tokens if length is None else length,
        "max_tokens": sampling.max_tokens if length is None else length,
        "stop_token_ids": list(ends),
        "seed": seed,
        "logprobs": 0,
    }


def into_scores(
    scored: dict[int, npt.NDArray[np.float32]], number: int, prompt_length: int, response: Sequence[int]
) -> Sink:
    """Return what puts the log-probabilities (T,) of a response into ``scored`` under its number."""

    def take(output: Any, version: int) -> None:
        if output.finished:
            found = output.prompt_logprobs[prompt_length:]
            log_probs = [of_token[token].logprob for of_token, token in zip(found, response, strict=True)]
            scored[number] = np.array(log_probs, dtype=np.float32)

    return take


class ResponseRow:
    """One response on its way: what it has so far, when it ends, and what it becomes.

    vLLM is asked for at most ``max_tokens`` tokens; end tokens and stop strings are found here too, by the same rule as
    in the harness' own engines. A response of pinned length ends with neither.

    Attributes:
        row: (prompt index, sample index).
        is_done: whether nothing follows.
        was_cut: whether vLLM has to be told so.
    """

    def __init__(self, row: Row, sampling: SamplingParams, stops: StopStrings) -> None:
        self.row, self._min_tokens, self._stops = row, sampling.min_tokens, stops
        self._is_pinned = sampling.pinned_lengths is not None
        self.token_ids: list[int] = []
        self.log_probs: list[float] = []
        self.versions: list[int] = []
        self.is_done = self.was_cut = self._ended = False

    def __call__(self, output: Any, version: int) -> None:
        """Append what vLLM newly sampled of it with the weights of this version.

        Raises:
            RunStopped: vLLM gave the request up.
        """
        sampled = output.outputs[0]
        if sampled.finish_reason not in (None, "stop", "length"):
            raise RunStopped(f"vLLM ended a response by itself, of prompt {self.row[0]}: {sampled.finish_reason}")
        of_tokens = zip(sampled.logprobs, sampled.token_ids, strict=True)
        log_probs = [of_token[token].logprob for of_token, token in of_tokens]
        self.take(sampled.token_ids, log_probs, version, sampled.finish_reason)

    def take(self, token_ids: Sequence[int], log_probs: Sequence[float], version: int, finish: str | None) -> None:
        """Append tokens; ``finish`` is why vLLM ended the response, None where it goes on."""
        for token, log_prob in zip(token_ids, log_probs, strict=True):
            if self.is_done:
                return
            self.token_ids.append(token)
            self.log_probs.append(log_prob)
            self.versions.append(version)
            if self._ends_it(token):
                self.is_done = self._ended = True
        if finish is not None:
            self.is_done, self._ended = True, self._ended or finish == "stop"
        else:
            self.was_cut = self.is_done

    def _ends_it(self, token: int) -> bool:
        if self._is_pinned or len(self.token_ids) <= self._min_tokens:
            return False
        return token in self._stops.ends or self._stops.is_completed_by_last(self.token_ids)

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

    Raises:
        Diverged: a log-probability is not a number.
    """
    told = any(version != started_with for row in rows for version in row.versions)
    by_prompt: list[list[Completion]] = [[] for _ in range(num_prompts)]
    for row in sorted(rows, key=lambda row: row.row):
        by_prompt[row.row[0]].append(row.completion(tokenizer, told))
    return [tuple(group) for group in by_prompt]
