"""What the numbers of other trainers become: stages, seconds, units, steps. The arithmetic stands beside each."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from harness.core.errors import UserError
from harness.results.importers import convert as converting
from harness.results.importers.convert import Converted, Points, devices_of
from harness.results.importers.trainers import OPEN_INSTRUCT, TRL, VERL, VERL_ASYNCHRONOUS, Crosswalk

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
    "training/global_step": 1.0,
}


def points(*steps: tuple[int, dict[str, float]], at: dict[int, float] | None = None) -> Points:
    cells = [(step, name, value) for step, values in steps for name, value in values.items()]
    return Points(pd.DataFrame(cells, columns=["step", "name", "value"]), pd.Series(at or {}, dtype=float))


def convert(crosswalk: Crosswalk, found: Points, **options: Any) -> Converted:
    return converting.convert(found, crosswalk, "log", **options)


def metrics(row: Any) -> dict[str, float]:
    """The values of a row's metrics, whatever their reduction; they all count once."""
    assert all(stored["count"] == 1 for stored in row.metrics.values())
    return {name: next(iter(stored.values())) for name, stored in row.metrics.items()}


def test_a_step_of_verl() -> None:
    done = convert(VERL, points((1, VERL_STEP)))
    (row,) = done.rows
    assert (row.step, row.version, row.wall_s, row.elapsed_s) == (0, 1, 40.0, 40.0)
    assert row.stages_s == {
        "generate": 20.0,
        "score": 1.0,
        "old_logprobs": 3.0,
        "reference_logprobs": 3.5,
        "prepare_batch": 0.25,
        "update": 10.0,
        "weight_transfer": 2.0,
    }
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
        "imported/perf/total_num_tokens": 8000.0,
        "imported/perf/time_per_step": 40.0,
        "imported/perf/throughput": 25.0,
        "imported/prompt_length/mean": 200.0,
        "imported/critic/rewards/mean": 0.375,
        "imported/actor/ppo_kl": 0.001,
        "imported/actor/kl_loss": 0.02,  # its estimator is not in the log
        "imported/training/global_step": 1.0,
    }
    assert row.metrics["response_tokens"] == {"sum": 4800.0, "count": 1}
    assert done.kept == {
        *("perf/time_per_step", "critic/rewards/mean", "actor/ppo_kl", "actor/kl_loss", "training/global_step")
    }
    assert done.translated | done.kept == set(VERL_STEP)


def test_an_evaluation_of_verl_is_outside_of_its_step() -> None:
    validation = {"val-core/openai/gsm8k/reward/mean@1": 0.25, "val-aux/num_turns/mean": 2.0}
    later = {**VERL_STEP, **validation, "timing_s/testing": 30.0, "val-core/openai/gsm8k/reward/mean@1": 0.5}
    done = convert(VERL, points((0, validation), (1, VERL_STEP), (2, later)))
    first, step, step_with_evaluation, evaluation = done.rows
    assert (first.kind, first.step, first.version, first.elapsed_s) == ("evaluation", 0, 0, 0.0)
    assert metrics(first) == {"validation/reward": 0.25, "imported/val-aux/num_turns/mean": 2.0}
    assert (step.kind, step.wall_s) == ("step", 40.0)
    assert (step_with_evaluation.wall_s, step_with_evaluation.elapsed_s) == (70.0, 110.0)  # 40 + 30; 40 + 70
    assert step_with_evaluation.stages_s["evaluate"] == 30.0
    assert (evaluation.version, evaluation.elapsed_s) == (2, 110.0)
    assert metrics(evaluation)["validation/reward"] == 0.5


def test_generation_of_an_asynchronous_verl_run_is_waiting() -> None:
    (row,) = convert(VERL_ASYNCHRONOUS, points((1, VERL_STEP))).rows
    assert row.stages_s["wait_for_batch"] == 20.0
    assert "generate" not in row.stages_s
    longer = VERL_STEP | {"timing_s/wait_for_enough_samples": 4.0}
    (row,) = convert(VERL_ASYNCHRONOUS, points((1, longer))).rows
    assert row.stages_s["wait_for_batch"] == 24.0
    assert metrics(row)["imported/timing_s/gen"] == 20.0


def test_lag_of_verl_is_counted_from_the_oldest_token() -> None:
    name = "training/off_policy/trajectory_staleness"
    values = {f"{name}/mean": 0.5, f"{name}_worst/mean": 1.5, f"{name}_worst/max": 3.0}
    (row,) = convert(VERL_ASYNCHRONOUS, points((1, VERL_STEP | values))).rows
    assert row.metrics["off_policy/mean"] == {"mean": 1.5, "count": 1}
    assert row.metrics["off_policy/max"] == {"max": 3.0, "count": 1}
    assert metrics(row)[f"imported/{name}/mean"] == 0.5


