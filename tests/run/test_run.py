"""Experiments on simulated parts: turns, folders, what was planned, and how a run ends when something goes wrong."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.compare import gather
from harness.compare.completeness import gaps
from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.trace import RecordingTracer
from harness.probes.clock import PausableClock
from harness.results.experiment_plan import EXPERIMENT, ExperimentPlan, PlannedRun, read_plan, write_plan
from harness.results.rows import SPEED_PROBE
from harness.run.experiment import run_scenario
from harness.run.parts import Build
from harness.run.session import Arm, Experiment
from harness.scenario.axes import Variant
from harness.scenario.load import load_scenario
from tests.run.conftest import BUILT, QUIET, Caps, Load, Planned, run, runs_in, unseen
from tests.stand_ins.simulated_parts import build_simulated_parts

TWO = "arms:\n  k1: {epochs_per_batch: 1}\n  k4: {epochs_per_batch: 4}\n"
ARMS = f"steps: 4\nevaluation: {{every: 2, prompts: 8}}\n{QUIET}{TWO}"
BLOCKS = f"seed: 3\nblocks: 3\n{ARMS}"
SWEEP = f"steps: 4\nevaluation: {{prompts: 4}}\n{QUIET}sweep: {{epochs_per_batch: [1, 4, 2]}}\n"


def test_arms_take_turns_step_by_step_or_run_one_after_the_other(load: Load, tmp_path: Path) -> None:
    together, apart = Planned(), Planned()
    runs = run(load(ARMS), tmp_path / "out", together)
    rounds = [together.story[start : start + 2] for start in range(0, 8, 2)]
    assert [{step for _, step in one} for one in rounds] == [{0}, {1}, {2}, {3}]
    assert [{arm for arm, _ in one} for one in rounds] == [{1, 4}] * 4
    assert rounds[0][0][0] == rounds[1][1][0]  # ABBA
    assert {(name, each.manifest.arm, each.manifest.interleaving) for name, each in runs.items()} == {
        ("k1", "k1", "step"),
        ("k4", "k4", "step"),
    }
    runs = run(load("placement: {colocated: false}\nmax_lag: 1\n" + ARMS), tmp_path / "lag", apart)
    arms = [arm for arm, _ in apart.story]
    assert arms in ([1] * 4 + [4] * 4, [4] * 4 + [1] * 4)
    assert {each.manifest.interleaving for each in runs.values()} == {"run"}


def test_the_machine_is_timed_between_steps_only_where_no_part_is_at_work_then(load: Load, tmp_path: Path) -> None:
    alone = ARMS.replace('profile: "off"', "profile: light")
    for lag, timed in ((0, True), (1, False)):
        text = f"placement: {{colocated: false}}\nmax_lag: {lag}\n{alone}"
        rows = [row for each in run(load(text), tmp_path / str(lag), Planned()).values() for row in each.steps]
        assert {row.metric(SPEED_PROBE) is not None for row in rows if row.step} == {timed}


def test_each_block_runs_every_arm_once_on_a_seed_of_its_own(load: Load, tmp_path: Path) -> None:
    parts = Planned()
    runs = run(load(BLOCKS), tmp_path / "out", parts)
    facts = {name: (each.manifest.block, each.manifest.seed, each.manifest.profile) for name, each in runs.items()}
    assert facts == {f"{arm},block={block}": (block, 3 + block, "off") for arm in ("k1", "k4") for block in range(3)}
    blocks = [parts.story[start : start + 8] for start in range(0, 24, 8)]  # two arms of four steps each, in turns
    assert [sorted(block) for block in blocks] == [[(k, step) for k in (1, 4) for step in range(4)]] * 3
    assert {row.warmup for each in runs.values() for row in each.steps if row.step < 2} == {True}


def test_verbose_prints_the_logs_of_all_arms(load: Load, tmp_path: Path, capsys: Caps) -> None:
    run_scenario(load(ARMS), tmp_path / "out", False, build_simulated_parts, unseen, amount="everything")
    said = capsys.readouterr().err.splitlines()
    for name, each in runs_in(tmp_path / "out").items():
        logged = [line.partition(" ")[2] for line in (each.folder / "log.txt").read_text().splitlines()]
        assert [line.removeprefix(f"{name}: ") for line in said if line.startswith(f"{name}: ")] == logged
        told = [line.partition(" s: ")[2].partition(":")[0] for line in logged]
        assert [line for line in told if line.startswith("step")] == [f"step {n}" for n in range(4)]
        assert [int(line[-1]) for line in told if line.startswith("validation")] == [0, 2, 4]
        assert [int(line[-1]) for line in told if line.startswith("generator holds")] == [0, 1, 2, 3, 4]


# ---- what fails

NAN, REWARD, BUG = RunStopped("the loss is nan"), UserError("the reward raised", "mine:reward"), RuntimeError("a bug")
FAILS: dict[str, tuple[str, BaseException, type[BaseException], str, dict[str, str]]] = {
    "an arm": (ARMS, NAN, RunStopped, "k4 stopped: the loss is nan", {"k1": "completed", "k4": "failed"}),
    "a point": (
        SWEEP,
        REWARD,
        UserError,
        "epochs_per_batch=4 failed: the reward raised",
        {f"epochs_per_batch={k}": "failed" if k == 4 else "completed" for k in (1, 2, 4)},
    ),
    "an arm in every block": (
        BLOCKS,
        NAN,
        RunStopped,
        r"k4,block=0 stopped \(and 2 more\): the loss is nan",
        {f"{arm},block={b}": end for arm, end in (("k1", "completed"), ("k4", "failed")) for b in range(3)},
    ),
    "bad input ends the blocks": (
        BLOCKS,
        REWARD,
        UserError,
        "k4,block=0 failed: the reward raised",
        {"k1,block=0": "completed", "k4,block=0": "failed"},
    ),
    "a bug ends all": (ARMS, BUG, RuntimeError, "a bug", {"k1": "failed", "k4": "failed"}),
    "Ctrl-C": (ARMS, KeyboardInterrupt(), Interrupted, "out/trial", {"k1": "interrupted", "k4": "interrupted"}),
}


@pytest.mark.parametrize("case", FAILS)
def test_what_fails_at_step_2_says_why_and_the_others_go_on(case: str, load: Load, tmp_path: Path) -> None:
    text, error, raised, said, statuses = FAILS[case]
    error.__cause__, shown = KeyError("rewards"), list[Path]()
    parts = Planned({4: [(2, error)] * 3}, by="epochs")
    with pytest.raises(raised, match=said) as caught:
        run_scenario(load(text), tmp_path / "out", True, parts, shown.append)
    runs = runs_in(tmp_path / "out")
    assert {name: each.manifest.status for name, each in runs.items()} == statuses
    for name, each in runs.items():
        if statuses[name] == "completed":
            assert [row.step for row in each.steps] == [0, 1, 2, 3]
        elif "4" in name:
            assert [row.step for row in each.steps] == [0, 1]
            assert each.manifest.error == (None if statuses[name] == "interrupted" else str(error))
            assert each.manifest.outcome["steps_done"] == 2
            assert each.manifest.outcome["memory"]["main"]["peak_bytes"] > 0
    assert shown == ([] if raised in (Interrupted, RuntimeError) else [each.folder.parent])
    assert raised is not RuntimeError or caught.value is error


def test_a_report_that_cannot_be_made_does_not_hide_what_failed_before(load: Load, tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        raise UserError("the disk is full", str(folder))

    with pytest.raises(RunStopped, match=r"k4 stopped \(and 1 more\): the loss is nan"):
        run_scenario(load(ARMS), tmp_path / "out", True, Planned({4: [(2, NAN)]}, by="epochs"), full)


def test_what_cannot_be_built_leaves_no_folder(load: Load, tmp_path: Path) -> None:
    parts = Planned({0: [(BUILT, UserError("no weights in the model folder"))]})
    with pytest.raises(UserError, match="no weights"):
        run_scenario(load(ARMS), tmp_path / "out", True, parts, unseen)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("called", "text", "status"),
    [
        ("open_streams", "steps: 1\n", "interrupted"),
        ("memory_line", "steps: 1\n", "completed"),
        ("memory_line", ARMS, "interrupted"),  # the second signal, while the first arm is written down
    ],
)
def test_a_signal_leaves_no_run_that_seems_to_run(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str, text: str, status: str
) -> None:
    before, struck = getattr(sys.modules["harness.run.session"], called), list[bool]()

    def strike(*arguments: Any, **named: Any) -> Any:
        if not struck:
            struck.append(True)
            signal.raise_signal(signal.SIGINT)
        return before(*arguments, **named)

    monkeypatch.setattr(f"harness.run.session.{called}", strike)
    with pytest.raises((Interrupted, KeyboardInterrupt)):
        run(load(text), tmp_path / "out", Planned({4: [(1, KeyboardInterrupt())]}, by="epochs"))
    assert {each.manifest.status for each in runs_in(tmp_path / "out").values()} == {status}


def test_runs_of_the_same_second_have_folders_of_their_own_and_end_once(tmp_path: Path) -> None:
    resolved = load_scenario("quickstart")
    for _ in range(3):
        clock = PausableClock()
        tracer = RecordingTracer(clock, clock.at)
        parts = build_simulated_parts(resolved, tracer, lambda: False)
        session = Experiment(tmp_path, "trial").open_run(Arm(Variant(None, {}, "", resolved), clock, tracer, parts))
        session.finish(RunStopped("first"))
        session.finish(KeyboardInterrupt())
        session.finish()
    ended = [(each.manifest.status, each.manifest.error) for each in runs_in(tmp_path).values()]
    assert ended == [("failed", "first")] * 3


# ---- what an experiment set out to run


def experiment_of(load: Load, tmp_path: Path, text: str, build: Build = build_simulated_parts) -> tuple[Path, Any]:
    """Run a scenario, to its end or an interruption; return the experiment's folder and its plan."""
    with suppress(Interrupted):
        run(load(f"steps: 3\nevaluation: {{every: 3, prompts: 8}}\n{QUIET}{text}"), tmp_path / "out", build)
    (folder,) = (tmp_path / "out" / "trial").iterdir()
    return folder, read_plan(folder)


