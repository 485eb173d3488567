"""Between which two tokens newer weights take the place of older ones: noted, or as another run noted it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from harness.core.errors import Interrupted

W = TypeVar("W")
POLL_S = 0.1


class Swaps(Generic[W]):
    """Weights that one thread loads while another one samples with them.

    Args:
        put: has the next token sampled with these weights.
        keeps: keep what was loaded until a call that is told its swaps has come to it; else only the newest.
        should_stop: asked while a call waits for weights.

    Attributes:
        made: swaps of the last call: forward passes of the call before, and the version from there on. The first one
            is of the weights that it began with; a second one of pass 0 came just before the first token.
    """

    def __init__(self, put: Callable[[W], None], keeps: bool, should_stop: Callable[[], bool] | None) -> None:
        self._put, self._keeps, self._should_stop = put, keeps, should_stop
        self._changed = threading.Condition()
        self._loaded: dict[int, W] = {}  # in the order of loading
        self._passes, self._in_use = 0, -1
        self._is_sampling = False
        self._due: Sequence[tuple[int, int]] | None = None
        self.made: tuple[tuple[int, int], ...] = ()

    @property
    def newest(self) -> W:
        """The weights loaded last."""
        with self._changed:
            return next(reversed(self._loaded.values()))

    def load(self, version: int, weights: W) -> None:
        """Take in weights; a call under way goes on with them at its next token, or when they are due."""
        with self._changed:
            self._loaded.pop(version, None)
            self._loaded[version] = weights
            if not self._keeps:
                self._loaded = {version: weights}
            if not self._is_sampling:
                self._put(weights)
            self._changed.notify_all()

    def begin(self, due: Sequence[tuple[int, int]] | None) -> None:
        """A call begins.

        Args:
            due: its swaps, as in ``made``; None: each version as soon as it is there.

        Raises:
            Interrupted: ``should_stop`` said so.
        """
        with self._changed:
            self._is_sampling, self._due, self._passes, self.made = True, due, -1, ()
            self._swap()

    def before_pass(self) -> None:
        """A forward pass of the call comes next.

        Raises:
            Interrupted: ``should_stop`` said so.
        """
        with self._changed:
            self._passes += 1
            self._swap()

    def _swap(self) -> None:
        if self._due is None:
            version = next(reversed(self._loaded), self._in_use)
        else:
            begun = self._passes >= 0
            version = [new for at, new in self._due if at <= self._passes][-1] if begun else self._due[0][1]
            while version not in self._loaded:
                if self._should_stop is not None and self._should_stop():
                    raise Interrupted(f"stopped while version {version} was waited for")
                self._changed.wait(POLL_S)
        if version != self._in_use or not self.made:
            self._use(version)
            self.made += ((max(0, self._passes), version),)

    def _use(self, version: int) -> None:
        if version in self._loaded:
            self._put(self._loaded[version])
            self._in_use = version
            for older in [old for old in self._loaded if old < version]:
                del self._loaded[older]

    def end(self) -> None:
        """The call is over: what was loaded last is in use."""
        with self._changed:
            self._is_sampling, self._due = False, None
            if self._loaded:
                self._use(next(reversed(self._loaded)))
