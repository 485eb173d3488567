"""Reading run folders: whole ones, those of killed runs, damaged ones."""

import json
import math
from pathlib import Path

import pytest

import harness
from harness.core.checkpoints import begin, commit
from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.core.types import ExampleRollout, Metric
from harness.probes import nvml, reading
from harness.results import WarmUp, find_run_folders, find_runs, load_run
from harness.results.counters import CounterRow, explain, is_growing, read_counters, reasons, sources, stretches
from harness.results.jsonl import decode_json
from harness.results.rows import (
    COUNTERS,
    EvaluationRow,
    HeaderRow,
    StepRow,
    TailRow,
    VersionChange,
    with_nulls,
)


def test_a_run_comes_back_as_it_was_written(make_run):
    rollout = ExampleRollout("Say hi", "hi\x1b[31m", "hi", 1.0, 3, "stop", 4)
    plan = {"arm": "k4", "steps": 2, "gap_s": 0.25, "evaluations": {0: (0.25, 12.0), 2: (0.5, 18.0)}}
    run = load_run(make_run(**plan, optimizer_steps=4, rollouts=[rollout]).folder)
    assert (run.status, run.manifest.arm, run.manifest.parameters) == ("completed", "k4", 3_300_000)
    assert run.manifest.outcome == {"final_reward": 0.5}
    # start-up 2 s, then: evaluation 1 s + step 1 s + gap 0.25 s; step 1 s + gap 0.25 s + evaluation 1 s
    figures = [(row.step, row.version, row.wall_s, row.elapsed_s, row.optimizer_steps) for row in run.steps]
    assert figures == [(0, 1, 2.25, 2.25, 4), (1, 2, 2.25, 4.5, 4)]
    seconds = {"evaluate": 1.0, "generate": 0.3, "wait_for_weights": 0.6, "weight_load": 0.1}
    assert (run.steps[0].lanes["generator"], run.steps[0].stages_s["wait_for_batch"]) == (seconds, 1.5)
    assert (run.steps[1].metric("loss"), run.steps[1].metric("absent")) == (Metric(0.5, count=64), None)
    assert [(row.version, row.elapsed_s, row.metric("validation/reward")) for row in run.evaluations] == [
        (0, 1.0, Metric(0.25, count=256)),
        (2, 4.5, Metric(0.5, count=256)),
    ]
    assert (run.tail.wall_s, run.tail.elapsed_s) == (0.0, 4.5)
    spans = run.spans()
    assert spans[0] == Span("generator", Stage.STARTUP, 0, 2_000_000_000, -1, -1)
    assert len(spans) == 3 + 3 * (4 + 4 + 2)  # start-up; 4 stages for each of 2 steps and 2 evaluations, in 3 lanes
    assert [(item.response, item.reward, item.num_tokens) for item in run.rollouts()] == [("hi\x1b[31m", 1.0, 3)]
    assert (run.setting("reward_target"), run.setting("loss.kl.reference")) == (0.5, None)


def test_runs_of_before_versions_were_recorded_are_read(make_run):
    run = load_run(make_run(steps=2).folder)
    assert b"version_changes" not in (run.folder / "steps.jsonl").read_bytes()
    assert [(row.versions, row.version_changes, row.lags) for row in run.steps] == [({}, (), {}), ({}, (), {})]
    assert (run.version_changes, run.ledger, run.replaced, run.groups()) == ([], None, {}, [])


def test_a_half_written_last_line_is_dropped(make_run):
    folder = make_run(steps=3, status="killed").folder
    for name, cut in (("steps", 40), ("spans", 5)):
        path = folder / f"{name}.jsonl"
        path.write_bytes(path.read_bytes()[:-cut])
    run = load_run(folder)
    assert ([row.step for row in run.steps], run.tail) == ([0, 1], None)
    assert len(run.spans()) == 3 + 3 * 4 * 3 - 1
    (folder / "steps.jsonl").write_text('{"kind":"header","schema":"harn')  # killed before its first row
    run = load_run(folder)
    assert (run.steps, run.evaluations, run.status) == ((), (), "did not finish")


def test_running_means_that_a_process_holds_the_folder(make_run):
    run = make_run(steps=1, status="running")
    # looking does not take the lock away
    assert [load_run(run.folder).status for _ in range(2)] == ["running", "running"]
    run.close()
    assert load_run(run.folder).status == "did not finish"


