"""What runs learned: divergence, gradients, targets and the ranking over seeds, from runs with known numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.compare import Experiment, gather
from harness.compare.findings import findings
from harness.compare.learning import Divergence, LearningFigures
from harness.compare.tables import outcome_table
from harness.core.types import Metric, Metrics
from harness.report.curves import draw_learning
from harness.report.data import load_curves
from harness.results import RunFolder
from tests.messages import MessageIs, facts

Make = Callable[..., RunFolder]
ANSWERS, DETAILS = ("final_reward", "ranking", "divergence"), ("target", "gradients", "importance")
SETTINGS = "steps: 4\nreward_target: 0.5\noptimizer: {max_grad_norm: 1.0}\n"


def step_metrics(rewards: list[float], norms: list[float]) -> Callable[[int], Metrics]:
    """The training rewards and gradient norms of the steps."""
    return lambda step: {"reward/total": Metric(rewards[step], count=64), "grad_norm": Metric(norms[step])}


def experiment_of(tmp_path: Path) -> Experiment:
    (experiment,), damaged = gather([tmp_path / "results"])
    assert damaged == []
    return experiment


def sentences(experiment: Experiment, *names: str) -> list[str]:
    """The findings of these names, or all of them."""
    return [finding.text for finding in findings(experiment) if not names or finding.name in names]


def learning_of(tmp_path: Path) -> LearningFigures:
    (run,) = experiment_of(tmp_path).runs
    assert run.learning is not None
    return run.learning


def test_figures_of_a_run_that_learns(make_run: Make, tmp_path: Path) -> None:
    make_run(
        evaluations={0: (0.3, 12.0), 2: (0.5, 12.0), 4: (0.6, 12.0)},
        metrics=step_metrics([0.3, 0.4, 0.5, 0.6], [0.5, 1.5, 1.0, 2.0]),
        settings=SETTINGS,
    )
    found = learning_of(tmp_path)
    # norms in order 0.5, 1.0, 1.5, 2.0: place 0.95 * 3 = 2.85, so 1.5 + 0.85 * 0.5; two of four are above 1
    assert found.grad_norm_p95 == pytest.approx(1.925)
    assert found.signal is not None
    assert (found.signal.missing, found.signal.causes) == (0.0, ())
    assert replace(found, grad_norm_p95=None, signal=None) == LearningFigures(2, 2, None, 1.0, 0.5, None)


def test_a_reward_that_is_gone_for_good_is_a_divergence(make_run: Make, tmp_path: Path) -> None:
    make_run(
        evaluations={0: (0.4, 12.0), 2: (0.05, 12.0), 4: (0.0, 12.0)},
        metrics=step_metrics([0.4, 0.3, 0.02, 0.0], [0.5, 0.5, 0.0, 0.0]),
        settings=SETTINGS,
    )
    divergence = learning_of(tmp_path).divergence
    assert divergence is not None
    # a tenth of 0.4 is 0.04: the evaluation after step 2 is above it, so the first step of nothing more is 3
    assert (divergence.step, divergence.stopped) == (3, False)
    assert divergence.best is not None
    assert (divergence.best.reward, divergence.best.step) == (0.4, 0)


@pytest.mark.parametrize(
    ("evaluations", "prompts", "why"),
    [
        ({0: (0.4, 12.0), 2: (0.0, 12.0), 4: (0.05, 12.0)}, 256, "the last one is above a tenth"),
        ({0: (0.4, 12.0), 4: (0.0, 12.0)}, 49, "0.4 * 49 = 19.6 rewarded prompts are fewer than 20"),
        ({0: (0.0, 12.0), 4: (0.0, 12.0)}, 256, "there never was a reward to lose"),
    ],
)
def test_what_is_no_divergence(
    make_run: Make, tmp_path: Path, evaluations: dict[int, tuple[float, float]], prompts: int, why: str
) -> None:
    make_run(evaluations=evaluations, prompts=prompts, settings=SETTINGS)
    assert learning_of(tmp_path).divergence is None, why


def test_a_fall_in_a_run_that_did_not_get_to_its_end_is_not_judged(make_run: Make, tmp_path: Path) -> None:
    make_run(evaluations={0: (0.4, 12.0), 2: (0.0, 12.0)}, steps=2, status="interrupted", settings=SETTINGS)
    assert learning_of(tmp_path).divergence is None


def test_a_single_variant_that_diverged_is_told_and_not_that_its_numbers_were_finite(
    make_run: Make, tmp_path: Path
) -> None:
    losses = [0.1, 0.1, float("nan"), 0.1]
    make_run(
        evaluations={0: (0.4, 12.0), 4: (0.0, 12.0)},
        metrics=lambda step: {"reward/total": Metric(0.0, count=64), "loss": Metric(losses[step])},
        settings=SETTINGS,
    )
    said = sentences(experiment_of(tmp_path))
    assert said[0] == (
        "Diverged: sync_k at step 1. From there to the end every reward, of training and validation, was at most a "
        "tenth of the run's best validation reward."
    )
    assert "sync_k: loss was not finite in 1 steps." in said


def make_learning_rates(make_run: Make) -> None:
    """Three seeds of three learning rates; the largest diverges in all, each seed at another step."""
    finals = {"1e-4": (0.80, 0.82, 0.84), "3e-4": (0.60, 0.63, 0.63), "3e-3": (0.0, 0.0, 0.0)}
    for position, (rate, rewards) in enumerate(finals.items()):
        for seed, reward in enumerate(rewards):
            gone = [0.4] * (1 + seed) + [0.0] * (3 - seed)
            make_run(
                point={"optimizer.learning_rate": float(rate), "seed": seed},
                seed=seed,
                position=3 * position + seed,
                evaluations={0: (0.4, 12.0), 4: (reward, 12.0)},
                metrics=step_metrics(gone if rate == "3e-3" else [0.5] * 4, [0.5, 0.5, 0.5, 2.1]),
                settings=SETTINGS,
            )


def test_the_sentences_on_a_sweep(make_run: Make, tmp_path: Path, message_is: MessageIs) -> None:
    make_learning_rates(make_run)
    # means 0.82 and 0.62; t(0.975, 2) = 4.303: sd 0.02 / sqrt(3) * 4.303 = 0.0497, sd 0.01732: 0.0430
    # three variants have three pairs: t(1 - 0.05 / 6, 2) = 7.649
    # paired differences 0.20, 0.19, 0.21: mean 0.20, sd 0.01 / sqrt(3) * 7.649 = 0.0442
    # to those that collapsed 0.80, 0.82, 0.84: mean 0.82, sd 0.02 / sqrt(3) * 7.649 = 0.0883
    # gradient norms 0.5, 0.5, 0.5, 2.1: place 2.85 is 0.5 + 0.85 * 1.6 = 1.86
    experiment = experiment_of(tmp_path)
    said = sentences(experiment, *ANSWERS, *DETAILS)
    assert [facts(text) for text in said] == [
        "0.0001 0.82 95 0.77 0.87 3 0.0003 0.62 95 0.58 0.66 3 0.003 0.00 95 0.00 0.00 3 3 3",
        "0.0001 0.0003 0.20 0.16 0.24 0.003 0.82 0.73 0.91 95 3",
        "0.003 0 1 0.003 1 2 0.003 2 3",
        "0.5 0.0001 3 3 4 6.00 4 0.0003 3 3 4 6.00 4 0.003 0 3",
        "1 95 0.0001 0.500 1.86 25 0.0003 0.500 1.86 25 0.003 0.500 1.86 25",
    ]
    message_is("\n".join(said))


def test_more_comparisons_need_more_to_show_a_difference(make_run: Make, tmp_path: Path) -> None:
    """Differences to the best of 0.10, 0.12, 0.14: shown alone and beside one more variant, and not beside three."""
    finals = {"a": (0.80, 0.80, 0.80), "b": (0.70, 0.68, 0.66)}
    others = dict.fromkeys(("c", "d", "e"), (0.1, 0.5, 0.3))
    for position, (arm, rewards) in enumerate((finals | others).items()):
        for seed, reward in enumerate(rewards):
            make_run(
                arm=arm,
                seed=seed,
                point={"seed": seed},
                position=position,
                evaluations={0: (0.3, 9.0), 4: (reward, 9.0)},
            )
    alone = experiment_of(tmp_path)
    two = Experiment(alone.folder, alone.scenario, alone.name, alone.started_at, alone.variants[:2])
    # sd 0.02 / sqrt(3) * t(0.975, 2) 4.303 = 0.0497: 0.07 to 0.17
    assert any("higher than that of b (by 0.12, 0.07 to 0.17)" in said for said in sentences(two, *ANSWERS))
    # three variants have three pairs, shown or not: t(1 - 0.05 / 6, 2) = 7.649, reach 0.0883: 0.03 to 0.21
    three = Experiment(alone.folder, alone.scenario, alone.name, alone.started_at, alone.variants[:3])
    said = " ".join(sentences(three, *ANSWERS))
    assert "higher than that of b (by 0.12, 0.03 to 0.21)" in said
    assert "95% intervals for all 3 pairs of variants together" in said
    # five have ten: t(1 - 0.05 / 20, 2) = 14.089, reach 0.1627 for b; c has sd 0.2, so reach 1.63 about 0.5
    said = " ".join(sentences(alone, *ANSWERS))
    assert "No difference is shown between a and b (+0.12, -0.04 to +0.28), c (+0.50, -1.13 to +2.13), d" in said
    assert "95% intervals for all 10 pairs of variants together" in said


def test_one_seed_gives_figures(make_run: Make, tmp_path: Path) -> None:
    for arm, reward in (("a", 0.5), ("b", 0.9)):
        make_run(arm=arm, evaluations={0: (0.3, 9.0), 4: (reward, 9.0)}, metrics=lambda step: {})
    assert sentences(experiment_of(tmp_path), *ANSWERS) == [
        "Final validation reward, highest first: b 0.90; a 0.50 (one seed each: figures, not a verdict)."
    ]


def test_parts_that_only_sleep_are_not_ranked(make_run: Make, tmp_path: Path) -> None:
    for arm in ("a", "b"):
        make_run(arm=arm, evaluations={4: (0.2, 9.0)}, metrics=lambda step: {}, settings=SETTINGS)
    assert sentences(experiment_of(tmp_path), *ANSWERS) == []
    assert sentences(experiment_of(tmp_path), *DETAILS) == ["No variant was seen at validation reward 0.5."]


def test_importance_weights_are_told_with_the_gap(make_run: Make, tmp_path: Path) -> None:
    def metrics(step: int) -> Metrics:
        shares = {
            "importance/truncated_fraction": 0.02,
            "importance/masked_fraction": 0.01,
            "engine_mismatch/kl": 0.003,
        }
        return {name: Metric(value, count=500) for name, value in shares.items()}

    make_run(arm="off", evaluations={4: (0.2, 9.0)}, metrics=lambda step: {})
    make_run(arm="icepop", evaluations={4: (0.3, 9.0)}, metrics=metrics)
    assert sentences(experiment_of(tmp_path), *DETAILS)[-1] == (
        "Importance weights of the response tokens, Learner over engine: "
        "icepop KL 0.003 per token, bounded 2%, of these left out 1%."
    )


def test_a_run_that_stopped_for_a_number_is_shown_as_diverged(make_run: Make, tmp_path: Path) -> None:
    make_run(arm="small", evaluations={0: (0.3, 9.0), 4: (0.5, 9.0)}, settings=SETTINGS)
    folder = make_run(arm="large", evaluations={0: (0.3, 9.0)}, steps=2, status="failed", error="the loss is nan")
    manifest = folder.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"outcome": {', '"outcome": {"diverged": {"step": 2}, ', 1))
    experiment = experiment_of(tmp_path)
    large = experiment.runs[0] if experiment.runs[0].manifest.arm == "large" else experiment.runs[1]
    assert large.learning is not None
    assert large.learning.divergence == Divergence(2, stopped=True)
    assert "diverged at step 2 of 4" in outcome_table(experiment).rows[0]
    said = "Diverged: large at step 2. There a number was not finite, and the run had to stop."
    assert said in sentences(experiment)


@pytest.mark.usefixtures("style")
def test_the_learning_picture_has_three_panels_and_marks_divergence(make_run: Make, tmp_path: Path) -> None:
    make_learning_rates(make_run)
    figure = draw_learning(load_curves(tmp_path / "results"))
    assert figure is not None
    steps, seconds, norms = figure.axes
    assert [axes.get_xlabel() for axes in (steps, seconds, norms)] == [
        "training step",
        "seconds of the loop",
        "training step",
    ]
    (crosses,) = [line for line in steps.lines if line.get_marker() == "X"]
    assert sorted(np.asarray(crosses.get_xdata()).tolist()) == [1, 2, 3]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[-2:] == ["target 0.5", "diverged"]
    assert texts[0] == "learning_rate=0.0001 (3 seeds)"


@pytest.mark.usefixtures("style")
def test_a_single_variant_has_no_learning_picture(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(evaluations={0: (0.3, 9.0), 4: (0.5, 9.0)}).folder
    assert draw_learning(load_curves(folder)) is None
