"""Figures from counters, by hand."""

import re

import pytest

from harness.compare.checkpoints import checkpoint_cost
from harness.compare.resources import (
    GpuFigures,
    InterpolatedCounter,
    contention,
    gpu_figures,
    process_figures,
    sampling_cpu_s,
)
from harness.core.trace import Span, Stage
from harness.results.counters import CounterRow
from tests.stand_ins.members import made_run

S = 1_000_000_000
GIB = 2**30


def series(source, name, values, every_ns=S, start_ns=0):
    """Return one row for each value."""
    times = range(start_ns, start_ns + len(values) * every_ns, every_ns)
    return [
        CounterRow(at_ns, source, {name: value}, {} if value is not None else {name: "lost"})
        for at_ns, value in zip(times, values, strict=True)
    ]


def host(at_s, **values):
    return CounterRow(at_s * S, "host", values)


def test_a_counter_grows_evenly_between_its_samples():
    counter = InterpolatedCounter([[(0, 10.0), (4, 18.0)], [(10, 100.0), (12, 101.0)]])
    assert counter.growth((0, 12)) == 9.0  # 8 and 1; what happened from 4 to 10 is not counted
    assert counter.growth((1, 3)) == 4.0
    assert counter.growth((3, 11)) == 2.0 + 0.5
    assert counter.growth((5, 9)) is None
    assert counter.covered_ns((3, 11)) == 2
    assert counter.growth((-5, 100)) == 9.0
    assert InterpolatedCounter([[(0, 5.0), (4, 3.0)]]).growth((0, 4)) == 0.0  # a counter that fell has not grown


def test_a_level_is_averaged_over_time_and_not_over_samples():
    counter = InterpolatedCounter([[(0, 0.0), (2, 1.0), (10, 1.0)]])
    assert counter.mean((0, 10)) == 0.9  # the mean of the samples would be 0.67
    assert counter.mean((0, 1)) == 0.25
    assert counter.peak((0, 1)) == 0.0
    assert InterpolatedCounter([[(5, 0.5)]]).mean((0, 10)) == 0.5
    assert InterpolatedCounter([[(5, 0.5)]]).mean((6, 10)) is None
    none = InterpolatedCounter([])
    assert (none.mean((0, 10)), none.growth((0, 10)), none.peak((0, 10))) == (None, None, None)


def test_processes_and_that_a_lost_sample_breaks_the_growth_only_where_it_was():
    rows = series("learner", "cpu_s", [100.0, 101.5, 103.0]) + series("learner", "rss_bytes", [5.0, 9.0, 7.0])
    rows += series("learner", "threads", [3, 4, 4]) + series("generator0+generator1", "cpu_s", [1.0, None, None])
    rows += series("sampler", "cpu_s", [0.1, 0.101, 0.102])
    learner, generators = process_figures(rows, (0, 2 * S))
    assert (learner.source, generators.source) == ("learner", "generator0+generator1")
    assert (learner.cpu_s, learner.cores, learner.peak_rss_bytes, learner.peak_threads) == (3.0, 1.5, 9.0, 4)
    assert (generators.cpu_s, generators.cores) == (None, None)
    assert sampling_cpu_s(rows, (0, 2 * S)) == pytest.approx(0.002)
    assert sampling_cpu_s([], (0, 2 * S)) is None
    (learner,) = process_figures(series("learner", "cpu_s", [1.0, 2.0, None, 9.0, 10.0]), (0, 4 * S))
    assert (learner.cpu_s, learner.cores) == (2.0, 1.0)  # two seconds of four are known


def test_a_gpu_with_its_energy_counter_and_what_is_said_of_none():
    rows = series("gpu0", "utilisation", [0.5, 1.0, 1.0]) + series("gpu0", "power_w", [100.0, 300.0, 300.0])
    rows += series("gpu0", "energy_j", [1000.0, 1220.0, 1500.0]) + series("gpu0", "memory_used_bytes", [1.0, 3.0, 2.0])
    rows += series("gpu0", "throttled", [0, 2, 1])
    # utilisation (0.75 + 1.0) / 2, power (200 + 300) / 2
    gpu = GpuFigures("gpu0", 0.875, 3.0, 250.0, 500.0, pytest.approx(2 / 3))
    assert gpu_figures(rows, (0, 2 * S)) == ([gpu], None)
    rows = series("gpu0", "utilisation", [None, None]) + series("gpu0", "power_w", [100.0, 100.0])
    assert gpu_figures(rows, (0, S)) == ([GpuFigures("gpu0", None, None, 100.0, None, None)], None)
    assert gpu_figures([CounterRow(0, "gpu", {}, {"gpu": "no_driver"})], (0, S)) == ([], "no_driver")
    assert gpu_figures([], (0, S)) == ([], "not_sampled")


