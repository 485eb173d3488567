"""Runs whose stages have known costs are fitted, refused where they cannot be, and become a profile file."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.core.errors import UserError
from harness.results import find_runs
from harness.run.memory.shape import shape_for
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.calibrate import command
from harness.simulate.calibrate.collective_times import time_collectives
from harness.simulate.calibrate.exchange import CollectiveTimes, find_collectives, fit_collectives, save_collectives
from harness.simulate.calibrate.fit import fit
from harness.simulate.calibrate.observations import find_sources, observe
from harness.simulate.cost_model import cost_key
from harness.simulate.features import Group, generate_features, update_features
from harness.simulate.machine import MachineProfile, load_machine, profile_yaml
from harness.simulate.recorded_run import run_label
from harness.simulate.timeline import ASSUMED_SLOWDOWN
from tests.rank_pool import RankPool
from tests.simulate.conftest import (
    ARMS,
    EXCHANGES,
    GENERATE,
    MACHINE,
    SCORE,
    STEPS,
    SYNC,
    UPDATE,
    VERSIONS,
    Planted,
    seconds_of,
)


def _fitted(planted: Planted, **options: Any) -> MachineProfile:
    return fit(find_runs(planted.root)[0], "abacus", **options).profile


def _cost(profile: MachineProfile, stage: str, **where: str) -> Any:
    scenario = load_scenario("sync_k1", ["transport.type=shared_memory", "placement.colocated=false"])
    found = profile.cost_of(stage, cost_key(scenario, stage, 2, has_gpu=False) | where)
    assert found is not None
    return found


def test_planted_costs_are_found_and_written_and_read_again(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the command: the file holds the planted costs, and what is read back is written as the same bytes.

    12 runs of 8 steps, of which 2 are warm-up: 72 spans, of 16 to 128 responses, and a quarter beyond. Weights: 557,696
    to 13,767,168 parameters (the manifests of real runs say so) of 4 bytes.
    """
    planted.write_all()
    file = tmp_path / "abacus.yaml"
    assert main(["calibrate", "--name", "abacus", "--from", str(planted.root), "-o", str(file)]) == 0
    profile = load_machine(file)
    for stage, costs in (("generate", GENERATE), ("update", UPDATE), ("score", SCORE), ("weight_publish", SYNC)):
        assert _cost(profile, stage).seconds == pytest.approx(costs, rel=1e-3), stage
    score, publish = _cost(profile, "score"), _cost(profile, "weight_publish")
    assert (score.spans, publish.spans) == (72, 72 + 12)  # and each run's first sync
    assert score.ranges["response"] == pytest.approx((16 / 1.25, 128 * 1.25), rel=1e-5)
    gb = (557_696 * 4e-9 / 1.25, 13_767_168 * 4e-9 * 1.25)
    assert publish.ranges["gb"] == pytest.approx(gb, rel=1e-5)
    text = file.read_text(encoding="utf-8")
    assert text == profile_yaml(profile)
    assert text.startswith("# Measured: written by `python -m harness calibrate --name abacus`")
    assert (profile.name, profile.origin, profile.made) == ("abacus", "measured", "2026-11-21")
    assert (profile.device.name, profile.device.fingerprint) == ("Abacus 3000", "0123456789ab")
    assert profile.versions == VERSIONS
    assert (profile.sources[0], len(profile.sources)) == ("made/20261121-120000/course_16_11", 12)
    assert profile.contention is not None  # no two parts worked at once, so that it was assumed
    assert (profile.contention.cores, profile.contention.slowdown) == (2, ASSUMED_SLOWDOWN)
    assert "a slow-down of 0.2 was assumed" in profile.notes[-1]
    shown = capsys.readouterr().out
    assert re.search(r"prompt_gflop +7 ms", shown)
    assert re.search(r"score +keywords +72 +0\.0%", shown)  # how far the arms are off what was fitted to them
    assert "0.20, with a standard error of 0.15" in " ".join(shown.split())


def test_predictions_hold_within_their_stated_errors_and_a_start_up_is_the_median(planted: Planted) -> None:
    """Noise of 10% in 72 spans of each stage.

    The prediction for the mean of the fitted units has the variance x' C x. Five stated standard errors, and these are
    at most 10% x sqrt(5 terms / 72) = 2.6%.
    """
    planted.write_all(noise=0.1)
    profile = _fitted(planted)
    scenario = load_scenario("sync_k1", ["rollout_batch_size=48"])
    shape = shape_for(scenario)[0]
    assert shape is not None
    groups: list[Group] = [(12, tuple(range(8, 32, 3)))] * 6
    for stage, costs, units in (
        ("generate", GENERATE, generate_features(shape, groups, 256)),
        ("update", UPDATE, update_features(shape, groups, 48, 1, 1)),
    ):
        cost = _cost(profile, stage)
        x = [units[feature] for feature in cost.seconds]
        variance = sum(a * b * cost.covariance[i][j] for i, a in enumerate(x) for j, b in enumerate(x))
        expected = seconds_of(costs, units)
        assert abs(cost.seconds_of(units) - expected) < 5 * variance**0.5
        assert variance**0.5 / expected < 0.03
        assert cost.step_log_sd == pytest.approx(0.1, rel=0.25)  # of 60 degrees of freedom: 9% standard error
        assert cost.unseen_log_sd >= 0.08
    assert profile.startup_s == {}  # nobody wrote it down
    for number, seconds in enumerate((60.0, 8.0, 9.0, None)):  # the first one has the warm start in it
        planted.write(("tiny", "small")[number % 2], noise=0.1, startup_s=seconds)
    assert _fitted(planted).startup_s == {"actors": 9.0}


