"""What runs learned: divergence, gradients, signal, final rewards and targets over seeds, of known numbers."""

import numpy as np
import pytest

from harness.compare.remarks.answer import Difference, final_rewards, reward_difference
from harness.compare.signal import Divergence, Signal
from harness.report.experiment_charts import curve_charts
from harness.report.tables import outcome_table
from tests.stand_ins.members import made_experiment, made_run, seeds_of


def rewards(*values, every=2):
    """Evaluations every so many steps, with responses of 12 tokens."""
    return {every * place: (value, 12.0) for place, value in enumerate(values)}


def test_figures_of_a_run_that_learns():
    metrics = {"reward/total": [0.3, 0.4, 0.5, 0.6], "grad_norm": [0.5, 1.5, 1.0, 2.0]}
    settings = {"optimizer": {"max_grad_norm": 1.0}}
    figures = made_run(evaluations=rewards(0.3, 0.5, 0.6), metrics=metrics, settings=settings).figures
    # norms in order 0.5, 1.0, 1.5, 2.0: place 0.95 * 3 = 2.85, so 1.5 + 0.85 * 0.5; two of four are above 1
    expected = {"grad_norm_p95": pytest.approx(1.925), "grad_norm": 1.25, "scaled_down": 0.5, "divergence": None}
    expected |= {"reward_first": 0.3, "reward_best": 0.6, "reward_best_step": 4, "reward_last": 0.6}
    expected |= {"reward_final": 0.6, "reward_train": 0.6, "signal": Signal(0.0, (), 0, None)}
    assert {name: figures[name] for name in expected} == expected
    # of the last two of 20 steps
    assert made_run(steps=20, metrics={"reward/total": np.arange(20.0)}).figures["reward_train"] == 18.5


def test_a_reward_that_is_gone_for_good_is_a_divergence():
    """A tenth of 0.4 is 0.04."""
    cases = [
        # training was above it in step 1, the evaluation after step 2 still: the first step of nothing more is 3
        ({"evaluations": rewards(0.4, 0.05, 0.0), "metrics": {"reward/total": [0.4, 0.3, 0.02, 0.0]}}, 3),
        ({"evaluations": rewards(0.4, 0.0, every=4), "metrics": {"reward/total": [0.4, 0.4, 0.4, 0.0]}}, 3),
        ({"evaluations": rewards(0.4, 0.0, every=4), "metrics": {"reward/total": [0.0] * 4}}, 1),
        ({"evaluations": rewards(0.4, 0.0, 0.05)}, None),  # the last one is above a tenth
        ({"evaluations": rewards(0.4, 0.0, every=4), "prompts": 49}, None),  # 0.4 * 49 = 19.6 rewarded prompts, not 20
        ({"evaluations": rewards(0.0, 0.0)}, None),
        ({"evaluations": rewards(0.4, 0.0), "status": "interrupted"}, None),
    ]
    for fields, diverged in cases:
        expected = None if diverged is None else Divergence(diverged, stopped=False)
        assert made_run(**fields).figures["divergence"] == expected, fields


def test_a_run_that_stopped_for_a_number_diverged_and_counts_with_its_last_reward():
    stopped = {"status": "failed", "outcome": {"diverged": {"step": 2}}}
    small = made_run("small", evaluations=rewards(0.3, 0.5), settings={"steps": 4})
    large = made_run("large", steps=2, evaluations=rewards(0.3), settings={"steps": 4}, **stopped)
    assert large.figures["divergence"] == Divergence(2, stopped=True)
    experiment = made_experiment(large, small)
    assert outcome_table(experiment).rows[0] == ("status", "diverged at step 2 of 4", "completed")
    assert final_rewards(experiment) == {"large": {0: 0.3}, "small": {0: 0.5}}


