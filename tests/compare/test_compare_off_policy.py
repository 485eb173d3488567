"""Lag, dropping, replay and idle time: the tables of runs with known numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.compare.experiment import Experiment, gather, member_of
from harness.loop import Count, RolloutCounts
from harness.report.tables import off_policy_table, outcome_table
from harness.results import RunFolder
from harness.results.frames import read_table

Make = Callable[..., RunFolder]


@pytest.fixture
def three_arms(lag_arms: Path) -> Experiment:
    (experiment,), damaged = gather([lag_arms])
    assert damaged == []
    return experiment


def test_lag_and_waste(three_arms: Experiment) -> None:
    table = off_policy_table(three_arms)
    assert table is not None
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


def test_synchronous_experiments_have_no_table_of_lag(make_lagged_run: Make) -> None:
    (experiment,), _ = gather([make_lagged_run(max_lag=0, lag=(0, 0)).folder])
    assert off_policy_table(experiment) is None


def test_a_run_that_did_not_end_is_shown_without_its_ledger(make_lagged_run: Make) -> None:
    (experiment,), _ = gather([make_lagged_run(settings="lag_control: drop\n", ledger=None).folder])
    table = off_policy_table(experiment)
    assert table is not None
    assert [row[0] for row in table.rows] == ["lag, mean, versions", "lag, highest, versions"]


def test_what_dynamic_sampling_discarded(make_lagged_run: Make) -> None:
    ledger = RolloutCounts(Count(100, 800), trained=Count(64, 500), discarded=Count(36, 300))
    figures = member_of(read_table(make_lagged_run(flat=True, discarded=(), ledger=ledger).folder)).figures
    assert (figures["discarded_share"], figures["mean/zero_variance_fraction"]) == (0.36, 0.5)


def test_replaced_parts_are_counted(make_lagged_run: Make) -> None:
    manifest = make_lagged_run().folder / "manifest.json"
    text = manifest.read_text()
    assert '"replaced": {}' in text
    manifest.write_text(text.replace('"replaced": {}', '"replaced": {"generator": 2, "scorer": 1}'))
    (experiment,), _ = gather([manifest.parent])
    assert ("parts replaced", "3") in outcome_table(experiment).rows
