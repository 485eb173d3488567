"""One lane's actor: started, called, and replaced when it dies."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError

from harness.core.errors import HarnessError, PartReplaced, RunStopped
from harness.core.trace import RecordingTracer, Span, Stage, Tracer
from harness.probes.memory import DeviceFigure, is_full_gpu
from harness.run.actors.processes import PartProcess, ProcessFacts, ProcessSetup, Reply, boot_id

CLOCK_READINGS = 5
CLOSE_S = 3.0
"""Seconds that workers may take to give back what they hold."""
WRITING_S = 120.0
"""Seconds in which a profiler writes its file."""
PULSE_S = 5.0
"""Seconds in which an idle actor answers."""

DEATHS = (RayActorError, OutOfMemoryError)
"""What a call raises whose actor is dead."""
_MEANINGS = (  # what Ray says, and what it means
    (r"connection error code 2", "its process ended without a word: it was killed, crashed or ran out of memory"),
    (r"exit code (\d+)", r"its process ended with exit code \1"),
    (r"was (\S+) used / (\S+) limit", r"Ray killed it since memory ran low: \1 of \2 were in use"),
    (r"\n([\w.]+(?:Error|Exception): .*)", r"it could not be set up: \1"),
    (r"killed by .ray\.kill", "Ray ended it, as it does with both sides of a weight transfer that breaks off"),
    (r"(?:is dead|died) because (.*)", r"\1"),
)

Make = Callable[[Tracer], Any]


@dataclass(frozen=True)
class Blueprint:
    """How a lane's actor is made, each time.

    Attributes:
        process: its class.
        options: Ray's options: resources, placement, environment.
        concurrency_groups: threads apart from the main one, by name.
        tensor_transport: whether it sends or receives tensors by Ray Direct Transport.
        setup: see ``ProcessSetup``.
        make: makes the worker inside of the process.
    """

    process: type[PartProcess]
    options: dict[str, Any]
    concurrency_groups: dict[str, int]
    tensor_transport: bool
    setup: ProcessSetup
    make: Make

    def launch(self) -> tuple[Any, Any]:
        """Start an actor; return its handle and the reference of its facts, which come when its worker is built."""
        actor_class: Any = ray.remote
        remote_class = actor_class(
            concurrency_groups=self.concurrency_groups, enable_tensor_transport=self.tensor_transport
        )(self.process)
        handle = remote_class.options(**self.options).remote(self.setup)
        return handle, handle.build.remote(self.make)


class Replacements:
    """How many dead parts a run may still replace.

    Args:
        most: replacements in all.
    """

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
    """The actor of one lane.

    Args:
        blueprint: how it is made.
        tracer: takes the spans of its replies.
        replacements: of the whole run; None for a part that cannot be replaced.

    Attributes:
        rewire: called when a new actor stands on this lane, to connect it with the others.
        device_figures: that came with replies; whoever reads them takes them out.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        tracer: RecordingTracer,
        replacements: Replacements | None = None,
    ) -> None:
        self.blueprint, self.tracer, self.lane = blueprint, tracer, blueprint.setup.lane
        self.rewire: Callable[[], Awaitable[None]] | None = None
        self._replacements = replacements
        self.incarnation = 0
        self._replacing = asyncio.Lock()
        self.handle, self._building = blueprint.launch()
        self.facts: ProcessFacts | None = None
        self.device_figures: list[DeviceFigure] = []
        self._offset_ns = 0

    def wait_until_built(self) -> None:
        """Return when the worker is built.

        Raises:
            HarnessError: what the building of the worker raised.
            RunStopped: the process died.
        """
        try:
            self._finish_building()
        except DEATHS as error:
            raise RunStopped(f"{self.lane} died while it started: {cause_of_death(error)}") from None

    def _finish_building(self) -> None:
        try:
            facts: ProcessFacts = ray.get(self._building)
        except RayTaskError as error:
            raise own_error(error) from None
        self.facts = facts
        same_machine = facts.boot_id == boot_id()
        self._offset_ns = 0 if same_machine else clock_offset_ns(lambda: ray.get(self.handle.now_ns.remote()))

    async def call(
        self, method: str, *arguments: Any, stage: Stage, step: int, version: int, returns: int = 1
    ) -> tuple[Any, Sequence[Any]]:
        """Call a method of the actor and record the spans of its reply.

        Args:
            method: returns a ``Reply``, and ``returns - 1`` more values.
            arguments: what it gets.
            stage, step, version: what to say that it is doing.
            returns: how many values it returns.

        Returns:
            The value of the reply, and references to the other values.

        Raises:
            HarnessError: what the method raised.
            PartReplaced: the actor died, and a new one stands in its place.
            RunStopped: it died and cannot be replaced, or it lost what another actor owned.
        """
        with self.tracer.underway(self.lane, stage, step, version):
            async with self._replacing:  # until a new actor, if one is on its way, has its worker
                incarnation, handle = self.incarnation, self.handle
            called_ns = time.perf_counter_ns()
            try:
                references = getattr(handle, method).options(num_returns=returns).remote(*arguments)
                first, *others = [references] if returns == 1 else references
                reply: Reply = await first
            except RayTaskError as error:
                raise own_error(error) from None
            except DEATHS as error:
                if getattr(error, "actor_id", None) not in (None, handle._actor_id.hex()):
                    raise RunStopped(f"an actor that {self.lane} needed to {method} died") from None
                raise await self._died(incarnation, cause_of_death(error)) from None
            except RayError as error:  # an object is gone with the actor that owned it
                raise RunStopped(f"{self.lane} could not {method}: {_first_line(error)}") from None
        spans = [self._on_our_clock(span) for span in reply.spans]
        self.tracer.record_elsewhere([*spans, *calls_under_way(self.lane, spans, called_ns, time.perf_counter_ns())])
        self.device_figures += reply.device_figures
        return reply.value, others

    def _on_our_clock(self, span: Span) -> Span:
        if not self._offset_ns:
            return span
        return span._replace(start_ns=span.start_ns - self._offset_ns, end_ns=span.end_ns - self._offset_ns)

    async def _died(self, incarnation: int, reason: str) -> HarnessError:
        """Put a new actor in the place of the dead one, once for each death; return what to tell the loop."""
        if self._replacements is None:
            return self._end_of_run(reason)
        async with self._replacing:
            if self.incarnation == incarnation:
                await self._stand_in(self._replacements, reason)
                self.incarnation += 1
                if self.rewire is not None:
                    await self.rewire()
        return PartReplaced(reason, self.incarnation)

    def _end_of_run(self, reason: str) -> RunStopped:
        return RunStopped(f"the {self.lane} died: {reason}; what it had learnt since the last saved policy is lost")

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

    async def _stand_in(self, replacements: Replacements, reason: str) -> None:
        """Make a new actor, and another one where that dies while it starts."""
        while True:
            replacements.count(self.lane, reason)
            ray.kill(self.handle)
            self.handle, self._building = self.blueprint.launch()
            try:
                return await asyncio.to_thread(self._finish_building)
            except DEATHS as error:
                reason = f"while it started: {cause_of_death(error)}"