CUT, WEIGHED, NORM, EQUAL = (
    "loss_mask/truncated_fraction",
    "advantage/nonzero_fraction",
    "grad_norm",
    "zero_variance_fraction",
)
NO_BASELINE, OWN_LOSS = {"loss": {"type": "no_baseline"}}, {"loss": {"type": "own", "function": "losses:own"}}


@pytest.mark.parametrize(
    ("numbers", "settings", "cause"),
    [
        # near-equal rewards of a delta that older runs were not judged by: zero variance, no weight
        ({EQUAL: 1.0, WEIGHED: 0.0, NORM: 0.0}, {"advantage": {"delta": "leave_one_out_rewards"}}, "equal"),
        ({EQUAL: 1.0, WEIGHED: 0.0, NORM: 0.0}, NO_BASELINE, "equal"),
        ({EQUAL: 1.0, WEIGHED: 1.0, NORM: 0.3}, NO_BASELINE, None),
        ({EQUAL: 1.0, WEIGHED: 1.0, NORM: 0.3}, {"advantage": {"delta": "rewards"}}, None),
        ({EQUAL: 1.0}, {"advantage": {"delta": "rewards"}}, None),
        ({WEIGHED: 0.0, NORM: 0.3}, OWN_LOSS, None),
        ({WEIGHED: 0.0, NORM: 0.0}, OWN_LOSS, "weight"),
        ({EQUAL: 1.0, NORM: 0.0}, {"advantage": {"delta": "batch_normalized_rewards"}}, "equal"),  # older
        ({EQUAL: 0.0, NORM: 0.0}, {}, "gradient"),
        ({EQUAL: 0.0, WEIGHED: 1.0, NORM: 0.0}, {}, "gradient"),
        ({EQUAL: 0.0, WEIGHED: 0.0, CUT: 1.0, NORM: 0.0}, {}, "cut"),
        ({EQUAL: 0.5, WEIGHED: 0.0, CUT: 0.75, NORM: 0.1}, {}, "weight"),
    ],
)
def test_what_is_no_signal_depends_on_loss_and_advantage(numbers, settings, cause):
    member = made_run(metrics={name: [value] * 4 for name, value in numbers.items()}, settings=settings)
    found = member.figures["signal"]
    assert (found.missing, found.causes) == ((0.0, ()) if cause is None else (1.0, (cause,)))


# ---- final rewards over seeds


def test_collapsed_seeds_count_with_what_is_left():
    """b is 0.06 better on three seeds and collapses to 0 on three."""
    base = (0.80, 0.81, 0.82, 0.80, 0.81, 0.82)
    other = [value + 0.06 if seed < 3 else 0.0 for seed, value in enumerate(base)]
    experiment = made_experiment(*seeds_of("a", base), *seeds_of("b", other))
    # differences 0.06 three times, -0.80, -0.81, -0.82: mean -0.375, sd 0.47655; t(0.975, 5) = 2.5706: +-0.5001
    assert reward_difference(experiment, "a", "b") == Difference(
        pytest.approx(-0.375), pytest.approx(-0.8751, abs=1e-3), pytest.approx(0.1251, abs=1e-3), 6, 1
    )
    assert [member.figures["divergence"] is None for member in experiment.arms["b"]] == [True] * 3 + [False] * 3


def test_the_chart_of_rewards_marks_where_runs_diverged():
    """Each seed of the largest learning rate at another step: training is above a tenth of 0.4 until then."""
    gone = [[0.4] * (1 + seed) + [0.0] * (3 - seed) for seed in range(3)]
    members = [
        made_run("1e-3", seed, evaluations=rewards(0.4, 0.0, every=4), metrics={"reward/total": gone[seed]})
        for seed in range(3)
    ]
    chart = curve_charts(made_experiment(*seeds_of("1e-4", (0.7, 0.8, 0.9)), *members))["reward"]
    crosses = [line for line in chart.figure.axes[0].lines if line.get_marker() == "X"]
    assert sorted(np.concatenate([np.asarray(line.get_xdata()) for line in crosses]).tolist()) == [1, 2, 3]
