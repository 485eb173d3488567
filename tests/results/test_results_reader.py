"""Reading run folders: whole ones, those of killed runs, damaged ones."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.checkpoints import begin, commit
from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.core.types import ExampleRollout, Metric
from harness.results import Run, RunFolder, WarmUp, find_run_folders, find_runs, load_run
from harness.results.counters import read_counters

Make = Callable[..., RunFolder]


def test_a_run_comes_back_as_it_was_written(make_run: Make) -> None:
    rollout = ExampleRollout("Say hi", "hi\x1b[31m", "hi", 1.0, 3, "stop", 4)
    evaluations = {0: (0.25, 12.0), 2: (0.5, 18.0)}
    plan = {"arm": "k4", "steps": 2, "gap_s": 0.25, "evaluations": evaluations, "optimizer_steps": 4}
    run = load_run(make_run(**plan, rollouts=[rollout]).folder)
    assert (run.status, run.manifest.arm, run.manifest.parameters) == ("completed", "k4", 3_300_000)
    assert run.manifest.outcome == {"final_reward": 0.5}
    # start-up 2 s, then: evaluation 1 s + step 1 s + gap 0.25 s; step 1 s + gap 0.25 s + evaluation 1 s
    figures = [(row.step, row.version, row.wall_s, row.elapsed_s, row.optimizer_steps) for row in run.steps]
    assert figures == [(0, 1, 2.25, 2.25, 4), (1, 2, 2.25, 4.5, 4)]
    seconds = {"evaluate": 1.0, "generate": 0.3, "wait_for_weights": 0.6, "weight_load": 0.1}
    assert run.steps[0].lanes["generator"] == seconds
    assert run.steps[0].stages_s["wait_for_batch"] == 1.5
    assert (run.steps[1].metric("loss"), run.steps[1].metric("absent")) == (Metric(0.5, count=64), None)
    assert [(row.version, row.elapsed_s, row.metric("validation/reward")) for row in run.evaluations] == [
        (0, 1.0, Metric(0.25, count=256)),
        (2, 4.5, Metric(0.5, count=256)),
    ]
    assert run.tail is not None
    assert (run.tail.wall_s, run.tail.elapsed_s) == (0.0, 4.5)
    spans = run.spans()
    assert spans[0] == Span("generator", Stage.STARTUP, 0, 2_000_000_000, -1, -1)
    assert len(spans) == 3 + 3 * (4 + 4 + 2)  # start-up; 4 stages for each of 2 steps and 2 evaluations, in 3 lanes
    assert [(item.response, item.reward, item.num_tokens) for item in run.rollouts()] == [("hi\x1b[31m", 1.0, 3)]
    assert (run.setting("reward_target"), run.setting("loss.kl.reference")) == (0.5, None)


def test_runs_of_before_versions_were_recorded_and_the_reference_runs_are_read(make_run: Make) -> None:
    run = load_run(make_run(steps=2).folder)
    assert b"version_changes" not in (run.folder / "steps.jsonl").read_bytes()
    assert [(row.versions, row.version_changes, row.lags) for row in run.steps] == [({}, (), {}), ({}, (), {})]
    assert (run.version_changes, run.ledger, run.replaced, run.groups()) == ([], None, {}, [])
    runs, damaged = find_runs(Path(__file__).parents[2] / "results" / "reference" / "sync_k")
    assert (len(runs), damaged) == (4, [])
    assert all(row.metric("reward/total") for run in runs for row in run.steps)


def test_a_damaged_ledger_is_named(make_lagged_run: Make) -> None:
    path = make_lagged_run().folder / "manifest.json"
    text = path.read_text()
    for damaged in (text.replace('"trained_again"', '"retrained"'), text.replace('"rollouts": 32', '"rollouts": "x"')):
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"outcome\.ledger: .*(`trained_again`|got `str`)"):
            _ = load_run(path.parent).ledger


def _cut(path: Path, number_of_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-number_of_bytes])


def test_a_half_written_last_line_is_dropped(make_run: Make) -> None:
    folder = make_run(steps=3, status="killed").folder
    _cut(folder / "steps.jsonl", 40)
    _cut(folder / "spans.jsonl", 5)
    run = load_run(folder)
    assert ([row.step for row in run.steps], run.tail) == ([0, 1], None)
    assert len(run.spans()) == 3 + 3 * 4 * 3 - 1
    (folder / "steps.jsonl").write_text(header("steps")[:-30])  # killed before its first row
    run = load_run(folder)
    assert (run.steps, run.evaluations, run.status) == ((), (), "did not finish")


def test_running_means_that_a_process_holds_the_folder(make_run: Make) -> None:
    run = make_run(steps=1, status="running")
    assert load_run(run.folder).status == "running"
    assert load_run(run.folder).status == "running"  # looking does not take the lock away
    run.close()
    assert load_run(run.folder).status == "did not finish"


def test_a_killed_process_leaves_a_readable_run_that_did_not_finish(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from harness.results import Manifest, RunFolder, StepRow
run = RunFolder.create(Path(sys.argv[1]), "quickstart", "20261120-120000", None)
run.write_manifest(Manifest(scenario="quickstart", experiment="20261120-120000", started_at="2026-11-20T12:00:00Z"))
for step in range(3):
    run.append(StepRow(step, step + 1, 1.0, step + 1.0, 1, {}))
    if step < 2:
        run.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=60)
    run = load_run(tmp_path / "quickstart" / "20261120-120000")
    assert (done.returncode, run.status) == (-9, "did not finish")
    assert [row.elapsed_s for row in run.steps] == [1.0, 2.0]  # the third row was never flushed


def _edit_line(path: Path, number: int, text: str) -> None:
    lines = path.read_text().splitlines()
    lines[number - 1] = text
    path.write_text("\n".join(lines) + "\n")


TAIL = {"kind": "tail", "wall_s": 1, "elapsed_s": 1}
SHARD = {"kind": "shard", "purpose": "train", "step": 0, "shard": 0, "prompt_ids": [1], "prompt_tokens": [4]}
SHARD |= {"versions": [[0, 0]], "lengths": [], "rewards": [[1.0]]}
COUNTER = {"kind": "counter", "at_ns": 1, "source": "host", "values": {}}
SPAN = {"lane": "learner", "stage": "update", "start_ns": 1, "end_ns": 2, "step": 0, "version": 0}
DAMAGE: list[tuple[str, object, str]] = [
    ("steps", '{"kind":"step","ste', ""),
    ("steps", {"kind": "step", "step": 1}, "Object missing required field `version`"),
    ("steps", TAIL | {"lanes": []}, "Expected `object`, got `array` - at `$.lanes`"),
    ("steps", {"version_changes": [[0.5, "a"]]}, "Expected `array` of length 3 - at `$.version_changes[0]`"),
    ("steps", {"lags": {"old": 3}}, "Expected `int`, got `str` - at `key` in `$.lags`"),
    ("spans", SPAN | {"stage": "nap"}, "Invalid enum value 'nap'"),
    ("spans", SPAN | {"end_ns": True}, "Expected `int`, got `bool` - at `$.end_ns`"),
    ("spans", '{"lane":"learner"', ""),
    ("spans", '{"lane":"learner"},{"lane":"learner"}', ""),
    ("groups", {"kind": "batch", "step": 0, "groups": [[0]]}, "Expected `array` of length 2 - at `$.groups[0]`"),
    ("groups", SHARD, "'lengths' has 0 items for 1 groups"),
    ("groups", "[" * 100_000 + "]" * 100_000, ""),
    ("groups", '{"kind":"batch","step":1' + "0" * 400 + ',"groups":[]}', ""),
    ("counters", COUNTER | {"at_ns": 1.5}, "Expected `int`, got `float` - at `$.at_ns`"),
    ("counters", COUNTER | {"values": {"a": True}}, "Expected `int | float | null`, got `bool` - at `$.values[...]`"),
]


def read_all(folder: Path) -> None:
    run = load_run(folder)
    for read in (run.spans, run.groups, run.rollouts):
        read()
    read_counters(folder)


def header(name: str, version: int = 1) -> str:
    return json.dumps({"kind": "header", "schema": f"harness.{name}", "schema_version": version})


@pytest.mark.parametrize(("name", "line", "problem"), DAMAGE)
def test_damage_is_named_with_file_and_line(make_run: Make, name: str, line: object, problem: str) -> None:
    """In the third line, among sound ones where the run has any."""
    path = make_run(steps=3).folder / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else [header(name), '{"kind":"weather"}', ""]
    if isinstance(line, dict) and name == "steps" and "kind" not in line:
        line = json.loads(lines[2]) | line
    lines[2] = line if isinstance(line, str) else json.dumps(line)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError) as caught:
        read_all(path.parent)
    assert caught.value.what.startswith(f"'{path}' is damaged at line 3: {problem}")
    assert caught.value.where == f"{path}, line 3"


@pytest.mark.parametrize("name", ["steps", "spans", "rollouts"])
def test_an_unknown_schema_version_and_a_file_without_its_header_are_refused(make_run: Make, name: str) -> None:
    path = make_run(steps=1).folder / f"{name}.jsonl"
    _, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header(name, 2), *rows]) + "\n")
    with pytest.raises(UserError, match=rf"harness\.{name} has schema_version 2; this harness reads 1"):
        read_all(path.parent)
    path.write_text("\n".join([*rows, "{}"]) + "\n")
    with pytest.raises(UserError, match=r"damaged at line 1: "):
        read_all(path.parent)


def test_rows_of_another_kind_are_skipped_and_fields_that_are_not_known(make_run: Make) -> None:
    path = make_run(steps=2).folder / "spans.jsonl"
    before = load_run(path.parent).spans()
    _edit_line(path, 2, '{"kind":"weather","rain":true}')
    _edit_line(path, 3, path.read_text().splitlines()[2].replace('"version":', '"colour":"red","version":'))
    _edit_line(path.with_name("steps.jsonl"), 2, '{"kind":"weather","rain":true}')
    run = load_run(path.parent)
    assert (run.spans(), [row.step for row in run.steps]) == (before[1:], [1])


def test_numbers_that_only_python_writes_are_read(make_run: Make) -> None:
    path = make_run(steps=3).folder / "steps.jsonl"
    for line, number in ((3, "NaN"), (4, "-Infinity")):
        _edit_line(path, line, path.read_text().splitlines()[line - 1].replace('"mean":0.5', f'"mean":{number}'))
    losses = [row.metrics["loss"]["mean"] for row in load_run(path.parent).steps]
    assert losses == [0.5, pytest.approx(math.nan, nan_ok=True), -math.inf]


def test_runs_that_differ_in_the_seed_alone_have_their_own_settings(make_run: Make) -> None:
    settings = "steps: 4\nseed: {}\ntask:\n  seed: 9\n"
    runs = [load_run(make_run(arm=f"a{seed}", steps=1, settings=settings.format(seed)).folder) for seed in (0, 17)]
    assert [run.settings for run in runs] == [{"steps": 4, "seed": seed, "task": {"seed": 9}} for seed in (0, 17)]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"started_at": 5}, "Expected `str`, got `int` - at `$.started_at`"),
        ({"started_at": "yesterday"}, "Invalid isoformat string: 'yesterday'"),
        ({"started_at": "2026-11-20T12:00:00"}, "started_at '2026-11-20T12:00:00' has no time zone"),
        ({"seed": True}, "Expected `int`, got `bool` - at `$.seed`"),
        ({"duration_s": "long"}, "Expected `float | null`, got `str` - at `$.duration_s`"),
        ({"status": "asleep"}, "unknown status 'asleep'; one of running, completed, interrupted, failed"),
        ({"schema": "other"}, "its schema is not 'harness.manifest'"),
        *[(text, "") for text in ("", "{", "null", "[]")],
    ],
)
def test_a_damaged_manifest_says_what_is_wrong(make_run: Make, change: dict[str, object] | str, problem: str) -> None:
    path = make_run(steps=1).folder / "manifest.json"
    path.write_text(change if isinstance(change, str) else json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError) as caught:
        load_run(path.parent)
    assert caught.value.what.startswith(f"cannot read {str(path)!r}: it is damaged: {problem}")
    assert caught.value.where == str(path)
    path.write_text(json.dumps({"schema": "harness.manifest", "schema_version": 7}))
    with pytest.raises(UserError, match=r"harness\.manifest has schema_version 7; this harness reads 1"):
        load_run(path.parent)


def test_spans_and_rollouts_may_be_left_out_of_a_copy_but_steps_may_not(make_run: Make) -> None:
    folder = make_run(steps=1).folder
    for name in ("spans.jsonl", "rollouts.jsonl", "scenario.resolved.yaml"):
        (folder / name).unlink()
    run = load_run(folder)
    assert (run.spans(), run.rollouts(), run.settings) == ([], [], {})
    (folder / "steps.jsonl").unlink()
    with pytest.raises(UserError, match=r"has no steps\.jsonl"):
        load_run(folder)


def test_runs_are_found_at_any_depth_and_damaged_ones_come_second(make_run: Make, tmp_path: Path) -> None:
    good = [make_run(arm=arm, steps=1).folder for arm in ("k1", "k2")]
    single = make_run(scenario="quickstart", experiment="20261121-080000", steps=1).folder
    (single / "policy").mkdir()
    (single / "policy" / "manifest.json").write_text("a model's own file")
    bad = make_run(arm="k4", steps=1).folder
    (bad / "manifest.json").unlink()
    results = tmp_path / "results"
    commit(begin(results / "cache" / "warm-start", 0), [], keep=1)
    assert find_run_folders(results) == sorted([*good, bad, single])
    runs, damaged = find_runs(results)
    assert [run.folder for run in runs] == sorted([*good, single])
    assert [(item.folder, item.error.what) for item in damaged] == [
        (bad, f"cannot read '{bad / 'manifest.json'}': No such file or directory")
    ]


def test_no_runs_and_no_folder_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, problem in (("", "no runs in"), ("absent", "does not exist"), ("file", "is not a folder")):
        with pytest.raises(UserError, match=problem):
            find_run_folders(tmp_path / name)


def _rewrite(path: Path, warmup: object, **facts: object) -> Run:
    """Give the manifest another warm-up and other facts; read the run."""
    manifest = json.loads(path.read_text())
    manifest["outcome"]["warmup"] = warmup
    path.write_text(json.dumps(manifest | facts))
    return load_run(path.parent)


def test_warm_up_that_shows_only_at_the_end_is_flagged_when_read(make_run: Make) -> None:
    path, warmup = make_run(steps=6).folder / "manifest.json", {"steps": 3, "steady": True, "slow_start": False}
    run = _rewrite(path, warmup)
    assert ([row.warmup for row in run.steps], run.warm_up) == ([True] * 3 + [False] * 3, WarmUp(3, True))
    went_on = {"start_step": 4, "started_at": "", "elapsed_s": 1.0, "startup_s": 1.0, "ranks": 1, "cause": "resumed"}
    run = _rewrite(path, warmup, segments=[went_on])
    assert [row.warmup for row in run.steps] == [True, True, True, False, True, True]
    for older in ("long", {"steps": 5, "steady": True}):  # from elsewhere, or of before slow starts were told apart
        run = _rewrite(path, older, segments=[])
        assert ([row.warmup for row in run.steps], run.warm_up) == ([True, True, *[False] * 4], WarmUp(2, True))
    run = _rewrite(path, warmup | {"steps": 2**40})  # more than memory could hold: it changes no flags
    assert [row.warmup for row in run.steps] == [False] * 6


def test_the_first_steps_after_a_resume_do_not_count_when_an_older_runs_warm_up_is_found(make_run: Make) -> None:
    path = make_run(steps=24).folder / "steps.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["kind"] == "step":
            row["warmup"] = row["step"] < 4  # of the process that began, and of one that resumed at step 2
            row["wall_s"] = 60.0 if row["warmup"] else 1.0 + row["step"] % 2 / 100
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert _rewrite(path.with_name("manifest.json"), None).warm_up == WarmUp(2, True)


def test_a_folder_of_too_many_folders_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `report /` would look through the whole disk."""
    monkeypatch.setattr("harness.results.reader.MOST_FOLDERS", 3)
    for name in "abc":
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match="has more than 3 folders"):
        find_run_folders(tmp_path)
