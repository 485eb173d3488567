"""The collective group that gloo and NCCL need between the Learner and its Generators.

Ray allows an actor one group of a kind, and torch's processes leave it cleanly only if it is called ``default``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ray.experimental.collective import create_collective_group, destroy_collective_group

from harness.transports.catalogue import TransportKind
from harness.transports.collective import GROUP_NAME


def group(handles: Sequence[Any], kind: TransportKind) -> None:
    """Make the group of the Learner and its Generators, in this order; each must be idle or soon be."""
    assert kind.tensor_transport is not None
    create_collective_group(list(handles), backend=kind.tensor_transport, name=GROUP_NAME)


def ungroup(kind: TransportKind) -> None:
    """End the group; nothing happens where there is none."""
    with suppress(ValueError):
        destroy_collective_group(GROUP_NAME)
