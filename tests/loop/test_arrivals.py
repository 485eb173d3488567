"""A toy run whose parts take other times repeats the arrivals of a recorded one: the same batches, bit for bit."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace

import pytest

from harness.core.errors import RunStopped
from harness.core.seeds import derive_seed
from harness.core.types import WeightHandle
from harness.loop import Arrival, AsItComes, DynamicSamplingOptions, LoopPlan, Repeated, run_loop
from harness.loop.arrivals import Arrivals
from harness.loop.plan import prompt_schedule
from harness.loop.replay import ReplayOptions
from harness.simulate.clock import run_virtual
from tests.loop.test_resume import Toy, ToyGenerator, ToyScorer

SCHEDULES = 200


@dataclass
class Drawn:
    """What one schedule asks of the loop. How long each call takes is drawn anew for each run."""

    plan: LoopPlan
    generators: int
    scorers: int

    @classmethod
    def from_seed(cls, seed: int) -> Drawn:
        draw = random.Random(derive_seed("arrivals", seed))
        generators, max_lag = draw.randint(1, 4), draw.choice((1, 2, 4))
        lag_control = draw.choice(("wait", "drop", "drop", "in_flight"))
        streams = lag_control != "drop" and draw.random() < 0.3
        replay = ReplayOptions(draw.randint(4, 9), max_lag + 4, "uniform", 4, 3) if draw.random() < 0.3 else None
        plan = LoopPlan(
            steps=draw.randint(1, 6),
            group_size=2,
            max_lag=max_lag,
            evaluate_every=draw.randint(1, 4),
            batch_prompts=prompt_schedule(30, 4, seed),
            validation_prompts=(0, 1) if draw.random() < 0.6 else (),
            seed=seed,
            lag_control=lag_control,
            replay=None if streams else replay,
            dynamic_sampling=DynamicSamplingOptions(2, 30) if draw.random() < 0.4 else None,
            overlapped_publish=draw.random() < 0.3,
            checkpoint_every=draw.choice((0, 0, 1, 3)),
            stream=draw.choice(("in_order", "as_scored")) if streams else None,
        )
        return cls(plan, generators, draw.randint(1, 3))


class SwappingGenerator(ToyGenerator):
    """A toy that takes new weights between two tokens, and samples each with those that it holds then."""

    def __init__(self, lane: str, times: random.Random) -> None:
        super().__init__(lane)
        self._times, self._loaded = times, {}

    async def load_weights(self, weight_handle):
        await super().load_weights(weight_handle)
        self._loaded[weight_handle.version] = weight_handle
        return {}

    async def generate(self, item):
        made, policies = [], []
        for token in range(6):
            version = dict(item.swaps or ()).get(token) if item.swaps else self.held.version
            while version is not None and version not in self._loaded:
                await asyncio.sleep(0.25)
            if version is not None and (not made or made[-1][1] != version):
                made.append((token, version))
            policies.append(self._loaded[made[-1][1]])
            await asyncio.sleep(self._times.choice((0, 2, 6)))
        groups = self.sampled(item, replace(policies[0], payload=repr([handle.payload for handle in policies])))
        first, last = made[0][1], made[-1][1]
        return tuple(replace(group, min_version=first, max_version=last, swaps=tuple(made)) for group in groups)


class Slow:
    """A toy part whose calls take seconds of their own."""

    def __init__(self, part: object, times: random.Random) -> None:
        self._part, self._times, self.lane = part, times, part.lane

    def __getattr__(self, name):
        async def call(*arguments, **named):
            answer = await getattr(self._part, name)(*arguments, **named)
            await asyncio.sleep(self._times.choice((0, 0, 0.5, 1, 3, 10)))
            return answer

        return call


class InParts(Toy):
    """The toy, which learns from the parts of a batch as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = ()

    async def accumulate(self, step, groups):
        self.parts += groups

    async def update(self, step, groups):
        whole, self.parts = self.parts + groups, ()
        return await super().update(step, whole)

    async def publish_weights(self, version, still_needed):
        return WeightHandle(version, 0, 0, payload=self.policy)  # before the next step changes it


class Saves:
    """A checkpoint that holds the Learner up."""

    async def save(self, state):
        await asyncio.sleep(2)


def _generator(drawn: Drawn, lane: str, clock: random.Random):
    swaps = drawn.plan.lag_control == "in_flight"
    return SwappingGenerator(lane, clock) if swaps else Slow(ToyGenerator(lane), clock)


def run_toy(drawn: Drawn, times: int, arrivals: Arrivals) -> InParts:
    toy, clock = InParts(), random.Random(times)

    async def main(tracer):
        await run_loop(
            [_generator(drawn, f"generator{number}", clock) for number in range(drawn.generators)],
            [Slow(ToyScorer(f"scorer{number}"), clock) for number in range(drawn.scorers)],
            Slow(toy, clock),
            drawn.plan,
            tracer,
            toy,
            arrivals=arrivals,
            checkpoints=Saves(),
        )

    run_virtual(main)
    return toy


def test_drawn_schedules_are_repeated_bit_for_bit() -> None:
    unlike = swapped = 0
    for seed in range(SCHEDULES):
        drawn, recorded, again = Drawn.from_seed(seed), list[Arrival](), list[Arrival]()
        first = run_toy(drawn, 2 * seed, AsItComes(recorded.append))
        repeated = run_toy(drawn, 2 * seed + 1, Repeated(recorded, again.append))
        assert (repeated.batches, repeated.told) == (first.batches, first.told), f"schedule {seed}"
        assert again == recorded, f"schedule {seed}"
        swapped += sum(len(arrival.swaps) > 1 for arrival in recorded)
        if seed % 5 == 0:
            unlike += run_toy(drawn, 2 * seed + 1, AsItComes()).batches != first.batches
    assert unlike > SCHEDULES / 5 / 3  # else there was nothing to repeat
    assert swapped > SCHEDULES / 10


@pytest.fixture(scope="module")
def recorded() -> tuple[Drawn, list[Arrival], InParts]:
    plan = replace(Drawn.from_seed(0).plan, steps=4, max_lag=2, lag_control="drop", checkpoint_every=0)
    plan = replace(plan, dynamic_sampling=None, overlapped_publish=False, stream=None, replay=None)
    drawn, arrivals = Drawn(plan, 2, 1), list[Arrival]()
    return drawn, arrivals, run_toy(drawn, 1, AsItComes(arrivals.append))


def test_a_run_that_was_cut_short_is_repeated_as_far_as_it_got(recorded) -> None:
    drawn, arrivals, first = recorded
    took = [number for number, arrival in enumerate(arrivals) if arrival.what == "take"]
    again = list[Arrival]()
    toy = run_toy(drawn, 7, Repeated(arrivals[: took[2]], again.append))
    assert again[: took[2]] == arrivals[: took[2]]
    assert toy.batches[:2] == first.batches[:2]
    assert len(toy.batches) == 4


def test_a_run_that_cannot_be_repeated_stops_at_the_first_other_event(recorded) -> None:
    drawn, arrivals, _ = recorded
    with pytest.raises(RunStopped, match=r"event \d+ was"):
        run_toy(replace(drawn, plan=replace(drawn.plan, max_lag=1)), 7, Repeated(arrivals))
    with pytest.raises(RunStopped, match=r"event 0 was"):
        run_toy(drawn, 7, Repeated([Arrival("generator0", "evaluate", version=3), *arrivals]))
