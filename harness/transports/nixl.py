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
from functools import partial
from typing import Any

import ray
from ray.experimental import deregister_nixl_memory, register_nixl_memory, set_target_for_ref
from ray.experimental.rdt.util import get_tensor_transport_manager
from torch import Tensor

from harness.core.types import WeightHandle
from harness.models.flat_layout import BucketLayout
from harness.transports.buffers import BufferSender, CopiedWeights, StoredTensors, empty_tensors, view_tensors
from harness.transports.protocol import TransportOptions


class _Offered(CopiedWeights):
    """A copy whose memory NIXL knows and others may read."""

    def __init__(self, weights: Mapping[str, Tensor], layout: BucketLayout, flatten: bool) -> None:
        super().__init__(weights, layout, flatten)
        for tensor in self.tensors:
            register_nixl_memory(tensor)
        self.refs = [ray.put(self.tensors, _tensor_transport="nixl")]

    def close(self) -> None:
        self.refs.clear()
        for tensor in self.tensors:
            deregister_nixl_memory(tensor)
        super().close()


class NixlSender(BufferSender[_Offered]):
    """Publishes through NIXL, in registered memory. Its actor needs ``enable_tensor_transport=True``."""

    def __init__(self, options: TransportOptions) -> None:
        super().__init__(partial(_Offered, flatten=options.flatten), options.buffers_at_start)
        self.notes = start_nixl_agent(options.progress_thread_delay_us)

    def _payload(self, buffer: _Offered, version: int) -> StoredTensors:
        return StoredTensors(list(buffer.refs), buffer.layout, buffer.flatten)


class NixlReceiver:
    """Reads through NIXL; see ``protocol.WeightReceiver``. Its actor needs ``enable_tensor_transport=True``."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes = start_nixl_agent(options.progress_thread_delay_us)
        self._preallocate, self._device = options.preallocate, options.device
        self._layout: BucketLayout | None = None
        self._buffers: list[Tensor] = []

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Read the weights into this receiver's buffers, or fresh ones without ``preallocate``."""
        payload: StoredTensors = weight_handle.payload
        if self._preallocate:
            self._fit_buffers(payload)
            set_target_for_ref(payload.refs[0], self._buffers)
        tensors = ray.get(payload.refs[0])
        return view_tensors(payload.layout, payload.flatten, tensors)

    def close(self) -> None:
        """Give the buffers back."""
        for tensor in self._buffers:
            deregister_nixl_memory(tensor)
        self._buffers, self._layout = [], None

    def _fit_buffers(self, payload: StoredTensors) -> None:
        if payload.layout == self._layout:
            return
        self.close()
        self._buffers = empty_tensors(payload.layout, payload.flatten, self._device)
        self._layout = payload.layout
        for tensor in self._buffers:
            register_nixl_memory(tensor)


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
