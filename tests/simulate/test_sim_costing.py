"""Seconds of single stages, from a profile's coefficients and from draws around them that are named."""

import math
from statistics import fmean, stdev

import numpy as np
import pytest

from harness.core.errors import UserError
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.cost_model import CostModel, Draw, StepNoise, run_factor
from harness.simulate.machine import Correction, StageCost, load_machine
from tests.simulate.conftest import cost, made

SCENARIO = Scenario(model={"type": "preset", "preset": "tiny", "threads": 1})


def costing(*stages, draw=None, model="tiny", allow=()):
    return CostModel(SCENARIO, made(*stages), draw, model=model, allow=allow)


def update(**more):
    return StageCost(stage="update", seconds={"call": 0.5, "position_gflop": 0.25}, **more)


WORK = {"call": 1.0, "position_gflop": 6.0, "logit_gb": 3.0}  # 0.5 + 1.5 s; nobody has priced the logits


def test_seconds_are_the_sum_over_the_terms_times_the_factor_of_a_measured_model_and_another_one_is_said():
    price = update(models={"small": Correction(factor=1.5)})
    known = costing(price, model="small")
    assert known.seconds("update", "learner", 0, WORK) == 3.0
    assert known.extrapolating == ()
    unseen = costing(price, model="course")
    assert unseen.seconds("update", "learner", 0, WORK) == 2.0
    assert unseen.extrapolating == ("update: course was not measured (small were)",)


def test_units_beyond_the_range_are_said_once_with_the_farthest():
    found = costing(update(ranges={"position_gflop": (2.0, 8.0), "call": (1.0, 1.0)}))
    for units in (3.0, 9.0, 11.5, 10.0, 1.0):
        found.seconds("update", "learner", 0, {"call": 1, "position_gflop": units})
    assert found.extrapolating == (
        "update: 11.5 units of position gflop are more than the 2 to 8 that were measured",
        "update: 1 units of position gflop are fewer than the 2 to 8 that were measured",
    )


def test_a_cost_that_serves_several_circumstances_remembers_all_of_them():
    several = cost("call", call=0.1, response=0.1).model_copy(update={"ranges": {"response": (0.0, 9.0)}})
    exact = cost("call", {"way": "aside"}, call=0.25)
    found = costing(several, exact)
    for way, responses in (("there", 12), ("back", 4)):
        found.seconds("call", "generator", 0, {"call": 1, "response": responses}, call="load", way=way)
    assert found.seconds("call", "generator", 0, {"call": 1}, call="load", way="aside") == 0.25
    assert found.extrapolating == ("call: 12 units of response are more than the 0 to 9 that were measured",)


def test_stages_that_may_be_missing_are_free_and_said():
    found = costing(update())
    assert found.seconds("record", "driver", 0, WORK) == 0.0
    assert found.extrapolating == ("record: the profile by hand has no cost of it, so it takes no time",)
    with pytest.raises(UserError, match="by hand has no cost of generate; it has update"):
        found.seconds("generate", "generator", 0, WORK)


def test_another_circumstance_is_refused_with_both_values_and_taken_where_allowed():
    fast = update(where={"threads": "4", "precision": "float32"})
    with pytest.raises(UserError) as refused:
        costing(fast).seconds("update", "learner", 0, WORK)
    assert "no cost of update for threads 1; it has precision float32, threads 4" in refused.value.what
    fix = str(refused.value.fix)
    assert all(way in fix for way in ("model.threads=4", "--machine xeon-2-cores", "--allow threads"))
    found = costing(fast, allow={"threads"})
    assert found.seconds("update", "learner", 0, WORK) == 2.0
    assert found.extrapolating == ("update: the profile by hand knows threads 4 in place of 1",)


def test_a_wrong_precision_is_set_for_both_parts_and_a_profile_that_fits_is_named():
    scenario = load_scenario("sync_k1", ["model.precision=float32", "engine.precision=float32"])
    costs = CostModel(scenario, load_machine("cpu-2-cores"), model="small")
    with pytest.raises(UserError) as refused:
        costs.seconds("update", "learner", 0, WORK)
    fix = str(refused.value.fix)
    assert fix.startswith("set engine.precision=bfloat16, model.precision=bfloat16, ")
    assert ", take --machine xeon-2-cores, " in fix


