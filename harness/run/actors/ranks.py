"""The Learner of several ranks as one part, whose actors are called together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

from harness.core.errors import PartDied, RunStopped
from harness.core.trace import SpanContext, Stage
from harness.core.types import Metric, Metrics, RankStep, RolloutGroup, UpdateResult, WeightHandle, combine_metrics
from harness.learner.checkpoint import SavedState
from harness.learner.trainer import OF_THE_WHOLE_STEP, TrainerOptions, plan_training_step
from harness.run.actors.part import LAST_WORDS_S, ActorPart
from harness.run.rank_worker import RankResult, Written
from harness.run.weight_sync import ProbeRow
from harness.scenario.batch_plan import BatchPlan
from harness.settings.learner import MeshShape

Trained = tuple[BatchPlan | None, Sequence[RankResult]]
"""Groups that the ranks trained on together, None without any, and what each one returned of them."""


class _Now(NamedTuple):
    stage: Stage
    step: int
    version: int


class Ranks:
    """The ranks of a Learner in actors, which are called together: a ``handles.Part``.

    Args:
        parts: the actors, rank by rank.
        mesh: how they share the model and the rollouts.
        options: how they train, which decides who trains on what.
        in_shards: whether each rank publishes its own pieces of the weights; else rank 0 publishes all.
    """

    def __init__(
        self, parts: Sequence[ActorPart], mesh: MeshShape, options: TrainerOptions, *, in_shards: bool
    ) -> None:
        self._parts, self._mesh, self._options, self._in_shards = tuple(parts), mesh, options, in_shards
        self.lane = "learner"
        self._probe_rows: Sequence[ProbeRow] | None = None
        self._saved: dict[int, SavedState] = {}
        self._accumulated: list[Trained] = []

    async def call(
        self, method: str, *arguments: Any, stage: Stage, step: int, version: int, new_groups: int = 0
    ) -> Any:
        now = _Now(stage, step, version)
        match method:
            case "accumulate":  # each part of a batch has a plan of its own
                self._accumulated.append(await self._train(now, "accumulate_together", *arguments))
            case "update":
                parts = [*self._accumulated, await self._train(now, "update_together", *arguments)]
                self._accumulated = []
                return self._result(parts)
            case "publish_weights":
                return await self._publish(now, *arguments)
            case "save_state":
                self._saved = {}
                return max(await self._together(method, [(*arguments, self._probe_rows)], now))
            case "finish_save":
                return self._all_saved(await self._together(method, [arguments], now))
            case _:  # each rank returns the same
                return (await self._together(method, [arguments], now))[0]

    async def _train(self, now: _Now, method: str, step: int, groups: tuple[RolloutGroup, ...]) -> Trained:
        asked_ns = time.perf_counter_ns()
        plan = plan_training_step(step, groups, self._options, self._mesh.data_ranks) if groups else None

        def of_rank(rank: int) -> tuple[RolloutGroup, ...]:
            held = set() if plan is None else set(plan.groups_of(self._mesh.data_rank(rank)))
            return tuple(each if place in held else replace(each, data=None) for place, each in enumerate(groups))

        arguments = [(step, of_rank(rank), plan) for rank in range(len(self._parts))]
        results: list[RankResult] = await self._together(method, arguments, now, asked_ns)
        self._probe_rows = next((each.probe_rows for each in results if each.probe_rows), None)
        return plan, results

    def _result(self, parts: Sequence[Trained]) -> UpdateResult:
        results = [each.result for rank, each in enumerate(parts[-1][1]) if self._mesh.speaks(rank)]
        result = one_result([each for each in results if each is not None])
        plans = [plan for plan, _ in parts if plan is not None]
        balance = {"balance/tokens_max_over_mean": Metric(_imbalance(plans))} if plans else {}
        return replace(
            result,
            metrics=dict(result.metrics) | balance,
            ranks=_added([rank_steps(plan, of_ranks, self._mesh) for plan, of_ranks in parts]),
        )

    async def _publish(self, now: _Now, version: int, still_needed: frozenset[int]) -> WeightHandle:
        """Publish together; raises RunStopped where ranks that hold copies of the same weights differ."""
        if not self._in_shards:
            handle, *_ = await self._together("publish_whole", [(version, still_needed, self._probe_rows)], now)
        else:
            draft = await self._first("begin_publish", version, still_needed, now=now)
            written: list[Written] = await self._together("write_shards", [(draft, self._probe_rows)], now)
            handle = await self._first("finish_publish", draft, written, now=now)
        assert isinstance(handle, WeightHandle)
        return handle

    def _all_saved(self, saved: Sequence[tuple[SavedState, ...] | None]) -> tuple[SavedState, ...] | None:
        self._saved |= {rank: each[0] for rank, each in enumerate(saved) if each is not None}
        if len(self._saved) < len(saved):
            return None
        whole, self._saved = self._saved, {}
        return tuple(whole[rank] for rank in sorted(whole))

    async def _first(self, method: str, *arguments: Any, now: _Now) -> Any:
        """Call rank 0 alone; the others wait for it."""
        with ExitStack() as waits:
            for part in self._parts[1:]:
                waits.enter_context(_waiting(part, now))
            return await self._parts[0].call(method, *arguments, **now._asdict())

    async def _together(
        self, method: str, arguments: Sequence[tuple[Any, ...]], now: _Now, asked_ns: int | None = None
    ) -> list[Any]:
        """Call all ranks at once and return what each one returned; one that is done waits for the others.

        Args:
            arguments: of each rank; one for all.
            now: what to say that they do.
            asked_ns: since when they wait for the call; None: now. Calls are sent one after the other.

        Raises:
            HarnessError: what says most of why a rank failed: its death comes before what the others say, whose
                collectives break off with it.
        """
        left, nobody_left = len(self._parts), asyncio.Event()
        since_ns = asked_ns or time.perf_counter_ns()

        async def one(rank: int, part: ActorPart) -> Any:
            nonlocal left
            given = arguments[rank] if len(arguments) > 1 else arguments[0]
            try:
                value = await part.call(method, *given, **now._asdict(), asked_ns=since_ns)
            except BaseException:
                nobody_left.set()
                raise
            left -= 1
            if left == 0:
                nobody_left.set()
            with _waiting(part, now):
                await nobody_left.wait()
            return value

        calls = [asyncio.ensure_future(one(rank, part)) for rank, part in enumerate(self._parts)]
        try:
            _, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if waiting:
                await asyncio.wait(waiting, timeout=LAST_WORDS_S)
        finally:
            for each in calls:
                each.cancel()
        errors = [error for each in calls if each.done() and not each.cancelled() and (error := each.exception())]
        if not errors:
            return [each.result() for each in calls]
        raise min(errors, key=_says_least)


def _waiting(part: ActorPart, now: _Now) -> SpanContext:
    publishes = now.stage is Stage.WEIGHT_PUBLISH
    lane = part.spec.moving_lane if publishes else None  # where weights have a thread of their own, the rank trains on
    return part.tracer.span(lane or part.lane, Stage.WAIT_FOR_RANKS, now.step, now.version)


def _says_least(error: BaseException) -> int:
    """How little an error says about the reason: a rank's own, a death, a collective that broke off."""
    if isinstance(error, PartDied):
        return 0
    return 2 if type(error) is RunStopped else 1


