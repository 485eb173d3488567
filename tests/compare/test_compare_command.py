"""``python -m harness.compare`` as it is typed: output, exit codes, messages, and what it does not load."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.compare.__main__ import main
from harness.compare.experiments import FEWEST_FOR_PROCESSES, MOST_WITH_SPANS, Detail, gather_newest, read_figures
from harness.core.trace import Stage
from harness.results import DamagedRun, RunFolder, find_run_folders

Make = Callable[..., RunFolder]
REWARDS = {0: (0.25, 12.0), 4: (0.55, 18.0)}
EARLY = "2026-11-19T08:00:00.000Z"


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the output 200 characters wide, whatever the terminal."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def results(make_run: Make, tmp_path: Path) -> Path:
    """An older experiment of one run and a newer one of two arms."""
    make_run(
        scenario="quickstart", experiment="20261119-080000", started_at="2026-11-19T08:00:00.000Z", evaluations=REWARDS
    )
    for arm in ("k1", "k2"):
        make_run(arm=arm, evaluations=REWARDS)
    return tmp_path / "results"


def test_the_newest_experiment_is_shown_in_detail(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(results)]) == 0
    output = capsys.readouterr()
    lines = [" ".join(line.split()) for line in output.out.splitlines()]
    assert "quickstart 20261119-080000 1 4 1.50 0.550" in lines
    assert "sync_k 20261120-111500 2 4 1.50 0.550" in lines
    assert "sync_k / 20261120-111500" in lines
    assert "quickstart / 20261119-080000" not in lines
    assert "update 0.500 33.3% 0.500 33.3%" in lines
    assert "- One block and one seed: figures, not a verdict." in lines
    assert output.err == ""


def test_all_experiments_are_shown_when_asked(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(results), "--all"]) == 0
    assert "quickstart / 20261119-080000" in capsys.readouterr().out
    assert main([str(results / "quickstart"), str(results / "sync_k")]) == 0  # both were named
    assert "quickstart / 20261119-080000" in capsys.readouterr().out


def test_json_holds_every_experiment_and_nothing_else(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(results), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["schema_version"]) == ("harness.comparison", 2)
    assert [experiment["scenario"] for experiment in data["campaigns"]] == ["quickstart", "sync_k"]
    assert [variant["name"] for variant in data["campaigns"][1]["variants"]] == ["k1", "k2"]
    run = data["campaigns"][1]["variants"][0]["runs"][0]
    assert run["figures"]["reward_last"] == 0.55
    assert run["figures"]["kl/reference_k3"] is None
    # the last two of four steps: 2 s, and an evaluation of 1 s
    assert run["window"] == {"first": 2, "last": 3, "steps": 2, "all_steps": 4, "seconds": 3.0}
    assert run["warm_up"] == {"steps": 2, "steady": None, "slow_start": False}
    assert run["step"] == pytest.approx({"mean_s": 1.5, "p10_s": 1.1, "median_s": 1.5, "p90_s": 1.9})
    assert run["stages"]["update"] == pytest.approx({"mean_s": 0.5, "steps": 2, "share": 1 / 3, "total_s": 2.0})
    # 2 updates of 0.5 s, and waits during the rest
    assert run["lanes"]["learner"] == {
        "wall_s": 3.0,
        "stages_s": {"update": 1.0, "wait_for_batch": 2.0},
        "unattributed_s": 0.0,
    }
    assert (data["damaged"], data["cautions"]) == ([], [])


def test_json_holds_syncs_overlap_and_ledger(
    make_lagged_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        make_lagged_run(arm="a", seed=seed, steps=2)
        make_lagged_run(arm="b", seed=seed, steps=2, rewards=(0.2, 0.7))
    assert main([str(tmp_path / "results"), "--format", "json"]) == 0
    (experiment,) = json.loads(capsys.readouterr().out)["campaigns"]
    base, other = experiment["variants"]
    assert base["reward_last_difference"] is None
    difference = other["reward_last_difference"]
    assert (difference["baseline"], difference["seeds"]) == ("a", 3)
    assert difference["mean"] == difference["low"] == difference["high"] == pytest.approx(0.1)
    run = other["runs"][0]
    assert run["figures"]["lag_mean"] == 0.5  # 0 in the first of two steps, 1 in the second
    assert run["figures"]["idle_generator"] == pytest.approx(0.2)
    assert run["ledger"]["trained"] == {"rollouts": 32, "tokens": 320}
    assert run["held_back"] == {"batches": 0, "bound_batches": 0, "seconds": 0.0}
    assert (run["sync"]["transport"], run["sync"]["num_bytes"], run["sync"]["num_tensors"]) == ("nixl", 20_000_000, 3)
    assert run["sync"]["whole_s"] == pytest.approx([0.04])  # 10 + 20 + 10 ms
    assert run["overlap"]["loop_s"] == 2.0


def test_tables_of_syncs_and_lag_are_shown(
    make_lagged_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_lagged_run()
    for form, heading in (("text", "Weight syncs\n"), ("md", "**Weight syncs**\n")):
        assert main([str(tmp_path / "results"), "--format", form]) == 0
        output = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
        assert heading in output
        assert heading.replace("Weight syncs", "Off-policy") in output


def test_markdown_has_the_same_tables(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(results / "sync_k"), "--format", "md"]) == 0
    output = capsys.readouterr().out
    assert "## sync\\_k / 20261120-111500\n" in output
    assert "| stage | k1 | k2 |\n| --- | ---: | ---: |\n| generate | 0.300 20.0% | 0.300 20.0% |\n" in output


def test_a_damaged_run_is_named_and_the_rest_compared(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = results / "sync_k" / "20261120-111500" / "k2"
    steps = bad / "steps.jsonl"
    steps.write_text(steps.read_text().replace('"step":2', '"step":"two"'))
    assert main([str(results)]) == 0
    output = capsys.readouterr()
    assert output.err == (
        f"warning: left out '{bad}': '{steps}' is damaged at line 5: Expected `int`, got `str` - at `$.step`\n"
    )
    lines = [" ".join(line.split()) for line in output.out.splitlines()]
    assert "update 0.500 33.3%" in lines
    assert main([str(results), "--format", "json"]) == 0
    assert [item["folder"] for item in json.loads(capsys.readouterr().out)["damaged"]] == [str(bad)]


def test_where_the_newest_experiment_has_damaged_spans_the_next_one_is_shown(
    make_run: Make, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = make_run(scenario="newest", experiment="20261130-000000", started_at="2026-11-30T00:00:00.000Z").folder
    (newest / "spans.jsonl").write_text("{}\n")
    assert main([str(results)]) == 0
    output = capsys.readouterr()
    assert output.err.startswith(f"warning: left out '{newest}': ")
    assert "the header of harness.spans is missing" in output.err
    assert "\nsync_k / 20261120-111500" in output.out


def test_damage_in_the_newest_experiment_takes_out_the_run_and_not_the_experiment(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = results / "sync_k" / "20261120-111500" / "k1"
    (bad / "spans.jsonl").write_text("{}\n")
    assert main([str(results)]) == 0
    output = capsys.readouterr()
    assert output.err.count("warning: left out") == 1
    assert f"warning: left out '{bad}': " in output.err
    lines = [" ".join(line.split()) for line in output.out.splitlines()]
    assert "update 0.500 33.3%" in lines
    assert "sync_k 20261120-111500 1 4 1.50 0.550" in lines


def test_a_run_folder_is_shown_without_its_siblings(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(results / "sync_k" / "20261120-111500" / "k2")]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "stage k2" in lines


def test_of_a_very_large_experiment_evenly_spaced_runs_have_their_spans_read(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for block in range(MOST_WITH_SPANS // 2 + 1):
        for arm in ("a", "b"):
            make_run(arm=arm, block=block, seed=block, steps=1).close()
    experiments, newest, damaged = gather_newest([tmp_path / "results"])
    assert (len(experiments), len(newest.runs), damaged) == (1, MOST_WITH_SPANS + 2, [])
    read = [sum(bool(run.lanes) for run in variant.runs) for variant in newest.variants]
    assert sum(read) == MOST_WITH_SPANS // 2 + 1  # every second of 202
    assert max(read) - min(read) <= 1
    assert all(run.series is not None for run in newest.runs)
    assert main([str(tmp_path / "results")]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "over the 101 of 202 runs whose spans were read; --all reads them all." in output


def test_reading_in_several_processes_gives_the_same_figures(
    make_run: Make, make_lagged_run: Make, tmp_path: Path
) -> None:
    make_run(evaluations=REWARDS)
    make_lagged_run()
    damaged = make_run(arm="bad").folder
    (damaged / "steps.jsonl").unlink()
    folders = find_run_folders(tmp_path / "results")
    many = [folder for _ in range(FEWEST_FOR_PROCESSES // len(folders) + 1) for folder in folders]
    details = [tuple(Detail)[place % 3] for place in range(len(many))]
    one, several = (read_figures(many, details, processes) for processes in (1, 2))
    assert [str(item.error) for item in several if isinstance(item, DamagedRun)] == [
        str(item.error) for item in one if isinstance(item, DamagedRun)
    ]
    assert len(one) == len(several) == len(many)
    assert [item for item in one if not isinstance(item, DamagedRun)] == [
        item for item in several if not isinstance(item, DamagedRun)
    ]


def test_bad_input_is_one_clear_error(make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "PATH" in capsys.readouterr().err


def test_unlike_machines_are_said_across_experiments(
    make_run: Make, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(scenario="other", experiment="20261118-000000", started_at=EARLY, machine={"fingerprint": "ffffffffffff"})
    assert main([str(results)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "machine ffffffffffff" in output
    assert "Seconds of one of these groups cannot be compared with those of another." in output


def test_text_from_files_cannot_command_the_terminal(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(arm="\x1b[2Jk1 [bold]", status="failed", error="bad\x07 \x1b]0;title\x07 [red]text[/red]\nnext")
    for form in ("text", "md"):
        assert main([str(tmp_path / "results"), "--format", form]) == 0
        output = capsys.readouterr().out
        assert "\x1b" not in output
        assert "\x07" not in output
    assert main([str(tmp_path / "results")]) == 0
    assert r"bad\x07 \x1b]0;title\x07 [red]text[/red]\nnext" in capsys.readouterr().out


def test_comparing_loads_nothing_heavy(results: Path) -> None:
    program = (
        "import sys\n"
        "from harness.compare.__main__ import main\n"
        "code = main(sys.argv[1:])\n"
        "heavy = {'torch', 'ray', 'transformers', 'pandas', 'seaborn', 'matplotlib', 'pydantic'}\n"
        "print('loaded', sorted(heavy & set(sys.modules)), code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(results)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "loaded [] 0"


def test_a_reader_that_leaves_early_is_no_error(results: Path) -> None:
    command = f"{sys.executable} -m harness.compare {results} --all | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def blocks_of(make_run: Make, factor: float, count: int = 10) -> None:
    """Two arms in blocks; the second takes ``factor`` times as long, give or take a little."""
    for block in range(count):
        for arm, times in (("old", 1.0), ("new", factor * (1 + 0.001 * (-1) ** block))):
            stages = (("generator", Stage.GENERATE, 0.5 * times), ("learner", Stage.UPDATE, 0.5 * times))
            plan = {"scenario": "bench", "arm": arm, "block": block, "seed": block, "steps": 6, "position": block}
            make_run(**plan, stages=stages, settings=f"steps: 6\ngroup_size: {8 if arm == 'old' else 4}\n")


@pytest.mark.parametrize(
    ("factor", "blocks", "limit", "code", "said"),
    [
        (1.10, 10, "5%", 1, "worse: +10.0%"),
        (1.01, 10, "5%", 0, "fine: +1.0%"),
        (0.90, 10, "5%", 0, "fine: -10.0%"),
        (1.05, 10, "5%", 4, "inconclusive"),
        (1.10, 4, "5%", 4, "inconclusive"),
    ],
)
def test_a_gate_ends_with_the_code_of_its_verdict(
    make_run: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    factor: float,
    blocks: int,
    limit: str,
    code: int,
    said: str,
) -> None:
    blocks_of(make_run, factor, blocks)
    assert main([str(tmp_path / "results"), "--baseline", "old", "--fail-on", limit]) == code
    captured = capsys.readouterr()
    assert f"gate: new against old, seconds per step: {said}" in captured.err
    assert "Verdict: new against old" in captured.out


def test_without_a_gate_a_slower_arm_is_no_failure(make_run: Make, tmp_path: Path) -> None:
    blocks_of(make_run, 1.5)
    assert main([str(tmp_path / "results")]) == 0


def test_json_has_verdicts_and_gate(make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks_of(make_run, 1.2)
    assert main([str(tmp_path / "results"), "--format", "json", "--fail-on", "5%", "--baseline", "old"]) == 1
    found = json.loads(capsys.readouterr().out)
    (judgement,) = found["campaigns"][0]["verdicts"]
    assert (judgement["base"], judgement["other"], judgement["step"]["verdict"]) == ("old", "new", "different")
    assert judgement["step"]["ratio"] == pytest.approx(1.2, rel=1e-4)
    assert found["gate"]["code"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--fail-on", "x"], "not a share above 0%"), (["--fail-on"], "expected")]
)
def test_a_limit_that_is_none_is_bad_input(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    blocks_of(make_run, 1.2, 1)
    try:
        code = main([str(tmp_path / "results"), *arguments])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert said in capsys.readouterr().err
