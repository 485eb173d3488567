"""Where the members of a process group find each other: a store on one interface of the machine."""

from __future__ import annotations

import socket
from typing import Any

import torch.distributed as dist


def reachable_at(interface: str) -> str:
    """Return this machine's address on the interface: with any but ``lo``, where Ray reaches this node."""
    if interface == "lo":
        return "127.0.0.1"
    import ray

    return str(ray.util.get_node_ip_address())


def listen(host: str) -> Any:
    """Open that store, a ``TCPStore``, on a free port of this interface of the machine."""
    listener = socket.create_server((host, 0))  # a store that opens its own listens on every interface
    port, file = listener.getsockname()[1], listener.detach()
    return dist.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=file)  # type: ignore[attr-defined]
