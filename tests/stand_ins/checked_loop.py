"""A virtual clock with somebody who looks after each callback whether something still holds."""

from __future__ import annotations

from collections.abc import Callable

from harness.simulate.clock import VirtualClockLoop


class CheckedLoop(VirtualClockLoop):
    """Calls ``check`` after each callback until it is closed; what that raises ends the run."""

    def __init__(self, check: Callable[[], object]) -> None:
        super().__init__()
        self._check = check

    def _run_once(self) -> None:
        if not self._ready:
            self._jump()
        while self._ready and not self._stopping:
            call = self._ready.popleft()
            if not call._cancelled:
                call._context.run(call._callback, *call._args)
                self._check()

    def close(self) -> None:
        self._check = lambda: None
        super().close()
