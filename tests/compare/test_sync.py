"""Weight syncs of an experiment, and the points and costs of a transport sweep."""

import pytest
from msgspec import structs

from harness.compare.remarks.syncs import sweep_points, sweep_sentences
from harness.compare.syncs import sync_points, sync_seconds
from harness.report.tables import sync_table
from harness.report.transports import sweep_tables
from harness.results.rows import SyncRow
from tests.compare.recorded import only_experiment
from tests.messages import facts
from tests.stand_ins.members import made_experiment, made_run


def _transport(name):
    return f"transport: {{type: {name}}}\n"


def test_the_table_shows_each_part_without_the_first_step_over_all_seeds(make_lagged_run, tmp_path):
    """20 MB over two transports; a third arm has only the first step."""
    for seed, publish in enumerate((2.0, 4.0, 10.0)):
        make_lagged_run(arm="nixl", seed=seed, steps=4, sync_ms=(publish, 10.0, 5.0, 2.0))
    make_lagged_run(arm="store", settings=_transport("object_store"), sync_ms=(10.0, 50.0, 20.0, 2.0))
    make_lagged_run(arm="one_step", steps=1)
    table = sync_table(only_experiment(tmp_path / "results"))
    assert table.header == ("", "nixl", "store")
    # publish: 2, 2, 4, 4, 10, 10: places 0.5 and 4.5 of 0..5, mean 32 / 6; verify: 2 ms at the Learner and 2 ms at the
    # Generator; GB/s: 20 MB in 20.33 and 80 ms
    assert table.rows == (
        ("transport", "nixl", "object_store"),
        ("MB", "20.0", "20.0"),
        ("tensors", "3", "3"),
        ("publish, ms", "5.33 [2.00, 4.00, 10.0]", "10.0 [10.0, 10.0, 10.0]"),
        ("transfer, ms", "10.0 [10.0, 10.0, 10.0]", "50.0 [50.0, 50.0, 50.0]"),
        ("load, ms", "5.00 [5.00, 5.00, 5.00]", "20.0 [20.0, 20.0, 20.0]"),
        ("publish to loaded, ms", "20.3 [17.0, 19.0, 25.0]", "80.0 [80.0, 80.0, 80.0]"),
        ("GB/s", "0.984", "0.250"),
        ("verify, ms", "4.00 [4.00, 4.00, 4.00]", "4.00 [4.00, 4.00, 4.00]"),
    )
    assert "over 6 " in table.notes[0]  # of three times 4 and of 8 steps, the first two of which are warm-up


def test_a_sync_is_said_by_its_mean_as_the_endpoint_is_with_the_median_beside_it():
    seconds = {"publish": [0.9, 0.005, 0.005, 0.005, 0.065], "transfer": [0.01] * 5, "load": [0.005] * 5}
    metrics = {f"sync/{part}_s": values for part, values in seconds.items()}
    metrics |= {"sync/bytes": [20e6] * 5, "sync/tensors": [3.0] * 5}
    member = made_run("nixl", steps=5, metrics=metrics, settings={"transport": {"type": "nixl"}})
    table = sync_table(made_experiment(member))
    # without the first: 5, 5, 5, 65 ms: mean 20, median 5, 90th percentile at place 2.7: 5 + 0.7 * 60 = 47
    assert table.rows[3] == ("publish, ms", "20.0 [5.00, 5.00, 47.0]")
    assert table.rows[6:8] == (("publish to loaded, ms", "35.0 [20.0, 20.0, 62.0]"), ("GB/s", "0.571"))  # 20 MB, 35 ms
    assert sync_seconds(member) == pytest.approx(0.035)


def test_weights_that_stay_in_the_process_and_older_runs_have_no_table(make_run, make_lagged_run):
    for made in (make_lagged_run(settings=_transport("in_process")), make_run()):
        assert sync_table(only_experiment(made.folder)) is None


COSTS = {"gloo": (0.004, 30e-6, 0.8e-9), "nixl": (0.002, 10e-6, 1.2e-9)}  # fixed, per tensor, per byte


