"""What a change would do to a recorded run of another trainer: the sum of its critical path, with a stage scaled."""

from __future__ import annotations

import json
import time

import pytest

from harness import record
from harness.cli import main
from harness.results import load_run

STAGES_S = {"generate": 0.02, "update": 0.01}


@pytest.fixture
def recorded(tmp_path):
    folder = tmp_path / "run"
    with record.run(folder):
        for number in range(6):
            with record.step(number):
                for stage, seconds in STAGES_S.items():
                    with record.span(stage):
                        time.sleep(seconds)
    return folder


def test_a_scaled_stage_changes_a_step_by_its_seconds(recorded, capsys):
    assert main(["simulate", "--from", str(recorded), "--scale", "generate=0.5", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    run = load_run(recorded)
    rows = [row for row in run.steps if not row.warmup]
    step_s = sum(row.wall_s for row in rows) / len(rows)
    generate_s = sum(row.stages_s["generate"] for row in rows) / len(rows)
    assert answer["step_s"]["recorded"] == pytest.approx(step_s, rel=1e-3)  # the end of the run is part of the last one
    assert answer["step_s"]["recorded"] - answer["step_s"]["after"] == pytest.approx(generate_s / 2, rel=1e-6)
    gains = answer["gain_of_10_percent_off"]
    assert gains["generate"] == pytest.approx(generate_s / 10 / answer["step_s"]["recorded"], rel=1e-6)
    assert set(gains) == set(STAGES_S)


def test_what_only_a_replay_could_answer_is_refused(recorded, capsys):
    for typed, words in ((["--set", "max_lag=1"], "--scale"), (["--scale", "reward=2"], "generate, update")):
        assert main(["whatif", str(recorded), *typed]) == 2
        assert words in capsys.readouterr().err
