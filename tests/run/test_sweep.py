"""Sweeps on simulated parts: what is skipped, what is tried again, and what the folders say afterwards."""

import fcntl
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.compare import gather
from harness.core.errors import Diverged, Interrupted, RunStopped, UserError
from harness.core.trace import RecordingTracer
from harness.core.types import Metric, RolloutGroup, UpdateResult
from harness.results import RunFolder, find_runs, read_manifest
from harness.run.continuation import SWEEP as SWEEP_FILE
from harness.run.continuation import changes_since_newest, find_sweep
from harness.run.earlier_runs import recorded_text
from harness.run.engine import Tries
from harness.run.experiment import run_scenario, variants_of
from harness.run.parts import Build, RunningParts
from harness.run.points import State, read_point, read_points
from harness.run.standing import show_status, what_came_of_it
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.parts import SimulatedLearner
from tests.stand_ins.simulated_parts import FREE, build_simulated_parts, simulated_learner

SWEEP = 'steps: 3\nprofile: "off"\ntrackers: []\nevaluation: {every: 3, prompts: 4}\nsweep: {seed: [0, 1, 2]}\n'


def scenario(tmp_path: Path, text: str = SWEEP) -> Scenario:
    file = tmp_path / "trial.yaml"
    file.write_text(text)
    return load_scenario(str(file))


def unseen(folder: Path) -> None:
    """Show nothing: drawing has tests of its own."""


def begun_sweep(out: Path, trial: Scenario) -> Path:
    """Write the folder of a sweep of which nothing has been run."""
    folder = out / trial.name / "20991231-235959"
    folder.mkdir(parents=True)
    (folder / SWEEP_FILE).write_text(recorded_text(trial))
    return folder


def run_sweep(
    trial: Scenario,
    out: Path,
    build: Build | None = None,
    show: Callable[[Path], object] = unseen,
    tries: Tries = Tries(),  # noqa: B008  (frozen)
    quiet: bool = True,
) -> int:
    return run_scenario(trial, out, quiet, build, show, tries=tries)


