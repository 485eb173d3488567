"""The composition root on simulated parts: turns, folders, and how a run ends when something goes wrong."""

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.trace import RecordingTracer
from harness.core.types import RolloutGroup, UpdateResult
from harness.probes.clock import PausableClock
from harness.results import Run, find_runs
from harness.run.experiment import run_scenario
from harness.run.parts import RunningParts
from harness.run.session import Arm, Experiment
from harness.scenario.axes import Variant
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario, json_schema
from harness.simulate.parts import SimulatedLearner
from harness.transports.catalogue import TRANSPORTS
from tests.stand_ins.simulated_parts import FREE, build_simulated_parts, simulated_learner


def scenario(tmp_path: Path, text: str) -> Scenario:
    file = tmp_path / "trial.yaml"
    file.write_text(text)
    return load_scenario(str(file))


def runs_by_name(folder: Path) -> dict[str, Run]:
    runs, damaged = find_runs(folder)
    assert damaged == []
    return {run.folder.name: run for run in runs}


def unseen(folder: Path) -> None:
    """Show nothing: drawing has tests of its own."""


def failing_at(step: int, error: BaseException, story: list[tuple[int, int]]) -> Callable[..., RunningParts]:
    """A builder whose k-th arm's Learner writes (k, step) into the story; the last arm's raises at one step."""
    built = []

    class Learner(SimulatedLearner):
        async def update(self, at: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
            number = self.optimizer_steps
            story.append((number, at))
            if at == step and number == 4:
                raise error
            return await super().update(at, groups)

    def build(resolved: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        parts = build_simulated_parts(resolved, tracer, should_stop)
        built.append(parts)
        simulated = parts.learner
        assert isinstance(simulated, SimulatedLearner)
        learner = simulated_learner(tracer, FREE, epochs_per_batch=simulated.optimizer_steps, of=Learner)
        return replace(parts, learner=learner)

    return build


ARMS = """
steps: 4
evaluation: {every: 2, prompts: 8}
arms:
  k1: {epochs_per_batch: 1}
  k4: {epochs_per_batch: 4}
"""


def test_arms_take_turns_step_by_step(tmp_path: Path) -> None:
    story: list[tuple[int, int]] = []
    run_scenario(
        scenario(tmp_path, ARMS), tmp_path / "out", True, show=unseen, build=failing_at(99, RuntimeError(), story)
    )
    rounds = [story[start : start + 2] for start in range(0, 8, 2)]
    assert [{step for _, step in one} for one in rounds] == [{0}, {1}, {2}, {3}]
    assert [{arm for arm, _ in one} for one in rounds] == [{1, 4}] * 4
    assert rounds[0][0][0] == rounds[1][1][0]  # ABBA
    runs = runs_by_name(tmp_path / "out")
    assert {run.manifest.interleaving for run in runs.values()} == {"step"}
    assert {name: run.manifest.arm for name, run in runs.items()} == {"k1": "k1", "k4": "k4"}


def test_verbose_prints_the_logs_of_all_arms_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Old code: version changes of either side reached a file only, and no line said what a step had done."""
    out = tmp_path / "out"
    run_scenario(scenario(tmp_path, ARMS), out, False, build_simulated_parts, unseen, amount="everything")
    said = capsys.readouterr().err.splitlines()
    for name, run in runs_by_name(out).items():
        logged = [line.partition(" ")[2] for line in (run.folder / "log.txt").read_text().splitlines()]
        own = [line.removeprefix(f"{name}: ") for line in said if line.startswith(f"{name}: ")]
        assert own == logged
        told = [line.partition(" s: ")[2] for line in logged]
        for lane in ("learner", "generator"):
            held = [line for line in told if line.startswith(f"{lane} holds")]
            assert held[:4] == [f"{lane} holds policy version {version}" for version in range(4)]
        assert [line.split(":")[0] for line in told if line.startswith("step")] == [f"step {n}" for n in range(4)]
        assert [line.split(":")[0] for line in told if line.startswith("validation")] == [
            f"validation of policy version {version}" for version in (0, 2, 4)
        ]


def test_asynchronous_arms_run_one_after_the_other(tmp_path: Path) -> None:
    text = "placement: {colocated: false}\nmax_lag: 1\n" + ARMS
    story: list[tuple[int, int]] = []
    run_scenario(
        scenario(tmp_path, text), tmp_path / "out", True, show=unseen, build=failing_at(99, RuntimeError(), story)
    )
    arms = [arm for arm, _ in story]
    assert arms in ([1] * 4 + [4] * 4, [4] * 4 + [1] * 4)
    assert {run.manifest.interleaving for run in runs_by_name(tmp_path / "out").values()} == {"run"}


def test_a_sweep_makes_a_folder_for_each_point(tmp_path: Path) -> None:
    text = "steps: 2\nevaluation: {prompts: 4}\nsweep:\n  seed: [0, 1]\n  epochs_per_batch: [1, 2]\n"
    run_scenario(scenario(tmp_path, text), tmp_path / "out", True, show=unseen, build=build_simulated_parts)
    runs = runs_by_name(tmp_path / "out")
    assert {tuple(run.manifest.point.items()) for run in runs.values()} == {
        (("seed", seed), ("epochs_per_batch", k)) for seed in (0, 1) for k in (1, 2)
    }
    assert len({run.manifest.experiment for run in runs.values()}) == 1


def test_an_arm_that_stops_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    error = RunStopped("the loss is nan at training step 2")
    shown: list[Path] = []
    build = failing_at(2, error, [])
    with pytest.raises(RunStopped, match="k4 stopped: the loss is nan at training step 2\n  results: "):
        run_scenario(scenario(tmp_path, ARMS), tmp_path / "out", True, build, shown.append)
    runs = runs_by_name(tmp_path / "out")
    assert {name: run.manifest.status for name, run in runs.items()} == {"k1": "completed", "k4": "failed"}
    assert runs["k4"].manifest.error == "the loss is nan at training step 2"
    assert [row.step for row in runs["k4"].steps] == [0, 1]
    assert runs["k4"].manifest.outcome["steps_done"] == 2
    assert runs["k4"].manifest.outcome["memory"]["main"]["peak_bytes"] > 0
    assert [row.step for row in runs["k1"].steps] == [0, 1, 2, 3]
    assert shown == [runs["k4"].folder.parent]


def test_a_point_that_stops_does_not_end_the_sweep(tmp_path: Path) -> None:
    text = "steps: 3\nevaluation: {prompts: 4}\nsweep: {epochs_per_batch: [1, 4, 2]}\n"
    error = UserError("the reward function raised", "mine:reward", "mend it")
    with pytest.raises(UserError, match="epochs_per_batch=4 failed: the reward function raised"):
        run_scenario(scenario(tmp_path, text), tmp_path / "out", True, failing_at(1, error, []), unseen)
    statuses = {name: run.manifest.status for name, run in runs_by_name(tmp_path / "out").items()}
    assert statuses == {
        "epochs_per_batch=1": "completed",
        "epochs_per_batch=4": "failed",
        "epochs_per_batch=2": "completed",
    }


def test_a_bug_in_a_part_ends_the_run_with_its_own_cause(tmp_path: Path) -> None:
    error = RuntimeError("index out of range")
    error.__cause__ = KeyError("rewards")
    with pytest.raises(RuntimeError, match="index out of range") as caught:
        run_scenario(scenario(tmp_path, ARMS), tmp_path / "out", True, failing_at(1, error, []), unseen)
    assert isinstance(caught.value.__cause__, KeyError)
    assert {run.manifest.status for run in runs_by_name(tmp_path / "out").values()} == {"failed"}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("stopped")])
def test_an_interrupted_run_says_so_and_names_the_folder(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(Interrupted, match="what was measured so far is in"):
        run_scenario(scenario(tmp_path, ARMS), tmp_path / "out", True, show=unseen, build=failing_at(1, error, []))
    runs = runs_by_name(tmp_path / "out")
    assert {run.manifest.status for run in runs.values()} == {"interrupted"}
    assert {run.manifest.error for run in runs.values()} == {None}
    assert [row.step for row in runs["k4"].steps] == [0]


def striking_once(monkeypatch: pytest.MonkeyPatch, called: str) -> None:
    """Have the first call of a function meet Ctrl-C."""
    module, _, name = called.rpartition(".")
    before, struck = getattr(sys.modules[module], name), list[bool]()

    def strike(*arguments: Any, **named: Any) -> Any:
        if not struck:
            struck.append(True)
            signal.raise_signal(signal.SIGINT)
        return before(*arguments, **named)

    monkeypatch.setattr(called, strike)


@pytest.mark.parametrize(
    ("called", "status"),
    [("harness.run.session.open_streams", "interrupted"), ("harness.run.session.memory_line", "completed")],
)
def test_a_signal_while_a_run_is_opened_or_written_down_leaves_none_that_seems_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str, status: str
) -> None:
    striking_once(monkeypatch, called)
    with pytest.raises(Interrupted):
        run_scenario(scenario(tmp_path, "steps: 1\n"), tmp_path / "out", True, build_simulated_parts, unseen)
    (run,) = runs_by_name(tmp_path / "out").values()
    assert run.manifest.status == status


def test_a_second_signal_while_the_first_arm_is_written_down_leaves_the_other_interrupted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    striking_once(monkeypatch, "harness.run.session.memory_line")
    build = failing_at(1, KeyboardInterrupt(), [])
    with pytest.raises((Interrupted, KeyboardInterrupt)):
        run_scenario(scenario(tmp_path, ARMS), tmp_path / "out", True, show=unseen, build=build)
    runs = runs_by_name(tmp_path / "out")
    assert [run.manifest.status for run in runs.values()] == ["interrupted"] * 2


def arm_of(resolved: Scenario) -> Arm:
    """An arm on simulated parts whose clock stands at 0."""
    clock = PausableClock()
    tracer = RecordingTracer(clock, clock.at)
    return Arm(Variant(None, {}, "", resolved), clock, tracer, build_simulated_parts(resolved, tracer, lambda: False))


def test_two_commands_in_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    experiments = [Experiment(tmp_path, "trial") for _ in range(3)]
    resolved = load_scenario("quickstart")
    for experiment in experiments:
        experiment.open_run(arm_of(resolved)).finish(Interrupted())
    assert len({experiment.folder for experiment in experiments}) == 3
    assert len(runs_by_name(tmp_path)) == 3


def test_a_run_is_finished_once(tmp_path: Path) -> None:
    session = Experiment(tmp_path, "trial").open_run(arm_of(load_scenario("quickstart")))
    session.finish(RunStopped("first"))
    session.finish(KeyboardInterrupt())
    session.finish()
    (run,) = runs_by_name(tmp_path).values()
    assert (run.manifest.status, run.manifest.error) == ("failed", "first")


def test_what_cannot_be_built_leaves_no_folder(tmp_path: Path) -> None:
    def refuse(resolved: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        raise UserError("no weights in the model folder")

    with pytest.raises(UserError, match="no weights"):
        run_scenario(scenario(tmp_path, ARMS), tmp_path / "out", True, show=unseen, build=refuse)
    assert not (tmp_path / "out").exists()


def test_stage_totals_of_the_rows_are_those_of_the_spans(tmp_path: Path) -> None:
    run_scenario(
        scenario(tmp_path, "steps: 3\nevaluation: {prompts: 4}\n"),
        tmp_path / "out",
        True,
        show=unseen,
        build=build_simulated_parts,
    )
    (run,) = runs_by_name(tmp_path / "out").values()
    from_rows: dict[str, float] = {}
    for row in (*run.steps, run.tail):
        assert row is not None
        for stage, seconds in row.stages_s.items():
            from_rows[stage] = from_rows.get(stage, 0.0) + seconds
    from_spans: dict[str, float] = {}
    for span in run.spans():
        if span.stage.value != "startup":
            from_spans[span.stage.value] = from_spans.get(span.stage.value, 0.0) + (span.end_ns - span.start_ns) / 1e9
    assert from_rows == pytest.approx(from_spans, abs=1e-6)


def test_the_catalogue_of_transports_has_every_type_of_the_schema() -> None:
    definitions = json_schema()["$defs"]
    types = {
        section["properties"]["type"]["const"]
        for name, section in definitions.items()
        if name.endswith("TransportSettings") and "const" in section["properties"].get("type", {})
    }
    assert types == {"in_process", *TRANSPORTS}


BLOCKS = """
seed: 3
steps: 4
blocks: 3
profile: "off"
trackers: []
evaluation: {every: 4, prompts: 8}
arms:
  k1: {epochs_per_batch: 1}
  k4: {epochs_per_batch: 4}
"""


def test_each_block_runs_every_arm_once_on_a_seed_of_its_own(tmp_path: Path) -> None:
    story: list[tuple[int, int]] = []
    build = failing_at(99, RuntimeError(), story)
    run_scenario(scenario(tmp_path, BLOCKS), tmp_path / "out", True, build, unseen)
    runs = runs_by_name(tmp_path / "out")
    assert sorted(runs) == [f"{arm},block={block}" for arm in ("k1", "k4") for block in range(3)]
    facts = {name: (run.manifest.block, run.manifest.seed, run.manifest.profile) for name, run in runs.items()}
    assert facts == {f"{arm},block={block}": (block, 3 + block, "off") for arm in ("k1", "k4") for block in range(3)}
    blocks = [story[start : start + 8] for start in range(0, 24, 8)]  # two arms of four steps each, in turns
    assert [sorted(block) for block in blocks] == [[(k, step) for k in (1, 4) for step in range(4)]] * 3
    assert {row.warmup for run in runs.values() for row in run.steps if row.step < 2} == {True}


def test_an_arm_that_stops_in_one_block_runs_again_in_the_next(tmp_path: Path) -> None:
    build = failing_at(2, RunStopped("the loss is nan"), [])
    with pytest.raises(RunStopped, match=r"k4,block=0 stopped \(and 2 more\): the loss is nan"):
        run_scenario(scenario(tmp_path, BLOCKS), tmp_path / "out", True, build, unseen)
    statuses = {name: run.manifest.status for name, run in runs_by_name(tmp_path / "out").items()}
    assert statuses == {f"{arm},block={b}": s for arm, s in (("k1", "completed"), ("k4", "failed")) for b in range(3)}


def test_bad_input_ends_the_blocks(tmp_path: Path) -> None:
    build = failing_at(1, UserError("the reward function raised", "mine:reward", "mend it"), [])
    with pytest.raises(UserError, match="k4,block=0 failed: the reward function raised"):
        run_scenario(scenario(tmp_path, BLOCKS), tmp_path / "out", True, build, unseen)
    assert sorted(runs_by_name(tmp_path / "out")) == ["k1,block=0", "k4,block=0"]


def test_a_run_leaves_its_metrics_for_other_programs(tmp_path: Path) -> None:
    text = 'steps: 3\nprofile: "off"\nevaluation: {every: 3, prompts: 4}\n'
    run_scenario(scenario(tmp_path, text), tmp_path / "out", True, build_simulated_parts, unseen)
    (run,) = runs_by_name(tmp_path / "out").values()
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 3 + 2  # three steps, and validation before the first and after the last
    (events,) = (run.folder / "tensorboard").iterdir()
    assert events.stat().st_size > 0
    assert not (run.folder / "counters.jsonl").exists()


def test_a_report_that_cannot_be_made_does_not_hide_what_failed_before(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        raise UserError("the disk is full", str(folder))

    build = failing_at(2, RunStopped("the loss is nan"), [])
    with pytest.raises(RunStopped, match=r"k4 stopped \(and 1 more\): the loss is nan"):
        run_scenario(scenario(tmp_path, ARMS), tmp_path / "out", True, build, full)
