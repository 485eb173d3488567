"""Blocks: every arm once in each, with a seed of its own; arms made of whole scenarios; what decides between them."""

from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.core.experiment import NAMING
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario, load_side_by_side
from harness.scenario.schema import Scenario

TWO_ARMS = "arms: {a: {}, b: {epochs_per_batch: 2}}\n"


def written(tmp_path: Path, text: str, name: str = "trial") -> Path:
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    return path


def test_every_arm_runs_once_in_each_block_and_shares_its_seed(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, "seed: 5\nblocks: 3\narms: {a: {}, b: {group_size: 4}}\n"))
    runs = expand(scenario)
    assert [(run.block, run.arm, run.scenario.seed) for run in runs] == [
        (0, "a", 5), (0, "b", 5), (1, "a", 6), (1, "b", 6), (2, "a", 7), (2, "b", 7),
    ]  # fmt: skip
    assert [run.name for run in runs[:3]] == ["a,block=0", "b,block=0", "a,block=1"]
    assert [run.label for run in runs[:2]] == ["a", "b"]
    assert [run.position for run in runs] == [0, 1, 2, 3, 4, 5]
    assert {run.scenario.blocks for run in runs} == {1}  # each of them can be repeated on its own
    assert [run.scenario.group_size for run in runs[:2]] == [8, 4]


def test_block_numbers_are_padded_so_that_folders_sort(tmp_path: Path) -> None:
    runs = expand(load_scenario(written(tmp_path, "blocks: 11\n")))
    assert [run.name for run in runs][:2] == ["block=00", "block=01"]
    assert runs[-1].name == "block=10"


