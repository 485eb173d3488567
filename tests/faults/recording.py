"""Proxies between the loop and its parts that write down what passes, and the observer that checks what is reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from harness.core.errors import PartReplaced
from harness.core.trace import RecordingTracer, SpanContext, Stage
from harness.core.types import Metrics, Purpose, RolloutGroup, ScoredBatch, UpdateResult, WeightHandle, WorkItem
from harness.loop import Count, Observer, RolloutCounts, StepReport
from harness.loop.replay import ReplayStats
from tests.faults.checker import AtUpdate, Books, named
from tests.faults.faulty import FaultyGenerator, FaultyLearner, FaultyScorer
from tests.faults.schedule import LEARNER


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

    async def accumulate(self, step: int, groups: tuple[RolloutGroup, ...]) -> None:
        """See ``Learner``; no schedule has parts of a batch."""
        await self.part.accumulate(step, groups)

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

    async def save_policy(self, version: int, *, last: bool) -> None:
        """See ``Learner``."""
        await self.part.save_policy(version, last=last)


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
        self._tracer, self.books = tracer, books

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        """Open a span; see ``Tracer``."""
        if stage.is_wait:
            self.books.wait_begins(lane, stage, step)
        return _WatchedSpan(self._tracer, self.books, lane, stage, self._tracer.span(lane, stage, step, version))


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


class Listener(Observer):
    """Compares what it hears with the books; see ``Observer``."""

    def __init__(self, books: Books) -> None:
        self.books = books

    def on_version(self, lane: str, version: int) -> None:
        """See ``Observer``."""
        books = self.books
        held = books.published[-1] if lane == LEARNER else books.claims[lane]
        books.require(version == held, "versions", f"{lane} is said to hold {version} and holds {held}")
        books.note(lane, "told: version", version=version)

    def on_sync(self, lane: str, version: int, measured: object) -> None:
        """See ``Observer``."""

    def on_step(self, facts: StepReport) -> None:
        """See ``Observer``."""
        books = self.books
        books.require(facts.step == books.steps, "steps in order", f"step {facts.step} is told, due is {books.steps}")
        books.steps += 1
        books.fresh.append(facts.fresh)
        for group in facts.fresh:
            self._check_fresh(facts.step, group)
        assert books.at_update is not None
        self._check_shards(facts)
        self._check_batch(facts, books.at_update)
        self._check_flow(facts, books.at_update)
        books.note(LEARNER, "told: step", facts.step, facts.weight_handle.version)

    def _check_fresh(self, step: int, group: RolloutGroup) -> None:
        books = self.books
        name, lag = named(group), step - group.min_version
        books.require(
            0 <= lag <= books.schedule.max_lag,
            "lag at first use",
            f"step {step} consumes {name} of version {group.min_version}: lag {lag}, at most {books.schedule.max_lag}",
        )
        books.require(name not in books.consumed, "uses", f"step {step} consumes {name} for the second time")
        books.require(
            books.scored.get(name) is group, "one answer", f"step {step} consumes {name}, which nobody scored"
        )
        books.require(name not in books.discarded, "sampled again", f"step {step} consumes {name}, which was discarded")
        books.consumed.add(name)

    def _check_shards(self, facts: StepReport) -> None:
        books = self.books
        if books.schedule.lag_control == "drop":
            return
        shards = [(part.item.step, part.item.shard) for part in facts.scored]
        due = [(facts.step, shard) for shard in range(books.schedule.generators)]
        books.require(shards == due, "steps in order", f"step {facts.step} is made of the shards {shards}")
        groups = len(facts.fresh) + sum(part.failed_groups for part in facts.scored)
        books.require(groups == books.schedule.prompts, "sampled again", f"step {facts.step} has {groups} groups")
        books.require(facts.dropped == Count(), "none lost", f"{facts.dropped} dropped, though nothing may be")

    def _check_batch(self, facts: StepReport, update: AtUpdate) -> None:
        """What was trained on is the batch, or was drawn from a buffer that keeps to its bounds."""
        books = self.books
        books.require(facts.groups == update.groups, "one answer", f"step {facts.step} was made of other groups")
        if not books.schedule.replay.capacity or facts.replay is None:
            books.require(facts.groups == facts.fresh, "one answer", f"step {facts.step} was not made of its batch")
            return
        if books.draws is not None:
            due = books.draw(facts.step, facts.fresh)
            taken = [(named(item.group), item.uses) for item in facts.taken]
            books.require(taken == due, "draws", f"step {facts.step} draws {taken}, without a kill it draws {due}")
        stats, size = facts.replay
        self._check_capacity(stats, size, len(facts.groups))

    def _check_capacity(self, stats: ReplayStats, size: int, taken: int) -> None:
        books = self.books
        replay = books.schedule.replay
        assert replay.sample_groups is not None
        books.require(
            size <= replay.capacity and taken <= replay.sample_groups,
            "capacity",
            f"{size} groups are held, at most {replay.capacity}; {taken} taken, at most {replay.sample_groups}",
        )
        entered = len(books.consumed)
        books.require(
            entered == stats.added == size + stats.evicted,
            "capacity",
            f"{entered} groups entered, {size} are held: {stats}",
        )

    def _check_flow(self, facts: StepReport, update: AtUpdate) -> None:
        """Under ``in_flight`` the loop orders a batch a moment before the Generator hears of it."""
        books = self.books
        waiting = update.waiting - sum(len(group.lengths) for group in facts.fresh)
        most = update.in_flight + (update.begun if books.schedule.lag_control == "in_flight" else 0)
        books.require(
            facts.in_queue == waiting and update.in_flight <= facts.in_flight <= most,
            "in flight",
            f"step {facts.step}: {facts.in_flight} in flight and {facts.in_queue} in the queue are told, "
            f"{update.in_flight} and {waiting} were there",
        )
        if books.schedule.max_lag == 0 and books.version < books.schedule.steps:
            held = [books.claims.get(lane, -1) for lane in books.schedule.generator_lanes]
            books.require(
                min(held) == books.version, "versions", f"step {facts.step} is told, the Generators hold {held}"
            )

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        """See ``Observer``."""
        books = self.books
        due = books.schedule.evaluated[len(books.evaluated) :][:1]
        books.require([version] == due, "evaluations", f"version {version} is told, due is {due}")
        books.evaluated.append(version)
        never = books.schedule.never_rewarded
        kept = [prompt for prompt in scored.item.prompt_ids if (Purpose.EVALUATE, version, prompt, 0) not in never]
        books.failed_evaluations += len(scored.item.prompt_ids) - len(kept)
        told = [group.prompt_id for group in scored.groups]
        books.require(told == kept, "evaluations", f"version {version}: the groups {told} are told, not {kept}")
        for group in scored.groups:
            versions = group.min_version, group.max_version
            books.require(versions == (version, version), "evaluations", f"version {version}: sampled with {versions}")
        books.note("observer", "told: evaluation", version=version)

    def on_replaced(self, lane: str, reason: str) -> None:
        """See ``Observer``."""
        books = self.books
        books.replaced[lane] += 1
        books.note(lane, "told: replaced")

    def on_finished(self, ledger: RolloutCounts) -> None:
        """See ``Observer``."""
        books = self.books
        books.ledger = ledger
        books.note("observer", "told: finished")

    def on_broken_off(self, ledger: RolloutCounts) -> None:
        """See ``Observer``. The loop may hear of an answer a moment after the books."""
