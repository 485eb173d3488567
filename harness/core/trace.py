"""Spans: which lane spent what time in which stage.

A *lane* is one actor, or one part of an in-process run; each rank of a Learner is one, ``learner/0`` and so on. After
``startup`` its stages, its waits and the unattributed rest sum to its wall-clock. The default tracer does nothing; the
recording one takes its clock as an argument, so that a simulated run records virtual time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from enum import StrEnum
from types import TracebackType
from typing import Any, NamedTuple, Protocol


class Stage(StrEnum):
    """Every stage and wait of a training step of ours; those of other trainers' recordings are of ``stage_named``."""

    STARTUP = "startup"
    GENERATE = "generate"
    SCORE = "score"
    PREPARE_BATCH = "prepare_batch"
    OLD_LOGPROBS = "old_logprobs"
    REFERENCE_LOGPROBS = "reference_logprobs"
    UPDATE = "update"
    WEIGHT_PUBLISH = "weight_publish"
    WEIGHT_TRANSFER = "weight_transfer"
    WEIGHT_VERIFY = "weight_verify"
    WEIGHT_LOAD = "weight_load"
    EVALUATE = "evaluate"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_WRITE = "checkpoint_write"
    SAVE_POLICY = "save_policy"
    OFFLOAD = "offload"
    ONLOAD = "onload"
    WAIT_FOR_BATCH = "wait_for_batch"
    WAIT_FOR_ROLLOUTS = "wait_for_rollouts"
    WAIT_FOR_WEIGHTS = "wait_for_weights"
    WAIT_FOR_ROOM = "wait_for_room"
    WAIT_FOR_CALL = "wait_for_call"
    WAIT_FOR_RECORDER = "wait_for_recorder"
    WAIT_FOR_RANKS = "wait_for_ranks"
    WAIT_FOR_CHECKPOINT = "wait_for_checkpoint"

    @property
    def is_wait(self) -> bool:
        """Whether the lane was idle, waiting for another one."""
        return self.value.startswith("wait_")

    @classmethod
    def _missing_(cls, value: object) -> Stage | None:
        return _OTHERS.get(value) if isinstance(value, str) else None


_OTHERS: dict[str, Stage] = {}


def stage_named(name: str) -> Stage:
    """Return the stage of this name: one of ours, or one that another trainer's recording has, under its own name."""
    stage = Stage._value2member_map_.get(name) or _OTHERS.get(name)
    if stage is None:
        stage = str.__new__(Stage, name)
        stage._name_, stage._value_ = name, name
        _OTHERS[name] = stage
    assert isinstance(stage, Stage)
    return stage


def in_order(stages: Iterable[Stage]) -> list[Stage]:
    """Return each stage once: ours in the order in which a step goes through them, then others by name."""
    places = {stage: place for place, stage in enumerate(Stage)}
    return sorted(set(stages), key=lambda stage: (places.get(stage, len(places)), stage.value))


class Span(NamedTuple):
    """One stage of one lane. Times are nanoseconds since the run's origin; ``step`` and ``version`` are -1 if none."""

    lane: str
    stage: Stage
    start_ns: int
    end_ns: int
    step: int
    version: int


_new_tuple = tuple.__new__
"""Makes a span faster than ``Span(...)``, for one is made at the end of each stage."""


class OpenSpan(NamedTuple):
    """A stage or wait that has begun and not ended; fields as in ``Span``."""

    lane: str
    stage: Stage
    start_ns: int
    step: int
    version: int


_RAISED_IN = "raised_in_span"


def raised_in(error: BaseException) -> OpenSpan | None:
    """Return the innermost span of a ``RecordingTracer`` that the error came out of; None outside of any.

    The error carries it to other processes, where the times are not theirs.
    """
    found: OpenSpan | None = error.__dict__.get(_RAISED_IN)
    return found


