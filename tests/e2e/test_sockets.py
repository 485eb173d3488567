"""What listens while runs go on is what docs/distributed.md says, and a caller without the token is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Traces, start, wait_until
from tests.e2e.test_actors import PACED

pytestmark = pytest.mark.slow

BUSY = PACED.replace("generate_s: 0.05", "generate_s: 0.3").replace("steps: 4", "steps: 100000")
NIXL = BUSY + "transport: {type: nixl}\n"
RANKS = """
model: {type: preset, preset: tiny, warm_start: false, threads: 1}
sampling: {max_tokens: 8}
rollout_batch_size: 8
group_size: 4
steps: 100000
evaluation: {every: 100000, prompts: 2, examples: 1}
transport: {type: shared_memory}
placement: {learner: {ranks: 2, cpus: 0.5}, generator: {cpus: 0.5}, scorer: {cpus: 0.5}}
learner: {sharding: fsdp2}
"""
OPEN_TO_ALL = ("/bin/sh", "-c", 'umask 022; exec "$@"', "sh")
"""Files would be readable by everyone, as Ray's own ~/.ray/auth_token is."""
OF_RAY = {(who, "every interface") for who in ("gcs_server", "raylet", "monitor.py", "driver", "actor")}
OF_RAY |= {("ray::RuntimeEnvAgent", "the node's own address")}
if find_spec("prometheus_client") is None:  # it comes with vLLM
    OF_RAY -= {("monitor.py", "every interface")}


@contextmanager
def going_on(text: str, traces: Traces, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a run, and wait until it has made a step."""
    (folder / "run.yaml").write_text(text)
    words = ["run", str(folder / "run.yaml"), "--quiet", f"--out={folder / 'out'}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= traces.environment | {"HOME": str(folder)}
    process = start(*words, environment=environment, prefix=OPEN_TO_ALL)

    def has_made_a_step() -> bool:
        return any(file.read_text().count("\n") > 1 for file in folder.glob("out/*/*/steps.jsonl"))

    try:
        wait_until(has_made_a_step, "a step was made", process=process)
        yield process
    finally:
        process.kill()
        process.communicate()
        traces.assert_nothing_left()


def listening(driver: int) -> set[tuple[str, str]]:
    """Return who listens where, in the words of the page."""
    found = set()
    for process in (psutil.Process(driver), *psutil.Process(driver).children(recursive=True)):
        words = " ".join(process.cmdline())
        named = re.search(r"gcs_server|raylet/raylet|monitor\.py|ray::RuntimeEnvAgent|ray::DashboardAgent", words)
        who = named[0].rpartition("/")[2] if named else "actor" if "ray::" in words else words
        for connection in process.net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN:
                place = {"::": "every interface", "0.0.0.0": "every interface", "127.0.0.1": "127.0.0.1"}
                where = place.get(connection.laddr.ip, "the node's own address")
                found.add(("driver" if process.pid == driver else who, where))
    return found


@pytest.mark.parametrize("text", [NIXL, RANKS], ids=["NIXL", "two ranks"])
def test_the_page_names_all_that_listens(text: str, traces: Traces, tmp_path: Path) -> None:
    with going_on(text, traces, tmp_path) as process:
        wait_until(lambda: listening(process.pid) >= OF_RAY, "all that Ray starts listens", 60, process)
        assert listening(process.pid) == OF_RAY | {("actor", "127.0.0.1")}
    page = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text()
    section = page.partition("## What listens on the network")[2].partition("\n## ")[0]
    for who, where in OF_RAY:
        rows = [row for row in section.splitlines() if row.startswith("|") and who in row]
        assert any(where in row for row in rows), who


CALLER = """
import os, sys
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
except Exception as error:
    print("refused:", type(error).__name__, str(error).splitlines()[0])
else:
    print("let in:", sorted(ray.cluster_resources()))
"""


def test_a_caller_without_the_token_is_refused(traces: Traces, tmp_path: Path) -> None:
    with going_on(BUSY + "transport: {type: shared_memory}\n", traces, tmp_path) as process:
        (gcs,) = (each for each in psutil.Process(process.pid).children() if "gcs_server" in each.cmdline()[0])
        (port,) = (each.laddr.port for each in gcs.net_connections(kind="inet") if each.status == psutil.CONN_LISTEN)
        token = Path(gcs.environ()["RAY_AUTH_TOKEN_PATH"])
        assert [oct(path.stat().st_mode & 0o777) for path in (token, token.parent)] == ["0o600", "0o700"]
        assert not (tmp_path / ".ray").exists()
        actors = [psutil.Process(pid) for pid in traces.processes("ray::")]
        held = {actor.environ().get("RAY_AUTH_TOKEN_PATH") for actor in actors}  # None: one that hides its environment
        assert held - {None} == {str(token)}

        def said(**environment: str) -> str:
            plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
            command = [sys.executable, "-c", CALLER, f"127.0.0.1:{port}"]
            return subprocess.run(
                command, env=plain | environment | {"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=300
            ).stdout

        (wrong := tmp_path / "wrong").write_text("0" * 64)
        assert said(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token)).startswith("let in: ")
        assert said(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(wrong)).startswith("refused: ")
        assert said(RAY_AUTH_MODE="disabled").startswith("refused: ")
    assert not token.exists()
