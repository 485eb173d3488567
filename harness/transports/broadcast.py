"""One broadcast of the flat weights to all Generators, in a process group that only the transport has.

A collective is entered by all at once, and Generators load when they are ready. So a receiver takes part in every
broadcast on threads that its actor has for the sender's calls, and keeps what came as long as a Generator may need it;
``receive`` finds it there. A receiver joins when it first receives, by a call to the sender's actor, and is sent that
version by itself; so does one that replaces a dead Generator, or was left out because it did not answer. Rank 0 of the
group is the sender, which makes the group anew when its members change, of those that are ready. It waits ``TIMEOUT_S``
for them, and then broadcasts once more without those that have not answered, if others have not got the version.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import ray
import torch
import torch.distributed as dist
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from harness.core.errors import RunStopped
from harness.core.types import WeightHandle
from harness.models.flat_layout import BucketLayout
from harness.transports.buffers import BufferSender, CopiedWeights
from harness.transports.protocol import TransportOptions
from harness.transports.rendezvous import listen, reachable_at

TIMEOUT_S = 30.0
"""Seconds that a publish waits for a Generator before it continues without it."""
ANSWER_S = 2.0
"""Seconds more in which those that have waited in vain can say so."""
ATTEMPTS = 2
"""Broadcasts of one version, when a member died or did not answer during the first."""
CALLS = "broadcast"
"""Concurrency group of the calls. A receiver's actor needs a thread in it for each rank that broadcasts, plus one."""
_ends: dict[str, Any] = {}  # the senders and receivers of this process, by the name under which they are called


