"""One broadcast of the flattened weights to all Generators, in a process group that only the transport has.

A collective is entered by all at once, and Generators load when they are ready. So each receiver has a thread that
takes part in every broadcast and keeps what came, as long as a Generator may need it; ``receive`` finds it there.
A receiver joins when it first receives, and is sent that version by itself; so does one that replaces a dead Generator,
or was left out because it did not answer. Rank 0 of the group is the sender: it says over a connection to each member
what comes, and makes the group anew when its members change. It waits ``timeout_s`` for their answers, as long for the
broadcast, and then goes on without those that are not done.
"""

from __future__ import annotations

import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.core.errors import RunStopped
from harness.core.types import WeightHandle
from harness.models.flat_layout import BucketLayout
from harness.transports.buffers import BufferSender, CopiedWeights
from harness.transports.protocol import TransportOptions
from harness.transports.rendezvous import Place, listen, reachable_at

ATTEMPTS = 2
"""Broadcasts of one version, when a member died during the first."""
DONE = ""
"""What a member answers when all went well; else it answers with the error."""


# ---- what they say to each other


@dataclass(frozen=True, slots=True)
class BroadcastPayload:
    """Where the sender is: its door, the key to it, and the store over which a group is made."""

    door: Place
    store: Place
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Want:
    """A member asks for a version that it does not hold."""

    version: int


@dataclass(frozen=True, slots=True)
class _Prepare:
    """A version comes; those that are not ``needed`` may make room for it. It moves by gloo where it is on the CPU."""

    version: int
    layout: BucketLayout
    on_cpu: bool
    needed: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Enter:
    """Take part in the broadcast of what was prepared, as this rank of the group of this name."""

    group: str
    rank: int
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Refused:
    """The version that a member wants is not there any more."""

    version: int
    reason: str


class _Group:
    """A process group beside torch's default one.

    Args:
        store: where its members find each other.
        name: of this group in the store.
        rank, size: of this member, and of the group.
        device: of the tensors: gloo on CPUs, NCCL on GPUs.
        interface: on which gloo listens.
        seconds: in which all members must have come.
    """

    def __init__(self, store: Any, name: str, rank: int, size: int, *, device: str, interface: str, seconds: float):
        limit = timedelta(seconds=seconds)
        there = dist.PrefixStore(name, store)  # type: ignore[attr-defined]
        self._group: Any
        if device.startswith("cuda"):
            of_nccl: Any = dist.ProcessGroupNCCL.Options()
            of_nccl._timeout = limit
            self._group = dist.ProcessGroupNCCL(there, rank, size, of_nccl)
        else:
            options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._devices = [dist.ProcessGroupGloo.create_device(interface=interface)]
            options._timeout = limit
            self._group = dist.ProcessGroupGloo(there, rank, size, options)

    def broadcast(self, tensor: Tensor, seconds: float) -> None:
        """Send the tensor from rank 0 to all others.

        Raises:
            RuntimeError: a member died, or it took longer.
        """
        options = dist.BroadcastOptions()
        options.rootRank, options.timeout = 0, timedelta(seconds=seconds)
        self._group.broadcast([tensor], options).wait()
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)

    def end(self) -> None:
        """Close the connections, so that members that still wait for this one get an error."""
        self._group.abort()


def _store_at(place: Place, limit: timedelta) -> Any:
    host, port = place
    return dist.TCPStore(host, port, is_master=False, timeout=limit)  # type: ignore[attr-defined]


def _hang_up(line: int) -> None:
    """End a socket; closing its file would not wake the thread that reads from it."""
    with suppress(OSError), socket.socket(fileno=os.dup(line)) as end:
        end.shutdown(socket.SHUT_RDWR)


# ---- the Learner's end


@dataclass(eq=False)
class _Member:
    """A receiver, as the sender knows it; ``None`` among its answers: it is gone."""

    link: Connection[Any, Any]
    name: str
    answers: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)

    def tell(self, order: object) -> None:
        with suppress(OSError):  # that it is gone is among its answers
            self.link.send(order)

    def answer(self, until_s: float) -> str | None:
        try:
            return self.answers.get(timeout=max(0.0, until_s - time.monotonic()))
        except queue.Empty:
            return None


