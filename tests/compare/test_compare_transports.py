"""Weight syncs side by side, word for word, from runs with known times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.compare import Experiment, gather
from harness.compare.sync import percentile
from harness.compare.sync_tables import sync_findings, sync_table
from harness.results import RunFolder

Make = Callable[..., RunFolder]


def _transport(name: str) -> str:
    return f"transport: {{type: {name}}}\n"


def _experiment(tmp_path: Path) -> Experiment:
    (experiment,), damaged = gather([tmp_path / "results"])
    assert damaged == []
    return experiment


@pytest.fixture
def transports(make_lagged_run: Make, tmp_path: Path) -> Experiment:
    """20 MB over three transports, 8 steps each."""
    make_lagged_run(arm="a_default", settings=_transport("object_store"), sync_ms=(10.0, 50.0, 20.0, 2.0))
    make_lagged_run(arm="b_arrays", settings=_transport("object_store_numpy"), sync_ms=(8.0, 16.0, 16.0, 2.0))
    make_lagged_run(arm="nixl", settings=_transport("nixl"), sync_ms=(5.0, 10.0, 5.0, 2.0))
    return _experiment(tmp_path)


def test_the_table_shows_each_part_without_the_first_step(transports: Experiment) -> None:
    table = sync_table(transports)
    assert table is not None
    assert table.header == ("weight sync", "a_default", "b_arrays", "nixl")
    # verify: 2 ms at the Learner and 2 ms at the Generator; GB/s: 20 MB in 80, 40 and 20 ms
    assert table.rows == (
        ("transport", "object_store", "object_store_numpy", "nixl"),
        ("MB", "20.0", "20.0", "20.0"),
        ("tensors", "3", "3", "3"),
        ("publish, ms", "10.0 [10.0, 10.0]", "8.00 [8.00, 8.00]", "5.00 [5.00, 5.00]"),
        ("transfer, ms", "50.0 [50.0, 50.0]", "16.0 [16.0, 16.0]", "10.0 [10.0, 10.0]"),
        ("load, ms", "20.0 [20.0, 20.0]", "16.0 [16.0, 16.0]", "5.00 [5.00, 5.00]"),
        ("publish to loaded, ms", "80.0 [80.0, 80.0]", "40.0 [40.0, 40.0]", "20.0 [20.0, 20.0]"),
        ("GB/s", "0.250 [0.250, 0.250]", "0.500 [0.500, 0.500]", "1.00 [1.00, 1.00]"),
        ("verify, ms", "4.00 [4.00, 4.00]", "4.00 [4.00, 4.00]", "4.00 [4.00, 4.00]"),
    )
    assert table.notes[0] == (
        "Medians [10th percentile, 90th percentile] over 7 training steps; the first step of a run is left out, since "
        "its syncs set up connections."
    )


def test_transports_are_set_against_the_object_store_that_is_named(transports: Experiment) -> None:
    assert sync_findings(transports) == [
        "b_arrays (object_store_numpy): 20.0 MB from publish to loaded in 0.50 times the time of a_default "
        "(object_store), Ray's object store given torch tensors, its default (40.0 ms against 80.0 ms, medians).",
        "nixl: 20.0 MB from publish to loaded in 0.25 times the time of a_default (object_store), Ray's object store "
        "given torch tensors, its default (20.0 ms against 80.0 ms, medians).",
        "nixl: 20.0 MB from publish to loaded in 0.50 times the time of b_arrays (object_store_numpy), Ray's object "
        "store given numpy arrays (20.0 ms against 40.0 ms, medians).",
    ]


def test_unlike_sizes_are_not_compared(make_lagged_run: Make, tmp_path: Path) -> None:
    make_lagged_run(arm="object_store", settings=_transport("object_store"))
    make_lagged_run(arm="nixl", num_bytes=40_000_000)
    assert sync_findings(_experiment(tmp_path)) == []


def test_seeds_are_pooled(make_lagged_run: Make, tmp_path: Path) -> None:
    for seed, publish in enumerate((2.0, 4.0, 10.0)):
        make_lagged_run(arm="nixl", seed=seed, steps=3, sync_ms=(publish, 0.0, 10.0, 0.0))
    table = sync_table(_experiment(tmp_path))
    assert table is not None
    # 2, 2, 4, 4, 10, 10: place 0.5 and 4.5 of 0..5
    assert ("publish, ms", "4.00 [2.00, 10.0]") in table.rows
    assert "over 6 training steps" in table.notes[0]


def test_weights_that_stay_in_the_process_have_no_table(make_lagged_run: Make, tmp_path: Path) -> None:
    make_lagged_run(settings=_transport("in_process"))
    assert sync_table(_experiment(tmp_path)) is None


def test_runs_of_before_syncs_were_recorded_have_no_table(make_run: Make, tmp_path: Path) -> None:
    make_run()
    assert sync_table(_experiment(tmp_path)) is None
    assert sync_findings(_experiment(tmp_path)) == []


def test_a_variant_without_syncs_has_empty_cells(make_lagged_run: Make, tmp_path: Path) -> None:
    make_lagged_run(arm="nixl")
    make_lagged_run(arm="one_step", steps=1)  # its only step is the first one
    table = sync_table(_experiment(tmp_path))
    assert table is not None
    assert table.rows[0] == ("transport", "nixl", "-")


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(0, 1.0), (10, 1.4), (50, 3.0), (90, 4.6), (100, 5.0)],  # places 0, 0.4, 2, 3.6 and 4 of 1, 2, 3, 4, 5
)
def test_percentiles_are_interpolated(percent: float, expected: float) -> None:
    assert percentile([5.0, 1.0, 4.0, 2.0, 3.0], percent) == pytest.approx(expected)
    assert percentile([7.0], percent) == 7.0
