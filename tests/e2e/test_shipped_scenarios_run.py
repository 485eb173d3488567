"""Every shipped scenario runs to its end on parts that take no time, and leaves complete results."""

from pathlib import Path

import pytest

from harness.results import find_runs
from harness.run.experiment import run_scenario
from harness.scenario import SCENARIOS as SHIPPED
from harness.scenario import expand, load_scenario
from tests.stand_ins.simulated_parts import build_simulated_parts

SCENARIOS = sorted(Path(__file__).parents[2].glob("scenarios/*.yaml"))
TRAINING = [path for path in SCENARIOS if load_scenario(str(path)).transport_sweep is None]


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.stem)
def test_a_shipped_scenario_runs_on_simulated_parts(path: Path, tmp_path: Path) -> None:
    scenario = load_scenario(str(path))
    fewer = ["blocks=2", "stop_at_half_width=null"] if scenario.blocks > 1 else []  # however steady this machine is
    if len(expand(load_scenario(str(path), fewer))) > 8:  # every combination once, few steps
        fewer = ["blocks=1", "stop_at_half_width=null", "steps=2"] if fewer else ["sweep.seed=[0]", "steps=2"]
        fewer += ["endpoint=seconds_per_step"]  # rewards are not compared over a single seed
    elif scenario.steps > 2:
        fewer += ["steps=2"]
    fewer += ["checkpoint=null"] if scenario.checkpoint.every else []  # such parts have nothing to save
    scenario = load_scenario(str(path), fewer)
    assert run_scenario(scenario, tmp_path, quiet=True, build=build_simulated_parts, show=lambda folder: None) == 0
    runs, damaged = find_runs(tmp_path)
    assert damaged == []
    variants = {variant.name or variant.scenario.name: variant.scenario for variant in expand(scenario)}
    assert len(runs) == len(variants)
    for run in runs:
        resolved = variants.get(run.folder.name, scenario)
        assert run.manifest.status == "completed"
        assert [row.step for row in run.steps] == list(range(resolved.steps))
        assert {row.optimizer_steps for row in run.steps} == {resolved.optimizer_steps_per_batch}
        assert len(run.evaluations) == resolved.num_evaluations


def test_there_are_scenarios_to_run() -> None:
    assert [path.stem for path in SCENARIOS if path not in TRAINING] == [
        "transport_sweep",
        "transport_sweep_gpu",
    ]  # it has real tests only
    names = {path.stem for path in SHIPPED.files()}
    shipped = {"quickstart", "sync_k1", "sync_k2", "sync_k4", "sync_k8", "sync_k", "kl_monitoring", "loss_types"}
    assert shipped <= names
