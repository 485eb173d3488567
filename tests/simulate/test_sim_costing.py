"""Seconds of single stages, from a profile's coefficients and what is drawn around them."""

import math
from statistics import fmean

import pytest

from harness.core.errors import UserError
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.cost_model import CostModel, Draw
from harness.simulate.machine import Correction, Device, MachineProfile, StageCost, load_machine

SCENARIO = Scenario(model={"type": "preset", "preset": "tiny", "threads": 1})


def costing(*stages, draw=None, model="tiny", allow=(), scenario=SCENARIO, run_correlation=0.5):
    profile = MachineProfile(
        name="toy",
        made="2026-11-21",
        device=Device(name="toy"),
        sources=("by hand",),
        stages=stages,
        run_correlation=run_correlation,
    )
    return CostModel(scenario, profile, draw, model=model, allow=allow)


def update(**more):
    return StageCost(stage="update", seconds={"call": 0.5, "position_gflop": 0.25}, **more)


WORK = {"call": 1.0, "position_gflop": 6.0, "logit_gb": 3.0}  # 0.5 + 1.5 s; nobody has priced the logits


def test_seconds_are_the_sum_over_the_terms():
    assert costing(update()).seconds("update", "learner", 0, WORK) == 2.0


def test_a_measured_model_has_its_own_factor_and_another_one_is_said():
    cost = update(models={"small": Correction(factor=1.5)})
    known = costing(cost, model="small")
    assert known.seconds("update", "learner", 0, WORK) == 3.0
    assert known.extrapolating == ()
    unseen = costing(cost, model="course")
    assert unseen.seconds("update", "learner", 0, WORK) == 2.0
    assert unseen.extrapolating == ("update: course was not measured (small were)",)


def test_the_cost_that_names_most_circumstances_is_taken():
    exact = StageCost(stage="call", where={"call": "load", "way": "there"}, seconds={"call": 0.25})
    vague = StageCost(stage="call", seconds={"call": 1.0})
    found = costing(vague, exact)
    assert found.seconds("call", "generator", 0, {"call": 1}, call="load", way="there") == 0.25
    assert found.seconds("call", "generator", 0, {"call": 1}, call="load", way="back") == 1.0


def test_units_beyond_the_range_are_said_once_with_the_farthest():
    found = costing(update(ranges={"position_gflop": (2.0, 8.0), "call": (1.0, 1.0)}))
    for units in (3.0, 9.0, 11.5, 10.0, 1.0):
        found.seconds("update", "learner", 0, {"call": 1, "position_gflop": units})
    assert found.extrapolating == (
        "update: 11.5 units of position gflop are more than the 2 to 8 that were measured",
        "update: 1 units of position gflop are fewer than the 2 to 8 that were measured",
    )


def test_a_cost_that_serves_several_circumstances_remembers_all_of_them():
    found = costing(StageCost(stage="call", seconds={"call": 0.1, "response": 0.1}, ranges={"response": (0.0, 9.0)}))
    for way, responses in (("there", 12), ("back", 4)):
        found.seconds("call", "generator", 0, {"call": 1, "response": responses}, call="load", way=way)
    assert found.extrapolating == ("call: 12 units of response are more than the 0 to 9 that were measured",)


def test_stages_that_may_be_missing_are_free_and_said():
    found = costing(update())
    assert found.seconds("record", "driver", 0, WORK) == 0.0
    assert found.extrapolating == ("record: the profile toy has no cost of it, so it takes no time",)
    with pytest.raises(UserError, match="the profile toy has no cost of generate; it has update"):
        found.seconds("generate", "generator", 0, WORK)


def test_another_circumstance_is_refused_with_both_values_and_taken_where_allowed():
    fast = update(where={"threads": "4", "precision": "float32"})
    with pytest.raises(UserError) as refused:
        costing(fast).seconds("update", "learner", 0, WORK)
    assert "no cost of update for threads 1; it has precision float32, threads 4" in refused.value.what
    assert refused.value.fix == (
        "set model.threads=4, calibrate with runs that have it, take --machine xeon-2-cores, or take the nearest cost "
        "with --allow threads"
    )
    found = costing(fast, allow={"threads"})
    assert found.seconds("update", "learner", 0, WORK) == 2.0
    assert found.extrapolating == ("update: the profile toy knows threads 4 in place of 1",)


def test_a_wrong_precision_is_set_for_both_parts_and_a_profile_that_fits_is_named():
    scenario = load_scenario("sync_k1", ["model.precision=float32", "engine.precision=float32"])
    costs = CostModel(scenario, load_machine("cpu-2-cores"), model="small")
    with pytest.raises(UserError) as refused:
        costs.seconds("update", "learner", 0, WORK)
    fix = str(refused.value.fix)
    assert fix.startswith("set engine.precision=bfloat16, model.precision=bfloat16, ")
    assert ", take --machine xeon-2-cores, " in fix


def test_central_prediction_has_no_noise():
    noisy = update(step_log_sd=0.5, run_log_sd=0.5, covariance=((0.01, 0.0), (0.0, 0.01)), unseen_log_sd=0.3)
    found = costing(noisy, model="course")
    assert [found.seconds("update", "learner", step, WORK) for step in range(3)] == [2.0, 2.0, 2.0]


def test_draws_keep_the_mean_and_vary_as_far_as_each_part_says():
    sd = {"step": 0.1, "run": 0.2, "model": 0.3}
    noisy = update(step_log_sd=sd["step"], run_log_sd=sd["run"], unseen_log_sd=sd["model"])
    draws = 3000
    seconds = [
        costing(noisy, draw=Draw(number), model="course").seconds("update", "learner", 0, WORK)
        for number in range(draws)
    ]
    # the product of three log-normal factors with mean 1: the logarithms' variances add up to 0.14
    log_sd = math.sqrt(sum(value**2 for value in sd.values()))
    spread = math.sqrt(math.exp(log_sd**2) - 1)
    assert fmean(seconds) == pytest.approx(2.0, abs=5 * 2.0 * spread / math.sqrt(draws))
    logs = [math.log(value / 2.0) for value in seconds]
    found = math.sqrt(fmean(value**2 for value in logs) - fmean(logs) ** 2)
    assert found == pytest.approx(log_sd, abs=5 * log_sd / math.sqrt(2 * draws))


def test_lanes_have_their_own_step_noise_and_share_the_run():
    noisy = update(step_log_sd=0.1, run_log_sd=0.2)
    found = costing(noisy, draw=Draw(1))
    one, other = (found.seconds("update", lane, 0, WORK) for lane in ("generator0", "generator1"))
    assert one != other
    alone = costing(update(run_log_sd=0.2), draw=Draw(1))
    assert len({alone.seconds("update", lane, step, WORK) for lane in ("a", "b") for step in (0, 1)}) == 1