class BroadcastSender(BufferSender[CopiedWeights]):
    """Publishes with one broadcast to all receivers that have joined; what it published is kept for those that join.

    All that is sent leaves by one thread, one thing after the other.
    """

    def __init__(self, options: TransportOptions) -> None:
        super().__init__(partial(CopiedWeights, flatten=True), options.buffers_at_start)
        self._options = options
        host = reachable_at(options.interface)
        self._store = listen(host)
        self._door = socket.create_server((host, 0))
        self._where = BroadcastPayload(
            (host, self._door.getsockname()[1]), (host, self._store.port), secrets.token_bytes(16)
        )
        self._members: list[_Member] = []
        self._needed: frozenset[int] = frozenset()
        self._group: _Group | None = None
        self._in_group: Sequence[_Member] = ()
        self._groups_made = 0
        self._desk = ThreadPoolExecutor(1, "broadcast")
        self._accepting = threading.Thread(target=self._accept, name="broadcast-door", daemon=True)
        self._accepting.start()

    def publish_weights(
        self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]
    ) -> WeightHandle:
        """Copy the weights, and send them to all receivers; one that does not take them in time is left out.

        When it returns, every receiver that has joined and was not left out holds the version.
        """
        return self._desk.submit(self._publish, weights, version, still_needed).result()

    def close(self) -> None:
        """Give the buffers back; receivers lose their connection."""
        _hang_up(self._door.fileno())
        self._accepting.join()
        self._door.close()
        self._desk.shutdown()
        for member in list(self._members):
            self._leave_out(member)
        self._end_group()
        super().close()

    def _payload(self, buffer: CopiedWeights, version: int) -> BroadcastPayload:
        return self._where

    def _publish(self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]) -> WeightHandle:
        handle = super().publish_weights(weights, version, still_needed)
        self._needed = still_needed | {version}
        self._send(version, list(self._members))
        return handle

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._listen_to, args=(line,), name="broadcast-member", daemon=True).start()

    def _listen_to(self, line: socket.socket) -> None:
        """Take in what one receiver says, until it is gone."""
        member = None
        with Connection(line.detach()) as link:
            try:
                deliver_challenge(link, self._where.key)
                answer_challenge(link, self._where.key)
                member = _Member(link, link.recv())
                self._members.append(member)
                while True:
                    said = link.recv()
                    if isinstance(said, _Want):
                        self._desk.submit(self._send_wanted, member, said.version)
                    else:
                        member.answers.put(said)
            except (EOFError, OSError, AuthenticationError, RuntimeError):  # RuntimeError: the desk is closed
                pass
            finally:
                if member is not None:
                    member.answers.put(None)
                    with suppress(ValueError):
                        self._members.remove(member)

    def _send_wanted(self, member: _Member, version: int) -> None:
        if version in self._pool:
            self._send(version, [member])
        else:
            member.tell(_Refused(version, f"version {version} is not held by the Learner any more"))

    def _send(self, version: int, members: Sequence[_Member]) -> None:
        """Send a version; members that have not got it at the end are left out."""
        buffer, until_s = self._pool[version], time.monotonic() + self._options.timeout_s
        on_cpu = not buffer.tensors[0].is_cuda
        for member in members:
            member.tell(_Prepare(version, buffer.layout, on_cpu, self._needed))
        ready = [member for member in members if member.answer(until_s) == DONE]
        left = [member for member in members if member not in ready]
        until_s = time.monotonic() + self._options.timeout_s
        for _ in range(ATTEMPTS):
            if ready and time.monotonic() < until_s:
                ready, lost = self._broadcast(buffer.tensors[0], ready, until_s)
                left += lost
        for member in [*left, *ready]:
            self._leave_out(member)
            print(f"broadcast: {member.name} did not take version {version} and is left out until it joins", flush=True)

    def _broadcast(
        self, tensor: Tensor, members: Sequence[_Member], until_s: float
    ) -> tuple[list[_Member], list[_Member]]:
        """Send to members that are ready; return those to try again, and those that are gone or say nothing."""
        makes = self._group is None or self._in_group != members
        if makes:
            self._end_group()
            self._groups_made += 1
        seconds = max(0.001, until_s - time.monotonic())
        for rank, member in enumerate(members, start=1):
            member.tell(_Enter(f"broadcast{self._groups_made}", rank, len(members) + 1, seconds))
        try:
            if makes:
                name, size = f"broadcast{self._groups_made}", len(members) + 1
                self._group = self._make_group(name, size, str(tensor.device), seconds)
                self._in_group = members
            assert self._group is not None
            self._group.broadcast(tensor, seconds)
        except RuntimeError as error:
            print(f"broadcast: broken off: {str(error).splitlines()[0]}", flush=True)
            self._end_group()
        answers = [member.answer(until_s) for member in members]
        if any(answer != DONE for answer in answers):
            self._end_group()
        again = [member for member, answer in zip(members, answers, strict=True) if answer]
        return again, [member for member, answer in zip(members, answers, strict=True) if answer is None]

    def _make_group(self, name: str, size: int, device: str, seconds: float) -> _Group:
        interface = self._options.interface
        return _Group(self._store, name, 0, size, device=device, interface=interface, seconds=seconds)

    def _end_group(self) -> None:
        if self._group is not None:
            self._group.end()
        self._group, self._in_group = None, ()

    def _leave_out(self, member: _Member) -> None:
        with suppress(ValueError):
            self._members.remove(member)
        with suppress(OSError):
            _hang_up(member.link.fileno())


# ---- a Generator's end


