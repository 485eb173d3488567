"""Weights that N ranks of a Learner publish in pieces: each rank has a ``ShardSender``, a Generator one receiver.

A driver publishes a version so: ``begin`` on rank 0, ``write`` (and ``add_checksum``) with its draft on all ranks at
once, ``finish`` with all parts on rank 0, whose handle goes to the Generators as ever. None of it is a collective.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from harness.core.errors import RunStopped, UserError
from harness.core.types import WeightHandle
from harness.models.flat_layout import BucketLayout
from harness.transports.catalogue import TransportKind, transport_kind
from harness.transports.protocol import TransportOptions, WeightReceiver
from harness.transports.shards import Draft, Part, Shard, TensorSlice, weight_handle_of
from harness.transports.shared_memory import SharedMemoryShardSender


class ShardSender(Protocol):
    """Publishes what one rank of a Learner writes."""

    notes: tuple[str, ...]

    def begin(self, version: int, still_needed: frozenset[int], weights: Mapping[str, Tensor]) -> Draft:
        """Start a version, on rank 0; a version begun before and never finished is given up.

        Args:
            version: of the weights.
            still_needed: as in ``protocol.WeightSender.publish_weights``.
            weights: the parameters, sharded or not; only their names, dtypes and whole shapes are read.

        Raises:
            ValueError: there are no weights, or the version is published already.
        """

    def write(self, draft: Draft, shards: Sequence[Shard]) -> Part:
        """Copy this rank's pieces; they may change as soon as it returns."""

    def add_checksum(self, draft: Draft, part: Part) -> Part:
        """Return the part with the checksum of what this rank wrote, read back from where it lies."""

    def finish(self, draft: Draft, parts: Sequence[Part]) -> WeightHandle:
        """Make the version readable, on rank 0, with the parts of all ranks.

        Raises:
            RunStopped: the parts leave something out.
        """

    def close(self) -> None:
        """Give back memory and files; handles become unreadable."""


@dataclass(frozen=True, slots=True)
class ShardedPayload:
    """The parts, each with a handle of its own, and the whole tensors to put together from them."""

    parts: tuple[Part, ...] = field(repr=False)
    layout: BucketLayout = field(repr=False)


class PartSender:
    """Publishes one rank's pieces by a transport's own sender, as if they were a small model; see ``ShardSender``.

    Args:
        kind: the transport.
        options: its; with a folder, this rank's files go to a subfolder.
        rank: of this process in the Learner.
    """

    def __init__(self, kind: TransportKind, options: TransportOptions, rank: int) -> None:
        if options.folder is not None:
            options = replace(options, folder=os.path.join(options.folder, f"rank{rank}"))
        self._sender, self._rank = kind.sender(options), rank
        self.notes = self._sender.notes

    def begin(self, version: int, still_needed: frozenset[int], weights: Mapping[str, Tensor]) -> Draft:
        """Lay out the whole tensors; nothing is copied."""
        return Draft(version, still_needed, BucketLayout.of(weights))

    def write(self, draft: Draft, shards: Sequence[Shard]) -> Part:
        """Publish the pieces by the names of their tensors; a rank without any publishes nothing.

        Raises:
            ValueError: this rank has published the version already.
        """
        pieces = {shard.slice.name: shard.tensor for shard in shards}
        handle = self._sender.publish_weights(pieces, draft.version, draft.still_needed) if pieces else None
        return Part(self._rank, tuple(shard.slice for shard in shards), None, handle)

    def add_checksum(self, draft: Draft, part: Part) -> Part:
        """Read this rank's pieces back from its published copy."""
        published = self._sender.published(draft.version) if part.slices else {}
        return part.with_checksum(published[block.name] for block in part.slices)

    def finish(self, draft: Draft, parts: Sequence[Part]) -> WeightHandle:
        """Put the parts into one handle."""
        return weight_handle_of(draft, parts, ShardedPayload(tuple(parts), draft.layout))

    def close(self) -> None:
        """Give back what the sender holds."""
        self._sender.close()


