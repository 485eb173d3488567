"""What the numbers of other trainers become: stages, seconds, units, steps. The arithmetic stands beside each."""

import json
import math
from pathlib import Path

import pytest

from harness.cli import main
from harness.compare import gather
from harness.core.trace import Stage
from harness.results import RunFolder, find_run_folders, load_run
from harness.results.importers import convert as converting
from harness.results.importers.logs import Log, frame_of
from harness.results.importers.trainers import OPEN_INSTRUCT, TRL, VERL, VERL_ASYNC

# 8 devices, 16 responses; prompts of 200 and responses of 300 tokens on the average, so 8,000 tokens, 4,800 generated
VERL_STEP = {
    "timing_s/gen": 20.0,
    "timing_s/reward": 1.0,
    "timing_s/old_log_prob": 3.0,
    "timing_s/ref": 3.5,
    "timing_s/adv": 0.25,
    "timing_s/update_actor": 10.0,
    "timing_s/update_weights": 2.0,
    "timing_s/step": 40.0,
    "perf/total_num_tokens": 8000.0,
    "perf/time_per_step": 40.0,
    "perf/throughput": 25.0,  # 8000 / (40 s x 8 devices)
    "prompt_length/mean": 200.0,
    "response_length/mean": 300.0,
    "response_length/clip_ratio": 0.125,
    "critic/score/mean": 0.5,
    "critic/rewards/mean": 0.375,
    "actor/entropy": 0.75,
    "actor/grad_norm": 0.5,
    "actor/pg_clipfrac": 0.0625,
    "actor/ppo_kl": 0.001,
    "actor/kl_loss": 0.02,
    "training/epoch": 1.0,
}
TRL_STEP = {
    "step_time": 0.5,
    "reward": 0.25,
    "reward_std": 0.1,
    "rewards/accuracy/mean": 0.75,
    "completions/mean_length": 12.0,
    "completions/clipped_ratio": 0.5,
    "clip_ratio/region_mean": 0.125,
    "kl": 0.01,
    "entropy": 2.0,
    "grad_norm": 0.875,
    "loss": 0.03,
    "num_tokens": 100.0,
    "epoch": 0.1,
}
OPEN_INSTRUCT_STEP = {
    "time/total": 30.0,
    "time/training": 25.0,
    "time/trainer_waiting_for_data": 15.0,
    "time/generation_waiting_for_trainer": 4.0,
    "time/weight_sync": 2.0,
    "scores": 0.5,
    "val/sequence_lengths": 400.0,
    "val/stop_rate": 0.875,
    "policy/clipfrac_avg": 0.01,
    "objective/kl0_avg": 0.002,
    "objective/kl1_avg": 0.003,
    "objective/kl2_avg": 0.004,
    "learner_tokens_per_second_step": 1000.0,
    "learner_mfu": 40.0,
}


def convert(trainer, *steps, **options):
    log = Log(frame_of({"step": step} | values for step, values in steps), "jsonl", "0" * 64)
    return converting.convert(log, trainer, "log", **options)


def metrics(row):
    """The values of a row's metrics, whatever their reduction; they all count once."""
    assert all(stored["count"] == 1 for stored in row.metrics.values())
    return {name: next(iter(stored.values())) for name, stored in row.metrics.items()}


