"""Logs of other trainers as people have them: their forms, names of older versions, damage, and what is counted.

The logs are made here after the sources: verl's ``file`` logger writes ``{"step": ..., "data": {...}}`` a line
(verl/utils/tracking.py), its console logger ``step:N - name:value - ...`` (verl/utils/logger/aggregate_logger.py),
numpy's numbers as ``np.float64(x)``; transformers' Trainer keeps ``log_history`` in ``trainer_state.json``, its
ProgressCallback prints the dict of a row, since version 5 with its numbers as texts; a history of Weights & Biases has
``_step``, ``_timestamp`` and ``_runtime`` beside the values, a chart of it is exported with the columns ``RUN - NAME``,
``RUN - NAME__MIN`` and ``RUN - NAME__MAX``; a series of TensorBoard with ``Wall time,Step,Value`` and its tag in the
name of the file. ``tests/data/importers/trl_1.16_trainer_state.json`` was really written by TRL 1.16, on a model of 30
thousand parameters that is paid for the letter a.
"""

import json
import math
import struct
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.results.importers.convert import convert
from harness.results.importers.logs import STEP, TIME, read_events, read_log
from harness.results.importers.trainers import CROSSWALKS
from harness.results.trackers import event_record
from tests.event_files import encode_scalars, encode_start

REAL_TRL_LOG = Path(__file__).parents[1] / "data" / "importers" / "trl_1.16_trainer_state.json"


def read(path, trainer, run=None, **options):
    return convert(read_log(path, run), trainer, str(path), **options)


def text(path, content):
    path.write_text(content)
    return path


def lines(path, *items):
    return text(path, "".join(json.dumps(item) + "\n" for item in items))


def series(done, name, kind="step"):
    """The values of one metric, row by row; rows without it are left out."""
    of_kind = [row.metrics for row in done.rows if row.kind == kind]
    return [next(iter(metrics[name].values())) for metrics in of_kind if name in metrics]


def by_step(done, name="reward/total"):
    """The values of one metric by the trainer's own step."""
    return dict(zip([row.version for row in done.rows if row.kind == "step"], series(done, name), strict=True))


def not_whole(done):
    return told(done)[-1:] == ["left out: the last line, which is not whole"]


def told(done):
    """What was counted, without what became of the names."""
    signs = ("left out", "again", "kept as NaN", "the steps are", "no record")
    return [note for note in done.notes if any(sign in note for sign in signs)]


# ---- JSON


def test_verls_file_logger(tmp_path):
    path = lines(
        tmp_path / "run.jsonl",
        {"step": 0, "data": {"val-core/gsm8k/reward/mean@1": 0.25}},
        {"step": 1, "data": {"timing_s/step": 2.0, "actor/grad_norm": None}},
    )
    path.write_text(path.read_text() + '{"step": 2, "da')
    done = read(path, "verl")
    assert [(row.kind, row.version) for row in done.rows] == [("evaluation", 0), ("step", 1)]
    assert math.isnan(series(done, "grad_norm")[0])  # orjson writes NaN and infinities as null
    assert (len(told(done)), "(actor/grad_norm)" in told(done)[0], not_whole(done)) == (2, True, True)


def test_a_list_and_lines_hold_the_same_as_a_trainer_state(tmp_path):
    history = json.loads(REAL_TRL_LOG.read_text())["log_history"]
    expected = read(REAL_TRL_LOG, "trl")
    assert [row.version for row in expected.rows if row.kind == "step"] == [1, 2, 3, 4, 5, 6]
    assert series(expected, "imported/num_tokens")[0] == 79.0
    assert expected.rows[2].stages_s == {"evaluate": 0.0411}  # of the record after the training record of step 3
    assert told(expected) == []
    for path in (text(tmp_path / "log.json", json.dumps(history)), lines(tmp_path / "log.jsonl", *history)):
        assert read(path, "trl").rows == expected.rows


def test_the_newest_checkpoint_has_the_whole_history(tmp_path):
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        state = {"log_history": [{"step": step, "reward": 0.5}, {"step": 11, "train_runtime": 12.5, "epoch": 1.0}]}
        text(tmp_path / f"checkpoint-{step}" / "trainer_state.json", json.dumps(state))
    done = read(tmp_path, "trl")
    assert by_step(done) == {10: 0.5}
    assert done.run_totals == {"train_runtime": 12.5}


