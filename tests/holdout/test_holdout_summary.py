"""From arms to tiers, verdicts, tables and the guard, against arithmetic by hand."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import pytest

from tests.holdout.plan import TierPlan
from tests.holdout.report import as_markdown, in_page, stage_table, tier_table
from tests.holdout.summary import (
    ArmScore,
    Compared,
    Counted,
    Document,
    Lags,
    Ranking,
    coverage,
    lag_distance,
    load_document,
    noise_floor,
    ranking,
    tau_between_repeats,
    tier_score,
)
from tests.holdout.verdicts import became_worse, falls_short, ranking_verdict

PLAN = TierPlan(what="settings between those that were fitted", arms=("a", "b"), bound=0.05)


def compared(repeats: tuple[float, ...], value: float, reach: float = 0.05) -> Compared:
    return Compared(repeats=repeats, value=value, low=value - reach, high=value + reach)


def arm(name: str, tier: str, repeats: tuple[float, ...], value: float, update: float, closed: float) -> ArmScore:
    """An arm whose step is ``update`` seconds of update (measured 0.5), 0.2 s of generate and 0.01 s of score."""
    return ArmScore(
        tier=tier,
        arm=name,
        step=compared(repeats, value),
        stages={
            "generate": compared((0.2, 0.2), 0.2),
            "score": compared((0.01, 0.01), 0.03),
            "update": compared((0.5, 0.5), update),
        },
        idle={"learner": compared((0.4, 0.4), 0.45)},
        throughput=compared((100 / repeats[0], 100 / repeats[1]), 100 / value),
        waste=compared((0.0, 0.0), 0.0),
        lags=Lags(measured={0: 0.5, 1: 0.5}, predicted={0: 1.0}),
        closed_form_s=closed,
    )


ARM_A = arm("a", "inside", (1.0, 1.0), 1.02, 0.55, closed=1.01)
ARM_B = arm("b", "inside", (1.9, 2.1), 1.88, 0.60, closed=2.02)


def document(*arms: ArmScore, bound: float = 0.05) -> Document:
    plan = PLAN.model_copy(update={"bound": bound})
    return Document(
        chosen="2026-11-21",
        fitted=("calibration/20261121-210042",),
        held_out=("holdout/20261121-210342",),
        machine="0123456789ab",
        draws=39,
        seed=0,
        coverage_bounds=(0.8, 0.97),
        stage_bound=0.1,
        arms=arms,
        tiers=(tier_score("inside", plan, arms),),
        ranking=ranking(arms, 0.8),
        changes=(),
    )


def test_a_tier_is_summed_up() -> None:
    tier = tier_score("inside", PLAN, [ARM_A, ARM_B])
    # step: 1.02 / 1 and 1.88 / 2: 2% and 6%, in the middle 4%
    assert tier.error == pytest.approx(0.04)
    # update: 0.55 / 0.5 and 0.60 / 0.5: 10% and 20%; generate is exact; score is 1% and 0.5% of the step
    assert tier.stages == pytest.approx({"generate": 0.0, "update": 0.15})
    assert tier.worst_stage == "update"
    # repeats: a has no spread; b lies 0.05 from its mean twice: of 0, 0, 0.05, 0.05 the middle
    assert tier.floor == pytest.approx(0.025)
    # step intervals: a 0.97 to 1.07 holds both repeats, b 1.83 to 1.93 holds 1.9 alone
    assert (tier.coverage.inside, tier.coverage.of) == (3, 4)
    # stages of both arms: generate 0.15 to 0.25 holds all 4; update of a begins at 0.5, which is inside, of b at 0.55
    assert (tier.stage_coverage.inside, tier.stage_coverage.of) == (6, 8)
    assert tier.closed_form == pytest.approx(0.01)  # 1.01 / 1 and 2.02 / 2


def test_what_falls_short_is_said() -> None:
    # Wilson's 95% interval of 3 of 4 is 0.30 to 0.95, of 6 of 8 0.41 to 0.93: 80% to 97% is not ruled out
    assert falls_short(document(ARM_A, ARM_B)) == [
        "inside: update",
        "inside: coverage of step time (so few values cannot tell)",
        "inside: coverage of stages (so few values cannot tell)",
    ]
    assert falls_short(document(ARM_A, ARM_B, bound=0.03))[0] == "inside: step time"


def test_the_ranking_is_judged() -> None:
    found = document(ARM_A, ARM_B)
    assert (found.ranking.tau, found.ranking.repeats) == (1.0, 1.0)  # a is faster, in each repeat and by prediction
    swapped = found.model_copy(update={"ranking": Ranking(tau=0.6, bound=0.8, repeats=None)})
    assert ranking_verdict(swapped).startswith("Ranking by step time FALLS SHORT OF its bound: Kendall's tau 0.60")
    assert falls_short(swapped)[-1] == "ranking"


def test_the_tables_show_what_missed() -> None:
    found = document(ARM_A, ARM_B)
    row = ("inside", "a, b", "4.0%", "5%", "2.5%", "update 15.0% *", "3/4 *", "6/8 *", "1.0% *")
    assert tier_table(found).rows == (row,)
    # shares: 0.2 of 1 and of 2 s, 0.5 of 1 and of 2 s; score is always small, and named in a note
    assert stage_table(found).header == ("arm", "tier", "generate", "update")
    assert stage_table(found).rows == (
        ("a", "inside", "+0.0% (20%)", "+10.0% (50%)"),
        ("b", "inside", "+0.0% (10%)", "+20.0% (25%)"),
    )
    assert "score (at most 1.0% of a step)" in stage_table(found).notes[1]


def test_the_page_is_made_of_the_saved_document_alone(tmp_path: Path) -> None:
    (tmp_path / "holdout.json").write_text(document(ARM_A, ARM_B).as_json())
    found = load_document(tmp_path / "holdout.json")
    assert found.tiers[0].stages["update"] == 0.15  # six digits: it was 0.15000000000000002
    page = as_markdown(found)
    assert "**What falls short of its bound: inside: update; " in page
    # predicted 1.02 [0.97, 1.07]; the predicted lags are all 0, half of the measured ones 1: moved by half a version
    assert (
        "| a | inside | 1.000 1.000 | 1.000 | 1.020 \\[0.970, 1.070\\] | +2.0% | 0.50 | 0.00 / 0.50 | 0.0% / 0.0% |"
        in page
    )
    assert "45.0% / 40.0% (+5.0)" in page
    with pytest.raises(ValueError, match="`<!-- begin"):
        in_page("a page without marks", found)


def test_the_guard_lets_noise_pass_and_stops_what_is_worse() -> None:
    kept = document(ARM_A, ARM_B)
    assert became_worse(kept, kept) == []
    # the error of 4% may become 5%: one point is more than 5% of it
    slightly = document(ARM_A.model_copy(update={"step": compared((1.0, 1.0), 1.039)}), ARM_B)
    assert slightly.tiers[0].error == pytest.approx(0.0495)
    assert became_worse(slightly, kept) == []
    worse = document(ARM_A.model_copy(update={"step": compared((1.0, 1.0), 1.042, reach=0.06)}), ARM_B)
    assert became_worse(worse, kept) == ["inside: step time is off by 5.1%, and was by 4.0%"]
    better = document(ARM_A, ARM_B.model_copy(update={"step": compared((1.9, 2.1), 2.0, reach=0.2)}))
    assert became_worse(better, kept) == []


def test_the_guard_looks_at_stages_coverage_ranking_and_missing_tiers() -> None:
    kept = document(ARM_A, ARM_B)
    slower = ARM_A.model_copy(update={"stages": ARM_A.stages | {"update": compared((0.5, 0.5), 0.58, reach=0.09)}})
    # update: 16% and 20% after 10% and 20%: 18% after 15%
    assert became_worse(document(slower, ARM_B), kept) == ["inside: update is off by 18.0%, and was by 15.0%"]
    tier = kept.tiers[0].model_copy(update={"coverage": Counted(inside=1, of=4)})
    found = became_worse(kept.model_copy(update={"tiers": (tier,)}), kept)
    assert found == ["inside: measured values inside the intervals of step time are 25.0%, and were 75.0%"]
    lower = kept.model_copy(update={"ranking": Ranking(tau=0.9, bound=0.8, repeats=None)})
    assert became_worse(lower, kept) == ["Kendall's tau is 0.900, and was 1.000"]
    assert became_worse(kept.model_copy(update={"tiers": ()}), kept) == ["inside: the tier is gone"]


def test_the_noise_floor_is_what_a_perfect_predictor_would_show() -> None:
    # three repeats: 0.9, 1.0, 1.1 lie 0.1, 0 and 0.1 from their mean 1; over sqrt(2): 0.0707, 0, 0.0707
    assert noise_floor([[0.9, 1.0, 1.1]]) == pytest.approx(0.1 / sqrt(2))
    # two repeats: 1.9 and 2.1 each lie 0.05 from their mean 2; over sqrt(1)
    assert noise_floor([[1.9, 2.1]]) == pytest.approx(0.05)
    # of 0, 0.05, 0.05, 0.0707 and 0.0707 the middle one
    assert noise_floor([[0.9, 1.0, 1.1], [1.9, 2.1]]) == pytest.approx(0.05)
    assert noise_floor([[1.0], [2.0]]) is None


def test_a_value_on_the_end_of_an_interval_is_inside() -> None:
    figure = Compared(repeats=(0.9, 1.0, 1.1, 1.1001, 0.8), value=1.0, low=0.9, high=1.1)
    assert coverage([figure]) == Counted(inside=3, of=5)


def test_lag_distance_counts_versions_to_move() -> None:
    assert lag_distance({0: 1.0}, {1: 1.0}) == 1.0  # everything by one version
    assert lag_distance({0: 1.0}, {3: 1.0}) == 3.0
    assert lag_distance({0: 0.5, 2: 0.5}, {1: 1.0}) == 1.0  # half by one up, half by one down
    assert lag_distance({0: 0.25, 1: 0.75}, {1: 1.0}) == 0.25
    assert lag_distance({0: 2, 1: 6}, {0: 0.25, 1: 0.75}) == 0.0  # counts and shares alike


def test_noise_alone_upsets_a_ranking() -> None:
    assert tau_between_repeats([[1.0, 1.1], [2.0, 2.1], [3.0, 3.1]]) == 1.0
    # two arms, the second repeat the other way round: each repeat against the other one is -1
    assert tau_between_repeats([[1.0, 2.0], [2.0, 1.0]]) == -1.0
    assert tau_between_repeats([[1.0], [2.0]]) is None
