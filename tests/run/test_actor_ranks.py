"""The ranks of a Learner as one part: which of their errors the run ends with, and what their results make together.

Fake actors on a virtual clock: a rank answers, or fails, at its own second.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.checkpoints import WrittenFile
from harness.core.errors import Diverged, PartDied, RunStopped, UserError
from harness.core.trace import RecordingTracer, Stage
from harness.core.types import (
    ExampleRollout,
    Metric,
    Metrics,
    Purpose,
    RankStep,
    RolloutGroup,
    UpdateResult,
    WeightHandle,
    WorkItem,
)
from harness.learner import TrainerOptions
from harness.learner.checkpoint import SavedState
from harness.learner.trainer import plan_training_step
from harness.run.actors.part import LAST_WORDS_S
from harness.run.actors.ranks import Ranks, one_result
from harness.run.handles import GeneratorHandle, LearnerHandle, ScorerHandle
from harness.run.rank_worker import RankResult
from harness.settings.learner import MeshShape
from harness.simulate.clock import run_virtual
from tests.learner.tiny_training import groups

OPTIONS = TrainerOptions(group_size=4, balance="longest_first")
NEVER = 1e6


@dataclass
class FakePart:
    """Answers after so many seconds, with a value or an error.

    Attributes:
        log: what it was asked and how that ended, with the second.
    """

    lane: str
    after_s: float
    answer: Any
    log: list[tuple[float, str]]
    arguments: tuple[Any, ...] = ()
    tracer: RecordingTracer = field(default_factory=lambda: RecordingTracer(lambda: 0))

    async def call(self, method: str, *arguments: Any, **stage: Any) -> Any:
        now, self.arguments = asyncio.get_running_loop().time, arguments
        try:
            await asyncio.sleep(self.after_s)
        except asyncio.CancelledError:
            self.log.append((now(), f"{self.lane} cancelled"))
            raise
        self.log.append((now(), f"{self.lane} {type(self.answer).__name__}"))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def ranks_of(*parts: tuple[float, Any]) -> tuple[list[FakePart], list[tuple[float, str]]]:
    log: list[tuple[float, str]] = []
    return [FakePart(f"learner{rank or ''}", after_s, answer, log) for rank, (after_s, answer) in enumerate(parts)], log


def handle_of(parts: list[FakePart]) -> LearnerHandle:
    ranks = Ranks(parts, MeshShape(replicate=len(parts)), OPTIONS, in_shards=False)  # type: ignore[arg-type]
    return LearnerHandle(ranks)


def failure(*parts: tuple[float, Any]) -> tuple[BaseException, float, list[tuple[float, str]]]:
    """What saving a policy on these ranks ends with, at which second, and all that happened."""
    made, log = ranks_of(*parts)

    async def main(_: RecordingTracer) -> tuple[BaseException, float]:
        with pytest.raises((RunStopped, UserError)) as caught:
            await handle_of(made).save_policy(3, last=True)
        ended = asyncio.get_running_loop().time()
        await asyncio.sleep(0)  # those that were cancelled notice
        return caught.value, ended

    (error, ended), _ = run_virtual(main)
    return error, ended, log


DEATH = PartDied("the learner1 died")
BROKEN = RunStopped("an actor failed with RuntimeError: Connection closed by peer")


DIVERGED, ASKED = Diverged("the loss is nan", 3), UserError("what", "where", "fix")
DONE = LAST_WORDS_S + 1.0
ENDS: dict[str, tuple[list[tuple[float, Any]], BaseException, float]] = {
    "a death, though a broken collective is heard of first": ([(1, BROKEN), (3, DEATH), (2, BROKEN)], DEATH, 3),
    "the others have some seconds for last words": ([(NEVER, None), (1, BROKEN), (DONE + 0.5, DEATH)], BROKEN, DONE),
    "all at once: rank 0's, and nothing is waited for": ([(1, BROKEN), (1, RunStopped("another one"))], BROKEN, 1),
    "what a rank says itself before collectives": ([(1, BROKEN), (2, DIVERGED)], DIVERGED, 2),
    "bad input likewise": ([(1, BROKEN), (2, ASKED)], ASKED, 2),
    "and behind a death": ([(1, DIVERGED), (2, DEATH)], DEATH, 2),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_a_run_ends_with(case: str) -> None:
    parts, raised, ended = ENDS[case]
    error, at, log = failure(*parts)
    assert error is raised
    assert at == ended
    lanes = [(f"learner{rank or ''}", after_s, answer) for rank, (after_s, answer) in enumerate(parts)]
    told = [(after_s, f"{lane} {type(answer).__name__}") for lane, after_s, answer in lanes if after_s <= ended]
    assert log == [*sorted(told), *[(ended, f"{lane} cancelled") for lane, after_s, _ in lanes if after_s > ended]]


def test_a_run_that_is_stopped_from_outside_cancels_all_ranks() -> None:
    made, log = ranks_of((NEVER, None), (NEVER, None))

    async def main(_: RecordingTracer) -> None:
        task = asyncio.ensure_future(handle_of(made).save_policy(3, last=True))
        await asyncio.sleep(2.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    run_virtual(main)
    assert log == [(2.0, "learner cancelled"), (2.0, "learner1 cancelled")]


def test_each_rank_is_sent_the_plan_and_the_data_of_its_groups_alone() -> None:
    made = groups(0, num_groups=3)
    result = UpdateResult(1, 1, {"loss": Metric(0.5)})
    one = RankResult(result, None, 0.5, (1.0, 0.25, 0.125))
    other = RankResult(result, [("probe", "rows")], 0.2, None)  # type: ignore[list-item]
    parts, _ = ranks_of((1.0, one), (4.0, other))

    async def main(_: RecordingTracer) -> tuple[UpdateResult, float]:
        return await handle_of(parts).update(0, made), asyncio.get_running_loop().time()

    (updated, ended), _ = run_virtual(main)
    assert ended == 4.0  # all ranks together
    assert [(span.stage, span.step) for span in parts[0].tracer.drain()] == [(Stage.WAIT_FOR_RANKS, 0)]
    plan = plan_training_step(0, made, OPTIONS, 2)
    assert updated.ranks == (
        RankStep(plan.tokens[0], plan.costs[0], 1.0, 0.25, 0.125, 0.0),
        RankStep(plan.tokens[1], plan.costs[1], None, None, None, 0.3),
    )
    assert sum(plan.tokens) == sum((group.prompt_length or 0) + sum(group.lengths) for group in made)
    assert updated.metrics["loss"] == Metric(0.5)
    plans = [part.arguments[2] for part in parts]
    assert plans[0].digest == plans[1].digest
    assert updated.metrics["balance/tokens_max_over_mean"] == Metric(plans[0].imbalance)
    held = [plan.groups_of(rank) for rank in range(2)]
    assert sorted(held[0] + held[1]) == [0, 1, 2]
    for part, places in zip(parts, held, strict=True):
        sent = [group.data for group in part.arguments[1]]
        assert sent == [group.data if place in places else None for place, group in enumerate(made)]


def test_what_ranks_did_for_the_parts_of_a_batch_is_added_up() -> None:
    made, result = groups(0, num_groups=4), UpdateResult(1, 1, {"loss": Metric(0.5)})
    one, other = RankResult(None, None, 0.5, (1.0, 0.25, 0.125)), RankResult(None, None, 0.25, None)
    parts, _ = ranks_of((1.0, one), (2.0, other))

    async def main(_: RecordingTracer) -> UpdateResult:
        handle = handle_of(parts)
        await handle.accumulate(0, made[:1])
        await handle.accumulate(0, made[1:])
        for part in parts:
            part.answer = replace(part.answer, result=result)
        updated = await handle.update(0, ())
        assert [part.arguments for part in parts] == [(0, (), None)] * 2  # no plan and no data
        assert (await handle.update(1, made)).ranks[1].computing_s is None  # of this step alone
        return updated

    updated, _ = run_virtual(main)
    plans = [plan_training_step(0, of_part, OPTIONS, 2) for of_part in (made[:1], made[1:])]
    tokens = [sum(plan.tokens[rank] for plan in plans) for rank in range(2)]
    assert updated.ranks == (
        RankStep(tokens[0], tokens[0], 3.0, 0.75, 0.375, 0.0),
        RankStep(tokens[1], tokens[1], None, None, None, 0.75),
    )
    longest = sum(max(plan.tokens) for plan in plans)
    assert updated.metrics["balance/tokens_max_over_mean"].value == pytest.approx(longest / (sum(tokens) / 2))


def of_rank(metrics: Metrics, *by_step: Metrics, examples: Any = ()) -> UpdateResult:
    return UpdateResult(7, len(by_step), metrics, by_step, examples)


def test_results_are_combined_by_their_counts_and_figures_of_the_whole_step_are_taken_once() -> None:
    """Means (3 x 0.5 + 1 x 0.1) / 4 = 0.4, of unequal counts; the loss is the sum of all ranks already."""
    whole = {"loss": Metric(0.25), "grad_norm": Metric(2.0), "learning_rate": Metric(1e-3)}
    overflows = {"float16/overflows": Metric(2, "sum"), "float16/loss_scale": Metric(1024.0)}
    example = ExampleRollout("p", "r", "g", 1.0, 2, "stop", 6, 0.5, (-1.0, -2.0))
    found = one_result(
        [
            of_rank(
                {**whole, **overflows, "clip_fraction": Metric(0.5, count=3), "ratio/max": Metric(1.5, "max")},
                {**whole, "token_entropy": Metric(1.0, count=10)},
                {**whole, "loss": Metric(0.125), "token_entropy": Metric(2.0, count=10)},
            ),
            of_rank(
                {**whole, **overflows, "clip_fraction": Metric(0.1, count=1), "ratio/max": Metric(1.75, "max")},
                {**whole, "token_entropy": Metric(3.0, count=30)},
                {**whole, "loss": Metric(0.125)},  # this rank had no rows in it
                examples=(example,),
            ),
        ]
    )
    assert found.metrics == {
        **whole,
        **overflows,
        "clip_fraction": Metric(pytest.approx(0.4), count=4),  # type: ignore[arg-type]
        "ratio/max": Metric(1.75, "max", 2),
    }
    assert found.optimizer_step_metrics == [
        {**whole, "token_entropy": Metric(2.5, count=40)},
        {**whole, "loss": Metric(0.125), "token_entropy": Metric(2.0, count=10)},
    ]
    assert (found.version, found.optimizer_steps, found.examples) == (7, 2, (example,))
    # a rank 0 without rows does not hide what the others report
    others = one_result([of_rank(whole), of_rank({**whole, "token_entropy": Metric(1.0, count=4)})])
    assert others.metrics == {**whole, "token_entropy": Metric(1.0, count=4)}


def test_a_save_is_done_when_every_rank_has_written_and_no_answer_is_lost() -> None:
    """The slower rank's seconds are those of the Learner; a rank says once what it has written."""
    written = tuple(SavedState((WrittenFile(f"rank {rank}", 1, ""),), 1, 0.1, 0, 1) for rank in range(2))
    made, log = ranks_of((1.0, 0.5), (2.0, 0.7))

    async def main(_: RecordingTracer) -> tuple[float, list[Any]]:
        handle, answers = handle_of(made), list[Any]()
        blocked_s = await handle.save_state(Path("draft"), 3, asynchronous=True)
        assert [part.arguments for part in made] == [(Path("draft"), 3, True, False, None)] * 2
        for made[0].answer, made[1].answer in ((None, None), (written[:1], None), (None, written[1:]), (None, None)):
            answers.append(await handle.finish_save(wait=False))
        return blocked_s, answers

    (blocked_s, answers), _ = run_virtual(main)
    assert blocked_s == 0.7
    assert answers == [None, None, written, None]
    assert len(log) == 10


