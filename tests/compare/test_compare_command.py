"""``python -m harness.compare`` as it is typed: output, exit codes, messages, and what it does not load."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.compare import experiment
from harness.compare.__main__ import main
from harness.compare.experiment import gather_newest, read_members
from harness.core.types import ExampleRollout
from harness.report import tables
from harness.results import DamagedRun, find_run_folders

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
REWARDS = {0: (0.25, 12.0), 4: (0.55, 18.0)}
EARLY = "2026-11-19T08:00:00.000Z"


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """Have the output 200 characters wide, whatever the terminal."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def results(make_run, tmp_path):
    """An older experiment of one run and a newer one of two arms."""
    make_run(scenario="quickstart", experiment="20261119-080000", started_at=EARLY, evaluations=REWARDS)
    for arm in ("k1", "k2"):
        make_run(arm=arm, evaluations=REWARDS)
    return tmp_path / "results"


def typed(capsys, *arguments):
    """Type the command, which must not fail, and return its output without the spaces of its tables."""
    assert main([*map(str, arguments)]) == 0
    lines = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    return "\n".join(lines)


# ---- the forms


def test_the_full_form_holds_the_verdict_tables_on_a_terminal_and_to_be_pasted(capsys):
    folder, row = REFERENCE / "rdt_nixl", "weight sync | 1.582 | 1.390 to 1.801 | < 0.001 | 20.4% | slower"
    assert f"\n{row.replace(' | ', ' ')}\n" in typed(capsys, folder, "--full")
    assert f"\n| {row} |\n" in typed(capsys, folder, "--md", "--full").replace("\\", "")
    assert not any("1.390 to 1.801" in typed(capsys, folder, *form) for form in ([], ["--md"]))


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_terminal_has_colours_unless_they_are_not_wanted(monkeypatch, is_plain):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1" if is_plain else "")
    assert main([str(REFERENCE / "rdt_nixl")]) == 0
    written = terminal.getvalue()
    assert "object_store is 58% slower" in written
    assert ("\x1b" in written, "\x1b[31m" in written) == (not is_plain, not is_plain)  # slower is red


def test_the_newest_experiment_is_shown_and_the_others_are_counted_or_shown_when_asked(results, capsys):
    lines = typed(capsys, results).splitlines()
    assert (lines[0], "update 0.500 0.500 +0.0%" in lines) == ("sync_k / 20261120-111500", True)
    assert lines[-1].startswith("1 older experiment")
    listed = typed(capsys, results, "--full").splitlines()[-3:-1]
    assert listed == ["quickstart 20261119-080000 1 4 1.50 0.550", "sync_k 20261120-111500 2 4 1.50 0.550"]
    for arguments in ([results, "--all"], [results / "quickstart", results / "sync_k"]):  # both were named
        output = typed(capsys, *arguments)
        assert "quickstart / 20261119-080000" in output
        assert "sync_k / 20261120-111500" in output
    output = typed(capsys, results / "sync_k" / "20261120-111500" / "k2")  # a run without its siblings
    assert ("k2: 1.50 s per step" in output, "k1" in output) == (True, False)


def test_json_holds_every_experiment_and_nothing_else(results, capsys):
    data = json.loads(typed(capsys, results, "--json"))
    assert (data["schema"], data["schema_version"]) == ("harness.comparison", 3)
    assert [each["scenario"] for each in data["campaigns"]] == ["quickstart", "sync_k"]
    assert [variant["name"] for variant in data["campaigns"][1]["variants"]] == ["k1", "k2"]
    run = data["campaigns"][1]["variants"][0]["runs"][0]  # its seconds: test_one_step_time.py
    assert (run["figures"]["reward_last"], run["figures"]["kl/reference_k3"]) == (0.55, None)
    # the last two of four steps: 2 s, and an evaluation of 1 s
    assert run["window"] == {"first": 2, "last": 3, "steps": 2, "all_steps": 4, "seconds": 3.0}
    assert run["warm_up"] == {"steps": 2, "steady": None, "slow_start": False}
    assert (run["step"]["p10_s"], run["step"]["p90_s"]) == pytest.approx((1.1, 1.9))
    assert run["stages"]["update"] == pytest.approx({"mean_s": 0.5, "steps": 2, "share": 1 / 3, "total_s": 2.0})
    assert (data["damaged"], data["cautions"]) == ([], [])


def test_json_holds_syncs_overlap_and_ledger(make_lagged_run, capsys):
    (of_json,) = json.loads(typed(capsys, make_lagged_run(steps=2).folder, "--json"))["campaigns"]
    ((run,),) = (arm["runs"] for arm in of_json["variants"])
    # lag 0 in the first of two steps, 1 in the second; it has no buffer
    assert [run["figures"][name] for name in ("lag_mean", "replay_uses")] == [0.5, None]
    assert run["ledger"]["trained"] == {"rollouts": 32, "tokens": 320}
    assert run["held_back"] == {"batches": 0, "bound_batches": 0, "seconds": 0.0}
    assert (run["sync"]["transport"], run["sync"]["num_bytes"], run["sync"]["num_tensors"]) == ("nixl", 20_000_000, 3)
    assert run["sync"]["whole_s"] == pytest.approx([0.04])  # 10 + 20 + 10 ms
    # the Generator works until 0.8 s of both steps, the Scorer from 0.1 to 0.2 s, the Learner from 0.2 s until 0.96 s
    # of the first step, which has slower syncs, and 0.912 s of the second
    assert run["overlap"] == pytest.approx(
        {"worked_s": 2 * 0.9 + 0.76 + 0.712, "busy_s": 0.96 + 0.912, "together_s": 2 * 0.7}
    )


