"""The parts as real Ray actors, through the composition root: what a run's files say, what it keeps, what it leaves.

One Ray serves the module. Runs are small or paced (sleeps in place of computing), and no bound is on their speed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import ray

from harness.core.errors import UserError
from harness.core.spawn_pool import usable_cores
from harness.core.trace import RecordingTracer, Stage
from harness.loop import Observer, StepReport, run_loop
from harness.results import Run, find_runs
from harness.results.counters import read_counters, sources
from harness.run.actors.session import RaySession
from harness.run.factory import PartsFactory
from harness.scenario.schema import Scenario
from tests.e2e.conftest import Traces, finish, run_all, scenario_of, start, wait_until
from tests.run_folders import loop_accounts

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

TRANSPORTS = ("in_process", "shared_memory", "nixl")
OTHER_TRANSPORTS = ("object_store", "object_store_numpy", "gloo", "disk")


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


def train_over(transports: Sequence[str], material: Path, factory: PartsFactory, out: Path) -> dict[str, Run]:
    """The same synchronous run with each transport, by transport."""
    scenario = scenario_of(material, f"{trained_on(material)}sweep: {{transport.type: {json.dumps(transports)}}}\n")
    return {run.manifest.point["transport.type"]: run for run in run_all(scenario, out, factory)}


@pytest.fixture(scope="module")
def trained(material: Path, factory: PartsFactory, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return train_over(TRANSPORTS, material, factory, tmp_path_factory.mktemp("trained"))


def learnt(run: Run) -> list[object]:
    """What the steps of a run learnt, to the last digit, and what it sampled."""
    names = ("loss", "grad_norm", "ratio/max", "token_entropy", "reward/total", "response_length")
    return [[row.metric(name) for name in names] for row in run.steps] + list[object](run.rollouts())


def test_losses_are_the_same_whichever_transport_carries_the_weights(trained: dict[str, Run]) -> None:
    assert set(trained) == set(TRANSPORTS)
    losses = [row.metric("loss") for row in trained["in_process"].steps]
    assert None not in losses
    assert len(set(map(str, losses))) == 3  # or equal ones would say nothing
    for transport in TRANSPORTS[1:]:
        assert learnt(trained[transport]) == learnt(trained["in_process"]), transport
        # the Learner takes a checksum of what it publishes, and a Generator one of what it loads
        verified = [(span.lane, span.version) for span in trained[transport].spans() if span.stage == "weight_verify"]
        assert sorted(verified) == [(lane, v) for lane in ("generator", "learner") for v in range(4)], transport


@pytest.mark.slow
def test_losses_are_the_same_over_the_other_transports(
    trained: dict[str, Run], material: Path, factory: PartsFactory, tmp_path: Path
) -> None:
    others = train_over(OTHER_TRANSPORTS, material, factory, tmp_path)
    assert set(others) == set(OTHER_TRANSPORTS)
    for transport, run in others.items():
        assert learnt(run) == learnt(trained["in_process"]), transport


def test_a_synchronous_run_over_shared_memory_says_all_of_it(trained: dict[str, Run]) -> None:
    run = trained["shared_memory"]
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
    """A batch takes many times an update, so that updates end while the next batches are being generated."""
    text = (
        trained_on(material)
        .replace("max_tokens: 8", "min_tokens: 200, max_tokens: 200")
        .replace("steps: 3", "steps: 6")
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
    assert [row.version for row in run.steps] == [1, 2, 3, 4, 5, 6]
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


# ---- how runs end


@contextmanager
def busy_for_an_hour(material: Path, traces: Traces, out: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a run on Ray, in a process group of its own, whose Generator has begun a batch that takes an hour."""
    endless = PACED.replace("generate_s: 0.05", "generate_s: 3600")
    scenario_of(material, f"{endless}transport: {{type: shared_memory}}\n", "endless")
    process = start("run", str(material / "endless.yaml"), f"--out={out}", environment=os.environ | traces.environment)
    try:
        wait_until(lambda: list(out.rglob("log.txt")), "the run began", process=process)
        time.sleep(0.5)
        assert len(traces.processes()) > 5  # Ray's own and the three actors: the mark is inherited
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(os.killpg, signal.SIGINT, id="Ctrl-C to the group, as a terminal sends it"),
        pytest.param(os.kill, signal.SIGTERM, id="SIGTERM to the driver", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_everything_at_once(
    send: Callable[[int, int], None], number: signal.Signals, material: Path, traces: Traces, tmp_path: Path
) -> None:
    with busy_for_an_hour(material, traces, tmp_path) as process:
        send(process.pid, number)
        errors = finish(process, 130, 300.0)[1]  # not the hour that the Generator is busy for
    assert errors.splitlines()[-1].startswith("interrupted: what was measured so far is in")
    assert "SIGTERM received" not in errors  # of Ray's own, with a stack
    assert "Traceback" not in errors
    (run,), _ = find_runs(tmp_path)
    assert run.status == "interrupted"
    traces.assert_nothing_left()


@pytest.mark.slow
def test_a_killed_driver_leaves_no_process_and_no_folder(material: Path, traces: Traces, tmp_path: Path) -> None:
    with busy_for_an_hour(material, traces, tmp_path) as process:
        started = psutil.Process(process.pid).children(recursive=True)  # Ray's agents, for two, hide their environment
        assert len(started) > 5
        process.kill()
        process.communicate()
    wait_until(lambda: not any(map(psutil.Process.is_running, started)), f"all of {started} ended", 10)
    traces.assert_nothing_left()


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


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("no-such-host.invalid:6379", "Name or service not known"),
        ("nonsense", "Invalid address format: nonsense"),
        ("ray://127.0.0.1:10001", "Invalid address format: ray://127.0.0.1:10001"),
    ],
)
def test_an_address_without_a_cluster_is_refused_in_seconds(address: str, reason: str) -> None:
    """Ray itself tries for minutes. The session is refused before it has started or joined anything."""
    with pytest.raises(UserError) as refused:
        RaySession(address)
    assert refused.value.what.endswith(f" at {address}: {reason}")
    assert refused.value.where == f"placement.address: {address}"
    assert "ray start --head" in str(refused.value.fix)


