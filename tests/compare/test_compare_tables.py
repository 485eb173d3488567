"""Tables of an experiment, from runs with known numbers: stages, processes, outcome, overview, and the arms' names."""

import pytest

from harness.compare import numbers
from harness.compare.experiment import arm_labels, gather, member_of
from harness.compare.stats.intervals import Interval
from harness.core.trace import Stage
from harness.core.types import Metric
from harness.loop import Count, RolloutCounts
from harness.report.tables import (
    off_policy_table,
    outcome_table,
    overview_table,
    process_table,
    ranged,
    stage_table,
    window_words,
)
from harness.results.frames import read_table
from tests.compare.recorded import only_experiment
from tests.messages import facts
from tests.stand_ins.members import made_experiment, made_run

FOUR_PASSES = (
    ("generator", Stage.GENERATE, 0.3),
    ("scorer", Stage.SCORE, 0.1),
    ("learner", Stage.OLD_LOGPROBS, 0.12),
    ("learner", Stage.UPDATE, 1.0),
    ("generator", Stage.WEIGHT_LOAD, 0.1),
)


@pytest.fixture
def two_arms(make_run, tmp_path):
    """k1 with a step of 1 s and k4 with one of 1.62 s; both evaluated first and last, 1 s each."""

    def metrics(clip_fraction):
        every = {"grad_norm": Metric(0.5), "perf/throughput_total": Metric(1234.5)}
        return lambda step: {"clip_fraction": Metric(clip_fraction, count=500)} | every

    make_run(arm="k1", evaluations={0: (0.25, 12.0), 4: (0.55, 18.0)}, metrics=metrics(0.0))
    more = {"stages": FOUR_PASSES, "metrics": metrics(0.08), "optimizer_steps": 4}
    make_run(arm="k4", evaluations={0: (0.25, 12.0), 4: (0.61, 24.0)}, **more)
    return only_experiment(tmp_path / "results")


def test_the_stage_table(two_arms):
    table = stage_table(two_arms)
    assert table.header == ("stage", "k1", "k4")
    # the last two steps, with an evaluation of 1 s. k1: 2 + 1 = 3 s; k4: 2 * 1.62 + 1 = 4.24 s. Shares: 0.6 / 3, ...
    assert table.rows == (
        ("generate", "0.300  20.0%", "0.300  14.2%"),
        ("score", "0.100   6.7%", "0.100   4.7%"),
        ("old_logprobs", "-", "0.120   5.7%"),
        ("update", "0.500  33.3%", "1.00  47.2%"),
        ("weight_load", "0.100   6.7%", "0.100   4.7%"),
        ("evaluate (1 of 2 steps)", "0.500  33.3%", "0.500  23.6%"),
        ("all stages", "1.50 100.0%", "2.12 100.0%"),
        ("whole step", "1.50 100.0%", "2.12 100.0%"),
        ("median of single steps, p10 to p90", "1.50, 1.10 to 1.90", "2.12, 1.72 to 2.52"),
    )
    assert "steps 2 to 3 of 4 (left out: 2 warm-up)" in table.notes[0]
    # a stage of four in five steps counts as one of every step
    for ran, name in (([1.0, 1.0, 1.0, 1.0, 0.0], "score"), ([1.0, 1.0, 1.0, 0.0], "score (3 of 4 steps)")):
        table = stage_table(made_experiment(made_run(steps=len(ran), wall_s=2.0, stages_s={"score": ran})))
        assert table.rows[0][0] == name


def test_the_outcome_table(two_arms):
    table = outcome_table(two_arms)
    assert table.rows == (
        ("status", "completed", "completed"),
        ("validation reward, first", "0.250", "0.250"),
        ("validation reward, best", "0.550", "0.610"),
        ("  at step", "4", "4"),
        ("validation reward, last", "0.550", "0.610"),
        ("response length, first, tokens", "12.0", "12.0"),
        ("response length, last, tokens", "18.0", "24.0"),
        ("seconds to the reward target", "6.00", "8.48"),
        ("  at step", "4", "4"),
        ("clip fraction, mean", "0.000", "0.080"),
        ("gradient norm, median", "0.500", "0.500"),
        ("gradient norm, 95th percentile", "0.500", "0.500"),
        # k1: 2 * 0.6, 2 * 0.9 + 1 and 2 * 0.5 + 1 of 3 s; k4: 2 * 1.22, 2 * 1.52 + 1 and 2 * 0.5 + 1 of 4.24 s
        ("idle, Generator", "40.0%", "57.5%"),
        ("idle, Scorer", "93.3%", "95.3%"),
        ("idle, Learner", "66.7%", "47.2%"),
        ("training steps", "4", "4"),
        ("optimizer steps", "4", "16"),
        ("generated tokens per second", "1,234", "1,234"),
        ("start-up, seconds", "2.00", "2.00"),
        ("loop, seconds", "6.00", "8.48"),
    )
    assert facts(table.notes[0]) == "256 0.031 0 1"  # 0.5 / sqrt(256) = 0.03125