def test_a_step_of_verl():
    done = convert("verl", (1, VERL_STEP))
    (row,) = done.rows
    assert (row.step, row.version, row.wall_s, row.elapsed_s) == (0, 1, 40.0, 40.0)
    assert row.stages_s == {
        "generate": 20.0, "score": 1.0, "old_logprobs": 3.0, "reference_logprobs": 3.5, "prepare_batch": 0.25,
        "update": 10.0, "weight_transfer": 2.0,
    }  # fmt: skip
    kept = {"perf/time_per_step", "critic/rewards/mean", "actor/ppo_kl", "actor/kl_loss", "training/epoch"}
    parts = {"perf/total_num_tokens", "perf/throughput", "prompt_length/mean"}
    assert metrics(row) == {
        "response_tokens": 4800.0,  # 8000 x 300 / 500
        "perf/throughput_total": 120.0,  # 4800 / 40 s
        "perf/throughput_per_device": 15.0,  # 25 x 300 / 500 = 120 / 8 devices
        "perf/processed_tokens_per_s": 200.0,  # 8000 / 40 s = 25 x 8
        "reward/total": 0.5,
        "response_length": 300.0,
        "truncated_fraction": 0.125,
        "token_entropy": 0.75,
        "grad_norm": 0.5,
        "clip_fraction": 0.0625,
        **{f"imported/{name}": VERL_STEP[name] for name in kept | parts},
    }
    assert row.metrics["response_tokens"] == {"sum": 4800.0, "count": 1}
    assert (done.kept, done.translated) == (kept, {*VERL_STEP} - kept)


def test_an_evaluation_of_verl_is_outside_of_its_step():
    validation = {"val-core/openai/gsm8k/reward/mean@1": 0.25, "val-aux/num_turns/mean": 2.0}
    later = {**VERL_STEP, **validation, "timing_s/testing": 30.0, "val-core/openai/gsm8k/reward/mean@1": 0.5}
    rows = convert("verl", (0, validation), (1, VERL_STEP), (2, later)).rows
    assert [(row.kind, row.version, row.elapsed_s) for row in rows] == [
        ("evaluation", 0, 0.0), ("step", 1, 40.0), ("step", 2, 110.0), ("evaluation", 2, 110.0),
    ]  # fmt: skip
    assert metrics(rows[0]) == {"validation/reward": 0.25, "imported/val-aux/num_turns/mean": 2.0}
    assert (rows[2].wall_s, rows[2].stages_s["evaluate"]) == (70.0, 30.0)  # 40 + 30
    assert metrics(rows[3])["validation/reward"] == 0.5


def test_an_evaluation_within_a_step_of_verl_is_parted_from_it():
    """As versions of before 2026 wrote them: 40 s of which 39.75 are stages' without an evaluation, 70 s with 30 s."""
    evaluated = VERL_STEP | {"timing_s/testing": 30.0, "timing_s/step": 70.0, "val-core/gsm8k/reward/mean@1": 0.5}
    done = convert("verl", *((step, evaluated if step % 2 else VERL_STEP) for step in range(1, 7)))
    rows = [row for row in done.rows if row.kind == "step"]
    assert [row.wall_s for row in rows] == [70.0, 40.0] * 3
    assert [row.stages_s.get("evaluate") for row in rows] == [30.0, None] * 3
    assert any("hold the evaluation" in note for note in done.notes)


def test_generation_of_an_asynchronous_verl_run_is_waiting():
    """Which it is, a name tells, or the user."""
    for name in ("fully_async/count/dropped_stale_samples", "timing_s/param_sync", "not a sign"):
        done = convert("verl", (1, VERL_STEP | {name: 1.0}), asynchronous=name == "not a sign")
        assert (done.rows[0].stages_s["wait_for_batch"], "generate" in done.rows[0].stages_s) == (20.0, False)
        assert "(asynchronous)" in done.notes[-1]
    assert "(synchronous)" in convert("verl", (1, VERL_STEP)).notes[-1]


def test_lag_of_verl_is_counted_from_the_oldest_token():
    name = "training/off_policy/trajectory_staleness"
    lag = {f"{name}/mean": 0.5, f"{name}_worst/mean": 1.5, f"{name}_worst/max": 3.0}
    (row,) = convert("verl", (1, VERL_STEP | lag | {"timing_s/wait_for_enough_samples": 4.0})).rows
    assert row.stages_s["wait_for_batch"] == 24.0
    assert metrics(row)["imported/timing_s/gen"] == 20.0
    assert row.metrics["off_policy/mean"] == {"mean": 1.5, "count": 1}
    assert row.metrics["off_policy/max"] == {"max": 3.0, "count": 1}