def test_a_history_of_weights_and_biases(tmp_path):
    histogram = {"_type": "histogram", "values": [1, 2], "bins": [0, 1, 2]}
    path = lines(
        tmp_path / "history.jsonl",
        {"_step": 1, "_timestamp": 100.0, "_runtime": 10.0, "scores": 0.5, "batch/lengths": histogram, "note": "x"},
        {"_step": 2, "_timestamp": 104.0, "_runtime": 14.0, "scores": 0.75, "training_step": 2},
        {"_step": 2, "_timestamp": 105.0, "eval/scores": 0.25},
    )
    done = read(path, "open-instruct")
    assert (by_step(done), series(done, "validation/reward", "evaluation")) == ({1: 0.5, 2: 0.75}, [0.25])
    assert [row.elapsed_s for row in done.rows] == [0.0, 5.0, 5.0]
    assert ["(batch/lengths, note)" in each for each in told(done)] == [True]


def test_the_last_number_of_a_step_counts_and_a_record_without_a_whole_step_is_left_out(tmp_path):
    """Step 2 comes again with another number, step 3 with the same one."""
    items = [{"step": step, "reward": value} for step, value in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 0.4), (3, 0.3))]
    done = read(lines(tmp_path / "log.jsonl", *items), "trl")
    assert by_step(done) == {1: 0.1, 2: 0.4, 3: 0.3}
    assert ["1 numbers were logged again" in each for each in told(done)] == [True]
    for step in (-1, 1.5, "3.5", True, None, math.nan):
        done = read(lines(tmp_path / "log.jsonl", {"step": 1, "reward": 0.1}, {"step": step, "reward": 0.2}), "trl")
        assert by_step(done) == {1: 0.1}
        assert ["1 record" in each and "(reward)" in each for each in told(done)] == [True]


def test_numbers_may_be_texts_and_beyond_floats_they_are_none(tmp_path):
    rows = (
        '"1", "reward": "0.25", "yes": true',
        '"2", "reward": "NaN", "big": 1' + "0" * 400,
        '3, "reward": "-Infinity"',
    )
    done = read(text(tmp_path / "log.jsonl", "".join(f'{{"step": {row}}}\n' for row in rows)), "trl")
    assert list(by_step(done).values()) == pytest.approx([0.25, math.nan, -math.inf], nan_ok=True)
    assert series(done, "imported/yes") == [1.0]
    not_finite, left_out = told(done)
    assert (not_finite[:2], "(reward)" in not_finite, "1 value was no number (big)" in left_out) == ("2 ", True, True)


# ---- what trainers print

RAY = "\x1b[36m(TaskRunner pid=123)\x1b[0m "
VERL_PRINTED = (
    "(pid=1) Started a local Ray instance\n"
    f"{RAY}{{'actor_rollout_ref': {{'actor': {{'clip_ratio': 0.2}}}}}}\n"
    f"{RAY}(\"Initial validation metrics: {{'val-core/openai/gsm8k/reward/mean@1': np.float64(0.02)}}\")\n"
    f"{RAY}step:0 - val-core/openai/gsm8k/reward/mean@1:np.float64(0.25)\n"
    f"Training Progress:   0%|          | 0/435 [00:00<?, ?it/s]\r{RAY}step:1 - actor/lr:1e-06"
    " - critic/score/mean:np.float64(0.5) - actor/grad_norm:nan - timing_s/gen:8 - response_length/mean:200.5"
    "(TaskRunner pid=4) another line\n"
    "(TaskRunner pid=123) timing/step:12 - x:1\n"
    "(TaskRunner pid=123) step:2 - actor/lr:5e-07 - critic/score/mean:-0.125 - actor/grad_norm:0.5 - note:long"
    " - timing_s/gen:9.5 [repeated 2x across cluster]\n"
    "(TaskRunner pid=123) step:3 - critic/score/mean:0."
)


