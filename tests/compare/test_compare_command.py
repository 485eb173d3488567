"""``python -m harness.compare`` as it is typed: output, exit codes, messages, and what it does not load."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from pathlib import Path

import pytest

from harness.compare import experiment
from harness.compare.__main__ import main
from harness.compare.experiment import Member, gather_newest, read_members
from harness.core.types import ExampleRollout
from harness.report import tables
from harness.results import DamagedRun, RunFolder, find_run_folders

Make = Callable[..., RunFolder]
Capture = pytest.CaptureFixture[str]
REFERENCE = Path(__file__).parents[2] / "results" / "reference"
REWARDS = {0: (0.25, 12.0), 4: (0.55, 18.0)}
EARLY = "2026-11-19T08:00:00.000Z"
MOST_LINES = 30


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the output 200 characters wide, whatever the terminal."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def results(make_run: Make, tmp_path: Path) -> Path:
    """An older experiment of one run and a newer one of two arms."""
    make_run(scenario="quickstart", experiment="20261119-080000", started_at=EARLY, evaluations=REWARDS)
    for arm in ("k1", "k2"):
        make_run(arm=arm, evaluations=REWARDS)
    return tmp_path / "results"


def typed(capsys: Capture, *arguments: str | Path) -> str:
    """Type the command, which must not fail, and return its output without the spaces of its tables."""
    assert main([*map(str, arguments)]) == 0
    lines = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    return "\n".join(lines)


# ---- the forms


@pytest.mark.parametrize(
    ("name", "answer", "row"),
    [
        ("async_lag1",
         "sync_one_thread is 38% slower per step than sync_two_threads (31 to 44%, 12 blocks); same final reward",
         "whole step 0.316* 0.435* +37.6% 0.366* +15.7% 0.298 -5.9%"),
        ("rdt_nixl", "object_store is 58% slower in seconds of a weight sync than nixl (39 to 80%, 7 blocks).",
         "whole step 0.533* 0.556* +4.4% +0.7% to +8.3% cannot tell: chance?"),
        ("sync_k", "k2 was 78.7% slower than k1 per step (one run each).",
         "whole step 0.506* 0.904* +78.7% 1.65* +226% 3.48* +588%"),
    ],
    ids=["four arms", "an endpoint", "one run each"],
)  # fmt: skip
def test_the_short_form_is_a_screen_of_80_columns_that_begins_with_the_answer(
    name: str, answer: str, row: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([str(REFERENCE / name)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(max(1, ceil(len(line) / 80)) for line in lines) <= MOST_LINES
    assert lines[0].startswith(f"{name} / 2026")
    assert " ".join(lines[1:]).startswith(answer)
    assert row in [" ".join(line.split()) for line in lines]


def test_the_full_form_holds_the_verdict_tables_on_a_terminal_and_to_be_pasted(capsys: Capture) -> None:
    folder = REFERENCE / "rdt_nixl"
    numbers = ("weight sync", "1.582", "1.390 to 1.801", "< 0.001", "20.4%", "slower")
    text = typed(capsys, folder, "--full")
    assert "\nobject_store against nixl, 7 blocks (the arms took turns by step)\n" in text
    assert f"\n{' '.join(numbers)}\n" in text
    assert "\nweight_publish 7.314 5.938 to 9.009 < 0.001 79.5% slower\n" in text
    markdown = typed(capsys, folder, "--md", "--full").replace("\\", "")
    assert f"\n| {' | '.join(numbers)} |\n" in markdown
    assert " ".join(numbers) not in typed(capsys, folder)
    assert "against nixl, 7 blocks (" not in typed(capsys, folder, "--md")


def test_a_table_to_paste_is_markdown(results: Path, capsys: Capture) -> None:
    output = typed(capsys, results / "sync_k", "--md")
    assert output.startswith("## sync\\_k / 20261120-111500\n")
    assert "\n| seconds per step | k1 | k2 | change |\n| --- | ---: | ---: | ---: |\n" in output
    assert "\n| whole step | 1.50 | 1.50 | +0.0% |\n| generate | 0.300 | 0.300 | +0.0% |\n" in output
    assert "\n- One run each: no error bars. For some:\n- `python -m harness bench" in output
    assert typed(capsys, results / "sync_k", "--md") == output


@pytest.mark.parametrize(("variables", "is_plain"), [({}, False), ({"NO_COLOR": "1"}, True)])
def test_a_terminal_has_colours_unless_they_are_not_wanted(variables: dict[str, str], is_plain: bool) -> None:
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color"} | variables
    command = [sys.executable, "-m", "harness.compare", str(REFERENCE / "rdt_nixl")]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment):
        os.close(theirs)
        written = b""
        with suppress(OSError):  # as the end of a terminal is told
            while part := os.read(ours, 65536):
                written += part
    os.close(ours)
    assert b"object_store is 58% slower" in written
    assert (b"\x1b" not in written) == is_plain
    assert (b"\x1b[31m" in written) != is_plain  # slower is red


def test_the_newest_experiment_is_shown_and_the_others_are_counted(results: Path, capsys: Capture) -> None:
    assert main([str(results)]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    lines = [" ".join(line.split()) for line in output.out.splitlines()]
    assert lines[0] == "sync_k / 20261120-111500"
    assert "update 0.500 0.500 +0.0%" in lines
    assert lines[-1] == "1 older experiment: listed with --full, shown with --all."
    table = typed(capsys, results, "--full")
    assert "\nquickstart 20261119-080000 1 4 1.50 0.550\nsync_k 20261120-111500 2 4 1.50 0.550\n" in f"{table}\n"


def test_all_experiments_are_shown_when_asked(results: Path, capsys: Capture) -> None:
    for arguments in ([results, "--all"], [results / "quickstart", results / "sync_k"]):  # both were named
        output = typed(capsys, *arguments)
        assert "quickstart / 20261119-080000" in output
        assert "sync_k / 20261120-111500" in output


def test_json_holds_every_experiment_and_nothing_else(results: Path, capsys: Capture) -> None:
    assert main([str(results), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["schema_version"]) == ("harness.comparison", 3)
    assert [each["scenario"] for each in data["campaigns"]] == ["quickstart", "sync_k"]
    assert [variant["name"] for variant in data["campaigns"][1]["variants"]] == ["k1", "k2"]
    run = data["campaigns"][1]["variants"][0]["runs"][0]
    assert run["figures"]["reward_last"] == 0.55
    assert run["figures"]["kl/reference_k3"] is None
    # the last two of four steps: 2 s, and an evaluation of 1 s
    assert run["window"] == {"first": 2, "last": 3, "steps": 2, "all_steps": 4, "seconds": 3.0}
    assert run["warm_up"] == {"steps": 2, "steady": None, "slow_start": False}
    assert run["step"] == pytest.approx({"mean_s": 1.5, "p10_s": 1.1, "median_s": 1.5, "p90_s": 1.9})
    assert run["stages"]["update"] == pytest.approx({"mean_s": 0.5, "steps": 2, "share": 1 / 3, "total_s": 2.0})
    assert run["exposed_s"]["update"] == pytest.approx(0.5)
    # 2 updates of 0.5 s, and waits during the rest
    assert run["lanes"]["learner"] == {
        "wall_s": 3.0,
        "stages_s": {"update": 1.0, "wait_for_batch": 2.0},
        "unattributed_s": 0.0,
    }
    assert (data["damaged"], data["cautions"]) == ([], [])


def test_json_holds_syncs_overlap_and_ledger(make_lagged_run: Make, tmp_path: Path, capsys: Capture) -> None:
    for seed in range(3):
        make_lagged_run(arm="a", seed=seed, steps=2)
        make_lagged_run(arm="b", seed=seed, steps=2, rewards=(0.2, 0.7))
    assert main([str(tmp_path / "results"), "--json"]) == 0
    (of_json,) = json.loads(capsys.readouterr().out)["campaigns"]
    base, other = of_json["variants"]
    assert base["reward_last_difference"] is None
    difference = other["reward_last_difference"]
    assert (difference["baseline"], difference["seeds"], difference["pairs"]) == ("a", 3, 1)
    assert difference["mean"] == difference["low"] == difference["high"] == pytest.approx(0.1)
    run = other["runs"][0]
    assert run["figures"]["lag_mean"] == 0.5  # 0 in the first of two steps, 1 in the second
    assert run["figures"]["idle_generator"] == pytest.approx(0.2)
    assert run["figures"]["replay_uses"] is None  # it has no buffer
    assert run["ledger"]["trained"] == {"rollouts": 32, "tokens": 320}
    assert run["held_back"] == {"batches": 0, "bound_batches": 0, "seconds": 0.0}
    assert (run["sync"]["transport"], run["sync"]["num_bytes"], run["sync"]["num_tensors"]) == ("nixl", 20_000_000, 3)
    assert run["sync"]["whole_s"] == pytest.approx([0.04])  # 10 + 20 + 10 ms
    # the Generator works until 0.8 s of both steps, the Scorer from 0.1 to 0.2 s, the Learner from 0.2 s until 0.96 s
    # of the first step, which has slower syncs, and 0.912 s of the second
    assert run["overlap"] == pytest.approx(
        {"worked_s": 2 * 0.9 + 0.76 + 0.712, "busy_s": 0.96 + 0.912, "together_s": 2 * 0.7}
    )


# ---- damage


def test_a_damaged_run_is_named_and_the_rest_compared(results: Path, capsys: Capture) -> None:
    bad, arm = (results / "sync_k" / "20261120-111500" / name for name in ("k2", "k1"))
    steps = bad / "steps.jsonl"
    steps.write_text(steps.read_text().replace('"step":2', '"step":"two"'))
    assert main([str(results)]) == 0
    output = capsys.readouterr()
    assert output.err == (
        f"warning: left out '{bad}': '{steps}' is damaged at line 5: Expected `int`, got `str` - at `$.step`\n"
    )
    assert "update 0.500 33.3%" in [" ".join(line.split()) for line in output.out.splitlines()]
    assert main([str(results), "--json"]) == 0
    assert [item["folder"] for item in json.loads(capsys.readouterr().out)["damaged"]] == [str(bad)]
    (arm / "spans.jsonl").write_text("{}\n")  # nothing of the newest experiment is left
    assert main([str(results)]) == 0
    output = capsys.readouterr()
    assert f"warning: left out '{arm}': " in output.err
    assert "its schema is not 'harness.spans'" in output.err
    assert output.out.startswith("quickstart / 20261119-080000\n")


def test_damage_in_the_newest_experiment_takes_out_the_run_and_not_the_experiment(
    results: Path, capsys: Capture
) -> None:
    bad = results / "sync_k" / "20261120-111500" / "k1"
    (bad / "spans.jsonl").write_text("{}\n")
    output = typed(capsys, results, "--full")
    assert "\nupdate 0.500 33.3%\n" in output
    assert "\nsync_k 20261120-111500 1 4 1.50 0.550\n" in f"{output}\n"


def test_a_run_folder_is_shown_without_its_siblings(results: Path, capsys: Capture) -> None:
    output = typed(capsys, results / "sync_k" / "20261120-111500" / "k2")
    assert "\nk2: 1.50 s per step; validation reward 0.25 to 0.55" in output
    assert "k1" not in output


# ---- many runs


def test_of_a_very_large_experiment_evenly_spaced_runs_have_their_spans_read(
    make_run: Make, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    output = typed(capsys, tmp_path / "results", "--full").replace("\n", " ")
    assert "Over 6 of 12 runs, those whose spans were read; --all reads them all." in output


def test_reading_in_several_processes_gives_the_same_figures(
    make_run: Make, make_lagged_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "FEWEST_FOR_PROCESSES", 10)
    make_run(evaluations=REWARDS)
    make_lagged_run()
    (make_run(arm="bad").folder / "steps.jsonl").unlink()
    folders = find_run_folders(tmp_path / "results")
    many = folders * 7
    in_full, with_spans = [[place % 4 >= least for place in range(len(many))] for least in (1, 2)]
    one, several = (read_members(many, in_full, with_spans, processes) for processes in (1, 2))

    def seen(item: Member | DamagedRun) -> object:
        return str(item.error) if isinstance(item, DamagedRun) else (item.figures, item.times is None)

    assert [seen(item) for item in one] == [seen(item) for item in several]
    assert len(one) == len(many)


# ---- what is refused, and what is safe


def test_bad_input_is_one_clear_error(make_run: Make, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err == (
        f"error: no runs in '{tmp_path}/empty'\n  where: {tmp_path}/empty\n"
        "  fix:   make one with: python -m harness run quickstart\n"
    )
    assert main([str(tmp_path / "absent")]) == 2
    assert capsys.readouterr().err.startswith(f"error: '{tmp_path}/absent' does not exist\n")
    folder = make_run().folder
    (folder / "manifest.json").write_text("{")
    assert main([str(folder)]) == 2
    assert capsys.readouterr().err.startswith(f"error: none of the 1 runs can be read; the first, '{folder}': ")


def test_usage_errors_exit_with_2(capsys: Capture) -> None:
    assert main([]) == 2
    assert "PATH" in capsys.readouterr().err


def test_text_from_files_cannot_command_the_terminal(make_run: Make, tmp_path: Path, capsys: Capture) -> None:
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


def test_a_reader_that_leaves_early_is_no_error(results: Path) -> None:
    command = f"{sys.executable} -m harness.compare {results} --all | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


# ---- gates


def test_a_slower_arm_is_a_failure_for_a_gate_alone_and_json_names_the_direction(capsys: Capture) -> None:
    folder = str(REFERENCE / "rdt_nixl")
    assert main([folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gate"] is None
    assert main([folder, "--json", "--fail-on", "5%"]) == 1
    output = capsys.readouterr()
    data = json.loads(output.out)
    (judged,) = data["campaigns"][0]["verdicts"]
    assert (judged["base"], judged["other"], judged["endpoint"]["direction"]) == ("nixl", "object_store", "slower")
    assert (judged["step"]["verdict"], judged["step"]["direction"]) == ("inconclusive", "cannot tell")
    directions = {stage["name"]: stage["direction"] for stage in judged["stages"]}
    assert directions["weight_publish"] == "slower"
    assert data["gate"]["code"] == 1
    assert "gate: object_store against nixl, seconds of a weight sync: worse: +58.2%" in output.err
    assert main([folder, "--fail-on", "x"]) == 2
    assert "not a share above 0%" in capsys.readouterr().err
