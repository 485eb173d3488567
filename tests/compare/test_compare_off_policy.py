"""Lag, dropping, replay and overlap: tables and sentences, word for word, from runs with known numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.compare import Experiment, gather
from harness.compare.caveats import caveats
from harness.compare.findings import findings, off_policy_findings
from harness.compare.replay import replay_table
from harness.compare.tables import off_policy_table, outcome_table
from harness.loop import Count, RolloutCounts
from harness.loop.replay import ReplayStats
from harness.results import RunFolder

Make = Callable[..., RunFolder]


def _experiment(tmp_path: Path) -> Experiment:
    (experiment,), damaged = gather([tmp_path / "results"])
    assert damaged == []
    return experiment


@pytest.fixture
def three_arms(make_lagged_run: Make, tmp_path: Path) -> Experiment:
    """A lag bound that waits, one that drops, and a replay buffer."""
    make_lagged_run(arm="a_wait")
    make_lagged_run(
        arm="b_drop",
        settings="lag_control: drop\n",
        lag=(0, 1),
        ledger=RolloutCounts(Count(40, 480), dropped=Count(6, 150), trained=Count(32, 320)),
    )
    make_lagged_run(
        arm="c_replay",
        settings="replay: {capacity: 8, sampling: uniform, max_uses: 2}\n",
        lag=(1, 3),
        ledger=RolloutCounts(Count(32, 320), trained=Count(24, 240), trained_again=Count(8, 80)),
        replay=lambda step: (
            ReplayStats(2 * step, evicted_full=2 * step, evicted_uses=step, evicted_unused=min(step, 3)),
            min(8, 2 * step),
        ),
        rewards=(0.2, 0.5),
    )
    return _experiment(tmp_path)


def test_the_table(three_arms: Experiment) -> None:
    table = off_policy_table(three_arms)
    assert table is not None
    assert table.header == ("figure", "a_wait", "b_drop", "c_replay")
    # lag 1 in all but the first of 8 steps: 7 / 8; half of it with lags (0, 1); (0 + 0), (1 + 1), (1 + 2), 5 * (1 + 3)
    # over 16 groups: 25 / 16 = 1.5625
    assert table.rows == (
        ("lag, mean, versions", "0.875", "0.438", "1.56"),
        ("lag, highest, versions", "1", "1", "3"),
        ("held back by the bound, seconds", "1.20", "-", "1.20"),  # 0.2 s before each of batches 2 to 7
        ("dropped, share of generated rollouts", "0.0%", "15.0%", "0.0%"),  # 6 of 40
        ("length of a generated rollout, tokens", "10.0", "12.0", "10.0"),  # 320 / 32, 480 / 40
        ("length of a dropped rollout, tokens", "-", "25.0", "-"),  # 150 / 6
        ("length of a trained rollout, tokens", "10.0", "10.0", "10.0"),  # 320 / 32
        ("never trained on, share of generated rollouts", "0.0%", "5.0%", "25.0%"),  # 40 - 6 - 32 = 2, 32 - 24 = 8
    )


def test_the_replay_table_is_of_the_arms_with_a_buffer(three_arms: Experiment) -> None:
    """Old code: three lines of the off-policy table; nothing of the rule, the highest values, or how groups left."""
    table = replay_table(three_arms)
    assert table is not None
    assert table.header == ("figure", "c_replay")
    assert table.rows == (
        ("capacity, groups", "8"),
        ("sampling", "uniform"),
        ("most uses allowed", "2"),
        ("groups held, mean", "5.50"),  # (0 + 2 + 4 + 6 + 4 * 8) / 8
        ("groups drawn for a step, mean", "2.00"),
        ("uses of a group that was drawn, mean", "1.33"),  # (24 + 8) / 24
        ("uses of a group, highest", "2"),
        ("age of a group when drawn, mean, versions", "1.56"),  # as the lag
        ("age of a group when drawn, highest, versions", "3"),
        ("groups that made room for newer ones", "14"),  # 2 * 7
        ("groups that became too old", "0"),
        ("groups that were used up", "7"),
        ("groups that left and were never drawn", "3"),
    )


def test_the_sentences(three_arms: Experiment) -> None:
    # Each second: Generator 0 to 0.8, Scorer 0.1 to 0.2, Learner 0.2 to 0.912 (publishing and verifying take 12 ms); in
    # the first one, whose sync takes five times as long, to 0.96: warm-up, like the second. Worked in the other six:
    # 6 * 0.9 + 6 * 0.712 = 9.672. Busy: 6 * 0.912 = 5.472, which is 4.2 less. Two at once: 6 * 0.7 = 4.2 s.
    overlap = (
        "the lanes worked 9.67 s in 6.00 s of the loop, at least two at once for 70.0% of it: 4.20 s less than one "
        "after the other, if stages took as long then; idle: Generator 20.0%, Scorer 90.0%, Learner 20.0%."
    )
    assert [finding.text for finding in off_policy_findings(three_arms)] == [
        "a_wait: the lag bound of 1 made a Generator wait before 6 of 6 batches, for 1.20 s (15.0% of the loop).",
        "b_drop: 15.0% of the generated rollouts were dropped as too old, 25.0 tokens long on average against 10.0 of "
        "those trained on.",
        "c_replay: the lag bound of 1 made a Generator wait before 6 of 6 batches, for 1.20 s (15.0% of the loop).",
        "c_replay: the replay buffer held 5.50 groups on average, of 8 at most, and a step drew 2.00 of them, each "
        "held group alike (uniform). They were 1.56 versions old on average, 3 at most. A group that was drawn was "
        "used 1.33 times on average, 2 at most. Of 21 groups that left, 14 made room for newer ones, 7 were used up; "
        "3 had never been drawn.",
        f"a_wait: {overlap}",
        f"b_drop: {overlap}",
        f"c_replay: {overlap}",
        "Mean lag in versions and last validation reward: a_wait 0.875 and 0.600; b_drop 0.438 and 0.600; "
        "c_replay 1.56 and 0.500.",
    ]


def test_a_bound_that_never_bit_and_nothing_dropped_are_said(make_lagged_run: Make, tmp_path: Path) -> None:
    make_lagged_run(arm="far", max_lag=7)  # batches 0 to 7 need no version but 0
    make_lagged_run(arm="drop", settings="lag_control: drop\n")
    said = [finding.text for finding in off_policy_findings(_experiment(tmp_path))]
    assert "far: the lag bound of 7 never made a Generator wait." in said
    assert "drop: no rollout became too old and was dropped." in said


def test_what_dynamic_sampling_discarded_is_said_in_one_line(make_lagged_run: Make, tmp_path: Path) -> None:
    make_lagged_run(arm="off", flat=False)
    ledger = RolloutCounts(Count(100, 800), trained=Count(64, 500), discarded=Count(36, 300))
    make_lagged_run(arm="on", flat=True, discarded=(), ledger=ledger)
    said = [finding.text for finding in findings(_experiment(tmp_path)) if finding.name == "dynamic_sampling"]
    assert said == [
        "on: dynamic sampling discarded 36.0% of the generated groups, whose rewards were all equal; of the groups "
        "trained on 50.0% still had equal rewards."
    ]


def test_synchronous_experiments_say_nothing_of_lag(make_lagged_run: Make, tmp_path: Path) -> None:
    make_lagged_run(max_lag=0, lag=(0, 0))
    experiment = _experiment(tmp_path)
    assert off_policy_table(experiment) is None
    assert replay_table(experiment) is None
    assert off_policy_findings(experiment) == []


def test_a_run_that_did_not_end_is_shown_without_its_ledger(make_lagged_run: Make, tmp_path: Path) -> None:
    make_lagged_run(settings="lag_control: drop\n", ledger=None)
    table = off_policy_table(_experiment(tmp_path))
    assert table is not None
    assert [row[0] for row in table.rows] == ["lag, mean, versions", "lag, highest, versions"]


def test_idle_ratios_stand_with_the_outcome(three_arms: Experiment) -> None:
    rows = {row[0]: row[1:] for row in outcome_table(three_arms).rows}
    assert rows["idle ratio, Generator"] == ("20.0%", "20.0%", "20.0%")
    assert rows["idle ratio, Scorer"] == ("90.0%", "90.0%", "90.0%")
    assert rows["idle ratio, Learner"] == ("20.0%", "20.0%", "20.0%")
    assert "parts replaced" not in rows


def test_the_last_rewards_of_paired_seeds_get_an_interval(make_lagged_run: Make, tmp_path: Path) -> None:
    for seed, (base, other) in enumerate([(0.50, 0.52), (0.60, 0.61), (0.40, 0.43)]):
        make_lagged_run(arm="a_sync", seed=seed, rewards=(0.2, base))
        make_lagged_run(arm="b_lag", seed=seed, rewards=(0.2, other))
    experiment = _experiment(tmp_path)
    # differences 0.02, 0.01, 0.03: mean 0.02, sd 0.01; t(0.975, 2) = 4.3027: 0.02 +- 4.3027 * 0.01 / sqrt(3) = 0.0248
    assert (
        "final validation reward 0.52 [0.43, 0.61] against 0.50 [0.40, 0.60] "
        "(difference +0.020, 95% interval -0.005 to +0.045, t over n = 3 paired seeds);"
    ) in findings(experiment)[3].text
    assert caveats(experiment)[-1] == (
        "Intervals of rewards hold for all pairs of variants together, and assume normal differences."
    )


def test_replaced_parts_are_counted(make_lagged_run: Make, tmp_path: Path) -> None:
    manifest = make_lagged_run().folder / "manifest.json"
    text = manifest.read_text()
    assert '"replaced": {}' in text
    manifest.write_text(text.replace('"replaced": {}', '"replaced": {"generator": 2, "scorer": 1}'))
    assert ("parts replaced", "3") in outcome_table(_experiment(tmp_path)).rows
