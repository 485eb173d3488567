"""Forecasts and the figures that simulated and real runs have in common, by hand; intervals hold what they must."""

from __future__ import annotations

import math
from typing import Any

import pytest

from harness.core.trace import Span, Stage
from harness.loop import Count, RolloutCounts
from harness.results import StepRow
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.cost_model import Draw
from harness.simulate.forecast import (
    FEWEST_DRAWS,
    LANE_STAGES,
    closed_form,
    estimate,
    farthest,
    forecast,
    predicted,
    ratio,
)
from harness.simulate.machine import MachineProfile, load_machine
from harness.simulate.metrics import (
    idle_shares,
    lag_shares,
    metrics_of,
    step_time,
    sync_time,
    table_of_rows,
    waste_shares,
)
from tests.simulate.conftest import ABACUS

SMALL = (
    "steps=6", "rollout_batch_size=16", "group_size=4", "evaluation.every=6", "evaluation.prompts=4",
    "evaluation.examples=0", "transport.type=shared_memory", "placement.colocated=false",
)  # fmt: skip
PINNED = "sampling.pinned_lengths=[11, 11]"


def scenario(*changes: str) -> Scenario:
    return load_scenario("sync_k1", [*SMALL, *changes])


def noisy(stage: str, **spread: float) -> MachineProfile:
    machine = load_machine(ABACUS)
    stages = tuple(cost.model_copy(update=spread) if cost.stage == stage else cost for cost in machine.stages)
    return machine.model_copy(update={"stages": stages})


def test_a_synchronous_step_is_the_sum_of_its_stages() -> None:
    found = forecast(scenario(PINNED), load_machine(ABACUS), draws=FEWEST_DRAWS)
    # 11 tokens are 10 decode steps: 0.1; score 0.05, prepare 0.01, update 0.2, publish 0.02, transfer 0.01, load 0.03
    # of six steps four are measured, and the last of them has an evaluation: 0.1 + 0.05
    expected = 0.1 + 0.05 + 0.01 + 0.2 + 0.02 + 0.01 + 0.03 + 0.15 / 4
    assert (found.step_s.value, found.step_s.low, found.step_s.high) == pytest.approx((expected,) * 3, abs=1e-9)
    assert found.throughput.value == pytest.approx(16 * 11 / expected)
    assert found.stages_s["update"].value == pytest.approx(0.2, abs=1e-9)
    assert found.stages_s["generate"].value == pytest.approx(0.1, abs=1e-9)
    assert found.sync_s is not None
    assert found.sync_s.value == pytest.approx(0.02 + 0.01 + 0.03, abs=1e-9)
    assert {lag: share.value for lag, share in found.lags.items()} == {0: 1.0}
    assert found.extrapolating == ()


def test_one_version_behind_the_slower_lane_sets_the_pace() -> None:
    found = forecast(scenario(PINNED, "max_lag=1"), load_machine(ABACUS), draws=FEWEST_DRAWS)
    # the Learner: 0.01 + 0.2 + 0.02; the Generator: 0.1 + 0.01 + 0.03 and done long before. After the last of four
    # measured steps the Generator takes the last weights for an evaluation: 0.01 + 0.03 + 0.1 + 0.05
    assert found.step_s.value == pytest.approx(0.23 + 0.19 / 4, abs=1e-9)
    assert found.lags[1].value == pytest.approx(5 / 6)  # all batches but the first
    assert found.idle["learner"].value < found.idle["generator"].value


def test_dropped_and_unused_rollouts_are_shares_of_the_generated() -> None:
    changes = ("max_lag=1", "lag_control=drop", "epochs_per_batch=4", "loss.proximal=recompute")
    found = forecast(scenario(PINNED, *changes), load_machine(ABACUS), draws=1)
    assert found.waste["dropped"].value > 0.3  # the Generator is three times as fast as the Learner, and never waits
    lost = sum(found.waste[name].value for name in ("failed", "dropped", "unused"))
    rollouts = 6 * 16
    generated = rollouts / (1 - lost)
    assert generated == pytest.approx(round(generated))  # whole rollouts: the others were trained on


def test_recorded_lengths_differ_from_draw_to_draw_and_pinned_ones_do_not() -> None:
    for changes, draws, differ in (((), 8, True), (("sampling.pinned_lengths=[11, 21]",), 4, False)):
        found = forecast(scenario(*changes), load_machine(ABACUS), draws=draws)
        assert (len({measures.throughput for measures in found.each}) > 1) == differ
    # paired runs have the same lengths whatever the number of Generators
    tokens = []
    for count in (1, 2, 4):
        asked = scenario(f"placement.generator.count={count}")
        paired, _ = predicted(asked, load_machine(ABACUS), Draw(1, 0), paired=True)
        tokens.append(paired.throughput * paired.step_s)
    assert tokens[1:] == pytest.approx(tokens[:1] * 2)