class SpanContext(Protocol):
    """What ``Tracer.span`` returns: the span is recorded when the block ends, however it ends."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Tracer(Protocol):
    """Records spans."""

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        """Open a span of ``stage`` on ``lane``; leaving the block closes it."""


class NullTracer:
    """The tracer of unmeasured code: records nothing."""

    __slots__ = ()

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        return _NO_SPAN


class _NoSpan:
    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        return None


_NO_SPAN = _NoSpan()


class SpanHook:
    """What is done at both edges of spans besides recording them.

    Attributes:
        inside: whether the span holds it: it begins after the span and ends before it. Else it surrounds the span.
    """

    inside = True

    def begin(self, span: HookedSpan) -> None:
        """A span begins."""

    def end(self, span: HookedSpan, error: BaseException | None) -> None:
        """A span ends, with the error that it is left by."""


class HookedTracer:
    """Calls hooks at both edges of each span of another tracer: each hook farther from the edge than those before."""

    def __init__(self, tracer: Tracer, *hooks: SpanHook) -> None:
        self.tracer, self.hooks = tracer, hooks
        inside, around = ([hook for hook in hooks if hook.inside is side] for side in (True, False))
        self.before, self.after = _each("begin", around[::-1]), _each("end", around)
        self.first, self.last = _each("begin", inside), _each("end", inside[::-1])

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        return HookedSpan(self, lane, stage, step, version)


def _each(edge: str, hooks: Iterable[SpanHook]) -> Callable[..., None] | None:
    """Return what calls each hook that does something there, although one of them raises; None where none does."""
    calls = [getattr(hook, edge) for hook in hooks if getattr(type(hook), edge) is not getattr(SpanHook, edge)]

    def call_each(*arguments: Any, start: int = 0) -> None:
        for place in range(start, len(calls)):
            try:
                calls[place](*arguments)
            except BaseException:
                call_each(*arguments, start=place + 1)
                raise

    return call_each if len(calls) > 1 else calls[0] if calls else None


class HookedSpan:
    """A span of a ``HookedTracer``, as its hooks see it."""

    __slots__ = ("_hooked", "_span", "lane", "stage", "step", "version")

    def __init__(self, tracer: HookedTracer, lane: str, stage: Stage, step: int, version: int) -> None:
        self._hooked = tracer
        self.lane = lane
        self.stage = stage
        self.step = step
        self.version = version

    def __enter__(self) -> None:
        hooked = self._hooked
        if hooked.before is not None:
            hooked.before(self)
        try:
            self._span = span = hooked.tracer.span(self.lane, self.stage, self.step, self.version)
            span.__enter__()
        except BaseException as error:
            if hooked.after is not None:
                hooked.after(self, error)
            raise
        if hooked.first is not None:
            hooked.first(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hooked = self._hooked
        try:
            if hooked.last is not None:
                hooked.last(self, error)
        finally:
            try:
                self._span.__exit__(kind, error, trace)
            finally:
                if hooked.after is not None:
                    hooked.after(self, error)


class InterruptingTracer:
    """Interrupts a span while another one of its lane is open inside of it.

    So the stages of a lane follow each other, and their sums count no second twice. A span without step and version
    takes those of the one that it interrupts.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.open: dict[str, list[_InterruptibleSpan]] = {}

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        return _InterruptibleSpan(self, lane, stage, step, version)


class _InterruptibleSpan:
    def __init__(self, tracer: InterruptingTracer, lane: str, stage: Stage, step: int, version: int) -> None:
        self._tracer, self._open = tracer.tracer, tracer.open.setdefault(lane, [])
        self._begun = (lane, stage, step, version)

    def _begin(self) -> None:
        self._span = self._tracer.span(*self._begun)
        self._span.__enter__()

    def _go_on_outside(self) -> None:
        self._open.pop()
        if self._open:
            self._open[-1]._begin()

    def __enter__(self) -> None:
        if self._open:
            outer = self._open[-1]
            outer._span.__exit__(None, None, None)
            if self._begun[2:] == (-1, -1):
                self._begun = (*self._begun[:2], *outer._begun[2:])
        self._open.append(self)
        try:
            self._begin()
        except BaseException:
            self._go_on_outside()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._span.__exit__(kind, error, trace)
        finally:
            self._go_on_outside()


