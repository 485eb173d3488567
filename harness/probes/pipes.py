"""Both ends of a sampler's pipes, one JSON value a line: neither waits for whoever is at the other end."""

from __future__ import annotations

import json
import os
import select
from typing import Any

_GOODBYE_S = 5.0
_PENDING_BYTES = 64 * 2**20  # at 5 Hz more than an hour of samples that nobody reads

Sample = dict[str, Any]
"""``at_ns`` of the machine's monotonic clock, and ``rows``: ``source``, ``values`` and, if any, ``missing``."""


class Outbox:
    """Writes lines to a pipe without ever waiting for its reader: what does not fit is kept for later."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor, self._pending, self.dropped = descriptor, bytearray(), 0

    def add(self, sample: Sample) -> None:
        """Send a sample, or keep it; where far too many are kept already, drop it and count it."""
        if len(self._pending) > _PENDING_BYTES:
            self.dropped += 1
            return
        self._pending += json.dumps(sample, separators=(",", ":")).encode() + b"\n"
        self.push()

    def push(self) -> None:
        """Send as much of what was kept as the pipe takes.

        Raises:
            BrokenPipeError: nobody is there to read it.
        """
        while self._pending:
            try:
                del self._pending[: os.write(self._descriptor, self._pending)]
            except BlockingIOError:
                return

    def finish(self, patience_s: float = _GOODBYE_S) -> None:
        """Send the rest, waiting for the reader; where nobody reads for this long, it is lost."""
        self.push()
        while self._pending and select.select([], [self._descriptor], [], patience_s)[1]:
            self.push()


class Inbox:
    """Reads orders, one JSON line each, from a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._rest = descriptor, b""

    def wait(self, timeout_s: float) -> list[Any] | None:
        """Return the orders that arrived within this time; None once the input has ended."""
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return []
        data = os.read(self._descriptor, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None
