"""A tracer that writes down what passes, and the observer that checks what is reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.core.trace import RecordingTracer, SpanContext, Stage
from harness.core.types import Purpose, RolloutGroup, ScoredBatch
from harness.loop import Count, Observer, RolloutCounts, StepReport
from harness.loop.replay import ReplayStats
from tests.faults.checker import AtUpdate, Books, named
from tests.faults.schedule import LEARNER


class WatchedTracer:
    """Records spans with another tracer and writes their ends into the books."""

    def __init__(self, tracer: RecordingTracer, books: Books) -> None:
        self._tracer, self.books = tracer, books

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        return self._span(lane, stage, step, version)  # type: ignore[return-value]  # it swallows no error

    @contextmanager
    def _span(self, lane: str, stage: Stage, step: int, version: int) -> Iterator[None]:
        if stage.is_wait:
            self.books.wait_begins(lane, stage, step)
        start_ns, cut = self._tracer.clock_ns(), True
        try:
            with self._tracer.span(lane, stage, step, version):
                yield
            cut = False
        finally:
            self.books.span_ended(lane, stage, start_ns, self._tracer.clock_ns(), cut)


class Listener(Observer):
    """Compares what it hears with the books."""

    def __init__(self, books: Books) -> None:
        self.books = books

    def on_version(self, lane: str, version: int) -> None:
        books = self.books
        held = books.published[-1] if lane == LEARNER else books.claims[lane]
        books.require(version == held, "versions", f"{lane} is said to hold {version} and holds {held}")
        books.note(lane, "told: version", version=version)

    def on_step(self, facts: StepReport) -> None:
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
        told = f"step {step} consumes {name} with lag {lag}"
        books.require(0 <= lag <= books.schedule.max_lag, "lag at first use", told)
        books.require(name not in books.consumed, "uses", f"{told} for the second time")
        books.require(books.scored.get(name) is group, "one answer", f"{told}, which nobody scored")
        books.require(name not in books.discarded, "sampled again", f"{told}, which was discarded")
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
        due = books.draw(facts.step, facts.fresh)
        taken = [(named(item.group), item.uses) for item in facts.taken]
        books.require(taken == due, "draws", f"step {facts.step} draws {taken}, due is {due}")
        stats, size = facts.replay
        self._check_capacity(stats, size, len(facts.groups))

    def _check_capacity(self, stats: ReplayStats, size: int, taken: int) -> None:
        books = self.books
        replay = books.schedule.replay
        assert replay.sample_groups is not None
        held = size <= replay.capacity and taken <= replay.sample_groups
        books.require(held, "capacity", f"{size} groups held, {taken} taken: {replay}")
        entered = len(books.consumed)
        held = entered == stats.added == size + stats.evicted
        books.require(held, "capacity", f"{entered} groups entered, {size} are held: {stats}")

    def _check_flow(self, facts: StepReport, update: AtUpdate) -> None:
        """Under ``in_flight`` the loop orders a batch a moment before the Generator hears of it."""
        books = self.books
        waiting = update.waiting - sum(len(group.lengths) for group in facts.fresh)
        most = update.in_flight + (update.begun if books.schedule.lag_control == "in_flight" else 0)
        as_told = facts.in_queue == waiting and update.in_flight <= facts.in_flight <= most
        told = f"step {facts.step}: {facts.in_flight} in flight and {facts.in_queue} in the queue are told"
        books.require(as_told, "in flight", f"{told}, {update.in_flight} and {waiting} were there")
        if books.schedule.max_lag == 0 and books.version < books.schedule.steps:
            held = [books.claims.get(lane, -1) for lane in books.schedule.generator_lanes]
            books.require(min(held) == books.version, "versions", f"step {facts.step}: the Generators hold {held}")

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
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
        self.books.replaced[lane] += 1
        self.books.note(lane, "told: replaced")

    def on_finished(self, ledger: RolloutCounts) -> None:
        self.books.ledger = ledger
        self.books.note("observer", "told: finished")