def test_what_verl_prints_behind_ray_colours_and_bars(tmp_path):
    done = read(text(tmp_path / "train.log", VERL_PRINTED), "verl")
    assert by_step(done) == {1: 0.5, 2: -0.125}
    assert series(done, "learning_rate") == [1e-06, 5e-07]
    assert series(done, "response_length") == [200.5]
    assert [row.stages_s for row in done.rows if row.kind == "step"] == [{"generate": 8.0}, {"generate": 9.5}]
    assert series(done, "validation/reward", "evaluation") == [0.25]
    not_finite, left_out, _ = told(done)
    assert ("(actor/grad_norm)" in not_finite, "(note)" in left_out, not_whole(done)) == (True, True, True)


TRL_PRINTED = (
    "Updated tokens: {'bos_token_id': None, 'pad_token_id': 151643}.\n"
    "  0%|          | 0/3 [00:00<?]\r 33%|###       | 1/3 [00:10<00:20]"
    "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-06, 'rewards/format/mean': 0.5, 'rewards/format/std': 0.1,"
    " 'reward': 0.5, 'completions/mean_length': 120.5, 'kl': -inf, 'epoch': 0.01}\n"
    "{'loss': '0.25', 'learning_rate': '5e-07', 'reward': '0.625', 'completions/mean_length': '57.5', 'epoch': '0.02'}"
    "          \n"
    "{'eval_loss': 0.1, 'eval_reward': 0.75, 'eval_runtime': 3.0, 'epoch': 0.02}\n"
    "{'loss': np.float64(0.125), 'reward': tensor(0.75, device='cuda:0'), 'epoch': 0.03}\n"
    "{'train_runtime': 956.0, 'train_loss': 0.33, 'epoch': 1.0}\n"
    "{'loss': 0.2, 'rew"
)


def test_what_trl_prints_has_no_steps_so_its_rows_are_counted(tmp_path):
    done = read(text(tmp_path / "train.log", TRL_PRINTED), "trl")
    assert [(row.kind, row.step) for row in done.rows] == [("step", 0), ("step", 1), ("evaluation", 2), ("step", 2)]
    assert {name: series(done, name) for name in ("reward/total", "reward/format", "loss", "learning_rate")} == {
        "reward/total": [0.5, 0.625, 0.75], "reward/format": [0.5], "loss": [0.0, 0.25, 0.125],
        "learning_rate": [1e-06, 5e-07],
    }  # fmt: skip
    assert series(done, "kl/reference_k3") == [-math.inf]
    assert series(done, "validation/reward", "evaluation") == [0.75]
    assert done.run_totals == {"train_runtime": 956.0, "train_loss": 0.33}
    counted, not_finite, unknown, cut = told(done)
    assert counted.startswith("no record has a step: the rows are counted from 1")
    assert (not_finite[:2], "(bos_token_id)" in unknown, "1 lines with a dict" in cut) == ("2 ", True, True)


def test_texts_of_windows_are_read_and_a_long_line_of_brackets_at_once(tmp_path):
    path = text(tmp_path / "train.log", "x" + "{'" * 200_000 + "\n{'reward': 0.5}\n")
    assert series(read(path, "trl"), "reward/total") == [0.5]
    path.write_bytes("{'reward': 0.25}\r\n{'reward': 0.5}\r\n".encode("utf-16"))
    assert series(read(path, "trl"), "reward/total") == [0.25, 0.5]
    path.write_bytes(b"\xef\xbb\xbfstep;reward;loss\r\n1;0,5;1e-3\r\n2;0,25;\r\n3;0,")
    done = read(path, "trl")
    assert (series(done, "reward/total"), series(done, "loss"), not_whole(done)) == ([0.5, 0.25], [0.001], True)


# ---- exported tables

CHART = (
    '"Step","qwen - lr1 - train/reward","qwen - lr1 - train/reward__MIN","qwen - lr1 - train/reward__MAX",'
    '"llama - train/reward"\n"1","0.1","0.1","0.1","0.2"\n"3","0.3","0.3","0.3",""\n'
)


