"""Runs that had nothing to learn from: whether, why, and how many groups had no reward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.compare import Experiment, gather
from harness.compare.findings import findings
from harness.compare.learning import Cause
from harness.compare.learning_findings import CAUSES
from harness.core.types import Metric
from harness.results import RunFolder

Make = Callable[..., RunFolder]


def said(tmp_path: Path, name: str) -> list[str]:
    experiment = read(tmp_path)
    return [finding.text for finding in findings(experiment) if finding.name == name]


def read(tmp_path: Path) -> Experiment:
    (experiment,), _ = gather([tmp_path / "results"])
    return experiment


def zero_signal(make_run: Make, shares: list[float], settings: str = "", **more: object) -> None:
    make_run(
        metrics=lambda step: {"zero_variance_fraction": Metric(shares[step], count=8)},
        settings=f"steps: 4\n{settings}",
        **more,
    )


def test_a_run_whose_groups_were_all_equal_had_nothing_to_learn_from(make_run: Make, tmp_path: Path) -> None:
    """Old code: not said, and not recorded."""
    zero_signal(make_run, [1.0, 1.0, 1.0, 1.0])
    (text,) = said(tmp_path, "signal")
    assert text.startswith("sync_k had nothing to learn from: in every training step")


def test_most_steps_without_a_signal_are_said_with_their_share(make_run: Make, tmp_path: Path) -> None:
    zero_signal(make_run, [1.0, 1.0, 1.0, 0.9], seed=0, point={"seed": 0})
    zero_signal(make_run, [1.0, 1.0, 0.5, 0.9], seed=1, point={"seed": 1})  # a half is not most
    (text,) = said(tmp_path, "signal")
    assert "in 75% of its training steps (1 of 2 seeds)" in text


@pytest.mark.parametrize(
    "settings", ["loss: {type: no_baseline}\n", "advantage: {delta: rewards}\n", "advantage: {delta: own}\n"]
)
def test_equal_rewards_are_a_signal_where_nothing_is_subtracted(make_run: Make, tmp_path: Path, settings: str) -> None:
    zero_signal(make_run, [1.0] * 4, settings)
    assert said(tmp_path, "signal") == []


CUT, WEIGHED, NORM = "loss_mask/truncated_fraction", "advantage/nonzero_fraction", "grad_norm"


@pytest.mark.parametrize(
    ("figures", "settings", "says"),
    [
        # near-equal rewards of a delta that older runs were not judged by: zero variance, no weight
        (
            {"zero_variance_fraction": 1.0, WEIGHED: 0.0, NORM: 0.0},
            "advantage: {delta: leave_one_out_rewards}\n",
            "equal",
        ),
        ({"zero_variance_fraction": 0.0, WEIGHED: 0.0, CUT: 1.0, NORM: 0.0}, "", "cut"),
        ({"zero_variance_fraction": 0.5, WEIGHED: 0.0, CUT: 0.75, NORM: 0.1}, "", "weight"),
        ({"zero_variance_fraction": 0.0, WEIGHED: 1.0, NORM: 0.0}, "", "gradient"),
        ({"zero_variance_fraction": 1.0, WEIGHED: 0.0, NORM: 0.0}, "loss: {type: no_baseline}\n", "equal"),
        ({"zero_variance_fraction": 1.0, WEIGHED: 1.0, NORM: 0.3}, "loss: {type: no_baseline}\n", None),
        ({"zero_variance_fraction": 1.0, WEIGHED: 1.0, NORM: 0.3}, "advantage: {delta: rewards}\n", None),
        ({WEIGHED: 0.0, NORM: 0.3}, "loss: {type: own, function: 'losses:own'}\n", None),
        ({WEIGHED: 0.0, NORM: 0.0}, "loss: {type: own, function: 'losses:own'}\n", "weight"),
        (
            {"zero_variance_fraction": 1.0, NORM: 0.0},
            "advantage: {delta: batch_normalized_rewards}\n",
            "equal",
        ),  # older
        ({"zero_variance_fraction": 0.0, NORM: 0.0}, "", "gradient"),
    ],
)
def test_why_a_run_had_nothing_to_learn_from(
    make_run: Make, tmp_path: Path, figures: dict[str, float], settings: str, says: Cause | None
) -> None:
    """Old code: the sentence hung on zero_variance_fraction alone."""
    metrics = {name: Metric(value, count=8) for name, value in figures.items()}
    make_run(metrics=lambda step: metrics, settings=f"steps: 4\n{settings}")
    texts = said(tmp_path, "signal")
    assert [says is not None and CAUSES[says] in text for text in texts] == ([True] if says else [])


def test_steps_that_moved_the_weights_without_a_signal_are_counted(make_run: Make, tmp_path: Path) -> None:
    """By averages of the first step's gradient; the step before it had none."""
    norms = [0.0, 1.0, 0.0, 0.0, 0.0]
    weighed = lambda step: Metric(float(norms[step] > 0), count=8)  # noqa: E731
    make_run(steps=5, metrics=lambda step: {NORM: Metric(norms[step]), WEIGHED: weighed(step)}, settings="steps: 5\n")
    (text,) = said(tmp_path, "signal")
    assert "in 80% of its training steps" in text
    assert "In 3 such steps the optimizer moved the weights all the same" in text


def test_few_responses_with_a_signal_are_said(make_run: Make, tmp_path: Path) -> None:
    shares = [0.1, 0.3, 0.0, 0.2]
    make_run(metrics=lambda step: {WEIGHED: Metric(shares[step], count=8), NORM: Metric(0.1)}, settings="steps: 4\n")
    (text,) = said(tmp_path, "signal")
    assert text.startswith("sync_k learned from 15.0% of the responses")


def test_groups_and_batches_without_a_reward_are_said(make_run: Make, tmp_path: Path) -> None:
    def metrics(step: int) -> dict[str, Metric]:
        failed = {"score/failed_groups": Metric(4.0 if step == 1 else 1.0, "sum")}
        return failed | ({"score/failed_batches": Metric(1.0, "sum")} if step == 1 else {NORM: Metric(0.1)})

    make_run(metrics=metrics, settings="steps: 4\n")
    (text,) = said(tmp_path, "failed")
    assert text.startswith("sync_k: 7 groups had no reward")
    assert text.endswith("in 1 training steps no group of the batch had one.")
