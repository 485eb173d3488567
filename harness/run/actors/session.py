"""Ray for the length of one command: started on this machine or joined, its actors' environment and their output."""

from __future__ import annotations

import logging
import os
import resource
import secrets
import shutil
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import ray
from ray._private import services
from ray._private import utils as ray_utils
from ray._private.services import canonicalize_bootstrap_address
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]  # absent from its stub

from harness.core.allocator import allocator_environment
from harness.core.errors import UserError
from harness.core.marked_processes import MARKS, end_marked, with_mark
from harness.core.private_dir import PrivateDir
from harness.probes.nsight import SESSION_CONFIG
from harness.probes.windows import process_name
from harness.run.interrupts import ended_by_first_interrupt, holding_interrupts
from harness.run.memory.fit import free_main_memory
from harness.run.memory.plan import object_store_bytes

ENDING_S = 5.0
"""Seconds in which a start that was interrupted ends in order."""
PROBE_S = 5.0
"""Seconds that a cluster may take to accept a connection."""
LEAST_FILES = 1024
LEAST_ADDRESSES = 64 * 2**30
LEAST_THREADS = 512
"""Below these Ray's processes may hang at the start: each reserves far more addresses than it uses, and a small run on
two cores has 325 threads."""
_SHARED_MEMORY = Path("/dev/shm")
_TOKEN, _TOKEN_PATH = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_START_FIX = "see that the machine has memory and disk space left, and that TMPDIR, if set, is a short path"


