"""The onset of faster growth of KL in runs, and what the reward did from there on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.compare import Experiment, gather
from harness.compare.findings import findings
from harness.compare.learning import Cause, correlation_interval
from harness.compare.learning_findings import CAUSES
from harness.core.types import Metric
from harness.results import RunFolder

Make = Callable[..., RunFolder]
STEPS = 40
SETTINGS = "steps: 40\nloss: {kl: {reference: frozen, monitor: true}}\n"


def broken(at: int, reference: str = "frozen") -> dict[str, object]:
    """KL of 0.001 times the step, and 0.01 for each step after the break; the reward falls from 0.6 to 0.3 there."""
    return {
        "steps": STEPS,
        "settings": SETTINGS.replace("frozen", reference),
        "metrics": lambda step: {
            "kl/reference_k3": Metric(0.001 * min(step, at) + 0.01 * max(0, step - at), count=500)
        },
        "evaluations": {step: (0.6 if step <= at else 0.3, 9) for step in range(0, STEPS + 1, 5)},
    }


def said(tmp_path: Path, name: str) -> list[str]:
    experiment = read(tmp_path)
    return [finding.text for finding in findings(experiment) if finding.name == name]


def read(tmp_path: Path) -> Experiment:
    (experiment,), _ = gather([tmp_path / "results"])
    return experiment


def test_an_onset_comes_with_the_reward_after_it(make_run: Make, tmp_path: Path) -> None:
    make_run(**broken(20))
    (run,) = read(tmp_path).runs
    assert run.kl is not None
    assert run.kl.onset is not None
    assert run.kl.onset.step == 20
    # evaluations at 25, 30, 35 and 40 have 0.3, the best one up to 20 has 0.6
    assert run.kl.reward_after == (pytest.approx(-0.3), 4)
    (text,) = said(tmp_path, "onset")
    assert "from step 20 on, 10.0 times as fast as before" in text
    assert "Validation reward of the 4 evaluations after it less the best one before: -0.300." in text


def test_onsets_over_seeds_have_a_count_and_an_interval(make_run: Make, tmp_path: Path) -> None:
    for seed, at in enumerate((18, 20, 22)):
        make_run(point={"seed": seed}, seed=seed, **broken(at))
    line = {"metrics": lambda step: {"kl/reference_k3": Metric(0.001 * step, count=500)}}
    for seed in (3, 4):
        make_run(point={"seed": seed}, seed=seed, **(broken(20) | line))
    (text,) = said(tmp_path, "onset")
    # 18, 20, 22: sd 2, 4.303 * 2 / sqrt(3) = 4.97; evaluations after 18 and 20: 20, 25 ... 40 are 5 and 4, after 22 4
    assert "from step 20.0 on average (95% interval 15.0 to 25.0) on in 3 of 5 seeds" in text
    assert "13 evaluations after it of 3 seeds less the best one before: -0.300" in text


def test_no_onset_is_an_outcome(make_run: Make, tmp_path: Path) -> None:
    line = {"metrics": lambda step: {"kl/reference_k3": Metric(0.001 * step, count=500)}}
    make_run(**(broken(20) | line))
    (text,) = said(tmp_path, "onset")
    assert text.startswith("sync_k: no onset of faster growth of KL was found")


@pytest.mark.parametrize("reference", ["reclone", "polyak"])
def test_a_reference_that_follows_the_policy_is_not_judged(make_run: Make, tmp_path: Path, reference: str) -> None:
    make_run(**broken(20, reference=reference))
    assert said(tmp_path, "onset") == []


def test_a_correlation_has_fishers_interval() -> None:
    # atanh(0.5) = 0.5493, 1.96 / sqrt(28 - 3) = 0.3920: tanh(0.1573) and tanh(0.9413)
    assert correlation_interval(0.5, 28) == (pytest.approx(0.1560, abs=1e-4), pytest.approx(0.7358, abs=1e-4))


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