@pytest.mark.parametrize(("axis", "counted"), [("Step", 1), ("train/global_step", 0)])
def test_a_chart_with_several_runs_needs_the_name_of_one(tmp_path, axis, counted):
    """Charts of the Hugging Face trainer's runs may have its own steps as their axis."""
    path = text(tmp_path / "wandb_export.csv", CHART.replace("Step", axis))
    done = read(path, "trl", run="qwen - lr1")
    assert by_step(done) == {1: 0.1, 3: 0.3}
    for words, times in (("the steps are _step", counted), ("2 columns __MIN and __MAX", 1)):
        assert sum(words in note for note in done.notes) == times
    assert series(read(path, "trl", run="llama"), "reward/total") == [0.2]
    alone = text(tmp_path / "alone.csv", '"Step","qwen - train/reward"\n\n"7","0.25"\n')
    assert by_step(read(alone, "trl")) == {7: 0.25}
    one = text(tmp_path / "reward.csv", "Wall time,Step,Value\n1,1,0.5\n")
    no_chart = lines(tmp_path / "log.jsonl", {"step": 1, "reward": 0.5})
    for file, run, words in (
        (path, None, "2 runs: qwen - lr1, llama"),
        (path, "gemma", r"'gemma'(.|\n)*one of qwen - lr1, llama"),
        (one, "llama", r"'llama'(.|\n)*leave it out"),
        (no_chart, "llama", "no runs"),
    ):
        with pytest.raises(UserError, match=words):
            read(file, "trl", run=run)


def test_a_folder_of_series_from_tensorboard_is_one_run(tmp_path):
    for tag, values in {
        "train_reward": (0.25, 0.5),
        "train_rewards_format_mean": (0.1, 0.2),
        "train_rewards_format_std": (7.0, 8.0),
        "train_completions_mean_length": (90, 80),
        "eval_reward": (0.75, 1.0),
    }.items():
        rows = "".join(f"{100.0 + 10 * step},{step},{value}\n" for step, value in enumerate(values, start=1))
        text(tmp_path / f"run-grpo-tag-{tag}.csv", f"Wall time,Step,Value\n{rows}")
    done = read(tmp_path, "trl")
    assert [row.wall_s for row in done.rows if row.kind == "step"] == [0.0, 10.0]
    assert {name: series(done, name) for name in ("reward/total", "reward/format", "response_length")} == {
        "reward/total": [0.25, 0.5], "reward/format": [0.1, 0.2], "response_length": [90.0, 80.0],
    }  # fmt: skip
    assert series(done, "validation/reward", "evaluation") == [0.75, 1.0]
    assert (done.kept, told(done)) == ({"train_rewards_format_std"}, [])
    tags = ("val-core_openai_gsm8k_reward_mean@1", "critic_score_mean", "train_unknown")
    names = ("val-core/openai_gsm8k_reward/mean@1", "critic/score/mean", "train_unknown")
    assert tuple(map(CROSSWALKS["verl"].plain_name, tags)) == names


# ---- TensorBoard's event files


def event_file(path, steps):
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [encode_scalars({tag: value}, step, 50.0 + step) for step in steps for tag, value in steps[step].items()]
    path.write_bytes(b"".join([encode_start(50.0), *records]))
    return path


def test_event_files_have_names_and_times_of_their_own_and_the_later_file_counts(tmp_path):
    """transformers' integrations write ``train/x`` and ``eval/x`` for ``x`` and ``eval_x`` (rewrite_logs)."""
    first, second = (tmp_path / "runs" / "a" / f"events.out.tfevents.{number}" for number in (1, 2))
    event_file(first, {1: {"train/reward": 0.25, "eval/reward": 0.5}, 2: {"train/reward": 0.5}})
    event_file(second, {2: {"train/reward": 1.0}})
    done = read(tmp_path, "trl")
    assert (by_step(done), series(done, "validation/reward", "evaluation")) == ({1: 0.25, 2: 1.0}, [0.5])
    assert [row.wall_s for row in done.rows if row.kind == "step"] == [0.0, 1.0]
    assert [each[:2] for each in told(done)] == ["1 "]  # logged again


# ---- TRL's timers, which come to Weights & Biases at once, each in a record of its own, the inner ones first


def timed(**seconds):
    return [{f"profiling/Time taken: GRPOTrainer.{name.replace('__', '.')}": value} for name, value in seconds.items()]


TIMED = timed(
    sync_weights=1.0,
    vLLM__generate=20.0,
    accuracy_reward=0.5,
    _calculate_rewards=2.0,
    _get_per_token_logps_and_entropies=3.0,
    _prepare_inputs=28.0,
)
LOSS = timed(_get_per_token_logps_and_entropies=2.5, compute_loss=4.0)
"""Of one of two micro batches: the second has only the loss, and a moment to take its part of the batch."""


