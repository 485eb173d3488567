"""What decides between arms: named by the scenario, and measured in every one of them."""

from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario, load_side_by_side

TWO_ARMS = "arms: {a: {}, b: {epochs_per_batch: 2}}\n"


def written(tmp_path: Path, text: str, name: str = "trial") -> Path:
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    return path


def test_the_step_decides_where_nothing_is_said(tmp_path: Path) -> None:
    assert load_scenario(written(tmp_path, "steps: 4\n")).endpoint == "seconds_per_step"


def test_every_run_keeps_the_endpoint_so_that_its_folder_explains_itself(tmp_path: Path) -> None:
    runs = expand(load_scenario(written(tmp_path, f"endpoint: reward_at_rollouts\nblocks: 6\n{TWO_ARMS}")))
    assert {run.scenario.endpoint for run in runs} == {"reward_at_rollouts"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("endpoint: weight_sync_seconds\n", "transport.type in_process, which moves no weights"),
        (
            "endpoint: weight_sync_seconds\narms: {a: {transport: {type: nixl}}, b: {}}\n",
            "in `b`: endpoint is weight_sync_seconds",
        ),
        (f"endpoint: reward_at_rollouts\n{TWO_ARMS}", "reward_at_rollouts with one seed"),
        (
            "endpoint: reward_at_rollouts\nblocks: 6\narms: {a: {}, b: {steps: 30}}\n",
            "a samples 3840 rollouts, b 1920",  # 60 steps by default, of 64 rollouts each, against 30
        ),
        (
            "endpoint: reward_at_rollouts\nmax_lag: 1\nlag_control: drop\nplacement: {colocated: false}\n",
            "endpoint is reward_at_rollouts, must be .* with lag_control drop",
        ),
        (
            "endpoint: weight_sync_seconds\ntransport_sweep: {}\n",
            "which neither trains nor has arms",
        ),
        ("arms: {a: {endpoint: reward_at_rollouts}, b: {}}\n", "`endpoint` cannot differ between the runs"),
        ("endpoint: fastest\n", "valid: seconds_per_step, weight_sync_seconds, reward_at_rollouts"),
    ],
)
def test_an_endpoint_that_is_not_measured_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_scenario(written(tmp_path, text))


def test_a_single_run_of_such_an_experiment_can_be_repeated(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, "endpoint: reward_at_rollouts\n"))
    assert len(expand(scenario)) == 1


def test_seeds_of_a_sweep_will_do(tmp_path: Path) -> None:
    text = f"endpoint: reward_at_rollouts\nsweep: {{seed: [0, 1, 2]}}\n{TWO_ARMS}"
    assert len(expand(load_scenario(written(tmp_path, text)))) == 6


def test_side_by_side_the_first_scenario_says_what_decides(tmp_path: Path) -> None:
    one = written(tmp_path, "endpoint: reward_at_rollouts\n", "one")
    other = written(tmp_path, "epochs_per_batch: 2\n", "other")
    scenario = load_side_by_side([str(one), str(other)])
    assert (scenario.endpoint, scenario.blocks) == ("reward_at_rollouts", 10)
    assert "endpoint" not in scenario.arms["other"]


@pytest.mark.parametrize(
    ("name", "endpoint"),
    [
        ("rdt_nixl", "weight_sync_seconds"),
        ("async_lag1", "seconds_per_step"),
        ("sync_k", "seconds_per_step"),
        ("replay_vs_baseline", "reward_at_rollouts"),
    ],
)
def test_the_shipped_comparisons_have_blocks_for_a_verdict_on_their_endpoint(name: str, endpoint: str) -> None:
    """As shipped before, each of them ran a single block or three seeds, which can reach no verdict."""
    scenario = load_scenario(name)
    assert scenario.endpoint == endpoint
    assert scenario.blocks >= 6
    assert len(scenario.arms) >= 2