def test_contention_in_sentences():
    counters = ("cpu_busy_s", "cpu_idle_s", "cpu_steal_s", "throttled_s")
    counters += ("pressure_cpu_some_s", "pressure_memory_some_s", "pressure_io_some_s")
    busy = dict(zip(counters, (15.0, 4.0, 1.0, 0.5, 3.12, 0.0, 0.6), strict=True))
    rows = [host(0, **dict.fromkeys(counters, 0.0)), host(10, **busy)]
    for source, name, values in (
        ("driver", "cpu_s", [1.0, 8.0]),
        ("sampler", "cpu_s", [0.0, 0.0]),
        ("gpu0", "other_processes", [0, 2]),
        ("gpu0", "other_memory_bytes", [0, 1.5 * GIB]),
        ("gpu0", "throttled", [0, 1, 2, 1]),
        ("gpu0", "throttle/sw_power_cap", [0, 1, 1, 1]),
        ("gpu0", "throttle/hw_thermal", [0, 0, 1, 0]),
        ("gpu0", "throttle/sync_boost", [0, 0, 0, 0]),
    ):
        rows += series(source, name, values, 10 * S if len(values) == 2 else 3 * S)
    found = re.compile(r"\d[\d.]*\d%?|core|disk|cgroup|\d at a time|[a-z]+_[a-z_]+")
    assert [found.findall(text) for text in contention(rows, (0, 10 * S))] == [
        ["31.2%", "core"],
        ["6.0%", "disk"],
        ["5.0%", "core"],  # to other machines
        ["0.800", "core"],  # of others: (15 - 7) / 10
        ["cgroup", "0.500", "core"],
        ["2 at a time", "1.50"],
        ["75.0%", "sw_power_cap", "75.0%", "hw_thermal", "25.0%"],
    ]


def test_cores_of_others_are_those_that_no_process_of_the_run_used():
    level = {"cpu_busy_s": 0.0, "cpu_idle_s": 0.0, "cpu_steal_s": 0.0, "throttled_s": 0.0, "pressure_cpu_some_s": 0.0}
    rows = [host(0, **level), host(10, **(level | {"cpu_busy_s": 8.0, "cpu_idle_s": 12.0}))]
    rows += series("sampler", "cpu_s", [0.0, 0.0], 10 * S)
    own = series("driver", "cpu_s", [1.0, 5.0], 10 * S)
    (others,) = contention(rows + own, (0, 10 * S))
    assert "0.400 cores" in others  # (8 - 4) / 10
    # CPU time of a process that ended counts with its parent; where a process is unknown, others are not guessed
    for more in (series("driver", "children_cpu_s", [0.0, 4.0], 10 * S), series("learner", "cpu_s", [None, None])):
        assert contention(rows + own + more, (0, 10 * S)) == []
    assert contention([], (0, 10 * S)) == []


def test_another_machine_is_told_apart():
    rows = [
        *series("node1/learner", "cpu_s", [0.0, 5.0], 10 * S),
        *series("node1/gpu0", "other_processes", [0, 1], 10 * S),
        *series("node1/host", "throttled_s", [0.0, 2.0], 10 * S),
        *series("host", "throttled_s", [0.0, 0.0], 10 * S),
    ]
    (learner,) = process_figures(rows, (0, 10 * S))
    assert (learner.source, learner.cpu_s) == ("node1/learner", 5.0)
    assert [gpu.source for gpu in gpu_figures(rows, (0, 10 * S))[0]] == ["node1/gpu0"]
    held_back, shared = contention(rows, (0, 10 * S))
    assert (held_back.startswith("node1: "), "2.00 s" in held_back) == (True, True)
    assert shared.startswith("node1: gpu0 ")


# ---- what checkpoints cost


def test_writing_that_slows_updates_beside_it_is_a_part_of_the_cost():
    """Steps of 2 s, of which every second one takes 2.4 s beside the writing of a checkpoint that blocks for 0.1 s."""

    def span(lane, stage, start_s, end_s, step):
        return Span(lane, stage, round(start_s * 1e9), round(end_s * 1e9), step, step)

    spans, at = list[Span](), 0.0
    for step in range(8):
        is_written, last_s = step % 2 == 1, 2.4 if step % 2 else 2.0
        spans.append(span("learner", Stage.UPDATE, at, at + last_s, step))
        if is_written:
            spans.append(span("writer", Stage.CHECKPOINT_WRITE, at, at + last_s, step))
        at += last_s
        if not is_written:
            spans.append(span("learner", Stage.CHECKPOINT, at, at + 0.1, step + 1))
            at += 0.1
    run = made_run(settings={"checkpoint": {"every": 2}}).run
    cost = checkpoint_cost(run, spans, range(8), at / 8)
    assert (cost.blocked_s, cost.exposed_s, cost.slowed_s, cost.cost_s) == pytest.approx((0.1, 0.1, 0.4, 0.5))
    assert cost.step_s == pytest.approx(2.0)  # 2.25 s on average, less 4 x 0.1 of 8 steps and 0.4 of every second
