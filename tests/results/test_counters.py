"""Rows of counters: written, read back, refused where damaged, and joined into stretches."""

import json
from pathlib import Path

from harness.probes import nvml, reading
from harness.results.counters import CounterRow, explain, is_growing, read_counters, reasons, sources, stretches
from harness.results.rows import COUNTERS, HeaderRow


def sampler(at_ns: int, held: int = 0) -> CounterRow:
    return CounterRow(at_ns, "sampler", {"cpu_s": 0.1, "held": held})


def gpu(at_ns: int, energy_j: float | None) -> CounterRow:
    return CounterRow(at_ns, "gpu0", {"energy_j": energy_j}, {} if energy_j is not None else {"energy_j": "lost"})


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        CounterRow(5, "host", {"load_1min": 0.5, "throttled_s": None}, {"throttled_s": "not_found"}),
        CounterRow(5, "learner", {"cpu_s": 12.5, "threads": 3}),
    ]
    assert read_counters(tmp_path) == []
    lines = (HeaderRow("harness.counters", 1), *rows)
    (tmp_path / COUNTERS).write_bytes(b"".join(row.line() for row in lines))
    assert read_counters(tmp_path) == rows
    host = {"kind": "counter", "at_ns": 5, "source": "host", "values": {"load_1min": 0.5, "throttled_s": None}}
    assert json.loads(rows[0].line()) == host | {"missing": {"throttled_s": "not_found"}}
    assert b"missing" not in rows[1].line()


def test_totals_are_told_from_levels() -> None:
    totals = ("cpu_s", "cpu_busy_s", "pressure_cpu_some_s", "energy_j", "network_sent_bytes")
    levels = ("utilisation", "power_w", "rss_bytes", "load_1min", "throttled", "throttle/hw_thermal")
    assert [name for name in (*totals, *levels) if is_growing(name)] == [*totals]


def test_sources_in_the_order_of_their_first_row_and_their_last_reasons() -> None:
    rows = [sampler(1), gpu(1, 4.0), sampler(2), gpu(2, None)]
    assert sources(rows) == ["sampler", "gpu0"]
    assert reasons(rows, "gpu0") == {"energy_j": "lost"}
    assert reasons(rows, "sampler") == {}


def test_a_stretch_ends_where_a_value_is_missing_and_where_a_total_begins_anew() -> None:
    rows = [sampler(1), gpu(1, 4.0), sampler(2), gpu(2, 5.0)]
    assert stretches(rows, "gpu0", "energy_j") == [[(1, 4.0), (2, 5.0)]]
    rows = [gpu(1, 4.0), gpu(2, None), gpu(3, None), gpu(4, 6.0), gpu(5, 0.5)]
    assert stretches(rows, "gpu0", "energy_j") == [[(1, 4.0)], [(4, 6.0)], [(5, 0.5)]]
    levels = [CounterRow(at, "gpu0", {"power_w": watts}) for at, watts in ((1, 300.0), (2, 100.0))]
    assert stretches(levels, "gpu0", "power_w") == [[(1, 300.0), (2, 100.0)]]


def test_a_hold_ends_a_stretch_after_the_sample_that_says_so_or_without_one() -> None:
    rows = [sampler(1), gpu(1, 4.0), sampler(2, held=1), gpu(2, 5.0)]
    rows += [sampler(9), gpu(9, 90.0), sampler(10), gpu(10, 91)]
    assert stretches(rows, "gpu0", "energy_j") == [[(1, 4.0), (2, 5.0)], [(9, 90.0), (10, 91)]]
    rows = [sampler(1), gpu(1, 4.0), sampler(2, held=1), sampler(8), sampler(9), gpu(9, 90.0)]
    assert stretches(rows, "gpu0", "energy_j") == [[(1, 4.0)], [(9, 90.0)]]


def test_each_machine_has_its_own_holds() -> None:
    def on(machine: str, row: CounterRow) -> CounterRow:
        return CounterRow(row.at_ns, machine + row.source, row.values)

    rows = [on("node1/", row) for row in (sampler(1), gpu(1, 1.0), sampler(2, held=1), gpu(2, 2.0))]
    rows += [sampler(2), gpu(2, 5.0), sampler(3), gpu(3, 6.0)]
    rows += [on("node1/", row) for row in (sampler(4), gpu(4, 9.0))]
    assert stretches(rows, "node1/gpu0", "energy_j") == [[(1, 1.0), (2, 2.0)], [(4, 9.0)]]
    assert stretches(rows, "gpu0", "energy_j") == [[(2, 5.0), (3, 6.0)]]
    assert [row.at_ns for row in rows if row.ends_stretch] == [2]


def test_every_reason_of_the_probes_has_words_and_an_unknown_one_stands_for_itself() -> None:
    codes = {*reading._OF_ERRNO.values(), *nvml._REASONS.values()}
    codes |= {"not_installed", "gone", "unreadable", "other_pid_namespace"}
    assert len(codes) > 10
    assert not [code for code in codes if explain(code) == code]
    assert explain("no_driver") == "no NVIDIA driver is loaded"
    assert explain("errno_5") == "errno_5"
