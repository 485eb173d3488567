"""Every shipped scenario runs to its end on parts that take no time, and leaves complete results."""

from pathlib import Path
from typing import Any

import pytest

from harness.core.named_files import SCENARIOS
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from tests.e2e.conftest import run_all
from tests.stand_ins.simulated_parts import build_simulated_parts

DEFAULT = {
    *("learning_rates", "baselines", "length_normalisation", "std_normalisation", "off_policy", "async_lag_sweep"),
    *("replay_vs_baseline", "kl_monitoring", "transport_sweep", "sorting", "sorting_grid"),
    *("quickstart", "course", "sync_k1", "sync_k", "async_lag1", "rdt_nixl", "maths"),
}
"""The experiments of the assignment and the entry points that pages name; of the others every twentieth is run too."""


def shipped() -> list[Any]:
    """Return the shipped scenarios, all others as slow."""
    files = [*SCENARIOS.files()]
    assert {path.stem for path in files} >= DEFAULT
    return [
        pytest.param(path, id=path.stem, marks=[] if path.stem in DEFAULT or number % 20 == 0 else [pytest.mark.slow])
        for number, path in enumerate(files)
    ]


@pytest.mark.parametrize("path", shipped())
def test_a_shipped_scenario_runs_on_simulated_parts(path: Path, tmp_path: Path) -> None:
    scenario = load_scenario(str(path))
    if scenario.transport_sweep is not None:
        return  # it trains nothing, and has real tests in test_actors.py
    if any(variant.scenario.command for variant in expand(scenario)):
        return  # programs are tested in tests/run/test_recorded.py
    fewer = ["blocks=2", "stop_at_half_width=null"] if scenario.blocks > 1 else []  # however steady this machine is
    if len(expand(load_scenario(str(path), fewer))) > 8:  # every combination once, few steps
        fewer = ["blocks=1", "stop_at_half_width=null", "steps=2"] if fewer else ["sweep.seed=[0]", "steps=2"]
        fewer += ["endpoint=seconds_per_step"]  # rewards are not compared over a single seed
    elif scenario.steps > 2:
        fewer += ["steps=2"]
    fewer += ["checkpoint=null"] if scenario.checkpoint.every else []  # such parts have nothing to save
    scenario = load_scenario(str(path), fewer)
    runs = run_all(scenario, tmp_path, build_simulated_parts)
    variants = {variant.name or variant.scenario.name: variant.scenario for variant in expand(scenario)}
    assert len(runs) == len(variants)
    for run in runs:
        resolved = variants.get(run.folder.name, scenario)
        assert run.manifest.status == "completed"
        assert [row.step for row in run.steps] == list(range(resolved.steps))
        assert {row.optimizer_steps for row in run.steps} == {resolved.optimizer_steps_per_batch}
        assert len(run.evaluations) == resolved.num_evaluations
