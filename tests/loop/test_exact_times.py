"""Simulated times against arithmetic, to the last nanosecond: costs that no float holds, whole series, long runs.

``expected`` is the arithmetic: what each batch waits for, in fractions of a second. The loop knows nothing of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from harness.core.trace import Stage
from harness.settings.replay import ReplaySettings
from tests.loop.conftest import Seen, simulate_run

Costs = Mapping[str, str]
USUAL = {"generate": "0.3", "score": "0.1", "update": "0.7", "publish": "0.2", "transfer": "0.1", "load": "0.1"}


class Tie(Exception):
    """A batch ends in the moment in which a version is published."""


def simulate(costs: Costs, generators: int = 1, **others: Any) -> Seen:
    """Run with these seconds, as decimals, and one prompt for each Generator."""
    seconds: dict[str, Any] = {stage: float(decimal) for stage, decimal in (USUAL | dict(costs)).items()}
    seconds |= {stage: [seconds[stage]] * generators for stage in ("generate", "load")}
    prompts = tuple(range(generators))
    return simulate_run(**(seconds | {"score": [seconds["score"]], "batch_prompts": lambda step: prompts} | others))


def expected(
    costs: Costs, steps: int, max_lag: int, epochs: int, overlapped_publish: bool
) -> dict[Stage, list[Fraction]]:
    """When each batch was generated and scored, and each version published, with one Generator and one Scorer.

    Batch b starts when the one before is generated and version b - max_lag is published; the newest version is loaded
    first, unless it is held. It is scored after the one before, and trained on after that, in k passes. Beside a
    publish, the first pass goes on until its optimizer step.
    """
    exact = {stage: Fraction(decimal) for stage, decimal in (USUAL | dict(costs)).items()}
    published = [exact["publish"]]
    generated, scored, held, free = Fraction(0), Fraction(0), -1, exact["publish"]
    times: dict[Stage, list[Fraction]] = {Stage.GENERATE: [], Stage.SCORE: [], Stage.WEIGHT_PUBLISH: published}
    for batch in range(steps):
        start = max(generated, published[max(0, batch - max_lag)])
        newest = bisect_right(published, start) - 1
        if start == generated == published[newest]:
            raise Tie  # whether the new version is seen in time is left open
        generated = start + (exact["transfer"] + exact["load"] if newest != held else 0) + exact["generate"]
        held = newest
        scored = max(scored, generated) + exact["score"]
        first_pass = max(max(free, scored) + exact["update"], published[batch])
        update_ends = first_pass + (epochs - 1) * exact["update"]
        published.append(update_ends + exact["publish"])
        free = update_ends if overlapped_publish else published[-1]
        times[Stage.GENERATE].append(generated)
        times[Stage.SCORE].append(scored)
    return times


def check(costs: Costs, steps: int, max_lag: int, epochs: int = 1, overlapped: bool = False, **others: Any) -> Seen:
    """Compare the whole series with ``expected``, rounded half up, as the clock rounds."""
    times = expected(costs, steps, max_lag, epochs, overlapped)
    plan = {"steps": steps, "max_lag": max_lag, "overlapped_publish": overlapped}
    seen = simulate(costs, epochs=epochs, **plan, **others)
    for stage, exact in times.items():
        assert seen.ends(stage) == [int(time * 10**9 + Fraction(1, 2)) for time in exact], stage
    return seen


def tenths(times_ns: list[int]) -> list[float]:
    return [time / 10**8 for time in times_ns]


# ---- by hand, in tenths of a second


@pytest.mark.parametrize(
    ("costs", "steps", "max_lag", "epochs", "generated", "done"),
    [
        # publish 2 and sync 1 + 1; then generate 3 + score 1 + update 7 + publish 2 + sync 2 = 15 each; nobody loads
        # the last version.
        ({}, 4, 0, 1, [7, 22, 37, 52], [19, 34, 49, 62]),
        # 3 + 1 + 7 * 8 + 2 + 2 = 64
        ({}, 3, 0, 8, [7, 71, 135], [68, 132, 194]),
        # Batch 1 with the same weights. Scored 8; update and publish until 17. From then on the Learner is never
        # without a batch: 7 + 2 a step. Batch b starts when version b - 1 is there: sync 2 + generate 3.
        ({}, 5, 1, 1, [7, 10, 22, 31, 40], [17, 26, 35, 44, 53]),
        # 4 + 13 = 17; 30 (nothing newer yet: version 1 comes at 18 + 9 = 27, while it generates); then with a sync
        # each: 45, 60. Each is trained on 1 + 7 + 2 = 10 after that, and the Learner waits in between.
        ({"generate": "1.3"}, 4, 1, 1, [17, 30, 45, 60], [27, 40, 55, 70]),
        # With version 0 three times; batch 3 needs version 1, from 17 on: 17 + 2 + 3; batch 4 version 2, from 26 on.
        ({}, 5, 2, 1, [7, 10, 13, 22, 31], [17, 26, 35, 44, 53]),
    ],
)
def test_the_arithmetic_is_right(
    costs: Costs, steps: int, max_lag: int, epochs: int, generated: list[int], done: list[int]
) -> None:
    seen = check(costs, steps, max_lag, epochs)
    assert tenths(seen.ends(Stage.GENERATE)) == generated
    assert tenths(seen.story.done_ns) == done


def test_replay_takes_no_time_of_its_own() -> None:
    replay = ReplaySettings(capacity=3, max_age=4, sampling="newest", sample_groups=2)
    for max_lag in (0, 1, 2):
        check({}, 6, max_lag, 2, replay=replay)


def test_in_flight_loads_beside_generating() -> None:
    seen = simulate({"generate": "1.7"}, lag_control="in_flight")
    # Weights 2 to 4, then 17 each without a pause: 21, 38, 55. Trained on 1 + 7 + 2 after: 31, 48, 65.
    assert tenths(seen.ends(Stage.GENERATE)) == [21, 38, 55]
    assert tenths(seen.story.done_ns) == [31, 48, 65]
    # transfer 1 + load 1 after version 0 (2), 1 (31) and 2 (48)
    assert tenths(seen.ends(Stage.WEIGHT_LOAD)) == [4, 33, 50]


def test_an_optimizer_step_waits_for_a_publish_that_takes_longer() -> None:
    costs = {"generate": "0.1", "publish": "1.0", "update": "0.5"}
    seen = check(costs, 3, 2, epochs=2, overlapped=True)
    # Published 10; sync 2, generate 1, score 1. From 14: passes of 5, the first of which needs no version; later ones
    # begin with 5 beside the publish of 10, wait for 5, and go on for 5: a step takes 15.
    updates = [(start * 10, end * 10) for start, end, _ in seen.of("update")]
    assert updates == [(14, 19), (19, 24), (24, 29), (34, 39), (39, 44), (49, 54)]
    waits = [(start * 10, end * 10) for _, start, end in seen.waits("learner")]
    assert waits == [(10, 14), (29, 34), (44, 49), (54, 64)]


def test_generators_side_by_side_wait_for_one_scorer() -> None:
    seen = simulate({}, generators=3, max_lag=0)
    # All generate from 4 to 7; scored one after the other; update 17, publish 19, sync 21: a step of 17, the last
    # without its sync.
    assert tenths(seen.ends(Stage.SCORE))[:3] == [8, 9, 10]
    assert tenths(seen.story.done_ns) == [21, 38, 53]


# ---- at length


def test_thousands_of_steps_later_no_nanosecond_is_lost() -> None:
    check(dict(zip(USUAL, ("0.1", "0.3", "0.7", "0.001", "0.0003", "0.0001"), strict=True)), 3_000, 2)


def test_costs_that_are_no_decimals_do_not_drift() -> None:
    third, steps = 1 / 3, 3_000
    stages = {"generate": [third], "score": [third], "update": third, "publish": third}
    seen = simulate_run(steps=steps, max_lag=0, batch_prompts=lambda step: (0,), **stages)
    exact = Fraction(third) * (1 + 4 * steps)  # a publish, then generate, score, update and publish each
    assert abs(Fraction(seen.seconds) - exact) <= exact / 10**12
    gaps_ns = [abs(ns - Fraction(third) * (5 + 4 * step) * 10**9) for step, ns in enumerate(seen.story.done_ns)]
    assert max(gaps_ns) < 1


# ---- any costs


@settings(max_examples=200, deadline=None)
@given(
    costs=st.fixed_dictionaries(dict.fromkeys(USUAL, st.integers(1, 40).map(lambda number: f"{number / 10}"))),
    steps=st.integers(1, 9),
    max_lag=st.integers(0, 3),
    epochs=st.integers(1, 3),
    overlapped=st.booleans(),
)
def test_any_constant_costs_give_what_arithmetic_says(
    costs: Costs, steps: int, max_lag: int, epochs: int, overlapped: bool
) -> None:
    try:
        check(costs, steps, max_lag, epochs, overlapped and max_lag > 0)
    except Tie:
        reject()


@settings(max_examples=100, deadline=None)
@given(data=st.data(), steps=st.integers(1, 5), generators=st.integers(1, 3))
def test_a_shorter_stage_never_makes_a_synchronous_run_longer(data: st.DataObject, steps: int, generators: int) -> None:
    def seconds(tables: Mapping[str, list[int]]) -> float:
        costs: dict[str, Any] = {
            name: lambda step, table=table: table[step] / 10  # type: ignore[misc]
            for name, table in tables.items()
        }
        costs |= {"generate": [costs["generate"]] * generators, "load": [costs["load"]] * generators}
        return simulate_run(steps=steps, max_lag=0, **(costs | {"score": [costs["score"]]})).seconds

    tables = {name: data.draw(st.lists(st.integers(0, 30), min_size=steps + 1, max_size=steps + 1)) for name in USUAL}
    stage, step = data.draw(st.sampled_from(list(USUAL))), data.draw(st.integers(0, steps))
    shorter = {name: list(table) for name, table in tables.items()}
    shorter[stage][step] = data.draw(st.integers(0, tables[stage][step]))
    assert seconds(shorter) <= seconds(tables)
