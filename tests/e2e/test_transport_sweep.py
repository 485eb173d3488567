"""A small transport sweep for real: actors, bytes, checksums, rows, tables and the picture."""

from pathlib import Path

import pytest

from harness.compare.experiment import gather
from harness.compare.remarks.syncs import sweep_points
from harness.report.build import document
from harness.report.files import save_charts
from harness.report.transports import sweep_tables
from harness.results import Run
from harness.scenario.load import load_scenario
from tests.e2e.conftest import run_all

TRANSPORTS = ("object_store_numpy", "nixl", "shared_memory")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two sizes, one and two receivers, three counted repeats."""
    out = tmp_path_factory.mktemp("sweep")
    small = {"transports": list(TRANSPORTS), "megabytes": [0.5, 1.5], "tensors": [3], "receivers": [1, 2], "repeats": 3}
    overrides = [f"transport_sweep={small}".replace("'", '"')]
    (run,) = run_all(load_scenario("transport_sweep", overrides), out)
    return run


def test_every_sync_is_timed_in_turns(swept: Run) -> None:
    rows = swept.syncs
    assert swept.status == "completed"
    assert swept.manifest.outcome["syncs"] == len(rows) == 2 * 2 * 4 * 3  # sizes, receivers, repeats, transports
    for first in range(0, len(rows), 3):
        assert {row.transport for row in rows[first : first + 3]} == set(TRANSPORTS)
        assert len({(row.num_bytes, row.receivers, row.repeat) for row in rows[first : first + 3]}) == 1
    assert [row.repeat for row in rows[::3]] == [0, 1, 2, 3] * 4
    assert {row.num_bytes for row in rows} == {500_000, 1_500_000}


def test_the_parts_of_a_sync_fit_into_its_whole(swept: Run) -> None:
    for row in swept.syncs:
        assert min(row.publish_s, row.load_s, row.verify_s, row.plain_copy_s) > 0
        delivered = row.transport == "nixl"  # into the receiver's own memory: its load is timed apart
        assert row.publish_s + row.transfer_s + (0 if delivered else row.load_s) <= row.total_s + 1e-9


def test_tables_and_picture_come_from_the_rows(swept: Run, tmp_path: Path) -> None:
    (experiment,), _ = gather([swept.folder])
    points = sweep_points(experiment)
    assert {(point.transport, point.receivers, point.repeats) for point in points} == {
        (name, receivers, 3) for name in TRANSPORTS for receivers in (1, 2)
    }
    assert {row[0] for row in sweep_tables(points)[0].rows} == {*TRANSPORTS, "plain copy"}
    assert [path.name for path in save_charts(document(experiment, []), tmp_path)] == ["sweep.png"]


def test_the_log_has_what_nixl_said(swept: Run) -> None:
    log = (swept.folder / "log.txt").read_text()
    assert "Initialized NIXL agent" in log
