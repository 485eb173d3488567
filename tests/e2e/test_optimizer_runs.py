"""Real runs of the sorting toy with schedules, shuffled minibatches and an averaged reference policy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harness.results import Run, find_runs
from harness.run.experiment import run_scenario
from harness.scenario.load import load_scenario

SHORT = (
    *("steps=5", "evaluation.every=5", "trackers=[]", "profile='off'"),
    *("loss.type=naive", "loss.cliprange=null", "advantage.delta=rewards"),  # so that every batch moves the policy
)


def run_arms(out: Path, arms: str, *overrides: str) -> dict[str, Run]:
    scenario = load_scenario("sorting", [*SHORT, *overrides, f"arms={arms}"])
    assert run_scenario(scenario, out, quiet=True, show=lambda folder: None) == 0
    runs, damaged = find_runs(out)
    assert damaged == []
    return {str(run.manifest.arm): run for run in runs}


def means(run: Run, name: str) -> list[float]:
    return [row.metrics[name]["mean"] for row in run.steps]


def policy(run: Run) -> torch.Tensor:
    weights = load_file(run.folder / "policy" / "model.safetensors")
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


def test_the_learning_rate_of_each_training_step_is_logged(tmp_path: Path) -> None:
    """Five steps of two passes are 10 optimizer steps, a fifth of them warm-up: 0 and 1/2, whose mean is 1/4.

    Then 8 are left, p = 0/8, 1/8 | 2/8, 3/8 | 4/8, 5/8 | 6/8, 7/8. The old code logged no learning rate.
    """
    arms = "{constant: {}, linear: {optimizer.schedule: linear}, cosine: {optimizer.schedule: cosine}}"
    settings = ("epochs_per_batch=2", "optimizer.warmup_ratio=0.2", "optimizer.learning_rate=0.01")
    runs = run_arms(tmp_path, arms, *settings)
    rates = {arm: [rate / 0.01 for rate in means(run, "learning_rate")] for arm, run in runs.items()}
    assert rates["constant"] == pytest.approx([0.25, 1, 1, 1, 1])
    assert rates["linear"] == pytest.approx([0.25, 0.9375, 0.6875, 0.4375, 0.1875])
    # (1 + cos) / 2 of 0, 22.5 | 45, 67.5 | 90, 112.5 | 135, 157.5 degrees, whose cosines are 1, 0.9239, 0.7071, 0.3827,
    # 0, -0.3827, -0.7071, -0.9239: (1 + 0.96194) / 2, (0.85355 + 0.69134) / 2, (0.5 + 0.30866) / 2, ...
    assert rates["cosine"] == pytest.approx([0.25, 0.98097, 0.77245, 0.40433, 0.09225], abs=1e-5)
    policies = [policy(run) for run in runs.values()]
    assert not torch.equal(policies[0], policies[1])
    assert not torch.equal(policies[1], policies[2])


def test_shuffled_minibatches_are_the_same_in_every_run_of_a_seed(tmp_path: Path) -> None:
    arms = "{shuffled: {}, again: {}, in_order: {shuffle_minibatches: false}, whole: {minibatches_per_epoch: 1}}"
    runs = run_arms(tmp_path, arms, "minibatches_per_epoch=3", "epochs_per_batch=2")
    assert {arm: run.steps[0].optimizer_steps for arm, run in runs.items()} == {
        "shuffled": 6,
        "again": 6,
        "in_order": 6,
        "whole": 2,
    }
    assert torch.equal(policy(runs["shuffled"]), policy(runs["again"]))
    assert not torch.equal(policy(runs["shuffled"]), policy(runs["in_order"]))


def test_an_averaged_reference_is_between_the_first_and_the_current_policy(tmp_path: Path) -> None:
    """No KL in the loss, so that all arms have the same policies and differ in what they are compared with."""
    arms = (
        "{frozen: {}, "
        "reclone: {loss.kl.reference: reclone, loss.kl.reclone_every: 1}, "
        "polyak: {loss.kl.reference: polyak, loss.kl.alpha: 0.3}}"
    )
    runs = run_arms(tmp_path, arms, "loss.kl.monitor=true")
    first = policy(runs["frozen"])
    assert all(torch.equal(first, policy(run)) for run in runs.values())
    kl = {arm: means(run, "kl/reference_k3") for arm, run in runs.items()}
    for step in range(1, 5):
        assert kl["reclone"][step] == pytest.approx(0.0, abs=1e-6)
        assert kl["reclone"][step] < kl["polyak"][step] < kl["frozen"][step]
