"""Simulated times against arithmetic, to the last nanosecond: costs that no float holds, whole series, long runs.

``expected`` is the arithmetic: what each batch waits for, in fractions of a second. The loop knows nothing of it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from harness.core.trace import RecordingTracer, Span, Stage
from harness.loop import LoopPlan, Observer, StepReport, run_loop
from harness.settings.replay import ReplaySettings
from harness.simulate.clock import run_virtual
from tests.stand_ins.simulated_parts import Cost, constant, simulated_generator, simulated_learner, simulated_scorer

S = 1_000_000_000


@dataclass(frozen=True)
class Costs:
    """Seconds of each stage, as decimals."""

    generate: str = "0.3"
    score: str = "0.1"
    update: str = "0.7"
    publish: str = "0.2"
    transfer: str = "0.1"
    load: str = "0.1"

    def exact(self, stage: str) -> Fraction:
        return Fraction(getattr(self, stage))

    def cost(self, stage: str) -> Cost:
        return constant(float(getattr(self, stage)))


DIRECT = ReplaySettings()


class Tie(Exception):
    """A batch ends in the moment in which a version is published."""


@dataclass
class Steps(Observer):
    """Notes when each step is complete."""

    tracer: RecordingTracer
    done_ns: list[int]

    def on_step(self, facts: StepReport) -> None:
        self.done_ns.append(self.tracer.clock_ns())


def simulate(
    costs: Costs,
    steps: int,
    max_lag: int,
    epochs: int = 1,
    replay: ReplaySettings = DIRECT,
    lag_control: str = "wait",
    generators: int = 1,
    overlapped: bool = False,
) -> tuple[list[int], list[Span]]:
    """Return when each step was complete, and the spans."""
    done_ns: list[int] = []

    async def main(tracer: RecordingTracer) -> None:
        parts = [
            simulated_generator(
                tracer,
                costs.cost("generate"),
                transfer_cost=costs.cost("transfer"),
                load_cost=costs.cost("load"),
                lane=f"generator{index}",
            )
            for index in range(generators)
        ]
        learner = simulated_learner(tracer, costs.cost("update"), costs.cost("publish"), epochs, overlapped=overlapped)
        prompts = tuple(range(generators))
        plan = LoopPlan(
            steps,
            2,
            max_lag,
            1,
            lambda step: prompts,
            (),
            lag_control=lag_control,  # type: ignore[arg-type]
            replay=replay,
            overlapped_publish=overlapped,
        )
        scorer = simulated_scorer(tracer, costs.cost("score"))
        await run_loop(parts, [scorer], learner, plan, tracer, Steps(tracer, done_ns))

    return done_ns, run_virtual(main)[1].drain()


def expected(costs: Costs, steps: int, max_lag: int, epochs: int = 1) -> dict[str, list[Fraction]]:
    """When each batch was generated and scored, and each version published, with one Generator and one Scorer.

    Batch b starts when the one before is generated and version b - max_lag is published; the newest version is loaded
    first, unless it is held. It is scored after the one before, and trained on after that, in k passes.
    """
    sync = costs.exact("transfer") + costs.exact("load")
    published = [costs.exact("publish")]
    generated, scored, held = Fraction(0), Fraction(0), -1
    times: dict[str, list[Fraction]] = {"generated": [], "scored": [], "published": published}
    for batch in range(steps):
        start = max(generated, published[max(0, batch - max_lag)])
        newest = bisect_right(published, start) - 1
        if start == generated == published[newest]:
            raise Tie  # whether the new version is seen in time is left open
        generated = start + (sync if newest != held else 0) + costs.exact("generate")
        held = newest
        scored = max(scored, generated) + costs.exact("score")
        update_ends = max(published[batch], scored) + epochs * costs.exact("update")
        published.append(update_ends + costs.exact("publish"))
        times["generated"].append(generated)
        times["scored"].append(scored)
    return times


def ends(spans: list[Span], stage: Stage) -> list[int]:
    """When the spans of a stage ended, in nanoseconds."""
    return [span.end_ns for span in spans if span.stage is stage]


def nanoseconds(times: list[Fraction]) -> list[int]:
    """Rounded half up, as the clock rounds."""
    return [int(time * S + Fraction(1, 2)) for time in times]


def check(costs: Costs, steps: int, max_lag: int, epochs: int = 1, replay: ReplaySettings = DIRECT) -> list[int]:
    """Compare the whole series with ``expected``; return when each step was complete."""
    done_ns, spans = simulate(costs, steps, max_lag, epochs, replay)
    times = expected(costs, steps, max_lag, epochs)
    assert ends(spans, Stage.GENERATE) == nanoseconds(times["generated"])
    assert ends(spans, Stage.SCORE) == nanoseconds(times["scored"])
    assert ends(spans, Stage.WEIGHT_PUBLISH) == nanoseconds(times["published"])
    return done_ns


# ---- by hand


def test_synchronous_steps_take_the_sum_of_their_stages() -> None:
    done_ns, spans = simulate(Costs(), steps=4, max_lag=0)
    # publish 0.2 and sync 0.1 + 0.1; then generate 0.3 + score 0.1 + update 0.7 + publish 0.2 + sync 0.2 = 1.5 each;
    # nobody loads the last version.
    assert done_ns == [1_900_000_000, 3_400_000_000, 4_900_000_000, 6_200_000_000]
    # 0.2 + 0.2 + 0.3 = 0.7, then 1.5 later each
    assert ends(spans, Stage.GENERATE) == [700_000_000, 2_200_000_000, 3_700_000_000, 5_200_000_000]
    check(Costs(), 4, 0)


@pytest.mark.parametrize(("epochs", "step_ns"), [(1, 1_500_000_000), (2, 2_200_000_000), (8, 6_400_000_000)])
def test_k_passes_add_k_updates(epochs: int, step_ns: int) -> None:
    done_ns = check(Costs(), 5, 0, epochs)
    # 0.3 + 0.1 + 0.7 k + 0.2 + 0.2, the last step without the sync of 0.2
    assert [later - before for before, later in pairwise(done_ns)] == [
        *[step_ns] * 3,
        step_ns - 200_000_000,
    ]


def test_lag_one_hides_what_is_shorter() -> None:
    done_ns = check(Costs(), 5, 1)
    # Batch 0 generated at 0.7, batch 1 at 1.0 with the same weights. Scored 0.8; update and publish until 1.7. From
    # then on the Learner is never without a batch: 0.7 + 0.2 a step. Batch b starts when version b - 1 is there, and
    # needs sync 0.2 + generate 0.3 + score 0.1 = 0.6 < 0.9.
    assert done_ns == [1_700_000_000, 2_600_000_000, 3_500_000_000, 4_400_000_000, 5_300_000_000]


def test_lag_one_where_generating_takes_longer() -> None:
    done_ns = check(Costs(generate="1.3"), 4, 1)
    # generated 0.4 + 1.3 = 1.7; 3.0 (nothing newer yet: version 1 comes at 1.8 + 0.9 = 2.7, while it generates); then
    # with a sync each: 4.5, 6.0. Each is trained on 0.1 + 0.7 + 0.2 = 1.0 after that, and the Learner waits in between.
    assert done_ns == [2_700_000_000, 4_000_000_000, 5_500_000_000, 7_000_000_000]


def test_lag_two_fills_the_queue_once() -> None:
    done_ns, spans = simulate(Costs(), steps=5, max_lag=2)
    # 0.4 + 0.3 each: 0.7, 1.0, 1.3 with version 0; batch 3 needs version 1, from 1.7 on: 1.7 + 0.2 + 0.3 = 2.2; batch 4
    # needs version 2, from 2.6 on: 3.1. The Learner: 0.8 + 0.9 = 1.7, then 0.9 a step.
    assert ends(spans, Stage.GENERATE) == [700_000_000, 1_000_000_000, 1_300_000_000, 2_200_000_000, 3_100_000_000]
    assert done_ns == [1_700_000_000, 2_600_000_000, 3_500_000_000, 4_400_000_000, 5_300_000_000]
    check(Costs(), 5, 2)


def test_replay_takes_no_time_of_its_own() -> None:
    replay = ReplaySettings(capacity=3, max_age=4, sampling="newest", sample_groups=2)
    for max_lag in (0, 1, 2):
        assert check(Costs(), 6, max_lag, 2, replay) == check(Costs(), 6, max_lag, 2)


def test_in_flight_loads_beside_generating() -> None:
    costs = Costs(generate="1.7")
    done_ns, spans = simulate(costs, 3, 1, lag_control="in_flight")
    # Weights 0.2 to 0.4, then 1.7 each without a pause: 2.1, 3.8, 5.5. Trained on 0.1 + 0.7 + 0.2 after: 3.1, 4.8, 6.5.
    assert ends(spans, Stage.GENERATE) == [2_100_000_000, 3_800_000_000, 5_500_000_000]
    assert done_ns == [3_100_000_000, 4_800_000_000, 6_500_000_000]
    # transfer 0.1 + load 0.1 after version 0 (0.2), 1 (3.1) and 2 (4.8)
    assert ends(spans, Stage.WEIGHT_LOAD) == [400_000_000, 3_300_000_000, 5_000_000_000]


def spans_of(spans: list[Span], lane: str, stage: Stage) -> list[tuple[int, int]]:
    """(start, end) of a lane's spans of a stage, in tenths of a second."""
    tenth = S // 10
    return [
        (span.start_ns // tenth, span.end_ns // tenth) for span in spans if (span.lane, span.stage) == (lane, stage)
    ]


def test_a_publish_is_hidden_behind_the_next_update() -> None:
    done_ns, spans = simulate(Costs(), 5, 2, overlapped=True)
    # Batch 0 is scored at 0.8, and later ones are there in time (test_lag_two_fills_the_queue_once):
    # updates end 0.7 apart instead of 0.9, and versions are published 0.2 after. Hidden in each: min(0.2, 0.7).
    assert spans_of(spans, "learner", Stage.UPDATE) == [(8, 15), (15, 22), (22, 29), (29, 36), (36, 43)]
    assert spans_of(spans, "publisher", Stage.WEIGHT_PUBLISH) == [
        (0, 2),
        (15, 17),
        (22, 24),
        (29, 31),
        (36, 38),
        (43, 45),
    ]
    assert done_ns == [1_700_000_000, 2_400_000_000, 3_100_000_000, 3_800_000_000, 4_500_000_000]
    assert spans_of(spans, "learner", Stage.WAIT_FOR_WEIGHTS) == [(43, 45)]  # for the last version: nothing to train


def test_an_optimizer_step_waits_for_a_publish_that_takes_longer() -> None:
    costs = Costs(generate="0.1", publish="1.0")
    done_ns, spans = simulate(costs, 4, 2, overlapped=True)
    # Published 1.0; sync 0.2, generate 0.1, score 0.1: the update goes from 1.4 to 2.1. Then a version every 1.0, the
    # update of 0.7 beside it, which waits for 0.3 more. Hidden in each: min(1.0, 0.7).
    assert spans_of(spans, "publisher", Stage.WEIGHT_PUBLISH) == [(0, 10), (21, 31), (31, 41), (41, 51), (51, 61)]
    assert spans_of(spans, "learner", Stage.UPDATE) == [(14, 21), (21, 28), (31, 38), (41, 48)]
    assert spans_of(spans, "learner", Stage.WAIT_FOR_WEIGHTS) == [(28, 31), (38, 41), (48, 51), (51, 61)]
    assert done_ns == [3_100_000_000, 4_100_000_000, 5_100_000_000, 6_100_000_000]


def test_only_the_first_pass_of_a_step_hides_a_publish() -> None:
    costs = Costs(generate="0.1", publish="1.0", update="0.5")
    _, spans = simulate(costs, 3, 2, epochs=2, overlapped=True)
    # From 1.4: passes of 0.5, the first of which needs no version; later ones begin with 0.5 beside the publish of 1.0,
    # wait for 0.5, and go on for 0.5: a step takes 1.5.
    assert spans_of(spans, "learner", Stage.UPDATE) == [(14, 19), (19, 24), (24, 29), (34, 39), (39, 44), (49, 54)]
    assert spans_of(spans, "learner", Stage.WAIT_FOR_WEIGHTS) == [(29, 34), (44, 49), (54, 64)]


def test_generators_side_by_side_wait_for_one_scorer() -> None:
    done_ns, spans = simulate(Costs(), 3, 0, generators=3)
    # All generate from 0.4 to 0.7; scored one after the other at 0.8, 0.9, 1.0; update 1.7, publish 1.9, sync 2.1: a
    # step of 1.7, the last without its sync.
    assert ends(spans, Stage.SCORE)[:3] == [800_000_000, 900_000_000, 1_000_000_000]
    assert done_ns == [2_100_000_000, 3_800_000_000, 5_300_000_000]


# ---- at length


@pytest.mark.parametrize("max_lag", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_ten_thousand_steps_later_no_nanosecond_is_lost(max_lag: int) -> None:
    costs = Costs("0.1", "0.3", "0.7", "0.001", "0.0003", "0.0001")
    check(costs, 10_000, max_lag)


def test_costs_that_are_no_decimals_do_not_drift() -> None:
    third, steps = 1 / 3, 10_000
    done_ns: list[int] = []

    async def main(tracer: RecordingTracer) -> float:
        parts = simulated_generator(tracer, constant(third)), simulated_scorer(tracer, constant(third))
        learner = simulated_learner(tracer, constant(third), constant(third))
        plan = LoopPlan(steps, 2, 0, 1, lambda step: (0,), ())
        await run_loop([parts[0]], [parts[1]], learner, plan, tracer, Steps(tracer, done_ns))
        return asyncio.get_running_loop().time()

    seconds = run_virtual(main)[0]
    exact = Fraction(third) * (1 + 4 * steps)  # a publish, then generate, score, update and publish each
    assert abs(Fraction(seconds) - exact) <= exact / 10**12
    gaps_ns = [abs(ns - Fraction(third) * (5 + 4 * step) * S) for step, ns in enumerate(done_ns)]
    assert max(gaps_ns) < 1


# ---- any costs

tenths = st.integers(1, 40).map(lambda number: f"{number / 10}")


@settings(max_examples=200, deadline=None)
@given(
    costs=st.builds(Costs, tenths, tenths, tenths, tenths, tenths, tenths),
    steps=st.integers(1, 9),
    max_lag=st.integers(0, 3),
    epochs=st.integers(1, 3),
)
def test_any_constant_costs_give_what_arithmetic_says(costs: Costs, steps: int, max_lag: int, epochs: int) -> None:
    try:
        check(costs, steps, max_lag, epochs)
    except Tie:
        reject()


@settings(max_examples=100, deadline=None)
@given(data=st.data(), steps=st.integers(1, 5), generators=st.integers(1, 3))
def test_a_shorter_stage_never_makes_a_synchronous_run_longer(data: st.DataObject, steps: int, generators: int) -> None:
    stages = ("generate", "score", "update", "publish", "transfer", "load")
    tables = {
        stage: data.draw(st.lists(st.integers(0, 30), min_size=steps + 1, max_size=steps + 1)) for stage in stages
    }
    stage, step = data.draw(st.sampled_from(stages)), data.draw(st.integers(0, steps))
    shorter = {name: list(table) for name, table in tables.items()}
    shorter[stage][step] = data.draw(st.integers(0, tables[stage][step]))
    assert tabled(shorter, steps, generators) <= tabled(tables, steps, generators)


def tabled(tables: dict[str, list[int]], steps: int, generators: int) -> float:
    """Seconds of a synchronous run whose stages take the tables' tenths of a second, step by step."""

    def cost(stage: str) -> Cost:
        return lambda step: tables[stage][step] / 10

    async def main(tracer: RecordingTracer) -> float:
        parts = [
            simulated_generator(
                tracer, cost("generate"), transfer_cost=cost("transfer"), load_cost=cost("load"), lane=f"generator{i}"
            )
            for i in range(generators)
        ]
        learner = simulated_learner(tracer, cost("update"), cost("publish"))
        plan = LoopPlan(steps, 2, 0, 1, lambda step: (0, 1, 2), ())
        await run_loop(parts, [simulated_scorer(tracer, cost("score"))], learner, plan, tracer)
        return asyncio.get_running_loop().time()

    return run_virtual(main)[0]
