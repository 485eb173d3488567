"""What was unequal between two arms, said first, and what is left without it: ten pairs of known truth."""

import json
from functools import cache
from math import exp, log, sqrt

import numpy as np
import pytest

from harness.cli import main
from harness.compare.fairness import BESIDE, NO_OVERLAP, NO_TOKENS
from harness.compare.judging import direction, fair_direction, judge_against, judgements
from harness.compare.lengths import Steps, at_matched_lengths, explained, per_token
from harness.compare.occasions import Baseline
from harness.compare.remarks import remarks_of
from harness.compare.stats.estimates import Estimate, of_blocks
from harness.compare.stats.intervals import t_quantile
from harness.core.types import Metric
from harness.report.as_json import comparison
from harness.report.tables import comparison_table, verdict_table
from tests.messages import facts
from tests.stand_ins.binomial import at_least
from tests.stand_ins.fair_pairs import PAIRS, VERSIONS, Arm, pair_of
from tests.stand_ins.members import lanes, made_experiment, made_run


@cache
def judged_pair(name):
    experiment = PAIRS[name]()
    (judged,) = judgements(experiment)
    return experiment, judged


def answer_of(experiment, judged):
    return [each for each in remarks_of(experiment, [judged]) if each.kind == "answer"]


LONGER = "responses 15% longer, as fast per token"
TOLD = {
    # the kinds that were unequal; what the step alone says, what is said; at equal work; the share that this explains
    "equal": ([], "same", "same", None, False),
    LONGER: (["length", "tokens"], "slower", "cannot tell", "same", True),
    "other threads": (["threads"], "cannot tell", "cannot tell", None, False),
    "half of the steps evaluated": (["evaluations"], "slower", "cannot tell", "same", True),
    "5% faster": ([], "faster", "faster", None, False),
    "other versions": (["versions"], "cannot tell", "cannot tell", None, False),
    "lengths that do not overlap": (["length", "tokens"], "slower", "cannot tell", "cannot tell", False),
    "one run a side, responses 15% longer": (
        ["length", "tokens"], "cannot tell", "cannot tell", "cannot tell", False,
    ),
    "a slow warm-up on one side": (["warm_up"], "cannot tell", "cannot tell", None, False),
    "another machine": (["machine"], "cannot tell", "cannot tell", None, False),
}  # fmt: skip


def test_every_pair_is_in_the_table():
    assert list(TOLD) == list(PAIRS)


@pytest.mark.parametrize("name", TOLD)
def test_what_a_pair_is_told(name):
    experiment, judged = judged_pair(name)
    kinds, of_step, said, at_equal_work, has_share = TOLD[name]
    fairness, answer = judged.fairness, answer_of(experiment, judged)
    assert [item.kind for item in fairness.accidents] == [item.kind for item in fairness.unequal] == kinds
    assert (direction(judged.step), fair_direction(judged)) == (of_step, said)
    assert (fairness.equal_work and direction(fairness.equal_work)) == at_equal_work
    assert (fairness.share is not None) == has_share
    assert answer[0].key == ("unequal" if kinds else "answer")
    assert len(answer) <= 6
    words = " ".join(each.text for each in answer if each.key == "answer").replace(
        "Cannot tell whether b is faster", ""
    )
    assert [word for word in ("faster", "slower") if word in words.split()] == [said] * (said in ("faster", "slower"))


def test_longer_responses_have_their_ratio_per_token_and_the_share_that_length_explains():
    """15% more tokens: 0.3 s and 0.704 s become 0.3 s and 0.81 s, 10.5% more a step and 1.105 / 1.15 per token."""
    experiment, judged = judged_pair(LONGER)
    fairness = judged.fairness
    length, tokens = fairness.unequal
    assert (length.ratio, tokens.ratio) == (pytest.approx(1.15, rel=0.01),) * 2
    assert judged.step.ratio == pytest.approx(1.105, rel=0.01)
    assert fairness.per_token.ratio == pytest.approx(1.105 / 1.15, rel=0.01)
    assert fairness.equal_work.low < 1 < fairness.equal_work.high
    assert (fairness.share.low < 1 < fairness.share.high, fairness.taken_out) == (True, ("length",))
    assert fairness.share.value == pytest.approx(1, abs=0.05)
    unequal, _, left = answer_of(experiment, judged)
    assert facts(unequal.text) == f"{length.base:.1f} {length.other:.1f} {100 * (length.ratio - 1):.1f}"
    assert f"{100 * (fairness.per_token.ratio - 1):+.1f}%" in left.text
    assert f"explains {100 * fairness.share.value:.0f}% of the gap" in left.text


