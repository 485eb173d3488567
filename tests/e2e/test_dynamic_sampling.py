"""Real runs with and without dynamic sampling: the counts are those of the rows that were recorded, group by group."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.results import Run, ShardRow, find_runs

MODULE = """
def reward(response, ground_truth):
    return float(len(response) % 4 == 0)
"""
SCENARIO = """
task: {type: jsonl, train: prompts.jsonl, reward: "rewards_of_e2e:reward", reward_timeout_s: null}
model: {type: preset, preset: tiny, precision: float32, warm_start: false, threads: 1}
engine: {precision: float32}
sampling: {max_tokens: 8}
rollout_batch_size: 32
group_size: 4
steps: 3
optimizer: {learning_rate: 0.001}
evaluation: {every: 3, prompts: 4, examples: 1}
profile: "off"
trackers: []
"""
GENERATORS = """
transport: {type: object_store_numpy}
dynamic_sampling: {attempts: 2}
arms:
  one: {}
  two: {placement.generator.count: 2}
  four: {placement.generator.count: 4}
"""
LAGGED = """
max_lag: 2
replay: {capacity: 16}
transport: {type: object_store_numpy}
placement: {colocated: false, generator: {count: 2, cpus: 0.5}, learner: {cpus: 0.5}}
dynamic_sampling: {attempts: 2}
arms:
  wait: {steps: 6}
  in_flight: {steps: 6, lag_control: in_flight}
  drop: {steps: 6, lag_control: drop}
"""

Group = tuple[int, int, tuple[int, ...], tuple[float, ...]]
"""Prompt, attempt, lengths, rewards."""


def run(folder: Path, more: str) -> dict[str, Run]:
    """Run the scenario with more settings; return its runs by arm."""
    (folder / "modules").mkdir()
    (folder / "modules" / "rewards_of_e2e.py").write_text(MODULE)
    (folder / "dynamic.yaml").write_text(SCENARIO + more)
    rows = [json.dumps({"prompt": f"Write about number {number}", "answer": str(number)}) for number in range(60)]
    (folder / "prompts.jsonl").write_text("\n".join(rows))
    paths = [str(folder / "modules"), str(Path(__file__).parents[2])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "harness", "run", "dynamic.yaml", "--out", "results"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found, damaged = find_runs(folder / "results")
    assert damaged == []
    return {str(run.manifest.arm): run for run in found}


def kept(run: Run) -> dict[int, list[Group]]:
    """What each batch was trained on, by its number."""
    found: dict[int, list[Group]] = {}
    rows = [row for row in run.groups() if isinstance(row, ShardRow) and row.purpose == "train"]
    for row in sorted(rows, key=lambda row: (row.step, row.shard)):
        attempts = row.attempts or (0,) * len(row.prompt_ids)
        found.setdefault(row.step, []).extend(zip(row.prompt_ids, attempts, row.lengths, row.rewards, strict=True))
    return found


def discarded(run: Run) -> dict[int, list[Group]]:
    """What each batch threw away, by its number."""
    found: dict[int, list[Group]] = {step: [] for step in range(len(run.steps))}
    for row in run.discarded():
        found[row.step] += zip(row.prompt_ids, row.attempts, row.lengths, row.rewards, strict=True)
    return found


def flat(groups: list[Group]) -> Iterator[Group]:
    """Those whose rewards are all equal: their advantages are 0."""
    return (group for group in groups if len(set(group[3])) == 1)


@pytest.mark.slow
def test_a_run_with_it_trains_on_fewer_groups_of_equal_rewards(tmp_path: Path) -> None:
    runs = run(tmp_path, "interleaving: run\narms:\n  off: {}\n  on: {dynamic_sampling.attempts: 3}\n")
    off, on = kept(runs["off"]), kept(runs["on"])
    assert [len(list(flat(off[step]))) > len(list(flat(on[step]))) for step in range(3)] == [True] * 3
    for row in runs["on"].steps:
        trained, gone = on[row.step], discarded(runs["on"])[row.step]
        assert len(trained) == 8  # 32 / 4
        assert list(flat(gone)) == gone
        assert all(attempt == 3 for _, attempt, _, _ in flat(trained))  # only what the last attempt gave
        # every place that was sampled again was thrown away once for each attempt before
        assert len(gone) == sum(attempt for _, attempt, _, _ in trained)
        assert len({prompt for prompt, *_ in (*trained, *gone)}) == len(trained) + len(gone)
        figures = {name: metric for name in row.metrics if (metric := row.metric(name)) is not None}
        assert figures["sampling/kept_groups"].value == 8
        assert figures["sampling/discarded_groups"].value == len(gone)
        assert figures["sampling/generated_groups"].value == 8 + len(gone)
        assert figures["sampling/discarded_tokens"].value == sum(sum(lengths) for _, _, lengths, _ in gone)
        assert figures["zero_variance_fraction"].value == len(list(flat(trained))) / 8
        assert figures["reward/total"].count == 4 * (8 + len(gone))  # of all that was sampled
    # Until the first update both policies are the same, and so is what they sample first.
    assert {group for group in (*on[0], *discarded(runs["on"])[0]) if group[1] == 0} == set(off[0])
    ledger = runs["on"].ledger
    assert ledger is not None
    assert ledger.discarded.rollouts == 4 * sum(map(len, discarded(runs["on"]).values()))
    assert (ledger.trained.rollouts, ledger.generated.rollouts) == (96, 96 + ledger.discarded.rollouts)
    assert not any(name.startswith("sampling/") for row in runs["off"].steps for name in row.metrics)


@pytest.mark.slow
def test_one_two_and_four_generators_sample_the_same_again(tmp_path: Path) -> None:
    runs = run(tmp_path, GENERATORS)
    one, two, four = (kept(runs[arm]) for arm in ("one", "two", "four"))
    assert one == two == four
    thrown = [{step: sorted(groups) for step, groups in discarded(runs[arm]).items()} for arm in runs]
    assert thrown[0] == thrown[1] == thrown[2]
    assert sum(map(len, thrown[0].values())) > 0


@pytest.mark.slow
def test_lag_replay_and_in_flight_loads_keep_their_bounds(tmp_path: Path) -> None:
    for arm, found in run(tmp_path, LAGGED).items():
        assert found.status == "completed", arm
        assert found.ledger is not None
        assert found.ledger.discarded.rollouts > 0
        assert max(metric.value for row in found.steps if (metric := row.metric("off_policy/max"))) <= 4  # max_age
