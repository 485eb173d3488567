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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor

from harness.core.errors import RunStopped, UserError
from harness.core.types import WeightHandle
from harness.models.flat_layout import BucketLayout, copy_weights
from harness.transports.buffers import BufferPool, from_read_only
from harness.transports.protocol import OneSidedSender, TransportOptions
from harness.transports.shards import Draft, Part, Shard, weight_handle_of

_HEADER = struct.Struct("<16sq")  # nonce, version
_WEIGHTS_AT = 64  # bytes: the header's line, so that the weights stay aligned
_BEING_WRITTEN, _GIVEN_UP = -1, -2  # in place of a version
_Mapping = tuple[Tensor, Mapping[str, Tensor]]
"""A segment's memory, and the weights in it."""


@dataclass(frozen=True, slots=True)
class SharedMemoryPayload:
    """Where a segment can be opened, and what lies in it.

    Its memory begins with ``nonce``, since process and descriptor numbers recur.
    """

    host: str
    pid: int
    descriptor: int
    num_bytes: int
    nonce: bytes = field(repr=False)
    layout: BucketLayout = field(repr=False, compare=False)


@cache
def this_host() -> str:
    """What the processes that may open each other's descriptors have in common: a boot and a PID namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot_id:
        return f"{boot_id.read().strip()} {os.readlink('/proc/self/ns/pid')}"


class _Segments:
    """The segments that this end has mapped, each of them once."""

    def __init__(self) -> None:
        self._mapped: dict[SharedMemoryPayload, _Mapping] = {}

    def open(self, payload: SharedMemoryPayload, who: str, whose: str, *, writable: bool = False) -> _Mapping:
        """Map a segment of ``whose`` process into that of ``who``.

        Raises:
            UserError: they are on two hosts, or in two containers.
            RunStopped: it is not there any more.
        """
        if payload in self._mapped:
            return self._mapped[payload]
        if payload.host != this_host():
            raise UserError(
                f"transport.type is shared_memory, and {who} is on another host or in another container than {whose}",
                "transport.type",
                "set transport.type to nixl or object_store_numpy",
            )
        try:
            access = os.O_RDWR if writable else os.O_RDONLY
            descriptor = os.open(f"/proc/{payload.pid}/fd/{payload.descriptor}", access | os.O_CLOEXEC)
        except OSError as error:
            raise RunStopped(f"the Learner's shared memory cannot be opened: {error}") from error
        try:
            size = os.fstat(descriptor).st_size
            if size != payload.num_bytes:
                raise RunStopped(f"the Learner's shared memory has {size} bytes instead of {payload.num_bytes}")
            mapping = mmap.mmap(descriptor, size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
        finally:
            os.close(descriptor)
        memory = from_read_only({"": np.frombuffer(mapping, dtype=np.uint8)})[""]
        return self.add(payload, memory)

    def add(self, payload: SharedMemoryPayload, memory: Tensor) -> _Mapping:
        """Keep a mapping, and of the others those of this size and process: a Learner that died was another."""
        alike = payload.host, payload.pid, payload.num_bytes
        for each in [each for each in self._mapped if (each.host, each.pid, each.num_bytes) != alike]:
            del self._mapped[each]
        self._mapped[payload] = memory, payload.layout.views(memory[_WEIGHTS_AT:])
        return self._mapped[payload]

    def close(self) -> None:
        self._mapped = {}


class Segment:
    """A writable segment of this process; a ``buffers.Buffer`` that names its version once it is sealed."""

    def __init__(self, layout: BucketLayout) -> None:
        self.layout, num_bytes = layout, _WEIGHTS_AT + layout.num_bytes
        self._descriptor = os.memfd_create("weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._descriptor, num_bytes)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.memory = torch.frombuffer(mmap.mmap(self._descriptor, num_bytes), dtype=torch.uint8)
        self.views: Mapping[str, Tensor] = layout.views(self.memory[_WEIGHTS_AT:])
        self.payload = SharedMemoryPayload(
            this_host(), os.getpid(), self._descriptor, num_bytes, secrets.token_bytes(16), layout
        )

    def fill(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Let it be written to: until it is sealed, the header names no version."""
        self.name(_BEING_WRITTEN)

    def name(self, version: int) -> None:
        """Write the header."""
        _HEADER.pack_into(self.memory.numpy().data, 0, self.payload.nonce, version)

    def close(self) -> None:
        """Close it, also to processes that have mapped it; the memory goes when the last mapping of it does."""
        self.name(_GIVEN_UP)
        os.close(self._descriptor)
        self.views, self.memory = {}, torch.empty(0, dtype=torch.uint8)


