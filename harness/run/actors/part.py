"""One lane's part as a Ray actor, from both ends: the actor that holds a worker, and what the driver calls it through.

Rollouts pass from actor to actor by reference: a Generator's reply is metadata and one object reference for each group,
owned by the driver, so that the data outlives the Generator and is freed when the last handle goes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from harness.core.errors import HarnessError, PartDied, PartReplaced, RunStopped, UserError
from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import GroupData, RolloutGroup, ScoredBatch, WeightHandle
from harness.models.chat import on_date, today
from harness.probes.memory import DeviceFigure
from harness.probes.tracers import Tracers
from harness.run.actors.deaths import DEATHS, cause_of_death, ends_the_run, first_line, own_error
from harness.run.handles import MOVES
from harness.transports.rendezvous import listen, reachable_at

CLOCK_READINGS = 5
LAST_WORDS_S = 5.0
"""Seconds in which the other ranks may say what happened, when one has failed."""
CLOSE_S = 3.0
"""Seconds that workers may take to give back what they hold."""
WRITING_S = 120.0
"""Seconds in which a profiler writes its file."""
PULSE_S = 5.0
"""Seconds in which an idle actor answers."""
LEAST_START_S = 120.0
"""Seconds that the start of a run's parts may take, however short a stage may be: they load their libraries first."""
MOVING = "weights"
"""The concurrency group in which weights move: a Generator loads them while it samples, or a Learner publishes them
while it trains."""
T = TypeVar("T")
Make = Callable[..., Any]
"""Makes a worker, given its tracer."""


# ---- in the actor's process


@dataclass(frozen=True)
class ProcessSetup:
    """How an actor's process is set up before anything is built in it.

    Working folder, import path and date are those of the driver, which makes this value.

    Attributes:
        log: file that takes what the process prints; None leaves it to Ray.
        cuda: whether the worker computes on a GPU.
        tracers: probes, and delays that the scenario asks for.
    """

    lane: str
    threads: int
    log: Path | None
    working_folder: Path = field(default_factory=Path.cwd)
    import_path: tuple[str, ...] = field(default_factory=lambda: tuple(os.path.abspath(path) for path in sys.path))
    today: date = field(default_factory=today)
    cuda: bool = False
    tracers: Tracers = field(default_factory=Tracers)


@dataclass(frozen=True)
class ProcessFacts:
    pid: int
    boot_id: str
    node_id: str


@dataclass(frozen=True)
class Reply:
    """What a call returned, its spans on the machine's monotonic clock, and the device's figures for them."""

    value: Any
    spans: list[Span]
    device_figures: list[DeviceFigure] = field(default_factory=list)