def test_the_run_effect_is_that_of_each_draw() -> None:
    machine = noisy("update", run_log_sd=0.2)
    found = forecast(scenario(PINNED), machine, draws=FEWEST_DRAWS, seed=3)
    numbers = range(1, FEWEST_DRAWS + 1)
    worlds = sorted(predicted(scenario(PINNED), machine, Draw(number, 3))[0].step_s for number in numbers)
    # a step is 0.42 s, 0.2 of it the update: a run effect of sd 0.2 moves it by 0.04, in 19 draws by 0.01 at least
    assert worlds[-1] - worlds[0] > 0.01
    assert found.step_s.low == pytest.approx(worlds[0], abs=1e-8)  # of 19 draws: their range
    assert found.step_s.value == pytest.approx(worlds[9], abs=1e-8)
    assert found.step_s.high == pytest.approx(worlds[-1], abs=1e-8)
    assert found == forecast(scenario(PINNED), machine, draws=FEWEST_DRAWS, seed=3)
    assert found != forecast(scenario(PINNED), machine, draws=FEWEST_DRAWS, seed=4)


def test_plain_addition_takes_generators_side_by_side() -> None:
    machine = load_machine(ABACUS)
    plain = ("evaluation.every=6", PINNED)
    one, two = (closed_form(scenario(*plain, f"placement.generator.count={count}"), machine) for count in (1, 2))
    # the costs of the first test in turns: 0.42, and in one of four measured steps an evaluation of 0.1 + 0.05; each
    # Generator receives and loads 0.01 + 0.03, but those of the last version, which only one evaluates, in no step
    assert one == pytest.approx(0.42, abs=0.05)
    assert abs(two - one) < 0.06  # both would be 0.14 more
    assert closed_form(scenario(PINNED, "max_lag=1"), machine) == pytest.approx(0.23, abs=1e-9)  # the Learner alone


def test_an_unknown_speed_widens_seconds_and_no_ratio() -> None:
    machine = load_machine(ABACUS).model_copy(update={"occasion_log_sd": 0.2})
    assert not machine.speed_is_known
    one, k2 = (forecast(scenario(PINNED, *more), machine, FEWEST_DRAWS) for more in ((), ("epochs_per_batch=2",)))
    # 90% of factors exp(0.2 z - 0.02) are between 0.71 and 1.36; of 19 draws it is their range
    assert one.step_s.low / one.step_s.value < 0.8
    assert one.step_s.high / one.step_s.value > 1.2
    both = ratio(k2, one)
    assert both.low == pytest.approx(both.high, rel=1e-6)
    assert both.value == pytest.approx(k2.step_s.value / one.step_s.value, rel=1e-6)


def test_one_sentence_of_several_draws_is_kept_the_farthest() -> None:
    said = [
        "generate (threads 1): 56 units of row are fewer than the 60 to 124 that were measured",
        "generate (threads 1): 48 units of row are fewer than the 60 to 124 that were measured",
        "update: 1e+03 units of logit gb are more than the 2 to 5 that were measured",
        "update: 7.5 units of logit gb are more than the 2 to 5 that were measured",
        "generate (threads 2): 50 units of row are fewer than the 60 to 124 that were measured",
        "lengths: those of evaluations stand in for training",
    ]
    assert farthest([*said, said[-1]]) == (said[1], said[2], said[4], said[5])


def test_the_ends_are_order_statistics() -> None:
    nineteen = estimate([float(value) for value in range(1, 20)])
    assert (nineteen.low, nineteen.value, nineteen.high) == (1.0, 10.0, 19.0)  # k = 0.05 x 20 = 1
    many = estimate([float(value) for value in range(39, 0, -1)])
    assert (many.low, many.value, many.high) == (2.0, 20.0, 38.0)  # k = 2
    between = estimate([float(value) for value in range(1, 30)])
    assert (between.low, between.high) == (1.5, 28.5)  # k = 1.5
    # t_2 at 95% is 2.920 (any table); mean 2, s 1, sqrt(1 + 1/3): 2 +- 3.372, cut at 0
    few = estimate([1.0, 2.0, 3.0])
    assert (few.low, few.value) == (0.0, 2.0)
    assert few.high == pytest.approx(2 + 2.920 * math.sqrt(4 / 3), abs=1e-3)
    assert estimate([5.0, 5.0]).high == 5.0
    with pytest.raises(ValueError, match="no draws"):
        estimate([])
    with pytest.raises(ValueError, match="at least 1"):
        forecast(scenario(), load_machine(ABACUS), 0)


def row(
    step: int, wall_s: float, stages_s: dict[str, float], tokens: int = 0, elapsed_s: float = 0.0, **more: Any
) -> StepRow:
    metrics = {"response_tokens": {"sum": tokens, "count": 1}}
    return StepRow(step, step + 1, wall_s, elapsed_s, 1, {}, stages_s, metrics, **more)


ROWS = [
    row(0, 9.0, {"update": 8.0}, 7, warmup=True),
    row(1, 1.0, {"update": 0.4, "generate": 0.5}, 100),
    row(2, 5.0, {"update": 0.5, "evaluate": 4.0}, 100),
    row(3, 8.0, {"update": 7.0}, 100, profiled=True),
    row(4, 2.0, {"update": 0.8, "weight_load": 0.2}, 200),
]


