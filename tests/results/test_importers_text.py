"""Logs as people have them: exported tables and what trainers print. Shapes after the sources, made here.

verl's console logger prints ``step:N - name:value - ...`` (verl/utils/logger/aggregate_logger.py), numpy's numbers as
``np.float64(x)``; transformers' ProgressCallback prints the dict of a row, since version 5 with its numbers as texts;
a chart of Weights & Biases is exported with the columns ``RUN - NAME``, ``RUN - NAME__MIN`` and ``RUN - NAME__MAX``; a
series of TensorBoard with ``Wall time,Step,Value`` and its tag in the name of the file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UserError
from harness.results.import_command import Imported, read_arm
from harness.results.importers.trainers import CROSSWALKS


def series(arm: Imported, name: str, kind: str = "step") -> list[float]:
    """The values of one metric, row by row; rows without it are left out."""
    of_kind = [row.metrics for row in arm.rows.rows if row.kind == kind]
    return [next(iter(metrics[name].values())) for metrics in of_kind if name in metrics]


def lines(path: Path, *items: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


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
)


def test_what_verl_prints_behind_ray_colours_and_bars(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(VERL_PRINTED + "(TaskRunner pid=123) step:3 - critic/score/mean:0.")
    arm = read_arm(path, "verl")
    assert sorted(set(arm.points.cells["step"])) == [0, 1, 2]
    assert series(arm, "reward/total") == [0.5, -0.125]
    assert series(arm, "learning_rate") == [1e-06, 5e-07]
    assert series(arm, "response_length") == [200.5]
    assert [row.stages_s for row in arm.rows.rows if row.kind == "step"] == [{"generate": 8.0}, {"generate": 9.5}]
    assert series(arm, "validation/reward", "evaluation") == [0.25]
    assert [note for note in arm.notes if note.startswith(("1 number", "left out"))] == [
        "1 number was NaN, infinite or null (actor/grad_norm); kept as NaN",
        "left out: 1 value was no number (note)",
        "left out: the last line, which is not whole",
    ]


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
)


def test_what_trl_prints_has_no_steps_so_its_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(TRL_PRINTED + "{'loss': 0.2, 'rew")
    arm = read_arm(path, "trl")
    assert [row.step for row in arm.rows.rows] == [0, 1, 2, 2]
    assert [row.kind for row in arm.rows.rows] == ["step", "step", "evaluation", "step"]
    assert series(arm, "reward/total") == [0.5, 0.625, 0.75]
    assert series(arm, "reward/format") == [0.5]
    assert series(arm, "loss") == [0.0, 0.25, 0.125]
    assert series(arm, "learning_rate") == [1e-06, 5e-07]
    assert series(arm, "kl/reference_k3") == [-math.inf]
    assert series(arm, "validation/reward", "evaluation") == [0.75]
    assert arm.points.run_totals == {"train_runtime": 956.0, "train_loss": 0.33}
    assert arm.points.notes[0].startswith("no record has a step: the rows are counted from 1")
    assert "left out: 1 records with no name that the trainer writes" in arm.points.notes
    assert not any("logged again" in note for note in arm.notes)
    assert arm.log.left_out == ["1 lines with a dict that is not whole"]


def test_texts_of_windows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes("{'reward': 0.25}\r\n{'reward': 0.5}\r\n".encode("utf-16"))
    assert series(read_arm(path, "trl"), "reward/total") == [0.25, 0.5]
    path.write_bytes(b"\xef\xbb\xbfstep;reward;loss\r\n1;0,5;1e-3\r\n2;0,25;\r\n3;0,")
    arm = read_arm(path, "trl")
    assert arm.log.left_out == ["the last line, which is not whole"]
    assert (series(arm, "reward/total"), series(arm, "loss")) == ([0.5, 0.25], [0.001])


CHART = (
    '"Step","qwen - lr1 - train/reward","qwen - lr1 - train/reward__MIN","qwen - lr1 - train/reward__MAX",'
    '"llama - train/reward"\n"1","0.1","0.1","0.1","0.2"\n"3","0.3","0.3","0.3",""\n'
)


def test_a_chart_with_several_runs_needs_the_name_of_one(tmp_path: Path) -> None:
    path = tmp_path / "wandb_export.csv"
    path.write_text(CHART)
    with pytest.raises(UserError, match="the columns of 2 runs: qwen - lr1, llama"):
        read_arm(path, "trl")
    with pytest.raises(UserError, match="has no run 'gemma'"):
        read_arm(path, "trl", run="gemma")
    arm = read_arm(path, "trl", run="qwen - lr1")
    assert [(row.step, row.metrics["reward/total"]["mean"]) for row in arm.rows.rows] == [(0, 0.1), (2, 0.3)]
    assert (len(arm.log.left_out), "the steps are _step" in arm.points.notes[0]) == (1, True)
    assert series(read_arm(path, "trl", run="llama"), "reward/total") == [0.2]
    (tmp_path / "reward.csv").write_text("Wall time,Step,Value\n1,1,0.5\n")
    with pytest.raises(UserError, match="has no run 'llama'"):
        read_arm(tmp_path / "reward.csv", "trl", run="llama")
    with pytest.raises(UserError, match="names no runs"):
        read_arm(lines(tmp_path / "log.jsonl", {"step": 1, "reward": 0.5}), "trl", run="llama")


def test_a_chart_may_be_drawn_over_the_trainers_own_steps(tmp_path: Path) -> None:
    """Charts of the Hugging Face trainer's runs have ``train/global_step`` as their axis."""
    path = tmp_path / "wandb_export.csv"
    path.write_text(CHART.replace('"Step"', '"train/global_step"'))
    arm = read_arm(path, "trl", run="qwen - lr1")
    assert [(row.step, row.metrics["reward/total"]["mean"]) for row in arm.rows.rows] == [(0, 0.1), (2, 0.3)]
    assert arm.points.notes == []


