"""Runs whose stages have known costs are fitted, refused where they cannot be, and become a profile file."""

from __future__ import annotations

import argparse
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.results import Manifest, Run, RunFolder, Scrubber, ShardRow, StepRow, TailRow, find_runs
from harness.run.memory.shape import shape_for
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.calibrate import command
from harness.simulate.calibrate.exchange import CollectiveTimes, save_collectives
from harness.simulate.calibrate.fit import fit
from harness.simulate.calibrate.observations import find_sources, observe
from harness.simulate.cost_model import CostModel, cost_key
from harness.simulate.features import (
    Group,
    Workload,
    batch_features,
    generate_features,
    sync_features,
    update_features,
    weight_bytes,
    weight_tensors,
)
from harness.simulate.machine import Device, MachineProfile, StageCost, load_machine, profile_yaml
from harness.simulate.ranks import COLLECTIVES, RankCosts
from harness.simulate.recorded_run import run_label
from harness.simulate.timeline import ASSUMED_SLOWDOWN

GENERATE = {"prompt_gflop": 0.007, "decode_layer": 0.0003, "weight_gb": 0.07, "row_layer": 1e-5, "row_gflop": 0.006}
UPDATE = {"parameter_gb": 1.3, "position_gflop": 0.016, "position_layer": 1.5e-5, "pair_gb": 4.0}
SYNC = {"call": 0.001, "gb": 0.1}
EXCHANGES = {"ddp": {"collective_s": 1.5, "unit": 0.0}, "fsdp2": {"collective_s": 0.8, "unit": 0.002}}
SCORE = {"call": 0.0001, "response": 5e-6}
MACHINE = {"cpu": "Abacus 3000", "cores": 2, "memory_gib": 24, "gpus": None, "fingerprint": "0123456789ab"}
VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "ray": "2.60.0"}
ARMS = (("tiny", 64, 8), ("tiny", 128, 8), ("small", 16, 4), ("small", 64, 8), ("course", 16, 4), ("course", 32, 8))
"""Preset, rollouts of a batch, group size."""
STEPS = 8


def _seconds(costs: dict[str, float], units: dict[str, float]) -> float:
    return sum(seconds * units[feature] for feature, seconds in costs.items())


