"""The command: what it prints, draws and refuses, on committed runs of this project."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main
from harness.core.errors import UserError
from harness.results import RunFolder, find_runs, load_run
from harness.results.rows import SPANS
from harness.simulate.recorded_run import choose_run
from harness.simulate.whatif.answer import what_if

RUNS = Path("results/reference/paced_overlap")


def test_a_change_and_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(RUNS), "--run", "sync", "--set", "max_lag=1", "--out", str(tmp_path)]) == 0

    said = " ".join(capsys.readouterr().out.split())
    assert "What if: paced_overlap / " in said
    # the Generator's 0.500 s and 0.025 s for weights and calls; 0.531 s were measured with max_lag 1
    assert "seconds of a training step 0.954 0.954 0.525 -44.9%" in said
    assert "idle share, Learner 57.2% 57.4% 22.6% -" in said
    assert "response tokens a second" not in said  # this run has not recorded how long its rollouts were
    assert "after the change the generator is critical" in said
    assert "optimise generate (9.5%) first" in said
    (picture,) = tmp_path.glob("whatif_paced_overlap/*/before_and_after.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_it_is_short_for_simulate_from_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [str(RUNS), "--run", "sync", "--set", "max_lag=1"]
    shown = []
    for command in (
        ["whatif", *asked, "--json"],
        ["simulate", "--from", *asked, "--json"],
        ["whatif", *asked, "--quiet"],
    ):
        assert main(command) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert shown[2] == "with max_lag=1 a step would take 0.525 s in place of 0.954 s (-44.9%)\n"


def test_a_simulated_run_can_be_changed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It records no rewards. ``compare`` names the command for such a run."""
    simulated = ["simulate", "async_lag_sweep", "--machine", "cpu-2-cores", "--arm", "lag1", "--set", "steps=6"]
    assert main([*simulated, "--draws", "1", "--quiet", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["whatif", str(tmp_path), "--set", "max_lag=0", "--set", "placement.colocated=false", "--quiet"]) == 0
    after, before = (float(word) for word in capsys.readouterr().out.split() if word.startswith("0."))
    assert after > before


def test_a_stage_that_no_profile_prices_keeps_its_seconds(tmp_path: Path) -> None:
    """The first half of each update, under a name of another version."""
    simulated = ["simulate", "async_lag_sweep", "--machine", "cpu-2-cores", "--arm", "lag0", "--set", "steps=6"]
    assert main([*simulated, "--draws", "1", "--quiet", "--out", str(tmp_path)]) == 0
    (run,) = find_runs(tmp_path)[0]
    rows = [json.loads(line) for line in (run.folder / SPANS).read_text().splitlines()]
    for row in [row for row in rows if row.get("stage") == "update"]:
        middle = (row["start_ns"] + row["end_ns"]) // 2
        rows.append({**row, "stage": "half_of_theirs", "end_ns": middle})
        row["start_ns"] = middle
    (run.folder / SPANS).write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    answer = what_if(load_run(run.folder), ["epochs_per_batch=2"], machine="cpu-2-cores", with_gains=False)

    before, after = answer.before.stages_s, answer.after.stages_s
    assert before["half_of_theirs"] == pytest.approx(before["update"], rel=1e-6)
    assert after["half_of_theirs"] == pytest.approx(before["half_of_theirs"], rel=1e-6)
    assert after["update"] > 1.8 * before["update"]


def test_both_replays_are_runs_that_compare_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(RUNS), "--run", "sync", "--set", "max_lag=1", "--out", str(tmp_path)]) == 0

    before, after = sorted(find_runs(tmp_path)[0], key=lambda run: run.setting("max_lag"))
    measured = load_run(next(RUNS.glob("*/sync")))
    assert (before.manifest.arm, after.manifest.arm) == ("as_it_was", "changed")
    assert (
        before.manifest.simulated
        == after.manifest.simulated
        == f"a replay of paced_overlap/{measured.manifest.experiment}"
    )
    # a wait between two events of the driver is some 0.02 ms, of which no span tells, a dozen in a step of 0.95 s; the
    # longest pause took 5 ms
    walls = [row.wall_s for row in measured.steps]
    assert [row.wall_s for row in before.steps] == pytest.approx(walls, abs=0.01)
    assert [row.lags for row in after.steps] == [{0: 64}] + [{1: 64}] * (len(after.steps) - 1)
    # its spans are whole nanoseconds; all that it took is in them, so it replays as itself
    again = what_if(before).before.rows
    assert [row.wall_s for row in again] == pytest.approx([row.wall_s for row in before.steps], abs=1e-7)
    capsys.readouterr()
    assert main(["compare", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "These runs are simulated" in said
    assert "changed (simulated)" in said


K1 = "results/reference/sync_k"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (f"simulate --from {RUNS} --sweep lag=1..3", "--sweep is given and no SCENARIO"),
        ("simulate nonesuch", "'nonesuch'"),
        ("simulate sync_k1 --machine cpu-2-cores --scale update=0.5", "--scale is given and no --from"),
        (f"simulate sync_k1 --from {RUNS} --scale update=0.5", "--scale is given and a SCENARIO"),
        ("simulate --machine cpu-2-cores", "SCENARIO, or --from RESULTS"),
        ("simulate sync_k1", "required: --machine"),
        (f"whatif {RUNS}", f"2 runs in '{RUNS}': lag1, sync\n  where: --run"),
        (f"whatif {RUNS} --run lag2", "'lag2'; there are lag1, sync"),
        ("whatif nowhere", "'nowhere'"),
        (
            "whatif results/reference/async_lag1 --run lag1",
            "12 runs in 'results/reference/async_lag1' called 'lag1': lag1,block=00, lag1,block=01, lag1,block=02",
        ),
        (f"whatif {RUNS} --run sync -o a.png", "--out DIR"),
        (f"whatif {RUNS} --run sync --machine nonesuch", "'nonesuch'"),
        ("whatif results/reference/transport_sweep", "is a transport sweep"),
        (f"whatif {K1} --run k1 --set epochs_per_batch=4", "has not recorded how long its rollouts were"),
    ],
)
def test_refusals(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed.split()) == 2

    streams = capsys.readouterr()
    assert said in streams.err
    assert streams.out == ""


def test_runs_of_several_experiments_are_told_apart(make_run: Callable[..., RunFolder], tmp_path: Path) -> None:
    for experiment in ("20261121-100000", "20261121-110000"):
        make_run(scenario="pair", experiment=experiment, arm="sync")
        make_run(scenario="pair", experiment=experiment, arm="lag1")
    pair = tmp_path / "results" / "pair"
    (pair / "20261121-110000" / "lag1" / "manifest.json").write_text("{")  # damaged, and not the one that is asked for

    with pytest.raises(UserError) as caught:
        choose_run(pair, "sync")
    assert caught.value.what == f"2 runs in {str(pair)!r} called 'sync': 20261121-100000/sync, 20261121-110000/sync"
    assert choose_run(pair, "20261121-110000/sync").manifest.experiment == "20261121-110000"
    with pytest.raises(UserError, match=r"4 runs in .*: 20261121-100000/lag1, 20261121-100000/sync, 20261121-110000/"):
        choose_run(pair)
