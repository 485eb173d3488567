"""Random schedules on the virtual clock, watched from outside: each part stands behind a watcher that keeps count.

The watchers know only what passes through the protocols, so a fault in the loop's own books cannot hide itself. A
schedule that fails names its seed; `check_schedule(SEED)` runs it again.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.core.errors import PartReplaced, RunStopped
from harness.core.protocols import Generator, Scorer
from harness.core.seeds import derive_seed
from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import Purpose, RolloutGroup, ScoredBatch, UpdateResult, WeightHandle, WorkItem
from harness.loop import Count, LoopPlan, RolloutCounts, SilentObserver, StepReport, run_loop
from harness.loop.replay import ReplayOptions
from harness.simulate.clock import run_virtual
from harness.simulate.parts import SimulatedLearner
from tests.stand_ins.simulated_parts import (
    Cost,
    Dies,
    MortalGenerator,
    MortalScorer,
    simulated_generator,
    simulated_learner,
    simulated_scorer,
    varying_lengths,
)

VALIDATION = (90, 91)


@dataclass
class Schedule:
    """Everything random about one run, drawn from its seed."""

    seed: int

    def __post_init__(self) -> None:
        rng = self._rng = random.Random(self.seed)
        self.generators, self.scorers = rng.randint(1, 3), rng.randint(1, 2)
        self.prompts = self.generators * rng.randint(1, 3)
        max_lag = rng.randint(0, 4)
        self.death_rate, self.failure_rate = rng.choice([0.0, 0.0, 0.03, 0.15]), rng.choice([0.0, 0.0, 0.05, 0.3])
        self.plan = LoopPlan(
            steps=rng.randint(1, 8),
            group_size=rng.randint(1, 3),
            max_lag=max_lag,
            evaluate_every=rng.randint(1, 4),
            batch_prompts=lambda step: tuple(range(step * self.prompts, (step + 1) * self.prompts)),
            validation_prompts=rng.choice([(), VALIDATION]),
            seed=self.seed,
            lag_control=rng.choice(["wait", "drop", "in_flight"]) if max_lag else "wait",
            replay=self._replay(max_lag) if rng.random() < 0.4 else None,
        )

    def _replay(self, max_lag: int) -> ReplayOptions:
        rng = self._rng
        capacity = rng.randint(self.prompts, 4 * self.prompts)
        return ReplayOptions(
            capacity,
            max_lag + rng.randint(0, 4),
            rng.choice(["newest", "uniform", "reward_weighted"]),
            rng.randint(1, capacity),
            rng.choice([None, 1, 2, 3]),
        )

    def cost(self) -> Cost:
        """Durations that differ from step to step: often zero, often equal, and of another scale for each stage."""
        rng = self._rng
        scale = rng.choice([0.0, 1.0, 1.0, 1.0, 10.0])
        table = [scale * rng.choice([0.0, 0.0, 1.0, 1.0, 2.0, rng.uniform(0, 4)]) for _ in range(7)]
        return lambda step: table[step % 7]

    def dies(self) -> Dies:
        """Deaths at random calls, at once or some way into them."""
        rng = random.Random(self._rng.random())
        return lambda call: rng.choice([0.0, 0.0, 0.5, 1.0, 9.0]) if rng.random() < self.death_rate else None

    def fails(self, item: WorkItem, prompt_id: int) -> bool:
        """Whether the reward of this group fails."""
        chance = random.Random(derive_seed(self.seed, item.purpose.value, item.step, prompt_id)).random()
        return chance < self.failure_rate


@dataclass
class Watch(SilentObserver):
    """What was seen of one run. Groups are known by identity, through (batch, prompt) under which they were ordered."""

    schedule: Schedule
    version: int = 0  # of the Learner
    generated: dict[tuple[int, int], Count] = field(default_factory=dict)
    reached: set[tuple[Purpose, int, int]] = field(default_factory=set)  # a Scorer that lived on
    failed: set[tuple[int, int]] = field(default_factory=set)
    failed_shards: int = 0  # without any group left
    scored: dict[tuple[int, int], RolloutGroup] = field(default_factory=dict)
    consumed: set[tuple[int, int]] = field(default_factory=set)
    uses: Counter[tuple[int, int]] = field(default_factory=Counter)
    loads: dict[str, list[int]] = field(default_factory=dict)
    told: dict[str, list[int]] = field(default_factory=dict)
    evaluated: list[int] = field(default_factory=list)
    deaths: set[tuple[str, int]] = field(default_factory=set)
    replaced: Counter[str] = field(default_factory=Counter)
    steps: list[int] = field(default_factory=list)
    ledger: RolloutCounts | None = None

    def on_version(self, lane: str, version: int) -> None:
        self.told.setdefault(lane, []).append(version)

    def on_replaced(self, lane: str, reason: str) -> None:
        self.replaced[lane] += 1

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        assert all((group.min_version, group.max_version) == (version, version) for group in scored.groups)
        kept = [prompt for prompt in VALIDATION if not self.schedule.fails(scored.item, prompt)]
        assert [group.prompt_id for group in scored.groups] == kept
        self.evaluated.append(version)

    def on_step(self, facts: StepReport) -> None:
        self.steps.append(facts.step)
        for group in facts.fresh:
            assert 0 <= facts.step - group.min_version <= self.schedule.plan.max_lag
            assert known(group) not in self.consumed
            self.consumed.add(known(group))
        if self.schedule.plan.lag_control != "drop":
            shards = [(facts.step, shard) for shard in range(self.schedule.generators)]
            assert [(part.item.step, part.item.shard) for part in facts.scored] == shards
        if facts.replay is None:
            assert facts.groups == facts.fresh
        else:
            stats, size = facts.replay
            assert len(self.consumed) == stats.added == size + stats.evicted

    def on_finished(self, ledger: RolloutCounts) -> None:
        self.ledger = ledger

    @contextmanager
    def heard(self, lane: str) -> Iterator[None]:
        """Note a death that passes through."""
        try:
            yield
        except PartReplaced as error:
            self.deaths.add((lane, error.incarnation))
            raise


def known(group: RolloutGroup) -> tuple[int, int]:
    """The name of a training group: no prompt is ordered twice."""
    return group.step, group.prompt_id


@dataclass
class WatchedGenerator:
    """Checks the first lag invariant at every start, and that evaluations use exactly their weights."""

    part: Generator
    watch: Watch
    held: int = -1

    def __post_init__(self) -> None:
        self.lane = self.part.lane

    async def load_weights(self, weight_handle: WeightHandle) -> None:
        with self.watch.heard(self.lane):
            await self.part.load_weights(weight_handle)
        self.held = weight_handle.version
        self.watch.loads.setdefault(self.lane, []).append(weight_handle.version)

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        start, plan = self.held, self.watch.schedule.plan
        if item.purpose is Purpose.EVALUATE:
            assert start == item.step
        else:
            assert 0 <= self.watch.version - start <= plan.max_lag
        with self.watch.heard(self.lane):
            groups = await self.part.generate(item)
        assert all(group.min_version == start for group in groups)
        assert all(group.max_version == (self.held if plan.lag_control == "in_flight" else start) for group in groups)
        if item.purpose is Purpose.TRAIN:
            for group in groups:
                assert known(group) not in self.watch.generated
                self.watch.generated[known(group)] = Count(len(group.lengths), sum(group.lengths))
        return groups


@dataclass
class WatchedScorer:
    """Keeps what was scored and what failed; nothing is scored twice."""

    part: Scorer
    watch: Watch

    def __post_init__(self) -> None:
        self.lane = self.part.lane

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        with self.watch.heard(self.lane):
            scored = await self.part.score(item, groups)
        names = {(item.purpose, *known(group)) for group in groups}
        assert not names & self.watch.reached
        self.watch.reached |= names
        if item.purpose is Purpose.TRAIN:
            self.watch.scored |= {known(group): group for group in scored.groups}
            self.watch.failed |= {known(group) for group in groups} - {known(group) for group in scored.groups}
            self.watch.failed_shards += not scored.groups
        return scored


class WatchedLearner(SimulatedLearner):
    """Checks what each step trains on."""

    watch: Watch

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        watch, replay = self.watch, self.watch.schedule.plan.replay
        assert step == watch.version
        assert groups
        assert len({known(group) for group in groups}) == len(groups)  # without replacement
        max_age = watch.schedule.plan.max_lag if replay is None else replay.max_age
        for group in groups:
            assert watch.scored[known(group)] is group  # whole, scored, not made up
            assert 0 <= step - group.min_version <= max_age
            watch.uses[known(group)] += 1
            assert watch.uses[known(group)] <= (1 if replay is None else replay.max_uses or step + 1)
        result = await super().update(step, groups)
        watch.version = result.version
        return result


def run_schedule(seed: int) -> tuple[Watch, list[Span], RunStopped | None]:
    """Run one schedule; return what was seen, its spans, and the reason if the run had to stop."""
    schedule = Schedule(seed)
    watch, plan = Watch(schedule), schedule.plan

    async def main(tracer: RecordingTracer) -> None:
        lengths = varying_lengths(1, 9)

        def generator(index: int) -> Generator:
            costs, dies = [schedule.cost() for _ in range(4)], schedule.dies()
            return MortalGenerator(
                lambda: simulated_generator(tracer, *costs, f"generator{index}", lengths),
                dies,
            )

        def scorer(index: int) -> Scorer:
            cost, dies = schedule.cost(), schedule.dies()
            return MortalScorer(
                lambda: simulated_scorer(tracer, cost, f"scorer{index}", fails=schedule.fails),
                dies,
            )

        generators = [WatchedGenerator(generator(index), watch) for index in range(schedule.generators)]
        scorers = [WatchedScorer(scorer(index), watch) for index in range(schedule.scorers)]
        learner = simulated_learner(tracer, schedule.cost(), schedule.cost(), of=WatchedLearner)
        learner.watch = watch
        await run_loop(generators, scorers, learner, plan, tracer, watch)

    stopped = None

    async def guarded(tracer: RecordingTracer) -> None:
        nonlocal stopped
        try:
            await main(tracer)
        except RunStopped as error:
            stopped = error

    return watch, run_virtual(guarded)[1].drain(), stopped


def check_schedule(seed: int) -> None:
    """Run one schedule and check everything that must hold at its end; the watchers check the rest on the way."""
    watch, spans, stopped = run_schedule(seed)
    schedule, plan = watch.schedule, watch.schedule.plan
    assert watch.steps == list(range(len(watch.steps)))
    for lane, versions in watch.loads.items():
        assert watch.told[lane] == versions
    assert watch.told["learner"] == list(range(len(watch.told["learner"])))
    if stopped is not None:
        check_stop(watch, stopped)
        return
    assert watch.replaced == Counter(lane for lane, _ in watch.deaths)
    assert watch.version == plan.steps == len(watch.steps) == len(watch.told["learner"]) - 1
    due = [v for v in range(plan.steps + 1) if v % plan.evaluate_every == 0 or v == plan.steps]
    assert watch.evaluated == (due if plan.validation_prompts else [])
    check_ledger(watch)
    check_spans(watch, spans)
    if plan.lag_control != "in_flight":  # there, loading and generating overlap
        check_time(spans)
    if plan.lag_control != "drop":
        ordered = {(step, prompt) for step in range(plan.steps) for prompt in plan.batch_prompts(step)}
        assert set(watch.generated) == ordered == watch.consumed | watch.failed
        assert watch.failed == {(step, prompt) for step, prompt in ordered if schedule.fails(order(plan, step), prompt)}


def order(plan: LoopPlan, step: int) -> WorkItem:
    """A training order of this batch, as far as failures depend on it."""
    return WorkItem(Purpose.TRAIN, step, 0, (), plan.group_size, 0)


def check_stop(watch: Watch, stopped: RunStopped) -> None:
    """The only reason to stop is a batch without any group; under ``drop``, one made of shards without any."""
    schedule, plan, step = watch.schedule, watch.schedule.plan, len(watch.steps)
    assert str(stopped).startswith("no group of a rollout batch could be scored; the first failure: the reward of pro")
    if plan.lag_control == "drop":
        assert watch.failed_shards >= schedule.generators
    else:
        assert all(schedule.fails(order(plan, step), prompt) for prompt in plan.batch_prompts(step))


def check_time(spans: list[Span]) -> None:
    """Each lane accounts for all of its time: a span begins where the one before ended."""
    for lane in {span.lane for span in spans}:
        mine = sorted((span.start_ns, span.end_ns) for span in spans if span.lane == lane)
        assert [start for start, _ in mine] == [0] + [end for _, end in mine[:-1]], lane


def check_ledger(watch: Watch) -> None:
    """Every generated rollout is in exactly one column, by this count as by the loop's own."""
    plan, ledger = watch.schedule.plan, watch.ledger
    assert ledger is not None
    columns: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for name, count in watch.generated.items():
        if name in watch.failed:
            column = "failed"
        elif watch.uses[name]:
            column = "trained"
        elif name in watch.scored and name not in watch.consumed and plan.steps - oldest(watch, name) > plan.max_lag:
            column = "dropped"
        else:
            column = "unused"
        columns[column] += count.rollouts
        tokens[column] += count.tokens
    assert plan.lag_control == "drop" or columns["dropped"] == 0
    assert plan.lag_control == "drop" or plan.replay or columns["unused"] == 0
    for column in ("failed", "trained", "dropped", "unused"):
        assert getattr(ledger, column) == Count(columns[column], tokens[column]), column
    again = [watch.generated[name] for name, uses in watch.uses.items() for _ in range(uses - 1)]
    assert ledger.trained_again == sum(again, Count())
    assert ledger.generated == sum(watch.generated.values(), Count())