def test_steps_of_trl():
    more = {"num_tokens": 250.0, "rewards/total/mean": 0.9}
    first, second = convert("trl", (1, TRL_STEP), (2, TRL_STEP | more)).rows
    assert (first.step, first.wall_s, first.stages_s, first.optimizer_steps) == (0, 0.5, {}, 1)
    assert metrics(first) == {
        "reward/total": 0.25,
        "reward/accuracy": 0.75,
        "response_length": 12.0,
        "truncated_fraction": 0.5,
        "clip_fraction": 0.125,
        "kl/reference_k3": 0.01,
        "token_entropy": 2.0,
        "grad_norm": 0.875,
        "loss": 0.03,
        **{f"imported/{name}": TRL_STEP[name] for name in ("num_tokens", "reward_std", "epoch")},
    }
    assert second.elapsed_s == 1.0
    later = metrics(second)
    assert later["perf/processed_tokens_per_s"] == 300.0  # (250 - 100) / 0.5 s
    # a reward function called total does not take the place of the reward
    assert (later["reward/total"], later["imported/rewards/total/mean"]) == (0.25, 0.9)


def test_rows_that_stand_for_ten_steps():
    def rows(done):
        return [(row.step, row.elapsed_s, row.optimizer_steps) for row in done.rows]

    steps = [(10, TRL_STEP | {"num_tokens": 1000.0}), (20, TRL_STEP | {"num_tokens": 3000.0}), (25, TRL_STEP)]
    done = convert("trl", *steps)
    assert done.steps_per_row is None  # the last row stands for five
    assert rows(done) == [(9, 5.0, 10), (19, 10.0, 10), (24, 12.5, 5)]
    assert {row.wall_s for row in done.rows} == {0.5}
    assert metrics(done.rows[1])["perf/processed_tokens_per_s"] == 400.0  # 2000 / (0.5 x 10)
    assert convert("trl", *steps[:2]).steps_per_row == 10
    first_logged = convert("trl", (1, TRL_STEP), (10, TRL_STEP), (20, TRL_STEP))  # transformers' logging_first_step
    assert rows(first_logged) == [(0, 0.5, 1), (9, 5.0, 9), (19, 10.0, 10)]
    done = convert("trl", (101, TRL_STEP), (102, TRL_STEP))  # a resumed run
    assert rows(done) == [(100, 0.5, 1), (101, 1.0, 1)]
    assert "perf/processed_tokens_per_s" not in done.rows[0].metrics  # the tokens of 100 steps before are in there


def test_an_evaluation_of_trl_between_two_rows():
    evaluation = {"eval_reward": 0.5, "eval_completions/mean_length": 9.0, "eval_runtime": 3.0, "eval_loss": 0.1}
    rows = convert("trl", (10, TRL_STEP), (15, evaluation), (20, TRL_STEP), (25, evaluation)).rows
    assert [(row.kind, getattr(row, "step", None), row.elapsed_s) for row in rows] == [
        ("step", 9, 5.0),
        ("evaluation", 15, 5.0),
        ("step", 19, 13.0),  # 10 x 0.5 s, and the 3 s of the evaluation
        ("evaluation", 25, 13.0),
        ("tail", None, 16.0),  # the last evaluation's 3 s
    ]
    reward = {"validation/reward": 0.5, "validation/response_length": 9.0, "imported/eval_loss": 0.1}
    assert metrics(rows[1]) == reward
    assert rows[2].stages_s == {"evaluate": pytest.approx(0.3)}  # of one of the ten steps
    assert (rows[2].wall_s, rows[4].wall_s) == pytest.approx((0.8, 0.3))