def test_handles_ask_a_part_wherever_it_is_and_say_what_it_does() -> None:
    """What is said is what a stall is told by."""
    calls: list[tuple[Any, ...]] = []

    class Told:
        lane = "part"

        async def call(
            self, method: str, *given: Any, stage: Stage, step: int, version: int, new_groups: int = 0
        ) -> None:
            calls.append((method, stage.value, step, version, new_groups))

    async def main() -> None:
        part: Any = Told()
        generator, scorer, learner = GeneratorHandle(part), ScorerHandle(part), LearnerHandle(part)
        await generator.load_weights(WeightHandle(4, 8, 1))
        for purpose in (Purpose.TRAIN, Purpose.EVALUATE):
            item = WorkItem(purpose, 5, 0, (0, 1), 2, seed=0)
            await generator.generate(item)
            await scorer.score(item, (RolloutGroup(0, 5, 3, 4, (1, 2)),))
        await learner.update(5, ())
        await learner.publish_weights(6, frozenset())
        await learner.save_policy(6, last=True)
        await learner.load_state(Path())

    asyncio.run(main())
    assert calls == [
        ("load_weights", "weight_transfer", 4, 4, 0),
        ("generate", "generate", 5, 4, 2),
        ("score", "score", 5, 3, 0),
        ("generate", "evaluate", 5, 4, 2),
        ("score", "evaluate", 5, 3, 0),
        ("update", "update", 5, 5, 0),
        ("publish_weights", "weight_publish", 6, 6, 0),
        ("save_policy", "save_policy", 6, 6, 0),
        ("load_state", "checkpoint", -1, -1, 0),
    ]
