"""A step of two ranks, recomputed in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.oracle.kept import TOLERANCE, make_again
from harness.scenario.load import load_scenario
from tests.e2e.conftest import finish
from tests.e2e.test_resume_killed import RANKS, command, run_folder
from tests.run.test_resume_run import SCENARIO, write_scenario

pytestmark = pytest.mark.slow


def test_a_step_of_two_ranks_is_recomputed_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = SCENARIO.replace("{every: 2}", "{keep_steps: [0, 2]}").replace("steps: 8", "steps: 3")
    write_scenario(tmp_path, kept + RANKS)
    finish(command(tmp_path, "resumed.yaml", "--out", "out"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for step in (0, 2):
        again = make_again(run_folder(tmp_path / "out"), step, load_scenario("resumed.yaml"))
        assert [check.what for check in again.checks if check.differing] == []
        figures = {check.what: check for check in again.checks}
        assert (figures["loss"].values, figures["gradient norm"].values) == (2, 2)
        assert max(check.largest for check in again.checks) <= TOLERANCE
        assert any("2 ranks" in note for note in again.notes)