def test_a_step_of_open_instruct():
    (row,) = convert("open-instruct", (1, OPEN_INSTRUCT_STEP)).rows
    assert row.wall_s == 30.0
    assert row.lanes == {
        "learner": {"update": 10.0, "wait_for_batch": 15.0},  # 25 s of training - 15 s of waiting in them
        "generator": {"wait_for_room": 4.0, "weight_transfer": 2.0},
    }
    kept = ("time/training", "val/stop_rate", "objective/kl1_avg", "learner_mfu")
    assert metrics(row) == {
        "reward/total": 0.5,
        "response_length": 400.0,
        "truncated_fraction": 0.125,  # 1 - 0.875
        "clip_fraction": 0.01,
        "kl/reference_k1": 0.002,  # its estimators are numbered from 0
        "kl/reference_k3": 0.004,
        "perf/processed_tokens_per_s": 1000.0,
        "perf/mfu": 0.4,  # percent
        **{f"imported/{name}": OPEN_INSTRUCT_STEP[name] for name in kept},
    }


def test_open_instructs_wait_is_part_of_its_training_time():
    values = {name: value for name, value in OPEN_INSTRUCT_STEP.items() if name != "time/trainer_waiting_for_data"}
    cases = [
        ({"time/trainer_idle_waiting_for_inference": 15.0}, {"update": 10.0, "wait_for_batch": 15.0}),  # its older name
        ({}, {"update": 25.0}),
        ({"time/trainer_waiting_for_data": 26.0}, {"update": 0.0, "wait_for_batch": 26.0}),  # 25 s less 26 s
    ]
    for wait, learner in cases:
        first, second = convert("open-instruct", (0, values | wait), (1, values)).rows
        assert first.lanes["learner"] == learner
        assert (first.step, second.step) == (0, 1)  # a run that counts from 0 is taken as it is


def test_without_seconds_the_clock_of_the_log_is_used_and_without_that_they_are_unknown():
    clock = {1: 100.0, 2: 103.0, 4: 113.0, 5: math.nan, 6: 119.0}
    done = convert("open-instruct", *((step, {"scores": 0.5, "_timestamp": at}) for step, at in clock.items()))
    assert [(row.wall_s, row.elapsed_s) for row in done.rows] == [
        *((0.0, 0.0), (3.0, 3.0), (5.0, 13.0)),  # step 4 comes 10 s after step 2
        *((0.0, 13.0), (6.0, 19.0)),
    ]
    assert done.seconds_known
    done = convert("open-instruct", *((step, {"scores": 0.5}) for step in clock))
    assert ([row.wall_s for row in done.rows], done.seconds_known) == ([0.0] * 5, False)


def test_impossible_seconds_are_left_out_and_counted():
    for bad in (-1.0, math.nan, math.inf):
        done = convert("verl", (1, VERL_STEP), (2, VERL_STEP | {"timing_s/gen": bad}))
        assert "generate" not in done.rows[1].stages_s
        assert any("1 times" in note and "1 steps" in note for note in done.notes)
        assert [row.wall_s > 0 for row in done.rows] == [True, False]
        assert metrics(done.rows[1])["imported/timing_s/gen"] == pytest.approx(bad, nan_ok=True)


def test_what_is_not_finite_is_no_evaluation_and_no_tokens_are_no_division_by_zero():
    second = {"scores": 0.5, "eval/scores": 0.25, "eval/stop_rate": 0.75}
    done = convert("open-instruct", (1, {"scores": 0.5, "eval/scores": math.nan}), (2, second))
    (evaluation,) = (row for row in done.rows if row.kind == "evaluation")
    assert (evaluation.version, metrics(evaluation)["validation/truncated_fraction"]) == (2, 0.25)
    assert any("1 evaluations" in note for note in done.notes)
    empty = VERL_STEP | {"prompt_length/mean": 0.0, "response_length/mean": 0.0, "timing_s/step": 0.0}
    (row,) = convert("verl", (1, empty)).rows
    assert "perf/throughput_total" not in row.metrics
    assert metrics(row)["imported/perf/throughput"] == 25.0


