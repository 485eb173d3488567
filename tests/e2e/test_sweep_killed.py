"""A sweep in a process of its own, killed in the middle: nothing that was finished is lost or run again."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.compare import gather
from harness.compare.signal import Divergence
from harness.results import find_runs
from tests.e2e.conftest import finish, wait_until

ROOT = Path(__file__).parents[2]
POINTS = 6
SWEEP = f"""
steps: 5
profile: "off"
trackers: []
evaluation: {{every: 5, prompts: 4}}
sweep: {{seed: {list(range(POINTS))}}}
"""
PLAN: dict[str, object] = {"diverges": [1], "fails": {"4": 2}}
Digest = dict[str, tuple[str, int, int]]
STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """End what a test that fails leaves behind: a held run would sleep for an hour."""
    yield
    for process in STARTED:
        process.kill()
        process.communicate()
    STARTED.clear()


def start(tmp_path: Path, holds: int | None = None) -> subprocess.Popen[str]:
    """Start or continue the sweep; one point may be held in the middle of its run."""
    (tmp_path / "trial.yaml").write_text(SWEEP)
    files = [str(tmp_path / name) for name in ("trial.yaml", "out")]
    command = [sys.executable, "-m", "tests.stand_ins.sweep_program", *files]
    environment = os.environ | {"SWEEP_PLAN": json.dumps(PLAN | {"holds": holds}), "OMP_NUM_THREADS": "1"}
    STARTED.append(
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    )
    return STARTED[-1]


def statuses(out: Path) -> dict[str, str]:
    """The manifests' words by folder, as far as they are there."""
    found = {}
    for file in out.glob("trial/*/seed=*/manifest.json"):
        found[file.parent.name] = json.loads(file.read_text())["status"]
    return found


def digests(out: Path) -> Digest:
    """Content, time of change and inode of every file of the points that are completed."""
    done = [name for name, status in statuses(out).items() if status == "completed"]
    files = [file for name in done for file in out.glob(f"trial/*/{name}/**/*") if file.is_file()]
    return {
        str(file.relative_to(out)): (hashlib.sha256(file.read_bytes()).hexdigest(), stat.st_mtime_ns, stat.st_ino)
        for file in files
        for stat in [file.stat()]
    }


def send_when_held(process: subprocess.Popen[str], out: Path, seed: int, number: int) -> None:
    """Send a signal once the run of a seed is held after its second step."""
    rows = f"trial/*/seed={seed}/steps.jsonl"
    held = lambda: any(file.read_text().count('"kind":"step"') == 2 for file in out.glob(rows))  # noqa: E731
    wait_until(held, "it is held", process=process)
    process.send_signal(number)


def go_on_to_the_end(tmp_path: Path, kept: Digest) -> None:
    """Go on to the end: what was there is untouched, every point is once in the comparison, failures are aside."""
    out = tmp_path / "out"
    finish(start(tmp_path))
    assert digests(out).items() >= kept.items()
    (experiment,), damaged = gather([out])
    assert damaged == []
    members = experiment.members
    assert sorted(each.manifest.seed for each in members) == list(range(POINTS))
    ends = {each.manifest.seed: (each.run.status, each.steps) for each in members}
    assert ends == {seed: ("failed", 2) if seed == 1 else ("completed", 5) for seed in range(POINTS)}
    (diverged,) = [each.figures["divergence"] for each in members if each.manifest.seed == 1]
    assert diverged == Divergence(2, stopped=True)
    aside = [json.loads(file.read_text()) for file in out.glob("trial/*/.attempts/seed=4/*/manifest.json")]
    assert [item["error"] for item in aside if item["status"] == "failed"] == ["an actor died"] * 2


@pytest.mark.slow
def test_a_sweep_interrupted_and_killed_goes_on_without_losing_or_redoing_a_point(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = start(tmp_path, holds=2)
    send_when_held(first, out, 2, signal.SIGINT)
    said = finish(first, 130)[1]
    assert "1 finished, 1 diverged, 1 cut short, 3 not run yet" in said
    assert statuses(out) == {"seed=0": "completed", "seed=1": "failed", "seed=2": "interrupted"}
    after_first = digests(out)
    assert {name.split("/")[2] for name in after_first} == {"seed=0"}
    second = start(tmp_path, holds=5)
    send_when_held(second, out, 5, signal.SIGKILL)
    second.communicate()
    after_second = digests(out)
    assert after_second.items() > after_first.items()
    go_on_to_the_end(tmp_path, after_second)
    assert len(list((out / "trial").iterdir())) == 1
    cut_short = [json.loads(file.read_text())["status"] for file in out.glob("trial/*/.attempts/*/*/manifest.json")]
    assert sorted(cut_short) == ["failed", "failed", "interrupted", "running"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_sweep_killed_at_any_moments_is_complete_in_the_end(tmp_path: Path, seed: int) -> None:
    """Kills come at drawn times after the first row, so also between a point's end and the next one's start."""
    out, draw, kept = tmp_path / "out", random.Random(seed), Digest()
    for _ in range(6):
        process = start(tmp_path)
        wait_until(out.exists, "the folder", pause_s=0.005)
        time.sleep(draw.uniform(0.0, 8.0))
        process.kill()
        process.communicate()
        now = digests(out)
        assert now.items() >= kept.items()
        kept = now
    go_on_to_the_end(tmp_path, kept)
    runs, damaged = find_runs(out)
    assert (len(runs), damaged) == (POINTS, [])
