"""The Learner of several ranks as the loop sees it: one part, whose actors are called together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from harness.core.errors import PartDied, RunStopped
from harness.core.trace import SpanContext, Stage
from harness.core.types import Metric, Metrics, RankStep, RolloutGroup, UpdateResult, WeightHandle, combine_metrics
from harness.learner.checkpoint import SavedState
from harness.learner.trainer import OF_THE_WHOLE_STEP, TrainerOptions, plan_training_step
from harness.run.actors.part import LAST_WORDS_S, ActorPart, without_data
from harness.run.parts import policy_folder
from harness.run.rank_worker import RankResult, Written
from harness.run.workers import ProbeRow
from harness.scenario.batch_plan import BatchPlan
from harness.settings.learner import MeshShape

T = TypeVar("T")
Part = tuple[BatchPlan | None, Sequence[RankResult]]
"""Groups that the ranks trained on together, None without any, and what each one returned of them."""


class RanksHandle:
    """The ranks of a Learner in actors.

    Args:
        parts: the actors, rank by rank.
        lane: of all of them together.
        mesh: how they share the model and the rollouts.
        options: how they train, which decides who trains on what.
        in_shards: whether each rank publishes its own pieces of the weights; else rank 0 publishes all.

    Attributes:
        run_folder: where ``save_policy`` saves policies; None saves nothing.
    """

    def __init__(
        self,
        parts: Sequence[ActorPart],
        mesh: MeshShape,
        options: TrainerOptions,
        *,
        in_shards: bool,
        lane: str = "learner",
    ) -> None:
        self._parts, self._mesh, self._options, self._in_shards = tuple(parts), mesh, options, in_shards
        self.lane = lane
        self.run_folder: Path | None = None
        self._probe_rows: Sequence[ProbeRow] | None = None
        self._saved: dict[int, SavedState] = {}
        self._accumulated: list[Part] = []

    async def accumulate(self, step: int, groups: tuple[RolloutGroup, ...]) -> None:
        """See ``protocols.Learner``. Each part has a plan of its own."""
        self._accumulated.append(await self._train("accumulate_together", step, groups))

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """See ``protocols.Learner``. A rank is sent the rollouts that it trains on."""
        parts = [*self._accumulated, await self._train("update_together", step, groups)]
        self._accumulated = []
        results = [each.result for rank, each in enumerate(parts[-1][1]) if self._mesh.speaks(rank)]
        result = one_result([each for each in results if each is not None])
        plans = [plan for plan, _ in parts if plan is not None]
        balance = {"balance/tokens_max_over_mean": Metric(_imbalance(plans))} if plans else {}
        return replace(
            result,
            metrics=dict(result.metrics) | balance,
            ranks=_added([rank_steps(plan, found, self._mesh) for plan, found in parts]),
        )

    async def _train(self, method: str, step: int, groups: tuple[RolloutGroup, ...]) -> Part:
        asked_ns = time.perf_counter_ns()
        plan = plan_training_step(step, groups, self._options, self._mesh.data_ranks) if groups else None
        bare = without_data(groups)

        async def of_rank(rank: int, part: ActorPart, asked_ns: int) -> RankResult:
            held = [] if plan is None else plan.groups_of(self._mesh.data_rank(rank))
            data = [groups[place].data for place in held]
            now: dict[str, Any] = {"stage": Stage.UPDATE, "step": step, "version": step, "asked_ns": asked_ns}
            result, _ = await part.call(method, step, bare, plan, held, *data, **now)
            assert isinstance(result, RankResult)
            return result

        found = await self._together(of_rank, step, asked_ns)
        self._probe_rows = next((each.probe_rows for each in found if each.probe_rows), None)
        return plan, found

    async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        """See ``protocols.Learner``.

        Raises:
            RunStopped: ranks that hold copies of the same weights differ.
        """
        stage: dict[str, Any] = {"stage": Stage.WEIGHT_PUBLISH, "step": version, "version": version}
        if not self._in_shards:

            async def of_rank(rank: int, part: ActorPart, asked_ns: int) -> WeightHandle | None:
                given = (version, still_needed, self._probe_rows)
                handle, _ = await part.call("publish_whole", *given, **stage, asked_ns=asked_ns)
                assert handle is None or isinstance(handle, WeightHandle)
                return handle

            first, *_ = await self._together(of_rank, version, publishes=True)
            assert first is not None
            return first
        draft = await self._first("begin_publish", version, still_needed, **stage)

        async def write(rank: int, part: ActorPart, asked_ns: int) -> Written:
            written, _ = await part.call("write_shards", draft, self._probe_rows, **stage, asked_ns=asked_ns)
            assert isinstance(written, Written)
            return written

        written = await self._together(write, version, publishes=True)
        handle = await self._first("finish_publish", draft, written, **stage)
        assert isinstance(handle, WeightHandle)
        return handle

    async def save_policy(self, version: int, *, last: bool) -> None:
        """See ``protocols.Learner``."""
        folder = policy_folder(self.run_folder, version, last)

        async def of_rank(rank: int, part: ActorPart, asked_ns: int) -> None:
            now: dict[str, Any] = {"step": version, "version": version, "asked_ns": asked_ns}
            await part.call("save_policy", version, folder, stage=Stage.SAVE_POLICY, **now)

        await self._together(of_rank, version)

    async def save_state(
        self, folder: Path, version: int, *, asynchronous: bool, with_reference: bool = False
    ) -> float:
        """Save what was learnt into a checkpoint's folder, each rank its pieces; return the slowest one's seconds."""
        self._saved = {}
        given = (folder, version, self._probe_rows, asynchronous, with_reference)
        return max(await self._of_state("save_state", *given))

    async def finish_save(self, *, wait: bool = True) -> tuple[SavedState, ...] | None:
        """Return what every rank has written; None where one has not, and is not waited for."""
        found = await self._of_state("finish_save", wait)
        self._saved |= {rank: saved for rank, saved in enumerate(found) if saved is not None}
        if len(self._saved) < len(found):
            return None
        saved, self._saved = self._saved, {}
        return tuple(saved[rank] for rank in sorted(saved))

    async def load_state(self, folder: Path) -> int:
        """Go on from a whole checkpoint, saved by any number of ranks; return the version of its policy."""
        return max(await self._of_state("load_state", folder))

    async def _of_state(self, method: str, *arguments: Any) -> list[Any]:
        async def of_rank(rank: int, part: ActorPart, asked_ns: int) -> Any:
            result, _ = await part.call(method, *arguments, stage=Stage.CHECKPOINT, step=-1, version=-1)
            return result

        return await self._together(of_rank, -1)

    async def _first(self, method: str, *arguments: Any, **stage: Any) -> Any:
        """Call rank 0 alone, to publish; the others wait for it."""
        with ExitStack() as waits:
            for part in self._parts[1:]:
                waits.enter_context(_waiting(part, stage["step"], stage["version"], publishes=True))
            value, _ = await self._parts[0].call(method, *arguments, **stage)
            return value

    async def _together(
        self,
        call: Callable[[int, ActorPart, int], Coroutine[Any, Any, T]],
        step: int,
        asked_ns: int | None = None,
        *,
        publishes: bool = False,
    ) -> list[T]:
        """Call all ranks at once and return what each one returned; one that is done waits for the others.

        Args:
            call: of a rank, given the moment since which it waits for the call.
            step: what to say that it waits for.
            asked_ns: that moment; None: now. Calls are sent one after the other.
            publishes: whether weights leave, which they may do while the ranks train.

        Raises:
            HarnessError: what says most of why a rank failed: its death comes before what the others say, whose
                collectives break off with it.
        """
        left, nobody_left = len(self._parts), asyncio.Event()
        since_ns = asked_ns or time.perf_counter_ns()

        async def one(rank: int, part: ActorPart) -> T:
            nonlocal left
            try:
                value = await call(rank, part, since_ns)
            except BaseException:
                nobody_left.set()
                raise
            left -= 1
            if left == 0:
                nobody_left.set()
            with _waiting(part, step, step, publishes=publishes):
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


def _waiting(part: ActorPart, step: int, version: int, *, publishes: bool = False) -> SpanContext:
    lane = part.spec.moving_lane if publishes else None  # where weights have a thread of their own, the rank trains on
    return part.tracer.span(lane or part.lane, Stage.WAIT_FOR_RANKS, step, version)


def _says_least(error: BaseException) -> int:
    """How little an error says about the reason: a rank's own, a death, a collective that broke off."""
    if isinstance(error, PartDied):
        return 0
    return 2 if type(error) is RunStopped else 1


def _imbalance(plans: Sequence[BatchPlan]) -> float:
    """See ``BatchPlan.imbalance``; the ranks wait for each other in each part of a batch."""
    if len(plans) == 1:
        return plans[0].imbalance
    return sum(max(plan.tokens) for plan in plans) * len(plans[0].tokens) / sum(sum(plan.tokens) for plan in plans)


def _added(parts: Sequence[tuple[RankStep, ...]]) -> tuple[RankStep, ...]:
    """Add up, rank by rank, what was done for the parts of a batch."""

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
    """Put together what the ranks that speak returned of a training step."""
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