def history(path, *items):
    return read(lines(path, *({"_step": place} | item for place, item in enumerate(items))), "trl")


def test_timers_of_trl_are_stages_and_no_second_counts_twice(tmp_path):
    """28.25 of 40 s come before the loss: 1 for weights, 20 to generate, 2 to score, 5.25 the rest; 11.75 s update."""
    items = [*TIMED, *LOSS, *timed(_prepare_inputs=0.25), *LOSS, {"train/global_step": 1, "train/step_time": 40.0}]
    done = history(tmp_path / "history.jsonl", *items)
    (row,) = done.rows
    stages = {"weight_transfer": 1.0, "generate": 20.0, "score": 2.0, "prepare_batch": 5.25, "update": 11.75}
    assert (row.lanes, row.wall_s) == ({"driver": stages}, 40.0)
    assert series(done, "imported/profiling/_get_per_token_logps_and_entropies") == [8.0]
    assert series(done, "imported/profiling/accuracy_reward") == [0.5]
    assert (told(done), any("no stages" in note for note in done.notes)) == ([], False)
    (row,) = history(tmp_path / "short.jsonl", *items[:-1], items[-1] | {"train/step_time": 28.0}).rows
    assert (row.wall_s, row.stages_s["update"]) == (28.0, 0.0)
    path = lines(tmp_path / "without.jsonl", {"step": 1, "reward": 0.5, "step_time": 40.0})
    assert any("no stages" in each and "report_to" in each for each in read(path, "trl").notes)


def test_timers_of_several_steps_are_a_mean_and_those_of_an_evaluation_no_training(tmp_path):
    """A row for two steps; the evaluation at step 4 comes with its row's step, that at step 5 between two rows."""

    def row(step):
        return {"train/global_step": step, "train/step_time": 40.0}

    evaluated = {"eval/reward": 0.5, "eval/runtime": 30.0}
    two = [*TIMED, *LOSS, *TIMED, *LOSS]
    at_four, at_five = ([*TIMED, evaluated | {"train/global_step": step}] for step in (4, 5))
    items = [*two, row(2), *two, row(4), *at_four, *TIMED, *LOSS, *at_five, *TIMED, *LOSS, row(6)]
    done = history(tmp_path / "history.jsonl", *items)
    of_step = {"weight_transfer": 1.0, "generate": 20.0, "score": 2.0, "prepare_batch": 5.0, "update": 12.0}
    stages = [each.stages_s for each in done.rows if each.kind == "step"]
    assert stages == [of_step, of_step | {"evaluate": 15.0}, {"evaluate": 15.0}]  # 30 s over two steps
    assert told(done)[0].startswith(f"left out: {4 * len(TIMED) + 2 * len(LOSS)} records were without a step")
    done = history(tmp_path / "after_a_row.jsonl", *two, row(4), *at_four, *two, row(6))
    assert [each.stages_s for each in done.rows if each.kind == "step"] == [of_step | {"evaluate": 15.0}, of_step]


def test_the_count_of_weights_and_biases_runs_ahead_of_the_steps(tmp_path):
    """A table of the same history; a column without a name is that of pandas' index."""
    head = ",_step,_timestamp,train/global_step,train/reward,profiling/Time taken: GRPOTrainer.compute_loss,other\n"
    rows = "0,0,1700000000,,,0.5,\n1,1,1700000001,1,0.25,,\n2,2,1700000002,,,0.6,\n3,3,1700000003,2,NaN,,\n4,4,,,,,1\n"
    done = read(text(tmp_path / "history.csv", head + rows), "trl")
    shown = [(row.step, row.wall_s, row.stages_s) for row in done.rows]
    assert shown == [(0, 0.0, {"update": 0.5}), (1, 2.0, {"update": 0.6})]
    not_finite, left_out, column = told(done)
    assert ("(reward)" in not_finite, "(other)" in left_out, "column" in column) == (True, True, True)


# ---- names