def test_seeds_are_shown_as_mean_and_range(make_run, tmp_path):
    """The third seed stays below the reward target, and the others have no spans."""
    for seed, reward in enumerate((0.5, 0.6, 0.4)):
        made = make_run(
            point={"seed": seed}, seed=seed, stages=[("learner", Stage.UPDATE, 1.0 + 0.5 * seed)],
            evaluations={0: (0.25, 12.0), 4: (reward, 13.0)},
        )  # fmt: skip
        if seed < 2:
            (made.folder / "spans.jsonl").unlink()
    experiment = only_experiment(tmp_path / "results")
    outcome, stages = outcome_table(experiment), stage_table(experiment)
    rows = dict((*outcome.rows, *stages.rows))
    assert rows["validation reward, last"] == "0.500 [0.400, 0.600]"
    assert rows["validation reward, first"] == "0.250"
    # loops of 4 * 1 + 2 = 6 s, 4 * 1.5 + 2 = 8 s and 10 s
    assert rows["seconds to the reward target"] == "7.00 [6.00, 8.00] (2 of 3)"
    assert rows["loop, seconds"] == "8.00 [6.00, 10.0]"
    # the last two of four steps, with an evaluation of 1 s: shares of 2 / 3, 3 / 4 and 4 / 5, mean 73.9%
    assert rows["update"] == "1.50 [1.00, 2.00]  73.9%"
    assert facts(stages.notes[-1]) == "3"
    for notes in (process_table(experiment).notes, outcome.notes[-1:]):  # idle time
        assert [facts(note) for note in notes] == ["1 3"]


def test_which_steps_the_figures_are_of():
    for runs, words in (
        (["-,-,-,-"], "steps 0 to 3 of 4"),
        (["w,w,-,-"], "steps 2 to 3 of 4 (left out: 2 warm-up)"),
        (["w,w,p,-"], "step 3 of 4 (left out: 2 warm-up, 1 profiled)"),
        (["w,wp,p,-"], "step 3 of 4 (left out: 1 warm-up, 2 profiled)"),
        (["w,w,w,p"], "steps 0 to 3 of 4, all of them warm-up or profiled"),
        (["w,w,-,-,-", "w,w,w,-,-"], "2 to 3 steps of each run (left out: 2 to 3 warm-up)"),
    ):
        flags = [text.split(",") for text in runs]
        assert window_words([made_run(steps=len(own), flags=own) for own in flags]) == words


def test_the_process_table(make_run, tmp_path):
    spans = make_run(gap_s=0.25).folder / "spans.jsonl"
    # the last two steps, of 1 s and a gap of 0.25 s each: 2.5 s, of which 0.5 s (20%) under no span
    assert process_table(only_experiment(tmp_path / "results")).rows == (
        ("sync_k", "generator", "2.50", "32.0%", "48.0%", "20.00%"),
        ("sync_k", "scorer", "2.50", "8.0%", "72.0%", "20.00%"),
        ("sync_k", "learner", "2.50", "40.0%", "40.0%", "20.00%"),
    )
    spans.unlink()
    table = process_table(only_experiment(tmp_path / "results"))
    assert (table.rows, len(table.notes)) == ((), 1)


def test_unfinished_runs_are_shown_with_what_they_have(make_run, tmp_path):
    ends = {"k1": (4, "completed"), "k2": (2, "interrupted"), "k4": (1, "failed"), "k8": (3, "killed")}
    for arm, (steps, status) in ends.items():
        make_run(arm=arm, steps=steps, status=status)
    experiment = only_experiment(tmp_path / "results")
    assert outcome_table(experiment).rows[0] == (
        "status", "completed", "interrupted at step 2 of 4", "failed at step 1 of 4", "did not finish at step 3 of 4",
    )  # fmt: skip
    assert overview_table([experiment]).rows[0][3] == "1 completed, 1 interrupted, 1 failed, 1 did not finish"


def test_experiments_are_told_apart_and_come_oldest_first(make_run, tmp_path):
    late = {"experiment": "20261122-000000", "started_at": "2026-11-22T00:00:00.000Z"}
    make_run(scenario="late", evaluations={4: (0.5, 9.0)}, **late)
    for arm, reward in (("k10", 0.2), ("k2", 0.4)):
        make_run(arm=arm, evaluations={4: (reward, 9.0)})
    experiments, _ = gather([tmp_path / "results", tmp_path / "results" / "late"])  # overlapping paths count once
    assert overview_table(experiments).rows == (
        ("sync_k", "20261120-111500", "2", "4", "1.50", "0.200 to 0.400"),
        ("late", "20261122-000000", "1", "4", "1.50", "0.500"),
    )
    assert [*experiments[0].arms] == ["k2", "k10"]  # started together: by number


def test_arms_stand_in_the_order_of_the_scenario_whichever_ran_first():
    members = [
        made_run(arm, seed, position=position, started_at=f"2026-11-20T11:{minute:02}:00.000Z")
        for arm, seed, position, minute in (("b", 1, 3, 1), ("a", 0, 0, 2), ("c", 0, 2, 0), ("b", 0, 1, 3))
    ]
    seeds = {arm: [each.manifest.seed for each in runs] for arm, runs in made_experiment(*members).arms.items()}
    assert [*seeds.items()] == [("a", [0]), ("b", [0, 1]), ("c", [0])]


