"""The loop's bookkeeping, piece by piece: intake, ledger, plan, bell."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from harness.core.types import Purpose, RolloutGroup, ScoredBatch, WorkItem
from harness.loop import Condition, Count, LoopPlan, RolloutCounts, first_error
from harness.loop.batching import BatchAssembler, FirstComeDropStale, InOrder
from harness.loop.observer import count
from harness.loop.versions import LoadedVersions


def shard(batch: int, index: int = 0, version: int = 0, groups: int = 1, failed: int = 0) -> ScoredBatch:
    """A scored shard whose groups hold 2 rollouts of 3 and 5 tokens each."""
    item = WorkItem(Purpose.TRAIN, batch, index, tuple(range(groups + failed)), 2, seed=0)
    scored = tuple(
        RolloutGroup(prompt, batch, version, version, (3, 5), rewards=(0.0, 1.0)) for prompt in range(groups)
    )
    return ScoredBatch(item, scored, {}, failed_groups=failed, failure="it broke" if failed else None)


PLAN = LoopPlan(
    steps=3,
    group_size=2,
    max_lag=1,
    evaluate_every=2,
    batch_prompts=lambda step: tuple(range(10 * step, 10 * step + 5)),
    validation_prompts=(7, 8),
    seed=5,
)


def groups_in(intake: BatchAssembler) -> list[RolloutGroup]:
    return [group for part in intake.waiting for group in part.groups]


# ---- in order


def test_in_order_hands_out_what_was_ordered_whatever_comes_first():
    for arrival in itertools.permutations([(0, 0), (0, 1), (1, 0), (1, 1)]):
        intake = InOrder(shards=2)
        for batch, index in arrival:
            assert intake.add(shard(batch, index), version=0) == []
        assert count(groups_in(intake)).rollouts == 8  # 4 shards of 2 rollouts
        for step in (0, 1):
            assert intake.ready(step)
            assert [(part.item.step, part.item.shard) for part in intake.take(step)] == [(step, 0), (step, 1)]
        assert intake.waiting == (), arrival


def test_in_order_waits_for_its_own_batch_and_drops_nothing():
    intake = InOrder(shards=2)
    intake.add(shard(1, 0), version=0)
    intake.add(shard(1, 1), version=0)
    intake.add(shard(0, 1), version=0)
    assert (intake.ready(0), intake.ready(1)) == (False, True)
    assert intake.expire(version=100) == []
    intake.add(shard(0, 0, groups=0, failed=1), version=0)
    assert intake.ready(0)  # a shard without any group left completes its batch


# ---- first come, drop stale


def test_what_becomes_too_old_is_dropped_with_all_its_groups_in_order():
    intake = FirstComeDropStale(shards=1, max_lag=1)
    old, new, older = shard(0, version=2, groups=2), shard(1, version=3), shard(2, version=1)
    assert intake.add(old, version=3) == []  # lag 1
    assert intake.add(new, version=3) == []
    assert intake.add(older, version=3) == list(older.groups)  # lag 2: never enters
    assert intake.expire(version=4) == list(old.groups)  # lag 2 now
    assert intake.take(0) == (new,)


def test_the_age_of_a_shard_is_that_of_its_oldest_token():
    intake = FirstComeDropStale(shards=1, max_lag=1)
    part = shard(0, version=2, groups=2)
    mixed = replace(part, groups=(part.groups[0], replace(part.groups[1], min_version=0, max_version=2)))
    assert intake.add(mixed, version=2) == list(mixed.groups)


def test_a_shard_whose_groups_all_failed_is_a_part_of_a_batch_and_never_too_old():
    intake = FirstComeDropStale(shards=2, max_lag=1)
    empty, full = shard(0, groups=0, failed=1), shard(1, version=8)
    assert intake.add(empty, version=0) == []
    assert not intake.ready(0)
    assert intake.add(full, version=9) == []
    assert intake.add(shard(2, version=9), version=9) == []
    assert intake.take(0) == (empty, full)
    assert not intake.ready(1)


# ---- ledger


def test_counts_hold_rollouts_and_tokens():
    counted = count(shard(0, groups=3).groups)
    assert counted == Count(rollouts=6, tokens=24)  # 3 groups of 3 + 5 tokens
    assert counted - Count(2, 8) + Count(1, 5) == Count(5, 21)
    assert counted.mean_length == 4.0
    assert Count().mean_length is None
    ledger = RolloutCounts(Count(10, 100), Count(1, 7), Count(2, 30), Count(4, 40), trained_again=Count(9, 90))
    assert ledger.unused == Count(3, 23)  # 10 - 1 - 2 - 4; a later use is of a rollout that is counted already


# ---- plan


def test_orders_cut_each_batch_into_shards_that_cover_it_once():
    orders = list(PLAN.train_orders(shards=2))
    assert [(order.step, order.shard, order.prompt_ids) for order in orders] == [
        (0, 0, (0, 1)),
        (0, 1, (2, 3, 4)),
        (1, 0, (10, 11)),
        (1, 1, (12, 13, 14)),
        (2, 0, (20, 21)),
        (2, 1, (22, 23, 24)),
    ]
    assert {(order.purpose, order.group_size) for order in orders} == {(Purpose.TRAIN, 2)}
    assert [list(order.places) for order in orders[:2]] == [[0, 1], [2, 3, 4]]
    assert len({order.seed for order in orders}) == 3  # one for each batch: who samples a prompt changes no sample


@pytest.mark.parametrize("shards", [2, 4])
def test_the_seed_and_place_of_a_prompt_do_not_depend_on_how_many_generators_there_are(shards: int) -> None:
    def streams(number: int) -> dict[tuple[int, int], tuple[int, int]]:
        return {
            (order.step, prompt): (order.seed, place)
            for order in PLAN.train_orders(number)
            for prompt, place in zip(order.prompt_ids, order.places, strict=True)
        }

    assert streams(shards) == streams(1)


def test_under_drop_orders_never_end_and_begin_with_the_same_ones():
    endless = replace(PLAN, lag_control="drop").train_orders(shards=2)
    assert [next(endless) for _ in range(6)] == list(PLAN.train_orders(shards=2))
    assert next(endless).step == 3


def test_more_shards_than_prompts_are_refused():
    with pytest.raises(ValueError, match="6 Generators cannot share the 5 prompts of a batch"):
        next(PLAN.train_orders(shards=6))


def test_every_evaluation_is_the_same_order_but_for_its_version():
    orders = [PLAN.evaluation_order(version) for version in (0, 2)]
    assert [(order.purpose, order.step, order.prompt_ids) for order in orders] == [
        (Purpose.EVALUATE, 0, (7, 8)),
        (Purpose.EVALUATE, 2, (7, 8)),
    ]
    assert orders[0].seed == orders[1].seed
    assert orders[0].group_size == 1


def test_the_first_the_last_and_every_second_version_are_evaluated():
    assert [version for version in range(4) if PLAN.is_evaluated(version)] == [0, 2, 3]
    assert not any(replace(PLAN, validation_prompts=()).is_evaluated(version) for version in range(4))


def test_room_is_for_twice_the_batches_that_can_be_fresh_enough():
    assert [replace(PLAN, max_lag=lag).room for lag in (1, 2, 4)] == [4, 6, 10]  # 2 * (lag + 1)


# ---- versions held


def test_the_oldest_version_held_is_known_through_every_change():
    holders = LoadedVersions(["a", "b", "c"])
    assert (holders["a"], holders.oldest, "a" in holders, "d" in holders) == (-1, -1, True, False)
    oldest = []
    for lane, version in [("a", 0), ("b", 0), ("c", 2), ("a", 1), ("b", 3), ("b", -1), ("b", 2), ("a", 2)]:
        holders.set(lane, version)
        oldest.append(holders.oldest)
    assert oldest == [-1, -1, 0, 0, 1, -1, 1, 2]
    holders.set("a", 2)  # no change
    assert (holders["a"], holders.oldest) == (2, 2)


# ---- bell


async def settle() -> None:
    """Let every task go on as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


