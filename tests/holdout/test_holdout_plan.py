"""Which runs an examination accepts: measured, complete, as planned, and on one side only."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.results import RunFolder
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario, resolved_yaml
from tests.holdout.plan import Measured, Plan, load_plan, read_measured

FOLDER = Path(__file__).parent
PLAN = """
chosen: 2026-11-21
fit: learn
held_out: unseen
transport_costs: sweep
tiers:
  inside: {what: between, arms: [base, big], bound: 0.05}
  strategy: {what: lag, arms: [lag1], bound: 0.1}
bounds: {stage: 0.1, coverage: [0.8, 0.97], kendall_tau: 0.8}
whatif: {from: base, changes: {big: [rollout_batch_size=128]}}
"""
LEARN = """extends: sync_k1
steps: 4
placement: {colocated: false}
arms: {small: {}, wide: {rollout_batch_size: 96}}
"""
UNSEEN = """extends: sync_k1
steps: 4
placement: {colocated: false}
arms: {base: {}, big: {rollout_batch_size: 128}, lag1: {max_lag: 1}}
"""
Make = Callable[..., RunFolder]


@pytest.fixture
def plan(make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A plan with its two scenarios in the current folder, and a run of its sweep; ``sync_k1`` is the project's."""
    make_run(scenario="sweep", experiment="20261121-090000")
    for name, text in (("scenarios/learn", LEARN), ("scenarios/unseen", UNSEEN), ("exam/plan", PLAN)):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return load_plan(tmp_path / "exam" / "plan.yaml")


@pytest.fixture
def write(make_run: Make, tmp_path: Path) -> Callable[..., None]:
    """Write every arm of a scenario once, or those named."""

    def written(scenario: str, experiment: str, only: tuple[str, ...] = (), **fields: object) -> None:
        for variant in expand(load_scenario(scenario)):
            if not only or variant.arm in only:
                text = resolved_yaml(variant.scenario)
                make_run(scenario=scenario, experiment=experiment, arm=variant.arm, settings=text, **fields)

    return written


def read(plan: Plan, results: Path, fit: str = "learn") -> Measured:
    paths = {"fit": results / fit, "held": results / "unseen", "syncs": results / "sweep"}
    return read_measured(plan, load_scenario("unseen"), **paths)


def test_runs_are_sorted_by_arm_and_repeat(plan: Plan, write: Callable[..., None], tmp_path: Path) -> None:
    write("learn", "20261121-100000")
    write("unseen", "20261121-120000", seed=1)
    write("unseen", "20261121-110000", seed=0)
    measured = read(plan, tmp_path / "results")
    assert [run.manifest.arm for run in measured.fitted] == ["small", "wide"]
    assert list(measured.held_out) == ["base", "big", "lag1"]
    assert [run.manifest.seed for run in measured.held_out["big"]] == [0, 1]
    assert measured.scenarios["big"].rollout_batch_size == 128


def test_an_arm_that_was_not_measured_is_named(plan: Plan, write: Callable[..., None], tmp_path: Path) -> None:
    write("learn", "20261121-100000")
    write("unseen", "20261121-110000", only=("base",))
    with pytest.raises(UserError, match="no run of big, lag1, which the plan wants predicted"):
        read(plan, tmp_path / "results")


def test_a_run_on_both_sides_is_refused_even_as_a_copy(plan: Plan, write: Callable[..., None], tmp_path: Path) -> None:
    """The copy was renamed into the fitted scenario, so that its name gives nothing away."""
    write("unseen", "20261121-110000")
    held = tmp_path / "results" / "unseen"
    copied = shutil.copytree(held, tmp_path / "results" / "learn")
    for path in copied.rglob("manifest.json"):
        path.write_text(path.read_text().replace('"scenario": "unseen"', '"scenario": "learn"'))
    with pytest.raises(UserError, match="this held-out run is among the fitted ones"):
        read(plan, tmp_path / "results")
    with pytest.raises(UserError, match=r"of the scenario 'unseen', and the plan says 'learn'(.|\n)*--fit"):
        read(plan, tmp_path / "results", fit="unseen")