def check_spans(watch: Watch, spans: list[Span]) -> None:
    """What was generated is what the spans say: each order of a batch's even share is generated in one of them.

    A Generator that dies ends its span too. Whatever it was in the middle of, it generated one order at most.
    """
    schedule, ledger = watch.schedule, watch.ledger
    assert ledger is not None
    each = schedule.prompts // schedule.generators * schedule.plan.group_size
    ended = sum(span.stage is Stage.GENERATE for span in spans)
    deaths = sum(lane.startswith("generator") for lane, _ in watch.deaths)
    assert ledger.generated.rollouts <= ended * each <= ledger.generated.rollouts + deaths * each


def oldest(watch: Watch, name: tuple[int, int]) -> int:
    """Version of a scored group's oldest token."""
    return watch.scored[name].min_version


def check_schedules(seeds: range, check: Callable[[int], None] = check_schedule) -> None:
    """Check these schedules; an error says which one it was."""
    for seed in seeds:
        try:
            check(seed)
        except BaseException as error:
            error.add_note(f"schedule {seed}: {Schedule(seed).plan}")
            raise


def check_repeats(seed: int) -> None:
    """The same seed gives the same spans, one by one, where the run stops too."""
    (_, first, _), (_, second, _) = run_schedule(seed), run_schedule(seed)
    assert first == second


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(17, id="drop: the Learner went beyond the bound while weights were loaded"),
        pytest.param(61, id="drop: the same at the first weights"),
        pytest.param(33, id="drop: every group of one shard failed"),
        pytest.param(45, id="two Scorers finish two evaluations in the wrong order"),
    ],
)
def test_schedules_that_once_found_a_fault(seed: int) -> None:
    check_schedules(range(seed, seed + 1))


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_invariants_hold_on_a_thousand_schedules(first: int) -> None:
    check_schedules(range(first, first + 100))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 10000, 1000))
def test_invariants_hold_on_nine_thousand_more(first: int) -> None:
    check_schedules(range(first, first + 1000))


def test_the_same_seed_gives_identical_spans() -> None:
    check_schedules(range(100), check_repeats)


SPANS_OF = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_loop_schedules import run_schedule
for seed in range(40):
    for span in run_schedule(seed)[1]:
        print(json.dumps(span))
"""


def test_fresh_processes_give_byte_identical_spans() -> None:
    """Whatever the order of sets and the addresses of objects in a process are."""
    written = []
    for hash_seed in ("0", "1", "random"):
        command, environment = [sys.executable, "-c", SPANS_OF, str(Path(__file__).parent)], dict(os.environ)
        environment |= {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        written.append(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert written[0].count(b"\n") > 1000
    assert written[1] == written[0]
    assert written[2] == written[0]
