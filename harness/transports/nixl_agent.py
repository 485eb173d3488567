"""The one NIXL agent of a process, made with a progress thread that pauses.

NIXL's Python class fixes the pause between two looks of its progress thread at 0, so each agent keeps one core busy for
as long as it lives; on two cores that slowed training steps by 3 to 10 times. Neither NIXL nor Ray, which makes the
agent, offers a setting, so the configuration that NIXL fills in is replaced while Ray makes the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.experimental.rdt.util import get_tensor_transport_manager


def start_nixl_agent(progress_thread_delay_us: int) -> tuple[str, ...]:
    """Make this process's agent, which takes about half a second, and return NIXL's own log lines about it.

    Where the process has an agent already, that one stays and there are no lines.
    """
    from nixl import _bindings as bindings

    with _progress_delay(bindings, progress_thread_delay_us), _log_lines("nixl") as lines:
        manager: Any = get_tensor_transport_manager("NIXL")
        manager.get_nixl_agent()
    return tuple(f"NIXL: {line}" for line in lines)


@contextmanager
def _progress_delay(bindings: Any, delay_us: int) -> Iterator[None]:
    """While open, an agent configuration has this delay, whatever is written into it."""
    original: Any = bindings.nixlAgentConfig

    class PausingConfig(original):  # type: ignore[misc]
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, delay_us if name == "pthrDelay" else value)

    bindings.nixlAgentConfig = PausingConfig
    try:
        yield
    finally:
        bindings.nixlAgentConfig = original


@contextmanager
def _log_lines(logger_name: str) -> Iterator[list[str]]:
    lines: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Collect()
    logger = logging.getLogger(logger_name)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
