"""Learners of two ranks in real runs: what they learn, with lag and replay too, and how a rank's death ends the run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harness.core.errors import RunStopped
from harness.core.trace import RecordingTracer, Stage
from harness.results import Run, find_runs
from harness.run.factory import PartsFactory
from harness.run.parts import RunningParts
from harness.scenario.schema import Scenario
from harness.simulate.recorded_run import RecordedRun, Work
from tests.e2e.conftest import ended, run_all, scenario_of, wait_until
from tests.run_folders import loop_accounts

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray")

TINY = """
model: {type: preset, preset: tiny, warm_start: false, threads: 1}
sampling: {max_tokens: 8}
rollout_batch_size: 12
group_size: 4
epochs_per_batch: 2
steps: 3
optimizer: {learning_rate: 0.001}
loss: {kl: {coefficient: 0.1}}
evaluation: {every: 3, prompts: 2, examples: 1}
engine: {type: native, mismatch_bound: 1.0e-4}
transport: {type: shared_memory}
"""


def by_name(runs: list[Run]) -> dict[str, Run]:
    return {run.folder.name: run for run in runs}


def _working_s(stages_s: Mapping[str, float]) -> float:
    return sum(seconds for stage, seconds in stages_s.items() if not Stage(stage).is_wait)


def assert_lanes_close(run: Run) -> None:
    """Those of both ranks; what they do at the same time counts once in a step's stages."""
    accounts, ranks = loop_accounts(run), ("learner/0", "learner/1")
    for lane in ranks:
        account = accounts[lane]
        assert sum(account.stages_ns.values()) + account.unattributed_ns == account.wall_ns
        assert account.unattributed_ns < 0.05 * account.wall_ns, lane  # 0.01 on a machine with nothing else to do
    for row in run.steps:
        both = [_working_s(row.lanes[lane]) for lane in ranks]
        others = sum(_working_s(row.lanes[lane]) for lane in ("generator", "scorer"))
        assert max(both) - 1e-6 <= _working_s(row.stages_s) - others < sum(both)
        assert [rank.tokens > 0 for rank in row.ranks] == [True, True]
    calls = [call.work for call in RecordedRun(run).calls()[0] if call.lane == "learner"]
    assert [calls.count(work) for work in (Work.PUBLISH, Work.UPDATE)] == [4, 3]  # one of each for the loop


@pytest.mark.slow
def test_two_ranks_learn_what_one_process_learns(factory: PartsFactory, tmp_path: Path) -> None:
    """Three groups for two ranks; weights proven at each sync by checksum and log-probs."""
    arms = """
interleaving: run
arms:
  one: {}
  ddp: {placement.learner.ranks: 2, learner.sharding: ddp}
  fsdp2: {placement.learner.ranks: 2, learner.sharding: fsdp2, learner.publish: rank0}
"""
    runs = by_name(run_all(scenario_of(tmp_path, TINY + arms), tmp_path / "out", factory))
    one = runs["one"]
    trained = load_file(one.folder / "policy" / "model.safetensors")
    for name in ("ddp", "fsdp2"):
        run = runs[name]
        assert_lanes_close(run)
        assert [row.version for row in run.steps] == [1, 2, 3]
        for row, wanted in zip(run.steps, one.steps, strict=True):
            assert row.metric("reward/total") == wanted.metric("reward/total")
            for metric in ("loss", "grad_norm", "token_entropy", "kl/penalty"):
                found, expected = row.metric(metric), wanted.metric(metric)
                assert found is not None
                assert expected is not None
                assert found.value == pytest.approx(expected.value, rel=1e-3, abs=1e-5), metric
        saved = load_file(run.folder / "policy" / "model.safetensors")
        assert saved.keys() == trained.keys()
        for tensor_name, tensor in saved.items():
            torch.testing.assert_close(tensor, trained[tensor_name], rtol=0, atol=1e-4)


COMBINATIONS = """
interleaving: run
loss: {proximal: recompute, importance: {mode: tis}}
placement: {colocated: false, learner: {ranks: 2, cpus: 0.5}, generator: {cpus: 0.5}}
learner: {sharding: fsdp2}
arms:
  k4_lag_replay_nixl:
    epochs_per_batch: 4
    max_lag: 2
    replay: {capacity: 6, sample_groups: 5}
    transport: {type: nixl}
  in_flight_numpy:
    max_lag: 2
    lag_control: in_flight
    transport: {type: object_store_numpy}
    learner: {sharding: ddp, publish: per_tensor}
"""


@pytest.mark.slow
def test_two_ranks_with_other_loops_and_transports(factory: PartsFactory, tmp_path: Path) -> None:
    """Each weight sync is proven by checksum, and by log-probs of Learner and engine for the same tokens."""
    text = TINY.replace("loss: {kl: {coefficient: 0.1}}\n", "") + COMBINATIONS
    runs = by_name(run_all(scenario_of(tmp_path, text), tmp_path / "out", factory))
    assert set(runs) == {"k4_lag_replay_nixl", "in_flight_numpy"}
    for name, run in runs.items():
        assert run.status == "completed", name
        assert [row.version for row in run.steps] == [1, 2, 3]
        groups = 5 if name == "k4_lag_replay_nixl" else 3
        assert [sum(row.lags.values()) for row in run.steps[1:]] == [4 * groups] * 2, name
        assert run.steps[-1].optimizer_steps == {"in_flight_numpy": 2}.get(name, 4), name
        balance = run.steps[-1].metric("balance/tokens_max_over_mean")
        assert balance is not None
        assert 1 <= balance.value <= 2, name
        assert (run.folder / "policy" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "said"), [(signal.SIGKILL, "learner/1 died"), (signal.SIGSTOP, "stall_after_s")])
def test_a_rank_that_is_killed_or_stopped_ends_the_run_and_every_process(
    number: signal.Signals, said: str, factory: PartsFactory, tmp_path: Path
) -> None:
    pids: dict[str, int] = {}

    def build(scenario: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        parts = factory(scenario, tracer, should_stop)
        pids.update(parts.processes())

        def has_made_a_step() -> bool:
            return any('"kind":"step"' in path.read_text() for path in (tmp_path / "out").glob("*/*/steps.jsonl"))

        def strike() -> None:
            wait_until(has_made_a_step, "a training step")
            os.kill(pids["learner/1"], number)

        threading.Thread(target=strike, daemon=True).start()
        return parts

    more = "placement: {learner: {ranks: 2}}\nlearner: {sharding: ddp}\nfaults: {stall_after_s: 40}\n"
    scenario = scenario_of(tmp_path, TINY + more, changes=["steps=100000"])
    with pytest.raises(RunStopped, match=said):
        run_all(scenario, tmp_path / "out", build)
    (run,), _ = find_runs(tmp_path / "out")
    assert (run.status, len(run.steps) > 0) == ("failed", True)
    assert set(pids) == {"learner/0", "learner/1", "generator", "scorer"}
    wait_until(lambda: ended(pids.values()), "processes ended", 10)
    if number == signal.SIGSTOP:
        log = (run.folder / "log.txt").read_text()
        for rank in range(2):
            assert f"stacks of learner/{rank} (process " in log
            last = log.partition(f"learner/{rank} last: ")[2].partition("\n")[0]
            assert "agreement on the plan of training step" in last
