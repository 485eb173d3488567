"""The replay buffer: rules by hand, all short histories against a plain model, draws against exact probabilities."""

from __future__ import annotations

import gc
import math
import random
import weakref
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from itertools import combinations, permutations, product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from harness.core.errors import UserError
from harness.core.seeds import derive_seed
from harness.core.types import RolloutGroup
from harness.loop.replay import ReplayBuffer, ReplayDraw, ReplayStats, reward_weights, signal_weights
from harness.settings.replay import ReplaySettings


def group(name: int, version: int = 0, reward: float = 0.0, data: object = None) -> RolloutGroup:
    """A group of two rollouts with the mean reward ``reward``, whose prompt id is its name."""
    return RolloutGroup(name, version, version, version, (3, 5), data, (reward - name, reward + name))


def groups(*names: int, version: int = 0) -> list[RolloutGroup]:
    return [group(name, version) for name in names]


def names(taken: tuple[ReplayDraw, ...]) -> list[int]:
    return [item.group.prompt_id for item in taken]


def held(buffer: ReplayBuffer, version: int) -> list[int]:
    """Everything the buffer holds, oldest entry first, without changing it."""
    assert buffer.settings.sample_groups == buffer.settings.capacity
    return names(buffer.sample(version))


def keeping(capacity: int, max_age: int = 9) -> ReplayBuffer:
    return ReplayBuffer(ReplaySettings(capacity=capacity, max_age=max_age, sample_groups=capacity), seed=0)


# ---- entry, ageing and eviction, by hand


def test_the_oldest_entries_leave_when_newer_ones_need_the_room():
    buffer = keeping(capacity=3)
    buffer.add(groups(1, 2), version=0)
    buffer.add(groups(3, 4), version=0)
    assert held(buffer, 0) == [2, 3, 4]
    buffer.add(groups(5, 6, 7, 8), version=0)  # larger than the buffer: its own first group goes too
    assert held(buffer, 0) == [6, 7, 8]
    # unused: 1 and 5; 2, 3 and 4 were drawn
    assert buffer.stats == ReplayStats(added=8, taken=6, distinct_taken=6, evicted_full=5, evicted_unused=2)


def test_a_group_leaves_at_the_first_version_that_makes_it_older_than_max_age():
    buffer = keeping(capacity=4, max_age=2)
    buffer.add(groups(1, version=0), version=0)
    buffer.add(groups(2, version=1), version=1)
    assert [(item.group.prompt_id, item.age) for item in buffer.sample(2)] == [(1, 2), (2, 1)]
    assert [(item.group.prompt_id, item.age) for item in buffer.sample(3)] == [(2, 2)]
    assert buffer.sample(4) == ()
    assert buffer.stats == ReplayStats(added=2, taken=3, distinct_taken=2, evicted_age=2)


def test_age_counts_from_the_oldest_token_and_not_from_the_entry():
    buffer = keeping(capacity=4, max_age=2)
    late = RolloutGroup(1, 0, 1, 3, (2,), rewards=(1.0,), mean_version=2.5)
    buffer.add([late, group(2, version=3)], version=3)
    assert [item.age for item in buffer.sample(3)] == [2, 0]  # 3 - 1, 3 - 3
    assert held(buffer, 4) == [2]  # 4 - 1 = 3 is above 2, whatever entered first


# ---- what must not enter


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (replace(group(7), rewards=None), "prompt 7, step 0, .* no rewards"),
        (replace(group(7), lengths=(), rewards=()), "0 rewards for 0 rollouts"),
        (replace(group(7), rewards=(1.0,)), "1 rewards for 2 rollouts"),
        (replace(group(7), rewards=(1.0, math.nan)), r"\(1.0, nan\)"),
        (replace(group(7), rewards=(1.0, math.inf)), r"\(1.0, inf\)"),
        (replace(group(7), max_version=3), "version 3, .* 2"),
    ],
)
def test_a_group_that_is_not_whole_is_refused_with_its_batch(bad, message):
    buffer = keeping(capacity=4)
    buffer.add(groups(1), version=1)
    with pytest.raises(ValueError, match=message) as refusal:
        buffer.add([group(2, version=2), bad], version=2)
    assert not isinstance(refusal.value, UserError)
    assert buffer.stats == ReplayStats(added=1)
    assert held(buffer, 1) == [1]  # the version did not move either


