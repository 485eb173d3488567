"""Parts that die or hang in real runs: what the run makes of it, what it says, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from harness.core.errors import RunStopped, UserError
from harness.core.trace import RecordingTracer, Stage, Tracer
from harness.results import Run, find_runs
from harness.run.actors.deaths import DEATHS
from harness.run.actors.part import (
    LEAST_START_S,
    ActorPart,
    ActorSpec,
    ProcessSetup,
    close_parts,
    in_thread,
    start_limit_s,
    wait_until_built,
)
from harness.run.factory import PartsFactory
from harness.run.handles import LearnerHandle
from harness.run.parts import RunningParts
from harness.scenario.schema import Scenario
from tests.e2e.conftest import Traces, ended, run_all, scenario_of, wait_until
from tests.stand_ins.simulated_parts import build_simulated_parts

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray")

STEPS = 12
BATCH = 16
ENDED = "its process ended without a word: it was killed, crashed or ran out of memory"
LEARNER_DIED = f"the learner died: {ENDED}; what it had learnt since the last saved policy is lost"

PACED = f"""
model: {{type: paced, update_s: 0.2, megabytes: 2, tensors: 5}}
engine: {{type: paced, generate_s: 0.3}}
placement: {{colocated: false, generator: {{cpus: 0.5}}, learner: {{cpus: 0.5}}}}
max_lag: 1
steps: {STEPS}
rollout_batch_size: {BATCH}
group_size: 4
evaluation: {{every: {STEPS}, prompts: 1, examples: 0}}
save_policy: false
"""


@dataclass
class Killer:
    """Builds parts, and kills the process of one lane some seconds after they were built.

    Attributes:
        seed: of the run whose part is killed; 0 is no other's.
        killed: what was killed.
        pids: of all parts.
    """

    factory: PartsFactory
    lane: str
    after_s: float
    seed: int = 0
    killed: list[int] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)

    def build(self, scenario: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        """Build the parts."""
        parts = self.factory(scenario, tracer, should_stop)
        self.pids += parts.processes().values()
        if scenario.seed == self.seed:
            threading.Timer(self.after_s, self._kill, [parts.processes()[self.lane]]).start()
        return parts

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.killed.append(pid)


def run_with(build: Any, text: str, folder: Path) -> str | None:
    """Run to the end and return why it stopped, if it did."""
    try:
        run_all(scenario_of(folder, text), folder / "out", build)
    except RunStopped as error:
        return str(error)
    return None


def only_run(folder: Path) -> Run:
    (run,), damaged = find_runs(folder)
    assert damaged == []
    return run


def log_of(run: Run) -> list[str]:
    return (run.folder / "log.txt").read_text().splitlines()


def assert_went_on(run: Run, lane: str) -> None:
    """The part was replaced, and every batch was trained on exactly once."""
    assert run.status == "completed"
    assert run.replaced == {lane: 1}
    assert [row.step for row in run.steps] == list(range(STEPS))
    assert all(sum(row.lags.values()) == BATCH and max(row.lags) <= 1 for row in run.steps)
    ledger = run.ledger
    assert ledger is not None
    assert ledger.generated == ledger.trained
    assert ledger.trained.rollouts == STEPS * BATCH
    assert (ledger.failed.rollouts, ledger.dropped.rollouts, ledger.trained_again.rollouts) == (0, 0, 0)
    (said,) = [line for line in log_of(run) if " died (" in line]
    assert said.endswith(f"{lane} died ({ENDED}); a new one takes its place")
    if lane == "generator":
        held = [change.version for change in run.version_changes if change.lane == lane]
        lost = held.index(-1)
        assert held[lost + 1] >= max(held[:lost], default=0)  # the new one loads what is current, never older weights


@pytest.mark.parametrize("lane", ["generator", pytest.param("scorer", marks=pytest.mark.slow)])
def test_a_part_that_is_killed_is_replaced(lane: str, factory: PartsFactory, tmp_path: Path) -> None:
    after_s = random.Random(lane).uniform(0.5, 2.5)
    killer = Killer(factory, lane, after_s)
    assert run_with(killer.build, f"{PACED}transport: {{type: shared_memory}}\n", tmp_path) is None
    assert len(killer.killed) == 1
    assert_went_on(only_run(tmp_path), lane)
    wait_until(lambda: ended(killer.pids), "the processes ended", 10)


def test_a_killed_learner_ends_its_run_and_no_other(factory: PartsFactory, tmp_path: Path) -> None:
    text = f"{PACED}transport: {{type: nixl}}\narms: {{one: {{seed: 1}}, other: {{seed: 2}}}}\n"
    killer = Killer(factory, "learner", 1.5, seed=1)
    reason = run_with(killer.build, text.replace(f"steps: {STEPS}", "steps: 8"), tmp_path)
    assert reason is not None
    assert reason.startswith(f"one stopped: {LEARNER_DIED}\n")
    runs = {run.folder.name: run for run in find_runs(tmp_path)[0]}
    assert (runs["one"].status, runs["one"].manifest.error) == ("failed", LEARNER_DIED)
    assert len(runs["one"].steps) < 8
    assert (runs["other"].status, len(runs["other"].steps), runs["other"].replaced) == ("completed", 8, {})
    wait_until(lambda: ended(killer.pids), "the processes ended", 10)


def part_of(lane: str, make: Callable[[Tracer], Any], tracer: RecordingTracer | None = None) -> ActorPart:
    spec = ActorSpec(ProcessSetup(lane, 1, None), make, {"num_cpus": 0})
    return ActorPart(spec, tracer or RecordingTracer(int))


class FullGpu:
    """A Learner's worker whose GPU is full when it is to verify what it has published."""

    notes = ()

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def publish_weights(self, version: int, still_needed: frozenset[int]) -> None:
        with self.tracer.span("learner", Stage.WEIGHT_VERIFY, version, version):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.25 GiB.")

    def close(self) -> None:
        """Nothing is held."""