# ---- the command

REAL_TRL_LOG = Path(__file__).parents[1] / "data" / "importers" / "trl_1.16_trainer_state.json"
PAGE = Path(__file__).parents[2] / "docs" / "importing.md"


def verl_log(path, **more):
    """A log as verl's ``file`` logger writes it (verl/utils/tracking.py), made here."""
    lines = [{"step": 0, "data": {"val-core/gsm8k/reward/mean@1": 0.25}}]
    for step in range(1, 5):
        data = {"timing_s/step": 4.0, "timing_s/gen": 3.0, "timing_s/update_actor": 1.0, "critic/score/mean": 0.5}
        lines.append({"step": step, "data": data | more})
    lines[-1]["data"] |= {"val-core/gsm8k/reward/mean@1": 0.75, "timing_s/testing": 2.0}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_an_imported_run_is_a_run(tmp_path, capsys):
    log = verl_log(tmp_path / "annbox.jsonl", odd=None, note="x")
    out = tmp_path / "results"
    options = ["--out", str(out), "--name", "gsm8k", "--seed", "3", "--asynchronous"]
    assert main(["import", "verl", str(log), *options]) == 0
    (folder,) = find_run_folders(out)
    assert folder.parent == out / "gsm8k"
    said = capsys.readouterr().out
    for words in (
        "imported 4 training rows and 2 evaluations from verl\n", "6 names translated, 1 kept", "\n  4 numbers",
        "response_length (response_length/mean); truncated_fraction (response_length/clip_ratio); ",
        "(asynchronous)", f"\nrun folder: {folder}\n",
    ):  # fmt: skip
        assert words in said
    run = load_run(folder)
    assert run.status == "completed"
    assert [(row.step, row.stages_s["wait_for_batch"]) for row in run.steps] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert [(row.version, row.elapsed_s) for row in run.evaluations] == [(0, 0.0), (4, 18.0)]
    manifest = run.manifest
    assert (manifest.scenario, manifest.seed, manifest.duration_s, manifest.commit) == ("gsm8k", 3, None, None)
    assert len(set(manifest.machine["missing"].values())) == 1
    assert manifest.outcome["steps_done"] == 4
    assert (manifest.outcome["imported"]["kept"], manifest.outcome["imported"]["asynchronous"]) == (["odd"], True)
    text = "".join(path.read_text() for path in folder.iterdir())
    assert "annbox" not in text  # a log's name often holds a host's


def test_several_logs_are_the_arms_of_one_experiment(tmp_path, capsys):
    out = tmp_path / "results"
    named, bare = verl_log(tmp_path / "x.jsonl"), verl_log(tmp_path / "lr=1.jsonl", odd=1.0)
    assert main(["import", "verl", f"split={named}", str(bare), "--out", str(out), "--name", "gsm8k"]) == 0
    (experiment,) = (out / "gsm8k").iterdir()
    assert f"compare {experiment}" in capsys.readouterr().out
    runs = {folder.name: load_run(folder).manifest for folder in find_run_folders(out)}
    arms = {"split": ("split", 0), "lr=1": ("lr=1", 1)}
    assert {name: (each.arm, each.position) for name, each in runs.items()} == arms
    (fingerprint,) = {each.machine["fingerprint"] for each in runs.values()}
    assert fingerprint.startswith("unknown-")
    (whole,), _ = gather([out])
    assert list(whole.arms) == [*arms]


def test_runs_of_one_machine_are_those_of_one_name(tmp_path):
    """Whichever command imported them; the name itself is not kept."""
    fingerprints = []
    for place, machine in enumerate(("annbox", "annbox", "other", None)):
        log = verl_log(tmp_path / "log.jsonl", **{f"x{place}": 1.0})
        named = ["--machine", machine] if machine else []
        assert main(["import", "verl", str(log), "--out", str(tmp_path / str(place)), *named]) == 0
        (folder,) = find_run_folders(tmp_path / str(place))
        fingerprints.append(load_run(folder).manifest.machine["fingerprint"])
        assert "annbox" not in (folder / "manifest.json").read_text()
    assert fingerprints[0] == fingerprints[1]
    assert len(set(fingerprints)) == 3


