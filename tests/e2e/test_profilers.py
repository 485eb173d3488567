"""Actors that Ray really starts under nsys: the windows they capture, their reports, and the stages in them.

Where Nsight Systems is on the PATH a whole run is captured and its reports are read. What it cannot show (reports that
are written slowly, or never) is shown by a stand-in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from harness.core.trace import Stage
from harness.report.trace.export import write_trace
from harness.results import find_runs
from tests.e2e.conftest import finish, start

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray")]

NSYS = Path(__file__).parents[1] / "stand_ins" / "nsys"
PATH = os.environ["PATH"]  # without the stand-in
REAL_NSYS = shutil.which("nsys")


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


def run_paced(folder: Path, mode: str | None, timeout_s: int, transport: str = "object_store", code: int = 0) -> str:
    """Run under the stand-in, or with None under the real nsys, into ``results``; return what is said."""
    if mode is not None:
        shutil.copy(NSYS, folder)
        (folder / "mode").write_text(mode)
    (folder / "probes.yaml").write_text(PROFILE.replace("SECONDS", str(timeout_s)))
    paced = PACED.replace("PROFILE", str(folder / "probes.yaml")).replace("TRANSPORT", transport)
    (folder / "paced.yaml").write_text(paced)
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:  # sockets are made in it
        environment = os.environ | {"PATH": f"{folder}{os.pathsep}{PATH}", "TMPDIR": short}
        words = ["run", "paced.yaml", "--out", "results", "--quiet"]
        return finish(start(*words, cwd=folder, environment=environment), code)[1]


@pytest.mark.skipif(REAL_NSYS is None, reason="there is no nsys on the PATH")
def test_stages_of_a_captured_run_are_found_again_in_its_reports(tmp_path: Path) -> None:
    """The window is step 1: what trains it, and what brings version 2, which it makes, to the Generator by NIXL."""
    pytest.importorskip("nixl")
    run_paced(tmp_path, None, 240, transport="nixl")
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
    assert {row.step: row.profiled for row in run.steps} == {0: False, 1: True, 2: True, 3: False}


@pytest.mark.skipif(REAL_NSYS is not None, reason="the real nsys shows it")
def test_a_run_keeps_the_reports_and_flags_the_steps_they_touch(tmp_path: Path) -> None:
    run_paced(tmp_path, "", 120)
    [run], damaged = find_runs(tmp_path / "results")
    assert damaged == []
    reports = {path.name: path.read_text() for path in (run.folder / "profiles").iterdir()}
    assert reports == {"learner.nsys-rep": "1\n2\n3\nend\n", "generator.nsys-rep": "1\n2\n3\nend\n"}
    assert {row.step: row.profiled for row in run.steps} == {0: False, 1: True, 2: True, 3: False}
    calls = [path.read_text().splitlines() for path in (tmp_path / "calls").iterdir()]
    windows = [call for call in calls if "--nvtx-capture=profiled_steps@grpo" in call]  # Ray also tries nsys by itself
    assert len(windows) >= 2
    assert all({"--capture-range=nvtx", "--capture-range-end=stop"} <= {*call} for call in windows)


def test_a_run_without_its_reports_stops_and_says_so(tmp_path: Path) -> None:
    said = run_paced(tmp_path, "never", 4, code=1)
    assert "no complete report of 2 of 2 lanes within 4 s" in said
    [run], _ = find_runs(tmp_path / "results")
    assert run.status == "failed"
