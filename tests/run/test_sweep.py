"""Sweeps on simulated parts: what is skipped, what is tried again, and what the folders say afterwards."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.compare import gather
from harness.core.errors import Diverged, Interrupted, RunStopped, UserError
from harness.core.types import Metric
from harness.results import RunFolder, read_manifest
from harness.run.continuation import SWEEP as SWEEP_FILE
from harness.run.continuation import changes_since_newest, find_sweep
from harness.run.engine import Tries
from harness.run.experiment import run_scenario, variants_of
from harness.run.points import Point, State, read_point, read_points
from harness.run.standing import show_status, what_came_of_it
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from tests.run.conftest import BUILT, QUIET, Caps, Load, Planned, begun_sweep, run_sweep, runs_in, unseen

SEEDS = "sweep: {seed: [0, 1, 2]}"
ONE = f"steps: 3\n{QUIET}evaluation: {{every: 3, prompts: 4}}\n"
SWEEP = f"{ONE}{SEEDS}\n"
Make = Callable[..., RunFolder]


def dies(*reasons: str) -> list[tuple[int, BaseException]]:
    """Starts that end at step 1, one after the other."""
    return [(1, RunStopped(reason)) for reason in reasons]


def folder_of(trial: Scenario, out: Path) -> Path:
    folder = find_sweep(out, trial)
    assert folder is not None
    return folder


def points_in(trial: Scenario, out: Path) -> list[Point]:
    return read_points(folder_of(trial, out), variants_of(trial))


def states(trial: Scenario, out: Path) -> list[State]:
    return [point.state for point in points_in(trial, out)]


@pytest.mark.parametrize(("text", "seeds"), [(SWEEP, [0, 1, 2]), (ONE, [0])])
def test_each_point_is_run_once(text: str, seeds: list[int], load: Load, tmp_path: Path) -> None:
    parts, shown, out = Planned(), list[Path](), tmp_path / "out"
    trial = load(text)
    assert run_sweep(trial, out, parts, shown.append) == run_sweep(trial, out, parts, shown.append) == 0
    assert shown == [find_sweep(out, trial)] * 2
    by_itself = "run" if len(seeds) > 1 else None
    assert [(each.manifest.point, each.status, each.manifest.interleaving) for each in runs_in(out).values()] == [
        ({"seed": seed} if len(seeds) > 1 else {}, "completed", by_itself) for seed in seeds
    ]
    run_sweep(load("description: told otherwise\n" + text), out, parts)
    recorded = shown[0] / SWEEP_FILE
    recorded.write_text(recorded.read_text() + "arrivals: {record: false, repeat: null}\n")  # a setting that went
    run_sweep(trial, out, parts)
    assert parts.seeds == seeds
    assert len(list((out / "trial").iterdir())) == 1


def test_a_failed_point_is_tried_again_after_the_others(load: Load, tmp_path: Path, capsys: Caps) -> None:
    trial, out = load(SWEEP), tmp_path / "out"
    parts = Planned({0: [*dies("an actor died"), (1, IndexError("out of range"))]}, by="seed")
    assert run_sweep(trial, out, parts) == 0
    assert parts.seeds == [0, 1, 2, 0, 0]
    assert "Traceback" in capsys.readouterr().err  # a bug in one point does not cost the others
    assert [(each.state, each.reason) for each in points_in(trial, out)[0].attempts] == [
        (State.FAILED, "an actor died"),
        (State.FAILED, "out of range"),
        (State.FINISHED, None),
    ]
    assert [each.status for each in runs_in(out).values()] == ["completed"] * 3  # what was set aside does not count


def test_attempts_are_bounded_over_commands_and_can_be_had_again(load: Load, tmp_path: Path) -> None:
    trial, out, two = load(SWEEP), tmp_path / "out", Tries(attempts=2)
    parts = Planned({1: dies("reason 0", "reason 1", "reason 2")}, by="seed")
    for _ in range(2):
        with pytest.raises(RunStopped, match=r"1 of 3 .*\n  seed=1, .*: 2; failed: reason 1"):
            run_sweep(trial, out, parts, tries=two)
        assert parts.seeds == [0, 1, 2, 1]
    aside = folder_of(trial, out) / ".attempts" / "seed=1"
    assert [path.name for path in aside.iterdir()] == ["0"]
    shutil.rmtree(aside / "0")  # tidied away by hand
    (aside / "7").mkdir()
    (aside / ".DS_Store").write_text("")
    assert run_sweep(trial, out, parts, tries=replace(two, retry_failed=True)) == 0
    assert parts.seeds == [0, 1, 2, 1, 1, 1]  # it fails for the third time, and then does not
    assert states(trial, out) == [State.FINISHED] * 3
    kept = {path.name: read_manifest(path).error for path in aside.glob("[89]")}
    assert kept == {"8": "reason 1", "9": "reason 2"}  # numbers go on whatever else lies there


def test_what_bad_input_ended_or_kept_from_starting_is_tried_again_by_the_next_command(
    load: Load, tmp_path: Path
) -> None:
    trial, out = load(SWEEP), tmp_path / "out"
    errors = {1: [(1, UserError("the reward function raised"))], 2: [(BUILT, UserError("no weights"))]}
    parts = Planned(errors, by="seed")
    with pytest.raises(RunStopped, match=r"the reward function raised(.|\n)*no weights"):
        run_sweep(trial, out, parts)
    assert parts.seeds == [0, 1, 2]
    (experiment,), damaged = gather([out])
    ends = [(each.run.status, each.steps) for each in experiment.members]
    assert (ends, damaged) == ([("completed", 3), ("failed", 1), ("failed", 0)], [])
    assert run_sweep(trial, out, parts) == 0
    assert parts.seeds == [0, 1, 2, 1, 2]


def test_a_run_that_diverged_is_a_result(load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial, out = load(SWEEP), tmp_path / "out"
    parts = Planned({1: [(1, Diverged("the loss is nan at training step 1", 1))]}, by="seed")
    for _ in range(2):
        assert run_sweep(trial, out, parts) == 0
    assert parts.seeds == [0, 1, 2]
    assert states(trial, out) == [State.FINISHED, State.DIVERGED, State.FINISHED]
    manifest = read_manifest(folder_of(trial, out) / "seed=1")
    assert (manifest.status, manifest.outcome["diverged"]) == ("failed", {"step": 1})
    show_status(trial, variants_of(trial), out)
    assert "diverged at step 1" in capsys.readouterr().out


def test_another_scenario_of_the_name_is_another_sweep(load: Load, tmp_path: Path, capsys: Caps) -> None:
    out, parts = tmp_path / "out", Planned()
    run_sweep(load(SWEEP), out, parts)
    changed = load(SWEEP.replace("steps: 3", "steps: 4").replace("[0, 1, 2]", "[0, 1]"))
    _, changes = changes_since_newest(out, changed) or (None, [])
    assert sorted(changes) == ["steps: 3 -> 4", "sweep.seed: [0, 1, 2] -> [0, 1]"]
    run_sweep(changed, out, parts, quiet=False)
    assert "  steps: 3 -> 4\n" in capsys.readouterr().err
    run_sweep(load(SWEEP), out, parts)  # the first one is found although it is not the newest
    assert parts.seeds == [0, 1, 2, 0, 1]
    assert len(list((out / "trial").iterdir())) == 2


def test_two_sweeps_do_not_share_an_experiment(load: Load, tmp_path: Path) -> None:
    trial, out = load(SWEEP), tmp_path / "out"
    run_sweep(trial, out, Planned())
    with (folder_of(trial, out) / SWEEP_FILE).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(UserError, match="another command"):
            run_sweep(trial, out, Planned())
    assert run_sweep(trial, out, Planned()) == 0


def test_a_folder_that_lost_its_end_is_run_again_and_kept_aside(load: Load, tmp_path: Path) -> None:
    """As after a power cut: neither a finished run nor one that diverged counts where a file of it is shorter."""
    trial, out = load(SWEEP), tmp_path / "out"
    run_sweep(trial, out, Planned({1: [(1, Diverged("the loss is nan", 1))]}, by="seed"))
    folder, variants = folder_of(trial, out), variants_of(trial)
    for seed, whole_state in ((0, State.FINISHED), (1, State.DIVERGED)):
        for name in ("manifest.json", "steps.jsonl"):
            file = folder / f"seed={seed}" / name
            whole, seen = file.read_bytes(), set[State]()
            for size in {*range(0, len(whole) - 1, 61), *range(len(whole) - 40, len(whole) - 1)}:
                file.write_bytes(whole[:size])
                seen.add(read_point(folder, variants[seed]).state)
            file.write_bytes(whole)
            assert (seen, read_point(folder, variants[seed]).state) == ({State.CUT_SHORT}, whole_state), (seed, name)
    (folder / "seed=0" / "manifest.json").unlink()
    rows = (folder / "seed=1" / "steps.jsonl").read_bytes()[:-100]
    (folder / "seed=1" / "steps.jsonl").write_bytes(rows)
    parts = Planned()
    assert run_sweep(trial, out, parts) == 0
    assert parts.seeds == [0, 1]
    assert (folder / ".attempts" / "seed=1" / "0" / "steps.jsonl").read_bytes() == rows
    assert states(trial, out) == [State.FINISHED] * 3


ARMS = "arms: {a: {}, b: {epochs_per_batch: 2}}\n"


@pytest.mark.parametrize(
    ("text", "started", "turns"),
    [
        (SWEEP + ARMS, [(seed, epochs) for seed in range(3) for epochs in (1, 2)], "run"),
        (SWEEP + ARMS + "interleaving: step\n", [(seed, epochs) for seed in range(3) for epochs in (1, 2)], "step"),
        # every second block in reverse, so that a machine that slows down steadily favours no arm
        (SWEEP.replace(SEEDS, "blocks: 3\n" + ARMS), [(0, 1), (0, 2), (1, 2), (1, 1), (2, 1), (2, 2)], "run"),
    ],
    ids=["arms", "arms in turns", "blocks"],
)
def test_arms_and_blocks_are_points(
    text: str, started: list[tuple[int, int]], turns: str, load: Load, tmp_path: Path
) -> None:
    parts = Planned()
    run_sweep(load(text), tmp_path / "out", parts)
    assert [(seed, epochs) for seed, epochs, _ in parts.started] == started
    runs = runs_in(tmp_path / "out")
    assert (len(runs), {each.manifest.interleaving for each in runs.values()}) == (6, {turns})


def test_a_folder_that_is_named_goes_on_though_there_is_a_newer_sweep(load: Load, tmp_path: Path) -> None:
    """One arm of those that take turns is made again by itself."""
    trial, out = load(SWEEP.replace(SEEDS, "arms: {a: {seed: 1}, b: {seed: 2}}\ninterleaving: step")), tmp_path / "out"
    parts = Planned({2: dies(*["reason"] * 3)}, by="seed")
    with pytest.raises(RunStopped, match=r"run --resume .*/out/"):
        run_sweep(trial, out, parts)
    old = folder_of(trial, out)
    assert find_sweep(out, trial) == old != begun_sweep(out, trial) == find_sweep(out, trial)
    assert run_scenario(trial, out, True, parts, unseen, tries=Tries(retry_failed=True), sweep=old) == 0
    assert parts.seeds == [1, 2, 2, 2, 2]
    turns = {run.manifest.arm: run.manifest.interleaving for run in runs_in(old).values()}
    assert turns == {"a": "step", "b": "run"}
    assert len(list((out / "trial").iterdir())) == 2


def test_a_reward_that_is_gone_is_told_with_its_point(make_run: Make, load: Load) -> None:
    """A tenth of 0.4 is 0.04, which no reward after version 0 reaches: diverged at step 1."""
    made = make_run(
        point={"seed": 0},
        evaluations={0: (0.4, 12.0), 4: (0.0, 12.0)},
        metrics=lambda step: {"reward/total": Metric(0.0, count=64)},
        settings="steps: 4\n",
    ).folder
    (variant, *_) = variants_of(load(SWEEP.replace("steps: 3", "steps: 4")))
    point = read_point(made.parent, replace(variant, name=made.name))
    assert point.state is State.FINISHED
    assert what_came_of_it(point).startswith("diverged at step 1: validation reward from 0.400 to 0.000 in ")


def test_an_interrupt_while_the_comparison_is_drawn_says_that_every_point_is_there(load: Load, tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    trial, out, parts, shown = load(SWEEP), tmp_path / "out", Planned(), list[Path]()
    with pytest.raises(Interrupted, match="3 finished"):
        run_sweep(trial, out, parts, interrupted)
    run_sweep(trial, out, parts, shown.append)
    assert (parts.seeds, len(shown)) == ([0, 1, 2], 1)


def test_a_transport_sweep_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="transport sweep") as caught:
        run_sweep(load_scenario("transport_sweep"), tmp_path / "out")
    assert "python -m harness run transport_sweep" in str(caught.value.fix)
    assert not (tmp_path / "out").exists()


def test_status_tells_without_running(load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial, out = load(SWEEP), tmp_path / "out"

    def told(as_json: bool = False) -> str:
        assert show_status(trial, variants_of(trial), out, as_json=as_json) == 0
        return capsys.readouterr().out

    assert "3 points" in told()
    nothing = json.loads(told(as_json=True))
    assert (nothing["experiment"], [point["state"] for point in nothing["points"]]) == (None, ["not run yet"] * 3)
    assert not out.exists()
    with pytest.raises(RunStopped):
        run_sweep(trial, out, Planned({2: dies(*["an actor died"] * 3)}, by="seed"))
    said = told()
    assert "2 finished, 1 failed" in said
    assert said.count("an actor died") == 3
    *finished, failed = json.loads(told(as_json=True))["points"]
    assert [point["state"] for point in finished] == ["finished"] * 2
    assert (failed["state"], failed["result"], Path(failed["folder"]).is_dir()) == ("failed", None, True)
    assert [attempt["reason"] for attempt in failed["attempts"]] == ["an actor died"] * 3