def test_one_block_is_an_ordinary_run(tmp_path: Path) -> None:
    (run,) = expand(load_scenario(written(tmp_path, "blocks: 1\n")))
    assert (run.block, run.name) == (None, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blocks: 2\nsweep: {seed: [0, 1]}\n", "blocks is 2, and `seed` is set by `sweep`"),
        ("blocks: 2\narms: {a: {seed: 1}, b: {}}\n", "blocks is 2, and `seed` is set by `arms.a`"),
        ("blocks: 2\narms: {a: {blocks: 3}, b: {}}\n", "`blocks` cannot differ between the runs"),
        ("blocks: 0\n", "`blocks` is 0, must be at least 1"),
        ("blocks: 3\nseed: 4294967294\n", "go beyond the largest seed, 4294967295"),
        ("blocks: 1000\nsweep: {steps: [1,2,3,4,5,6,7,8,9,10,11]}\n", "make 11000 runs, must be at most 10000"),
        ("stop_at_half_width: 0.01\nblocks: 9\narms: {a: {}, b: {}}\n", "stop_at_half_width is 0.01 with blocks 9"),
        ("stop_at_half_width: 0.01\nblocks: 12\n", "stop_at_half_width is 0.01 with blocks 12 and 1 runs"),
        ("transport_sweep: {}\nblocks: 2\n", "blocks is 2 with a transport_sweep"),
        (f"endpoint: weight_sync_seconds\n{TWO_ARMS}", "transport.type in_process, which moves no weights"),
        (
            "endpoint: weight_sync_seconds\narms: {a: {transport: {type: nixl}}, b: {}}\n",
            "in `b`: endpoint is weight_sync_seconds",
        ),
        (f"endpoint: reward_at_rollouts\n{TWO_ARMS}", "reward_at_rollouts with one seed"),
        (
            "endpoint: reward_at_rollouts\nblocks: 6\narms: {a: {}, b: {steps: 30}}\n",
            "a samples 3840 rollouts, b 1920",  # 60 steps by default, of 64 rollouts each, against 30
        ),
        ("arms: {a: {endpoint: reward_at_rollouts}, b: {}}\n", "`endpoint` cannot differ between the runs"),
        ("endpoint: fastest\n", "valid: seconds_per_step, weight_sync_seconds, reward_at_rollouts"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_scenario(written(tmp_path, text))


def test_scenarios_side_by_side_become_arms_that_equal_them(tmp_path: Path) -> None:
    one = written(tmp_path, "steps: 9\nseed: 3\nengine: {type: native, max_batch: 64}\n", "one")
    other = written(tmp_path, "steps: 9\nengine: {type: vllm}\nloss: {kl: {monitor: true}}\n", "other")
    scenario = load_side_by_side([str(one), str(other)], settings={"blocks": 2})
    assert (scenario.name, list(scenario.arms), scenario.blocks) == ("one-vs-other", ["one", "other"], 2)
    runs = {run.name: run.scenario for run in expand(scenario)}
    assert list(runs) == ["one,block=0", "other,block=0", "one,block=1", "other,block=1"]
    for name, path in (("one", one), ("other", other)):
        alone, arm = load_scenario(path), runs[f"{name},block=1"]
        assert arm.seed == 4  # the first scenario's, plus the block
        assert _content(arm) == _content(alone)


def _content(scenario: Scenario) -> dict[str, object]:
    experiment = {*NAMING, "seed", "arms", "sweep", "blocks"}
    return {key: value for key, value in scenario.model_dump(mode="json").items() if key not in experiment}


def test_a_delay_of_the_first_scenario_is_not_inherited_by_the_second(tmp_path: Path) -> None:
    slow = written(tmp_path, "faults: {delays: {update: 0.5, score: 0.1}}\n", "slow")
    other = written(tmp_path, "faults: {delays: {generate: 0.2}}\n", "other")
    runs = expand(load_side_by_side([str(slow), str(other)]))
    assert runs[1].scenario.faults.delays == {"update": 0.0, "score": 0.0, "generate": 0.2}


def test_the_same_scenario_twice_gets_two_names(tmp_path: Path) -> None:
    path = str(written(tmp_path, "steps: 5\n"))
    assert list(load_side_by_side([path, path]).arms) == ["trial", "trial-2"]


def test_the_baseline_again_is_an_arm_of_its_own(tmp_path: Path) -> None:
    one, other = written(tmp_path, "steps: 5\n", "one"), written(tmp_path, "steps: 5\ngroup_size: 4\n", "other")
    assert load_side_by_side([str(one)], again=True).arms == {"one": {}, "again": {}}
    scenario = load_side_by_side([str(one), str(other)], again=True)
    assert list(scenario.arms) == ["one", "other", "again"]
    assert scenario.arms["again"] == scenario.arms["one"] == {}
    arms = written(tmp_path, "arms: {a: {}, again: {}}\n", "arms")
    with pytest.raises(UserError, match="has an arm called 'again' already"):
        load_side_by_side([str(arms)], again=True)


def test_blocks_are_the_scenarios_own_or_else_ten(tmp_path: Path) -> None:
    plain, blocks = written(tmp_path, "steps: 5\n", "plain"), written(tmp_path, "blocks: 12\n", "blocks")
    assert load_side_by_side([str(plain)]).blocks == 10
    assert load_side_by_side([str(plain)], ["blocks=30"]).blocks == 30
    assert load_side_by_side([str(blocks)]).blocks == 12
    assert load_side_by_side([str(blocks)], settings={"blocks": 3}).blocks == 3


def test_a_scenario_with_arms_is_benched_alone(tmp_path: Path) -> None:
    arms = written(tmp_path, "arms: {a: {}, b: {group_size: 4}}\n", "arms")
    plain = written(tmp_path, "steps: 5\n", "plain")
    assert list(load_side_by_side([str(arms)], settings={"blocks": 2}).arms) == ["a", "b"]
    with pytest.raises(UserError, match=r"arms has arms of its own[\s\S]*bench it alone"):
        load_side_by_side([str(plain), str(arms)])


def test_overrides_are_laid_over_every_scenario(tmp_path: Path) -> None:
    one, other = written(tmp_path, "steps: 5\n", "one"), written(tmp_path, "steps: 6\n", "other")
    runs = expand(load_side_by_side([str(one), str(other)], ["steps=2"], {"blocks": 1}))
    assert [run.scenario.steps for run in runs] == [2, 2]


def test_every_run_keeps_the_endpoint_so_that_its_folder_explains_itself(tmp_path: Path) -> None:
    assert load_scenario(written(tmp_path, "steps: 4\n")).endpoint == "seconds_per_step"
    (run,) = expand(load_scenario(written(tmp_path, "endpoint: reward_at_rollouts\n")))  # one of them, repeated
    assert run.scenario.endpoint == "reward_at_rollouts"
    runs = expand(load_scenario(written(tmp_path, f"endpoint: reward_at_rollouts\nblocks: 6\n{TWO_ARMS}")))
    assert [run.scenario.endpoint for run in runs] == ["reward_at_rollouts"] * 12
    sweep = f"endpoint: reward_at_rollouts\nsweep: {{seed: [0, 1, 2]}}\n{TWO_ARMS}"
    assert len(expand(load_scenario(written(tmp_path, sweep)))) == 6


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