def test_records_that_weights_and_biases_counts_otherwise_are_no_steps(tmp_path: Path) -> None:
    """TRL's own timers go to Weights & Biases at once, so its ``_step`` runs ahead of the training steps."""
    path = tmp_path / "history.csv"
    path.write_text(
        ",_step,_timestamp,train/global_step,train/reward,profiling/Time taken: GRPOTrainer.compute_loss,other\n"
        "0,0,1700000000,,,0.5,\n1,1,1700000001,1,0.25,,\n2,2,1700000002,,,0.6,\n3,3,1700000003,2,NaN,,\n4,4,,,,,1\n"
    )
    arm = read_arm(path, "trl")
    assert [(row.step, row.wall_s, row.stages_s) for row in arm.rows.rows] == [
        (0, 0.0, {"update": 0.5}),
        (1, 2.0, {"update": 0.6}),
    ]
    assert arm.points.notes == [
        "1 number was NaN, infinite or null (reward); kept as NaN",
        "left out: 1 record was without a step (other)",
    ]
    assert arm.log.left_out == ["a column without a name"]


def timed(**seconds: float) -> list[dict[str, float]]:
    """TRL's timers as they come to Weights & Biases: each in a record of its own, the inner ones first."""
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


def test_timers_of_trl_are_stages_and_no_second_counts_twice(tmp_path: Path) -> None:
    """28.25 of 40 s come before the loss: 1 for weights, 20 to generate, 2 to score, 5.25 the rest; 11.75 s update."""
    items = [*TIMED, *LOSS, *timed(_prepare_inputs=0.25), *LOSS, {"train/global_step": 1, "train/step_time": 40.0}]
    path = lines(tmp_path / "history.jsonl", *({"_step": place} | item for place, item in enumerate(items)))
    arm = read_arm(path, "trl")
    (row,) = arm.rows.rows
    assert row.lanes == {
        "driver": {"weight_transfer": 1.0, "generate": 20.0, "score": 2.0, "prepare_batch": 5.25, "update": 11.75}
    }
    assert sum(row.stages_s.values()) == row.wall_s == 40.0
    assert series(arm, "imported/profiling/_get_per_token_logps_and_entropies") == [8.0]
    assert series(arm, "imported/profiling/accuracy_reward") == [0.5]
    assert arm.points.notes == []
    assert not any("no stages" in note for note in arm.notes)
    path = lines(tmp_path / "without.jsonl", {"step": 1, "reward": 0.5, "step_time": 40.0})
    assert any("no stages" in each and "report_to" in each for each in read_arm(path, "trl").notes)