def test_sweep_points_get_short_names_where_they_are_clear():
    points = [("a", {"optimizer.learning_rate": 0.1, "seed": 1}), (None, {"optimizer.learning_rate": 0.2})]
    assert arm_labels(points, "x") == ["a, learning_rate=0.1", "learning_rate=0.2"]
    clash = [(None, {"loss.type": "a", "task.type": "b", "seed": 0})]
    assert [*arm_labels(clash, "x"), *arm_labels([(None, {"seed": 3})], "x")] == ["loss.type=a, task.type=b", "x"]


def test_figures_have_about_three_digits_and_a_range_that_is_not_to_be_seen_is_one():
    values = (0.0, 0.00042, 0.31, 0.9996, 1.215, -2.5, 31.23, 99.96, 1234.5, float("nan"))
    texts = ["0.000", "4.2e-04", "0.310", "1.00", "1.22", "-2.50", "31.2", "100", "1,234", "nan"]
    assert list(map(numbers.number, values)) == texts
    assert ranged(Interval(0.5001, 0.5, 0.5002), numbers.reward, 3, 3) == "0.500"
    assert ranged(Interval(0.5, 0.4, 0.6), numbers.reward, 2, 3) == "0.500 [0.400, 0.600] (2 of 3)"
    assert ranged(None, numbers.reward, 0, 3) == "-"


# ---- lag, dropping, replay and idle time


def test_lag_and_waste(lag_arms):
    three_arms = only_experiment(lag_arms)
    table = off_policy_table(three_arms)
    assert table.header == ("", "a_wait", "b_drop", "c_replay")
    # lag 1 in all but the first of 8 steps: 7 / 8; half of it with lags (0, 1); (0 + 0), (1 + 1), (1 + 2), 5 * (1 + 3)
    # over 16 groups: 25 / 16 = 1.5625
    assert table.rows == (
        ("lag, mean, versions", "0.875", "0.438", "1.56"),
        ("lag, highest, versions", "1", "1", "3"),
        ("held back by the lag bound, seconds", "1.20", "-", "1.20"),  # 0.2 s before each of batches 2 to 7
        ("dropped, share of generated rollouts", "0.0%", "15.0%", "0.0%"),  # 6 of 40
        ("length of a generated rollout, tokens", "10.0", "12.0", "10.0"),  # 320 / 32, 480 / 40
        ("length of a dropped rollout, tokens", "-", "25.0", "-"),  # 150 / 6
        ("length of a trained rollout, tokens", "10.0", "10.0", "10.0"),  # 320 / 32
        ("never trained on, share of generated rollouts", "0.0%", "5.0%", "25.0%"),  # 40 - 6 - 32 = 2, 32 - 24 = 8
        ("groups held, mean", "-", "-", "5.50"),  # (0 + 2 + 4 + 6 + 4 * 8) / 8
        ("groups drawn for a step, mean", "-", "-", "2.00"),
        ("uses of a group that was drawn, mean", "-", "-", "1.33"),  # (24 + 8) / 24
        ("uses of a group, highest", "-", "-", "2"),
        ("age of a group when drawn, mean, versions", "-", "-", "1.56"),  # as the lag
        ("age of a group when drawn, highest, versions", "-", "-", "3"),
        ("groups that made room for newer ones", "-", "-", "14"),  # 2 * 7
        ("groups that became too old", "-", "-", "0"),
        ("groups that left and were never drawn", "-", "-", "3"),
    )
    idle = {row[0]: row[1:] for row in outcome_table(three_arms).rows if row[0].startswith("idle")}
    assert idle == {
        "idle, Generator": ("20.0%",) * 3, "idle, Scorer": ("90.0%",) * 3, "idle, Learner": ("20.0%",) * 3,
    }  # fmt: skip


def test_a_run_that_did_not_end_is_shown_without_its_ledger_and_a_synchronous_one_not_at_all(make_lagged_run):
    (cut,), _ = gather([make_lagged_run(settings="lag_control: drop\n", ledger=None).folder])
    table = off_policy_table(cut)
    assert [row[0] for row in table.rows] == ["lag, mean, versions", "lag, highest, versions"]
    (synchronous,), _ = gather([make_lagged_run(arm="sync", max_lag=0, lag=(0, 0)).folder])
    assert off_policy_table(synchronous) is None


def test_what_dynamic_sampling_discarded(make_lagged_run):
    ledger = RolloutCounts(Count(100, 800), trained=Count(64, 500), discarded=Count(36, 300))
    figures = member_of(read_table(make_lagged_run(flat=True, discarded=(), ledger=ledger).folder)).figures
    assert (figures["discarded_share"], figures["mean/zero_variance_fraction"]) == (0.36, 0.5)


def test_replaced_parts_are_counted(make_lagged_run):
    manifest = make_lagged_run().folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"replaced": {}', '"replaced": {"generator": 2, "scorer": 1}'))
    experiment = only_experiment(manifest.parent)
    assert ("parts replaced", "3") in outcome_table(experiment).rows