def test_a_simulated_run_is_refused(plan: Plan, write: Callable[..., None], tmp_path: Path) -> None:
    write("learn", "20261121-100000")
    write("unseen", "20261121-110000")
    manifest = next((tmp_path / "results" / "unseen").rglob("manifest.json"))
    manifest.write_text(manifest.read_text().replace('"simulated": null', '"simulated": "my-machine"'))
    with pytest.raises(UserError, match="this run was simulated, with the machine profile 'my-machine'"):
        read(plan, tmp_path / "results")


def test_a_run_that_was_cut_short_is_refused(plan: Plan, write: Callable[..., None], tmp_path: Path) -> None:
    write("learn", "20261121-100000", status="interrupted")
    write("unseen", "20261121-110000")
    with pytest.raises(UserError, match=r"this run is not complete \(interrupted\)"):
        read(plan, tmp_path / "results")


def test_a_run_with_other_settings_is_refused(plan: Plan, write: Callable[..., None], tmp_path: Path) -> None:
    write("learn", "20261121-100000")
    write("unseen", "20261121-110000")
    (tmp_path / "scenarios" / "unseen.yaml").write_text(UNSEEN.replace("128", "160"))
    with pytest.raises(UserError, match="this run has `rollout_batch_size` 128, and the scenario says 160"):
        read(plan, tmp_path / "results")


def test_a_run_of_other_versions_is_refused(plan: Plan, write: Callable[..., None], tmp_path: Path) -> None:
    write("learn", "20261121-100000")
    write("unseen", "20261121-110000", versions={"python": "3.11.7", "torch": "2.14.0"})
    with pytest.raises(UserError, match=r"this run used torch 2\.14\.0, and the fitted ones 2\.13\.0"):
        read(plan, tmp_path / "results")


def test_a_description_may_change(plan: Plan, write: Callable[..., None], tmp_path: Path) -> None:
    write("learn", "20261121-100000")
    write("unseen", "20261121-110000")
    (tmp_path / "scenarios" / "unseen.yaml").write_text("description: in other words\n" + UNSEEN)
    assert set(read(plan, tmp_path / "results").held_out) == {"base", "big", "lag1"}


def test_the_tier_strategy_holds_its_promise(plan: Plan, write: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "scenarios" / "learn.yaml").write_text(LEARN.replace("wide: {", "wide: {max_lag: 1, "))
    write("learn", "20261121-100000")
    write("unseen", "20261121-110000")
    with pytest.raises(UserError, match="has a lag or replay, and the tier `strategy` promises synchronous ones alone"):
        read(plan, tmp_path / "results")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("held_out: unseen", "held_out: learn", "`fit` and `held_out` are both 'learn'"),
        ("bound: 0.1}", "bound: 0.1, without: {big: small}}", "`tiers.strategy.without` names 'big'"),
        ("from: base", "from: other", "`whatif` names 'other'"),
        ("bound: 0.05", "bound: high", "`tiers.inside.bound` is text 'high'"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(
    plan: Plan, tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "exam" / "plan.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=message):
        load_plan(path)


def test_the_committed_plan_is_the_one_that_was_dated() -> None:
    """Arms, tiers and bounds as they were written down on 2026-11-21, before anything was measured."""
    plan = load_plan(FOLDER / "plan.yaml")
    assert (plan.chosen, plan.fit, plan.held_out) == ("2026-11-21", "calibration", "holdout")
    assert {name: (tier.arms, tier.bound) for name, tier in plan.tiers.items()} == {
        "inside": (("base", "batch_48", "k3", "groups_of_4", "tiny_96", "k4"), 0.05),
        "strategy": (("lag1", "lag2_k2", "replay", "lag1_replay", "drop"), 0.10),
        "transport": (("nixl", "gloo", "disk"), 0.10),
        "size": (("course_48", "groups_of_4", "k3"), 0.15),
    }
    assert plan.tiers["size"].without == {"course_48": "course", "groups_of_4": "small", "k3": "small"}
    assert (plan.bounds.stage, plan.bounds.coverage, plan.bounds.kendall_tau) == (0.10, (0.80, 0.97), 0.8)
    assert set(plan.arms) == set(load_scenario(FOLDER / "holdout.yaml").arms)