def test_timers_of_several_steps_are_a_mean_and_those_of_an_evaluation_no_training(tmp_path: Path) -> None:
    """A row for two steps; the evaluation at step 4 comes with its row's step, that at step 5 between two rows."""
    row = {"train/step_time": 40.0}
    evaluation = [*TIMED, {"train/global_step": 4, "eval/reward": 0.5, "eval/runtime": 30.0}]
    items = [*TIMED, *LOSS, *TIMED, *LOSS, row | {"train/global_step": 2}, *TIMED, *LOSS, *TIMED, *LOSS]
    items += [row | {"train/global_step": 4}, *evaluation, *TIMED, *LOSS]
    items += [*TIMED, {"train/global_step": 5, "eval/reward": 0.5, "eval/runtime": 30.0}, *TIMED, *LOSS]
    items += [row | {"train/global_step": 6}]
    path = lines(tmp_path / "history.jsonl", *({"_step": place} | item for place, item in enumerate(items)))
    arm = read_arm(path, "trl")
    of_step = {"weight_transfer": 1.0, "generate": 20.0, "score": 2.0, "prepare_batch": 5.0, "update": 12.0}
    stages = [row.stages_s for row in arm.rows.rows if row.kind == "step"]
    assert stages == [of_step, of_step | {"evaluate": 30.0}, {"evaluate": 30.0}]
    left_out = len(TIMED) + 3 * len(TIMED) + 2 * len(LOSS)
    assert arm.points.notes[0].startswith(f"left out: {left_out} records were without a step")


def test_a_folder_of_series_from_tensorboard_is_one_run(tmp_path: Path) -> None:
    head = "Wall time,Step,Value\n"
    for tag, values in {
        "train_reward": (0.25, 0.5),
        "train_rewards_format_mean": (0.1, 0.2),
        "train_rewards_format_std": (7.0, 8.0),
        "train_completions_mean_length": (90, 80),
        "eval_reward": (0.75, 1.0),
    }.items():
        rows = "".join(f"{100.0 + 10 * step},{step},{value}\n" for step, value in enumerate(values, start=1))
        (tmp_path / f"run-grpo-tag-{tag}.csv").write_text(head + rows)
    arm = read_arm(tmp_path, "trl")
    assert [row.wall_s for row in arm.rows.rows if row.kind == "step"] == [0.0, 10.0]
    assert series(arm, "reward/total") == [0.25, 0.5]
    assert series(arm, "reward/format") == [0.1, 0.2]
    assert series(arm, "response_length") == [90.0, 80.0]
    assert series(arm, "validation/reward", "evaluation") == [0.75, 1.0]
    assert arm.rows.kept == {"train_rewards_format_std"}
    assert arm.points.notes == []


@pytest.mark.parametrize(
    ("trainer", "tag", "name"),
    [
        ("verl", "val-core_openai_gsm8k_reward_mean@1", "val-core/openai_gsm8k_reward/mean@1"),
        ("verl", "timing_s_step", "timing_s/step"),
        ("verl", "critic_score_mean", "critic/score/mean"),
        ("open-instruct", "val_sequence_lengths", "val/sequence_lengths"),
        ("trl", "train_unknown", "train_unknown"),
    ],
)
def test_a_tag_in_the_name_of_a_file(trainer: str, tag: str, name: str) -> None:
    assert CROSSWALKS[trainer].name_of_tag(tag) == name