def _imbalance(plans: Sequence[BatchPlan]) -> float:
    """The ranks wait for each other in each part of a batch."""
    if len(plans) == 1:
        return plans[0].imbalance
    return sum(max(plan.tokens) for plan in plans) * len(plans[0].tokens) / sum(sum(plan.tokens) for plan in plans)


def _added(parts: Sequence[tuple[RankStep, ...]]) -> tuple[RankStep, ...]:
    def total(values: Iterable[Any]) -> Any:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return tuple(
        RankStep(*(total(getattr(each, name) for each in of_rank) for name in RankStep.__slots__))
        for of_rank in zip(*parts, strict=True)
    )


def rank_steps(plan: BatchPlan | None, found: Sequence[RankResult], mesh: MeshShape) -> tuple[RankStep, ...]:
    """Return what each rank did in a training step, of its share of the plan and of what it measured.

    The ranks left their first agreement together, so the one that waited least was last: no two clocks are compared.
    """
    longest_s, steps = max(each.waited_s for each in found), []
    for rank, each in enumerate(found):
        share = mesh.data_rank(rank)
        computing_s, runnable_s, blocked_s = each.seconds or (None, None, None)
        late_s = longest_s - each.waited_s
        work = (0, 0.0) if plan is None else (plan.tokens[share], plan.costs[share])
        steps.append(RankStep(*work, computing_s, runnable_s, blocked_s, late_s))
    return tuple(steps)


def one_result(results: Sequence[UpdateResult]) -> UpdateResult:
    first = results[0]
    by_step = zip(*(result.optimizer_step_metrics for result in results), strict=True)
    return replace(
        first,
        metrics=_one(result.metrics for result in results),
        optimizer_step_metrics=[_one(of_step) for of_step in by_step],
        examples=next((result.examples for result in results if result.examples), ()),
    )


def _one(parts: Any) -> Metrics:
    parts = list(parts)
    shared = {name: metric for name, metric in parts[0].items() if name in OF_THE_WHOLE_STEP}
    return combine_metrics(parts) | shared