def test_an_actor_whose_gpu_is_full_ends_the_run_in_a_line(factory: PartsFactory, tmp_path: Path) -> None:
    text = "steps: 2\nevaluation: {prompts: 8}\ntransport: {type: nixl}\nplacement: {learner: {gpus: 0.5}}\n"
    spawned: list[ActorPart] = []

    def build(asked: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        factory.session(asked)
        spawned.append(part_of("learner", FullGpu, tracer))
        wait_until_built(spawned, 300.0)
        return replace(build_simulated_parts(asked, tracer, should_stop), learner=LearnerHandle(spawned[0]))

    with pytest.raises(UserError) as told:
        run_all(scenario_of(tmp_path, text), tmp_path / "out", build)
    close_parts(spawned)
    assert "\n" not in told.value.what
    assert "weight_verify of the learner: tried to allocate 2.25 GiB" in told.value.what
    assert (told.value.fix or "").startswith("raise gradient_accumulation_steps (now 1)")


def stopped_from_the_start(tracer: Tracer) -> Any:
    os.kill(os.getpid(), signal.SIGSTOP)


def gave_up(tracer: Tracer) -> Any:
    raise RuntimeError("no answer for 50 s")


@pytest.mark.slow
def test_a_part_that_stops_while_it_starts_is_named_and_leaves_nothing(
    factory: PartsFactory, own_traces: Traces, tmp_path: Path
) -> None:
    factory.session(scenario_of(tmp_path, "transport: {type: nixl}\n"))
    before = set(own_traces.processes("ray::PartActor"))
    part = part_of("learner/0", stopped_from_the_start)

    def stopped() -> bool:
        pids = set(own_traces.processes("ray::PartActor")) - before
        return bool(pids) and all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids)

    wait_until(stopped, "it stopped")
    with pytest.raises(RunStopped, match=r"^learner/0 did not start within 0.5 s \(faults\.stall_after_s"):
        wait_until_built([part], 0.5)
    other = part_of("learner/1", gave_up)
    with pytest.raises(RunStopped) as told:
        wait_until_built([part, other], 300.0)
    assert re.fullmatch("learner/0 did not start, .*learner/1 .*: no answer for 50 s", str(told.value))
    close_parts([part, other])
    wait_until(lambda: set(own_traces.processes("ray::PartActor")) <= before, "the stopped actor ended", 10)


def test_a_start_may_take_as_long_as_a_stage_and_never_less_than_its_least() -> None:
    assert [start_limit_s(stall_after_s) for stall_after_s in (8.0, 600.0)] == [LEAST_START_S, 600.0]


def test_whoever_gives_up_waiting_for_a_part_ends_it_and_the_thread_that_waits(
    factory: PartsFactory, tmp_path: Path
) -> None:
    factory.session(scenario_of(tmp_path, "transport: {type: nixl}\n"))
    part = part_of("generator", stopped_from_the_start)
    ended: list[type[BaseException]] = []

    def wait() -> None:
        try:
            part.finish_building()
        except BaseException as error:
            ended.append(type(error))
            raise

    async def give_up() -> None:
        await asyncio.wait_for(in_thread(wait, [part]), 0.5)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())  # which waits for its threads
    assert len(ended) == 1
    assert issubclass(ended[0], DEATHS)


def test_a_stage_that_hangs_is_reported_with_stacks(
    factory: PartsFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PACED.replace("generate_s: 0.3", "generate_s: 3600") + "faults: {stall_after_s: 2}\n"
    killer = Killer(factory, "generator", 3600.0, seed=-1)
    reason = run_with(killer.build, f"{text}transport: {{type: object_store}}\n", tmp_path)
    run = only_run(tmp_path)
    assert reason is not None
    assert "(faults.stall_after_s is 2): generator has been in evaluate for" in reason
    assert run.status == "failed"
    report = capsys.readouterr().err
    log = "\n".join(log_of(run))
    for said in (report, log):
        assert "learner: wait_for_batch for step 0 since" in said
        assert "generator: evaluate" in said
        for lane in ("generator", "learner", "scorer"):
            assert f"stacks of {lane} (process " in said
        assert "_wait (harness/engines/paced.py:" in said  # the very line that sleeps
    wait_until(lambda: ended(killer.pids), "the processes ended", 10)
    assert Stage.GENERATE not in {span.stage for span in run.spans()}