@dataclass(frozen=True, slots=True)
class End:
    """A sender or receiver, as the other one calls it."""

    lane: str
    name: str = field(default_factory=lambda: uuid4().hex)
    actor: Any = field(repr=False, compare=False, default_factory=lambda: ray.get_runtime_context().current_actor)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call it, and return the reference of what it returns."""
        remote = self.actor.__ray_call__.options(concurrency_group=CALLS).remote
        return remote(_called, self.name, method, *arguments)


def _called(actor: object, name: str, method: str, *arguments: Any) -> Any:
    if name not in _ends:
        raise RunStopped("it is closed")
    return getattr(_ends[name], method)(*arguments)


@dataclass(frozen=True, slots=True)
class BroadcastPayload:
    """The sender, and the address of the store over which a group is made."""

    sender: End
    store: tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Order:
    """A version comes. Those that are not ``needed`` make room for it. It moves by gloo where it is on the CPU."""

    version: int
    layout: BucketLayout
    on_cpu: bool
    needed: frozenset[int]


class _Group:
    """A process group beside torch's default one, whose members find each other in ``store``.

    It moves tensors of ``device``: by gloo on CPUs, which listens on ``interface``, and by NCCL on GPUs.
    """

    def __init__(self, store: Any, name: str, rank: int, size: int, device: torch.device, interface: str) -> None:
        there = dist.PrefixStore(name, store)  # type: ignore[attr-defined]
        on_gpu = device.type == "cuda"
        options: Any = dist.ProcessGroupNCCL.Options() if on_gpu else dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timedelta(seconds=TIMEOUT_S)
        if not on_gpu:
            options._devices = [dist.ProcessGroupGloo.create_device(interface=interface)]
        kind: Any = dist.ProcessGroupNCCL if on_gpu else dist.ProcessGroupGloo
        self.name, self._wakes, self._group = name, threading.Event(), kind(there, rank, size, options)

    def broadcast(self, tensor: Tensor) -> None:
        """Send the tensor from rank 0 to all others.

        Raises:
            RuntimeError: a member died, or it took longer than ``TIMEOUT_S``, or the group was ended meanwhile.
        """
        options = dist.BroadcastOptions()
        options.rootRank, options.timeout = 0, timedelta(seconds=TIMEOUT_S)
        self._run(lambda group: group.broadcast([tensor], options), tensor.device)

    def meet(self, device: torch.device) -> None:
        """Return when all members are here, and so have what was broadcast before; errors as there."""
        self._run(lambda group: group.allreduce([torch.zeros(1, device=device)]), device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def end(self) -> None:
        """Wake whoever waits in this process, with an error; the connections are closed when no operation is left."""
        group, self._group = self._group, None
        if group is not None:
            self._wakes.set()
            group.abort()

    def _run(self, start: Callable[[Any], Any], device: torch.device) -> None:
        group = self._group
        if group is None:
            raise RuntimeError("the group was ended")
        work = start(group)
        if device.type != "cuda":  # gloo's waits end with its time limit, whatever happens
            self._wakes.clear()
            work.get_future().add_done_callback(lambda _: self._wakes.set())
            if self._group is not None:
                self._wakes.wait()
            if self._group is None:
                threading.Thread(target=_outlive, args=(group, work), daemon=True).start()
                raise RuntimeError("the group was ended")
        work.wait()


def _outlive(group: Any, work: Any) -> None:
    """Keep a group until its work has ended; whoever frees it waits for that."""
    with suppress(RuntimeError):
        work.wait()
    del group


class BroadcastSender(BufferSender[CopiedWeights]):
    """Publishes with one broadcast to all receivers that have joined; what it published is kept for those that join."""

    def __init__(self, options: TransportOptions) -> None:
        super().__init__(CopiedWeights, options.buffers_at_start)
        self._interface, host = options.interface, reachable_at(options.interface)
        self._store = listen(host)
        self._where = BroadcastPayload(End("learner"), (host, self._store.port))
        _ends[self._where.sender.name] = self
        self._sending = threading.Lock()  # one version after the other, whoever asks for it
        self.members: list[End] = []
        self._needed: frozenset[int] = frozenset()
        self._group: _Group | None = None
        self._in_group: list[End] = []
        self.groups_made = 0

    def publish_weights(
        self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]
    ) -> WeightHandle:
        """Copy the weights, and send them to all receivers; one that does not take them in time is left out.

        When it returns, every receiver that has joined and was not left out holds the version.
        """
        with self._sending:
            if version in self._pool:
                raise ValueError(f"version {version} is published already")
            self._needed = still_needed | {version}
            on_cpu = not next(iter(weights.values())).is_cuda
            order = _Order(version, BucketLayout.of(weights), on_cpu, self._needed)
            is_same = self._group is not None and self._in_group == self.members
            calls = self._call(self.members, order) if is_same else []  # they get ready meanwhile
            handle = super().publish_weights(weights, version, still_needed)
            self._send(self.members, order, calls)
            return handle

    def send_to(self, member: End, version: int) -> bool:
        """Let a receiver join that asks for this version, and send it; return whether it is held."""
        with self._sending:
            if member not in self.members:
                self.members.append(member)
            if version not in self._pool:
                return False
            buffer = self._pool[version]
            self._send([member], _Order(version, buffer.layout, not buffer.tensor.is_cuda, self._needed))
            return True

    def close(self) -> None:
        """Give the buffers back; receivers cannot join any more."""
        _ends.pop(self._where.sender.name, None)
        with self._sending:
            self._end_group()
            super().close()

    def _payload(self, buffer: CopiedWeights, version: int) -> BroadcastPayload:
        return self._where

    def _send(self, members: Sequence[End], order: _Order, calls: Sequence[Any] = ()) -> None:
        """Send a version to members, whose ``calls`` may be under way; those that have not got it are left out."""
        tensor, waiting, done = self._pool[order.version].tensor, list(members), set[End]()
        for _ in range(ATTEMPTS):
            if not calls:
                answers = _answers([member.call("prepare", order) for member in waiting], time.monotonic() + TIMEOUT_S)
                waiting = [member for member, answer in zip(waiting, answers, strict=True) if answer]
                calls = self._call(waiting, order)
            answers = self._broadcast(tensor, waiting, calls) if calls else []
            done |= {member for member, answer in zip(waiting, answers, strict=True) if answer}
            waiting = [member for member, answer in zip(waiting, answers, strict=True) if answer is False]
            calls = []
        for member in [member for member in members if member not in done]:
            self.members.remove(member)
            what = f"did not take version {order.version} and is left out until it joins"
            print(f"broadcast: {member.lane} {what}", flush=True)

    def _call(self, members: Sequence[End], order: _Order) -> list[Any]:
        """Call members to take part in a broadcast, and return the references of their answers."""
        if members and self._in_group != members:
            self._end_group()
            self.groups_made, self._in_group = self.groups_made + 1, list(members)
        name, size = str(self.groups_made), len(members) + 1
        return [member.call("take_part", order, name, rank, size) for rank, member in enumerate(members, start=1)]

    def _broadcast(self, tensor: Tensor, members: Sequence[End], calls: Sequence[Any]) -> list[bool | None]:
        """Send to the members, which were called, and return their answers."""
        until_s = time.monotonic() + TIMEOUT_S + ANSWER_S
        try:
            if self._group is None:
                name, size = str(self.groups_made), len(calls) + 1
                self._group = _Group(self._store, name, 0, size, tensor.device, self._interface)
            for call in calls:
                call.future().add_done_callback(partial(_end_if_failed, self._group))
            self._group.broadcast(tensor)
            self._group.meet(tensor.device)
            return [True] * len(calls)
        except RuntimeError as error:  # torch's
            print(f"broadcast: broken off: {str(error).splitlines()[0]}", flush=True)
            self._end_group()
            for member in members:
                member.call("give_up", str(self.groups_made))
            return _answers(calls, until_s)

    def _end_group(self) -> None:
        if self._group is not None:
            self._group.end()
        self._group, self._in_group = None, []


def _answers(calls: Sequence[Any], until_s: float) -> list[bool | None]:
    """Return of each call True: it is done, False: it failed, or None: its actor is gone, or has not answered."""
    if not calls:
        return []
    answered, _ = ray.wait(list(calls), num_returns=len(calls), timeout=max(0.0, until_s - time.monotonic()))
    answers: list[bool | None] = []
    for call in calls:
        try:
            answers.append(None if call not in answered else ray.get(call) is None)
        except RayError as error:
            answers.append(False if isinstance(error, RayTaskError) else None)
    return answers


def _end_if_failed(group: _Group, call: Future[None]) -> None:
    """End the group when a member fails or dies, so that nobody waits for it."""
    if call.exception() is not None:
        threading.Thread(target=group.end, daemon=True).start()  # not in Ray's own thread


class BroadcastReceiver:
    """Holds every version that this Generator may need, as they are broadcast.

    Its memory is one buffer of the whole weights for each of them, which is kept and used again.
    """

    def __init__(self, options: TransportOptions) -> None:
        self.notes: tuple[str, ...] = ()
        self._options, self._end = options, End(options.who)
        _ends[self._end.name] = self
        self._ordered = threading.Lock()  # the sender's calls are followed one after the other
        self._held: dict[int, tuple[BucketLayout, Tensor]] = {}
        self._free: list[Tensor] = []
        self._coming: Tensor | None = None
        self._sender: BroadcastPayload | None = None
        self._store: Any = None
        self._group: _Group | None = None
        self._given_up = ""

    def receive(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return views of the version, at once where its broadcast has come, else as soon as the sender has sent it.

        Raises:
            RunStopped: the sender is gone, does not hold the version any more, or could not send it in time.
        """
        version, sender = weight_handle.version, weight_handle.payload
        if self._sender != sender:
            self._leave()
            self._sender = sender
        for _ in range(ATTEMPTS):
            if version in self._held:
                break
            try:
                is_there = ray.get(sender.sender.call("send_to", self._end, version))
            except RayError as error:
                reason = str(error).strip().splitlines()[-1]
                raise RunStopped(f"the Learner that broadcasts the weights cannot be reached: {reason}") from None
            if not is_there:
                raise RunStopped(f"the weights are not there: version {version} is not held by the Learner any more")
        if version not in self._held:
            raise RunStopped(f"version {version} was not broadcast to {self._options.who}: the Learner left it out")
        layout, buffer = self._held[version]
        return layout.views(buffer)

    def close(self) -> None:
        """Leave the group, and give the memory back."""
        _ends.pop(self._end.name, None)
        self._leave()

    def prepare(self, order: _Order) -> None:
        """Have a buffer ready for the version that comes; the first time, all that will be needed are made."""
        with self._ordered:
            self._prepare(order)

    def take_part(self, order: _Order, group: str, rank: int, size: int) -> None:
        """Take part in the broadcast of a version, as this rank of the group of this name.

        Raises:
            RuntimeError: a member died, or it took longer than ``TIMEOUT_S``.
        """
        with self._ordered:
            buffer = self._prepare(order)
            try:
                if self._group is None or self._group.name != group:
                    self._end_group()
                    if self._store is None:
                        assert self._sender is not None
                        host, port = self._sender.store
                        limit = timedelta(seconds=TIMEOUT_S)
                        self._store = dist.TCPStore(host, port, is_master=False, timeout=limit)  # type: ignore[attr-defined]
                    self._group = _Group(self._store, group, rank, size, buffer.device, self._options.interface)
                if self._given_up == group:
                    raise RuntimeError("the Learner gave this group up")
                self._group.broadcast(buffer)
                if buffer.is_cuda:
                    torch.cuda.synchronize(buffer.device)
                self._held[order.version], self._coming = (order.layout, buffer), None
                self._group.meet(buffer.device)
            except RuntimeError:
                self._coming = None  # what was broken off may still write there
                self._end_group()
                raise

    def give_up(self, group: str) -> None:
        """Wait no longer in the group of this name: one of its members has failed."""
        self._given_up = group
        if self._group is not None and self._group.name == group:
            self._group.end()

    def _prepare(self, order: _Order) -> Tensor:
        gone = self._held.keys() - order.needed | {order.version} & self._held.keys()
        self._free += [self._held.pop(version)[1] for version in sorted(gone)]
        if self._coming is not None:
            self._free.append(self._coming)
        size, device = order.layout.num_bytes, torch.device("cpu" if order.on_cpu else self._options.device)
        self._free = [free for free in self._free if (free.numel(), free.device.type) == (size, device.type)]
        if not self._free:
            more = 1 if self._held else self._options.buffers_at_start
            self._free = [torch.empty(size, dtype=torch.uint8, device=device).fill_(0) for _ in range(more)]
        self._coming = self._free.pop()
        return self._coming

    def _leave(self) -> None:
        self._end_group()
        self._held, self._free, self._coming, self._sender, self._store = {}, [], None, None, None

    def _end_group(self) -> None:
        if self._group is not None:
            self._group.end()
        self._group = None