def test_a_draw_has_its_name_and_none_has_no_noise():
    noisy = update(step_log_sd=0.5, run_log_sd=0.5, covariance=((0.01, 0.0), (0.0, 0.01)), unseen_log_sd=0.3)
    found = costing(noisy, model="course")
    assert [found.seconds("update", "learner", step, WORK) for step in range(3)] == [2.0, 2.0, 2.0]
    drawn = [Draw(number, seed).normal(name) for number in (1, 2, 1) for seed in (0, 1) for name in ("a", "b")]
    assert (len(set(drawn)), drawn[:4]) == (8, drawn[8:])


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


MANY = 4000


def logs(factors, log_sd):
    """Undo exp(s x - s^2 / 2)."""
    return [(math.log(factor) + log_sd**2 / 2) / log_sd for factor in factors]


def test_step_noise_has_the_spread_and_the_correlation_of_its_process():
    log_sd, correlation = 0.2, 0.6
    noise = StepNoise(Draw(5), log_sd, correlation, "update")
    x = np.array(logs([noise.next() for _ in range(MANY)], log_sd))
    # an AR(1) process has an effective number of n (1 - r) / (1 + r) independent values for its mean
    effective = MANY * (1 - correlation) / (1 + correlation)
    assert x.mean() == pytest.approx(0, abs=5 / math.sqrt(effective))
    # the variance of the sample variance of such a process is 2 / n x (1 + r^2) / (1 - r^2)
    sd_of_variance = math.sqrt(2 / MANY * (1 + correlation**2) / (1 - correlation**2))
    assert x.var() == pytest.approx(1, abs=5 * sd_of_variance)
    # Bartlett: the standard error of the correlation of neighbours is sqrt((1 - r^2) / n)
    found = np.corrcoef(x[1:], x[:-1])[0, 1]
    assert found == pytest.approx(correlation, abs=5 * math.sqrt((1 - correlation**2) / MANY))
    still = StepNoise(Draw(1), 0.0, 0.5, "update")
    assert [still.next() for _ in range(3)] == [1.0, 1.0, 1.0]


def test_run_effects_of_two_stages_share_the_machine():
    shared = 0.3
    generate, update = (
        np.array(logs([run_factor(Draw(number), 0.1, shared, name) for number in range(MANY)], 0.1))
        for name in ("generate", "update")
    )
    assert generate.mean() == pytest.approx(0, abs=5 / math.sqrt(MANY))
    assert generate.std() == pytest.approx(1, abs=5 / math.sqrt(2 * MANY))
    # the standard error of a correlation r of n pairs is (1 - r^2) / sqrt(n)
    assert np.corrcoef(generate, update)[0, 1] == pytest.approx(shared, abs=5 * (1 - shared**2) / math.sqrt(MANY))
    assert run_factor(Draw(1), 0.0, shared, "update") == 1.0


def test_coefficients_follow_their_covariance():
    means, covariance = [10.0, 20.0], [[4.0, -3.0], [-3.0, 9.0]]
    drawn = np.array([Draw(number).coefficients(means, covariance, "update") for number in range(MANY)])
    for column, (mean, sd) in enumerate([(10, 2), (20, 3)]):
        assert drawn[:, column].mean() == pytest.approx(mean, abs=5 * sd / math.sqrt(MANY))
        assert stdev(drawn[:, column]) == pytest.approx(sd, abs=5 * sd / math.sqrt(2 * MANY))
    # -3 / (2 x 3)
    assert np.corrcoef(drawn.T)[0, 1] == pytest.approx(-0.5, abs=5 * (1 - 0.25) / math.sqrt(MANY))
    cut = [Draw(number).coefficients([0.0], [[1.0]], "update")[0] for number in range(200)]
    assert min(cut) == 0.0  # half of the draws: 100, five standard deviations of sqrt(200 / 4) = 7.1
    assert sum(value == 0.0 for value in cut) == pytest.approx(100, abs=36)
