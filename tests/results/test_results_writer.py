"""The run folder: what is in the files, when, and what happens where they cannot be written."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from threading import Barrier

import pytest

from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.core.types import ExampleRollout, Metric, Purpose
from harness.results import Manifest, RolloutRow, RunFolder, Scrubber, StepRow, experiment_name, store_metrics
from harness.results.writer import begin_experiment

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
MANIFEST = Manifest(scenario="quickstart", experiment="20261120-120000", started_at="2026-11-20T12:00:00.000Z")


Create = Callable[..., RunFolder]


@pytest.fixture
def create(tmp_path: Path, scrubber: Scrubber) -> Iterator[Create]:
    """Return a function that starts a run of ``quickstart`` at 12:00:00, at a time that stands at 12:01:30."""
    now = NOON + timedelta(seconds=90)
    with ExitStack() as opened:

        def start(root: Path = tmp_path, variant: str | None = None) -> RunFolder:
            run = RunFolder.create(root, "quickstart", "20261120-120000", variant, scrubber=scrubber, clock=lambda: now)
            return opened.enter_context(run)

        yield start


def _step(step: int) -> StepRow:
    return StepRow(step, step + 1, 1, 1, 1, {}, metrics=store_metrics({"loss": Metric(0.5, count=64)}))


def test_a_new_folder_holds_headers_and_no_rows(tmp_path: Path, create: Create) -> None:
    run = create()
    experiment = tmp_path / "quickstart" / "20261120-120000"
    assert run.folder == experiment
    files = {path.name: path.read_text() for path in run.folder.iterdir()}
    header = '{"kind":"header","schema":"harness.NAME","schema_version":1}\n'
    names = ("spans", "steps", "rollouts")
    assert files == {f"{name}.jsonl": header.replace("NAME", name) for name in names} | {"log.txt": ""}
    folders = [create(variant=variant).folder for variant in ("k1", "k4,seed=1")]  # arms lie side by side
    assert folders == [experiment / "k1", experiment / "k4,seed=1"]


def test_experiments_that_begin_in_the_same_second_keep_apart(tmp_path: Path) -> None:
    together = Barrier(8)

    def begin(_: int) -> tuple[RunFolder, str]:
        together.wait()
        return begin_experiment(tmp_path, "quickstart", None)

    with ThreadPoolExecutor(8) as threads:
        begun = list(threads.map(begin, range(8)))
    assert len({name for _, name in begun}) == 8
    assert {run.folder for run, _ in begun} == {tmp_path / "quickstart" / name for _, name in begun}
    for run, _ in begun:
        run.close()


def test_rows_reach_the_disk_at_the_flush(create: Create) -> None:
    run = create()
    run.append_spans([Span('the "lane"', Stage.UPDATE, 5, 1_000_000_007, 3, -1)])
    run.append(_step(0))
    rollout = ExampleRollout("Say \u2028hi", "hi \ud800", "hi", 1.0, 2, "stop", 4)
    run.append(RolloutRow.of(rollout, Purpose.EVALUATE))
    run.log("step 0 done; reading /home/ann/models/qwen on annbox")
    assert [len((run.folder / name).read_bytes().splitlines()) for name in ("spans.jsonl", "steps.jsonl")] == [1, 1]
    run.flush()
    spans, steps, rollouts = (
        [json.loads(line) for line in (run.folder / f"{name}.jsonl").read_text().splitlines()[1:]]
        for name in ("spans", "steps", "rollouts")
    )
    assert spans == [
        {"lane": 'the "lane"', "stage": "update", "start_ns": 5, "end_ns": 1000000007, "step": 3, "version": -1}
    ]
    row = {"kind": "step", "step": 0, "version": 1, "wall_s": 1, "elapsed_s": 1, "optimizer_steps": 1, "lanes": {}}
    assert steps == [row | {"metrics": {"loss": {"mean": 0.5, "count": 64}}}]
    row = {"kind": "rollout", "purpose": "evaluate", "version": 4, "prompt": "Say \u2028hi", "response": "hi \ud800"}
    assert rollouts == [row | {"ground_truth": "hi", "reward": 1.0, "num_tokens": 2, "finish_reason": "stop"}]
    line = "2026-11-20T12:01:30.000Z step 0 done; reading ~/models/qwen on <host>\n"
    assert (run.folder / "log.txt").read_text() == line


def test_finishing_says_how_it_ended_and_how_long_it_took(create: Create) -> None:
    run = create()
    run.write_manifest(MANIFEST)
    assert json.loads((run.folder / "manifest.json").read_text())["status"] == "running"
    run.append(_step(0))
    run.finish("completed", None, {"final_reward": 0.6})
    manifest = json.loads((run.folder / "manifest.json").read_text())
    assert (manifest["schema"], manifest["schema_version"]) == ("harness.manifest", 1)
    assert (manifest["status"], manifest["outcome"]) == ("completed", {"final_reward": 0.6})
    assert (manifest["finished_at"], manifest["duration_s"]) == ("2026-11-20T12:01:30.000Z", 90.0)  # from 12:00:00
    assert len((run.folder / "steps.jsonl").read_text().splitlines()) == 2
    written = {"log.txt", "manifest.json", "rollouts.jsonl", "spans.jsonl", "steps.jsonl"}
    assert {path.name for path in run.folder.iterdir()} == written


def test_no_file_names_a_person_a_host_or_a_folder_of_theirs(make_run: Callable[..., RunFolder]) -> None:
    error = "RuntimeError in /home/ann/harness/harness/run/experiment.py on annbox: /data/ann/weights.bin is gone, ann"
    run = make_run(
        status="failed",
        error=error,
        point={"model.path": "/home/ann/models/qwen"},
        settings="model: {path: /home/ann/models/qwen}\n",
    )
    manifest = json.loads((run.folder / "manifest.json").read_text())
    assert manifest["error"] == (
        "RuntimeError in ./harness/run/experiment.py on <host>: <path>/weights.bin is gone, <user>"
    )
    assert manifest["point"] == {"model.path": "~/models/qwen"}
    assert (run.folder / "scenario.resolved.yaml").read_text() == "model: {path: ~/models/qwen}\n"
    assert run.folder.name == "model.path=~-models-qwen"
    for path in run.folder.iterdir():
        text = path.read_text()
        assert not [word for word in ("/home", "/data", "annbox", "ann,") if word in text], path.name


def test_an_existing_run_is_never_overwritten(create: Create) -> None:
    before = (create().folder / "steps.jsonl").read_bytes()
    with pytest.raises(UserError, match="exists already, and a saved run is never overwritten") as caught:
        create()
    assert (Path(str(caught.value.where)) / "steps.jsonl").read_bytes() == before


def test_experiment_names_are_utc_and_free(tmp_path: Path) -> None:
    one_hour_east = datetime(2026, 11, 20, 13, 0, 0, tzinfo=timezone(timedelta(hours=1)))
    names = []
    for _ in range(3):
        names.append(experiment_name(tmp_path, "quickstart", one_hour_east))
        (tmp_path / "quickstart" / names[-1]).mkdir(parents=True)
    assert names == ["20261120-120000", "20261120-120000-2", "20261120-120000-3"]


def test_a_results_folder_that_cannot_be_written_to_is_refused(tmp_path: Path, create: Create) -> None:
    (tmp_path / "results").write_text("not a folder")
    with pytest.raises(UserError) as caught:
        create(tmp_path / "results")
    assert caught.value.what.startswith(f"cannot write results to '{tmp_path}/results/quickstart/")
    if os.geteuid():  # root may write everywhere
        tmp_path.chmod(0o500)
        with pytest.raises(UserError, match="Permission denied"):
            create(tmp_path / "other")


@contextmanager
def _files_limited_to(size: int) -> Iterator[None]:
    """Have the system refuse to let any file grow beyond ``size`` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_an_error_and_leaves_whole_lines(create: Create) -> None:
    run = create()
    run.append(_step(0))
    run.flush()
    whole = (run.folder / "steps.jsonl").read_bytes()
    run.append(_step(1))
    with _files_limited_to(len(whole) + 50), pytest.raises(UserError) as caught:
        run.flush()
    assert caught.value.what == f"cannot write results to '{run.folder}': File too large"
    assert caught.value.where == str(run.folder)
    assert (run.folder / "steps.jsonl").read_bytes() == whole
    run.append(_step(2))
    run.flush()  # there is room again
    steps = [json.loads(line).get("step") for line in (run.folder / "steps.jsonl").read_text().splitlines()]
    assert steps == [None, 0, 2]


def test_a_manifest_is_replaced_whole_or_not_at_all(create: Create) -> None:
    run = create()
    run.write_manifest(MANIFEST)
    before = (run.folder / "manifest.json").read_bytes()
    with _files_limited_to(100), pytest.raises(UserError, match="cannot write results"):
        run.finish("failed", "out of disk")
    assert (run.folder / "manifest.json").read_bytes() == before
    assert not list(run.folder.glob(".*"))
