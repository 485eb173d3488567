"""How often the comparison errs, on simulated noise whose truth is known; all: ``tests/benchmarks/verdict_rates.py``.

Seeds were chosen once. Where a rate has a bound, the exact binomial test at that bound must give more than ``HARDLY``
= 1e-6, so that a right implementation passes with any seed but one in a million.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from harness.compare.stats.verdicts import Verdict, side_of_limit
from harness.results.warmup import steady_from
from tests.stand_ins.binomial import at_least
from tests.stand_ins.noise import NoiseModel
from tests.stand_ins.simulated_verdicts import (
    KINDS,
    SHARES,
    judge_experiment,
    judge_occasions,
    judge_step,
    log_ratio,
    shifted,
    staged_log_ratios,
    step_log_ratios,
)

NOISE = NoiseModel()
HARDLY = 1e-6
DOCS = Path(__file__).parents[2] / "docs"


def at_most(hits, trials, share):
    """Whether so many hits are no evidence of a rate above ``share``."""
    return at_least(hits, trials, share) > HARDLY


def test_the_interval_holds_the_truth_in_93_percent_whatever_the_noise():
    trials, missed = 300, []
    for place, kind in enumerate(KINDS):
        blocks = (6, 12)[place % 2]
        values = step_log_ratios(KINDS[kind], np.random.default_rng([41, blocks]), trials, blocks)
        if not at_most(sum(judge_step(each).shows for each in values), trials, 0.07):
            missed.append(kind)
    assert missed == []


@pytest.mark.parametrize(("arms", "kind"), [(2, "launches, sd 3%"), (8, "AR(1) 0.25 from block to block")])
def test_like_arms_and_stages_have_any_difference_in_five_percent_of_experiments(kind, arms):
    trials = 150
    experiments = staged_log_ratios(KINDS[kind], np.random.default_rng([43, arms]), trials, 10, arms)
    called = rejected = 0
    for log_ratios in experiments:
        effects = [effect for side in judge_experiment(log_ratios) for effect in side]
        called += any(effect.verdict is Verdict.DIFFERENT for effect in effects)
        rejected += any(effect.p_adjusted is not None and effect.p_adjusted <= 0.05 for effect in effects)
    assert at_most(called, trials, 0.05)
    assert at_most(rejected, trials, 0.05)


def test_a_delayed_stage_is_named_with_its_interval_and_the_others_are_not():
    # 14 blocks, a fifth of stage time: named in 99% of 4,000 experiments; 90% of 120 lies ten standard errors away
    trials, named, covered, others_called = 120, 0, 0, 0
    experiments = staged_log_ratios(KINDS["launches, sd 3%"], np.random.default_rng(45), trials, 14, 2)
    for trial, log_ratios in enumerate(experiments):
        delayed = trial % len(SHARES)
        log_ratios[0, 1 + delayed] += np.log(1.2)
        _, stages = judge_experiment(log_ratios)
        found = stages.pop(delayed)
        named += found.verdict is Verdict.DIFFERENT
        covered += found.low is not None and found.high is not None and found.low <= 1.2 <= found.high
        others_called += any(stage.verdict is Verdict.DIFFERENT for stage in stages)
    assert named >= 0.9 * trials
    assert at_most(trials - covered, trials, 0.07)
    assert at_most(others_called, trials, 0.05)


def test_the_smallest_effect_is_called_different_in_four_of_five_experiments():
    # Each experiment prints what its own spread and correlation say; the truth has one. At the mean of what they print
    # 77 to 93% were different (1,500 experiments of 6, 10 and 20 blocks): more where the threshold is what binds.
    values = np.random.default_rng(46).normal(0, 0.03, (500, 10))
    shown = [judge_step(each).minimum_effect for each in values]
    typical = float(np.mean([each for each in shown if each is not None]))
    called = np.mean([judge_step(each).verdict is Verdict.DIFFERENT for each in shifted(values, typical)])
    assert 0.7 <= called <= 0.95


def test_a_baseline_of_several_occasions_is_itself_and_sees_fifteen_percent_where_they_spread_by_two():
    for occasions in (3, 5):
        effects = judge_occasions(np.random.default_rng([48, occasions]), 300, occasions, 0.02, change=0.0)
        assert at_most(sum(effect.verdict is Verdict.DIFFERENT for effect in effects), 300, 0.05)
    # 98% of 4,000 experiments; 90% of 300 lies ten standard errors away
    effects = judge_occasions(np.random.default_rng(49), 300, 5, 0.02, 0.15)
    assert sum(effect.verdict is Verdict.DIFFERENT for effect in effects) >= 270
    effects = judge_occasions(np.random.default_rng(50), 20, 1, 0.02, 0.15)
    assert {effect.verdict for effect in effects} == {Verdict.INCONCLUSIVE}


@pytest.mark.parametrize("kind", ["launches, sd 3%", "AR(1) 0.95 from step to step"])
def test_the_side_of_a_gates_limit_is_wrong_in_the_stated_share(kind):
    # the old gate said worse in 9 to 10% at a true +3% and a limit of 5%
    trials = 500
    values = step_log_ratios(KINDS[kind], np.random.default_rng(51), trials, 10)
    worse = sum(side_of_limit(judge_step(each), 0.05) == "above" for each in shifted(values, 0.03))
    fine = sum(side_of_limit(judge_step(each), 0.05) == "below" for each in shifted(values, 0.06))
    assert at_most(worse, trials, 0.05)
    assert at_most(fine, trials, 0.02)


@pytest.mark.slow
def test_cutting_each_arms_warm_up_by_its_own_times_raises_no_alarms():
    # the cut looks at the times, so it could favour an arm; pairs are of the steps that both arms kept
    generator = np.random.default_rng(47)
    trials = 600
    times = np.exp(NOISE.with_own_noise(generator, NOISE.alternated(generator, trials, blocks=6, steps=14)))

    def kept(seconds):
        first = steady_from(seconds.tolist()).steps
        return {step: float(seconds[step]) for step in range(first, len(seconds))}

    made = [[log_ratio(kept(a), kept(b), alternated=True) for a, b in trial] for trial in times]
    effects = [judge_step([ratio for ratio in ratios if ratio is not None]) for ratios in made]
    assert at_most(sum(effect.shows for effect in effects), trials, 0.07)


# ---- measured rates, and the page that shows them


def test_the_recorded_step_seconds_of_like_arms_give_the_committed_rates():
    recorded, committed = (
        json.loads((DOCS / f"measured/noise_{name}.json").read_text()) for name in ("step_seconds", "rates")
    )
    pairs = [[dict(enumerate(block[arm])) for arm in ("one", "again")] for block in recorded["blocks"]]
    ratios = [log_ratio(one, again, alternated=True) for one, again in pairs]
    assert ratios == pytest.approx(committed["log_ratios"]["noise_step_seconds"])
    for line, every in zip(committed["rates"], (10, 1), strict=False):  # disjoint experiments, then all windows
        effects = [judge_step(ratios[at : at + 10]) for at in range(0, len(ratios) - 9, every)]
        shown = [sum(effect.shows for effect in effects), len(effects)]
        assert shown == [line["excludes"]["hits"], line["excludes"]["trials"]]
        different = sum(effect.verdict is Verdict.DIFFERENT for effect in effects)
        assert different == line["different"]["hits"]


def test_the_page_shows_the_measured_rates():
    page = " ".join((DOCS / "measuring.md").read_text().split())
    rows = {
        table["name"]: table["rows"]
        for table in json.loads((DOCS / "measured/verdict_rates.json").read_text())["tables"]
    }

    def rates(table, *begins):
        """Of the rows that begin so, in order."""
        own = [row for row in rows[table] if tuple(row[: len(begins)]) == begins]
        return [cell["hits"] / cell["trials"] for row in own for cell in row if isinstance(cell, dict)]

    alarms, coverage = [row[3]["hits"] / row[3]["trials"] for row in rows["family"]], rates("coverage")
    worse = [rates("gate", "launches, sd 3%", "10", change)[0] for change in ("+0%", "+5%", "+10%", "+15%")]
    one, three, five = (rates("occasions", occasions, "1%")[1:3] for occasions in ("1", "3", "5"))
    assert (worse[0], one) == (0.0, [0.0, 0.0])
    for shown in (
        f"in {min(alarms):.1%} to {max(alarms):.1%} of experiments",
        f"| {min(coverage):.1%} to {max(coverage):.1%}; below 95% only where blocks correlate by 0.5 |",
        f"{worse[1]:.1%} at +5%, {worse[2]:.0%} at +10%, {worse[3]:.0%} at +15%",
        f"in {five[0]:.0%} and {five[1]:.0%} (with three occasions {three[0]:.0%} and {three[1]:.0%};",
    ):
        assert shown in page