def test_a_model_may_be_left_out_but_not_every_one_nor_one_that_no_run_has(planted: Planted) -> None:
    planted.write_all()
    profile = _fitted(planted, exclude_models=("course",))
    assert not [source for source in profile.sources if "course" in source]
    assert set(_cost(profile, "generate").models) == {"tiny", "small"}
    assert "course" in profile.notes[0]
    assert _cost(profile, "generate").unseen_log_sd == 0.15  # assumed: two models cannot say
    for models in (("course", "small", "tiny"), ("coarse",)):
        with pytest.raises(UserError, match=models[0]) as caught:
            _fitted(planted, exclude_models=models)
        assert caught.value.fix == "there are: course, small, tiny"


def test_lengths_are_kept_as_they_were_sampled(planted: Planted) -> None:
    (lengths,) = fit(find_sources([planted.write(steps=8)]), "abacus").profile.lengths
    assert (lengths.task, lengths.model, lengths.purpose, lengths.cap) == ("keywords", "small", "train", 32)
    assert lengths.prompts == (12,) * 64  # 8 steps of 8 groups
    assert all(8 <= length <= 32 for group in lengths.groups for length in group)
    assert lengths.trained == tuple(step for step in range(8) for _ in range(8))  # one optimizer step each


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda p: p.write(status="failed"), "none of 1 runs"),
        (lambda p: p.write(simulated="h200-sxm"), "simulated"),
        (lambda p: p.write(groups=False), "groups.jsonl"),
        (lambda p: p.write(settings="faults: {delays: {update: 0.5}}\n"), "faults.delays"),
        (lambda p: p.write(settings="dynamic_sampling: {attempts: 2}\n"), "dynamic_sampling"),
        (lambda p: p.write(stream="in_order"), "learner.stream"),
        (lambda p: p.write(steps=6), "no run has 5 training steps beyond warm-up; the longest has 4"),
        (lambda p: (p.write(), p.write(machine=MACHINE | {"fingerprint": "ba98"})), "2 machines: 0123456789ab"),
        (lambda p: (p.write(), p.write(versions=VERSIONS | {"torch": "2.14.0"})), "torch: 2.13.0"),
        (lambda p: (p.write(), p.write(sharding="ddp")), "no measured collectives"),
    ],
)
def test_runs_that_cannot_be_fitted_are_refused(
    planted: Planted, prepare: Callable[[Planted], object], says: str
) -> None:
    prepare(planted)
    with pytest.raises(UserError) as caught:
        _fitted(planted)
    assert says in str(caught.value)
    assert caught.value.fix


def test_each_run_is_read_once_and_those_that_could_not_be_used_are_said(planted: Planted, tmp_path: Path) -> None:
    for told in ({"steps": 7}, {"steps": 6}, {"status": "interrupted"}):
        planted.write(**told)
    shutil.copytree(planted.root, tmp_path / "copy")
    runs = find_sources([planted.root, planted.root, tmp_path / "copy"])
    assert len(runs) == 3
    profile = fit(runs, "abacus").profile
    assert len(profile.sources) == 1
    assert profile.notes[0].startswith("2 of 3 runs could not be used: not completed, or fewer than 5 training steps")


