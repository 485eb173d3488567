"""Every scenario of the project loads, resolves to what its text promises, and survives a round trip."""

from functools import cache
from pathlib import Path

import pytest

from harness.scenario.axes import expand
from harness.scenario.load import load_scenario, resolved_yaml, scenario_hash

FOLDER = Path(__file__).resolve().parents[2] / "scenarios"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def shipped(name):
    return load_scenario(FOLDER / f"{name}.yaml")


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is_for_and_survives_a_round_trip(name, tmp_path):
    scenario, text = shipped(name), (FOLDER / f"{name}.yaml").read_text()
    assert scenario.name == name
    assert 10 < len(scenario.description) <= 120
    assert "\n" not in scenario.description
    assert text.startswith("# ")
    assert "What to look at" in text
    path = tmp_path / "scenario.resolved.yaml"
    variants = expand(scenario)
    for variant in variants[:4] + variants[-1:]:  # a sweep has hundreds of a kind
        path.write_text(resolved_yaml(variant.scenario))
        again = load_scenario(path)
        assert again == variant.scenario
        assert scenario_hash(again) == scenario_hash(variant.scenario)
        assert again.arms == again.sweep == {}


def test_the_arms_of_sync_k_are_the_single_scenarios_at_equal_rollouts():
    variants = expand(load_scenario(FOLDER / "sync_k.yaml", ["blocks=1"]))
    assert [(variant.name, variant.scenario.epochs_per_batch) for variant in variants] == [
        ("k1", 1),
        ("k2", 2),
        ("k4", 4),
        ("k8", 8),
    ]
    shorter = {key: getattr(variants[0].scenario, key) for key in ("steps", "evaluation", "model", "engine")}
    singles = [shipped(f"sync_k{k}").model_copy(update=shorter) for k in (1, 2, 4, 8)]
    assert [scenario_hash(variant.scenario) for variant in variants] == [scenario_hash(single) for single in singles]
    assert len({variant.scenario.num_rollouts for variant in variants}) == 1


def test_the_arms_of_kl_monitoring_differ_in_the_coefficient_only():
    variants = expand(shipped("kl_monitoring"))
    coefficients = {variant.name: variant.scenario.loss.kl.coefficient for variant in variants}
    assert coefficients == {"free": 0.0, "kl_0.2": 0.2, "kl_1": 1.0}
    free = variants[0].scenario.loss.kl
    assert free.monitor
    assert [variant.scenario.loss.kl for variant in variants] == [
        free.model_copy(update={"coefficient": coefficient}) for coefficient in coefficients.values()
    ]


def test_the_arms_of_schedules_differ_in_the_schedule_only():
    scenarios = [variant.scenario for variant in expand(load_scenario(FOLDER / "schedules.yaml", ["sweep.seed=[0]"]))]
    assert [scenario.optimizer.schedule for scenario in scenarios] == ["constant", "linear", "cosine"]
    assert {(scenario.num_optimizer_steps, scenario.warmup_optimizer_steps) for scenario in scenarios} == {(24, 3)}
    usual = {"schedule": "constant", "min_learning_rate_ratio": 0.0}
    first, *others = [scenario.optimizer.model_copy(update=usual) for scenario in scenarios]
    assert others == [first, first]


def test_the_arms_of_loss_types_are_the_three_losses_on_policy():
    variants = expand(shipped("loss_types"))
    losses = [variant.scenario.loss.type for variant in variants]
    assert losses == ["no_baseline", "reinforce_with_baseline", "grpo_clip"]
    assert all(variant.scenario.on_policy and not variant.scenario.allow_uncorrected for variant in variants)


SUMS = [
    "task={type: arithmetic}",
    "model={type: preset, preset: maths, threads: 1}",
    "rollout_batch_size=64",
    "gradient_accumulation_steps=1",
    "sampling.max_tokens=64",
    "evaluation.prompts=64",
]


@pytest.mark.parametrize(
    ("name", "runs"), [("maths_learning_rates", 4), ("maths_ablations", 4), ("maths_off_policy", 9)]
)
def test_the_sweeps_on_maths_are_valid_on_made_up_sums_too(name, runs):
    """With the settings of docs/maths.md."""
    for variants in (expand(shipped(name)), expand(load_scenario(FOLDER / f"{name}.yaml", SUMS))):
        assert len({variant.name for variant in variants}) == runs
    assert {variant.scenario.task.type for variant in variants} == {"arithmetic"}
    page = (FOLDER.parent / "docs" / "maths.md").read_text()
    assert all(setting in page for setting in SUMS)


def test_the_ablations_on_maths_change_one_setting_each():
    starter, *others = expand(shipped("maths_ablations"))
    assert [variant.name for variant in others] == ["no_baseline", "constant_length", "without_std"]
    plain = starter.scenario.model_dump()
    for variant in others:
        changed = {key for key, value in variant.scenario.model_dump().items() if value != plain[key]}
        assert changed in ({"loss"}, {"advantage"})


def test_vllm_and_the_policy_have_a_gpu_each():
    scenario = shipped("maths_two_gpus")
    assert (scenario.engine.type, scenario.engine.gpu_memory_utilization) == ("vllm", 0.85)
    assert (scenario.placement.generator.gpus, scenario.placement.learner.gpus) == (1, 1)
    assert not scenario.placement.colocated
    assert (scenario.task.type, scenario.is_synchronous) == ("maths", True)


def test_quickstart_is_what_the_readme_promises():
    scenario = shipped("quickstart")
    assert (scenario.prompts_per_batch, scenario.group_size, scenario.optimizer_steps_per_batch) == (8, 8, 1)
    assert (scenario.model.precision, scenario.engine.precision) == ("float32", "float32")
    assert (scenario.sampling.max_tokens, scenario.evaluation.every) == (32, 10)


def test_the_sorting_grid_is_every_combination_ten_times():
    scenarios = [variant.scenario for variant in expand(shipped("sorting_grid"))]
    combinations = {(s.task.reward, s.advantage.delta, s.loss.type) for s in scenarios}
    assert (len(scenarios), len(combinations)) == (300, 5 * 3 * 2)
    assert {s.seed for s in scenarios} == set(range(10))
    # the source's 100 epochs of 10 inner steps on 3 prompts with 10 responses each, Adam without clipping
    assert {(s.steps, s.epochs_per_batch, s.prompts_per_batch, s.group_size) for s in scenarios} == {(100, 10, 3, 10)}
    optimizers = {(s.optimizer.learning_rate, s.optimizer.betas, s.optimizer.max_grad_norm) for s in scenarios}
    assert optimizers == {(1e-3, (0.9, 0.999), None)}
