"""Counters of host, GPUs and processes as tracks."""

from __future__ import annotations

from harness.report.trace.events import Instant, Sample
from harness.report.trace.resources import resource_tracks
from harness.results.counters import CounterRow

SECOND = 1_000_000_000


def test_gauges_are_shown_as_read_and_growing_counters_by_their_growth() -> None:
    rows = [
        CounterRow(0, "learner", {"rss_bytes": 100, "cpu_s": 50.0}),
        CounterRow(2 * SECOND, "learner", {"rss_bytes": 300, "cpu_s": 53.0}),
        CounterRow(3 * SECOND, "learner", {"rss_bytes": 200, "cpu_s": 53.5}),
    ]

    [group] = resource_tracks(rows)

    assert group.name == "counters of learner"
    assert [(track.name, track.unit, track.samples) for track in group.children] == [
        ("rss_bytes", "bytes", [Sample(0, 100), Sample(2 * SECOND, 300), Sample(3 * SECOND, 200)]),
        # 3 s of CPU in 2 s, then 0.5 in 1
        ("cpu_s per second", "s/s", [Sample(0, 1.5), Sample(2 * SECOND, 0.5)]),
    ]


def test_what_was_not_read_has_a_reason_and_no_zero() -> None:
    rows = [
        CounterRow(5, "gpu0", {"utilisation": None, "power_w": 70.0}, {"utilisation": "MIG is on"}),
        CounterRow(9, "gpu0", {"utilisation": None, "power_w": None}, {"utilisation": "MIG is on", "power_w": "lost"}),
    ]

    [group] = resource_tracks(rows)

    assert [(track.name, track.unit, track.samples) for track in group.children] == [
        ("power_w", "W", [Sample(5, 70.0)])
    ]
    reasons = (("power_w", "lost"), ("utilisation", "MIG is on"))
    assert group.instants == [Instant(5, "not read", ("missing",), reasons)]


def test_growth_is_not_taken_across_a_turn_of_another_arm_nor_across_a_fresh_start() -> None:
    rows = [
        CounterRow(0, "sampler", {"held": 0}),
        CounterRow(0, "host", {"cpu_busy_s": 10.0}),
        CounterRow(SECOND, "sampler", {"held": 1}),
        CounterRow(SECOND, "host", {"cpu_busy_s": 12.0}),
        CounterRow(9 * SECOND, "sampler", {"held": 0}),
        CounterRow(9 * SECOND, "host", {"cpu_busy_s": 90.0}),
        CounterRow(10 * SECOND, "host", {"cpu_busy_s": 91.0}),
        CounterRow(11 * SECOND, "host", {"cpu_busy_s": 1.0}),
    ]

    host = next(group for group in resource_tracks(rows) if group.name == "counters of host")

    assert host.children[0].samples == [Sample(0, 2.0), Sample(9 * SECOND, 1.0)]


def test_a_run_without_counters_has_no_such_tracks() -> None:
    assert resource_tracks([]) == []
