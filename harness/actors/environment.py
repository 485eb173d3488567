"""The environment variables of an actor's process."""

from __future__ import annotations


def process_environment(threads: int, interface: str) -> dict[str, str]:
    """Return what an actor's process gets: its threads, and the interface of the connections it opens itself.

    Args:
        threads: of OpenMP and MKL, which sleep while they wait.
        interface: network interface of UCX (NIXL), gloo and NCCL; ``lo`` keeps them on this machine.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "UCX_NET_DEVICES": interface,
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
    }