class _RecordedSpan:
    __slots__ = ("_lane", "_recorder", "_stage", "_start_ns", "_step", "_version")

    def __init__(self, recorder: RecordingTracer, lane: str, stage: Stage, step: int, version: int) -> None:
        self._recorder = recorder
        self._lane = lane
        self._stage = stage
        self._step = step
        self._version = version

    def __enter__(self) -> None:
        recorder = self._recorder
        recorder.open_spans[self] = None
        self._start_ns = recorder.clock_ns()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        recorder = self._recorder
        end_ns = recorder.clock_ns()
        if error is not None:
            self._mark(error)
        del recorder.open_spans[self]
        recorder.finished.append(
            _new_tuple(Span, (self._lane, self._stage, self._start_ns, end_ns, self._step, self._version))
        )

    def as_open(self) -> OpenSpan:
        """Return what is known of a span that has not ended."""
        return OpenSpan(self._lane, self._stage, self._start_ns, self._step, self._version)

    def _mark(self, error: BaseException) -> None:
        """Have the error say where it was raised, also in another process: the innermost span counts."""
        error.__dict__.setdefault(_RAISED_IN, self.as_open())


class _UnrecordedSpan(_RecordedSpan):
    __slots__ = ()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        del self._recorder.open_spans[self]
        if error is not None:
            self._mark(error)


class _GroupSpan:
    """The same span on each lane of a group."""

    __slots__ = ("_open", "_spans")

    def __init__(self, spans: Sequence[SpanContext]) -> None:
        self._spans, self._open = spans, ExitStack()

    def __enter__(self) -> None:
        for span in self._spans:
            self._open.enter_context(span)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)


class RecordingTracer:
    """Keeps finished spans until they are drained.

    Args:
        clock_ns: nanoseconds since the run's origin.
        at: turns a reading of the machine's monotonic clock into that time; for spans that other processes recorded.
        groups: parts that have several lanes, by name: what the part waits for, each of its lanes does.
    """

    def __init__(
        self,
        clock_ns: Callable[[], int],
        at: Callable[[int], int] | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.clock_ns, self._at = clock_ns, at or (lambda monotonic_ns: monotonic_ns)
        self._groups = groups or {}
        self.finished: deque[Span] = deque()  # a deque, since parts may end spans in other threads
        self._drained = 0
        self._draining = threading.Lock()
        self.open_spans: dict[_RecordedSpan, None] = {}

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        if lane in self._groups:
            return _GroupSpan([_RecordedSpan(self, each, stage, step, version) for each in self._groups[lane]])
        return _RecordedSpan(self, lane, stage, step, version)

    def record_elsewhere(self, spans: Iterable[Span]) -> None:
        """Add spans that another process recorded on the machine's monotonic clock."""
        for span in spans:
            self.finished.append(span._replace(start_ns=self._at(span.start_ns), end_ns=self._at(span.end_ns)))

    def underway(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        """Count as open, for ``still_open``, what another process works on; that process records its spans itself."""
        return _UnrecordedSpan(self, lane, stage, step, version)

    def drain(self) -> list[Span]:
        """Return the spans finished since the last call, in the order in which they ended, and forget them."""
        with self._draining:  # two threads of an actor answer calls, and both drain
            spans = [self.finished.popleft() for _ in range(len(self.finished))]
            self._drained += len(spans)
        return spans

    @property
    def ended(self) -> int:
        """Spans that have ended so far."""
        return self._drained + len(self.finished)

    def still_open(self, elsewhere: bool = True) -> list[OpenSpan]:
        """Return each open span: who is doing, or waiting for, what since when.

        Args:
            elsewhere: also what another process works on; when that began is known roughly only.
        """
        found = list(self.open_spans)
        return [span.as_open() for span in found if elsewhere or not isinstance(span, _UnrecordedSpan)]
