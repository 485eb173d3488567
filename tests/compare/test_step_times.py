"""What is said of step times beside their mean: hidden time, uneven steps, levels, warm-up that was measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness.compare.experiment import Experiment, gather
from harness.compare.judging import judgements
from harness.compare.stats.verdicts import Verdict
from harness.compare.steadiness import MARK, mark, steadiness_notes, step_ratio, uneven_sentence, warm_up_reasons
from harness.report.tables import overview_table, stage_table
from harness.results import RunFolder, WarmUp
from tests.messages import facts
from tests.stand_ins.members import made_experiment, made_run
from tests.step_runs import write_steps

Make = Callable[..., RunFolder]
STEPS = 30
FLAT = [0.1] * STEPS


def every(count: int, times: float, else_times: float = 1.0) -> list[float]:
    """Steps of 0.1 s, of which each ``count``-th takes so many times as long."""
    return [0.1 * (times if step % count == count - 1 else else_times) for step in range(STEPS)]


@pytest.mark.parametrize(
    ("steps", "ratio", "of_medians"),
    [
        (every(4, 3.0), (23 + 7 * 3) / 30, 1.0),  # 3, 7, ..., 27
        (every(3, 4.0), (20 + 10 * 4) / 30, 1.0),  # 2, 5, ..., 29
        (every(10, 20.0), (27 + 3 * 20) / 30, 1.0),  # 9, 19, 29
        (every(3, 2.6, 0.4), (20 * 0.4 + 10 * 2.6) / 30, 0.4),
    ],
)
def test_time_that_few_steps_carry_is_in_the_ratio(steps: list[float], ratio: float, of_medians: float) -> None:
    """Failed before: ratios of medians, 1.0 in three of the arms and 0.4 in the last, which is slower in truth."""
    experiment = made_experiment(made_run("a", steps=STEPS, wall_s=FLAT), made_run("b", steps=STEPS, wall_s=steps))
    assert step_ratio(experiment, "a", "b") == pytest.approx(ratio)
    assert experiment.mean("b", "step_s") == pytest.approx(0.1 * ratio)
    assert step_ratio(experiment, "a", "b", "median_step_s") == pytest.approx(of_medians)


def test_the_ratio_is_that_of_the_blocks_that_both_have() -> None:
    times = {"a": (0.1, 0.2), "b": (0.2, 0.8, 9.0)}  # twice and four times: 8 ** 0.5 in the middle
    runs = [made_run(arm, n, block=n, wall_s=each) for arm, walls in times.items() for n, each in enumerate(walls)]
    assert step_ratio(made_experiment(*runs), "a", "b") == pytest.approx(8**0.5)


def test_the_slow_steps_that_carry_much_of_the_time_are_named() -> None:
    walls = {"flat": FLAT, "hidden": every(10, 20.0), "evaluated": every(10, 11.0), "many": every(3, 4.0)}
    walls["levels"] = [0.1 if step % 5 < 2 else 0.14 for step in range(STEPS)]  # 1.4 times as long is not slow
    ends = {"evaluated": np.array([1.0 if step % 10 == 9 else 0.0 for step in range(STEPS)])}
    experiment = made_experiment(
        *(
            made_run(arm, steps=STEPS, wall_s=each, stages_s={"evaluate": ends.get(arm, 0.0)})
            for arm, each in walls.items()
        )
    )
    said = {arm: facts(text) for arm in walls if (text := uneven_sentence(experiment, arm))}
    assert said == {
        "hidden": "9 19 29 2.00 0.100 69.0",  # 3 steps of 2 s among 27 of 0.1 s: 6 of 8.7 s
        "many": "2 5 8 11 14 17 4 0.400 0.100 66.7",  # and 4 more: 4 of 6 s
    }
    border = made_experiment(made_run(steps=10, wall_s=[1.0] * 7 + [1.5, 3.0, 3.0]))  # 7.5 of 14.5 s
    assert facts(uneven_sentence(border, "a")) == "7 8 9 2.50 1.00 51.7"


# ---- levels and warm-up


def read(tmp_path: Path) -> Experiment:
    (experiment,), damaged = gather([tmp_path / "results"])
    assert damaged == []
    return experiment


@pytest.mark.parametrize(
    ("warm_up", "reason"),
    [
        (WarmUp(2, False, slow_start=True), "10 of 10 runs of b were still warming up when they were measured"),
        (WarmUp(2, None), "10 of 10 runs of b have too few steps to tell where warm-up ends"),
        (WarmUp(2, False), None),
    ],
)
def test_a_slow_start_and_too_few_steps_get_no_verdict(warm_up: WarmUp, reason: str | None) -> None:
    """Failed before: b warmed up for half of its steps, equal after, and was called different by 6%."""
    runs = [made_run("a", n, block=n) for n in range(10)]
    runs += [made_run("b", n, block=n, wall_s=1.06 + n % 2 / 1000, warm_up=warm_up) for n in range(10)]
    experiment = made_experiment(*runs)
    (judged,) = judgements(experiment)
    assert (judged.step.verdict, judged.step.reason) == (
        (Verdict.DIFFERENT, None) if reason is None else (Verdict.INCONCLUSIVE, reason)
    )
    assert [mark(experiment, arm) for arm in "ab"] == ["", "" if warm_up.steady is None else MARK]
    assert set(steadiness_notes(experiment, ["a", "b"])) <= set(judged.cautions)


def test_a_run_that_gets_slower_keeps_its_fast_start(make_run: Make, tmp_path: Path) -> None:
    """Failed before: slow from step 10 of 40 on, its first ten steps were cut as warm-up and it took 0.15 s a step."""
    write_steps(make_run, "a", [0.1] * 10 + [0.15] * 30)
    experiment = read(tmp_path)
    (run,) = experiment.members
    assert run.run.warm_up == WarmUp(2, False)
    assert run.figures["step_s"] == pytest.approx((8 * 0.1 + 30 * 0.15) / 38)
    assert {row[0]: row[1] for row in stage_table(experiment).rows}["whole step"] == f"0.139{MARK} 100.0%"
    assert f"0.139{MARK}" in overview_table([experiment]).rows[0]


def test_single_runs_that_keep_no_level_hold_no_verdict_back() -> None:
    """As the weather of a machine makes some of them look; a majority has to start slowly."""
    slow = WarmUp(2, False, slow_start=True)

    def reasons(count: int, **fields: str) -> list[str]:
        runs = [made_run("b", n, warm_up=slow if n < count else None, **fields) for n in range(10)]
        return warm_up_reasons({"a": [made_run("a")], "b": runs})

    assert (reasons(5), reasons(6)) == ([], ["6 of 10 runs of b were still warming up when they were measured"])
    assert reasons(6, simulated="abacus") == []