def _edit_line(path, number, text):
    lines = path.read_text().splitlines()
    lines[number - 1] = text
    path.write_text("\n".join(lines) + "\n")


def test_rows_of_another_kind_are_skipped_and_fields_that_are_not_known(make_run):
    path = make_run(steps=2).folder / "spans.jsonl"
    before = load_run(path.parent).spans()
    _edit_line(path, 2, '{"kind":"weather","rain":true}')
    _edit_line(path, 3, path.read_text().splitlines()[2].replace('"version":', '"colour":"red","version":'))
    _edit_line(path.with_name("steps.jsonl"), 2, '{"kind":"weather","rain":true}')
    run = load_run(path.parent)
    assert (run.spans(), [row.step for row in run.steps]) == (before[1:], [1])


def test_numbers_that_only_python_writes_are_read(make_run):
    path = make_run(steps=3).folder / "steps.jsonl"
    for number in ("NaN", "-Infinity"):
        path.write_text(path.read_text().replace('"mean":0.5', f'"mean":{number}', 1))
    losses = [row.metrics["loss"]["mean"] for row in load_run(path.parent).steps]
    assert losses == [pytest.approx(math.nan, nan_ok=True), -math.inf, 0.5]


def test_runs_that_differ_in_the_seed_alone_have_their_own_settings(make_run):
    settings = "steps: 4\nseed: {}\ntask:\n  seed: 9\n"
    runs = [load_run(make_run(arm=f"a{seed}", steps=1, settings=settings.format(seed)).folder) for seed in (0, 17)]
    assert [run.settings for run in runs] == [{"steps": 4, "seed": seed, "task": {"seed": 9}} for seed in (0, 17)]


def test_spans_and_rollouts_may_be_left_out_of_a_copy_but_steps_may_not(make_run):
    folder = make_run(steps=1).folder
    for name in ("spans.jsonl", "rollouts.jsonl", "scenario.resolved.yaml"):
        (folder / name).unlink()
    run = load_run(folder)
    assert (run.spans(), run.rollouts(), run.settings) == ([], [], {})
    (folder / "steps.jsonl").unlink()
    with pytest.raises(UserError, match=r"has no steps\.jsonl"):
        load_run(folder)


def test_runs_are_found_at_any_depth_and_damaged_ones_come_second(make_run, tmp_path):
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


def test_no_runs_no_folder_and_too_many_folders_are_errors(tmp_path, monkeypatch):
    """As `report /` would look through the whole disk."""
    (tmp_path / "file").write_text("")
    for name, problem in (("", "no runs in"), ("absent", "does not exist"), ("file", "is not a folder")):
        with pytest.raises(UserError, match=problem):
            find_run_folders(tmp_path / name)
    monkeypatch.setattr("harness.results.reader.MOST_FOLDERS", 3)
    for name, problem in (("a", "no runs in"), ("b", "no runs in"), ("c", "3 folders")):
        (tmp_path / name).mkdir()
        with pytest.raises(UserError, match=problem):
            find_run_folders(tmp_path)


def test_warm_up_that_shows_only_at_the_end_is_flagged_when_read(make_run):
    path = make_run(steps=6).folder / "manifest.json"

    def warm(warmup, **facts):
        manifest = json.loads(path.read_text())
        manifest["outcome"]["warmup"] = warmup
        path.write_text(json.dumps(manifest | facts))
        run = load_run(path.parent)
        return "".join("-w"[row.warmup] for row in run.steps), run.warm_up

    known = {"steps": 3, "steady": True, "slow_start": False}
    assert warm(known) == ("www---", WarmUp(3, True))
    went_on = {"start_step": 4, "started_at": "", "elapsed_s": 1.0, "startup_s": 1.0, "ranks": 1, "cause": "resumed"}
    assert warm(known, segments=[went_on])[0] == "www-ww"
    for older in ("long", {"steps": 5, "steady": True}):  # from elsewhere, or of before slow starts were told apart
        assert warm(older, segments=[]) == ("ww----", WarmUp(2, True))
    assert warm(known | {"steps": 2**40})[0] == "------"  # more than memory could hold: it changes no flags


def test_the_first_steps_after_a_resume_do_not_count_when_an_older_runs_warm_up_is_found(make_run):
    path = make_run(steps=24).folder / "steps.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["kind"] == "step":
            row["warmup"] = row["step"] < 4  # of the process that began, and of one that resumed at step 2
            row["wall_s"] = 60.0 if row["warmup"] else 1.0 + row["step"] % 2 / 100
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert load_run(path.parent).warm_up == WarmUp(2, True)