def test_a_group_enters_once():
    buffer, one, payload = keeping(capacity=4), group(1), object()
    with pytest.raises(ValueError, match=r"prompt 1, step 0, .* twice"):
        buffer.add([one, one], version=0)
    with_data = group(2, data=payload)
    buffer.add([one, with_data], version=0)
    with pytest.raises(ValueError, match="already"):
        buffer.add([one], version=0)
    with pytest.raises(ValueError, match="already"):
        buffer.add([replace(with_data, rewards=(1.0, 1.0))], version=0)  # the same data, scored again
    buffer.add([group(1), group(2, data=object())], version=0)  # equal, but other rollouts
    assert held(buffer, 0) == [1, 2, 1, 2]


def test_versions_never_go_back():
    buffer = keeping(capacity=2)
    buffer.sample(3)
    for call in (buffer.sample, lambda version: buffer.add([], version)):
        with pytest.raises(ValueError, match="version 2 after 3"):
            call(2)


# ---- an evicted group's data is free


class Payload:
    """Stands for an object reference: something whose life can be watched."""


@pytest.mark.parametrize("cause", ["full", "age", "arrival"])
def test_the_data_of_an_evicted_group_is_freed_at_once(cause):
    buffer = ReplayBuffer(ReplaySettings(capacity=1, max_age=1, sample_groups=1), seed=0)
    gc.disable()  # so that only the last reference going away can free it
    try:
        payload = Payload()
        watched = weakref.ref(payload)
        buffer.add([group(1, data=payload)], version=1 if cause != "arrival" else 2)
        del payload
        assert (watched() is None) == (cause == "arrival")
        if cause == "full":
            buffer.add(groups(2), version=1)
        elif cause == "age":
            buffer.add([], version=2)
        assert watched() is None
    finally:
        gc.enable()


# ---- sampling rules


def test_reward_weights_by_hand():
    assert reward_weights([0.5, 0.0, 1.0]) == pytest.approx([0.6, 0.1, 1.1])  # r - 0 + 0.1
    assert reward_weights([-2.0, -1.5]) == pytest.approx([0.1, 0.6])  # r + 2 + 0.1
    assert reward_weights([3.0, 3.0]) == pytest.approx([0.1, 0.1])
    assert reward_weights([]) == []


def test_the_weighted_draw_takes_the_largest_keys_of_the_paper():
    rewards = (0.0, 0.25, 0.5, 1.0, 0.5)
    buffer = ReplayBuffer(
        ReplaySettings(capacity=5, max_age=1000, sampling="reward_weighted", sample_groups=2), seed=11
    )
    buffer.add([group(name, reward=reward) for name, reward in enumerate(rewards)], version=0)
    for version in range(1000):
        uniforms = random.Random(derive_seed(11, "replay", version))
        keys = [(1 - uniforms.random()) ** (1 / (reward - 0.0 + 0.1)) for reward in rewards]  # u^(1/w)
        second = sorted(keys)[-2]
        assert names(buffer.sample(version)) == [name for name, key in enumerate(keys) if key >= second]


REWARDS = (0.0, 0.25, 0.5, 1.0)
WEIGHTS = {
    "uniform": (Fraction(1),) * 4,
    "reward_weighted": (Fraction(2, 20), Fraction(7, 20), Fraction(12, 20), Fraction(22, 20)),  # r - 0 + 0.1
}


def subset_probabilities(weights: tuple[Fraction, ...], size: int) -> dict[tuple[int, ...], Fraction]:
    """Probability of each subset when one after another is drawn in proportion to its weight among those left."""
    probabilities = dict.fromkeys(combinations(range(len(weights)), size), Fraction(0))
    for order in permutations(range(len(weights)), size):
        left, probability = sum(weights), Fraction(1)
        for index in order:
            probability *= weights[index] / left
            left -= weights[index]
        probabilities[tuple(sorted(order))] += probability
    return probabilities


def test_the_enumeration_of_draws_agrees_with_hand_arithmetic():
    pairs = subset_probabilities((Fraction(1), Fraction(2), Fraction(3)), 2)
    # the pair without 3: 1 then 2: 1/6 * 2/5; 2 then 1: 2/6 * 1/4; together 1/15 + 1/12 = 9/60
    assert (pairs[0, 1], sum(pairs.values())) == (Fraction(9, 60), 1)