def test_runs_of_a_sweep_are_runs_of_their_own(planted: Planted) -> None:
    """Seeds repeat an arm; another value of an axis is another arm."""
    points = ({"max_lag": 1, "seed": 0}, {"max_lag": 1, "seed": 1}, {"max_lag": 2, "seed": 0})
    runs = [find_sources([planted.write(arm="a", point=point)])[0] for point in points]
    labels = ["a, max_lag=1/seed=0", "a, max_lag=1/seed=1", "a, max_lag=2/seed=0"]
    assert [run_label(run).rpartition("120000/")[2] for run in runs] == labels
    assert [observe(run)[0].arm for run in runs] == ["a, max_lag=1", "a, max_lag=1", "a, max_lag=2"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--name", "../abacus"], "'../abacus'"),
        (["--from", "nowhere"], "'nowhere'"),
        (["-o", "{file}"], "there.yaml"),
        (["--from", "nowhere", "--set", "steps=4"], "--set"),
    ],
)
def test_a_command_that_cannot_be_carried_out_changes_nothing(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "there.yaml"
    file.write_text("mine", encoding="utf-8")
    assert main(["calibrate", *(argument.format(file=file) for argument in arguments)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "fix:" in error
    assert file.read_text(encoding="utf-8") == "mine"


def _collectives(ranks: int = 2) -> CollectiveTimes:
    """Two ranks make two hops of 0.5 ms in an all-reduce, and one in the others, and send each byte in 1 ns."""
    seconds = [
        {"name": name, "bytes": size, "seconds": [turns * (0.0005 + size / 2 / 1e9)] * 6}
        for name, turns in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1))
        for size in (1e5, 1e7)
    ]
    return CollectiveTimes("0123456789ab", {}, "cpu", ranks, seconds)


def test_what_ranks_exchange_is_found_beside_what_they_compute(planted: Planted) -> None:
    """Runs of one process and of two ranks; those of ranks change no cost of one process."""
    planted.write_all()
    alone = _fitted(planted)
    for sharding in EXCHANGES:
        for arm in ARMS:
            planted.write(*arm, sharding=sharding)
    profile = _fitted(planted, collectives=[_collectives()])
    assert _cost(profile, "update") == _cost(alone, "update")
    assert _cost(profile, "weight_publish") == _cost(alone, "weight_publish")
    assert _cost(profile, "all_gather", link="machine").seconds == pytest.approx({"hop": 0.0005, "gb": 1.0}, rel=1e-3)
    for mode, costs in EXCHANGES.items():
        found = _cost(profile, "exchange", mode=mode)
        assert {"unit": 0.0} | found.seconds == pytest.approx(costs, rel=1e-3, abs=1e-6)
        assert found.spans == len(ARMS) * (STEPS - 2)
    assert [cost for cost in alone.stages if cost.stage == "exchange"] == []
    with pytest.raises(UserError, match="collectives are of the machine other"):
        _fitted(planted, collectives=[replace(_collectives(), machine="other")])


def test_without_results_the_runs_are_made_first(planted: Planted, tmp_path: Path) -> None:
    """The calibration scenario with the settings that were asked for, then a short sweep; a file that is there is told
    before anything is measured, and replaced where that is asked for."""
    asked: list[tuple[str, int, Path, bool]] = []
    precisions: list[str] = []

    def run(scenario: Scenario, out: Path, quiet: bool) -> Path:
        asked.append((scenario.name, scenario.steps, out, quiet))
        precisions.append(f"{scenario.model.precision} {scenario.engine.precision}")
        return planted.write()

    def measure(results: Path, ranks: int) -> Path:
        return save_collectives(_collectives(ranks), results / "collectives" / "now")

    usual = {"name": "abacus", "sources": [], "output": tmp_path / "abacus.yaml", "ranks": 2, "quiet": True}
    options = argparse.Namespace(**usual, force=False, out=tmp_path / "measured", set=["steps=12"])
    assert command.run(options, run, measure) == 0
    in_each = ["calibration", "calibration_ranks", *["calibration_checkpoints"] * 4]
    assert asked == [
        ("transport_sweep", load_scenario("transport_sweep").steps, tmp_path / "measured", True),
        *[(name, 12, tmp_path / "measured", True) for name in in_each],
    ]
    assert precisions[1:] == ["float32 float32"] * 6
    (all_reduce,) = (cost for cost in load_machine(tmp_path / "abacus.yaml").stages if cost.stage == "all_reduce")
    assert all_reduce.seconds == pytest.approx({"hop": 0.0005, "gb": 1.0})
    with pytest.raises(UserError, match="is there already"):
        command.run(options, run, measure)
    assert len(asked) == 7
    options.out, options.force = tmp_path / "again", True
    options.set += ["model.precision=bfloat16", "engine.precision=bfloat16"]
    assert command.run(options, run, measure) == 0
    assert precisions[8:] == ["bfloat16 bfloat16"] * 6


SIZES = (2**10, 2**20)


def timed(rank: int) -> list[dict[str, Any]]:
    return time_collectives(2, repeats=4, sizes=SIZES)


def test_two_ranks_time_every_collective_at_every_size(rank_pool: RankPool, tmp_path: Path) -> None:
    times, _ = rank_pool.run(2, timed)
    names = ("all_reduce", "all_gather", "reduce_scatter")
    assert [(row["name"], row["bytes"]) for row in times] == [(name, size) for size in SIZES for name in names]
    assert all(len(row["seconds"]) == 4 and min(row["seconds"]) > 0 for row in times)
    measured = CollectiveTimes("0123456789ab", {"torch": "2.13.0"}, "cpu", 2, times)
    save_collectives(measured, tmp_path / "collectives" / "now")
    (found,) = find_collectives([tmp_path])
    assert found == measured
    costs = fit_collectives([found])
    assert sorted(cost.stage for cost in costs) == sorted(names)
    assert all(cost.where == {"device": "cpu", "link": "machine"} for cost in costs)
    assert all(sum(cost.seconds.values()) > 0 for cost in costs)


def test_a_file_that_holds_no_collectives_is_named(tmp_path: Path) -> None:
    (tmp_path / "collectives.json").write_text('{"schema": "harness.collectives", "schema_version": 9}')
    with pytest.raises(UserError, match="of another version than 1"):
        find_collectives([tmp_path])
    (tmp_path / "collectives.json").write_text("[]")
    with pytest.raises(UserError, match="it is damaged"):
        find_collectives([tmp_path])