OLD_TRL = {"completion_length": 199.0, "learning_rate": 1e-06, "reward": 0.1, "rewards/correct": 0.06}
OLD_VERL = {"timing/gen": 3.5, "actor/entropy_loss": 0.5, "actor/lr(1e-4)": 0.01, "critic/rewards/mean": 0.25}
OLD_VERL |= {"mfu/actor": 0.375, "val/test_score/openai/gsm8k": 0.75}


def test_names_of_older_versions(tmp_path):
    done = read(lines(tmp_path / "trl.jsonl", {"step": 1, "clip_ratio": 0.5} | OLD_TRL), "trl")
    expected = {"response_length": 199.0, "learning_rate": 1e-06, "reward/total": 0.1, "reward/correct": 0.06}
    assert {name: stored["mean"] for name, stored in done.rows[0].metrics.items()} == {**expected, "clip_fraction": 0.5}
    done = read(lines(tmp_path / "verl.jsonl", {"step": 1, "data": OLD_VERL}), "verl")
    assert done.rows[0].stages_s == {"generate": 3.5}
    expected = {"token_entropy": 0.5, "learning_rate": 1e-06, "reward/total": 0.25, "perf/mfu": 0.375}
    assert {name: series(done, name)[0] for name in expected} == expected
    assert series(done, "validation/reward", "evaluation") == [0.75]
    assert any("after the KL penalty" in sentence for sentence in done.notes)


@pytest.mark.parametrize(
    ("trainer", "known", "names"),
    [
        ("verl", "critic/score/mean", ["val-core/a/acc/mean@16", "val-core/b/acc/mean@4"]),
        ("verl", "critic/score/mean", ["val/test_score/a", "val/test_score/b"]),
        ("trl", "reward", ["eval_code_reward", "eval_math_reward"]),
    ],
)
def test_of_several_validation_sets_none_is_taken_by_itself(tmp_path, trainer, known, names):
    """Not even where each step has but one of them."""
    items = [{"step": step + 1, known: 0.5} | {name: step + 0.25} for step, name in enumerate(names)]
    path = lines(tmp_path / "log.jsonl", *items)
    done = read(path, trainer)
    assert series(done, "validation/reward", "evaluation") == []
    (note,) = (each for each in done.notes if "validation" in each)
    assert (note[0], ", ".join(names) in note, "--validation " in note) == ("2", True, True)
    chosen = read(path, trainer, validation=names[1])
    assert series(chosen, "validation/reward", "evaluation") == [1.25]


# ---- what is refused


def test_what_is_no_log_is_refused_with_its_place(tmp_path):
    path = tmp_path / "log.jsonl"
    for content, message in (
        ("", "is empty"),
        (" \n \n", "is empty"),
        ("step and reward\n1 and 0.5\n", "no record"),
        ('{"step": 1, "reward": 0.5}\n{"step": 2\n{"step": 3, "reward": 0.5}\n', "line 2 "),
        ('{"step": 1, "reward": 0.5}\n[1, 2]\n', "line 2 "),
        ('"text"\n', "no record"),
        ("[]", "no record"),
        ("[1, 2]", "no list"),
        ('{"log_history": 3}', "none of the 1 records"),
        ("[" * 100_000, "no record"),
        ('{"step": 1', "line 1 "),
        (bytes(range(256)).decode("latin1"), "no record"),
        ('{"loss_x": 0.5}\n{"loss_x": 0.6}\n', "none of the 2 records"),
        ('{"step": 1, "note": "x"}\n', "none of the 1 records"),
        ('{"step": 1}\n', "none of the 1 records"),
    ):
        path.write_bytes(content.encode("latin1"))
        with pytest.raises(UserError, match=message) as caught:
            read(path, "trl")
        assert str(path) in (caught.value.where or "")


def test_folders_that_hold_no_run_or_several_are_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_log(tmp_path / "nowhere")
    text(tmp_path / "run.jsonl", "{}")
    with pytest.raises(UserError, match="no event files") as caught:
        read_log(tmp_path)
    assert "run.jsonl" in (caught.value.fix or "")
    for name in ("a", "b"):
        event_file(tmp_path / name / "events.out.tfevents.1", {1: {"reward": 0.25}})
    with pytest.raises(UserError, match="2 folders"):
        read_log(tmp_path)


