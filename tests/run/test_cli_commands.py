"""The commands in the same process: what they print, hand on and return."""

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.core.atomic_files import check_writable
from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.extras import as_typed, how_to_install
from harness.core.named_files import SCENARIOS
from harness.probes.provenance import machine_facts, package_versions
from harness.results import Manifest, RunFolder, StepRow
from harness.run.commands.list import EXAMINATION, QUESTIONS, scenarios
from harness.run.dry_run import dry_run, plan_of
from harness.run.engine import Tries
from harness.run.needs import Need, compiler_needed, cpus_needed, needs_of, packages_needed
from harness.run.points import Attempt, Point, State
from harness.scenario.axes import expand
from harness.scenario.foreign_names import MEANT, NOT_OFFERED, SETTING_OF
from harness.scenario.keys import dotted_keys
from harness.scenario.load import load_scenario, resolved_yaml
from harness.scenario.schema import Scenario
from harness.simulate.machine import load_machine
from tests.run.conftest import begun_sweep


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "mine.yaml").write_text(
        "description: |\n  Try [this] out\n  more\nsteps: 10\nevaluation: {every: 5, prompts: 100}\n"
        "arms:\n  one: {}\n  two: {epochs_per_batch: 2}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_with(*typed, ending=0):
    """Carry out a command whose run ends as told; return its exit code and what was handed on to the run."""
    calls = []

    def run(scenario, out, quiet):
        calls.append((scenario, out, quiet))
        if isinstance(ending, BaseException):
            raise ending
        return ending

    return main([*typed], run), calls


def test_run_hands_on_the_scenario_with_its_overrides(folder):
    code, calls = run_with("run", "mine", "--set", "steps=3", "--set", "seed=7", "--out", "there", "--quiet")
    assert (code, calls) == (0, [(load_scenario("mine", ["steps=3", "seed=7"]), Path("there"), True)])
    assert not (folder / "there").exists()  # the run makes it
    assert run_with("run", "scenarios/mine.yaml") == (0, [(load_scenario("mine"), Path("results"), False)])


@pytest.mark.parametrize(
    ("typed", "arms", "blocks"),
    [
        ("bench plain other --blocks 12 --again --set steps=3 --set stop_at_half_width=0.01", "plain other again", 12),
        ("bench mine", "one two", 10),
        ("bench plain --set steps=3 --again", "plain again", 10),
        ("run plain other --set steps=3", "plain other", 10),
        ("run plain --set steps=3 --blocks 3", "", 3),
        ("run plain --set steps=3 --again", "plain again", 10),
        ("run plain --set steps=3", "", 1),  # as `make bench` does
    ],
)
def test_scenarios_side_by_side_are_arms_in_blocks(folder, capsys, typed, arms, blocks):
    for name in ("plain", "other"):
        (folder / "scenarios" / f"{name}.yaml").write_text("steps: 10\n")
    code, ((scenario, _, _),) = run_with(*typed.split())
    assert (code, list(scenario.arms), scenario.blocks) == (0, arms.split(), blocks)
    assert scenario.steps == (3 if "steps=3" in typed else 10)
    assert scenario.stop_at_half_width == (0.01 if "half_width" in typed else None)
    assert run_with("bench", "plain", "--set", "sampling.stop=[a b]") == (2, [])  # nothing would be compared
    assert "python -m harness bench plain --set 'sampling.stop=[a b]' --again;" in capsys.readouterr().err


def test_a_sweep_is_a_run_with_attempts_and_more_of_them_where_its_folder_is_resumed(monkeypatch, capsys):
    given = []

    def run(scenario, out, quiet, **options):
        given.append((scenario.name, out, options))
        return 0

    monkeypatch.setattr("harness.run.experiment.run_scenario", run)
    assert main(["sweep", "mine", "--quiet"]) == 0
    assert given == [("mine", Path("results"), {"amount": "line", "tries": Tries(3, False), "sweep": None})]
    there = begun_sweep(Path("results"), load_scenario("mine")).resolve()
    for typed in (["run", "--resume", str(there)], ["sweep", "mine", "--resume", str(there)]):
        assert main([*typed, "--quiet"]) == 0
        options = {"amount": "line", "tries": Tries(3, True), "sweep": there}
        assert given[-1] == ("mine", there.parent.parent, options)
    assert main(["run", "mine", "--resume", str(there), "--set", "steps=3"]) == 2
    assert "steps: 10 -> 3" in capsys.readouterr().err
    assert len(given) == 3
    for typed, amount in (("--json", "json"), ("--verbose", "everything"), ("--again", "brief")):
        assert main(["run", "mine", typed]) == 0
        assert given[-1][2]["amount"] == amount


@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [
        (0, 0, ""),
        (5, 5, ""),
        (UserError("no GPU", "placement", "set cpu"), 2, "error: no GPU\n  where: placement\n  fix:   set cpu\n"),
        (RunStopped("loss is nan at step 3"), 1, "stopped: loss is nan at step 3\n"),
        (Interrupted("after step 4"), 130, "interrupted: after step 4\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (ZeroDivisionError("oops"), 1, "ZeroDivisionError: oops\nthis is a bug in the harness"),
    ],
)
def test_how_a_run_ends_decides_the_exit_code(capsys, ending, code, message):
    assert run_with("run", "mine", ending=ending)[0] == code
    said = capsys.readouterr().err
    assert message in said if isinstance(ending, ZeroDivisionError) else said == message


def test_validate_counts_runs_and_rollouts_and_prints_what_is_resolved(capsys, folder):
    assert main(["validate", "mine"]) == 0
    # each arm: 10 steps x 64 + 3 validations (0, 5, 10) x 100 = 940
    said = "mine is valid: 2 runs, 1,880 rollouts with validation\n  one\n  two: epochs_per_batch=2\n"
    assert capsys.readouterr().out == said
    assert main(["validate", "mine", "--resolved", "--set", "steps=4"]) == 0
    (folder / "again.yaml").write_text(capsys.readouterr().out)
    assert load_scenario("again.yaml") == load_scenario("mine", ["steps=4"])
    assert main(["validate", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["group_size"]["default"] == 8


def test_validate_reads_the_data_that_is_there(capsys, folder):
    (folder / "s.yaml").write_text("task: {type: jsonl, train: rows.jsonl, reward: 'no_such_module:fn'}\n")
    assert main(["validate", "s.yaml"]) == 0
    assert "not read: rows.jsonl is not here" in capsys.readouterr().out
    rows = [{"prompt": f"p{number}", "answer": number} for number in (0, 0, 1, 2)]
    (folder / "rows.jsonl").write_text(json.dumps(rows))
    assert main(["validate", "s.yaml"]) == 0
    said = capsys.readouterr().out
    assert "rows.jsonl: 2 prompts to train on, 1 held out" in said
    assert "1 row repeats" in said
    assert "evaluation.prompts is 256, and 1 are held out" in said
    (folder / "rows.jsonl").write_text('{"prompt": "p"}\n{"prompt": "q"}\n')
    assert main(["validate", "s.yaml"]) == 2
    error = capsys.readouterr().err
    assert "2 of 2 lines are bad" in error
    assert "task.answer_field to null" in error


def test_list_shows_each_scenario_under_its_question(capsys, folder):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Yours"
    assert lines[1].split() == ["mine", "Try", "[this]", "out"]
    start = lines.index("How often to train on a rollout batch?") + 1
    names = [line.split()[:3] for line in lines[start:] if line.startswith("  sync_k")]
    assert names[:2] == [["sync_k", "6", "min"], ["sync_k1", "1", "min"]]
    assert any("noise" in line.split()[:1] for line in lines[lines.index(EXAMINATION) :])
    (folder / "scenarios" / "broken.yaml").write_text("stepps: 1\n")  # the rest is shown
    assert main(["list", "gpu", "nixl", "--json"]) == 2
    out, error = capsys.readouterr()
    found = json.loads(out)
    gpus = ["rdt_gpu", "rdt_nccl", "transport_sweep_gpu", "sizing_1_5b", "sizing_ranks"]
    assert [item["name"] for item in found] == gpus
    assert found[0]["needs"] == "GPU, Ray, NIXL"
    assert error.startswith("error: scenarios/broken.yaml does not load\nunknown key `stepps`\n")


def test_the_list_has_every_shipped_scenario_under_a_question():
    shipped = {path.stem for path in SCENARIOS.shipped.glob("*.yaml")}
    listed, broken = scenarios()
    assert (broken, {item.name for item in listed}) == ([], {*shipped, "mine"})
    assert {item.question for item in listed} == {*QUESTIONS, EXAMINATION, "Yours"}
    needs = {item.name: item.needs for item in listed}
    told = {
        "quickstart": "", "keywords_from_files": "files", "hf_folder": "model", "rdt_nccl": "2 GPUs, Ray, CuPy, NIXL",
        "learner_zero": "Ray, DeepSpeed", "maths_two_gpus": "2 GPUs, Ray, vLLM, files, model", "slow_rank": "Ray",
        "transport_sweep_gpu": "GPU, Ray, NIXL", "vllm_transports": "Ray, vLLM, NIXL",
    }  # fmt: skip
    assert {name: needs[name] for name in told} == told
    start_s = load_machine("cpu-2-cores").startup_s["actors"]  # each run with Ray actors starts anew
    for scenario in (load_scenario(path) for path in SCENARIOS.shipped.glob("*.yaml")):
        starts = sum(variant.scenario.uses_ray for variant in expand(scenario))
        if scenario.minutes is not None and starts > 1:
            assert scenario.minutes >= starts * start_s / 60, scenario.name


# ---- dry runs


@pytest.fixture
def anything_fits(monkeypatch):
    monkeypatch.setattr("harness.run.preflight.check_before_start", lambda points: None)


def test_a_dry_run_starts_nothing_and_says_what_would_run(capsys, anything_fits):
    assert run_with("bench", "mine", "--blocks", "6", "--dry-run", "--json") == (0, [])
    plan = json.loads(capsys.readouterr().out)
    assert (plan["runs"], plan["blocks"], plan["missing"], plan["results"]) == (12, 6, [], "results/mine")
    assert [(arm["name"], arm["changes"], arm["runs"], arm["rollouts"]) for arm in plan["arms"]] == [
        ("one", {}, 6, 940),
        ("two", {"epochs_per_batch": 2}, 6, 940),
    ]
    more = ("--set", "task={type: maths, train: gone.jsonl}", "--set", "model.preset=maths")
    assert run_with("run", "mine", "--dry-run", *more) == (2, [])
    said = capsys.readouterr().out
    assert "missing: there is no file gone.jsonl" in said
    assert "--set task.train=FILE" in said
    assert run_with("sweep", "mine", "--dry-run", "--quiet") == (0, [])
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert not Path("results").exists()
    main(["run", "transport_sweep", "--dry-run"])
    told, sweep = capsys.readouterr().out, load_scenario("transport_sweep").transport_sweep
    kinds = len(sweep.transports) * len(sweep.megabytes) * len(sweep.tensors) * len(sweep.receivers)
    assert f"would make 1 run with {kinds} kinds of weight sync, {sweep.repeats} of each" in told
    assert "rollouts" not in told


def test_a_dry_run_says_what_is_left_of_a_sweep(capsys, monkeypatch, anything_fits):
    there = begun_sweep(Path("results"), load_scenario("mine"))
    monkeypatch.setattr(
        "harness.run.points.read_points",
        lambda folder, variants: [
            Point(each, there, (), Attempt(State.FINISHED if done else State.NEW, None, there), None)
            for each, done in zip(variants, finished, strict=True)
        ],
    )
    for typed in (["sweep", "mine"], ["run", "--resume", str(there)]):
        finished = [True, False]
        assert main([*typed, "--dry-run"]) == 0
        told = capsys.readouterr().out
        assert told.startswith("mine: 1 run is finished; would make 1 run with 940 rollouts, ")
        assert "  one" not in told
        finished = [True, True]
        assert main([*typed, "--dry-run", "--quiet"]) == 0
        assert capsys.readouterr().out == "mine: 2 runs are finished; nothing is left to run; nothing is missing\n"


def finished(variant, started_at, step_s, **about):
    """Write a run of two steps, the second of which is measured."""
    about = {"machine": machine_facts(), "versions": package_versions(), "startup_s": 3.0} | about
    with RunFolder.create(Path("out"), "mine", started_at.replace(":", ""), variant.name) as made:
        made.write_manifest(Manifest(scenario="mine", experiment="e", started_at=started_at, arm=variant.arm, **about))
        made.write_scenario(resolved_yaml(variant.scenario))
        for step, seconds in enumerate((9.0, step_s)):
            made.append(StepRow(step, step + 1, seconds, 9.0, 1, lanes={}, metrics={}, warmup=not step))
        made.finish("completed")


def test_a_plan_takes_seconds_of_the_newest_run_of_each_arm_on_this_machine(folder, capsys):
    mine = load_scenario("mine", ["blocks=6"])
    assert dry_run(mine, Path("out"), quiet=True) == 0
    assert "seconds known after the first block" in capsys.readouterr().out
    one, two = expand(load_scenario("mine", ["steps=2", "seed=5"]))  # seed, blocks and steps may differ
    finished(one, "2026-01-01T00:00:00Z", 5.0)
    finished(one, "2026-01-03T00:00:00Z", 0.5)
    finished(one, "2026-01-04T00:00:00Z", 7.0, machine=machine_facts() | {"fingerprint": "another"})
    finished(one, "2026-01-05T00:00:00Z", 7.0, versions={"torch": "0.1"})
    finished(one, "2026-01-06T00:00:00Z", 7.0, simulated="cpu-2-cores")
    found = plan_of(mine, Path("out")).arms
    assert [(arm.step_s, arm.startup_s) for arm in found] == [(0.5, 3.0), (None, None)]
    assert plan_of(mine, Path("out")).seconds is None
    finished(two, "2026-01-02T00:00:00Z", 0.25)
    assert plan_of(mine, Path("out")).seconds == 6 * (3.0 + 10 * 0.5) + 6 * (3.0 + 10 * 0.25)
    assert plan_of(load_scenario("mine", ["group_size=4"]), Path("out")).seconds is None
    assert dry_run(mine, Path("out"), quiet=False) == 0
    told = capsys.readouterr().out
    assert "about 81 s, start included; nothing is missing" in told
    assert "one x 6: the scenario as it is; 10 steps, 0.500 s a step and 3.00 s to start as in out/mine/" in told


def test_what_a_run_needs_is_told_with_what_brings_it(monkeypatch):
    nccl = next(each.scenario for each in expand(load_scenario("rdt_nccl")) if each.scenario.transport.type == "nccl")
    needed = needs_of(nccl, find=lambda package: None, gpus=lambda: 1)
    assert [need.name for need in needed] == ["torch", "2 GPUs", "Ray", "CuPy"]
    assert "2 GPUs (learner 1 x 1, generator 1 x 1), and this machine has 1" in needed[1].missing
    assert all(need.fix for need in needed)
    keys = ["learner.sharding=deepspeed", "placement.learner.ranks=2", "transport.type=shared_memory"]
    scenario = load_scenario("quickstart", keys)
    needs = {need.name: need for need in packages_needed(scenario, find=lambda package: None)}
    assert needs["DeepSpeed"].missing.startswith("learner.sharding is deepspeed, ")
    assert "make install PARTS=deepspeed" in needs["DeepSpeed"].fix
    monkeypatch.setenv("CXX", "compiler-of-tomorrow")
    (compiler,) = compiler_needed(scenario)
    assert "compiler-of-tomorrow" in compiler.missing
    assert compiler_needed(load_scenario("quickstart", [*keys, "placement.learner.gpus=1"])) == []


def test_cpus_are_counted_as_they_are_reserved():
    keys = ["transport.type=nixl", "placement.colocated=false", "placement.learner.cpus=3", "placement.scorer.cpus=0.5"]
    need = cpus_needed(load_scenario("quickstart", keys), 4)
    assert "4.5 CPUs (learner 3, 1 x generator 1, 1 x scorer 0.5), and this machine has 4" in need.missing
    assert cpus_needed(load_scenario("quickstart", [*keys, "placement.colocated=true"]), 4) == Need("3 CPUs")
    assert cpus_needed(load_scenario("quickstart", [*keys, "placement.address=auto"]), 4).missing == ""


def test_installing_is_told_as_this_copy_was_installed(monkeypatch):
    assert how_to_install("vllm", checkout=False) == "pip install 'grpo-harness[vllm]'"
    ways = [how_to_install(part, checkout=True) for part in ("train", "vllm", "nccl")]
    assert ways == ["make install", "make install-vllm", "make install PARTS=nccl"]
    typed = "python -m harness run x; python -m harness.compare y; python -m harness.models.make_folder"
    assert as_typed(typed) == typed
    monkeypatch.setattr("sys.argv", ["/usr/bin/grpo-harness"])
    assert as_typed(typed) == "grpo-harness run x; grpo-harness compare y; python -m harness.models.make_folder"


def test_every_meaning_leads_to_a_setting():
    assert set(MEANT) <= set(dotted_keys(Scenario))
    assert not set(SETTING_OF) & set(NOT_OFFERED)


def test_results_cannot_go_into_a_file(folder, capsys):
    before = sorted(folder.rglob("*"))
    check_writable(folder / "a" / "b")  # leaves nothing behind
    assert sorted(folder.rglob("*")) == before
    (folder / "file").write_text("keep me")
    for typed in (["run", "mine", "--out", "file/below"], ["calibrate", "--name", "mine", "--out", "file/below"]):
        assert run_with(*typed) == (2, [])  # before anything is measured
        assert capsys.readouterr().err.startswith("error: cannot write results to file/below (Not a directory)\n")
    assert run_with("run", "mine", "--out", "file") == (2, [])
    error, where, fix = capsys.readouterr().err.splitlines()
    assert (error, where) == ("error: cannot write results to file (it is a file)", "  where: --out file")
    assert "--out DIR" in fix
    assert (folder / "file").read_text() == "keep me"
