"""A results folder as frames: the numbers of the rows, in one line of a notebook."""

from pathlib import Path

import pytest

import harness
from harness.core.errors import UserError
from harness.results import find_runs

REFERENCE = Path(__file__).parents[2] / "results/reference"


def test_frames_hold_what_the_rows_say() -> None:
    results = harness.load_results(REFERENCE / "sync_k1-vs-sync_k2")
    runs, _ = find_runs(REFERENCE / "sync_k1-vs-sync_k2")
    assert [run.folder for run in results.runs] == [run.folder for run in runs]
    assert len(results.steps) == sum(len(run.steps) for run in runs)
    first, rows = runs[0], results.steps[results.steps["run"] == 0]
    assert list(rows["wall_s"]) == [row.wall_s for row in first.steps]
    assert list(rows["reward/total"]) == [row.metrics["reward/total"]["mean"] for row in first.steps]
    assert list(rows["timing_s/update"]) == [row.stages_s["update"] for row in first.steps]
    assert list(rows["is_warmup"]) == [row.warmup for row in first.steps]
    arms = {(row.arm, row.block) for row in results.steps.itertuples()}
    assert arms == {(run.manifest.arm, run.manifest.block) for run in runs}
    assert len(results.evaluations) == sum(len(run.evaluations) for run in runs)


def test_spans_rollouts_and_syncs_are_frames_too() -> None:
    results = harness.load_results(REFERENCE / "sync_k")
    spans = [span for run in results.runs for span in run.spans()]
    assert list(results.spans["end_s"] - results.spans["start_s"]) == pytest.approx(
        [(span.end_ns - span.start_ns) / 1e9 for span in spans]
    )
    assert list(results.rollouts["response"]) == [row.response for run in results.runs for row in run.rollouts()]
    assert results.syncs.empty
    syncs = harness.load_results(REFERENCE / "transport_sweep").syncs
    assert set(syncs.columns) >= {"transport", "num_bytes", "total_s", "scenario"}
    assert (syncs["total_s"] > 0).all()


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        harness.load_results(tmp_path)
