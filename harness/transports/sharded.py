"""Weights that N ranks of a Learner publish in pieces: each rank has a sender, a Generator one receiver.

A driver publishes a version so: ``begin`` on rank 0, ``write`` (and ``add_checksum``) with its draft on all ranks at
once, ``finish`` with all parts on rank 0, whose handle goes to the Generators as ever. None of it is a collective.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from harness.core.errors import RunStopped, UserError
from harness.core.types import WeightHandle
from harness.models.flat_layout import BucketLayout
from harness.transports.catalogue import TransportKind, transport_kind
from harness.transports.protocol import TransportOptions, WeightReceiver, WeightSender
from harness.transports.shards import Draft, Part, Shard, weight_handle_of
from harness.transports.shared_memory import SharedMemorySender

_WHY_NOT = {
    "gloo": "Ray's gloo group must be part of the process group that torch has by default, which in a rank of a "
    "Learner is the Learner's own and has no Generators in it",
    "nccl": "sending parts from several ranks through Ray's NCCL group has not been run",
}


@dataclass(frozen=True, slots=True)
class ShardedPayload:
    """The parts, each with a handle of its own, and the whole tensors to put together from them."""

    parts: tuple[Part, ...] = field(repr=False)
    layout: BucketLayout = field(repr=False)


class PartSender:
    """Publishes one rank's pieces by a transport's own sender, as if they were a small model."""

    def __init__(self, sender: WeightSender) -> None:
        self._sender = sender

    def begin(self, version: int, still_needed: frozenset[int], weights: Mapping[str, Tensor]) -> Draft:
        """Start a version, on rank 0; a version begun before and never finished is given up.

        Args:
            version, still_needed: as in ``protocol.WeightSender.publish_weights``.
            weights: the parameters, sharded or not; only their names, dtypes and whole shapes are read.

        Raises:
            ValueError: there are no weights, or the version is published already.
        """
        return Draft(version, still_needed, BucketLayout.of(weights))

    def write(self, draft: Draft, shards: Sequence[Shard], rank: int) -> Part:
        """Copy this rank's pieces; they may change as soon as it returns.

        Raises:
            ValueError: this rank has published the version already.
        """
        pieces = {shard.slice.name: shard.tensor for shard in shards}
        handle = self._sender.publish_weights(pieces, draft.version, draft.still_needed) if pieces else None
        return Part(rank, tuple(shard.slice for shard in shards), None, handle)

    def add_checksum(self, draft: Draft, part: Part) -> Part:
        """Return the part with the checksum of what this rank wrote, read back from where it lies."""
        published = self._sender.published(draft.version) if part.slices else {}
        return part.with_checksum(published[block.name] for block in part.slices)

    def finish(self, draft: Draft, parts: Sequence[Part]) -> WeightHandle:
        """Make the version readable, on rank 0, with the parts of all ranks.

        Raises:
            RunStopped: the parts leave something out.
        """
        return weight_handle_of(draft, parts, ShardedPayload(tuple(parts), draft.layout))


ShardSender = PartSender | SharedMemorySender
"""Publishes what one rank of a Learner writes."""


class AssemblingReceiver:
    """Receives each part by a transport's own receiver, and puts the tensors together in memory that it keeps.

    A handle of whole weights is handed on to the first receiver.

    Args:
        options: of the transport; ``device`` is where the tensors are put together.
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
        while len(self._receivers) < len(payload.parts):
            self._receivers.append(self._kind.receiver(self._options))
        if payload.layout != self._layout:
            self._layout = payload.layout
            buffer = torch.empty(payload.layout.num_bytes, dtype=torch.uint8, device=self._options.device)
            self._views = payload.layout.views(buffer)
        with torch.no_grad():
            for receiver, part in zip(self._receivers, payload.parts, strict=False):
                pieces = {} if part.handle is None else receiver.receive(part.handle)
                for block in part.slices:
                    piece = pieces[block.name]
                    if tuple(piece.shape) != block.sizes:  # copy_ would repeat it
                        raise RunStopped(f"rank {part.rank} of the Learner sent {tuple(piece.shape)} for {block}")
                    block.of(self._views[block.name]).copy_(piece)
        return self._views

    def close(self) -> None:
        """Give the memory back, and that of the receivers."""
        self._layout, self._views = None, {}
        for receiver in self._receivers:
            receiver.close()


def check_takes_shards(name: str) -> TransportKind:
    """Return the transport, if several ranks can each send a part by it.

    Raises:
        UserError: they cannot, or there is no such transport.
    """
    kind = transport_kind(name)
    if kind.two_sided:
        why_not = "it is two-sided: several ranks would have to be in one group with the Generators"
        raise UserError(
            f"transport.type is {name}, and {_WHY_NOT.get(name, why_not)}",
            "transport.type",
            "set publish to per_tensor or rank0, or transport.type to nixl, shared_memory, disk or an object store",
        )
    return kind


def rank_sender(name: str, options: TransportOptions, rank: int) -> WeightSender:
    """Make the sender of one rank of a Learner, inside its actor; with a folder, its files go to a subfolder."""
    if options.folder is not None:
        options = replace(options, folder=os.path.join(options.folder, f"rank{rank}"))
    return check_takes_shards(name).sender(options)


def shard_sender(sender: WeightSender) -> ShardSender:
    """Return what publishes one rank's pieces by this sender."""
    return sender if isinstance(sender, SharedMemorySender) else PartSender(sender)


def shard_receiver(name: str, options: TransportOptions) -> AssemblingReceiver:
    """Make a Generator's end of what several ranks publish, inside its actor."""
    return AssemblingReceiver(check_takes_shards(name), options)
