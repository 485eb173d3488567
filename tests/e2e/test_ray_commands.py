"""Ray as a command starts it: its processes end with the command, whatever ends that; clusters, there or not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from harness.core.errors import UserError
from harness.results.counters import read_counters, sources
from harness.run.actors.session import RaySession
from tests.e2e.conftest import Traces, finish, only_run, scenario_of, start, wait_until
from tests.e2e.test_actors import PACED, assert_accounts_close

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray")


@contextmanager
def busy_for_an_hour(traces: Traces, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a run on Ray, in a process group of its own, whose Generator has begun a batch that takes an hour."""
    endless = PACED.replace("generate_s: 0.05", "generate_s: 3600")
    scenario_of(folder, f"{endless}transport: {{type: shared_memory}}\n", "endless")
    words = ["run", str(folder / "endless.yaml"), f"--out={folder / 'out'}"]
    process = start(*words, environment=os.environ | traces.environment)
    try:
        wait_until(lambda: list(folder.rglob("log.txt")), "the run began", process=process)
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
    send: Callable[[int, int], None], number: signal.Signals, traces: Traces, tmp_path: Path
) -> None:
    with busy_for_an_hour(traces, tmp_path) as process:
        send(process.pid, number)
        errors = finish(process, 130, 300.0)[1]  # not the hour that the Generator is busy for
    assert errors.splitlines()[-1].startswith("interrupted: what was measured so far is in")
    assert "SIGTERM received" not in errors  # of Ray's own, with a stack
    assert "Traceback" not in errors
    assert only_run(tmp_path / "out").status == "interrupted"
    traces.assert_nothing_left()


@pytest.mark.slow
def test_a_killed_driver_leaves_no_process_and_no_folder(traces: Traces, tmp_path: Path) -> None:
    with busy_for_an_hour(traces, tmp_path) as process:
        started = psutil.Process(process.pid).children(recursive=True)  # Ray's agents, for two, hide their environment
        assert len(started) > 5
        process.kill()
        process.communicate()
    wait_until(lambda: not any(map(psutil.Process.is_running, started)), f"all of {started} ended", 10)
    traces.assert_nothing_left()


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
def test_parts_on_two_nodes_of_a_cluster(traces: Traces, tmp_path: Path) -> None:
    text = f"{PACED}max_lag: 1\ntransport: {{type: object_store_numpy}}\n"
    scenario_of(tmp_path, text.replace("colocated: false", "colocated: false, strategy: STRICT_SPREAD"), "cluster")
    command = [sys.executable, "-c", CLUSTER, str(tmp_path / "cluster.yaml"), str(tmp_path / "out")]
    run = subprocess.run(
        command, env=os.environ | traces.environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    nodes = json.loads(run.stdout.splitlines()[-1])
    assert set(nodes) == {"generator", "scorer", "learner"}
    assert nodes["generator"] != nodes["learner"]
    finished = only_run(tmp_path / "out")
    assert finished.status == "completed"
    assert [row.version for row in finished.steps] == [1, 2, 3, 4]
    assert_accounts_close(finished)
    counters = read_counters(finished.folder)
    lanes = {f"node1/{lane}" for lane in nodes if nodes[lane] == nodes["generator"]}
    assert {*sources(counters)} >= {"node1/sampler", "node1/host", *lanes}
    times = [row.at_ns for row in counters if row.source == "node1/host"]
    assert times == sorted(times)
    wait_until(lambda: not traces.processes(), "the cluster's processes ended", 10)