class BroadcastReceiver:
    """Holds every version that this Generator may need, as they are broadcast; see ``protocol.WeightReceiver``.

    Its memory is one buffer of the whole weights for each of them, which is kept and used again.
    """

    def __init__(self, options: TransportOptions) -> None:
        self.notes: tuple[str, ...] = ()
        self._options = options
        self._changed = threading.Condition()
        self._held: dict[int, tuple[BucketLayout, Tensor]] = {}
        self._free: list[Tensor] = []
        self._refused: dict[int, str] = {}
        self._joined: BroadcastPayload | None = None
        self._link: Connection[Any, Any] | None = None
        self._thread: threading.Thread | None = None

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return views of the version, at once where its broadcast has come, else as soon as the sender has sent it.

        Raises:
            RunStopped: the sender is gone, does not hold the version any more, or could not send it in time.
        """
        version = weight_handle.version
        for _ in range(ATTEMPTS):
            self._join(weight_handle.payload)
            with self._changed:
                link = self._link
                if version not in self._held and link is not None:
                    self._refused.pop(version, None)
                    with suppress(OSError):
                        link.send(_Want(version))
                    self._changed.wait_for(partial(self._known, version, link))
                if version in self._refused:
                    raise RunStopped(f"the weights are not there: {self._refused[version]}")
                if version in self._held:
                    layout, buffer = self._held[version]
                    return layout.views(buffer)
        raise RunStopped(f"version {version} was not broadcast to {self._options.who}: the Learner left it out")

    def close(self) -> None:
        """Leave the group, and give the memory back."""
        self._leave()
        self._held, self._free, self._joined = {}, [], None

    def _known(self, version: int, link: object) -> bool:
        return version in self._held or version in self._refused or self._link is not link

    def _join(self, sender: BroadcastPayload) -> None:
        if self._link is not None and self._joined == sender:
            return
        self._leave()
        if self._joined != sender:
            self._held = {}
        try:
            link = Client(sender.door, authkey=sender.key)
            link.send(self._options.who)
        except (OSError, EOFError, AuthenticationError) as error:
            raise RunStopped(f"the Learner that broadcasts the weights cannot be reached: {error}") from error
        self._joined, self._link = sender, link
        self._thread = threading.Thread(target=self._attend, args=(link, sender), name="broadcast", daemon=True)
        self._thread.start()

    def _leave(self) -> None:
        if self._link is not None:
            with suppress(OSError):
                _hang_up(self._link.fileno())
        if self._thread is not None:
            self._thread.join()
        self._link, self._thread = None, None

    def _attend(self, link: Connection[Any, Any], sender: BroadcastPayload) -> None:
        """Do what the sender says, until it is gone."""
        limit = timedelta(seconds=self._options.timeout_s)
        store = group = coming = None
        name = ""
        try:
            while True:
                order = link.recv()
                if isinstance(order, _Refused):
                    with self._changed:
                        self._refused[order.version] = order.reason
                        self._changed.notify_all()
                    continue
                try:
                    if isinstance(order, _Prepare):
                        if coming is not None:
                            self._free.append(coming[1])
                        coming = order, self._room_for(order)
                    else:
                        if order.group != name and group is not None:
                            group.end()
                            group = None
                        if group is None:
                            store = store or _store_at(sender.store, limit)
                            assert coming is not None
                            group = self._enter(store, order, str(coming[1].device))
                            name = order.group
                        assert coming is not None
                        group.broadcast(coming[1], order.seconds)
                        self._keep(*coming)
                        coming = None
                    link.send(DONE)
                except RuntimeError as error:  # torch's, of a member that died, of time or memory that ran out
                    if group is not None:
                        group.end()
                    group = None
                    link.send(str(error) or type(error).__name__)
        except (EOFError, OSError):
            pass
        finally:
            if group is not None:
                group.end()
            with self._changed:
                if coming is not None:
                    self._free.append(coming[1])
                if self._link is link:
                    self._link = None
                self._changed.notify_all()
            link.close()

    def _enter(self, store: Any, order: _Enter, device: str) -> _Group:
        return _Group(
            store,
            order.group,
            order.rank,
            order.size,
            device=device,
            interface=self._options.interface,
            seconds=order.seconds,
        )

    def _room_for(self, order: _Prepare) -> Tensor:
        """Return a buffer that holds nothing needed, or a new one; the first time, all that will be needed are made."""
        with self._changed:
            gone = self._held.keys() - order.needed | {order.version} & self._held.keys()
            self._free += [self._held.pop(version)[1] for version in sorted(gone)]
            size, device = order.layout.num_bytes, torch.device("cpu" if order.on_cpu else self._options.device)
            self._free = [
                buffer for buffer in self._free if (buffer.numel(), buffer.device.type) == (size, device.type)
            ]
            if not self._free:
                more = 1 if self._held else self._options.buffers_at_start
                self._free = [torch.empty(size, dtype=torch.uint8, device=device).fill_(0) for _ in range(more)]
            return self._free.pop()

    def _keep(self, order: _Prepare, buffer: Tensor) -> None:
        with self._changed:
            self._held[order.version] = order.layout, buffer
            self._changed.notify_all()
