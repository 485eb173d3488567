"""Actors that Ray really starts under nsys: the windows they capture, their reports, and the stages in them.

Where Nsight Systems is on the PATH a whole run is captured and its reports are read. What it cannot show (reports that
are written slowly, or never) is shown by a stand-in.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import harness
from harness.core.errors import RunStopped
from harness.core.trace import HookedTracer, RecordingTracer, Stage
from harness.probes.nsight import (
    SESSION_CONFIG,
    NsightCapture,
    check_nsight,
    nsight_runtime_env,
    report_folders,
    wait_for_reports,
)
from harness.probes.profile import NsightWindow
from harness.report.trace.export import write_trace
from harness.report.trace.nsight import nsight_table
from harness.results import find_runs
from tests.stand_ins.trace_reader import read_trace

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray")]

NSYS = Path(__file__).parents[1] / "stand_ins" / "nsys"
PATH = os.environ["PATH"]  # without the stand-in
REAL_NSYS = shutil.which("nsys")
WINDOW = NsightWindow(lanes=["learner"], first_step=1, steps=1)


@pytest.fixture(scope="module")
def nsys() -> Iterator[Path]:
    """The stand-in, first on the PATH of a Ray of its own; its folder is Ray's too."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        stand_in = Path(shutil.copy(NSYS, folder))
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        check_nsight(WINDOW, as_actors=True, local_ray=True, command=["python", "-m", "harness"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                address="local",
                num_cpus=1,
                include_dashboard=False,
                _temp_dir=f"{folder}/ray",
                _node_ip_address="127.0.0.1",
                _system_config=SESSION_CONFIG,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        yield stand_in
        ray.shutdown()


def start_learner(tag: str) -> Any:
    """Start an actor under nsys that trains three steps of nothing, with its window around the second."""

    class Learner:
        def train(self) -> tuple[int, str, list[str]]:
            """Return its process id, its interpreter, and what happened in turn."""
            events: list[str] = []

            class Capture(NsightCapture):
                def start(self) -> None:
                    events.append("start")
                    super().start()

                def stop(self) -> None:
                    events.append("stop")
                    super().stop()

            capture = Capture(WINDOW, ["learner"], cuda=False)
            tracer = HookedTracer(RecordingTracer(time.perf_counter_ns), capture)
            for step in range(3):
                with tracer.span("learner", Stage.UPDATE, step):
                    events.append(f"step {step}")
            return os.getpid(), sys.executable, events

        def launcher(self) -> list[str]:
            """Return the command line of the process that has started this one."""
            return Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")

    remote: Any = ray.remote(Learner)
    return remote.options(num_cpus=0.5, runtime_env=nsight_runtime_env(WINDOW, "learner", tag, cuda=False)).remote()


def end_and_wait(nsys: Path, actor: Any, pid: int, tag: str, into: Path, timeout_s: float) -> list[Path]:
    actor.__ray_terminate__.remote()
    return wait_for_reports(lambda: report_folders(nsys.parent / "ray"), tag, {"learner": pid}, timeout_s, into)


def test_an_actor_runs_under_nsys_and_its_whole_report_is_kept(nsys: Path, tmp_path: Path) -> None:
    tag = secrets.token_hex(6)
    actor = start_learner(tag)
    pid, interpreter, events = ray.get(actor.train.remote(), timeout=300)
    assert events == ["step 0", "start", "step 1", "stop", "step 2"]
    assert interpreter == str(Path(sys.executable).with_name("python"))
    assert str(nsys) in ray.get(actor.launcher.remote())
    [report] = end_and_wait(nsys, actor, pid, tag, tmp_path / "nsight", timeout_s=120)
    assert report == tmp_path / "nsight" / "learner.nsys-rep"
    assert report.read_text() == "1\n2\n3\nend\n"
    calls = [path.read_text().splitlines() for path in (nsys.parent / "calls").iterdir()]
    [call] = [call for call in calls if any(tag in word for word in call)]  # Ray also tries the options without it
    for option in ("--capture-range=nvtx", "--nvtx-capture=profiled_steps@grpo", "--capture-range-end=stop"):
        assert option in call
    assert call[call.index("-o") + 1].endswith(f"/logs/nsight/{tag}-learner_%p")


def test_an_actor_whose_nsys_writes_nothing_stops_the_run(nsys: Path, tmp_path: Path) -> None:
    (nsys.parent / "mode").write_text("never")
    tag = secrets.token_hex(6)
    actor = start_learner(tag)
    pid, _, _ = ray.get(actor.train.remote(), timeout=300)
    with pytest.raises(RunStopped, match=r"no complete report of 1 of 1 lanes within 4 s: learner: no file, and nsys"):
        end_and_wait(nsys, actor, pid, tag, tmp_path / "nsight", timeout_s=4)
    assert not (tmp_path / "nsight").exists()


PACED = """
model: {type: paced, update_s: 0.02, megabytes: 0.5, tensors: 5}
engine: {type: paced, generate_s: 0.05}
transport: {type: TRANSPORT}
rollout_batch_size: 8
group_size: 2
steps: 4
evaluation: {every: 4, prompts: 2, examples: 1}
save_policy: false
placement: {colocated: false, generator: {cpus: 0.5}, learner: {cpus: 0.5}}
profile: PROFILE
"""
PROFILE = """
nvtx: true
nsight: {lanes: [learner, generator], first_step: 1, steps: 1, report_timeout_s: SECONDS}
"""


def run_paced(
    folder: Path, mode: str | None, report_timeout_s: int, transport: str = "object_store"
) -> subprocess.CompletedProcess[str]:
    """Run the command under the stand-in, or with None under the real nsys; the results are in ``results``."""
    if mode is not None:
        shutil.copy(NSYS, folder)
        (folder / "mode").write_text(mode)
    (folder / "probes.yaml").write_text(PROFILE.replace("SECONDS", str(report_timeout_s)))
    (folder / "paced.yaml").write_text(
        PACED.replace("PROFILE", str(folder / "probes.yaml")).replace("TRANSPORT", transport)
    )
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:  # sockets are made in it
        environment = os.environ | {"PATH": f"{folder}{os.pathsep}{PATH}", "TMPDIR": short}
        return subprocess.run(
            [sys.executable, "-m", "harness", "run", "paced.yaml", "--out", "results", "--quiet"],
            cwd=folder,
            env=environment | {"PYTHONPATH": str(Path(harness.__file__).parents[1])},
            capture_output=True,
            text=True,
            timeout=600,
        )


@pytest.mark.skipif(REAL_NSYS is None, reason="there is no nsys on the PATH")
def test_stages_of_a_captured_run_are_found_again_in_its_reports(tmp_path: Path) -> None:
    """The window is step 1: what trains it, and what brings version 2, which it makes, to the Generator by NIXL."""
    pytest.importorskip("nixl")
    done = run_paced(tmp_path, None, 240, transport="nixl")
    assert done.returncode == 0, done.stderr
    [run], _ = find_runs(tmp_path / "results")
    exports = [run.folder / "profiles" / f"{lane}.sqlite" for lane in ("learner", "generator")]
    for path in exports:
        command = [str(REAL_NSYS), "export", "--type=sqlite", "-o", path, path.with_suffix(".nsys-rep")]
        subprocess.run(command, capture_output=True, check=True, timeout=300)

    written = write_trace(run.folder, tmp_path / "t.json.gz", exports)

    found = {(span.lane, span.stage, span.step) for report in written.reports for _, span, _ in report.pairs}
    loads = [Stage.WEIGHT_TRANSFER, Stage.WEIGHT_LOAD, Stage.WEIGHT_VERIFY]
    assert found == {
        ("learner", Stage.PREPARE_BATCH, 1),
        ("learner", Stage.UPDATE, 1),
        ("learner", Stage.WEIGHT_PUBLISH, 2),
        ("learner", Stage.WEIGHT_VERIFY, 2),
        ("generator", Stage.GENERATE, 1),
        *(("generator", stage, 2) for stage in loads),
    }
    rows = {row[:2]: [*map(float, row[3:6])] for row in nsight_table(written.reports).rows}
    for nvtx_s, span_s, os_calls_s in rows.values():
        assert nvtx_s >= span_s  # a range encloses its span
        assert os_calls_s <= nvtx_s
    assert {row.step: row.profiled for row in run.steps} == {0: False, 1: True, 2: True, 3: False}
    assert rows["generator", "generate"][2] >= 0.04  # of the 0.05 s that the paced engine sleeps
    shown = {item.track for item in read_trace(tmp_path / "t.json.gz").slices if item.categories == ("nvtx",)}
    assert shown == {(written.runs[0], f"Nsight Systems, {lane}: NVTX ranges") for lane in ("learner", "generator")}


@pytest.mark.skipif(REAL_NSYS is not None, reason="the real nsys shows it")
def test_a_run_keeps_the_reports_and_flags_the_steps_they_touch(tmp_path: Path) -> None:
    done = run_paced(tmp_path, "", 120)
    assert done.returncode == 0, done.stderr
    [run], damaged = find_runs(tmp_path / "results")
    assert damaged == []
    reports = {path.name: path.read_text() for path in (run.folder / "profiles").iterdir()}
    assert reports == {"learner.nsys-rep": "1\n2\n3\nend\n", "generator.nsys-rep": "1\n2\n3\nend\n"}
    assert {row.step: row.profiled for row in run.steps} == {0: False, 1: True, 2: True, 3: False}


def test_a_run_without_its_reports_stops_and_says_so(tmp_path: Path) -> None:
    done = run_paced(tmp_path, "never", 4)
    assert done.returncode == 1
    assert "nsys left no complete report of 2 of 2 lanes within 4 s" in done.stderr
    [run], _ = find_runs(tmp_path / "results")
    assert run.status == "failed"
