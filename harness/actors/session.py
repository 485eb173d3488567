"""Ray for the length of one command: started on this machine, or joined where it is running."""

from __future__ import annotations

import logging
import shutil
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address

from harness.errors import UserError
from harness.probes.nsight import SESSION_CONFIG

PROBE_S = 5.0
"""Seconds that a cluster may take to accept a connection."""
_START_FIX = "see that the machine has memory and disk space left, and that TMPDIR, if set, is a short path"


class RaySession:
    """A Ray that this command started, or a cluster that it has joined.

    A local Ray has its own folder and no dashboard, keeps its token authentication, and ends with this process. A
    cluster that was joined goes on without us.

    Args:
        address: ``local``, ``auto`` or HOST:PORT.
        cpus: logical CPUs of a local Ray; arms that take turns reserve theirs side by side.
        gpus: logical GPUs of a local Ray; None lets Ray look.
        for_nsight: whether nsys will have to outlive actors, to write its reports.

    Raises:
        UserError: there is no cluster at the address.
    """

    def __init__(
        self, address: str = "local", cpus: int | None = None, gpus: int | None = None, for_nsight: bool = False
    ) -> None:
        self._for_nsight = for_nsight
        if address != "local":
            _look_for_cluster(address)
        self.address, self.folder = address, Path(tempfile.mkdtemp(prefix="grpo-"))
        try:
            with warnings.catch_warnings(), _holding_ctrl_c():
                warnings.simplefilter("ignore")  # Ray's own, about its coming defaults
                ray.init(**self._options(cpus, gpus))
        except (OSError, ValueError, RuntimeError) as error:
            self.close()
            raise _no_cluster(address, error) from error
        except BaseException:
            self.close()
            raise

    def _options(self, cpus: int | None, gpus: int | None) -> dict[str, Any]:
        quiet = {"configure_logging": True, "logging_level": logging.ERROR, "log_to_driver": False}
        if not self.is_local:
            return {"address": self.address, **quiet}
        own = {"include_dashboard": False, "_temp_dir": str(self.folder / "ray"), "_node_ip_address": "127.0.0.1"}
        system = {"worker_niceness": 0}  # Ray's own 15 would let any other program go first
        fair = {"_system_config": system | (SESSION_CONFIG if self._for_nsight else {})}
        return {"address": "local", "num_cpus": cpus, "num_gpus": gpus, **own, **fair, **quiet}

    @property
    def is_local(self) -> bool:
        """Whether all of it is on this machine, and ours."""
        return self.address == "local"

    def close(self) -> None:
        """End the local Ray with all its processes, or leave the cluster; remove what was written."""
        with _holding_ctrl_c():
            ray.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> RaySession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _holding_ctrl_c() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends, or is asked for twice.

    A Ray that is stopped half-way through its start leaves processes behind, and threads that crash at the exit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if asked:
            signal.raise_signal(signal.SIGINT)


def _look_for_cluster(address: str) -> None:
    """See whether anything listens at the address, since Ray itself would try for minutes.

    Raises:
        UserError: nothing does, or it is no address.
    """
    try:
        host, _, port = str(canonicalize_bootstrap_address(address)).rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except (OSError, ValueError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0]
    if address == "local":
        return UserError(f"Ray did not start: {reason}", "placement.address: local", _START_FIX)
    return UserError(
        f"there is no Ray cluster to join at {address}: {reason}",
        f"placement.address: {address}",
        "start one with `ray start --head`, or set placement.address to local",
    )
