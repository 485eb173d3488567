"""Real runs of the sorting toy: it learns, through the same loop and results as every other run."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harness.models.sorting import SortingModel, sorting_policy
from harness.results import Run
from harness.results.frames import table_of
from harness.scenario.load import load_scenario
from harness.tasks.sorting import SORTING_PROMPTS, inclusion_ordering_reward
from tests.e2e.conftest import run_all


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = ["steps=30", "evaluation.every=15", "loss.kl.monitor=true"]
    (only,) = run_all(load_scenario("sorting", settings), tmp_path_factory.mktemp("sorting"))
    return only


def trained_policy(run: Run) -> SortingModel:
    model = SortingModel()
    model.load_state_dict(load_file(run.folder / "policy" / "model.safetensors"))
    return model


def exact_reward(model: SortingModel) -> tuple[float, float]:
    """Mean reward over all 125 responses to each prompt, by their probabilities; and the standard error of 100 draws
    for each prompt."""
    with torch.no_grad():
        probabilities_PTV = model(torch.tensor(SORTING_PROMPTS)).double().softmax(-1).tolist()
    means, variances = [], []
    for prompt, by_position in zip(SORTING_PROMPTS, probabilities_PTV, strict=True):
        weighted = [
            (math.prod(row[token] for row, token in zip(by_position, response, strict=True)), response)
            for response in product(range(5), repeat=3)
        ]
        rewards = [(weight, inclusion_ordering_reward(prompt, response)) for weight, response in weighted]
        means.append(sum(weight * reward for weight, reward in rewards))
        variances.append(sum(weight * (reward - means[-1]) ** 2 for weight, reward in rewards))
    return sum(means) / 3, math.sqrt(sum(variances) / 3 / 300)


def test_it_learns_and_the_validation_reward_estimates_the_exact_expectation(run: Run) -> None:
    evaluated = table_of(run).rewards
    assert (evaluated.step.tolist(), evaluated.prompts.tolist()) == ([0, 15, 30], [300, 300, 300])
    (untrained, _), (trained, _) = exact_reward(sorting_policy(0)[0]), exact_reward(trained_policy(run))
    assert trained > untrained
    for measured, model in ((evaluated.reward[0], sorting_policy(0)[0]), (evaluated.reward[-1], trained_policy(run))):
        exact, standard_error = exact_reward(model)
        assert abs(measured - exact) < 5 * standard_error + 1e-6


def test_a_step_has_ten_optimizer_steps_on_three_tokens_each(run: Run) -> None:
    assert {row.optimizer_steps for row in run.steps} == {10}
    lengths = [row.metric("response_length") for row in run.steps]
    assert {(length.value, length.count) for length in lengths if length} == {(3.0, 30)}
    assert run.manifest.parameters == 650


@pytest.mark.slow
def test_ten_seeds_all_learn(tmp_path: Path) -> None:
    """Normalised rewards and the clipped loss end above the untrained mean on each seed."""
    settings = ["trackers=[]", "profile='off'", "sweep={seed: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}"]
    runs = run_all(load_scenario("sorting", settings), tmp_path)
    assert sorted(run.manifest.seed for run in runs) == list(range(10))
    for run in runs:
        untrained, _ = exact_reward(sorting_policy(run.manifest.seed)[0])
        assert exact_reward(trained_policy(run))[0] > untrained, run.manifest.seed


def test_the_exact_kl_is_logged_beside_its_estimates(run: Run) -> None:
    for name in ("reference", "previous"):
        steps, values = table_of(run).series(f"kl/{name}_exact")
        assert steps.tolist() == list(range(30))
        assert values[0] == pytest.approx(0.0, abs=1e-12)
        assert min(values) > -1e-12
    (*_, exact), (*_, k1) = (table_of(run).series(f"kl/reference_{kind}")[1] for kind in ("exact", "k1"))
    assert exact > 0.01
    assert k1 == pytest.approx(exact, rel=0.25)  # on 90 tokens of a policy that has become nearly certain


def test_every_fifth_step_keeps_a_group_with_advantages_and_log_probs(run: Run) -> None:
    kept = [row for row in run.rollouts() if row.purpose == "train"]
    assert [row.step for row in kept] == [step for step in range(0, 30, 5) for _ in range(10)]
    assert len({row.prompt for row in kept}) == 3  # not the first group each time
    for start in range(0, len(kept), 10):
        group = kept[start : start + 10]
        assert len({row.prompt for row in group}) == 1
        rewards = torch.tensor([row.reward for row in group])
        wanted = (rewards - rewards.mean()) / (rewards.std() + 1e-5)
        assert [row.advantage for row in group] == pytest.approx(wanted.tolist(), abs=1e-5)
        assert all(len(row.log_probs) == 3 and max(row.log_probs) <= 0.0 for row in group)
    log = (run.folder / "log.txt").read_text().splitlines()
    shown = [line for line in log if "advantage" in line]
    assert len(shown) == len(kept)
    assert [line.rpartition(": ")[2] for line in shown] == [row.response for row in kept]
    assert sum(" s: step " in line and "reward" in line for line in log) == 30