class SharedMemorySender(OneSidedSender):
    """Publishes segments of shared memory: one for each version, into which all ranks of a Learner copy their pieces.

    Rank 0 makes the segments. The others map each of them once, to write.
    For ``begin``, ``write``, ``add_checksum`` and ``finish`` see ``sharded.PartSender``.
    """

    def __init__(self, options: TransportOptions) -> None:
        self._pool = BufferPool(self._make, options.buffers_at_start)
        self._begun: Draft | None = None  # the version that is not complete
        self._segments = _Segments()

    def publish_weights(
        self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]
    ) -> WeightHandle:
        draft = self.begin(version, still_needed, weights)
        for payload in (*draft.spare, draft.payload):
            copy_weights(weights, self._map(payload, rank=0)[1])
        self._seal(version)
        layout = draft.layout
        return WeightHandle(version, layout.payload_bytes, len(layout.entries), None, draft.payload)

    def published(self, version: int) -> Mapping[str, Tensor]:
        return self._pool[version].views

    def begin(self, version: int, still_needed: frozenset[int], weights: Mapping[str, Tensor]) -> Draft:
        """Take a segment that is not needed, or a new one.

        One that was begun and never finished is given up, not used again: a slow rank may still write into it.
        """
        if self._begun is not None:
            if self._begun.spare:  # nor are these: they were to be filled with the same version
                self._pool.close()
            else:
                self._pool.drop(self._begun.version)
            self._segments.close()
            self._begun = None
        is_first = len(self._pool) == 0
        segment = self._pool.put(weights, version, still_needed)
        spare = tuple(free.payload for free in self._pool.free) if is_first else ()
        self._begun = Draft(version, still_needed, segment.layout, segment.payload, spare)
        return self._begun

    def write(self, draft: Draft, shards: Sequence[Shard], rank: int) -> Part:
        """Copy the pieces in; into spare segments too, so that no later version waits for fresh memory.

        Raises:
            UserError: rank 0 runs on another host or in another container.
            RunStopped: rank 0 is gone, or the draft was given up or finished.
        """
        with torch.no_grad():
            for payload in (*draft.spare, draft.payload):
                memory, views = self._map(payload, rank)
                if _HEADER.unpack_from(memory.numpy().data) != (payload.nonce, _BEING_WRITTEN):
                    raise RunStopped(f"rank {rank} of the Learner cannot write version {draft.version} any more")
                for shard in shards:
                    shard.slice.of(views[shard.slice.name]).copy_(shard.tensor)
        return Part(rank, tuple(shard.slice for shard in shards))

    def add_checksum(self, draft: Draft, part: Part) -> Part:
        _, views = self._map(draft.payload, part.rank)
        return part.with_checksum(block.of(views[block.name]) for block in part.slices)

    def finish(self, draft: Draft, parts: Sequence[Part]) -> WeightHandle:
        """Seal the segment.

        Raises:
            RunStopped: the parts leave something out, or the version is not the one begun last.
        """
        begun = None if self._begun is None else self._begun.version
        if draft.version != begun:
            raise RunStopped(f"version {draft.version} cannot be finished: the one begun is {begun}")
        handle = weight_handle_of(draft, parts, draft.payload)
        self._seal(draft.version)
        return handle

    def _seal(self, version: int) -> None:
        self._pool[version].name(version)
        self._begun = None

    def close(self) -> None:
        """Unmap the segments, and give back those of rank 0."""
        self._segments.close()
        self._pool.close()

    def _make(self, weights: Mapping[str, Tensor], layout: BucketLayout) -> Segment:
        segment = Segment(layout)
        self._segments.add(segment.payload, segment.memory)
        return segment

    def _map(self, payload: SharedMemoryPayload, rank: int) -> _Mapping:
        return self._segments.open(payload, f"rank {rank} of the Learner", "its rank 0", writable=True)


class SharedMemoryReceiver:
    """Maps each segment once, to read."""

    def __init__(self, options: TransportOptions) -> None:
        self.notes: tuple[str, ...] = ()
        self._segments = _Segments()

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return views of the segment.

        Raises:
            UserError: the sender runs on another host or in another container.
            RunStopped: the sender is gone, or the segment holds another version.
        """
        payload: SharedMemoryPayload = weight_handle.payload
        memory, views = self._segments.open(payload, "this Generator", "the Learner")
        nonce, version = _HEADER.unpack_from(memory.numpy().data)
        if (nonce, version) != (payload.nonce, weight_handle.version):
            held = "memory of something else" if nonce != payload.nonce else f"version {version}"
            raise RunStopped(f"the shared memory of version {weight_handle.version} holds {held}")
        return views

    def close(self) -> None:
        self._segments.close()