@pytest.mark.parametrize(("over", "size"), [("seeds", 2), ("versions", 1), ("versions", 2), ("versions", 3)])
@pytest.mark.parametrize("sampling", ["uniform", "reward_weighted"])
def test_every_set_of_groups_is_drawn_as_often_as_its_exact_probability_says(sampling, size, over):
    draws = 4000
    options = ReplaySettings(capacity=4, max_age=draws, sampling=sampling, sample_groups=size)
    batch = [group(name, reward=reward) for name, reward in enumerate(REWARDS)]
    counts: Counter[tuple[int, ...]] = Counter()
    buffer = ReplayBuffer(options, seed=0)
    buffer.add(batch, version=0)
    for draw in range(draws):
        if over == "seeds":
            buffer = ReplayBuffer(options, seed=draw)
            buffer.add(batch, version=0)
        counts[tuple(names(buffer.sample(draw if over == "versions" else 0)))] += 1
    exact = subset_probabilities(WEIGHTS[sampling], size)
    assert set(counts) <= set(exact)
    for subset, probability in exact.items():  # seeds are fixed; the bound is four standard deviations of a binomial
        bound = 4 * math.sqrt(draws * probability * (1 - probability))
        assert abs(counts[subset] - draws * probability) < bound, subset


def test_a_group_weighs_as_much_as_its_rewards_lie_apart():
    """2 p (1 - p) for a share p of ones: 0, 2 * 1/4 * 3/4, 2 * 1/2 * 1/2, 0; and 2/3 * 3 = 2 for (0, 3, 6)."""
    groups = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 1, 0), (1, 1, 1, 1), (0, 3, 6)]
    assert signal_weights(groups) == pytest.approx([0.0, 0.375, 0.5, 0.0, 2.0], abs=2e-9)


def test_groups_of_equal_rewards_are_drawn_where_nothing_else_is_left():
    """By mean reward, nearly half of the draws from such a buffer had no gradient."""
    solved, hopeless = (1.0,) * 8, (0.0,) * 8
    open_groups = [(1.0,) * right + (0.0,) * (8 - right) for right in (1, 2, 4, 6)]
    buffer = ReplayBuffer(ReplaySettings(capacity=8, max_age=400, sampling="signal_weighted", sample_groups=4), seed=5)
    rewards = [solved, *open_groups, hopeless, solved, hopeless]
    buffer.add([replace(group(name), rewards=own, lengths=(1,) * 8) for name, own in enumerate(rewards)], version=0)
    assert {tuple(names(buffer.sample(version))) for version in range(200)} == {(1, 2, 3, 4)}
    assert len(buffer.sample(200)) == 4


@pytest.mark.parametrize("sampling", ["uniform", "reward_weighted", "signal_weighted"])
def test_a_draw_depends_on_seed_version_and_contents_and_not_on_history(sampling):
    options = ReplaySettings(capacity=6, max_age=9, sampling=sampling, sample_groups=3)

    def fresh(seed: int) -> ReplayBuffer:
        buffer = ReplayBuffer(options, seed)
        buffer.add([group(name, reward=name / 8) for name in range(6)], version=0)
        return buffer

    direct, travelled = fresh(0), ReplayBuffer(options, seed=0)
    for name in range(90, 99):
        travelled.add([group(name)], version=0)
        travelled.sample(0)
    travelled.add([group(name, reward=name / 8) for name in range(3)], version=0)
    travelled.add([group(name, reward=name / 8) for name in range(3, 6)], version=0)
    assert names(direct.sample(5)) == names(direct.sample(5)) == names(travelled.sample(5))
    assert len({tuple(names(fresh(0).sample(version))) for version in range(9)}) > 1
    assert len({tuple(names(fresh(seed).sample(5))) for seed in range(9)}) > 1


# ---- against a plain model


@dataclass
class Record:
    """One group's life in the model."""

    group: RolloutGroup
    batch: int
    uses: int = 0
    fate: str = "held"