def test_a_gate_of_a_slower_arm_names_the_direction_in_json(capsys):
    folder = str(REFERENCE / "rdt_nixl")
    assert json.loads(typed(capsys, folder, "--json"))["gate"] is None
    assert main([folder, "--json", "--fail-on", "5%"]) == 1
    output = capsys.readouterr()
    data = json.loads(output.out)
    (judged,) = data["campaigns"][0]["verdicts"]
    directions = {effect["name"]: effect["direction"] for effect in (judged["step"], *judged["stages"])}
    assert (judged["base"], judged["other"], judged["endpoint"]["direction"]) == ("nixl", "object_store", "slower")
    assert (directions["step"], directions["weight_publish"], data["gate"]["code"]) == ("cannot tell", "slower", 1)
    assert "worse: +58.2%" in output.err


# ---- damage


def test_a_damaged_run_is_named_and_the_rest_compared(results, capsys):
    """What is left out by name: test_results_damaged_runs.py. In the end nothing of the newest experiment is left."""
    bad, arm = (results / "sync_k" / "20261120-111500" / name for name in ("k2", "k1"))
    (bad / "steps.jsonl").write_text("{}\n")
    data = json.loads(typed(capsys, results, "--json"))
    assert [item["folder"] for item in data["damaged"]] == [str(bad)]
    assert [variant["name"] for variant in data["campaigns"][1]["variants"]] == ["k1"]
    (arm / "spans.jsonl").write_text("{}\n")
    assert typed(capsys, results).startswith("quickstart / 20261119-080000\n")


# ---- many runs


def test_of_a_very_large_experiment_evenly_spaced_runs_have_their_spans_read(make_run, tmp_path, capsys, monkeypatch):
    for module in (experiment, tables):
        monkeypatch.setattr(module, "MOST_WITH_SPANS", 10)
    for block in range(6):
        for arm in ("a", "b"):
            make_run(arm=arm, block=block, seed=block, steps=1)
    experiments, newest, damaged = gather_newest([tmp_path / "results"])
    assert (len(experiments), len(newest.members), damaged) == (1, 12, [])
    read = [sum(run.times is not None for run in members) for members in newest.arms.values()]
    assert read == [3, 3]  # every second of 12
    assert all(run.table.metrics for run in newest.members)
    assert "Over 6 of 12 runs" in typed(capsys, tmp_path / "results", "--full")


def test_reading_in_several_processes_gives_the_same_figures(make_run, make_lagged_run, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "FEWEST_FOR_PROCESSES", 10)
    make_run(evaluations=REWARDS)
    make_lagged_run()
    (make_run(arm="bad").folder / "steps.jsonl").unlink()
    many = find_run_folders(tmp_path / "results") * 7
    in_full, with_spans = [[place % 4 >= least for place in range(len(many))] for least in (1, 2)]

    def seen(item):
        return str(item.error) if isinstance(item, DamagedRun) else (item.figures, item.times is None)

    one, several = ([*map(seen, read_members(many, in_full, with_spans, processes))] for processes in (1, 2))
    assert (len(one), one) == (len(many), several)


# ---- what is refused, and what is safe


def test_bad_input_is_one_clear_error(make_run, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    folder = make_run().folder
    (folder / "manifest.json").write_text("{")
    for arguments, error in (
        ([tmp_path / "empty"], f"no runs in '{tmp_path}/empty'\n  where: {tmp_path}/empty\n  fix: "),
        ([tmp_path / "absent"], f"'{tmp_path}/absent' does not exist\n"),
        ([folder], f"none of the 1 runs can be read; the first, '{folder}': "),
        ([REFERENCE / "sync_k", "--fail-on", "x"], "'x'"),
    ):
        assert main([*map(str, arguments)]) == 2
        assert capsys.readouterr().err.startswith(f"error: {error}")
    assert main([]) == 2
    assert "PATH" in capsys.readouterr().err


def test_text_from_files_cannot_command_the_terminal(make_run, tmp_path, capsys):
    error = "bad\x07 \x1b]0;title\x07 [red]text[/red]\nnext"
    rollouts = [
        ExampleRollout("Use: cat.", "\x1b[31ma [bold]dog[/bold]\n", "cat", 0.0, 5, "stop", 0),
        ExampleRollout("Use: cat.", "a cat sat.", "cat", 1.0, 4, "stop", 4),
    ]
    make_run(arm="\x1b[2Jk1 [bold]", status="failed", error=error, evaluations=REWARDS, rollouts=rollouts)
    shown = {form: typed(capsys, tmp_path / "results", *form.split()) for form in ("", "--full", "--md", "--md --full")}
    assert not {"\x1b", "\x07"} & {*"".join(shown.values())}
    assert r"bad\x07 \x1b]0;title\x07 [red]text[/red]\nnext" in shown[""]
    assert (
        "Rollouts of \\x1b[2Jk1 [bold] before and after\nprompt: Use: cat.\n"
        "version 0, reward 0, 5 tokens: \\x1b[31ma [bold]dog[/bold]\\n\nversion 4, reward 1, 4 tokens: a cat sat.\n"
    ) in shown["--full"]


def test_a_reader_that_leaves_early_is_no_error(results):
    command = f"{sys.executable} -m harness.compare {results} --all | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
