"""What a run really held beside its plan: in the manifest, in the log, on the console, in the comparison."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.compare.experiment import gather
from harness.core.trace import RecordingTracer, Stage
from harness.probes.memory import DeviceFigure, Peak, StageMemory
from harness.report.tables import outcome_table
from harness.results import Run, find_runs
from harness.run.experiment import run_scenario
from harness.run.memory.check import check_memory, memory_line, planned_bytes
from harness.run.memory.fit import FreeMemory, gib
from harness.run.parts import RunningParts
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from tests.stand_ins.simulated_parts import SimulatedParts, build_simulated_parts

GIB = 2**30
SMALL = "steps: 2\nevaluation: {every: 2, prompts: 4}\n"
ARMS = SMALL + "arms:\n  k1: {epochs_per_batch: 1}\n  k4: {epochs_per_batch: 4}\n"


def run(tmp_path: Path, text: str, build: Callable[..., RunningParts] = build_simulated_parts) -> dict[str, Run]:
    """Run a scenario on simulated parts; return its runs by folder name."""
    file = tmp_path / "trial.yaml"
    file.write_text(text)
    return runs_of(tmp_path, load_scenario(file), build)


def runs_of(tmp_path: Path, scenario: Scenario, build: Callable[..., RunningParts]) -> dict[str, Run]:
    run_scenario(scenario, tmp_path / "out", False, build, lambda folder: None)
    found, damaged = find_runs(tmp_path / "out")
    assert damaged == []
    return {run.folder.name: run for run in found}


def said(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if "memory: " in line]


def memory_of(run: Run) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = run.manifest.outcome["memory"]
    return found


def test_every_run_says_what_was_planned_and_what_it_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = run(tmp_path, SMALL).values()
    scenario = load_scenario(tmp_path / "trial.yaml")
    main = memory_of(one)["main"]
    assert main["planned_bytes"] == planned_bytes([scenario], False)["main"]
    assert main["peak_bytes"] > 50 * 2**20  # this process at least
    assert main["processes"] >= 1
    line = memory_line(memory_of(one))
    assert line.startswith(
        f"memory: planned {gib(main['planned_bytes'])}, peak {gib(main['peak_bytes'])} (main memory,"
    )
    assert said(capsys.readouterr().err) == [line]
    assert line in (one.folder / "log.txt").read_text()


def test_what_is_planned_is_what_was_told_before_the_run(tmp_path: Path) -> None:
    file = tmp_path / "arms.yaml"
    file.write_text(ARMS)
    scenarios = [variant.scenario for variant in expand(load_scenario(file))]
    for group in (scenarios, scenarios[:1]):
        told = check_memory(group, FreeMemory(64 * GIB))
        assert told.startswith(f"memory plan: about {gib(planned_bytes(group, False)['main'])} of ")


def test_arms_that_take_turns_are_set_against_the_plan_of_them_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = run(tmp_path, ARMS)
    scenarios = [variant.scenario for variant in expand(load_scenario(tmp_path / "trial.yaml"))]
    together = planned_bytes(scenarios, False)["main"]
    assert together > planned_bytes(scenarios[:1], False)["main"]
    assert {memory_of(run)["main"]["planned_bytes"] for run in runs.values()} == {together}
    assert len(said(capsys.readouterr().err)) == 1


def test_arms_one_after_the_other_have_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = run(tmp_path, "interleaving: run\n" + ARMS)
    alone = {
        name: planned_bytes([load_scenario(runs[name].folder / "scenario.resolved.yaml")], False)["main"]
        for name in runs
    }
    assert {name: memory_of(run)["main"]["planned_bytes"] for name, run in runs.items()} == alone
    assert sorted(line.split(": ")[0] for line in said(capsys.readouterr().err)) == ["k1", "k4"]


def test_without_a_plan_the_peak_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = runs_of(tmp_path, load_scenario("sorting", ["steps=2"]), build_simulated_parts).values()
    assert memory_of(one)["main"].keys() == {"peak_bytes", "processes"}
    (line,) = said(capsys.readouterr().err)
    assert re.fullmatch(r"memory: peak \d+\.\d+ GiB \(main memory, \d+ process(es)?\)", line)


def on_gpus(*peaks: tuple[Stage, int, int, int]) -> Callable[..., RunningParts]:
    """A builder of parts whose processes held so much of their GPUs: stage, pid, GiB allocated, GiB reserved."""

    def build(scenario: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        class OnGpus(SimulatedParts):
            def drain_device_figures(self) -> list[DeviceFigure]:
                offset = scenario.epochs_per_batch  # arms have processes of their own
                return [
                    StageMemory(stage, offset + pid, Peak(allocated * GIB, reserved * GIB))
                    for stage, pid, allocated, reserved in peaks
                ]

        return OnGpus(**vars(build_simulated_parts(scenario, tracer, should_stop)))

    return build


def test_gpus_hold_the_sum_of_what_each_process_held_at_most(tmp_path: Path) -> None:
    build = on_gpus((Stage.UPDATE, 10, 3, 4), (Stage.WEIGHT_PUBLISH, 10, 2, 4), (Stage.GENERATE, 20, 5, 6))
    (one,) = run(tmp_path, SMALL + "placement: {device: cuda}\n", build).values()
    gpu = memory_of(one)["gpu"]
    planned = planned_bytes([load_scenario(tmp_path / "trial.yaml")], True)["gpu"]
    assert planned > 0
    assert gpu == {"peak_bytes": 8 * GIB, "reserved_bytes": 10 * GIB, "processes": 2, "planned_bytes": planned}
    assert one.steps[0].metrics["memory/allocated_bytes/update"] == {"max": 3 * GIB, "count": 1}
    assert memory_line(memory_of(one)).startswith(
        f"memory: planned {gib(planned)}, peak 8.0 GiB, 10.0 GiB reserved (GPU memory, 2 processes); planned "
    )


def test_arms_on_one_gpu_add_up(tmp_path: Path) -> None:
    runs = run(tmp_path, ARMS + "placement: {device: cuda}\n", on_gpus((Stage.UPDATE, 10, 3, 4)))
    assert max(memory_of(run)["gpu"]["peak_bytes"] for run in runs.values()) == 6 * GIB


def test_the_comparison_shows_it_and_reads_runs_without_it(tmp_path: Path) -> None:
    runs = run(tmp_path, ARMS)
    old = runs["k1"].folder / "manifest.json"
    manifest: dict[str, Any] = json.loads(old.read_text())
    main = manifest["outcome"].pop("memory")["main"]
    old.write_text(json.dumps(manifest))
    (experiment,), damaged = gather([tmp_path / "out"])
    assert damaged == []
    rows = {row[0]: row[1:] for row in outcome_table(experiment).rows}
    assert rows["main memory, planned, GiB"][0] == "-"
    assert float(rows["main memory, planned, GiB"][1]) == pytest.approx(main["planned_bytes"] / GIB, rel=0.01)
    assert float(rows["main memory, peak, GiB"][1]) > 0
    assert "GPU memory, peak, GiB" not in rows