def test_evaluations_are_taken_out_where_one_arm_had_more():
    """Half of the steps with 0.5 s more: a quarter of a step of 1 s, which the evaluations explain."""
    _, judged = judged_pair("half of the steps evaluated")
    (item,), fairness = judged.fairness.unequal, judged.fairness
    assert (item.base, item.other) == (0.0, pytest.approx(0.5, abs=0.02))
    assert (judged.step.ratio, fairness.equal_work.ratio) == (
        pytest.approx(1.25, abs=0.02),
        pytest.approx(1.0, abs=0.01),
    )
    assert (fairness.taken_out, fairness.per_token) == (("evaluations",), None)
    assert fairness.share.value == pytest.approx(1, abs=0.05)


def evaluated(seconds, settings=lambda arm: {}):
    """Eight blocks of steps of 1 s, in which b was evaluated in every second step."""
    every = np.array([0.0, seconds] * 6)
    members = [
        made_run(
            arm, block, 12, block=block, wall_s=(1 + 0.001 * (block % 3)) + every * (arm == "b"),
            stages_s={"evaluate": every * (arm == "b")}, settings=settings(arm),
            started_at=f"2026-11-20T11:15:{block:02}.000Z",
        )
        for block in range(8)
        for arm in "ab"
    ]  # fmt: skip
    (judged,) = judgements(made_experiment(*members))
    return judged


def test_evaluations_that_cost_nothing_are_no_matter_and_those_that_were_asked_for_are_left_in():
    assert evaluated(0.01).fairness.unequal == ()  # 5 ms of a step of 1 s
    assert [item.kind for item in evaluated(0.04).fairness.accidents] == ["evaluations"]
    asked = evaluated(0.4, lambda arm: {"evaluation": {"every": "ab".index(arm) + 1}})
    assert [(item.kind, item.on_purpose) for item in asked.fairness.unequal] == [("evaluations", True)]
    assert (asked.fairness.equal_work, fair_direction(asked)) == (None, "slower")


def test_a_step_that_is_slower_for_its_work_alone_is_so_in_tables_too():
    experiment, judged = judged_pair(LONGER)
    rows = {row[0]: row for row in comparison_table(experiment, [judged]).rows}
    assert (rows["whole step"][-1], rows["update"][-1]) == ("unequal work", "slower")
    assert verdict_table(judged).rows[0][-1] == "unequal work"


def test_several_occasions_of_a_baseline_have_a_verdict_at_equal_work():
    """Four occasions of six blocks, and a new one of responses 30% longer, as fast per token."""

    def occasion(day, longer):
        length = 10.0 * longer * (1 + 0.5 * np.arange(12) / 12)
        runs = [
            made_run(
                "a", block, 12, block=block, experiment=f"202611{day}-111500", wall_s=0.1 * length * (1 + 0.002 * day),
                metrics={"response_tokens": 64 * length, "response_length": length}, settings={"steps": 12},
                started_at=f"2026-11-{day}T11:15:{block:02}.000Z",
            )
            for block in range(6)
        ]  # fmt: skip
        return made_experiment(*runs)

    baseline = Baseline(tuple(occasion(day, 1.0) for day in (10, 12, 11, 13)))
    (judged,) = judge_against(baseline, occasion(14, 1.3), 0.03, ())
    fairness = judged.fairness
    assert (direction(judged.step), direction(fairness.equal_work), fair_direction(judged)) == (
        "slower",
        "same",
        "cannot tell",
    )
    assert fairness.equal_work.ratio == pytest.approx(1.028 / 1.023, abs=1e-4)  # of days 14 and 11.5
    assert fairness.share.value == pytest.approx(1, abs=0.05)


def test_lengths_that_do_not_overlap_and_one_run_a_side_cannot_tell_what_length_explains():
    experiment, judged = judged_pair("lengths that do not overlap")
    assert judged.fairness.equal_work.ratio is None
    assert NO_OVERLAP in answer_of(experiment, judged)[-1].text
    assert judged.fairness.per_token.ratio == pytest.approx((0.3 + 1.056) / 1.004 / 1.5, rel=0.01)
    experiment, judged = judged_pair("one run a side, responses 15% longer")
    fairness = judged.fairness
    assert (fairness.smallest, fairness.blocks_needed, fairness.share) == (None, None, None)
    assert (fairness.equal_work.low, fairness.equal_work.ratio) == (None, pytest.approx(1.0, abs=0.03))
    assert "Cannot tell b from a" in answer_of(experiment, judged)[1].text
    assert "one run each" in answer_of(experiment, judged)[1].text