def test_arms_that_cannot_all_be_written_leave_nothing(tmp_path, monkeypatch, capsys):
    """The disk is full at the second arm."""
    write = RunFolder.write_manifest

    def full(folder, manifest):
        if manifest.arm == "b":
            raise OSError(28, "No space left on device")
        write(folder, manifest)

    monkeypatch.setattr(RunFolder, "write_manifest", full)
    log, out = verl_log(tmp_path / "log.jsonl"), tmp_path / "results"
    assert main(["import", "verl", f"a={log}", f"b={log}", "--out", str(out)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list(out.iterdir()) == []


def test_bad_input_is_one_message_and_no_folder(tmp_path, capsys):
    log, empty, out = verl_log(tmp_path / "log.jsonl"), tmp_path / "empty.jsonl", tmp_path / "results"
    empty.touch()
    for typed, message in (
        ("trl LOG", "none of the 6 names"),
        ("verl LOG --validation x", "fix:   one of 1: val-core/gsm8k/reward/mean@1"),
        ("verl EMPTY", "is empty"),
        ("verl LOG --out EMPTY", "cannot write results to"),
        ("verl LOG LOG", "'log'"),
        ("verl =LOG b=LOG", "is not NAME=LOG"),
        ("verl a=LOG b=", "'b=' is not NAME=LOG"),
        ("verl a=LOG b=missing.jsonl", "'missing.jsonl' does not exist"),
        ("verl a=LOG b=TRL", "that verl writes"),
    ):
        for word, path in {"LOG": log, "EMPTY": empty, "TRL": REAL_TRL_LOG}.items():
            typed = typed.replace(word, str(path))
        assert main(["import", "--out", str(out), *typed.split()]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("error: "), message in said.err) == ("", 1, True), said.err
    assert not out.exists()


DOCUMENTED = {"verl": VERL, "verl, asynchronous": VERL_ASYNC, "TRL": TRL, "open-instruct": OPEN_INSTRUCT}


def as_documented(entry):
    """The names in the log, the figure here, and whether the names are kept under their own too."""
    theirs = ", ".join(f"`{name}`" for name in entry.theirs)
    ours = ("stage " if entry.lane else "") + f"`{entry.ours}`"
    of_evaluation = " (evaluation)" if entry.ours.startswith("validation/") else ""
    is_computed = entry.compute is not None or bool(entry.less)
    return ("rest of " if entry.less else "") + theirs, ours + of_evaluation, is_computed


@pytest.mark.parametrize("title", DOCUMENTED)
def test_the_tables_of_the_documentation_are_the_crosswalks(title):
    """That of verl's asynchronous runs has the lines that differ; what is computed is kept under its own name too."""
    table = PAGE.read_text(encoding="utf-8").partition(f"<!-- crosswalk: {title} -->\n")[2].partition("<!-- end -->")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    crosswalk = DOCUMENTED[title]
    entries = [entry for entry in crosswalk.entries if crosswalk is VERL or entry not in VERL.entries]
    assert [(line[0], line[1], "kept as `imported/...` too" in line[2]) for line in lines] == [
        as_documented(entry) for entry in entries
    ]


@pytest.mark.parametrize("crosswalk", DOCUMENTED.values(), ids=DOCUMENTED)
def test_a_crosswalk_leads_to_what_there_is(crosswalk):
    stages = {stage.value for stage in Stage}
    for entry in crosswalk.entries:
        assert (entry.ours in stages) == bool(entry.lane)
        assert all(crosswalk.plain_name(name) == name for name in (*entry.theirs, *entry.less))
