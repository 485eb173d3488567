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

from harness.core.types import SamplingParams
from harness.engines.batch import Row
from harness.engines.rng import pinned_lengths

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
