"""Ray Direct Transport over gloo or NCCL: the Learner sends, a Generator receives.

Ray moves what an actor method returns, so the sender only keeps the copies, and the tensors reach the Generator as an
argument. Learner and Generators form one collective group, which ends with any member: ``make_group`` and, after one
was replaced between two transfers, ``remake_group``. A member that dies during a transfer takes the other end along,
since Ray then kills both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.experimental.collective import create_collective_group, destroy_collective_group
from ray.experimental.collective.collective import RemoteCommunicatorManager
from torch import Tensor

from harness.core.errors import RunStopped, UserError
from harness.core.types import WeightHandle
from harness.models.flat_layout import BucketLayout
from harness.transports.buffers import BufferSender, CopiedWeights
from harness.transports.protocol import StatelessReceiver, TransportOptions

GROUP_NAME = "default"  # with gloo, processes cannot leave a group of any other name, nor belong to two
_groups: list[str] = []  # the tensor transport of this process' group; Ray's own registry is one for each process too


def make_group(actors: Sequence[Any], tensor_transport: str) -> None:
    """Connect these idle actors (Learner first), which takes about a second.

    Raises:
        UserError: there is a group already, since Ray tells groups apart by their name only.
        RayError: one of them died.
    """
    if _groups:
        raise UserError(
            f"two arms that take turns cannot both send weights by {' and '.join([*_groups, tensor_transport])}: Ray "
            "keeps one collective group of a name, and only the one called default can be made anew",
            "transport.type",
            "compare them in runs of their own, or let all arms but one use nixl, shared_memory or an object store",
        )
    create_collective_group(list(actors), backend=tensor_transport, name=GROUP_NAME)
    _groups.append(tensor_transport)


def remake_group(actors: Sequence[Any], tensor_transport: str) -> None:
    """Connect these idle actors anew after a member of their group died.

    Raises:
        RayError: one of them died.
    """
    destroy_collective_group(GROUP_NAME)
    _groups.clear()
    # Ray stops waiting at the dead member, before the others have left: one more call in the same queue waits for them
    ray.get([actor.__ray_call__.options(concurrency_group="_ray_system").remote(_nothing) for actor in actors])
    make_group(actors, tensor_transport)


def end_group() -> None:
    """Forget the group, whose members are about to be ended; nothing happens where there is none."""
    _groups.clear()
    RemoteCommunicatorManager.get().remove_remote_communicator(GROUP_NAME)


def _nothing(actor: object) -> None:
    """Do nothing."""


class CollectiveSender(BufferSender[CopiedWeights]):
    """Keeps published copies for Ray to send; nothing moves before ``outgoing`` is returned from an actor method."""

    def __init__(self, options: TransportOptions) -> None:
        super().__init__(CopiedWeights, options.buffers_at_start)

    def outgoing(self, version: int) -> list[Tensor]:
        """Return the published copy as it moves, by reference."""
        return [self._pool[version].tensor]

    def _payload(self, buffer: CopiedWeights, version: int) -> BucketLayout:
        return buffer.layout


class CollectiveReceiver(StatelessReceiver):
    """Names the tensors that arrived."""

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        if arrived is None:
            raise RunStopped(f"no tensors arrived with the weight_handle of version {weight_handle.version}")
        layout: BucketLayout = weight_handle.payload
        return layout.views(arrived[0])