def missing(folder: Path) -> list[str]:
    """Return the names of the runs that are due and not there."""
    (experiment,), damaged = gather([folder])
    return [gap.folder.name for gap in gaps(experiment, damaged).runs]


RATES = [f"learning_rate={rate},seed={seed}" for rate in (0.1, 1.0) for seed in (0, 1)]


@pytest.mark.parametrize(
    ("text", "planned"),
    [
        ("", [("", "trial", None)]),
        ("blocks: 2\n" + TWO, [(f"{arm},block={n}", arm, n) for n in range(2) for arm in ("k1", "k4")]),
        ("sweep: {optimizer.learning_rate: [0.1, 1.0], seed: [0, 1]}\n", [(name, name, None) for name in RATES]),
    ],
    ids=["one run", "blocks", "sweep"],
)
def test_the_plan_names_every_run_and_what_is_missing_is_seen(
    load: Load, tmp_path: Path, text: str, planned: list[tuple[str, str, int | None]]
) -> None:
    folder, plan = experiment_of(load, tmp_path, text)
    made = sorted(path.name for path in folder.iterdir() if path.is_dir() and (path / "manifest.json").exists())
    assert [(item.folder, item.variant, item.block) for item in plan.runs] == planned
    assert sorted(item.folder for item in plan.due) == (made or [""])
    assert missing(folder) == []
    if made:
        shutil.rmtree(folder / planned[1][0])
        assert missing(folder) == [planned[1][0]]


def test_blocks_after_an_interruption_are_missing(load: Load, tmp_path: Path) -> None:
    # while the first arm of the second block is being built: it has no folder yet
    parts = Planned({2: [(BUILT, KeyboardInterrupt())]})
    folder, _ = experiment_of(load, tmp_path, "blocks: 3\n" + TWO, parts)
    assert set(missing(folder)) == {f"{arm},block={n}" for arm in ("k1", "k4") for n in (1, 2)}


def test_a_plan_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    write_plan(tmp_path, ExperimentPlan((PlannedRun("a", "a"),)))
    whole = json.loads((tmp_path / EXPERIMENT).read_text())
    for text in ("{", "[]", json.dumps(whole | {"schema_version": whole["schema_version"] + 1})):
        (tmp_path / EXPERIMENT).write_text(text)
        with pytest.raises(UserError, match=r"experiment\.json"):
            read_plan(tmp_path)