def calls_under_way(lane: str, spans: Sequence[Span], called_ns: int, answered_ns: int) -> Iterator[Span]:
    """Yield the waits at both ends of a call: until the actor began to work, and from then on until we had the reply.

    Arguments and results are unpacked in these times too. They are the lowest kind of span: where another call kept
    the actor busy meanwhile, that one owns the time (see ``harness.compare.attribution``).

    Args:
        lane: the actor's.
        spans: what it did for the call, on our clock; without any, the whole call was on its way.
        called_ns, answered_ns: our monotonic clock at the call and at the reply.
    """
    begun_ns = min((span.start_ns for span in spans), default=answered_ns)
    ended_ns = max((span.end_ns for span in spans), default=answered_ns)
    step, version = (spans[0].step, spans[0].version) if spans else (-1, -1)
    for start_ns, end_ns in ((called_ns, begun_ns), (ended_ns, answered_ns)):
        if start_ns < end_ns:
            yield Span(lane, Stage.WAIT_FOR_CALL, start_ns, end_ns, step, version)


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


@contextmanager
def ends_the_run(what: str) -> Iterator[None]:
    """Raise what Ray raises in the block as the end of the run.

    Raises:
        RunStopped: with ``what`` and Ray's reason.
    """
    try:
        yield
    except DEATHS as error:
        raise RunStopped(f"{what}: {cause_of_death(error)}") from None
    except RayError as error:
        raise RunStopped(f"{what}: {_last_line(error)}") from None


def clock_offset_ns(
    ask: Callable[[], int], readings: int = CLOCK_READINGS, now_ns: Callable[[], int] = time.perf_counter_ns
) -> int:
    """Return how far another machine's monotonic clock is ahead of ours, in nanoseconds.

    As in NTP (RFC 5905, section 8) with one timestamp at the far end: of several readings, the one with the shortest
    round trip counts, and its midpoint is taken as the moment of the far reading.

    Args:
        ask: reads the far clock.
        readings: how often.
        now_ns: reads our clock.
    """
    best_ns, offset_ns = None, 0
    for _ in range(readings):
        sent_ns = now_ns()
        far_ns = ask()
        back_ns = now_ns()
        if best_ns is None or back_ns - sent_ns < best_ns:
            best_ns, offset_ns = back_ns - sent_ns, far_ns - (sent_ns + back_ns) // 2
    return offset_ns


def own_error(error: RayTaskError) -> BaseException:
    """Return the error that the method raised: Ray wraps it in one of its own, with the remote stack as its text.

    Those that the driver can put in words are returned as they are: the harness's own, and of a GPU that is full.
    """
    cause = error.cause
    while isinstance(cause, RayTaskError):
        cause = cause.cause
    if isinstance(cause, HarnessError) or is_full_gpu(cause):
        return cause
    if isinstance(cause, RayError):
        return RunStopped(f"an object is gone with the actor that owned it: {_first_line(cause)}")
    return RunStopped(f"an actor failed with {type(cause).__name__}: {cause}\n{error}")  # whose text is the stack


def cause_of_death(error: RayError) -> str:
    """Return in a few words what Ray knows of a death."""
    for pattern, words in _MEANINGS:
        if found := re.search(pattern, str(error)):
            return found.expand(words).strip(" .")
    return type(error).__name__


def _last_line(error: BaseException) -> str:
    """Where Ray tells a remote stack, what was raised stands last."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