# ---- a results folder as frames

REFERENCE = Path(__file__).parents[2] / "results/reference"


def test_frames_hold_what_the_rows_say():
    results = harness.load_results(REFERENCE / "sync_k1-vs-sync_k2")
    runs, _ = find_runs(REFERENCE / "sync_k1-vs-sync_k2")
    assert [run.folder for run in results.runs] == [run.folder for run in runs]
    assert len(results.steps) == sum(len(run.steps) for run in runs)
    first, rows = runs[0], results.steps[results.steps["run"] == 0]
    assert list(rows["wall_s"]) == [row.wall_s for row in first.steps]
    assert list(rows["reward/total"]) == [row.metrics["reward/total"]["mean"] for row in first.steps]
    assert list(rows["timing_s/update"]) == [row.stages_s["update"] for row in first.steps]
    assert list(rows["is_warmup"]) == [row.warmup for row in first.steps]
    arms = {(row.arm, row.block) for row in results.steps.itertuples()}
    assert arms == {(run.manifest.arm, run.manifest.block) for run in runs}
    assert len(results.evaluations) == sum(len(run.evaluations) for run in runs)


def test_spans_rollouts_and_syncs_are_frames_too():
    results = harness.load_results(REFERENCE / "sync_k")
    spans = [span for run in results.runs for span in run.spans()]
    assert list(results.spans["end_s"] - results.spans["start_s"]) == pytest.approx(
        [(span.end_ns - span.start_ns) / 1e9 for span in spans]
    )
    assert list(results.rollouts["response"]) == [row.response for run in results.runs for row in run.rollouts()]
    assert results.syncs.empty
    syncs = harness.load_results(REFERENCE / "transport_sweep").syncs
    assert set(syncs.columns) >= {"transport", "num_bytes", "total_s", "scenario"}
    assert (syncs["total_s"] > 0).all()


# ---- rows

OLD = {
    "kind": "step", "step": 0, "version": 1, "wall_s": 1.0, "elapsed_s": 1.0, "optimizer_steps": 1, "lanes": {},
    "metrics": {"kl/reference_k3": {"mean": None, "count": 4}, "loss": {"mean": None, "count": 8}},
    "optimizer_step_metrics": {"loss": [1.0, None]},
    "non_finite": {
        "/metrics/kl~1reference_k3/mean": "inf", "/metrics/loss/mean": "nan", "/optimizer_step_metrics/loss/1": "-inf",
    },
}  # fmt: skip


def test_numbers_json_does_not_know_come_back_and_those_of_older_files_do():
    old = decode_json(json.dumps(OLD).encode(), StepRow)
    for row in (old, decode_json(old.line(), StepRow)):
        assert math.isnan(row.metric("loss").value)
        assert row.metric("kl/reference_k3") == Metric(math.inf, count=4)
        assert row.optimizer_step_metrics == {"loss": (1.0, -math.inf)}
    assert b"non_finite" not in old.line()


@pytest.mark.parametrize(
    "row",
    [
        StepRow(3, 4, 1.0, 4.0, 1, {"learner": {"update": 0.5}}, lags={0: 24}, metrics={"loss": {"mean": 0.5}}),
        EvaluationRow(4, 4, 2.0, {"validation/reward": {"mean": 0.25, "count": 8}}),
        TailRow(0.5, 9.0, {}, version_changes=(VersionChange(0.5, "learner", 4),)),
    ],
)
def test_a_row_comes_back_as_it_was_written_without_what_is_as_usual(row):
    assert decode_json(row.line(), type(row)) == row
    assert not json.loads(row.line()).keys() & {"warmup", "ranks"}


def test_json_for_other_programs_has_null():
    assert with_nulls({"a": [1.5, math.nan, {"b": math.inf}], "c": "nan"}) == {
        "a": [1.5, None, {"b": None}],
        "c": "nan",
    }


# ---- counters


def sampler(at_ns, held=0):
    return CounterRow(at_ns, "sampler", {"cpu_s": 0.1, "held": held})


def gpu(at_ns, energy_j):
    return CounterRow(at_ns, "gpu0", {"energy_j": energy_j}, {} if energy_j is not None else {"energy_j": "lost"})