class Plan:
    """Simulated parts of which some go wrong at step 1; ``started`` lists the seeds in the order of their starts."""

    def __init__(self, errors: dict[int, list[BaseException | None]]) -> None:
        self.errors, self.started = errors, list[int]()

    def __call__(self, resolved: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        self.started.append(resolved.seed)
        planned = self.errors.get(resolved.seed, [])
        error = planned.pop(0) if planned else None

        class Learner(SimulatedLearner):
            async def update(self, at: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
                if at == 1 and error is not None:
                    raise error
                return await super().update(at, groups)

        parts = build_simulated_parts(resolved, tracer, should_stop)
        assert isinstance(parts.learner, SimulatedLearner)
        return replace(parts, learner=simulated_learner(tracer, FREE, of=Learner))


def states(trial: Scenario, out: Path) -> dict[str, State]:
    folder = find_sweep(out, trial)
    assert folder is not None
    return {point.variant.name: point.state for point in read_points(folder, variants_of(trial))}


def test_each_point_is_run_once_and_a_second_command_runs_none(tmp_path: Path) -> None:
    trial, plan = scenario(tmp_path), Plan({})
    shown: list[Path] = []
    assert run_sweep(trial, tmp_path / "out", plan, shown.append) == 0
    assert run_sweep(trial, tmp_path / "out", plan, shown.append) == 0
    assert plan.started == [0, 1, 2]
    assert shown == [find_sweep(tmp_path / "out", trial)] * 2
    runs, damaged = find_runs(tmp_path / "out")
    assert damaged == []
    assert [(run.manifest.point, run.status, run.manifest.interleaving) for run in runs] == [
        ({"seed": seed}, "completed", "run") for seed in range(3)
    ]


def test_a_failed_point_is_tried_again_after_the_others_and_its_reasons_are_kept(tmp_path: Path) -> None:
    trial = scenario(tmp_path)
    plan = Plan({0: [RunStopped("an actor died"), RunStopped("it died again"), None]})
    assert run_sweep(trial, tmp_path / "out", plan, unseen) == 0
    assert plan.started == [0, 1, 2, 0, 0]
    (experiment,) = (tmp_path / "out" / "trial").iterdir()
    first = read_points(experiment, variants_of(trial))[0]
    assert [(item.state, item.reason) for item in first.attempts] == [
        (State.FAILED, "an actor died"),
        (State.FAILED, "it died again"),
        (State.FINISHED, None),
    ]
    runs, _ = find_runs(tmp_path / "out")  # what was set aside does not count
    assert [(run.manifest.seed, run.status) for run in runs] == [(0, "completed"), (1, "completed"), (2, "completed")]


def test_attempts_are_bounded_over_commands_and_can_be_had_again(tmp_path: Path) -> None:
    trial, out = scenario(tmp_path), tmp_path / "out"
    options = Tries(attempts=2)
    plan = Plan({1: [RunStopped(f"reason {number}") for number in range(3)]})
    with pytest.raises(RunStopped, match=r"1 of 3 points failed:\n  seed=1, attempts that failed: 2; failed: reason 1"):
        run_sweep(trial, out, plan, unseen, options)
    assert plan.started == [0, 1, 2, 1]
    with pytest.raises(RunStopped, match="1 of 3 points failed"):
        run_sweep(trial, out, plan, unseen, options)
    assert plan.started == [0, 1, 2, 1]
    assert run_sweep(trial, out, plan, unseen, replace(options, retry_failed=True)) == 0
    assert plan.started == [0, 1, 2, 1, 1, 1]  # it fails for the third time, and then does not
    assert set(states(trial, out).values()) == {State.FINISHED}


def test_bad_input_is_not_tried_again_by_the_same_command(tmp_path: Path) -> None:
    trial, out = scenario(tmp_path), tmp_path / "out"
    plan = Plan({1: [UserError("the reward function raised")]})
    with pytest.raises(RunStopped, match="the reward function raised"):
        run_sweep(trial, out, plan, unseen)
    assert plan.started == [0, 1, 2]
    assert run_sweep(trial, out, plan, unseen) == 0
    assert plan.started == [0, 1, 2, 1]


def test_a_run_that_diverged_is_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial, out = scenario(tmp_path), tmp_path / "out"
    plan = Plan({1: [Diverged("the loss is nan at training step 1", 1)]})
    assert run_sweep(trial, out, plan, unseen) == 0
    assert run_sweep(trial, out, plan, unseen) == 0
    assert plan.started == [0, 1, 2]
    assert states(trial, out) == {"seed=0": State.FINISHED, "seed=1": State.DIVERGED, "seed=2": State.FINISHED}
    manifest = json.loads((next(iter((out / "trial").iterdir())) / "seed=1" / "manifest.json").read_text())
    assert (manifest["status"], manifest["outcome"]["diverged"]) == ("failed", {"step": 1})
    show_status(trial, variants_of(trial), out)
    assert "diverged at step 1" in capsys.readouterr().out


def test_what_could_not_even_start_is_written_down(tmp_path: Path) -> None:
    trial, out = scenario(tmp_path), tmp_path / "out"
    started = []

    def build(resolved: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        started.append(resolved.seed)
        if resolved.seed == 2:
            raise UserError("no weights in the model folder")
        return build_simulated_parts(resolved, tracer, should_stop)

    with pytest.raises(RunStopped, match="no weights in the model folder"):
        run_sweep(trial, out, build, unseen)
    assert started == [0, 1, 2]
    assert states(trial, out)["seed=2"] is State.FAILED
    (experiment,), damaged = gather([out])
    assert damaged == []
    assert [(each.run.status, each.steps) for each in experiment.members] == [
        ("completed", 3),
        ("completed", 3),
        ("failed", 0),
    ]


def test_a_bug_in_one_point_does_not_cost_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial, out = scenario(tmp_path), tmp_path / "out"
    plan = Plan({0: [IndexError("out of range")]})
    assert run_sweep(trial, out, plan, unseen) == 0
    assert plan.started == [0, 1, 2, 0]
    assert "IndexError: out of range" in capsys.readouterr().err


def test_another_scenario_of_the_name_is_another_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    first = scenario(tmp_path)
    run_sweep(first, out, Plan({}), unseen)
    changed = scenario(tmp_path, SWEEP.replace("steps: 3", "steps: 4").replace("[0, 1, 2]", "[0, 1]"))
    found = changes_since_newest(out, changed)
    assert found is not None
    assert sorted(found[1]) == ["steps: 3 -> 4", "sweep.seed: [0, 1, 2] -> [0, 1]"]
    plan = Plan({})
    run_sweep(changed, out, plan, unseen, quiet=False)
    assert plan.started == [0, 1]
    assert "  steps: 3 -> 4\n" in capsys.readouterr().err
    again = Plan({})
    run_sweep(scenario(tmp_path), out, again, unseen)  # the first one is found although it is not the newest
    assert again.started == []
    assert len(list((out / "trial").iterdir())) == 2


def test_the_description_is_not_part_of_what_a_sweep_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_sweep(scenario(tmp_path), out, Plan({}), unseen)
    plan = Plan({})
    run_sweep(scenario(tmp_path, "description: told otherwise\n" + SWEEP), out, plan, unseen)
    assert plan.started == []


def test_a_sweep_that_recorded_a_setting_of_before_is_still_the_same(tmp_path: Path) -> None:
    """Old code: sweeps had a parser of their own, which did not know settings that went since."""
    trial, out = scenario(tmp_path), tmp_path / "out"
    run_sweep(trial, out, Plan({}), unseen)
    folder = find_sweep(out, trial)
    assert folder is not None
    file = folder / SWEEP_FILE
    file.write_text(file.read_text() + "arrivals: {record: false, repeat: null}\n")
    assert find_sweep(out, trial) == folder


def test_a_folder_that_is_named_goes_on_though_a_newer_sweep_of_the_scenario_is_there(tmp_path: Path) -> None:
    trial, out = scenario(tmp_path), tmp_path / "out"
    plan = Plan({1: [RunStopped("reason")] * 3})
    with pytest.raises(RunStopped, match=r"also what was tried often enough: python -m harness run --resume .*/out/"):
        run_sweep(trial, out, plan, unseen)
    old = find_sweep(out, trial)
    assert old is not None
    newer = begun_sweep(out, trial)
    assert find_sweep(out, trial) == newer
    assert run_scenario(trial, out, True, plan, unseen, tries=Tries(retry_failed=True), sweep=old) == 0
    assert plan.started == [0, 1, 2, 1, 1, 1]
    assert len(list((out / "trial").iterdir())) == 2


def test_two_sweeps_do_not_share_a_experiment(tmp_path: Path) -> None:
    trial, out = scenario(tmp_path), tmp_path / "out"
    run_sweep(trial, out, Plan({}), unseen)
    folder = find_sweep(out, trial)
    assert folder is not None
    with (folder / SWEEP_FILE).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(UserError, match="another command is at work"):
            run_sweep(trial, out, Plan({}), unseen)
    assert run_sweep(trial, out, Plan({}), unseen) == 0


@pytest.mark.parametrize("damage", ["no manifest", "half a manifest", "lost rows", "no rows"])
def test_a_folder_that_lost_its_end_is_run_again_and_kept_aside(tmp_path: Path, damage: str) -> None:
    """What a power cut may leave of a file system without a journal of its data."""
    trial, out = scenario(tmp_path), tmp_path / "out"
    run_sweep(trial, out, Plan({}), unseen)
    folder = find_sweep(out, trial)
    assert folder is not None
    manifest, steps = folder / "seed=1" / "manifest.json", folder / "seed=1" / "steps.jsonl"
    match damage:
        case "no manifest":
            manifest.unlink()
        case "half a manifest":
            manifest.write_bytes(manifest.read_bytes()[:100])
        case "lost rows":
            steps.write_bytes(b"".join(steps.read_bytes().splitlines(keepends=True)[:-2]))
        case "no rows":
            steps.write_bytes(b"")
    left = steps.read_bytes()
    plan = Plan({})
    assert run_sweep(trial, out, plan, unseen) == 0
    assert plan.started == [1]
    assert (folder / ".attempts" / "seed=1" / "0" / "steps.jsonl").read_bytes() == left
    assert set(states(trial, out).values()) == {State.FINISHED}


@pytest.mark.parametrize("name", ["manifest.json", "steps.jsonl"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_file_cut_at_any_byte_never_counts_as_a_result(tmp_path: Path, name: str, seed: int) -> None:
    """Seed 0 is finished and seed 1 has diverged; every shorter form of the file makes the point run again."""
    trial, out = scenario(tmp_path), tmp_path / "out"
    run_sweep(trial, out, Plan({1: [Diverged("the loss is nan", 1)]}), unseen)
    folder = find_sweep(out, trial)
    assert folder is not None
    file, variant = folder / f"seed={seed}" / name, variants_of(trial)[seed]
    whole = file.read_bytes()
    seen = set()
    for size in {*range(0, len(whole) - 1, 61), *range(len(whole) - 40, len(whole) - 1)}:
        file.write_bytes(whole[:size])
        seen.add(read_point(folder, variant).state)
    assert seen == {State.CUT_SHORT}
    file.write_bytes(whole)
    assert read_point(folder, variant).state is (State.FINISHED, State.DIVERGED)[seed]


def test_arms_are_points_of_their_own_unless_they_take_turns(tmp_path: Path) -> None:
    arms = SWEEP + "arms: {a: {epochs_per_batch: 1}, b: {epochs_per_batch: 2}}\n"
    run_sweep(scenario(tmp_path, arms), tmp_path / "one", Plan({}), unseen)
    runs, _ = find_runs(tmp_path / "one")
    assert {run.manifest.interleaving for run in runs} == {"run"}
    assert len(runs) == 6
    run_sweep(scenario(tmp_path, arms + "interleaving: step\n"), tmp_path / "two", Plan({}), unseen)
    runs, _ = find_runs(tmp_path / "two")
    assert {run.manifest.interleaving for run in runs} == {"step"}
    assert len(runs) == 6


def test_blocks_are_points_too(tmp_path: Path) -> None:
    text = SWEEP.replace("sweep: {seed: [0, 1, 2]}", "blocks: 2\narms: {a: {}, b: {}}")
    run_sweep(scenario(tmp_path, text), tmp_path / "out", Plan({}), unseen)
    runs, _ = find_runs(tmp_path / "out")
    assert [(run.folder.name, run.manifest.seed) for run in runs] == [
        ("a,block=0", 0), ("a,block=1", 1), ("b,block=0", 0), ("b,block=1", 1),
    ]  # fmt: skip


def test_every_second_block_runs_its_points_in_reverse(tmp_path: Path) -> None:
    """So that a machine that slows down steadily favours no arm."""
    text = SWEEP.replace("sweep: {seed: [0, 1, 2]}", "blocks: 3\narms: {a: {}, b: {epochs_per_batch: 2}}")
    started = []

    def build(resolved: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        started.append((resolved.seed, resolved.epochs_per_batch))
        return build_simulated_parts(resolved, tracer, should_stop)

    run_sweep(scenario(tmp_path, text), tmp_path / "out", build, unseen)
    assert started == [(0, 1), (0, 2), (1, 2), (1, 1), (2, 1), (2, 2)]


def test_blocks_do_not_stop_early_and_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten blocks are the fewest that stopping early may be asked for; here the first would be enough."""
    text = SWEEP.replace("sweep: {seed: [0, 1, 2]}", "blocks: 10\narms: {a: {}, b: {}}\nstop_at_half_width: 0.99")
    plan = Plan({})
    run_sweep(scenario(tmp_path, text), tmp_path / "out", plan, unseen, quiet=False)
    assert len(plan.started) == 20
    said = (
        "stop_at_half_width plays no part in a sweep: all 10 blocks are run. To stop early: python -m harness run trial"
    )
    assert said in capsys.readouterr().err


def test_a_reward_that_is_gone_is_told_with_its_point(make_run: Callable[..., RunFolder], tmp_path: Path) -> None:
    """A tenth of 0.4 is 0.04, which no reward after version 0 reaches: diverged at step 1."""
    made = make_run(
        point={"seed": 0},
        evaluations={0: (0.4, 12.0), 4: (0.0, 12.0)},
        metrics=lambda step: {"reward/total": Metric(0.0, count=64)},
        settings="steps: 4\n",
    ).folder
    (variant, *_) = variants_of(scenario(tmp_path, SWEEP.replace("steps: 3", "steps: 4")))
    point = read_point(made.parent, replace(variant, name=made.name))
    assert point.state is State.FINISHED
    assert what_came_of_it(point).startswith("diverged at step 1: validation reward from 0.400 to 0.000 in ")


def test_an_interrupt_while_the_comparison_is_drawn_says_that_every_point_is_there(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    trial, out, plan = scenario(tmp_path), tmp_path / "out", Plan({})
    with pytest.raises(Interrupted, match="3 finished; the same command continues from there"):
        run_sweep(trial, out, plan, interrupted)
    shown: list[Path] = []
    run_sweep(trial, out, plan, shown.append)
    assert (plan.started, len(shown)) == ([0, 1, 2], 1)


def test_attempts_set_aside_keep_their_numbers_whatever_else_lies_there(tmp_path: Path) -> None:
    trial, out = scenario(tmp_path), tmp_path / "out"
    plan = Plan({1: [RunStopped("reason 0"), RunStopped("reason 1"), RunStopped("reason 2")]})
    with pytest.raises(RunStopped):
        run_sweep(trial, out, plan, unseen)
    folder = find_sweep(out, trial)
    assert folder is not None
    aside = folder / ".attempts" / "seed=1"
    shutil.rmtree(aside / "0")  # tidied away by hand
    (aside / ".DS_Store").write_text("")
    assert run_sweep(trial, out, plan, unseen, Tries(retry_failed=True)) == 0
    kept = {path.name: read_manifest(path).error for path in aside.iterdir() if path.is_dir()}
    assert kept == {"1": "reason 1", "2": "reason 2"}


def test_a_scenario_of_one_run_can_be_swept_too(tmp_path: Path) -> None:
    text = SWEEP.replace("sweep: {seed: [0, 1, 2]}", "")
    plan = Plan({})
    for _ in range(2):
        run_sweep(scenario(tmp_path, text), tmp_path / "out", plan, unseen)
    assert plan.started == [0]


def test_a_transport_sweep_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="transport sweep") as caught:
        run_sweep(load_scenario("transport_sweep"), tmp_path / "out")
    assert caught.value.fix == "run it with: python -m harness run transport_sweep"
    assert not (tmp_path / "out").exists()


def test_status_tells_without_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial, out = scenario(tmp_path), tmp_path / "out"
    assert show_status(trial, variants_of(trial), out) == 0
    assert "no sweep of this scenario" in capsys.readouterr().out
    show_status(trial, variants_of(trial), out, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["experiment"] is None
    assert [point["state"] for point in told["points"]] == ["not run yet"] * 3
    assert not out.exists()
    plan = Plan({2: [RunStopped("an actor died")] * 3})
    with pytest.raises(RunStopped):
        run_sweep(trial, out, plan, unseen)
    show_status(trial, variants_of(trial), out)
    said = capsys.readouterr().out
    assert "2 finished, 1 failed" in said
    assert said.count("an actor died") == 3
    show_status(trial, variants_of(trial), out, as_json=True)
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["state"] for point in points].count("failed") == 1
    (failed,) = [point for point in points if point["state"] == "failed"]
    assert [attempt["reason"] for attempt in failed["attempts"]] == ["an actor died"] * 3
    assert failed["result"] is None
    assert Path(failed["folder"]).is_dir()


def test_one_arm_of_those_that_take_turns_is_made_again_by_itself(tmp_path: Path) -> None:
    text = SWEEP.replace("sweep: {seed: [0, 1, 2]}", "arms: {a: {seed: 1}, b: {seed: 2}}\ninterleaving: step")
    assert run_sweep(scenario(tmp_path, text), tmp_path / "out", Plan({2: [RunStopped("an actor died")]})) == 0
    turns = {run.folder.name: run.manifest.interleaving for run in find_runs(tmp_path / "out")[0]}
    assert turns == {"a": "step", "b": "run"}
