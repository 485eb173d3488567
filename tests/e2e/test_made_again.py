"""Ray's parts: at lag 2, where what is too old is dropped, repeated bit for bit; a step of two ranks recomputed."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.results import load_run
from harness.run.recompute import TOLERANCE, recompute
from harness.scenario.load import load_scenario
from tests.e2e.test_resume_killed import RANKS, command, finished, run_folder
from tests.run.test_resume_run import SCENARIO, rows, write_scenario

pytestmark = pytest.mark.slow
ACTORS = """
max_lag: 2
lag_control: drop
transport: {type: shared_memory}
placement: {colocated: false, learner: {cpus: 0.4}, generator: {count: 2, cpus: 0.4}, scorer: {cpus: 0.4}}
"""


def test_an_asynchronous_run_of_actors_is_repeated(tmp_path: Path) -> None:
    write_scenario(tmp_path, SCENARIO.replace("checkpoint: {every: 2}\n", "") + ACTORS)
    finished(command(tmp_path, "resumed.yaml", "--out", "first", "--set", "arrivals.record=true"))
    first = run_folder(tmp_path / "first")
    finished(command(tmp_path, "resumed.yaml", "--out", "again", "--set", f"arrivals.repeat={first}"))
    again = run_folder(tmp_path / "again")
    policies = [(each / "policy" / "model.safetensors").read_bytes() for each in (first, again)]
    assert policies[0] == policies[1]
    for name in ("groups.jsonl", "rollouts.jsonl"):
        assert rows(first / name) == rows(again / name), name
    assert {generator for generator, *_ in load_run(first).arrivals() if generator.startswith("generator")} == {
        "generator0",
        "generator1",
    }


def test_a_step_of_two_ranks_is_recomputed_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = SCENARIO.replace("{every: 2}", "{keep_steps: [0, 2]}").replace("steps: 8", "steps: 3")
    write_scenario(tmp_path, kept + RANKS)
    finished(command(tmp_path, "resumed.yaml", "--out", "out"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for step in (0, 2):
        checks, notes = recompute(run_folder(tmp_path / "out"), step, load_scenario("resumed.yaml"))
        assert [check.what for check in checks if not check.agrees] == []
        figures = {check.what: check for check in checks}
        assert (figures["loss"].values, figures["gradient norm"].values) == (2, 2)
        assert max(check.largest for check in checks) <= TOLERANCE
        assert any("2 ranks" in note for note in notes)