def test_the_measured_window_counts_with_its_evaluations_or_all_steps_where_it_is_empty() -> None:
    table = table_of_rows(ROWS)
    found = metrics_of(table, [], None)  # of a run without spans; steps of 1, 5 and 2 s, 100 + 100 + 200 tokens
    assert (found.step_s, found.throughput, found.idle, found.waste, found.sync_s) == (8 / 3, 50.0, {}, {}, None)
    # a stage that two of three steps lack took 0 s in them
    expected = {"generate": 0.5 / 3, "update": 1.7 / 3, "weight_load": 0.2 / 3, "evaluate": 4 / 3}
    assert (found.stages_s, list(found.stages_s)) == (pytest.approx(expected), list(expected))
    assert step_time(table_of_rows([ROWS[0], ROWS[2]])) == 5.0
    assert step_time(table_of_rows([ROWS[0], ROWS[3]])) == 8.5


def test_lags_are_shares_of_all_rollouts_trained_on() -> None:
    rows = [row(0, 1, {}, lags={0: 64}, warmup=True), row(1, 1, {}, lags={0: 16, 1: 48})]
    assert lag_shares(table_of_rows(rows)) == {0: 80 / 128, 1: 48 / 128}
    assert lag_shares(table_of_rows([])) == {}


def test_waste_is_a_share_of_what_was_generated() -> None:
    counts = {"generated": 80, "failed": 8, "dropped": 16, "trained": 48, "discarded": 4}
    ledger = RolloutCounts(**{name: Count(count, 10 * count) for name, count in counts.items()})
    # unused: 80 - 8 - 16 - 48 - 4 = 4; of these 2 left the replay buffer
    found = waste_shares(ledger, evicted_unused=2)
    assert found == {"failed": 0.1, "discarded": 0.05, "dropped": 0.2, "unused": 0.05, "evicted_unused": 0.025}
    assert waste_shares(RolloutCounts(), 0) == dict.fromkeys(found, 0.0)


def span(lane: str, stage: Stage, start_s: float, end_s: float, version: int = 0) -> Span:
    return Span(lane, stage, round(start_s * 1e9), round(end_s * 1e9), 0, version)


def test_idle_is_the_mean_over_the_lanes_of_a_kind() -> None:
    spans = [
        span("generator0", Stage.GENERATE, 0, 10),
        span("generator1", Stage.GENERATE, 0, 5),
        span("generator1", Stage.WAIT_FOR_WEIGHTS, 5, 10),
        span("learner", Stage.WAIT_FOR_BATCH, 0, 8),
        span("learner", Stage.UPDATE, 8, 10),
    ]
    rows = [row(0, 5.0, {}, elapsed_s=5.0), row(1, 5.0, {}, elapsed_s=10.0)]
    assert idle_shares(table_of_rows(rows), spans) == {"generator": 0.25, "learner": 0.8}
    assert idle_shares(table_of_rows(rows), []) == {}
    warm = [row(0, 5.0, {}, elapsed_s=5.0, warmup=True), rows[1]]  # in the second half all but the last 2 s of one wait
    assert idle_shares(table_of_rows(warm), spans) == {"generator": 0.5, "learner": 0.6}


def test_a_sync_is_one_publish_one_transfer_and_one_load() -> None:
    spans = [
        span("learner", Stage.WEIGHT_PUBLISH, 0, 9, version=0),  # first use, left out
        span("learner", Stage.WEIGHT_PUBLISH, 10, 11, version=1),
        span("learner", Stage.WEIGHT_PUBLISH, 20, 23, version=2),
        span("generator0", Stage.WEIGHT_TRANSFER, 11, 11.5, version=1),
        span("generator0", Stage.WEIGHT_TRANSFER, 12, 12.5, version=1),  # in two pieces, which add up
        span("generator1", Stage.WEIGHT_TRANSFER, 11, 14, version=1),
        span("generator0", Stage.WEIGHT_LOAD, 13, 13.25, version=1),
    ]
    assert sync_time(spans) == pytest.approx(2.0 + 2.0 + 0.25)  # (1 + 3) / 2, (1 + 3) / 2, 0.25
    assert sync_time(spans[:1]) == 9.0  # nothing but a first one
    assert sync_time([]) is None


def test_every_stage_is_on_one_lane_on_two_or_on_none_that_is_asked_about():
    on_two, of_others = {Stage.WEIGHT_VERIFY, Stage.EVALUATE}, {Stage.CHECKPOINT_WRITE, Stage.OFFLOAD, Stage.ONLOAD}
    on_one = [stage for stages in LANE_STAGES.values() for stage in stages]
    every = [stage for stage in Stage if not stage.is_wait and stage is not Stage.STARTUP]
    assert sorted([*on_one, *on_two, *of_others]) == sorted(every)
