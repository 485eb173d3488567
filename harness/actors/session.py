"""Ray for the length of one command: started on this machine, or joined where it is running."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

import ray

from harness.errors import UserError

STORE_SHARE = 0.3  # of the machine's memory, for the object store; pages are taken only when used


class RaySession:
    """A Ray that this command started, or a cluster that it has joined.

    A local Ray has its own folder and no dashboard, keeps its token authentication, and ends with this process. A
    cluster that was joined goes on without us.

    Args:
        address: ``local``, ``auto`` or HOST:PORT.
        cpus: logical CPUs of a local Ray; arms that take turns reserve theirs side by side.
        gpus: logical GPUs of a local Ray; None lets Ray look.

    Raises:
        UserError: there is no cluster at the address.
    """

    def __init__(self, address: str = "local", cpus: int | None = None, gpus: int | None = None) -> None:
        self.address = address
        self.folder = Path(tempfile.mkdtemp(prefix="grpo-"))
        _quiet_environment()
        options: dict[str, Any] = {"configure_logging": True, "logging_level": logging.ERROR, "log_to_driver": False}
        if address == "local":
            options |= {
                "address": "local",
                "num_cpus": cpus,
                "num_gpus": gpus,
                "include_dashboard": False,
                "_temp_dir": str(self.folder / "ray"),
                "_node_ip_address": "127.0.0.1",
            }
        else:
            options["address"] = address
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray's own, about its coming defaults
                ray.init(**options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise _no_cluster(address, error) from error
        except BaseException:
            self.close()
            raise

    @property
    def is_local(self) -> bool:
        """Whether all of it is on this machine, and ours."""
        return self.address == "local"

    def close(self) -> None:
        """End the local Ray with all its processes, or leave the cluster; remove what was written."""
        ray.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> RaySession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _quiet_environment() -> None:
    """No usage reports, and no note about GPUs that a part without one cannot see."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def _no_cluster(address: str, error: Exception) -> UserError:
    reason = str(error).strip().split("\n")[0]
    if address == "local":
        return UserError(
            f"Ray did not start: {reason}", "placement.address: local", "see that the machine has memory left"
        )
    return UserError(
        f"there is no Ray cluster to join at {address}: {reason}",
        f"placement.address: {address}",
        "start one with `ray start --head`, or set placement.address to local",
    )
