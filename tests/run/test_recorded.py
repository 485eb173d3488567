"""Arms that are programs: they take turns with ours, each ends alone, and their experiment goes on where it stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.cli import main
from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.results import find_runs
from harness.run.commands.record import arm_names
from harness.scenario.axes import expand
from harness.scenario.load import check_data

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys, time
from harness import record
kind, told = sys.argv[1:3]
with open(os.path.join(os.path.dirname(__file__), "started"), "a") as file:
    file.write(f"{kind} {told}\\n")
for n in range(2):
    with record.step(n), record.span("update"):
        pass
    record.count(tokens=8, rollouts=2)
if kind == "crashes":
    print("a secret in its output")
    sys.exit(3)
if kind == "hangs":
    time.sleep(600)
"""
PACED = {
    "steps": 2,
    "model": {"type": "paced", "update_s": 0.001, "megabytes": 0.5, "tensors": 5},
    "engine": {"type": "paced", "generate_s": 0.001},
    "rollout_batch_size": 4,
    "group_size": 2,
    "evaluation": {"every": 2, "prompts": 2, "examples": 1},
    "save_policy": False,
}


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program that records; beside it a file has what was started, in order."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return path


def started(program):
    return (program.parent / "started").read_text().splitlines()


def of(program, kind, told="{seed}"):
    return {"command": [sys.executable, str(program), kind, told]}


def scenario_file(tmp_path, **settings):
    path = tmp_path / "programs.yaml"
    path.write_text(json.dumps(PACED | settings))  # which is YAML
    return path


def runs_of(out):
    runs, damaged = find_runs(out)
    assert not damaged
    return {run.folder.name: run for run in runs}


def test_programs_take_turns_with_our_loop_and_each_ends_alone(tmp_path, program, capfd):
    arms = {"ours": {}, "good": of(program, "good"), "crashes": of(program, "crashes")}
    arms["hangs"] = of(program, "hangs") | {"faults.stall_after_s": 8}
    path = scenario_file(tmp_path, seed=5, blocks=2, arms=arms)
    assert main(["run", str(path), "--out", str(tmp_path / "out")]) == 1
    runs = runs_of(tmp_path / "out")
    assert {name: run.status for name, run in runs.items()} == {
        f"{arm},block={block}": status
        for block in (0, 1)
        for arm, status in (("ours", "completed"), ("good", "completed"), ("crashes", "failed"), ("hangs", "failed"))
    }
    first, second = started(program)[:3], started(program)[3:]
    assert sorted(first) == ["crashes 5", "good 5", "hangs 5"]
    assert second == [line.replace("5", "6") for line in reversed(first)]  # ABBA, and the block's seed
    assert "exit code 3" in (runs["crashes,block=0"].manifest.error or "")
    assert "8 s" in (runs["hangs,block=0"].manifest.error or "")
    for name, run in runs.items():
        about = run.manifest
        assert (about.scenario, about.block, f"{about.arm},block={about.block}") == ("programs", about.block, name)
        assert len(run.steps) == 2
    recorded = runs["good,block=1"]
    assert recorded.manifest.machine["fingerprint"] == runs["ours,block=0"].manifest.machine["fingerprint"]
    assert [span.step for span in recorded.spans() if span.stage is Stage.UPDATE] == [0, 1]
    assert "a secret in its output" in capfd.readouterr().err  # shown, since it failed
    kept = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.name != "scenario.resolved.yaml"]
    assert not any(b"a secret" in path.read_bytes() for path in kept)