class RaySession:
    """A Ray that this command started, or a cluster that it has joined.

    A local Ray has its own folder and no dashboard, lets in whoever holds its token, and ends with this process. The
    token is in that folder, which no other user may enter, unless the environment names one. A cluster that was joined
    goes on without us; its token is the user's own.

    Args:
        address: ``local``, ``auto`` or HOST:PORT.
        cpus: logical CPUs of a local Ray; arms that take turns reserve theirs side by side.
        for_nsight: whether nsys will have to outlive actors, to write its reports.
        weights: bytes of weights that transports keep in the object store of a local Ray at a time.

    Raises:
        UserError: there is no cluster at the address, or no room for the weights.
    """

    def __init__(
        self,
        address: str = "local",
        cpus: int | None = None,
        for_nsight: bool = False,
        weights: int = 0,
    ) -> None:
        self._for_nsight, self._own_token = for_nsight, False
        self._store_bytes: int | None = None
        if address != "local":
            _look_for_cluster(address)
        else:
            _check_limits()
        if address == "local" and _SHARED_MEMORY.is_dir():
            shared = shutil.disk_usage(_SHARED_MEMORY).free
            self._store_bytes = object_store_bytes(weights, free_main_memory(), shared)
        self._private_dir = PrivateDir()
        self.address, self.folder = address, self._private_dir.path
        with ended_by_first_interrupt(ENDING_S), _marked() as mark:
            try:
                with warnings.catch_warnings(), _own_signals():
                    warnings.simplefilter("ignore")  # Ray's own, about its coming defaults
                    if self.is_local and not {_TOKEN, _TOKEN_PATH} & os.environ.keys():
                        self._make_token()
                    ray.init(**self._options(cpus))
            except BaseException as error:
                self.close()
                end_marked(mark)  # what Ray leaves behind that was stopped half-way through its start
                if isinstance(error, Exception):  # Ray raises all kinds, also bare ones
                    raise _no_cluster(address, error) from error
                raise

    def _options(self, cpus: int | None) -> dict[str, Any]:
        quiet = {"configure_logging": True, "logging_level": logging.ERROR, "log_to_driver": False}
        if not self.is_local:
            return {"address": self.address, **quiet}
        own = {"include_dashboard": False, "_temp_dir": str(self.folder / "ray")}
        system = {"worker_niceness": 0}  # Ray's own 15 would let any other program go first
        fair = {"_system_config": system | (SESSION_CONFIG if self._for_nsight else {})}
        resources = {"num_cpus": cpus, "object_store_memory": self._store_bytes}
        return {"address": "local", **resources, **own, **fair, **quiet}

    def _make_token(self) -> None:
        """Make the token that Ray would write into the home folder for everyone to read; its processes inherit it."""
        path = self.folder / "auth_token"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        os.environ[_TOKEN_PATH], self._own_token = str(path), True
        AuthenticationTokenLoader.instance().reset_cache()  # a session before this one had its own

    @property
    def is_local(self) -> bool:
        return self.address == "local"

    def close(self) -> None:
        """End the local Ray with all its processes, or leave the cluster; remove what was written."""
        with holding_interrupts():
            ray.shutdown()
        if self._own_token:
            self._own_token = False
            os.environ.pop(_TOKEN_PATH, None)
            AuthenticationTokenLoader.instance().reset_cache()
        self._private_dir.close()

    def __enter__(self) -> RaySession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _marked() -> Iterator[str]:
    """Have what is started in the block bear a mark of its own, which is returned; see ``core.marked_processes``."""
    before = os.environ.get(MARKS)
    environment, mark = with_mark(os.environ)
    os.environ[MARKS] = environment[MARKS]
    try:
        yield mark
    finally:
        os.environ.pop(MARKS)
        if before is not None:
            os.environ[MARKS] = before


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep Ray from answering SIGTERM: it would print a stack and leave with exit code 1, the run marked failed.

    Its processes get a session of their own, so that a signal to the command's group, as ``timeout`` and terminals send
    it, does not end them before the command: it would wait for them.
    """
    of_ray: Any = services
    before, popen = signal.getsignal(signal.SIGTERM), of_ray.ConsolePopen
    kept, ray_utils.set_sigterm_handler = ray_utils.set_sigterm_handler, lambda handler: None
    of_ray.ConsolePopen = partial(popen, start_new_session=True)
    try:
        yield
    finally:
        of_ray.ConsolePopen, ray_utils.set_sigterm_handler = popen, kept
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # its library in C has set one of its own


def _check_limits() -> None:
    """Refuse limits of the shell under which Ray's processes hang at the start, instead of saying so.

    The limit on processes counts the threads of all of the user's processes, and does not hold for root.

    Raises:
        UserError: with the limit and the least that Ray is known to start with.
    """
    limits = [
        (resource.getrlimit(resource.RLIMIT_NOFILE)[1], LEAST_FILES, "open files", f"ulimit -n {LEAST_FILES}"),
        (resource.getrlimit(resource.RLIMIT_AS)[0], LEAST_ADDRESSES, "bytes of address space", "ulimit -v unlimited"),
    ]  # Ray raises that of files to the hard one
    threads = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.getuid() and threads != resource.RLIM_INFINITY:
        own = [each.info for each in psutil.process_iter(["uids", "num_threads"])]
        there = sum(it["num_threads"] or 0 for it in own if it["uids"] and it["uids"].real == os.getuid())
        least = LEAST_THREADS + there
        limits.append((threads, least, "processes and threads of this user", f"ulimit -u {least}"))
    for most, least, what, option in limits:
        if most != resource.RLIM_INFINITY and most < least:
            raise UserError(
                f"the limit of {most} {what} is too low for Ray, which needs {least}",
                "the limits of this shell",
                f"{option}; or transport.type: in_process, which needs no Ray",
            )


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


def process_environment(threads: int, interface: str, *, keeps_freed: bool = True) -> dict[str, str]:
    """Return what an actor's process gets: its threads, its allocator, and the interface of connections that it opens.

    Args:
        threads: of OpenMP and MKL, which sleep while they wait.
        interface: network interface of UCX (NIXL), gloo and NCCL; ``lo`` keeps them on this machine.
        keeps_freed: whether memory that torch frees stays with the process; see ``core.allocator``.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "UCX_NET_DEVICES": interface,
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        **allocator_environment(keeps_freed=keeps_freed),
    }


class ProcessLogs:
    """The files that the actors of one run, libraries in C included, print into.

    Args:
        folder: where they are; None where the actors may be on other machines, whose output stays in Ray's own logs.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._lanes: dict[Path, str] = {}

    def file_for(self, lane: str) -> Path | None:
        """Return a new file for a lane's processes; one that replaces another goes on in it."""
        if self._folder is None:
            return None
        path = self._folder / f"{len(list(self._folder.glob('*.log')))}-{process_name([lane])}.log"
        path.touch(mode=0o600)
        self._read[path], self._lanes[path] = 0, lane
        return path

    def new_lines(self) -> list[str]:
        """Return the whole lines printed since the last call, each with its lane in front."""
        lines: list[str] = []
        for path, done in self._read.items():
            with open(path, "rb") as file:
                file.seek(done)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = done + len(whole)
            lines += [f"{self._lanes[path]}: {line}" for line in whole.decode(errors="replace").splitlines()]
        return lines
