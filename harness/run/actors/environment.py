"""The environment variables of Ray in this process, and of an actor's process."""

from __future__ import annotations

import os


def quiet_ray() -> None:
    """No usage reports, no note about GPUs that a part without one cannot see, and no words of Ray's on a dead actor.

    The run says itself what died and what became of it.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed while executing a task")


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