class Writer:
    """Writes runs whose stages cost what is planted, times a factor."""

    def __init__(self, root: Path, opened: ExitStack) -> None:
        self.root, self._opened, self._count = root, opened, 0

    def write(
        self,
        preset: str = "small",
        rollouts: int = 64,
        group_size: int = 8,
        *,
        noise: float = 0.0,
        steps: int = STEPS,
        groups: bool = True,
        status: str = "completed",
        settings: str = "",
        sharding: str = "none",
        stream: str = "null",
        **manifest: Any,
    ) -> Path:
        """Write one run below ``root``; return its folder."""
        self._count += 1
        name = f"{preset}_{rollouts}_{self._count}"
        scrubber = Scrubber(home="/home/ann", cwd="/home/ann/harness", host="annbox", user="ann")
        run = self._opened.enter_context(
            RunFolder.create(self.root, "calibration", "20261121-120000", name, scrubber=scrubber)
        )
        run.write_scenario(
            f"name: calibration\nmodel: {{preset: {preset}, threads: 1, precision: bfloat16}}\n"
            f"engine: {{type: native, precision: bfloat16}}\nrollout_batch_size: {rollouts}\ngroup_size: {group_size}\n"
            f"transport: {{type: shared_memory}}\nlearner: {{sharding: {sharding}, stream: {stream}}}\n"
            f"placement: {{colocated: false, learner: {{ranks: {1 if sharding == 'none' else 2}}}, "
            f"generator: {{count: {1 if stream == 'null' else 2}}}}}\n{settings}"
        )
        told = {
            "arm": name,
            "machine": MACHINE,
            "versions": VERSIONS,
            "started_at": "2026-11-21T12:00:00.000Z",
        } | manifest
        run.write_manifest(Manifest(scenario="calibration", experiment="20261121-120000", **told))
        scenario = load_scenario(run.folder / "scenario.resolved.yaml")
        rng = random.Random(self._count)
        now_ns = 0
        for step in range(steps):
            lengths = [tuple(rng.randint(8, 32) for _ in range(group_size)) for _ in range(rollouts // group_size)]
            spans = _spans(scenario, [(12, each) for each in lengths], step, now_ns, rng, noise)
            now_ns = spans[-1].end_ns
            run.append_spans(spans)
            if groups:
                run.append(_shard(step, lengths))
            row = {"step": step, "version": step + 1, "wall_s": 1.0, "elapsed_s": step + 1.0, "lanes": {}}
            run.append(StepRow(**row, optimizer_steps=1, metrics={}, warmup=step < 2))
        run.append(TailRow(wall_s=0.0, elapsed_s=float(steps), lanes={}))
        run.finish(status, None, {})
        return run.folder

    def write_all(self, noise: float) -> None:
        """Write every arm twice."""
        for preset, rollouts, group_size in (*ARMS, *ARMS):
            self.write(preset, rollouts, group_size, noise=noise)


def _spans(
    scenario: Scenario, groups: list[Group], step: int, start_ns: int, rng: random.Random, noise: float
) -> list[Span]:
    shape = shape_for(scenario)[0]
    assert shape is not None
    sync = sync_features(weight_bytes(shape), weight_tensors(shape))
    update_s = _seconds(UPDATE, update_features(shape, groups, scenario.microbatch_size, 1, 1))
    if scenario.placement.learner.ranks > 1:
        update_s = _of_ranks(scenario, step, groups)
    stages = (
        ("learner", Stage.WEIGHT_PUBLISH, _seconds(SYNC, sync)),
        ("generator", Stage.WEIGHT_TRANSFER, _seconds(SYNC, sync)),
        ("generator", Stage.GENERATE, _seconds(GENERATE, generate_features(shape, groups, 256))),
        ("scorer", Stage.SCORE, _seconds(SCORE, batch_features(groups))),
        ("learner", Stage.UPDATE, update_s),
    )
    spans = []
    for lane, stage, seconds in stages:
        end_ns = start_ns + round(1e9 * seconds * (1 + noise * rng.gauss(0, 1)))
        spans.append(Span(lane, stage, start_ns, end_ns, step, step))
        start_ns = end_ns
    return spans


def _of_ranks(scenario: Scenario, step: int, groups: list[Group]) -> float:
    """Return what an update of ranks takes with planted collectives and exchanges, beside each other."""
    stages = [StageCost(stage="update", seconds=UPDATE)]
    stages += [StageCost(stage=name, seconds={"hop": 0.0005, "gb": 1.0}) for name in COLLECTIVES]
    profile = MachineProfile(name="planted", made="-", device=Device(name="-"), sources=("-",), stages=tuple(stages))
    priced = RankCosts("learner", CostModel(scenario, profile), Workload(scenario), profile)
    shared = priced.shared(Stage.UPDATE, step, groups)
    ((mode, features),) = shared.exchanged.items()
    return (1 + ASSUMED_SLOWDOWN) * (shared.pace_s + _seconds(EXCHANGES[mode], features))


def _shard(step: int, lengths: list[tuple[int, ...]]) -> ShardRow:
    return ShardRow(
        purpose="train",
        step=step,
        shard=0,
        prompt_ids=tuple(range(len(lengths))),
        prompt_tokens=(12,) * len(lengths),
        versions=((step, step),) * len(lengths),
        lengths=tuple(lengths),
        rewards=tuple((0.0,) * len(each) for each in lengths),
    )


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """Writes runs below ``tmp_path/results``."""
    with ExitStack() as opened:
        yield Writer(tmp_path / "results", opened)


def _runs(writer: Writer) -> list[Run]:
    return find_runs(writer.root)[0]


def _cost(profile: MachineProfile, stage: str, **where: str) -> Any:
    scenario = load_scenario("sync_k1", ["transport.type=shared_memory", "placement.colocated=false"])
    found = profile.cost_of(stage, cost_key(scenario, stage, 2, has_gpu=False) | where)
    assert found is not None
    return found


def test_costs_without_noise_are_found_and_written_and_read_again(
    writer: Writer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the command: the file holds the planted costs, and what is read back is written as the same bytes."""
    writer.write_all(noise=0.0)
    file = tmp_path / "abacus.yaml"
    assert main(["calibrate", "--name", "abacus", "--from", str(writer.root), "-o", str(file)]) == 0
    profile = load_machine(file)
    assert _cost(profile, "generate").seconds == pytest.approx(GENERATE, rel=1e-3)
    assert _cost(profile, "update").seconds == pytest.approx(UPDATE, rel=1e-3)
    assert _cost(profile, "score").seconds == pytest.approx(SCORE, rel=1e-3)
    assert _cost(profile, "weight_publish").seconds == pytest.approx(SYNC, rel=1e-3)
    assert file.read_text(encoding="utf-8") == profile_yaml(profile)
    assert file.read_text(encoding="utf-8").startswith(
        "# Measured: written by `python -m harness calibrate --name abacus`"
    )
    assert (profile.name, profile.origin, profile.made) == ("abacus", "measured", "2026-11-21")
    assert (profile.device.name, profile.device.fingerprint) == ("Abacus 3000", "0123456789ab")
    assert profile.versions == VERSIONS
    assert profile.sources[0] == "calibration/20261121-120000/course_16_11"
    assert len(profile.sources) == 12
    shown = capsys.readouterr().out
    assert "Costs of abacus" in shown
    assert re.search(r"prompt_gflop +7 ms", shown)
    told = " ".join(shown.split())
    assert "slow-down of a part by each other one at work: 0.20, with a standard error of 0.15" in told


def test_a_start_up_is_the_median_of_the_runs_that_wrote_theirs_down(writer: Writer) -> None:
    writer.write_all(noise=0.1)
    assert fit(_runs(writer), "abacus").profile.startup_s == {}
    for number, seconds in enumerate((60.0, 8.0, 9.0, None)):  # the first one has the warm start in it
        writer.write(("tiny", "small")[number % 2], noise=0.1, startup_s=seconds)
    assert fit(_runs(writer), "abacus").profile.startup_s == {"actors": 9.0}


def test_ranges_and_spans_are_those_of_the_runs(writer: Writer) -> None:
    """12 runs of 8 steps, of which 2 are warm-up: 72 spans, of 16 to 128 responses, and a quarter beyond.

    Weights: 557,696 to 13,767,168 parameters (the manifests of real runs say so) of 4 bytes.
    """
    writer.write_all(noise=0.0)
    profile = fit(_runs(writer), "abacus").profile
    score = _cost(profile, "score")
    assert score.spans == 72
    assert score.ranges["response"] == pytest.approx((16 / 1.25, 128 * 1.25), rel=1e-5)
    assert _cost(profile, "weight_publish").ranges["gb"] == pytest.approx(
        (557_696 * 4e-9 / 1.25, 13_767_168 * 4e-9 * 1.25), rel=1e-5
    )
    assert _cost(profile, "weight_publish").spans == 12 * 6 + 12  # and each run's first one


def test_predictions_hold_within_their_stated_errors(writer: Writer) -> None:
    """Noise of 10% in 72 spans of each stage.

    The prediction for the mean of the fitted units has the variance x' C x. Five stated standard errors, and these are
    at most 10% x sqrt(5 terms / 72) = 2.6%.
    """
    writer.write_all(noise=0.1)
    profile = fit(_runs(writer), "abacus").profile
    scenario = load_scenario("sync_k1", ["rollout_batch_size=48"])
    shape = shape_for(scenario)[0]
    assert shape is not None
    groups: list[Group] = [(12, tuple(range(8, 32, 3)))] * 6
    for stage, planted, units in (
        ("generate", GENERATE, generate_features(shape, groups, 256)),
        ("update", UPDATE, update_features(shape, groups, 48, 1, 1)),
    ):
        cost = _cost(profile, stage)
        x = [units[feature] for feature in cost.seconds]
        variance = sum(a * b * cost.covariance[i][j] for i, a in enumerate(x) for j, b in enumerate(x))
        expected = _seconds(planted, units)
        assert abs(cost.seconds_of(units) - expected) < 5 * variance**0.5
        assert variance**0.5 / expected < 0.03
        assert cost.step_log_sd == pytest.approx(0.1, rel=0.25)  # of 60 degrees of freedom: 9% standard error
        assert cost.unseen_log_sd >= 0.08


def test_a_model_may_be_left_out(writer: Writer) -> None:
    writer.write_all(noise=0.0)
    profile = fit(_runs(writer), "abacus", exclude_models=("course",)).profile
    assert not [source for source in profile.sources if "course" in source]
    assert set(_cost(profile, "generate").models) == {"tiny", "small"}
    assert profile.notes[0] == "runs of the model course were left out of the fit"
    assert _cost(profile, "generate").unseen_log_sd == 0.15  # assumed: two models cannot say


def test_without_parts_at_work_at_once_the_contention_is_assumed_and_said(writer: Writer) -> None:
    writer.write_all(noise=0.0)
    profile = fit(_runs(writer), "abacus").profile
    assert profile.contention is not None
    assert (profile.contention.cores, profile.contention.slowdown) == (2, ASSUMED_SLOWDOWN)
    assert "a slow-down of 0.2 was assumed" in profile.notes[-1]


def test_lengths_are_kept_as_they_were_sampled(writer: Writer) -> None:
    folder = writer.write(steps=8)
    lengths = fit(find_sources([folder]), "abacus").profile.lengths
    assert [(found.task, found.model, found.purpose, found.cap) for found in lengths] == [
        ("keywords", "small", "train", 32)
    ]
    assert lengths[0].prompts == (12,) * 64  # 8 steps of 8 groups
    assert all(8 <= length <= 32 for group in lengths[0].groups for length in group)
    assert lengths[0].trained == tuple(step for step in range(8) for _ in range(8))  # one optimizer step each


Refused = tuple[Callable[[Writer], object], str]


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda w: w.write(status="failed"), "none of 1 runs was completed"),
        (lambda w: w.write(simulated="h200-sxm"), "was simulated, and teaches nothing of a machine"),
        (lambda w: w.write(groups=False), "was recorded before lengths were (it has no groups.jsonl)"),
        (lambda w: w.write(settings="faults: {delays: {update: 0.5}}\n"), "was slowed down on purpose (faults.delays)"),
        (lambda w: w.write(settings="dynamic_sampling: {attempts: 2}\n"), "sampled groups again (dynamic_sampling)"),
        (
            lambda w: w.write(stream="in_order"),
            "trained on parts of a batch (learner.stream)",
        ),
        (lambda w: w.write(steps=6), "no run has 5 training steps beyond warm-up; the longest has 4"),
        (
            lambda w: (w.write(), w.write(machine=MACHINE | {"fingerprint": "ba9876543210"})),
            "the runs are of 2 machines: 0123456789ab",
        ),
        (
            lambda w: (w.write(), w.write(versions=VERSIONS | {"torch": "2.14.0"})),
            "the runs used several versions of torch: 2.13.0",
        ),
    ],
)
def test_runs_that_cannot_be_fitted_are_refused(
    writer: Writer, prepare: Callable[[Writer], object], says: str, tmp_path: Path
) -> None:
    prepare(writer)
    with pytest.raises(UserError) as caught:
        fit(_runs(writer), "abacus")
    assert says in str(caught.value)
    assert caught.value.fix


def test_leaving_every_model_out_is_refused_with_the_models(writer: Writer) -> None:
    writer.write()
    with pytest.raises(UserError, match="without small no run is left") as caught:
        fit(_runs(writer), "abacus", exclude_models=("small",))
    assert caught.value.fix == "there are: small"


def test_a_model_that_no_run_has_cannot_be_left_out(writer: Writer) -> None:
    writer.write()
    with pytest.raises(UserError, match="no run is of the model 'coarse'") as caught:
        fit(_runs(writer), "abacus", exclude_models=("coarse",))
    assert caught.value.fix == "there are: small"


def test_a_run_that_is_named_twice_or_has_a_copy_is_read_once(writer: Writer, tmp_path: Path) -> None:
    writer.write_all(noise=0.0)
    shutil.copytree(writer.root, tmp_path / "copy")
    assert len(find_sources([writer.root, writer.root, tmp_path / "copy"])) == 12


def test_runs_of_a_sweep_are_runs_of_their_own(writer: Writer) -> None:
    """Seeds repeat an arm; another value of an axis is another arm."""
    points = ({"max_lag": 1, "seed": 0}, {"max_lag": 1, "seed": 1}, {"max_lag": 2, "seed": 0})
    runs = [find_sources([writer.write(arm="a", point=point)])[0] for point in points]
    assert [run_label(run) for run in runs] == [
        "calibration/20261121-120000/a, max_lag=1/seed=0",
        "calibration/20261121-120000/a, max_lag=1/seed=1",
        "calibration/20261121-120000/a, max_lag=2/seed=0",
    ]
    assert [observe(run)[0].arm for run in runs] == ["a, max_lag=1", "a, max_lag=1", "a, max_lag=2"]


def test_runs_that_could_not_be_used_are_said(writer: Writer) -> None:
    writer.write()
    writer.write(steps=6)
    writer.write(status="interrupted")
    profile = fit(_runs(writer), "abacus").profile
    assert len(profile.sources) == 1
    assert profile.notes[0].startswith("2 of 3 runs could not be used: not completed, or fewer than 5 training steps")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--name", "../abacus"], "--name is '../abacus', must be letters"),
        (["--from", "nowhere"], "'nowhere' does not exist"),
        (["-o", "{file}"], "is there already"),
        (["--from", "nowhere", "--set", "steps=4"], "--set changes runs that are measured"),
    ],
)
def test_a_command_that_cannot_be_carried_out_changes_nothing(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "there.yaml"
    file.write_text("mine", encoding="utf-8")
    typed = [argument.format(file=file) for argument in arguments]
    assert main(["calibrate", *typed]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "fix:" in error
    assert file.read_text(encoding="utf-8") == "mine"


def test_a_profile_that_is_there_is_replaced_when_asked(writer: Writer, tmp_path: Path) -> None:
    folder, file = writer.write(), tmp_path / "there.yaml"
    file.write_text("mine", encoding="utf-8")
    assert main(["calibrate", "--from", str(folder), "-o", str(file), "--force", "--name", "abacus"]) == 0
    assert load_machine(file).name == "abacus"


def _collectives(ranks: int = 2) -> CollectiveTimes:
    """Two ranks make two hops of 0.5 ms in an all-reduce, and one in the others, and send each byte in 1 ns."""
    seconds = [
        {"name": name, "bytes": size, "seconds": [turns * (0.0005 + size / 2 / 1e9)] * 6}
        for name, turns in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1))
        for size in (1e5, 1e7)
    ]
    return CollectiveTimes("0123456789ab", {}, "cpu", ranks, seconds)


def test_what_ranks_exchange_is_found_beside_what_they_compute(writer: Writer) -> None:
    """Runs of one process and of two ranks; those of ranks change no cost of one process."""
    writer.write_all(noise=0.0)
    alone = fit(_runs(writer), "alone").profile
    for sharding in EXCHANGES:
        for arm in ARMS:
            writer.write(*arm, sharding=sharding)
    profile = fit(_runs(writer), "ranks", collectives=[_collectives()]).profile
    assert _cost(profile, "update") == _cost(alone, "update")
    assert _cost(profile, "weight_publish") == _cost(alone, "weight_publish")
    assert _cost(profile, "all_gather", link="machine").seconds == pytest.approx({"hop": 0.0005, "gb": 1.0}, rel=1e-3)
    for mode, planted in EXCHANGES.items():
        found = _cost(profile, "exchange", mode=mode)
        assert {"unit": 0.0} | found.seconds == pytest.approx(planted, rel=1e-3, abs=1e-6)
        assert found.spans == len(ARMS) * (STEPS - 2)
    assert [cost for cost in alone.stages if cost.stage == "exchange"] == []


def test_runs_of_ranks_ask_for_collectives_of_their_machine(writer: Writer) -> None:
    writer.write()
    writer.write(sharding="ddp")
    with pytest.raises(UserError, match="no measured collectives"):
        fit(_runs(writer), "ranks")
    with pytest.raises(UserError, match="collectives are of the machine other"):
        fit(_runs(writer), "ranks", collectives=[replace(_collectives(), machine="other")])


def test_without_results_the_runs_are_made_first(writer: Writer, tmp_path: Path) -> None:
    """The calibration scenario with the settings that were asked for, then a short sweep; a file that is there is told
    before anything is measured."""
    asked: list[tuple[str, int, Path, bool]] = []
    precisions: list[str] = []

    def run(scenario: Scenario, out: Path, quiet: bool) -> Path:
        asked.append((scenario.name, scenario.steps, out, quiet))
        precisions.append(f"{scenario.model.precision} {scenario.engine.precision}")
        return writer.write()

    options = argparse.Namespace(
        name="abacus",
        sources=[],
        output=tmp_path / "abacus.yaml",
        force=False,
        out=tmp_path / "measured",
        set=["steps=12"],
        ranks=2,
        quiet=True,
    )

    def measure(results: Path, ranks: int) -> Path:
        return save_collectives(_collectives(ranks), results / "collectives" / "now")

    assert command.run(options, run, measure) == 0
    in_each = ["calibration", "calibration_ranks", *["calibration_checkpoints"] * 4]
    assert asked == [
        ("transport_sweep", load_scenario("transport_sweep").steps, tmp_path / "measured", True),
        *[(name, 12, tmp_path / "measured", True) for name in in_each],
    ]
    assert precisions[1:] == ["float32 float32"] * 6
    made = load_machine(tmp_path / "abacus.yaml")
    (all_reduce,) = (cost for cost in made.stages if cost.stage == "all_reduce")
    assert all_reduce.seconds == pytest.approx({"hop": 0.0005, "gb": 1.0})
    with pytest.raises(UserError, match="is there already"):
        command.run(options, run, measure)
    assert len(asked) == 7
    options.out = tmp_path / "again"
    options.set += ["model.precision=bfloat16", "engine.precision=bfloat16"]
    options.force = True
    assert command.run(options, run, measure) == 0
    assert precisions[8:] == ["bfloat16 bfloat16"] * 6