def test_the_settings_are_handed_to_a_program_that_asks_for_them(tmp_path, program):
    path = scenario_file(tmp_path, arms={"one": of(program, "good", "{scenario}"), "two": {}})
    assert main(["run", str(path), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    (line,) = started(program)
    handed = Path(line.partition(" ")[2])
    assert handed == runs_of(tmp_path / "out")["one"].folder / "scenario.resolved.yaml"
    assert "steps: 2" in handed.read_text()


def test_nothing_but_a_run_starts_a_program(tmp_path, program, capsys):
    path = scenario_file(tmp_path, arms={"one": of(program, "good"), "two": {}})
    out = ["--out", str(tmp_path / "out")]
    assert main(["validate", str(path)]) == 0
    assert main(["run", str(path), *out, "--dry-run"]) == 0
    assert "one" in capsys.readouterr().out
    assert not (tmp_path / "started").exists()
    missing = scenario_file(tmp_path, arms={"one": {"command": ["no-such-program"]}, "two": {}})
    assert main(["run", str(missing), *out, "--dry-run"]) == 2
    assert "there is no program no-such-program" in capsys.readouterr().out
    assert main(["run", str(missing), *out]) == 2
    assert not (tmp_path / "out").exists()


def test_an_experiment_of_programs_goes_on_where_it_was_killed(tmp_path, program):
    """Killed while the second program hangs, whose process is gone then; the first one is not run again."""
    path = scenario_file(
        tmp_path, interleaving="run", arms={"good": of(program, "good"), "hangs": of(program, "hangs")}
    )
    out = tmp_path / "out"
    typed = [sys.executable, "-m", "harness", "run", str(path), "--out", str(out)]
    process = subprocess.Popen(typed, env=os.environ, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "started").exists() or not any(line.startswith("hangs") for line in started(program)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    waited = time.monotonic() + 60
    while _processes_of(program) and time.monotonic() < waited:
        time.sleep(0.1)
    assert not _processes_of(program)
    (experiment,) = (out / "programs").iterdir()
    program.write_text(PROGRAM.replace("time.sleep(600)", "pass"))
    assert main(["run", str(path), "--resume", str(experiment), "--quiet"]) == 0
    assert {name: run.status for name, run in runs_of(experiment).items()} == {
        "good": "completed",
        "hangs": "completed",
    }
    assert sorted(line.split()[0] for line in started(program)) == ["good", "hangs", "hangs"]


def _processes_of(program):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found += [folder.name] if str(program).encode() in words and b"hangs" in words else []
    return found


def test_commands_are_compared_in_blocks(tmp_path, program, capsys):
    typed = ["record", "--out", str(tmp_path / "out"), "--name", "two", "--blocks", "2", "--"]
    commands = [[sys.executable, str(program), kind, "{seed}"] for kind in ("good", "better")]
    assert main([*typed, *commands[0], ":::", *commands[1]]) == 0
    assert sorted(started(program)) == ["better 0", "better 1", "good 0", "good 1"]
    assert set(runs_of(tmp_path / "out")) == {f"{arm},block={block}" for arm in ("good", "better") for block in (0, 1)}
    assert "better" in capsys.readouterr().out
    (folder,) = (tmp_path / "out" / "two").iterdir()
    left = next(folder.glob("good*block=1"))
    shutil.rmtree(left)
    assert main([*typed[:-1], "--resume", str(folder), "--", *commands[0], ":::", *commands[1]]) == 0
    assert started(program)[4:] == ["good 1"]
    assert left.is_dir()
    assert main([*typed[:-1], "--arm", "x", "--", *commands[0], ":::", *commands[1]]) == 2


def test_commands_are_named_by_what_differs():
    assert arm_names([["p", "a.py", "--lr", "1"], ["p", "a.py", "--lr", "2"]]) == ["1", "2"]
    assert arm_names([["p", "a.py"], ["p", "b.py", "--fast"]]) == ["a.py", "b.py-fast"]
    assert arm_names([["p", "a.py"], ["p", "a.py"]]) == ["command-1", "command-2"]


@pytest.mark.parametrize("settings", [{"interleaving": "step"}, {"transport_sweep": {}}])
def test_a_program_is_one_process_from_start_to_end(settings):
    data = PACED | settings | {"arms": {"one": {"command": ["true"]}, "two": {}}}
    with pytest.raises(UserError, match="programs_run_alone"):
        expand(check_data(data, "scenario"))
