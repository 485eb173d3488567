"""Reading run folders: whole ones, those of killed runs, damaged ones."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.core.types import ExampleRollout, Metric
from harness.results import RunFolder, WarmUp, find_run_folders, find_runs, load_run

Make = Callable[..., RunFolder]


def test_a_run_comes_back_as_it_was_written(make_run: Make) -> None:
    rollout = ExampleRollout("Say hi", "hi\x1b[31m", "hi", 1.0, 3, "stop", 4)
    written = make_run(
        arm="k4",
        steps=2,
        gap_s=0.25,
        evaluations={0: (0.25, 12.0), 2: (0.5, 18.0)},
        rollouts=[rollout],
        optimizer_steps=4,
    )
    run = load_run(written.folder)
    assert (run.status, run.manifest.arm, run.manifest.parameters) == ("completed", "k4", 3_300_000)
    assert run.manifest.outcome == {"final_reward": 0.5}
    # start-up 2 s, then: evaluation 1 s + step 1 s + gap 0.25 s; step 1 s + gap 0.25 s + evaluation 1 s
    assert [(row.step, row.version, row.wall_s, row.elapsed_s) for row in run.steps] == [
        (0, 1, 2.25, 2.25),
        (1, 2, 2.25, 4.5),
    ]
    assert [row.optimizer_steps for row in run.steps] == [4, 4]
    assert run.steps[0].lanes["generator"] == {
        "evaluate": 1.0,
        "generate": 0.3,
        "wait_for_weights": 0.6,
        "weight_load": 0.1,
    }
    assert run.steps[0].stages_s["wait_for_batch"] == 1.5
    assert run.steps[1].metric("loss") == Metric(0.5, count=64)
    assert run.steps[1].metric("absent") is None
    assert [(row.version, row.elapsed_s, row.metric("validation/reward")) for row in run.evaluations] == [
        (0, 1.0, Metric(0.25, count=256)),
        (2, 4.5, Metric(0.5, count=256)),
    ]
    assert run.tail is not None
    assert (run.tail.wall_s, run.tail.elapsed_s) == (0.0, 4.5)
    spans = run.spans()
    assert spans[0] == Span("generator", Stage.STARTUP, 0, 2_000_000_000, -1, -1)
    assert len(spans) == 3 + 3 * (
        4 + 4 + 2
    )  # start-up, then 4 stages for each of 2 steps and 2 evaluations, in 3 lanes
    assert [(item.response, item.reward, item.num_tokens) for item in run.rollouts()] == [("hi\x1b[31m", 1.0, 3)]
    assert (run.setting("reward_target"), run.setting("loss.kl.reference")) == (0.5, None)


def test_numbers_json_does_not_know_survive_the_file(make_run: Make) -> None:
    run = load_run(make_run(steps=1, metrics=lambda step: {"loss": Metric(math.nan, count=64)}).folder)
    loss = run.steps[0].metric("loss")
    assert loss is not None
    assert math.isnan(loss.value)
    assert loss.count == 64


def test_a_row_of_before_versions_were_recorded_reads_as_none_recorded(make_run: Make) -> None:
    run = load_run(make_run(steps=2).folder)
    assert b"version_changes" not in (run.folder / "steps.jsonl").read_bytes()
    assert [(row.versions, row.version_changes, row.lags) for row in run.steps] == [({}, (), {}), ({}, (), {})]
    assert run.tail is not None
    assert run.tail.version_changes == ()
    assert (run.version_changes, run.ledger, run.replaced) == ([], None, {})


def test_the_reference_runs_can_still_be_read() -> None:
    runs, damaged = find_runs(Path(__file__).parents[2] / "results" / "reference" / "sync_k")
    assert damaged == []
    assert len(runs) == 4
    assert all(row.metric("reward/total") for run in runs for row in run.steps)


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        ('"versions":{"learner":"one"}', "got `str` - at `$.versions[...]`"),
        ('"version_changes":[[0.5,"learner"]]', "of length 3 - at `$.version_changes[0]`"),
        ('"version_changes":[["a","b",1]]', "got `str` - at `$.version_changes[0][0]`"),
        ('"lags":{"old":3}', "got `str` - at `key` in `$.lags`"),
        ('"lags":[1]', "got `array` - at `$.lags`"),
    ],
)
def test_damaged_versions_and_lags_are_named(make_run: Make, new: str, problem: str) -> None:
    folder = make_run(steps=1).folder
    steps = folder / "steps.jsonl"
    steps.write_text(steps.read_text().replace('"lanes":', f'{new},"lanes":', 1))
    with pytest.raises(UserError, match="damaged at line 2") as caught:
        load_run(folder)
    assert problem in str(caught.value)


def test_a_damaged_ledger_is_named(make_lagged_run: Make) -> None:
    folder = make_lagged_run().folder
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"trained_again"', '"retrained"'))
    with pytest.raises(UserError, match=r"outcome\.ledger: .*`trained_again`"):
        _ = load_run(folder).ledger


def _cut(path: Path, number_of_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-number_of_bytes])


def test_a_half_written_last_line_is_dropped(make_run: Make) -> None:
    folder = make_run(steps=3, status="killed").folder
    _cut(folder / "steps.jsonl", 40)
    _cut(folder / "spans.jsonl", 5)
    run = load_run(folder)
    assert [row.step for row in run.steps] == [0, 1]
    assert len(run.spans()) == 3 + 3 * 4 * 3 - 1
    assert run.tail is None


def test_a_run_killed_before_its_first_row_is_empty(make_run: Make) -> None:
    folder = make_run(steps=0, status="killed").folder
    _cut(folder / "steps.jsonl", 30)  # half of the header
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
    row = dict(step=step, version=step + 1, wall_s=1.0, elapsed_s=step + 1.0, optimizer_steps=1, lanes={}, metrics={})
    run.append(StepRow(**row))
    if step < 2:
        run.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == -9
    run = load_run(tmp_path / "quickstart" / "20261120-120000")
    assert run.status == "did not finish"
    assert [row.elapsed_s for row in run.steps] == [1.0, 2.0]  # the third row was never flushed


def _edit_line(path: Path, number: int, text: str) -> None:
    lines = path.read_text().splitlines()
    lines[number - 1] = text
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"kind":"step","ste', ""),
        ("[1, 2]", "Expected `object`, got `array`"),
        ('{"kind":"step","step":1}', "Object missing required field `version`"),
        ('{"kind":"evaluation","version":"two","step":1}', "Expected `int`, got `str` - at `$.version`"),
        ('{"kind":"tail","wall_s":true}', "Expected `float`, got `bool` - at `$.wall_s`"),
        (
            '{"kind":"tail","wall_s":1,"elapsed_s":1,"lanes":[],"stages_s":{}}',
            "Expected `object`, got `array` - at `$.lanes`",
        ),
        (
            '{"kind":"tail","wall_s":1,"elapsed_s":1,"lanes":{"a":{"b":null}},"stages_s":{}}',
            "Expected `float`, got `null` - at `$.lanes[...][...]`",
        ),
    ],
)
def test_damage_is_named_with_file_and_line(make_run: Make, line: str, problem: str) -> None:
    path = make_run(steps=3).folder / "steps.jsonl"
    _edit_line(path, 3, line)
    with pytest.raises(UserError) as caught:
        load_run(path.parent)
    assert caught.value.what.startswith(f"'{path}' is damaged at line 3: {problem}")
    assert caught.value.where == f"{path}, line 3"


def test_damaged_spans_are_named_too(make_run: Make) -> None:
    path = make_run(steps=1).folder / "spans.jsonl"
    _edit_line(path, 2, '{"lane":"learner","stage":"nap","start_ns":1,"end_ns":2,"step":0,"version":0}')
    run = load_run(path.parent)
    with pytest.raises(UserError, match="damaged at line 2: Invalid enum value 'nap'"):
        run.spans()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            '{"lane":"learner","stage":"update","start_ns":1.0,"end_ns":2,"step":0,"version":0}',
            "Expected `int`, got `float` - at `$.start_ns`",
        ),
        (
            '{"lane":"learner","stage":"update","start_ns":1,"end_ns":true,"step":0,"version":0}',
            "Expected `int`, got `bool` - at `$.end_ns`",
        ),
        (
            '{"lane":"learner","stage":"update","start_ns":1,"end_ns":2,"step":0}',
            "Object missing required field `version`",
        ),
        ('{"lane":"learner","stage":["update"],"start_ns":1,"end_ns":2,"step":0,"version":0}', "Expected `str`"),
        ('{"lane":"learner"', ""),
        ('{"lane":"learner"},{"lane":"learner"}', ""),
    ],
)
def test_an_odd_span_is_found_among_sound_ones(make_run: Make, line: str, problem: str) -> None:
    path = make_run(steps=2).folder / "spans.jsonl"
    _edit_line(path, 6, line)
    with pytest.raises(UserError) as caught:
        load_run(path.parent).spans()
    assert caught.value.what.startswith(f"'{path}' is damaged at line 6: {problem}")


def test_spans_with_more_fields_and_rows_of_another_kind_are_read_too(make_run: Make) -> None:
    path = make_run(steps=1).folder / "spans.jsonl"
    before = load_run(path.parent).spans()
    _edit_line(path, 2, '{"kind":"weather","rain":true}')
    _edit_line(path, 3, path.read_text().splitlines()[2].replace('"version":', '"colour":"red","version":'))
    assert load_run(path.parent).spans() == before[1:]


def test_numbers_that_only_python_writes_are_read_as_ever(make_run: Make) -> None:
    path = make_run(steps=3, metrics=lambda step: {"loss": Metric(0.5, count=64)}).folder / "steps.jsonl"
    _edit_line(path, 3, path.read_text().splitlines()[2].replace('"mean":0.5', '"mean":NaN'))
    _edit_line(path, 4, path.read_text().splitlines()[3].replace('"mean":0.5', '"mean":-Infinity'))
    losses = [row.metrics["loss"]["mean"] for row in load_run(path.parent).steps]
    assert (losses[0], losses[2]) == (0.5, -math.inf)
    assert math.isnan(losses[1])


def test_a_kind_that_is_no_text_is_named(make_run: Make) -> None:
    path = make_run(steps=2).folder / "steps.jsonl"
    _edit_line(path, 2, '{"kind":["step"]}')
    with pytest.raises(UserError, match="is damaged at line 2: Expected `str"):
        load_run(path.parent)


def test_runs_that_differ_in_the_seed_alone_have_their_own_settings(make_run: Make) -> None:
    settings = "steps: 4\nseed: {}\ntask:\n  seed: 9\n"
    runs = [load_run(make_run(arm=f"a{seed}", steps=1, settings=settings.format(seed)).folder) for seed in (0, 17)]
    assert [run.settings for run in runs] == [{"steps": 4, "seed": seed, "task": {"seed": 9}} for seed in (0, 17)]


def test_rows_of_an_unknown_kind_are_skipped(make_run: Make) -> None:
    path = make_run(steps=2).folder / "steps.jsonl"
    _edit_line(path, 2, '{"kind":"weather","rain":true}')
    assert [row.step for row in load_run(path.parent).steps] == [1]


def test_an_unknown_schema_version_is_refused(make_run: Make) -> None:
    folder = make_run(steps=1).folder
    _edit_line(folder / "steps.jsonl", 1, '{"kind":"header","schema":"harness.steps","schema_version":2}')
    with pytest.raises(UserError, match=r"harness\.steps has schema_version 2; this harness reads 1"):
        load_run(folder)
    manifest = json.loads((folder / "manifest.json").read_text()) | {"schema_version": 7}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"harness\.manifest has schema_version 7; this harness reads 1"):
        load_run(folder)


def test_a_file_without_its_header_is_refused(make_run: Make) -> None:
    folder = make_run(steps=1).folder
    lines = (folder / "steps.jsonl").read_text().splitlines(keepends=True)
    (folder / "steps.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(UserError, match=r"damaged at line 1: the header of harness\.steps is missing"):
        load_run(folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"started_at": 5}, "Expected `str`, got `int` - at `$.started_at`"),
        ({"seed": True}, "Expected `int`, got `bool` - at `$.seed`"),
        ({"duration_s": "long"}, "Expected `float | null`, got `str` - at `$.duration_s`"),
        ({"status": "asleep"}, "unknown status 'asleep'; one of running, completed, interrupted, failed"),
        ({"schema": "other"}, "its schema is not 'harness.manifest'"),
    ],
)
def test_a_damaged_manifest_says_what_is_wrong(make_run: Make, change: dict[str, object], problem: str) -> None:
    path = make_run(steps=1).folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError) as caught:
        load_run(path.parent)
    what = f"cannot read {str(path)!r}: it is damaged: {problem}"
    assert (caught.value.what, caught.value.where) == (what, str(path))


@pytest.mark.parametrize("text", ["", "{", "null", "[]"])
def test_a_manifest_that_is_no_object_is_an_error_with_its_path(make_run: Make, text: str) -> None:
    path = make_run(steps=1).folder / "manifest.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_run(path.parent)
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"kind":"batch","step":0,"groups":[[0]]}', "Expected `array` of length 2 - at `$.groups[0]`"),
        ('{"kind":"batch","groups":[]}', "Object missing required field `step`"),
        (
            '{"kind":"shard","purpose":"train","step":0,"shard":0,"prompt_ids":[1],"prompt_tokens":[4],'
            '"versions":[[0,0]],"lengths":[],"rewards":[[1.0]],"failed_groups":0}',
            "'lengths' has 0 items for 1 groups",
        ),
    ],
)
def test_damaged_groups_are_named(make_run: Make, row: str, problem: str) -> None:
    path = make_run(steps=1).folder / "groups.jsonl"
    path.write_text(f'{{"kind":"header","schema":"harness.groups","schema_version":1}}\n{row}\n')
    with pytest.raises(UserError) as caught:
        load_run(path.parent).groups()
    assert caught.value.what == f"{str(path)!r} is damaged at line 2: {problem}"


def test_a_run_of_before_groups_were_written_has_none(make_run: Make) -> None:
    assert load_run(make_run(steps=1).folder).groups() == []


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
    assert find_run_folders(results) == sorted([*good, bad, single])
    runs, damaged = find_runs(results)
    assert [run.folder for run in runs] == sorted([*good, single])
    assert [(item.folder, item.error.what) for item in damaged] == [
        (bad, f"cannot read '{bad / 'manifest.json'}': No such file or directory")
    ]


def test_no_runs_and_no_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no runs in"):
        find_run_folders(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        find_run_folders(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not a folder"):
        find_run_folders(tmp_path / "file")


def test_a_damaged_scenario_is_named(make_run: Make) -> None:
    run = load_run(make_run(steps=1, settings="steps: [\n").folder)
    with pytest.raises(UserError, match=r"cannot read .*scenario\.resolved\.yaml"):
        run.setting("steps")


def test_warm_up_that_shows_only_at_the_end_is_flagged_when_read(make_run: Make) -> None:
    path = make_run(steps=6).folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["outcome"]["warmup"] = {"steps": 3, "steady": True, "slow_start": False}
    path.write_text(json.dumps(manifest))
    assert [row.warmup for row in load_run(path.parent).steps] == [True, True, True, False, False, False]
    assert load_run(path.parent).warm_up == WarmUp(3, True)
    went_on = {"start_step": 4, "started_at": "", "elapsed_s": 1.0, "startup_s": 1.0, "ranks": 1, "cause": "resumed"}
    path.write_text(json.dumps(manifest | {"segments": [went_on]}))
    assert [row.warmup for row in load_run(path.parent).steps] == [True, True, True, False, True, True]
    for older in ("long", {"steps": 5, "steady": True}):  # from elsewhere, or of before slow starts were told apart
        manifest["outcome"]["warmup"] = older
        path.write_text(json.dumps(manifest))
        run = load_run(path.parent)
        assert ([row.warmup for row in run.steps], run.warm_up) == ([True, True, *[False] * 4], WarmUp(2, True))


def test_the_first_steps_after_a_resume_do_not_count_when_an_older_runs_warm_up_is_found(make_run: Make) -> None:
    path = make_run(steps=24).folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["outcome"]["warmup"] = None
    path.write_text(json.dumps(manifest))
    steps = path.parent / "steps.jsonl"
    rows = [json.loads(line) for line in steps.read_text().splitlines()]
    for row in rows:
        if row["kind"] == "step":
            row["warmup"] = row["step"] < 4  # of the process that began, and of one that resumed at step 2
            row["wall_s"] = 60.0 if row["warmup"] else 1.0 + row["step"] % 2 / 100
    steps.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert load_run(path.parent).warm_up == WarmUp(2, True)


def test_a_warm_up_of_more_steps_than_memory_could_hold_changes_no_flags(make_run: Make) -> None:
    path = make_run(steps=3).folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["outcome"]["warmup"] = {"steps": 2**40, "steady": True, "slow_start": False}
    path.write_text(json.dumps(manifest))
    assert [row.warmup for row in load_run(path.parent).steps] == [False, False, False]