def test_devices_follow_from_verls_own_figures() -> None:
    found = points((1, VERL_STEP), (2, VERL_STEP))
    assert devices_of(found, VERL, None) == 8  # 8000 / (25 x 40)
    assert devices_of(found, VERL, 8) == 8
    with pytest.raises(UserError, match=r"--devices 16 cannot be: .* give 8"):
        devices_of(found, VERL, 16)


def test_without_the_total_the_devices_have_to_be_told() -> None:
    values = {name: value for name, value in VERL_STEP.items() if name != "perf/total_num_tokens"}
    found = points((1, values))
    assert devices_of(found, VERL, None) is None
    (row,) = convert(VERL, found).rows
    assert metrics(row)["perf/throughput_per_device"] == 15.0
    assert "perf/throughput_total" not in row.metrics
    (row,) = convert(VERL, found, devices=8).rows
    assert metrics(row)["perf/throughput_total"] == 120.0  # 25 x 8 x 300 / 500
    assert metrics(row)["perf/processed_tokens_per_s"] == 200.0


TRL_STEP = {
    "step_time": 0.5,
    "reward": 0.25,
    "reward_std": 0.1,
    "rewards/accuracy/mean": 0.75,
    "completions/mean_length": 12.0,
    "completions/clipped_ratio": 0.5,
    "clip_ratio/region_mean": 0.125,
    "clip_ratio/low_mean": 0.0625,
    "kl": 0.01,
    "entropy": 2.0,
    "grad_norm": 0.875,
    "loss": 0.03,
    "num_tokens": 100.0,
    "epoch": 0.1,
}


def test_steps_of_trl() -> None:
    done = convert(TRL, points((1, TRL_STEP), (2, TRL_STEP | {"num_tokens": 250.0, "rewards/total/mean": 0.9})))
    first, second = done.rows
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
        "perf/processed_tokens_per_s": 200.0,  # the first 100 tokens in 0.5 s
        "imported/num_tokens": 100.0,
        "imported/reward_std": 0.1,
        "imported/clip_ratio/low_mean": 0.0625,
        "imported/epoch": 0.1,
    }
    assert metrics(second)["perf/processed_tokens_per_s"] == 300.0  # (250 - 100) / 0.5 s
    assert second.elapsed_s == 1.0
    assert metrics(second)["reward/total"] == 0.25  # a reward function called total does not take its place
    assert metrics(second)["imported/rewards/total/mean"] == 0.9


def test_rows_that_stand_for_ten_steps() -> None:
    steps = [(10, TRL_STEP | {"num_tokens": 1000.0}), (20, TRL_STEP | {"num_tokens": 3000.0}), (25, TRL_STEP)]
    done = convert(TRL, points(*steps))
    assert done.steps_per_row is None  # the last row stands for five
    assert [(row.step, row.wall_s, row.elapsed_s, row.optimizer_steps) for row in done.rows] == [
        (9, 0.5, 5.0, 10),
        (19, 0.5, 10.0, 10),
        (24, 0.5, 12.5, 5),
    ]
    rates = [metrics(row)["perf/processed_tokens_per_s"] for row in done.rows[:2]]
    assert rates == [200.0, 400.0]  # 1000 / (0.5 x 10), then 2000 / (0.5 x 10)
    assert convert(TRL, points(*steps[:2])).steps_per_row == 10
    done = convert(TRL, points((1, TRL_STEP), (10, TRL_STEP), (20, TRL_STEP)))  # transformers' logging_first_step
    assert [(row.optimizer_steps, row.elapsed_s) for row in done.rows] == [(1, 0.5), (9, 5.0), (10, 10.0)]
    done = convert(TRL, points((101, TRL_STEP), (102, TRL_STEP)))  # a resumed run
    assert [(row.step, row.elapsed_s) for row in done.rows] == [(100, 0.5), (101, 1.0)]
    assert "perf/processed_tokens_per_s" not in done.rows[0].metrics  # the tokens of 100 steps before are in there


def test_an_evaluation_of_trl_between_two_rows() -> None:
    evaluation = {"eval_reward": 0.5, "eval_completions/mean_length": 9.0, "eval_runtime": 3.0, "eval_loss": 0.1}
    done = convert(TRL, points((10, TRL_STEP), (15, evaluation), (20, TRL_STEP), (25, evaluation)))
    kinds = [(row.kind, getattr(row, "step", None), row.elapsed_s) for row in done.rows]
    assert kinds == [
        ("step", 9, 5.0),
        ("evaluation", 15, 5.0),
        ("step", 19, 13.0),  # 10 x 0.5 s, and the 3 s of the evaluation
        ("evaluation", 25, 13.0),
        ("tail", None, 16.0),  # the last evaluation's 3 s
    ]
    assert metrics(done.rows[1]) == {
        "validation/reward": 0.5,
        "validation/response_length": 9.0,
        "imported/eval_loss": 0.1,
    }
    assert done.rows[2].stages_s == {"evaluate": 3.0}


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
    "objective/kl3_avg": 0.005,
    "learner_tokens_per_second_step": 1000.0,
    "learner_mfu": 40.0,
}


