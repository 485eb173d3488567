"""Stands between the loop and its parts, and writes into the books what passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from harness.core.errors import PartReplaced
from harness.core.trace import RecordingTracer, SpanContext, Stage
from harness.core.types import Metrics, Purpose, RolloutGroup, ScoredBatch, UpdateResult, WeightHandle, WorkItem
from tests.faults.books import Books
from tests.faults.faulty import FaultyGenerator, FaultyLearner, FaultyScorer


class WatchedGenerator:
    """A Generator whose calls are written down."""

    def __init__(self, part: FaultyGenerator, books: Books) -> None:
        self.part, self.books, self.lane = part, books, part.lane

    async def load_weights(self, weight_handle: WeightHandle) -> Metrics:
        """See ``Generator``."""
        self.books.load_begins(self.lane, weight_handle)
        with _heard(self.books, self.lane, weight_handle.version):
            measured = await self.part.load_weights(weight_handle)
        self.books.load_ends(self.lane, weight_handle.version)
        return measured

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """See ``Generator``."""
        self.books.generate_begins(self.lane, item, self.part.truth)
        with _heard(self.books, self.lane, item.step if item.purpose is Purpose.EVALUATE else None):
            groups = await self.part.generate(item)
        self.books.generate_ends(self.lane, item, groups)
        return groups


class WatchedScorer:
    """A Scorer whose calls are written down."""

    def __init__(self, part: FaultyScorer, books: Books) -> None:
        self.part, self.books, self.lane = part, books, part.lane

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """See ``Scorer``."""
        self.books.score_begins(self.lane, item, groups[0].min_version)
        with _heard(self.books, self.lane):
            scored = await self.part.score(item, groups)
        self.books.score_ends(self.lane, item, groups, scored)
        return scored


class WatchedLearner:
    """A Learner whose calls are written down."""

    def __init__(self, part: FaultyLearner, books: Books) -> None:
        self.part, self.books, self.lane = part, books, part.lane

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """See ``Learner``."""
        self.books.update_begins(step, groups)
        result = await self.part.update(step, groups)
        self.books.update_ends(result)
        return result

    async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        """See ``Learner``."""
        self.books.publish_begins(version, still_needed)
        weight_handle = await self.part.publish_weights(version, still_needed)
        self.books.publish_ends(weight_handle)
        return weight_handle

    async def checkpoint(self, version: int) -> None:
        """See ``Learner``."""
        await self.part.checkpoint(version)


@contextmanager
def _heard(books: Books, lane: str, pinned: int | None = None) -> Iterator[None]:
    """Note a death that passes through; then nobody on this lane reads the pinned version any more."""
    try:
        yield
    except PartReplaced as error:
        books.died(lane, error.incarnation)
        raise
    finally:
        if pinned is not None:
            books.unpin(lane, pinned)


class WatchedTracer:
    """Records spans with another tracer and writes their ends into the books."""

    def __init__(self, tracer: RecordingTracer, books: Books) -> None:
        self._tracer, self._books = tracer, books

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        """Open a span; see ``Tracer``."""
        if stage.is_wait:
            self._books.wait_begins(lane, stage, step)
        return _WatchedSpan(self._tracer, self._books, lane, stage, self._tracer.span(lane, stage, step, version))


class _WatchedSpan:
    __slots__ = ("_books", "_lane", "_span", "_stage", "_start_ns", "_tracer")

    def __init__(self, tracer: RecordingTracer, books: Books, lane: str, stage: Stage, span: SpanContext) -> None:
        self._tracer, self._books, self._lane, self._stage, self._span = tracer, books, lane, stage, span

    def __enter__(self) -> None:
        self._start_ns = self._tracer.clock_ns()
        self._span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._span.__exit__(kind, error, trace)
        self._books.span_ended(self._lane, self._stage, self._start_ns, self._tracer.clock_ns(), cut=error is not None)