def test_rows_come_back_as_they_were_written(tmp_path):
    rows = [
        CounterRow(5, "host", {"load_1min": 0.5, "throttled_s": None}, {"throttled_s": "not_found"}),
        CounterRow(5, "learner", {"cpu_s": 12.5, "threads": 3}),
    ]
    assert read_counters(tmp_path) == []
    lines = (HeaderRow("harness.counters", 1), *rows)
    (tmp_path / COUNTERS).write_bytes(b"".join(row.line() for row in lines))
    assert read_counters(tmp_path) == rows
    host = {"kind": "counter", "at_ns": 5, "source": "host", "values": {"load_1min": 0.5, "throttled_s": None}}
    assert json.loads(rows[0].line()) == host | {"missing": {"throttled_s": "not_found"}}
    assert b"missing" not in rows[1].line()


def test_totals_are_told_from_levels():
    totals = ("cpu_s", "cpu_busy_s", "pressure_cpu_some_s", "energy_j", "network_sent_bytes")
    levels = ("utilisation", "power_w", "rss_bytes", "load_1min", "throttled", "throttle/hw_thermal")
    assert [name for name in (*totals, *levels) if is_growing(name)] == [*totals]


def test_sources_in_the_order_of_their_first_row_and_their_last_reasons():
    rows = [sampler(1), gpu(1, 4.0), sampler(2), gpu(2, None)]
    assert sources(rows) == ["sampler", "gpu0"]
    assert reasons(rows, "gpu0") == {"energy_j": "lost"}
    assert reasons(rows, "sampler") == {}


def test_a_stretch_ends_where_a_value_is_missing_and_where_a_total_begins_anew():
    rows = [sampler(1), gpu(1, 4.0), sampler(2), gpu(2, 5.0)]
    assert stretches(rows, "gpu0", "energy_j") == [[(1, 4.0), (2, 5.0)]]
    rows = [gpu(1, 4.0), gpu(2, None), gpu(3, None), gpu(4, 6.0), gpu(5, 0.5)]
    assert stretches(rows, "gpu0", "energy_j") == [[(1, 4.0)], [(4, 6.0)], [(5, 0.5)]]
    levels = [CounterRow(at, "gpu0", {"power_w": watts}) for at, watts in ((1, 300.0), (2, 100.0))]
    assert stretches(levels, "gpu0", "power_w") == [[(1, 300.0), (2, 100.0)]]


def test_a_hold_ends_a_stretch_after_the_sample_that_says_so_or_without_one():
    rows = [sampler(1), gpu(1, 4.0), sampler(2, held=1), gpu(2, 5.0)]
    rows += [sampler(9), gpu(9, 90.0), sampler(10), gpu(10, 91)]
    assert stretches(rows, "gpu0", "energy_j") == [[(1, 4.0), (2, 5.0)], [(9, 90.0), (10, 91)]]
    rows = [sampler(1), gpu(1, 4.0), sampler(2, held=1), sampler(8), sampler(9), gpu(9, 90.0)]
    assert stretches(rows, "gpu0", "energy_j") == [[(1, 4.0)], [(9, 90.0)]]


def test_each_machine_has_its_own_holds():
    def on(machine, row):
        return CounterRow(row.at_ns, machine + row.source, row.values)

    rows = [on("node1/", row) for row in (sampler(1), gpu(1, 1.0), sampler(2, held=1), gpu(2, 2.0))]
    rows += [sampler(2), gpu(2, 5.0), sampler(3), gpu(3, 6.0)]
    rows += [on("node1/", row) for row in (sampler(4), gpu(4, 9.0))]
    assert stretches(rows, "node1/gpu0", "energy_j") == [[(1, 1.0), (2, 2.0)], [(4, 9.0)]]
    assert stretches(rows, "gpu0", "energy_j") == [[(2, 5.0), (3, 6.0)]]
    assert [row.at_ns for row in rows if row.ends_stretch] == [2]


def test_every_reason_of_the_probes_has_words_and_an_unknown_one_stands_for_itself():
    codes = {*reading._OF_ERRNO.values(), *nvml._REASONS.values()}
    codes |= {"not_installed", "gone", "unreadable", "other_pid_namespace"}
    assert len(codes) > 10
    assert not [code for code in codes if explain(code) == code]
    assert explain("no_driver") == "no NVIDIA driver is loaded"
    assert explain("errno_5") == "errno_5"