def row(transport, megabytes, tensors, repeat, factor=1.0):
    fixed, per_tensor, per_byte = COSTS[transport]
    num_bytes = round(megabytes * 1e6)
    total = factor * (fixed + per_tensor * tensors + per_byte * num_bytes)
    copy_s = num_bytes * 0.2e-9
    return SyncRow(transport, num_bytes, tensors, 1, repeat, total, 0.001, total - 0.002, 0.001, 0.5, copy_s)


def rows():
    factors = (100.0, 1.0, 0.9, 1.3)  # the first is not counted; the median of the others is 1.0
    return [
        row(name, size, tensors, repeat, factor)
        for name in COSTS
        for size in (1, 10, 100)
        for tensors in (1, 200)
        for repeat, factor in enumerate(factors)
    ]


def test_a_point_is_the_median_of_the_counted_syncs_and_the_fastest_transport_comes_first():
    points = sync_points(rows())
    # at 100 MB in 200 tensors: gloo 4 + 6 + 80 = 90 ms, nixl 2 + 2 + 120 = 124 ms
    assert list(dict.fromkeys(point.transport for point in points)) == ["gloo", "nixl"]
    (point,) = [p for p in points if (p.transport, p.num_bytes, p.tensors) == ("nixl", 10_000_000, 1)]
    whole = 0.002 + 10e-6 + 10e6 * 1.2e-9  # 0.01401
    assert (point.repeats, point.receivers) == (3, 1)
    assert point.median_s == pytest.approx(whole)
    assert point.low_s == pytest.approx(whole * (0.9 + 0.2 * 0.1))  # a fifth of the way from 0.9 to 1.0
    assert point.high_s == pytest.approx(whole * (1.0 + 0.8 * 0.3))  # four fifths of the way from 1.0 to 1.3
    assert point.share_of_copy == pytest.approx(0.002 / whole)  # a plain copy of 10 MB takes 2 ms
    assert (point.publish_s, point.load_s, point.verify_s) == (0.001, 0.001, 0.5)


def test_a_time_that_does_not_repeat_is_marked(make_run, tmp_path):
    # 0.6, 0.8, 1, 1.2 and 1.4: the middle half spans 0.4; 0.6, 0.7, 1, 1.3 and 1.4: 0.6 of the median
    spreads = {100: (9.0, 0.6, 0.7, 1.0, 1.3, 1.4)}
    timed = [
        row("nixl", size, 1, repeat, factor)
        for size in (10, 50, 100)
        for repeat, factor in enumerate(spreads.get(size, (9.0, 0.6, 0.8, 1.0, 1.2, 1.4)))
    ]
    timed = [structs.replace(it, total_s=3 * it.total_s) if it.num_bytes == 100_000_000 else it for it in timed]
    points = sync_points(timed)
    assert [(point.megabytes, point.is_unstable) for point in points] == [(10, False), (50, False), (100, True)]
    run = make_run(status="running")
    for item in timed:
        run.append(item)
    run.finish("completed", None, {})
    times = sweep_tables(sweep_points(only_experiment(tmp_path / "results")))[0]
    assert [cell.endswith("!") for cell in times.rows[0][1:]] == [False, False, True]
    assert [note.startswith("! ") for note in times.notes] == [False, True]


def test_a_sweep_names_the_fastest_by_size_and_its_share():
    # 100 MB in one tensor: gloo 84.03 ms, plain copy 20 ms: 24%; nixl 122.01 ms: 16%
    largest, by_size = sweep_sentences(sync_points(rows()))
    assert facts(largest) == "100 1 1 84.0 24 16"
    assert ("gloo has the lowest" in largest, "nixl at 1 MB; gloo at 10 and 100 MB" in by_size) == (True, True)
    many = [row("gloo", 100, 200, 1, 2.0), row("nixl", 100, 200, 1)]  # 180 and 124 ms
    (first, *_) = sweep_sentences(sync_points([*(each for each in rows() if each.tensors == 1), *many]))
    assert "nixl with 1 receiver and 200 tensors" in first
    gloo = row("gloo", 100, 1, 1)
    points = sync_points([gloo, structs.replace(gloo, transport="object_store", total_s=0.31)])
    assert facts(sweep_sentences(points)[1]) == "100 0.27"  # 84.03 ms against 310 ms