@dataclass
class Model:
    """Every group that ever entered, with its fate; nothing is ever removed, everything is counted anew."""

    options: ReplaySettings
    records: list[Record] = field(default_factory=list)
    batches: int = 0

    def held(self) -> list[Record]:
        return [record for record in self.records if record.fate == "held"]

    def age(self, version: int) -> None:
        for record in self.held():
            if version - record.group.min_version > self.options.max_age:
                record.fate = "evicted_age"

    def add(self, batch: list[RolloutGroup], version: int) -> None:
        self.batches += 1
        self.records.extend(Record(item, self.batches) for item in batch)
        self.age(version)
        while len(self.held()) > self.options.capacity:
            self.held()[0].fate = "evicted_full"

    def newest(self) -> list[RolloutGroup]:
        """What ``newest`` must draw, in order of entry."""
        wanted: list[Record] = []
        for batch in range(self.batches, 0, -1):
            wanted += [record for record in self.held() if record.batch == batch]
        wanted = wanted[: self.options.sample_groups]
        return [record.group for record in self.records if any(record is other for other in wanted)]

    def check_draw(self, taken: tuple[ReplayDraw, ...], version: int) -> None:
        """Compare a draw with what may be drawn, and count it."""
        self.age(version)
        candidates = self.held()
        assert len(taken) == min(self.options.sample_groups, len(candidates))
        if self.options.sampling == "newest":
            assert [id(item.group) for item in taken] == [id(item) for item in self.newest()]
        positions = []
        for item in taken:
            (position,) = (at for at, record in enumerate(candidates) if record.group is item.group)
            positions.append(position)
            record = candidates[position]
            record.uses += 1
            assert (item.uses, item.age) == (record.uses, version - record.group.min_version)
        assert positions == sorted(set(positions))

    def stats(self) -> dict[str, int]:
        fates = Counter(record.fate for record in self.records)
        return {
            "added": len(self.records),
            "taken": sum(record.uses for record in self.records),
            "distinct_taken": sum(record.uses > 0 for record in self.records),
            "evicted_full": fates["evicted_full"],
            "evicted_age": fates["evicted_age"],
            "evicted_unused": sum(record.fate != "held" and record.uses == 0 for record in self.records),
        }

    def check(self, buffer: ReplayBuffer) -> None:
        """Compare the totals, and what entered with what is held and gone."""
        assert {total.name: getattr(buffer.stats, total.name) for total in fields(ReplayStats)} == self.stats()
        assert len(buffer) == len(self.held()) == buffer.stats.added - buffer.stats.evicted


def all_options(sampling: str) -> list[ReplaySettings]:
    return [
        ReplaySettings(capacity=capacity, max_age=max_age, sampling=sampling, sample_groups=sample_groups)
        for capacity, max_age in product((1, 2, 3), (0, 1, 2))
        for sample_groups in range(1, capacity + 1)
    ]


def play(history: tuple[str, ...], options: ReplaySettings) -> None:
    """Run a history on buffer and model side by side and compare them all along."""
    buffer, model, version, name = ReplayBuffer(options, seed=0), Model(options), 2, 0
    for operation in history:
        match operation:
            case "step":
                version += 1
            case "sample":
                model.check_draw(buffer.sample(version), version)
            case _:
                lags = {"one": (0,), "two": (1, 0), "late": (2,)}[operation]
                batch = [group(name + at, version - lag, reward=at % 2) for at, lag in enumerate(lags)]
                name += len(batch)
                buffer.add(batch, version)
                model.add(batch, version)
        model.check(buffer)


@pytest.mark.parametrize("sampling", ["newest", "uniform"])  # which is drawn changes nothing of what is held
@pytest.mark.parametrize("length", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_every_short_history_matches_the_model(sampling, length):
    for options in all_options(sampling):
        for history in product(("one", "two", "late", "sample", "step"), repeat=length):
            play(history, options)


class ReplayHistories(RuleBasedStateMachine):
    """Long histories with batches of any size and lag."""

    @initialize(
        capacity=st.integers(1, 12),
        max_age=st.integers(0, 5),
        sampling=st.sampled_from(["newest", "uniform", "reward_weighted", "signal_weighted"]),
        seed=st.integers(0, 2**32 - 1),
        data=st.data(),
    )
    def start(self, capacity, max_age, sampling, seed, data):
        sample_groups = data.draw(st.integers(1, capacity))
        options = ReplaySettings(capacity=capacity, max_age=max_age, sampling=sampling, sample_groups=sample_groups)
        self.buffer, self.model, self.version, self.entered = ReplayBuffer(options, seed), Model(options), 6, 0

    @rule(members=st.lists(st.tuples(st.integers(0, 6), st.floats(-10, 10)), max_size=8))
    def add(self, members):
        batch = []
        for lag, reward in members:
            self.entered += 1
            batch.append(group(self.entered, self.version - lag, reward))
        self.buffer.add(batch, self.version)
        self.model.add(batch, self.version)

    @rule()
    def sample(self):
        self.model.check_draw(self.buffer.sample(self.version), self.version)

    @rule(steps=st.integers(1, 3))
    def step(self, steps):
        self.version += steps

    @invariant()
    def agrees_with_the_model(self):
        if hasattr(self, "buffer"):
            self.model.check(self.buffer)


TestReplayHistories = ReplayHistories.TestCase
TestReplayHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