OLD_TRL = {"completion_length": 199.0, "learning_rate": 1e-06, "reward": 0.1, "rewards/correct": 0.06}
OLD_TRL |= {"clip_ratio": 0.5}
OLD_VERL = {"timing/gen": 3.5, "actor/entropy_loss": 0.5, "actor/lr(1e-4)": 0.01, "critic/rewards/mean": 0.25}
OLD_VERL |= {"mfu/actor": 0.375, "val/test_score/openai/gsm8k": 0.75}


def test_names_of_older_versions(tmp_path: Path) -> None:
    arm = read_arm(lines(tmp_path / "trl.jsonl", {"step": 1} | OLD_TRL), "trl")
    assert {name: stored["mean"] for name, stored in arm.rows.rows[0].metrics.items()} == {
        "response_length": 199.0,
        "learning_rate": 1e-06,
        "reward/total": 0.1,
        "reward/correct": 0.06,
        "clip_fraction": 0.5,
    }
    arm = read_arm(lines(tmp_path / "verl.jsonl", {"step": 1, "data": OLD_VERL}), "verl")
    assert arm.rows.rows[0].stages_s == {"generate": 3.5}
    expected = {"token_entropy": 0.5, "learning_rate": 1e-06, "reward/total": 0.25, "perf/mfu": 0.375}
    assert {name: series(arm, name)[0] for name in expected} == expected
    assert series(arm, "validation/reward", "evaluation") == [0.75]
    assert any("after the KL penalty" in sentence for sentence in arm.notes)


def test_what_is_missing_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    arm = read_arm(lines(tmp_path / "log.jsonl", {"step": 1, "reward": 0.5, "my_length": 3.0, "grad_norm": 1.0}), "trl")
    assert "response_length (completions/mean_length, completion_length)" in arm.notes[1]
    assert "grad_norm" not in arm.notes[1]
    assert arm.rows.kept == {"my_length"}


@pytest.mark.parametrize(
    ("trainer", "names"),
    [
        ("verl", ["val-core/a/acc/mean@16", "val-core/b/acc/mean@4"]),
        ("verl", ["val/test_score/a", "val/test_score/b"]),
        ("trl", ["eval_code_reward", "eval_math_reward"]),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_of_several_validation_sets_none_is_taken_by_itself(
    tmp_path: Path, trainer: str, names: list[str], together: bool
) -> None:
    """Not even where each step has but one of them."""
    known = "critic/score/mean" if trainer == "verl" else "reward"
    items = [{"step": step + 1, known: 0.5} | {name: step + 0.25} for step, name in enumerate(names)]
    if together:
        items = [item | dict.fromkeys(names, 0.25) for item in items]
    arm = read_arm(lines(tmp_path / "log.jsonl", *items), trainer)
    assert series(arm, "validation/reward", "evaluation") == []
    (note,) = (each for each in arm.notes if "validation" in each)
    assert note.startswith(f"2 validation figures, none taken as validation/reward: {', '.join(names)}; --validation ")
    chosen = read_arm(tmp_path / "log.jsonl", trainer, validation=names[1])
    assert series(chosen, "validation/reward", "evaluation") == ([0.25, 0.25] if together else [1.25])
    assert not any("validation" in note for note in chosen.notes)


def test_numbers_and_steps_that_are_texts(tmp_path: Path) -> None:
    items = ({"step": "1", "reward": "0.25"}, {"step": "2", "reward": "NaN"}, {"step": "3", "reward": "-Infinity"})
    arm = read_arm(lines(tmp_path / "log.jsonl", *items), "trl")
    first, second, third = series(arm, "reward/total")
    assert (first, math.isnan(second), third) == (0.25, True, -math.inf)
    assert arm.points.notes == ["2 numbers were NaN, infinite or null (reward); kept as NaN"]


def test_a_long_line_of_brackets_takes_no_longer_than_its_length(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("x" + "{'" * 200_000 + "\n{'reward': 0.5}\n")
    assert series(read_arm(path, "trl"), "reward/total") == [0.5]
