"""What an experiment set out to run is in its folder, so that what is missing of it is seen."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from harness.compare import gather
from harness.compare.completeness import Gaps, gaps
from harness.core.errors import Interrupted, UserError
from harness.core.trace import RecordingTracer
from harness.results.experiment_plan import EXPERIMENT, ExperimentPlan, PlannedRun, read_plan, write_plan
from harness.run.experiment import run_scenario
from harness.run.parts import Build, RunningParts
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from tests.stand_ins.simulated_parts import build_simulated_parts

HEAD = 'steps: 3\nprofile: "off"\ntrackers: []\nevaluation: {every: 3, prompts: 8}\n'
ARMS = "arms: {a: {}, b: {epochs_per_batch: 2}}\n"


def run(tmp_path: Path, text: str, build: Build = build_simulated_parts) -> Path:
    """Run a scenario on simulated parts, to its end or an interruption, and return the experiment's folder."""
    (tmp_path / "trial.yaml").write_text(HEAD + text)
    with suppress(Interrupted):
        run_scenario(load_scenario(str(tmp_path / "trial.yaml")), tmp_path / "out", True, build, lambda folder: None)
    (folder,) = (tmp_path / "out" / "trial").iterdir()
    return folder


def plan_in(folder: Path) -> ExperimentPlan:
    plan = read_plan(folder)
    assert plan is not None
    return plan


def gaps_of(folder: Path) -> Gaps:
    (experiment,), damaged = gather([folder])
    return gaps(experiment, damaged)


def test_the_plan_names_every_run_as_its_folder_is_called(tmp_path: Path) -> None:
    folder = run(tmp_path, "blocks: 3\n" + ARMS)
    plan = plan_in(folder)
    assert plan.enough_after is None
    assert [(item.variant, item.block) for item in plan.due] == [(arm, n) for n in range(3) for arm in ("a", "b")]
    assert {item.folder for item in plan.due} == {path.name for path in folder.iterdir() if path.is_dir()}
    assert gaps_of(folder) == Gaps((), ())
    shutil.rmtree(folder / "b,block=1")
    (gap,) = gaps_of(folder).runs
    assert (gap.folder, gap.variant) == (folder / "b,block=1", "b")


def test_the_points_of_a_sweep_are_planned(tmp_path: Path) -> None:
    folder = run(tmp_path, "sweep: {optimizer.learning_rate: [0.1, 1.0], seed: [0, 1]}\n")
    names = [f"learning_rate={rate},seed={seed}" for rate in (0.1, 1.0) for seed in (0, 1)]
    assert [item.folder for item in plan_in(folder).due] == names
    assert gaps_of(folder) == Gaps((), ())
    shutil.rmtree(folder / names[2])
    assert [gap.folder.name for gap in gaps_of(folder).runs] == [names[2]]


def test_a_single_run_is_its_experiment(tmp_path: Path) -> None:
    folder = run(tmp_path, "")
    assert plan_in(folder) == ExperimentPlan((PlannedRun("", "trial"),))
    assert gaps_of(folder) == Gaps((), ())


def test_blocks_after_enough_are_not_due(tmp_path: Path) -> None:
    folder = run(tmp_path, "blocks: 12\nstop_at_half_width: 0.99\n" + ARMS)
    made = {path.name for path in folder.iterdir() if path.is_dir()}
    plan = plan_in(folder)
    assert len(plan.runs) == 24
    assert {item.folder for item in plan.due} == made
    assert gaps_of(folder) == Gaps((), ())


def test_blocks_after_an_interruption_are_missing(tmp_path: Path) -> None:
    built = []

    def build(scenario: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        built.append(scenario.seed)
        if len(built) == 3:  # while the first arm of the second block is being built: it has no folder yet
            raise KeyboardInterrupt
        return build_simulated_parts(scenario, tracer, should_stop)

    folder = run(tmp_path, "blocks: 3\nstop_at_half_width: null\n" + ARMS, build)
    assert {gap.folder.name for gap in gaps_of(folder).runs} == {f"{arm},block={n}" for arm in "ab" for n in (1, 2)}


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "harness.experiment", "schema_version": 2, "runs": []}'])
def test_a_plan_that_cannot_be_read_is_said_so(tmp_path: Path, text: str) -> None:
    write_plan(tmp_path, ExperimentPlan((PlannedRun("a", "a"),)))
    assert plan_in(tmp_path).due == [PlannedRun("a", "a")]
    (tmp_path / EXPERIMENT).write_text(text)
    with pytest.raises(UserError, match=r"experiment\.json"):
        read_plan(tmp_path)