class AssemblingReceiver:
    """Receives each part by a transport's own receiver, and puts the tensors together in memory that it keeps.

    See ``protocol.WeightReceiver``. A handle that was published whole is handed on to the first receiver.

    Args:
        kind: the transport.
        options: its; ``device`` is where the tensors are put together.
    """

    def __init__(self, kind: TransportKind, options: TransportOptions) -> None:
        self._kind, self._options = kind, options
        self._receivers: list[WeightReceiver] = [kind.receiver(options)]
        self.notes = self._receivers[0].notes
        self._layout: BucketLayout | None = None
        self._views: Mapping[str, Tensor] = {}

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return the whole tensors; the next ``receive`` overwrites them.

        Raises:
            RunStopped: a part is not there, or is not of the shape that its rank said.
        """
        payload = weight_handle.payload
        if not isinstance(payload, ShardedPayload):
            return self._receivers[0].receive(weight_handle, arrived)
        self._fit(payload)
        with torch.no_grad():
            for receiver, part in zip(self._receivers, payload.parts, strict=False):
                if part.handle is not None:
                    self._assemble(part, receiver.receive(part.handle))
        return self._views

    def close(self) -> None:
        """Give the memory back, and that of the receivers."""
        self._layout, self._views = None, {}
        for receiver in self._receivers:
            receiver.close()

    def _fit(self, payload: ShardedPayload) -> None:
        while len(self._receivers) < len(payload.parts):
            self._receivers.append(self._kind.receiver(self._options))
        if payload.layout != self._layout:
            self._layout = payload.layout
            buffer = torch.empty(payload.layout.num_bytes, dtype=torch.uint8, device=self._options.device)
            self._views = payload.layout.views(buffer)

    def _assemble(self, part: Part, pieces: Mapping[str, Tensor]) -> None:
        block: TensorSlice
        for block in part.slices:
            piece = pieces[block.name]
            if tuple(piece.shape) != block.sizes:  # copy_ would repeat it
                raise RunStopped(f"rank {part.rank} of the Learner sent {tuple(piece.shape)} for {block}")
            block.of(self._views[block.name]).copy_(piece)


def check_takes_shards(name: str) -> None:
    """Refuse transports by which several ranks cannot each send a part.

    Raises:
        UserError: it is one of them, or there is no such transport.
    """
    if transport_kind(name).two_sided:
        raise UserError(
            f"transport.type is {name}, and {_WHY_NOT.get(name, _WHY_NOT[OTHERS])}",
            "transport.type",
            "set publish to per_tensor or rank0, or transport.type to nixl, shared_memory, disk or an object store",
        )


OTHERS = "others"
_WHY_NOT = {
    OTHERS: "it is two-sided: several ranks would have to be in one group with the Generators",
    "gloo": "Ray's gloo group must be part of the process group that torch has by default, which in a rank of a "
    "Learner is the Learner's own and has no Generators in it",
    "nccl": "sending parts from several ranks through Ray's NCCL group has not been run",
}


def shard_sender(name: str, options: TransportOptions, rank: int) -> ShardSender:
    """Make the sender of one rank of a Learner, inside its actor.

    Raises:
        UserError: see ``check_takes_shards``, and ``TransportKind.sender``.
    """
    check_takes_shards(name)
    if name == "shared_memory":
        return SharedMemoryShardSender(options, rank)
    return PartSender(transport_kind(name), options, rank)


def shard_receiver(name: str, options: TransportOptions) -> WeightReceiver:
    """Make a Generator's end of what several ranks publish, inside its actor.

    Raises:
        UserError: see ``check_takes_shards``, and ``TransportKind.receiver``.
    """
    check_takes_shards(name)
    kind = transport_kind(name)
    return kind.receiver(options) if name == "shared_memory" else AssemblingReceiver(kind, options)