class PartActor:
    """Holds one worker in a process of its own: the one actor class of all parts.

    It is a plain class here; ``ActorSpec.launch`` makes an actor of it. ``build`` is apart from the start, so that its
    errors come back as they are.
    """

    def __init__(self, setup: ProcessSetup) -> None:
        if setup.log is not None:
            _print_into(setup.log)
        self._setup = setup
        sys.path[:] = [*setup.import_path, *(path for path in sys.path if path not in setup.import_path)]
        torch.set_num_threads(setup.threads)
        self._recorder = RecordingTracer(time.perf_counter_ns)
        self._instrumented = setup.tracers.for_process(self._recorder, (setup.lane,), setup.cuda)
        self._worker: Any = None
        self._store: Any = None

    def listen(self, interface: str) -> tuple[str, int]:
        """Open the store over which ranks find each other, and return where it is.

        Args:
            interface: ``lo``; with any other one it is where Ray reaches this node.
        """
        host = reachable_at(interface)
        self._store = listen(host)
        return host, self._store.port

    def build(self, make: Make, store: tuple[str, int] | None = None) -> ProcessFacts:
        """Make the worker.

        Args:
            make: makes it; of the worker of a rank with the store, or where it is, as a second argument.
            store: where the ranks find each other; None: this is no rank.

        Raises:
            UserError: the driver's working folder is not on this machine, or ``make`` raises it.
        """
        self._enter_working_folder()
        with self._recorder.underway(self._setup.lane, Stage.STARTUP), on_date(self._setup.today):
            tracer = self._instrumented.tracer
            self._worker = make(tracer) if store is None else make(tracer, self._store or store)
        for note in (*self._instrumented.notes, *getattr(self._worker, "notes", ())):
            print(note, flush=True)
        return ProcessFacts(os.getpid(), boot_id(), ray.get_runtime_context().get_node_id())

    def _enter_working_folder(self) -> None:
        folder = self._setup.working_folder
        try:
            os.chdir(folder)
        except OSError as error:
            raise UserError(
                f"{self._setup.lane} was placed on a machine without the working folder ({error.strerror})",
                str(folder),
                "have the project in the same folder on every node of the cluster",
            ) from error

    def call(self, method: str, arguments: Sequence[Any], *data: Any) -> Any:
        """Call a method of the worker and return a ``Reply``.

        The data of groups do not pass through the driver: a group that comes or goes has the number of its data.

        Args:
            method: by name.
            arguments: what the method gets.
            data: the data of their groups, which Ray fetches; without groups, further arguments.

        Returns:
            A ``Reply``, and behind it the data of groups that did not come with this call.
        """
        has_groups = any(map(_is_groups, arguments))
        given = [with_data(each, data.__getitem__) if _is_groups(each) else each for each in arguments]
        value = getattr(self._worker, method)(*given, *(() if has_groups else data))
        numbers, new = {id(each): number for number, each in enumerate(data)}, list[GroupData]()

        def number_of(each: GroupData) -> int:
            if id(each) not in numbers:
                new.append(each)
            return numbers.setdefault(id(each), len(numbers))

        bare = with_data(value, number_of)
        reply = Reply(bare, self._recorder.drain(), self._instrumented.drain_device_figures())
        return [reply, *new] if new else reply

    def outgoing(self, *arguments: Any) -> list[torch.Tensor]:
        tensors: list[torch.Tensor] = self._worker.outgoing(*arguments)
        return tensors

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def end_windows(self) -> None:
        """Stop the profilers that still run, and have them write what they have."""
        self._instrumented.end_windows()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _print_into(path: Path) -> None:
    """Have everything that this process prints, libraries in C included, go to a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _is_groups(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], RolloutGroup)


def with_data(value: Any, data_for: Callable[[Any], Any]) -> Any:
    """Return groups, or a scored batch of them, with other data in place of those that they have."""
    if isinstance(value, ScoredBatch):
        return replace(value, groups=with_data(value.groups, data_for))
    if not _is_groups(value):
        return value
    return tuple(each if each.data is None else replace(each, data=data_for(each.data)) for each in value)


# ---- in the driver


@dataclass(frozen=True)
class SentAlong:
    """The payload of a weight handle whose tensors Ray sends with the call that loads them.

    Attributes:
        described: the sender's own payload.
        tensors: reference of the tensors.
    """

    described: Any
    tensors: Any


@dataclass(frozen=True)
class ActorSpec:
    """How a lane's actor is made, each time.

    Attributes:
        make: makes the worker inside of the process.
        options: Ray's options: resources, placement, environment.
        moving_lane: lane of the thread on which weights move, where they have one of their own.
        tensor_transport: whether it sends or receives tensors by Ray Direct Transport.
        sends_by: of a Learner, the tensor transport that sends its published tensors along with the call that loads
            them (gloo, nccl).
        calls: concurrency groups in which the ends of a transport call each other, and how many threads each has.
        listens_on: of rank 0, the network interface on which the others find it.
        store: of any other rank, the reference of where they find each other.
    """

    setup: ProcessSetup
    make: Make
    options: dict[str, Any]
    moving_lane: str | None = None
    tensor_transport: bool = False
    sends_by: str | None = None
    calls: Mapping[str, int] = field(default_factory=dict)
    listens_on: str | None = None
    store: Any = None

    def launch(self) -> tuple[Any, Any, Any]:
        """Start an actor.

        Returns:
            Its handle, the reference of its facts, which come when its worker is built, and that of its store.
        """
        actor_class: Any = ray.remote
        remote_class = actor_class(
            concurrency_groups={**self.calls, **({} if self.moving_lane is None else {MOVING: 1})},
            enable_tensor_transport=self.tensor_transport,
        )(PartActor)
        handle = remote_class.options(**self.options).remote(self.setup)
        store = self.store if self.listens_on is None else handle.listen.remote(self.listens_on)
        return handle, handle.build.remote(self.make, store), store


class Replacements:
    def __init__(self, most: int) -> None:
        self.most, self.made = most, 0

    def count(self, lane: str, reason: str) -> None:
        """Count one more.

        Raises:
            RunStopped: there were too many.
        """
        if self.made >= self.most:
            raise RunStopped(
                f"{lane} died ({reason}), and faults.max_replacements {self.most} parts were replaced already"
            )
        self.made += 1


class ActorPart:
    """The actor of one lane: started, called, and replaced when it dies.

    Args:
        spec: how it is made.
        tracer: takes the spans of its replies.
        replacements: of the whole run; None for a part that cannot be replaced.
        reconnect: connects a new actor of this lane with the others.
        weights_from: the actor whose weights it loads: where they cannot be had, its death is the first suspect.

    Attributes:
        building: reference of its facts, which are there when its worker is built.
        device_figures: that came with replies; whoever reads them takes them out.
    """

    def __init__(
        self,
        spec: ActorSpec,
        tracer: RecordingTracer,
        replacements: Replacements | None = None,
        reconnect: Callable[[], Awaitable[None]] | None = None,
        weights_from: ActorPart | None = None,
    ) -> None:
        self.spec, self.tracer, self.lane = spec, tracer, spec.setup.lane
        self._replacements, self._reconnect, self._weights_from = replacements, reconnect, weights_from
        self.incarnation = 0
        self._replacing = asyncio.Lock()
        self.handle, self.building, self.store = spec.launch()
        self.facts: ProcessFacts | None = None
        self.device_figures: list[DeviceFigure] = []
        self._offset_ns = 0

    def finish_building(self) -> None:
        try:
            facts: ProcessFacts = ray.get(self.building)
        except RayTaskError as error:
            raise own_error(error) from None
        self.facts = facts
        same_machine = facts.boot_id == boot_id()
        self._offset_ns = 0 if same_machine else clock_offset_ns(lambda: ray.get(self.handle.now_ns.remote()))

    async def call(
        self,
        method: str,
        *arguments: Any,
        stage: Stage,
        step: int,
        version: int,
        new_groups: int = 0,
        asked_ns: int | None = None,
    ) -> Any:
        """Call a method of the worker and record the spans of its reply; see ``handles.Part``.

        The data of rollout groups are object references, those of new groups owned by the driver.

        Args:
            asked_ns: our monotonic clock when the lane began to wait for this call; None: when it is sent.

        Raises:
            HarnessError: what the method raised.
            PartReplaced: the actor died, and a new one has taken its place.
            RunStopped: it died and cannot be replaced, or it lost what another actor owned.
        """
        data = list[Any]()

        def number_of(reference: Any) -> int:
            data.append(reference)
            return len(data) - 1

        bare = [with_data(each, number_of) for each in arguments]
        arrives = method == "load_weights" and isinstance(bare[0].payload, SentAlong)
        if arrives:
            data, bare[0] = [bare[0].payload.tensors], replace(bare[0], payload=bare[0].payload.described)
        options: dict[str, Any] = {"num_returns": 1 + new_groups}
        lane = self.lane
        if method in MOVES and self.spec.moving_lane is not None:
            options["concurrency_group"], lane = MOVING, self.spec.moving_lane
        try:
            with self.tracer.underway(lane, stage, step, version):
                async with self._replacing:  # until a new actor, if one is on its way, has its worker
                    incarnation, handle = self.incarnation, self.handle
                called_ns = time.perf_counter_ns()
                references = handle.call.options(**options).remote(method, bare, *data)
                first, *others = references if new_groups else [references]
                reply = await self._reply(first, method, handle, incarnation)
        except RunStopped:
            if method == "load_weights" and self._weights_from is not None:
                await self._weights_from.check_alive()
            raise
        spans = [self._on_our_clock(span) for span in reply.spans]
        if arrives:
            spans.insert(0, arrival(spans, called_ns))
        own = [span for span in spans if span.lane == lane]  # two calls may be under way at once
        waits = calls_under_way(lane, own, asked_ns or called_ns, time.perf_counter_ns())
        self.tracer.record_elsewhere([*spans, *waits])
        self.device_figures += reply.device_figures
        if self.spec.sends_by is not None and isinstance(reply.value, WeightHandle):
            tensors = handle.outgoing.options(tensor_transport=self.spec.sends_by).remote(reply.value.version)
            return replace(reply.value, payload=SentAlong(reply.value.payload, tensors))
        return with_data(reply.value, [*data, *others].__getitem__)

    async def _reply(self, reference: Any, method: str, handle: Any, incarnation: int) -> Reply:
        try:
            reply: Reply = await reference
            return reply
        except RayTaskError as error:
            raise own_error(error) from None
        except DEATHS as error:
            if getattr(error, "actor_id", None) not in (None, handle._actor_id.hex()):
                raise RunStopped(f"an actor that {self.lane} needed to {_spoken(method)} died") from None
            raise await self._died(incarnation, cause_of_death(error)) from None
        except RayError as error:  # an object is gone with the actor that owned it
            raise RunStopped(f"{self.lane} could not {_spoken(method)}: {first_line(error)}") from None

    def _on_our_clock(self, span: Span) -> Span:
        if not self._offset_ns:
            return span
        return span._replace(start_ns=span.start_ns - self._offset_ns, end_ns=span.end_ns - self._offset_ns)

    async def _died(self, incarnation: int, reason: str) -> HarnessError:
        """Replace the dead actor, once for each death; return the error for the loop."""
        if self._replacements is None:
            return self._end_of_run(reason)
        async with self._replacing:
            if self.incarnation == incarnation:
                await self._replace(self._replacements, reason)
                self.incarnation += 1
                if self._reconnect is not None:
                    await self._reconnect()
        return PartReplaced(reason, self.incarnation)

    def _end_of_run(self, reason: str) -> RunStopped:
        return PartDied(f"the {self.lane} died: {reason}; what it had learnt since the last saved policy is lost")

    async def check_alive(self) -> None:
        """Return when the actor answers, or is so busy that it does not.

        Raises:
            RunStopped: it is dead.
        """
        try:
            await asyncio.wait_for(self.handle.now_ns.remote(), PULSE_S)
        except TimeoutError:
            return
        except DEATHS as error:
            raise self._end_of_run(cause_of_death(error)) from None

    async def _replace(self, replacements: Replacements, reason: str) -> None:
        """Make a new actor, and another one where that dies while it starts."""
        while True:
            replacements.count(self.lane, reason)
            ray.kill(self.handle)
            self.facts = None
            self.handle, self.building, self.store = self.spec.launch()
            try:
                return await in_thread(self.finish_building, [self])
            except DEATHS as error:
                reason = f"while it started: {cause_of_death(error)}"
            except asyncio.CancelledError:
                replacements.made -= 1
                raise


def _spoken(method: str) -> str:
    return method.replace("_", " ")


def arrival(spans: Sequence[Span], called_ns: int) -> Span:
    """Return the weight transfer of tensors that were sent along with a call: from it to the first span of the load."""
    return spans[0]._replace(stage=Stage.WEIGHT_TRANSFER, start_ns=called_ns, end_ns=spans[0].start_ns)


def calls_under_way(lane: str, spans: Sequence[Span], called_ns: int, answered_ns: int) -> Iterator[Span]:
    """Yield the waits at both ends of a call: until the actor began to work, and from then on until we had the reply.

    Arguments and results are unpacked in these times too. They are the lowest kind of span: where another call kept
    the actor busy meanwhile, that one owns the time (``harness.results.occupancy``).

    Args:
        spans: what the actor did for the call, on our clock; without any, the whole call was on its way.
    """
    begun_ns = min((span.start_ns for span in spans), default=answered_ns)
    ended_ns = max((span.end_ns for span in spans), default=answered_ns)
    step, version = (spans[0].step, spans[0].version) if spans else (-1, -1)
    for start_ns, end_ns in ((called_ns, begun_ns), (ended_ns, answered_ns)):
        if start_ns < end_ns:
            yield Span(lane, Stage.WAIT_FOR_CALL, start_ns, end_ns, step, version)


def clock_offset_ns(
    ask: Callable[[], int], readings: int = CLOCK_READINGS, now_ns: Callable[[], int] = time.perf_counter_ns
) -> int:
    """Return how far another machine's monotonic clock is ahead of ours, in nanoseconds.

    As in NTP (RFC 5905, section 8) with one timestamp at the far end: of several readings, the one with the shortest
    round trip counts, and its midpoint is taken as the moment of the far reading.
    """
    best_ns, offset_ns = None, 0
    for _ in range(readings):
        sent_ns = now_ns()
        far_ns = ask()
        back_ns = now_ns()
        if best_ns is None or back_ns - sent_ns < best_ns:
            best_ns, offset_ns = back_ns - sent_ns, far_ns - (sent_ns + back_ns) // 2
    return offset_ns


async def in_thread(wait: Callable[[], T], parts: Sequence[ActorPart]) -> T:
    """Return what a blocking wait for these parts returns. Whoever gives it up ends them, so that its thread ends."""
    try:
        return await asyncio.to_thread(wait)
    except asyncio.CancelledError:
        for part in parts:
            ray.kill(part.handle)
        raise


def start_limit_s(stall_after_s: float) -> float:
    return max(stall_after_s, LEAST_START_S)


def wait_until_built(parts: Sequence[ActorPart], limit_s: float) -> None:
    """Return when the workers of all parts are built.

    When one has failed, the others have ``LAST_WORDS_S`` to fail too: ranks of a Learner would wait for a dead one.

    Raises:
        HarnessError: what building a worker raised, or that its process died, of the first part; those come before what
            is put down as another one's failure, as a connection that broke off. Or who has not started in time, or the
            rank that another rank gave up waiting for.
    """
    failures: list[tuple[bool, int, HarnessError]] = []
    waiting = {part.building: number for number, part in enumerate(parts)}
    ends_s = time.monotonic() + limit_s
    while waiting:
        left_s = LAST_WORDS_S if failures else max(0.0, ends_s - time.monotonic())
        built, _ = ray.wait(list(waiting), timeout=left_s)
        if not built:
            break
        number = waiting.pop(built[0])
        try:
            parts[number].finish_building()
        except DEATHS as error:
            what = f"{parts[number].lane} died while it started: {cause_of_death(error)}"
            failures.append((False, number, RunStopped(what)))
        except HarnessError as error:
            failures.append((type(error) is RunStopped, number, error))
    late = " and ".join(parts[number].lane for number in sorted(waiting.values()))
    if failures:
        is_consequence, number, failure = min(failures)
        of_one_learner = all(parts[each].lane.startswith("learner") for each in (number, *waiting.values()))
        if late and is_consequence and of_one_learner:  # ranks, which wait for each other
            what = f"{late} did not start, for which {parts[number].lane} waited: {first_line(failure)}"
            raise RunStopped(what) from None
        raise failure
    if late:
        raise RunStopped(
            f"{late} did not start within {limit_s:g} s (faults.stall_after_s, but at least {LEAST_START_S:g})"
        )


def end_windows(parts: Sequence[ActorPart]) -> None:
    """Have the profilers in these actors stop and write what they have.

    Raises:
        RunStopped: one could not, or takes more than ``WRITING_S``.
    """
    with ends_the_run("a profiler could not write what it recorded"):
        ray.get([part.handle.end_windows.remote() for part in parts], timeout=WRITING_S)


def close_parts(parts: Sequence[ActorPart]) -> None:
    """Let the workers give back what they hold, as far as their actors live and listen, and end the actors."""
    closing = [part.handle.close.remote() for part in parts if part.facts is not None]
    if closing:  # the system gives back what a busy or dead one holds
        ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
    for part in parts:
        ray.kill(part.handle)
