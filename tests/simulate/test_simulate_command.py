"""The command from what is typed to what other commands show of it: everything says that it was simulated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main as harness
from harness.compare.environment import environment_values
from harness.compare.experiment import gather
from harness.compare.remarks import remarks_of
from harness.probes.provenance import machine_facts
from harness.report.build import charts_of, document
from harness.results import RunFolder, find_runs, load_run
from harness.simulate import experiment as experiment_module
from harness.simulate.machine import load_machine, save_machine
from harness.simulate.points import Question
from tests.simulate.conftest import ABACUS, ONE_LAG

SMALL = (
    "steps=5", "rollout_batch_size=16", "group_size=4", "evaluation.every=5", "evaluation.prompts=4",
    "evaluation.examples=0", "sampling.pinned_lengths=[11, 11]", "model.threads=null",
)  # fmt: skip


def simulate(*arguments: str, scenario: str = str(ONE_LAG), machine: Path = ABACUS) -> int:
    changes = [word for change in SMALL for word in ("--set", change)]
    return harness(["simulate", scenario, "--machine", str(machine), *changes, "--draws", "3", *arguments])


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulated")
    assert simulate("--out", str(out), "--quiet", "--set", "blocks=1") == 0
    (folder,) = (out / "one_lag").iterdir()
    return folder


def test_the_table_has_what_hand_arithmetic_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate() == 0
    said = capsys.readouterr().out
    lines = {line.split("  ")[0].strip(): line.split()[-2:] for line in said.splitlines() if line.startswith(" ")}
    # one after the other 0.1 + 0.05 + 0.01 + 0.2 + 0.02 + 0.01 + 0.03; one behind, the Learner's 0.01 + 0.2 + 0.02
    # and an evaluation of 0.1 + 0.05 in one of three measured steps; one behind, the weights for it are loaded then
    assert lines["seconds of a training step"] == ["0.470", "0.293"]  # 0.42 + 0.15 / 3, 0.23 + 0.19 / 3
    assert lines["response tokens a second"] == ["374", "600"]  # 16 x 11 / 0.47 and / 0.2933
    assert lines["rollouts trained on at lag 1"] == ["-", "80.0%"]  # all of 5 batches but the first
    text = " ".join(said.split())
    assert "abacus (simulated)" in text
    assert "update of the Learner is the largest turn: 0.200 of the 0.470" in text
    # the Learner works for 0.23 of 0.2933 s: the rest is the evaluation, which weighs much in three steps
    assert "update of the Learner is the largest turn: 0.200 of the 0.293 s of a step (68.2%)" in text


@pytest.mark.parametrize("options", [[], ["--arm", "lag1", "--sweep", "group_size=2,4", "--draws", "1"]])
def test_the_first_line_says_how_far_off_forecasts_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """As the page on the simulator has it, which says where the figures are from before it promises any."""
    assert simulate("--out", str(tmp_path), *options) == 0
    first = capsys.readouterr().out.splitlines()[0]
    page = (Path(__file__).parents[2] / "docs/simulator.md").read_text()
    for figures in ("5.4%", "6.9%"):
        assert figures in first
        assert page.index(figures) < page.index("| inside |")  # the row of the best figures
    assert "--from RUN" in first


def test_the_runs_are_read_like_any_other_and_no_reward_is_made_up(experiment: Path, tmp_path: Path) -> None:
    runs, damaged = find_runs(experiment)
    assert ([run.manifest.arm for run in runs], damaged) == (["lag1", "sync"], [])
    sync = runs[1]
    assert (sync.status, sync.manifest.simulated, sync.manifest.startup_s) == ("completed", "abacus", 0.0)
    assert sync.manifest.machine["cpu"] == "Abacus 3000"
    assert sync.setting("max_lag") == 0
    assert [row.wall_s for row in sync.steps[1:-1]] == pytest.approx([0.42] * 3, abs=1e-9)
    assert sync.ledger is not None
    assert (sync.ledger.generated.rollouts, sync.ledger.trained.rollouts) == (80, 80)
    assert len(sync.groups()) == 5 + 2  # a row for each batch and each evaluation
    assert all(span.end_ns <= sync.spans()[-1].end_ns + 10**9 for span in sync.spans())
    replay = ("--set", "replay.capacity=4", "--set", "transport.type=shared_memory")
    assert simulate("--out", str(tmp_path), "--quiet", *replay, scenario="sync_k1") == 0
    run = load_run(next((tmp_path / "sync_k1").iterdir()))
    names = {name for row in (*run.steps, *run.evaluations) for name in row.metrics}
    assert [name for name in names if "reward" in name] == []
    assert [row.rewards for row in run.groups() if any(getattr(row, "rewards", ()))] == []


def test_the_same_seed_gives_byte_identical_spans(tmp_path: Path) -> None:
    noisy = tmp_path / "noisy.yaml"
    stages = tuple(each.model_copy(update={"run_log_sd": 0.1}) for each in load_machine(ABACUS).stages)
    save_machine(load_machine(ABACUS).model_copy(update={"name": "noisy", "stages": stages}), noisy)
    for out in ("one", "two"):
        assert simulate("--out", str(tmp_path / out), "--quiet", "--set", "blocks=2", machine=noisy) == 0
    one, two = (sorted((tmp_path / out).rglob("spans.jsonl")) for out in ("one", "two"))
    assert len(one) == 4  # two arms in two blocks
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
    assert len({path.read_bytes() for path in one}) == 4  # each block is another world


def test_compare_and_report_say_simulated(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.report.svg.page_svg", lambda figure, prefix: "")  # charts take seconds
    monkeypatch.setattr("harness.report.document.Chart.figure", None)
    assert harness(["compare", str(experiment)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "lag1 (simulated) was 37.6% faster than sync (simulated) per step" in text  # 0.2933 of 0.47
    assert "These runs are simulated" in text
    assert "reward" not in text.lower().replace("rewards, losses and gradients are not simulated", "")
    assert harness(["compare", str(experiment), "--json", "--baseline", "lag1"]) == 0
    found = json.loads(capsys.readouterr().out)["campaigns"][0]
    assert found["simulated"] == "abacus"
    assert [verdict["base"] for verdict in found["verdicts"]] == ["lag1 (simulated)"]  # asked for as lag1
    assert harness(["report", str(experiment), "-o", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "SIMULATED by the machine profile abacus" in page
    assert "python -m harness simulate one_lag.yaml --machine abacus" in page
    charts = [chart.key for chart in charts_of(document(gather([experiment])[0][0], []))]
    assert charts == ["stages", "lanes", "timeline", "step_time", "lag", "sync"]  # no rewards


def test_simulated_runs_beside_real_ones_are_told_apart(
    experiment: Path, make_run: Callable[..., RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_run(scenario="one_lag", arm="sync").folder.parent
    real, simulated = gather([made])[0][0], gather([experiment])[0][0]
    of_both = [environment_values(item.members[0].manifest)["simulation"] for item in (real, simulated)]
    assert of_both == ["took place", "abacus"]
    assert not any("are simulated" in remark.text for remark in remarks_of(real, []))
    against = ["compare", str(experiment), "--against", str(made), "--json"]
    assert harness(against) == 0
    verdicts = json.loads(capsys.readouterr().out)["campaigns"][-1]["verdicts"]
    assert [verdict["other"] for verdict in verdicts] == ["sync (simulated)", "lag1 (simulated)"]
    for verdict in verdicts:
        assert verdict["step"]["verdict"] == "not comparable"
        assert re.match(r"they differ in versions \(.*\) and simulation \(", verdict["step"]["reason"])


def test_other_versions_are_refused_on_the_machine_of_the_profile_and_named_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = load_machine(ABACUS).model_copy(update={"name": "old", "versions": {"numpy": "0.1", "no-such": "1"}})
    save_machine(machine, tmp_path / "old.yaml")
    assert simulate(machine=tmp_path / "old.yaml") == 0
    assert "numpy 0.1 in old" in capsys.readouterr().err
    here = machine.device.model_copy(update={"fingerprint": machine_facts()["fingerprint"]})
    save_machine(machine.model_copy(update={"device": here}), tmp_path / "here.yaml")
    assert simulate(machine=tmp_path / "here.yaml") == 2
    said = capsys.readouterr().err
    assert "numpy 0.1 in old" in said
    assert "--allow versions" in said
    assert simulate("--allow", "versions", machine=tmp_path / "here.yaml") == 0


def test_what_the_profile_cannot_do_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = ("--set", "model.type=folder", "--set", "model.path=Qwen/Qwen2.5-32B")
    for asked, machine, said in (
        (("--set", "transport.type=gloo"), ABACUS, "no cost of weight_publish"),
        (large, Path("h100-sxm"), "367 GiB of memory, and a GPU of h100-sxm has 80 GiB"),
    ):
        assert simulate("--out", str(tmp_path / "out"), *asked, machine=machine) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_results_that_cannot_be_written_are_refused_before_anything_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert simulate("--ask", "lag", "--arm", "lag1", "--out", str(tmp_path / "file")) == 2
    heard = capsys.readouterr()
    assert (heard.out, "(it is a file)" in heard.err) == ("", True)


def test_extrapolation_and_data_sheets_are_said_loudly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = load_machine(ABACUS).model_copy(update={"name": "paper", "origin": "datasheet"})
    save_machine(machine, tmp_path / "paper.yaml")
    changes = ("--set", "sampling.max_tokens=200", "--set", "sampling.pinned_lengths=[101, 101]")
    assert simulate(*changes, "--out", str(tmp_path), machine=tmp_path / "paper.yaml") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"EXTRAPOLATING in sync and lag1: 100 [a-z ]+ in generate, and [\d,.]+ to 62 were measured", text)
    assert "paper, not measured (simulated)" in text
    assert "NOT MEASURED: paper is made from data sheets" in text
    said = [remark.text for remark in remarks_of(gather([tmp_path / "one_lag"])[0][0], [])]
    assert any(re.match(r"EXTRAPOLATING: 100 [a-z ]+ in generate, and", sentence) for sentence in said)
    assert any("was not measured" in sentence for sentence in said)


def test_runs_are_written_only_where_a_folder_is_named_and_points_of_a_sweep_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert simulate("--quiet") == 0
    assert list(tmp_path.iterdir()) == []
    assert simulate("--arm", "lag1", "--sweep", "group_size=2,4", "--quiet") == 0
    assert len(list(tmp_path.glob("results/simulated/one_lag/sweep-*/points.jsonl"))) == 1


@pytest.mark.parametrize(("typed", "steps"), [((), 12), (("--set", "steps=14"), 14), (("--set", "steps=6"), 6)])
def test_a_point_makes_12_steps_or_those_that_were_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...], steps: int
) -> None:
    asked = list[Question]()
    monkeypatch.setattr(experiment_module, "run_sweep", lambda sweep, *_: asked.append(sweep.question))
    command = ["simulate", "sync_k1", "--machine", "cpu-2-cores", "--allow", "versions", "--out", str(tmp_path)]
    assert harness([*command, "--sweep", "lag=0", *typed]) == 0
    assert asked[0].base["steps"] == steps


def test_a_sweep_is_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--arm", "lag1", "--ask", "lag", "--sweep", "epochs_per_batch=1,2", "--out", str(tmp_path))
    assert simulate(*asked) == 0
    text = " ".join(capsys.readouterr().out.split())
    # the Learner sets the pace from lag 1 on: 0.23 s against 0.42 s
    assert "With epochs_per_batch 1: take lag 1, the smallest within 5% of the best throughput" in text
    assert "Lag also costs learning, which is not simulated" in text
    (folder,) = (tmp_path / "one_lag").iterdir()
    header = json.loads((folder / "points.jsonl").read_text().splitlines()[0])
    assert header["command"].startswith(f"python -m harness simulate {ONE_LAG} --machine ")
    assert sorted(path.name for path in folder.iterdir()) == ["points.csv", "points.jsonl", "sweep.png"]