# ---- TensorBoard's event files: what is written is what tensorboardX writes, and what it writes is read

tensorboardX = pytest.importorskip("tensorboardX")


def test_a_record_is_the_one_that_tensorboardx_writes(tmp_path):
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter

    writer = RecordWriter(str(tmp_path / "events"))
    writer.write(Event(step=4, wall_time=7.0, file_version="brain.Event:2").SerializeToString())
    writer.close()
    assert event_record(step=4, wall_time=7.0, file_version="brain.Event:2") == (tmp_path / "events").read_bytes()


def test_what_tensorboardx_writes_is_read(tmp_path):
    with tensorboardX.SummaryWriter(logdir=str(tmp_path)) as writer:
        writer.add_scalar("critic/score/mean", 0.25, 1, walltime=10.0)
        writer.add_scalar("critic/score/mean", 0.5, 2, walltime=11.0)
        writer.add_text("note", "no number", 2)
    (file,) = tmp_path.iterdir()
    records = [{STEP: 1, "critic/score/mean": 0.25, TIME: 10.0}, {STEP: 2, "critic/score/mean": 0.5, TIME: 11.0}]
    assert read_events(file.read_bytes(), "log") == (records, ["1 values of TensorBoard that are no scalars"])


def _with_tensor(**fields):
    """An event file with one value as a tensor, as TensorFlow 2 writes scalars, made with the official messages."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.proto.tensor_pb2 import TensorProto
    from tensorboardX.record_writer import masked_crc32c

    value = Summary.Value(tag="reward", tensor=TensorProto(**fields))
    data = Event(step=4, wall_time=1.0, summary=Summary(value=[value])).SerializeToString()
    head = struct.pack("<Q", len(data))
    checksums = (struct.pack("<I", masked_crc32c(part)) for part in (head, data))
    return encode_start(0.0) + head + next(checksums) + data + next(checksums)


def test_a_scalar_may_be_a_tensor_and_other_tensors_are_counted():
    cases = [
        ({"dtype": 1, "float_val": [0.25]}, 0.25),
        ({"dtype": 1, "tensor_content": struct.pack("<f", 0.25)}, 0.25),
        ({"dtype": 2, "double_val": [0.1]}, 0.1),
        ({"dtype": 2, "tensor_content": struct.pack("<d", 0.1)}, 0.1),
        ({"dtype": 3, "int_val": [7]}, 7.0),
        ({"dtype": 9, "tensor_content": struct.pack("<q", -7)}, -7.0),
        ({"dtype": 1, "float_val": [1.0, 2.0]}, None),
        ({"dtype": 7, "string_val": [b"text"]}, None),
        ({"dtype": 1, "tensor_content": b"x"}, None),
    ]
    for fields, value in cases:
        read = [] if value is None else [{STEP: 4, "reward": value, TIME: 1.0}]
        left_out = ["1 values of TensorBoard that are no scalars"] if value is None else []
        assert read_events(_with_tensor(**fields), "log") == (read, left_out), fields


def test_every_cut_of_a_file_gives_the_records_before_it():
    records = [encode_start(0.0), *(encode_scalars({"loss": step / 4}, step, 1.0) for step in range(3))]
    data, ends = b"".join(records), [sum(map(len, records[: count + 1])) for count in range(4)]
    for size in range(1, len(data)):
        read, left_out = read_events(data[:size], "log")
        whole = sum(end <= size for end in ends)
        assert [record[STEP] for record in read] == list(range(max(0, whole - 1)))
        cut = size - ([0, *ends])[whole]
        assert left_out == [f"{cut} bytes of a record that is not whole, at the end of an event file"] * bool(cut)


def test_a_flipped_byte_is_an_error_that_names_the_record_and_other_files_are_refused():
    first, whole = encode_start(0.0), encode_scalars({"loss": 0.5}, 1, 1.0)
    for byte in (6, -6):  # a length of 2**55 bytes, and in the data
        second = bytearray(whole)
        second[byte] ^= 0xFF
        with pytest.raises(UserError, match=f"at byte {len(first)} "):
            read_events(bytes(first + second), "log")
    for data in (b'{"step": 1, "data": {}}\n', bytes(64), whole):
        with pytest.raises(UserError, match="'log'"):
            read_events(data, "log")