def test_the_smallest_effect_and_the_blocks_that_it_takes_are_given():
    _, judged = judged_pair("equal")
    seen = judged.step.minimum_effect
    assert judged.fairness.smallest == seen
    assert judged.fairness.blocks_needed == np.ceil(10 * (np.log1p(seen) / np.log1p(0.03)) ** 2)
    (few,) = judgements(pair_of(Arm(), blocks=4))
    assert few.fairness.smallest is None  # no verdict below six
    assert few.fairness.blocks_needed >= 6


def test_what_arms_ask_for_is_on_purpose():
    """Twice the responses a step, evaluations of one alone and other threads, by the arms' own settings."""
    members = []
    for block in range(8):
        for name, size in (("a", 1), ("b", 2)):
            threads = size
            settings = {"rollout_batch_size": 64 * size, "evaluation": {"every": size}, "model": {"threads": threads}}
            pinned = {"placement": {"learner": {"cpus": size}}, "sampling": {"max_tokens": 32}}
            noise = 1 + 0.002 * ((block + size) % 3)
            members.append(
                made_run(name, block, 12, block=block, threads=threads, wall_s=size * noise, settings=settings | pinned,
                         metrics={"response_tokens": [700.0 * size] * 12, "response_length": [11.0] * 12},
                         started_at=f"2026-11-20T11:15:{block:02}.000Z")
            )  # fmt: skip
    experiment = made_experiment(*members)
    (judged,) = judgements(experiment)
    assert [item.kind for item in judged.fairness.unequal] == ["threads", "placement", "tokens"]
    assert judged.fairness.accidents == ()
    assert fair_direction(judged) == "slower"  # as was asked for
    assert judged.fairness.per_token.ratio == pytest.approx(1.0, abs=0.01)
    assert [each.key for each in answer_of(experiment, judged)] == ["answer", "equal_work"]


def test_lanes_of_recorded_runs_and_a_start_that_could_not_be_left_out_are_unequal():
    other = lanes(4.0, 4.0, 2.0, 2.0, {}, learner=2.0, generator=2.0)
    recorded = {"outcome": {"recorded": {}}}
    one = made_run("a", times=lanes(4.0, 4.0, 4.0, 0.0, {}, learner=4.0), **recorded)
    two = made_run("b", times=other, figures={"slow_start": True}, **recorded)
    (judged,) = judgements(made_experiment(one, two))
    placement, start = judged.fairness.accidents
    assert (placement.kind, placement.base, placement.other) == ("placement", "1 lane", "2 lanes")
    assert (start.kind, start.base, start.other) == ("slow_start", 0.0, 1.0)


@pytest.mark.parametrize(("settings", "metric", "why"), [
    ({"max_lag": 0}, {"response_length": 10.0}, NO_TOKENS),
    ({"max_lag": 1}, {}, BESIDE),
])  # fmt: skip
def test_what_cannot_be_taken_out_is_said(settings, metric, why):
    """Longer responses in logs without tokens; evaluations of an asynchronous arm, which ran beside its steps."""
    members = [
        made_run(
            arm, block, 12, block=block, wall_s=1.0 + 0.5 * more, settings=settings,
            stages_s={} if metric else {"evaluate": [0.5 * more] * 12},
            metrics={name: [value * (1 + more)] * 12 for name, value in metric.items()},
            started_at=f"2026-11-20T11:15:{block:02}.000Z",
        )
        for block in range(6)
        for arm, more in (("a", 0), ("b", 1))
    ]  # fmt: skip
    experiment = made_experiment(*members)
    (judged,) = judgements(experiment)
    assert (judged.fairness.equal_work.reason, judged.fairness.share) == (why, None)
    assert (direction(judged.step), fair_direction(judged)) == ("slower", "cannot tell")
    assert answer_of(experiment, judged)[-1].text.endswith(f"cannot tell ({why}).")


def test_a_program_reads_the_same():
    experiment, judged = judged_pair(LONGER)
    (found,) = json.loads(json.dumps(comparison([experiment], [])))["campaigns"]
    fairness = found["verdicts"][0]["fairness"]
    assert [item["kind"] for item in fairness["unequal"]] == ["length", "tokens"]
    assert fairness["direction"] == "cannot tell"
    assert fairness["equal_work"]["verdict"] == "equivalent"
    assert fairness["share"]["value"] == judged.fairness.share.value
    assert found["findings"][0]["key"] == "unequal"
    assert found["verdicts"][0]["step"]["direction"] == "slower"  # on which a gate rests


