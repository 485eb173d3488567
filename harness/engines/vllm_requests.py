"""The requests in a vLLM of this process: added, taken one step further, and held still while weights change."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
            self._sinks[name] = sink
            engine.add_request(name, {"type": "token", "prompt_token_ids": [int(token) for token in token_ids]}, params)
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