def test_a_step_of_open_instruct() -> None:
    (row,) = convert(OPEN_INSTRUCT, points((1, OPEN_INSTRUCT_STEP))).rows
    assert row.wall_s == 30.0
    assert row.lanes == {
        "learner": {"update": 10.0, "wait_for_batch": 15.0},  # 25 s of training - 15 s of waiting in them
        "generator": {"wait_for_room": 4.0, "weight_transfer": 2.0},
    }
    assert metrics(row) == {
        "reward/total": 0.5,
        "response_length": 400.0,
        "truncated_fraction": 0.125,  # 1 - 0.875
        "clip_fraction": 0.01,
        "kl/reference_k1": 0.002,  # its estimators are numbered from 0
        "kl/reference_k3": 0.004,
        "perf/processed_tokens_per_s": 1000.0,
        "perf/mfu": 0.4,  # percent
        "imported/time/training": 25.0,
        "imported/val/stop_rate": 0.875,
        "imported/objective/kl1_avg": 0.003,
        "imported/objective/kl3_avg": 0.005,
        "imported/learner_mfu": 40.0,
    }


def test_open_instructs_older_names_and_a_log_without_the_wait() -> None:
    new, old = "time/trainer_waiting_for_data", "time/trainer_idle_waiting_for_inference"
    values = {name: value for name, value in OPEN_INSTRUCT_STEP.items() if name != new}
    (row,) = convert(OPEN_INSTRUCT, points((1, values | {old: 15.0}))).rows
    assert row.lanes["learner"] == {"update": 10.0, "wait_for_batch": 15.0}
    (row,) = convert(OPEN_INSTRUCT, points((1, values))).rows
    assert row.lanes["learner"] == {"update": 25.0}
    (row,) = convert(OPEN_INSTRUCT, points((1, values | {new: 26.0}))).rows
    assert row.lanes["learner"] == {"update": 0.0, "wait_for_batch": 26.0}  # 25 s less 26 s


def test_a_run_that_counts_from_zero_is_taken_as_it_is() -> None:
    done = convert(OPEN_INSTRUCT, points((0, OPEN_INSTRUCT_STEP), (1, OPEN_INSTRUCT_STEP)))
    assert [row.step for row in done.rows] == [0, 1]


def test_without_seconds_the_clock_of_the_log_is_used_and_without_that_they_are_unknown() -> None:
    steps = [(step, {"scores": 0.5}) for step in (1, 2, 4)]
    done = convert(OPEN_INSTRUCT, points(*steps, at={1: 100.0, 2: 103.0, 4: 113.0}))
    assert [(row.wall_s, row.elapsed_s) for row in done.rows] == [(0.0, 0.0), (3.0, 3.0), (5.0, 13.0)]
    assert done.seconds_known
    done = convert(OPEN_INSTRUCT, points(*steps))
    assert ([row.wall_s for row in done.rows], done.seconds_known) == ([0.0] * 3, False)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_impossible_seconds_are_left_out_and_counted(bad: float) -> None:
    done = convert(VERL, points((1, VERL_STEP), (2, VERL_STEP | {"timing_s/gen": bad})))
    assert "generate" not in done.rows[1].stages_s
    assert "1 times were negative or not finite: the seconds of 1 steps count as unknown" in done.notes
    assert [row.wall_s > 0 for row in done.rows] == [True, False]
    kept = metrics(done.rows[1])["imported/timing_s/gen"]
    assert kept == bad or (math.isnan(kept) and math.isnan(bad))


def test_an_evaluation_without_a_finite_figure_is_none() -> None:
    log = points((1, {"scores": 0.5, "eval/scores": math.nan}), (2, {"scores": 0.5, "eval/scores": 0.25}))
    done = convert(OPEN_INSTRUCT, log)
    assert [row.version for row in done.rows if row.kind == "evaluation"] == [2]
    assert "1 evaluations without a single finite figure are left out" in done.notes


def test_no_tokens_are_no_division_by_zero() -> None:
    empty = VERL_STEP | {"prompt_length/mean": 0.0, "response_length/mean": 0.0, "timing_s/step": 0.0}
    (row,) = convert(VERL, points((1, empty))).rows
    assert "perf/throughput_total" not in row.metrics
    assert metrics(row)["imported/perf/throughput"] == 25.0
