"""What the base install and the extra ``train`` promise, with their packages alone; see ``tests/extras.py``.

That quickstart needs no more than ``train`` is seen in ``tests/e2e/test_real_run.py``, whose runs have no more.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.extras import ROOT, modules_missing_with

RUN = f"{ROOT}/results/reference/rdt_nixl"
LAG1 = "max_lag=1 placement.colocated=false transport.type=in_process arms=null blocks=1 steps=2"
TINY = "model.preset=tiny model.warm_start=false rollout_batch_size=16 evaluation.prompts=8 evaluation.every=2"
COMMANDS = {
    "": [
        "list",
        "validate quickstart",
        f"compare {RUN}",
        f"report {RUN} -o report.html",
        f"trace {RUN} -o trace.json.gz",
        "simulate async_lag1 --machine xeon-2-cores --arm lag1 --set blocks=1 --set steps=2 --out simulated",
    ],
    "train": [
        "run async_lag1 --out results" + "".join(f" --set {setting}" for setting in f"{LAG1} {TINY}".split()),
        "evaluate --model results/*/*/policy --task keywords --limit 2 --max-tokens 8",
    ],
}
"""By extra, none first."""
PROGRAM = """
import sys
from glob import glob
from harness.cli import main

def run(*arguments, **options):
    from harness.run.experiment import run_scenario
    return run_scenario(*arguments, **options, show=lambda folder: None)

for line in sys.argv[1:]:
    code = main([found for word in line.split() for found in glob(word) or [word]], run)
    assert code == 0, f"exit code {code}: {line}"
"""
"""Carries out one command line after the other: in one process, and without a run's pictures, to save seconds."""


def test_what_an_extra_brings_is_read_from_its_requirements() -> None:
    assert {"torch", "transformers", "ray", "pytest"} <= modules_missing_with("")
    assert {"ray", "pytest"} <= modules_missing_with("train")
    assert {"pydantic", "matplotlib"} & modules_missing_with("") == set()
    assert {"torch", "transformers", "jinja2"} & modules_missing_with("train") == set()


@pytest.mark.parametrize("extra", COMMANDS, ids=lambda extra: extra or "none")
def test_commands_run_with_the_packages_of_an_extra_alone(
    extra: str, packages_of: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    program = [sys.executable, "-c", PROGRAM, *COMMANDS[extra]]
    done = subprocess.run(program, cwd=tmp_path, env=packages_of(extra), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_whole_gpu_check_for_rented_minutes_runs_without_ray(
    packages_of: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    check = [sys.executable, "-m", "harness", "gpu-check", "--lean", "--out", str(tmp_path)]
    done = subprocess.run(check, env=packages_of("train"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    phases = {phase["name"]: phase for phase in json.loads((tmp_path / "summary.json").read_text())["phases"]}
    skipped = {name for name, phase in phases.items() if phase["status"] != "passed"}
    assert skipped == {"ray", *([] if phases["probe"]["figures"]["device"] != "cpu" else ["overlap"])}
    figures = phases["parity"]["figures"].values()
    assert sum("bound" in figure for figure in figures if isinstance(figure, dict)) > 30
