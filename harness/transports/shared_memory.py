"""Weights written once into memory of the host, from which every Generator on it loads: one copy in, one copy out.

The memory has no name: it is an anonymous file (``memfd_create``) that others open through ``/proc/PID/fd``. So it is
not bounded by the size of ``/dev/shm``, and the kernel frees it when the processes end, however they end.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor

from harness.core.errors import RunStopped, UserError
from harness.core.types import WeightHandle
from harness.transports.buffers import BucketLayout, BufferSender, copy_weights, from_read_only
from harness.transports.protocol import TransportOptions

_HEADER = struct.Struct("<16sq")  # nonce, version
_WEIGHTS_AT = 64  # bytes: the header's line, so that the weights stay aligned
_BEING_WRITTEN = -1


@dataclass(frozen=True, slots=True)
class SegmentAddress:
    """Where a segment can be opened; its memory begins with ``nonce``, since process and descriptor numbers recur."""

    host: str
    pid: int
    descriptor: int
    num_bytes: int
    nonce: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SharedMemoryPayload:
    """The segment and what lies in it."""

    address: SegmentAddress
    layout: BucketLayout = field(repr=False)


@cache
def this_host() -> str:
    """What the processes that may open each other's descriptors have in common: a boot and a PID namespace."""
    with open("/proc/sys/kernel/random/boot_id") as boot_id:
        return f"{boot_id.read().strip()} {os.readlink('/proc/self/ns/pid')}"


class Segment:
    """A writable segment of this process; a ``buffers.Buffer``."""

    def __init__(self, weights: Mapping[str, Tensor], layout: BucketLayout) -> None:
        self.layout = layout
        num_bytes = _WEIGHTS_AT + layout.num_bytes
        self._descriptor = os.memfd_create("weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._descriptor, num_bytes)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._memory = torch.frombuffer(mmap.mmap(self._descriptor, num_bytes), dtype=torch.uint8)
        self.views: Mapping[str, Tensor] = layout.views(self._memory[_WEIGHTS_AT:])
        self.address = SegmentAddress(this_host(), os.getpid(), self._descriptor, num_bytes, secrets.token_bytes(16))

    def fill(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy the weights in; while that lasts, the header names no version."""
        self._write_header(_BEING_WRITTEN)
        copy_weights(weights, self.views)
        self._write_header(version)

    def close(self) -> None:
        """Close the descriptor; the memory goes when the last mapping of it does."""
        os.close(self._descriptor)
        self.views, self._memory = {}, torch.empty(0, dtype=torch.uint8)

    def _write_header(self, version: int) -> None:
        _HEADER.pack_into(self._memory.numpy().data, 0, self.address.nonce, version)


class SharedMemorySender(BufferSender[Segment]):
    """Publishes segments of shared memory."""

    def __init__(self, options: TransportOptions) -> None:
        super().__init__(Segment, options.buffers_at_start)

    def _payload(self, buffer: Segment, version: int) -> SharedMemoryPayload:
        return SharedMemoryPayload(buffer.address, buffer.layout)


class SharedMemoryReceiver:
    """Maps each segment once, to read; see ``protocol.WeightReceiver``."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes: tuple[str, ...] = ()
        self._mapped: dict[SegmentAddress, Tensor] = {}

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return views of the segment.

        Raises:
            UserError: the sender runs on another host or in another container.
            RunStopped: the sender is gone, or the segment holds another version.
        """
        payload: SharedMemoryPayload = weight_handle.payload
        memory = self._memory(payload.address)
        nonce, version = _HEADER.unpack_from(memory.numpy().data)
        if (nonce, version) != (payload.address.nonce, weight_handle.version):
            held = "memory of something else" if nonce != payload.address.nonce else f"version {version}"
            raise RunStopped(f"the shared memory of version {weight_handle.version} holds {held}")
        return payload.layout.views(memory[_WEIGHTS_AT:])

    def close(self) -> None:
        """Unmap the segments."""
        self._mapped = {}

    def _memory(self, address: SegmentAddress) -> Tensor:
        if address not in self._mapped:  # segments of another size hold weights that are no longer published
            self._mapped = {old: mapped for old, mapped in self._mapped.items() if old.num_bytes == address.num_bytes}
            self._mapped[address] = _map(address)
        return self._mapped[address]


def _map(address: SegmentAddress) -> Tensor:
    if address.host != this_host():
        raise UserError(
            "transport.type is shared_memory, and this Generator is on another host or in another container than the "
            "Learner",
            "transport.type",
            "set transport.type to nixl or object_store_numpy",
        )
    try:
        descriptor = os.open(f"/proc/{address.pid}/fd/{address.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RunStopped(f"the Learner's shared memory cannot be opened: {error}") from error
    try:
        size = os.fstat(descriptor).st_size
        if size != address.num_bytes:
            raise RunStopped(f"the Learner's shared memory has {size} bytes instead of {address.num_bytes}")
        mapping = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    return from_read_only({"memory": np.frombuffer(mapping, dtype=np.uint8)})["memory"]