class Waiters:
    """Tasks that wait at a bell until their name is allowed, and then take it away if ``greedy``."""

    def __init__(self, names: str, greedy: bool = False) -> None:
        self.bell, self.allowed, self.woken, self.looks = Condition(), "", "", 0
        self.tasks = [asyncio.ensure_future(self._wait(name, greedy)) for name in names]

    async def _wait(self, name: str, greedy: bool) -> None:
        def is_allowed() -> bool:
            self.looks += 1
            return name in self.allowed

        await self.bell.until(is_allowed)
        self.woken += name
        if greedy:
            self.allowed = ""


def test_a_bell_wakes_in_order_of_arrival_those_whose_condition_holds():
    async def main() -> None:
        waiters = Waiters("abcd")
        waiters.allowed = "b"
        await settle()  # who comes to a condition that holds does not wait
        assert waiters.woken == "b"
        waiters.tasks[3].cancel()  # who gives up disturbs nobody
        waiters.allowed = "dca"
        await settle()
        assert waiters.woken == "b"  # nobody rang
        waiters.bell.notify()
        await settle()
        assert waiters.woken == "bac"
        assert [task.cancelled() for task in waiters.tasks] == [False, False, False, True]

    asyncio.run(main())


def test_who_was_too_slow_waits_anew_behind_the_others():
    async def main() -> None:
        waiters = Waiters("abc", greedy=True)
        await settle()
        for expected in ("a", "ab", "abc"):
            waiters.allowed = "abc"  # for one of them
            waiters.bell.notify()
            await settle()
            assert waiters.woken == expected

    asyncio.run(main())


def test_a_bell_for_one_wakes_the_first_whose_condition_holds():
    async def main() -> None:
        waiters = Waiters("abcd")
        await settle()
        waiters.tasks[1].cancel()
        # b gave up; those who are passed over keep their order
        for waiters.allowed, expected in (("bd", "d"), ("b", "d"), ("ca", "da"), ("c", "dac"), ("abcd", "dac")):
            waiters.bell.notify_one()
            await settle()
            assert waiters.woken == expected

    asyncio.run(main())


def test_a_bell_for_one_looks_no_further_than_that_one():
    async def main() -> None:
        waiters = Waiters("abcdefgh")
        await settle()
        waiters.looks, waiters.allowed = 0, "abcdefgh"
        waiters.bell.notify_one()
        await settle()
        assert (waiters.woken, waiters.looks) == ("a", 2)  # when the bell rang, and once more when it woke
        waiters.bell.notify()
        await settle()

    asyncio.run(main())


def test_a_waiter_is_also_woken_by_a_future_that_is_done():
    async def main() -> None:
        bell, work = Condition(), asyncio.get_running_loop().create_future()
        waiter = asyncio.ensure_future(bell.until(lambda: work.done(), or_done=work))
        await settle()
        work.set_result(None)
        await settle()
        assert waiter.done()
        bell.notify()  # nobody is there any more

    asyncio.run(main())


# ---- errors


def test_the_first_of_nested_errors_is_found():
    inner = ExceptionGroup("inner", [ValueError("this"), KeyError("not this")])
    assert str(first_error(ExceptionGroup("outer", [inner, RuntimeError("nor this")]))) == "this"