# ---- a cluster

CLUSTER = """
import json, os, sys
from pathlib import Path

from ray.cluster_utils import Cluster

from harness.run.actors.samplers import RemoteSamplers
from harness.run.factory import PartsFactory
from harness.run.experiment import run_scenario
from harness.scenario.load import load_scenario

here = {"num_cpus": 1, "object_store_memory": 200 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args=here | {"include_dashboard": False})
cluster.add_node(**here)
nodes = {}


def build(scenario, tracer, should_stop):
    parts = factory(scenario, tracer, should_stop)
    ends = (*parts.generators, *parts.scorers, parts.learner)
    nodes.update({end.lane: end.part.facts.node_id for end in ends})
    is_there = lambda facts: facts.node_id == nodes["generator"]  # both nodes are this machine; one stands for another
    parts.sample_elsewhere = lambda hz: RemoteSamplers([end.part for end in ends], hz, is_there)
    return parts


try:
    with PartsFactory() as factory:
        os.environ["RAY_ADDRESS"] = cluster.address  # which is what `auto` looks at first
        scenario = load_scenario(sys.argv[1], ["placement.address=auto"])
        run_scenario(scenario, Path(sys.argv[2]), True, build, show=lambda folder: None)
    print(json.dumps(nodes))
finally:
    cluster.shutdown()
"""


@pytest.mark.slow
def test_parts_on_two_nodes_of_a_cluster(material: Path, traces: Traces, tmp_path: Path) -> None:
    text = f"{PACED}max_lag: 1\ntransport: {{type: object_store_numpy}}\n"
    scenario_of(material, text.replace("colocated: false", "colocated: false, strategy: STRICT_SPREAD"), "cluster")
    command = [sys.executable, "-c", CLUSTER, str(material / "cluster.yaml"), str(tmp_path)]
    run = subprocess.run(
        command, env=os.environ | traces.environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    nodes = json.loads(run.stdout.splitlines()[-1])
    assert set(nodes) == {"generator", "scorer", "learner"}
    assert nodes["generator"] != nodes["learner"]
    (finished,), _ = find_runs(tmp_path)
    assert finished.status == "completed"
    assert [row.version for row in finished.steps] == [1, 2, 3, 4]
    assert_accounts_close(finished)
    counters = read_counters(finished.folder)
    lanes = {f"node1/{lane}" for lane in nodes if nodes[lane] == nodes["generator"]}
    assert {*sources(counters)} >= {"node1/sampler", "node1/host", *lanes}
    times = [row.at_ns for row in counters if row.source == "node1/host"]
    assert times == sorted(times)
    wait_until(lambda: not traces.processes(), "the cluster's processes ended", 10)
