"""Ray Direct Transport over NIXL: Generators read the Learner's published copy with one-sided transfers.

Each buffer has one object of Ray Direct Transport, made once and refilled with every version, since such objects refer
to tensors and do not copy them. A new object for each version would cost 2 to 5 ms more, and every Generator would keep
the metadata of each for ever (ray-project/ray#57962).

A process has one NIXL agent, made here with a progress thread that pauses. NIXL's Python class fixes the pause between
two looks of its progress thread at 0, so each agent keeps one core busy for as long as it lives; on two cores that
slowed training steps by 3 to 10 times. Neither NIXL nor Ray, which makes the agent, offers a setting, so the
configuration that NIXL fills in is replaced while Ray makes the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
import torch
from ray.experimental import deregister_nixl_memory, register_nixl_memory, set_target_for_ref
from ray.experimental.rdt.util import get_tensor_transport_manager
from torch import Tensor

from harness.core.types import WeightHandle
from harness.models.flat_layout import BucketLayout
from harness.settings.transport import NixlTransportSettings
from harness.transports.buffers import BufferSender, CopiedWeights, StoredTensor
from harness.transports.protocol import TransportOptions


class _Offered(CopiedWeights):
    """A copy whose memory NIXL knows and others may read."""

    def __init__(self, weights: Mapping[str, Tensor], layout: BucketLayout) -> None:
        super().__init__(weights, layout)
        register_nixl_memory(self.tensor)
        self.refs = [ray.put([self.tensor], _tensor_transport="nixl")]

    def close(self) -> None:
        self.refs.clear()
        deregister_nixl_memory(self.tensor)
        super().close()


class NixlSender(BufferSender[_Offered]):
    """Publishes through NIXL, in registered memory. Its actor needs ``enable_tensor_transport=True``."""

    def __init__(self, options: TransportOptions) -> None:
        super().__init__(_Offered, options.buffers_at_start)
        self.notes = start_nixl_agent(options)

    def _payload(self, buffer: _Offered, version: int) -> StoredTensor:
        return StoredTensor(list(buffer.refs), buffer.layout)


class NixlReceiver:
    """Reads through NIXL into a buffer that it keeps. Its actor needs ``enable_tensor_transport=True``."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes = start_nixl_agent(options)
        self._device = options.device
        self._layout: BucketLayout | None = None
        self._buffer: Tensor | None = None

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        payload: StoredTensor = weight_handle.payload
        if payload.layout != self._layout:
            self.close()
            self._buffer = torch.empty(payload.layout.num_bytes, dtype=torch.uint8, device=self._device)
            self._layout = payload.layout
            register_nixl_memory(self._buffer)
        set_target_for_ref(payload.refs[0], [self._buffer])
        (tensor,) = ray.get(payload.refs[0])
        return payload.layout.views(tensor)

    def close(self) -> None:
        if self._buffer is not None:
            deregister_nixl_memory(self._buffer)
        self._buffer, self._layout = None, None


def start_nixl_agent(options: TransportOptions) -> tuple[str, ...]:
    """Make this process's agent, which takes about half a second, and return NIXL's own log lines about it.

    Where the process has an agent already, that one stays and there are no lines.
    """
    from nixl import _bindings as bindings

    settings = options.settings if isinstance(options.settings, NixlTransportSettings) else NixlTransportSettings()
    with _progress_delay(bindings, settings.progress_thread_delay_us), _log_lines("nixl") as lines:
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
