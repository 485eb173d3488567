"""The parts as real Ray actors, through the composition root: what a run's files say, what it keeps, what it leaves;
and what becomes of it where parts die, hang or find no place.

One Ray serves the module. Runs are small or paced (sleeps in place of computing), and no bound is on their speed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch

from harness.compare.experiment import gather
from harness.compare.remarks.syncs import sweep_points
from harness.core.errors import RunStopped, UserError
from harness.core.spawn_pool import usable_cores
from harness.core.trace import RecordingTracer, Stage, Tracer
from harness.loop import Observer, StepReport, run_loop
from harness.report.build import document
from harness.report.files import save_charts
from harness.report.transports import sweep_tables
from harness.results import Run, find_runs
from harness.run import experiment
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
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from tests.e2e.conftest import Traces, ended, only_run, run_all, scenario_of, wait_until
from tests.run_folders import loop_accounts
from tests.stand_ins.simulated_parts import build_simulated_parts

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray")

REWARDS = """
def by_length(response, ground_truth):
    value = len(response) % 7 / 6
    return {"reward": value, "format_reward": 1.0, "answer_reward": value}
"""

TRAINED = """
task: {type: jsonl, train: PROMPTS, reward: "rewards_of_test_actors:by_length", reward_timeout_s: null}
model: {type: preset, preset: tiny, warm_start: false, threads: 1}
sampling: {max_tokens: 8}
rollout_batch_size: 8
group_size: 4
epochs_per_batch: 2
steps: 3
optimizer: {learning_rate: 0.01}
evaluation: {every: 3, prompts: 2, examples: 1}
save_policy: false
"""

PACED = """
model: {type: paced, update_s: 0.02, megabytes: 0.5, tensors: 5}
engine: {type: paced, generate_s: 0.05}
rollout_batch_size: 8
group_size: 2
steps: 4
evaluation: {every: 2, prompts: 2, examples: 1}
save_policy: false
placement: {colocated: false, generator: {cpus: 0.5}, learner: {cpus: 0.5}}
"""


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with prompts and reward functions, on the import path."""
    folder = tmp_path_factory.mktemp("material")
    rows = [json.dumps({"prompt": f"Write about number {number}", "answer": str(number)}) for number in range(20)]
    (folder / "prompts.jsonl").write_text("\n".join(rows))
    (folder / "rewards_of_test_actors.py").write_text(REWARDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


def trained_on(material: Path) -> str:
    return TRAINED.replace("PROMPTS", str(material / "prompts.jsonl"))


def run_one(scenario: Scenario, out: Path, factory: PartsFactory) -> Run:
    (run,) = run_all(scenario, out, factory)
    assert run.status == "completed"
    return run


def assert_accounts_close(run: Run) -> None:
    for lane, account in loop_accounts(run).items():
        assert sum(account.stages_ns.values()) + account.unattributed_ns == account.wall_ns > 0, lane
        assert account.unattributed_ns >= 0, lane


def versions_of(run: Run, lane: str) -> list[int]:
    return [change.version for change in run.version_changes if change.lane == lane]


def count_spans(run: Run, lane: str, stage: Stage) -> int:
    return sum(span.lane == lane and span.stage is stage for span in run.spans())


# ---- what runs say


@pytest.fixture(scope="module")
def trained(material: Path, factory: PartsFactory, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The same synchronous run in one process and as actors, by transport."""
    scenario = scenario_of(material, f"{trained_on(material)}sweep: {{transport.type: [in_process, nixl]}}\n")
    runs = run_all(scenario, tmp_path_factory.mktemp("trained"), factory)
    return {run.manifest.point["transport.type"]: run for run in runs}


def learnt(run: Run) -> list[object]:
    """What the steps of a run learnt, to the last digit, and what it sampled."""
    names = ("loss", "grad_norm", "ratio/max", "token_entropy", "reward/total", "response_length")
    return [[row.metric(name) for name in names] for row in run.steps] + list[object](run.rollouts())


def test_actors_learn_what_one_process_learns(trained: dict[str, Run]) -> None:
    """Whichever transport carries the weights: that each brings them to the last bit is in its contract."""
    alone, actors = trained["in_process"], trained["nixl"]
    losses = [row.metric("loss") for row in alone.steps]
    assert None not in losses
    assert len(set(map(str, losses))) == 3  # or equal ones would say nothing
    assert learnt(actors) == learnt(alone)
    # the Learner takes a checksum of what it publishes, and a Generator one of what it loads
    verified = [(span.lane, span.version) for span in actors.spans() if span.stage == "weight_verify"]
    assert sorted(verified) == [(lane, v) for lane in ("generator", "learner") for v in range(4)]


def test_a_synchronous_run_over_nixl_says_all_of_it(trained: dict[str, Run]) -> None:
    run = trained["nixl"]
    assert [(row.step, row.version, row.optimizer_steps) for row in run.steps] == [(0, 1, 2), (1, 2, 2), (2, 3, 2)]
    assert [row.version for row in run.evaluations] == [0, 3]
    assert versions_of(run, "learner") == versions_of(run, "generator") == [0, 1, 2, 3]
    assert [row.lags for row in run.steps] == [{0: 8}] * 3
    assert run.ledger is not None
    assert run.ledger.generated == run.ledger.trained
    assert run.ledger.generated.rollouts == 3 * 8
    assert run.replaced == {}
    assert_accounts_close(run)
    spans = [span for span in run.spans() if not span.stage.is_wait]
    order = [span.stage.value for span in sorted(spans, key=lambda span: span.start_ns)]
    sync = ["weight_publish", "weight_verify", "weight_transfer", "weight_load", "weight_verify"]
    step = ["generate", "score", "prepare_batch", "old_logprobs", "update", *sync]
    evaluated = ["evaluate", "evaluate"]  # by the Generator and by the Scorer
    assert order == ["startup"] * 3 + sync + evaluated + 3 * step + evaluated


def test_several_generators_and_scorers_share_lagged_batches(
    material: Path, factory: PartsFactory, tmp_path: Path
) -> None:
    several = PACED.replace("generator: {cpus: 0.5}", "generator: {cpus: 0.5, count: 2}, scorer: {count: 2}")
    run = run_one(scenario_of(material, f"{several}max_lag: 1\ntransport: {{type: object_store}}\n"), tmp_path, factory)
    assert [row.version for row in run.steps] == [1, 2, 3, 4]
    assert all(sum(row.lags.values()) == 8 and set(row.lags) <= {0, 1} for row in run.steps)
    assert set(loop_accounts(run)) == {"learner", "generator0", "generator1", "scorer0", "scorer1"}
    assert_accounts_close(run)
    assert versions_of(run, "learner") == [0, 1, 2, 3, 4]
    for generator in ("generator0", "generator1"):
        held = versions_of(run, generator)
        assert held == sorted(set(held))  # never the same again, never an older one
    for kind, stage in (("generator", Stage.GENERATE), ("scorer", Stage.SCORE)):
        by_lane = [count_spans(run, f"{kind}{index}", stage) for index in range(2)]
        assert sum(by_lane) == 2 * 4  # each half of each batch once, by whoever is free
        assert min(by_lane) > 0
    assert [row.version for row in run.evaluations] == [0, 2, 4]
    assert run.ledger is not None
    assert run.ledger.trained.rollouts == run.ledger.generated.rollouts == 4 * 8


def test_weights_reach_a_generator_between_two_tokens(material: Path, factory: PartsFactory, tmp_path: Path) -> None:
    """A batch takes many times an update, so that updates end while the next batches are being generated.

    The first update warms its process up, for longer than two batches on a busy machine, so eight steps follow it.
    """
    text = (
        trained_on(material)
        .replace("max_tokens: 8", "min_tokens: 200, max_tokens: 200")
        .replace("steps: 3", "steps: 9")
    )
    lagged = "max_lag: 2\nlag_control: in_flight\ntransport: {type: shared_memory}\nplacement: {colocated: false}\n"
    run = run_one(scenario_of(material, text.replace("epochs_per_batch: 2", "") + lagged), tmp_path, factory)
    mixed = [row.step for row in run.steps if row.metric("off_policy/token_mean") is not None]
    assert mixed  # some rollouts have tokens of more than one version
    for step in mixed:
        oldest, token = (run.steps[step].metric(f"off_policy/{name}") for name in ("mean", "token_mean"))
        assert oldest is not None
        assert token is not None
        assert 0 <= token.value < oldest.value <= 2  # of several versions, the mean is newer than the oldest
    generates = [span for span in run.spans() if (span.lane, span.stage) == ("generator", Stage.GENERATE)]
    loads = [span for span in run.spans() if (span.lane, span.stage) == ("generator", Stage.WEIGHT_LOAD)]
    assert any(g.start_ns < load.start_ns and load.end_ns < g.end_ns for g in generates for load in loads)
    assert [row.version for row in run.steps] == list(range(1, 10))
    assert_accounts_close(run)


# ---- what the driver holds


def store_bytes() -> int:
    """Bytes in use in the object store, as the cluster tells."""
    total, free = ray.cluster_resources(), ray.available_resources()
    return int(total["object_store_memory"] - free.get("object_store_memory", 0.0))


def test_the_driver_holds_references_and_an_evicted_group_frees_its_memory(
    material: Path, factory: PartsFactory
) -> None:
    """10 batches of 4 groups pass a buffer of 8 groups, each of 2 responses of 100,000 tokens: 2.4 MB."""
    long = "sampling: {min_tokens: 99999, max_tokens: 100000}\nreplay: {capacity: 8, sampling: uniform}\nmax_lag: 1\n"
    text = f"{PACED}{long}transport: {{type: object_store_numpy}}\n".replace("steps: 4", "steps: 10")
    group_bytes = 2 * 100_000 * (8 + 4)  # token ids are int64, log-probs float32
    held, looks = list[int](), list[int]()

    class Watcher(Observer):
        def on_step(self, facts: StepReport) -> None:
            assert all(isinstance(group.data, ray.ObjectRef) for group in (*facts.fresh, *facts.groups))
            assert facts.replay is not None
            held.append(facts.replay[1])
            looks.append(store_bytes())

    tracer = RecordingTracer(time.perf_counter_ns)
    scenario = scenario_of(material, text, changes=["evaluation.every=10"])
    factory.session(scenario)  # the first test to need Ray starts it
    wait_until(lambda: store_bytes() == 0, "a store empty before the run")
    parts = factory(scenario, tracer, bool)
    try:
        asyncio.run(run_loop(parts.generators, parts.scorers, parts.learner, parts.plan, tracer, Watcher()))
        assert held == [4] + [8] * 9
        # 8 groups in the buffer and up to 2 batches of 4 on their way, of the 40 groups that were made
        assert 0 < max(looks) <= (8 + 2 * 4 + 4) * group_bytes * 1.1
        wait_until(lambda: store_bytes() < group_bytes, "the buffer's groups freed while the actors live")
    finally:
        parts.close()


# ---- a transport sweep


SYNCS = ("object_store_numpy", "nixl", "shared_memory")


@pytest.fixture(scope="module")
def swept(factory: PartsFactory, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two sizes, one and two receivers, three counted repeats, on the Ray that is there."""
    small = {"transports": list(SYNCS), "megabytes": [0.5, 1.5], "tensors": [3], "receivers": [1, 2], "repeats": 3}
    scenario = load_scenario("transport_sweep", [f"transport_sweep={json.dumps(small)}"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "PartsFactory", lambda groups: nullcontext(factory))
        (run,) = run_all(scenario, tmp_path_factory.mktemp("sweep"))
    return run


def test_every_sync_is_timed_in_turns_and_its_parts_fit_into_its_whole(swept: Run) -> None:
    rows = swept.syncs
    assert swept.status == "completed"
    assert swept.manifest.outcome["syncs"] == len(rows) == 2 * 2 * 4 * 3  # sizes, receivers, repeats, transports
    for first in range(0, len(rows), 3):
        assert {row.transport for row in rows[first : first + 3]} == set(SYNCS)
        assert len({(row.num_bytes, row.receivers, row.repeat) for row in rows[first : first + 3]}) == 1
    assert [row.repeat for row in rows[::3]] == [0, 1, 2, 3] * 4
    assert {row.num_bytes for row in rows} == {500_000, 1_500_000}
    for row in rows:
        assert min(row.publish_s, row.load_s, row.verify_s, row.plain_copy_s) > 0
        delivered = row.transport == "nixl"  # into the receiver's own memory: its load is timed apart
        assert row.publish_s + row.transfer_s + (0 if delivered else row.load_s) <= row.total_s + 1e-9
    assert "Initialized NIXL agent" in (swept.folder / "log.txt").read_text()


def test_tables_and_picture_of_a_sweep_come_from_its_rows(swept: Run, tmp_path: Path) -> None:
    (found,), _ = gather([swept.folder])
    points = sweep_points(found)
    wanted = {(name, receivers, 3) for name in SYNCS for receivers in (1, 2)}
    assert {(point.transport, point.receivers, point.repeats) for point in points} == wanted
    assert {row[0] for row in sweep_tables(points)[0].rows} == {*SYNCS, "plain copy"}
    assert [path.name for path in save_charts(document(found, []), tmp_path)] == ["sweep.png"]


# ---- parts that die or hang


STEPS = 12
ENDED = "its process ended without a word: it was killed, crashed or ran out of memory"
LEARNER_DIED = f"the learner died: {ENDED}; what it had learnt since the last saved policy is lost"

LONG = f"{PACED}max_lag: 1\n".replace("steps: 4", f"steps: {STEPS}").replace("_s: 0.05", "_s: 0.3")


@dataclass
class Killer:
    """Builds parts, and kills the process of one lane some seconds after they were built.

    Attributes:
        lanes: which and when, by the seed of the run.
        killed: what was killed.
        pids: of all parts.
    """

    factory: PartsFactory
    lanes: dict[int, tuple[str, float]]
    killed: list[int] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)

    def build(self, scenario: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        """Build the parts."""
        parts = self.factory(scenario, tracer, should_stop)
        self.pids += parts.processes().values()
        if scenario.seed in self.lanes:
            lane, after_s = self.lanes[scenario.seed]
            threading.Timer(after_s, self._kill, [parts.processes()[lane]]).start()
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


def log_of(run: Run) -> list[str]:
    return (run.folder / "log.txt").read_text().splitlines()


def assert_went_on(run: Run, lane: str) -> None:
    """The part was replaced, and every batch was trained on exactly once."""
    assert run.status == "completed"
    assert run.replaced == {lane: 1}
    assert [row.step for row in run.steps] == list(range(STEPS))
    assert all(sum(row.lags.values()) == 8 and max(row.lags) <= 1 for row in run.steps)
    ledger = run.ledger
    assert ledger is not None
    assert ledger.generated == ledger.trained
    assert ledger.trained.rollouts == STEPS * 8
    assert (ledger.failed.rollouts, ledger.dropped.rollouts, ledger.trained_again.rollouts) == (0, 0, 0)
    (said,) = [line for line in log_of(run) if " died (" in line]
    assert said.endswith(f"{lane} died ({ENDED}); a new one takes its place")
    if lane == "generator":
        held = [change.version for change in run.version_changes if change.lane == lane]
        lost = held.index(-1)
        assert held[lost + 1] >= max(held[:lost], default=0)  # the new one loads what is current, never older weights


@pytest.mark.slow
def test_a_scorer_that_is_killed_is_replaced(factory: PartsFactory, tmp_path: Path) -> None:
    killer = Killer(factory, {0: ("scorer", 1.0)})
    assert run_with(killer.build, f"{LONG}transport: {{type: shared_memory}}\n", tmp_path) is None
    assert_went_on(only_run(tmp_path), "scorer")


def test_a_killed_learner_ends_its_run_and_no_other_and_a_killed_generator_is_replaced(
    factory: PartsFactory, tmp_path: Path
) -> None:
    one, other = "{seed: 1, transport.type: nixl}", "{seed: 2, transport.type: shared_memory}"
    killer = Killer(factory, {1: ("learner", 1.5), 2: ("generator", 2.0)})
    reason = run_with(killer.build, f"{LONG}arms: {{one: {one}, other: {other}}}\n", tmp_path)
    assert reason is not None
    assert reason.startswith(f"one stopped: {LEARNER_DIED}\n")
    assert len(killer.killed) == 2
    runs = {run.folder.name: run for run in find_runs(tmp_path)[0]}
    assert (runs["one"].status, runs["one"].manifest.error) == ("failed", LEARNER_DIED)
    assert len(runs["one"].steps) < STEPS
    assert_went_on(runs["other"], "generator")
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
    text = LONG.replace("generate_s: 0.3", "generate_s: 3600") + "faults: {stall_after_s: 2}\n"
    killer = Killer(factory, {})
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


# ---- wrong input


@pytest.mark.parametrize(
    ("old", "new", "first", "last"),
    [
        ("learner: {cpus: 0.5}", "learner: {cpus: 1000}", "1000.5 CPUs (learner 1000, 1 x gen", f" {usable_cores()}"),
        ("{colocated: false,", "{colocated: false, strategy: STRICT_SPREAD,", "CPU 0.5 + CPU 0.5 (", " on its nodes"),
    ],
)
def test_more_than_there_is_is_refused_at_once(
    old: str, new: str, first: str, last: str, material: Path, factory: PartsFactory
) -> None:
    scenario = scenario_of(material, f"{PACED.replace(old, new)}transport: {{type: nixl}}\n")
    with pytest.raises(UserError) as refused:
        factory(scenario, RecordingTracer(time.perf_counter_ns), lambda: False)
    assert refused.value.what.startswith(f"the parts ask for {first}")
    assert refused.value.what.endswith(last)
    assert str(refused.value.where).startswith("placement")