def test_against_a_folder_of_another_day(make_run, tmp_path, capsys):
    """Other versions, accepted; 20% more tokens in steps that take 20% longer."""
    for place, (experiment, tokens, torch) in enumerate(
        (("20261120-111500", 700, "2.13.0"), ("20261121-111500", 840, "2.12.0"))
    ):
        make_run(
            experiment=experiment, steps=12, pace=lambda step, tokens=tokens: tokens / 700,
            metrics=lambda step, tokens=tokens: {"response_tokens": Metric(tokens + 20 * (step % 3), "sum")},
            versions=VERSIONS | {"torch": torch}, started_at=f"2026-11-2{place}T11:15:00.000Z",
        )  # fmt: skip
    old, new = (tmp_path / "results" / "sync_k" / name for name in ("20261120-111500", "20261121-111500"))
    assert main(["compare", str(new), "--against", str(old), "--allow-difference", "versions", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["campaigns"]
    fairness = found["verdicts"][0]["fairness"]
    assert [(item["kind"], item["on_purpose"]) for item in fairness["unequal"]] == [
        ("versions", True),
        ("tokens", False),
    ]
    assert fairness["per_token"]["ratio"] == pytest.approx(1.2 / (862 / 722))  # of steps 2 to 11
    assert main(["compare", str(new), "--against", str(old)]) == 0
    first, second, third = capsys.readouterr().out.splitlines()[1:4]
    assert first.startswith("Unequal versions: ")
    assert "torch 2.13.0" in first + second
    assert "response tokens per step" in second + third


def test_equal_arms_are_hardly_ever_called_faster():
    """40 pairs whose arms differ in length alone: per step most of those 15% shorter are faster, at equal work few."""
    noisy = Arm(noise=0.04, memory=0.8, own=0.05)
    shorter = Arm(noise=0.04, memory=0.8, own=0.05, longer=0.85)
    judged = [judgements(pair_of(shorter, 8, seed=seed, base=noisy))[0] for seed in range(40)]
    assert sum(direction(item.step) == "faster" for item in judged) >= 20
    wrong = sum(fair_direction(item) != "cannot tell" for item in judged)
    assert at_least(wrong, 40, 0.05) > 1e-6


# ---- seconds over tokens


def steps(length, seconds, aside_s=0.0):
    return Steps(*(np.array(each, dtype=np.float64) for each in (seconds, length, length)), aside_s)


def test_steps_of_equal_length_are_set_against_each_other():
    before = steps([10, 10, 20, 20], [1, 1, 3, 3])  # 0.1 and 0.15 s a token
    assert exp(at_matched_lengths(before, steps([20, 20, 40], [3.3, 3.3, 99]))) == pytest.approx(1.1)
    # weights 2 * 1 / 3 and 2 * 3 / 5: (0.6667 * 0.2 + 1.2 * 0.15) / (0.6667 * 0.1 + 1.2 * 0.15)
    assert exp(at_matched_lengths(before, steps([10, 20, 20, 20], [2, 3, 3, 3]))) == pytest.approx(1.27027, abs=1e-5)
    assert at_matched_lengths(before, steps([11, 30], [1, 3])) is None
    assert at_matched_lengths(before, steps([10] + [40] * 10, [1] * 11)) is None  # 1 of 11 steps: below a tenth
    assert at_matched_lengths(before, steps([], [])) is per_token(steps([], []), before) is None
    assert exp(per_token(before, steps([10, 20], [2, 4]))) == pytest.approx((6 / 30) / (8 / 60))


def test_seconds_of_an_evaluation_count_in_every_step_alike():
    """0.5 s a step beside 1 s for 10 tokens: 1.5 times as long, whichever step has it."""
    base, other = steps([10, 10], [1, 1]), steps([10, 10], [1, 1], aside_s=0.5)
    assert exp(at_matched_lengths(base, other)) == exp(per_token(base, other)) == pytest.approx(1.5)


def test_the_share_of_a_gap_with_fiellers_interval():
    def plain(values):
        return Estimate(
            float(np.mean(values)), len(values), float(np.std(values, ddof=1)) / sqrt(len(values)), len(values) - 1
        )

    gaps, rest = [0.20, 0.24, 0.18, 0.22, 0.26], [0.05, 0.02, 0.07, 0.03, 0.06]
    share = explained(gaps, rest, plain)
    assert share.value == pytest.approx(1 - 0.046 / 0.22)
    for end in (share.low, share.high):  # where the rest of it is told from 0 just so
        left = np.array(rest) - (1 - end) * np.array(gaps)
        assert abs(left.mean()) / (left.std(ddof=1) / sqrt(5)) == pytest.approx(t_quantile(0.975, 4))
    wider = explained(gaps, rest, of_blocks)  # whose neighbours may be alike
    assert wider is None or (wider.low < share.low and share.high < wider.high)
    assert explained(gaps, [gap / 2 for gap in gaps], plain).value == pytest.approx(0.5)
    assert explained([0.1, -0.1, 0.05, -0.04], [0.0] * 4, plain) is None  # there is no gap
    assert explained([log(1.2)], [0.0], of_blocks) is None
