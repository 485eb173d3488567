"""A run's own sampler: rows on the run's clock, turns, deaths, and the price."""

import os
import sys
import time
from collections.abc import Callable

import psutil

from harness.probes.profile import ProbeProfile
from harness.probes.session import ProbeSession, counter_rows
from harness.results.counters import CounterRow

FAST = ProbeProfile(sampler_hz=20.0)
PATIENCE_S = 60.0


def drain_until(session: ProbeSession, enough: Callable[[list[CounterRow]], bool]) -> list[CounterRow]:
    """Drain until there are rows enough, or patience ends."""
    rows: list[CounterRow] = []
    deadline = time.monotonic() + PATIENCE_S
    while not enough(rows) and time.monotonic() < deadline:
        time.sleep(0.01)
        rows += session.drain()
    return rows


def of(rows: list[CounterRow], source: str) -> list[CounterRow]:
    return [row for row in rows if row.source == source]


def test_off_starts_nothing() -> None:
    session = ProbeSession(ProbeProfile(), lambda at_ns: at_ns, command=("/no/such/program",))
    session.watch({"learner": 1})
    session.go()
    session.hold()
    assert (session.drain(), session.own_cpu_s, session.notes) == ([], 0.0, [])
    session.close()


def test_rows_come_on_the_runs_clock_in_order_and_the_price_grows() -> None:
    origin_ns = time.perf_counter_ns()
    session = ProbeSession(FAST, lambda at_ns: at_ns - origin_ns)
    session.watch({"learner": os.getpid(), "scorer": os.getppid()})
    session.go()
    first = drain_until(session, lambda rows: len(of(rows, "host")) >= 2)
    price_s = session.own_cpu_s
    rest = drain_until(session, lambda rows: len(of(rows, "host")) >= 2)
    session.close()
    rest += session.drain()
    rows = first + rest
    times = [row.at_ns for row in rows]
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] < time.perf_counter_ns() - origin_ns
    assert {row.source for row in rows} >= {"sampler", "host", "driver", "scorer"}
    assert 0 < price_s < session.own_cpu_s
    assert rows[-1].at_ns == of(rows, "sampler")[-1].at_ns
    assert of(rows, "sampler")[-1].ends_stretch
    assert session.notes == []


def test_no_samples_while_another_arm_has_its_turn() -> None:
    session = ProbeSession(FAST, lambda at_ns: at_ns)
    session.go()
    turn = drain_until(session, lambda rows: len(of(rows, "host")) >= 2)
    session.hold()
    turn += drain_until(session, lambda rows: any(row.ends_stretch for row in rows))
    time.sleep(0.3)
    assert session.drain() == []
    session.go()
    next_turn = drain_until(session, lambda rows: len(of(rows, "host")) >= 1)
    session.close()
    assert not next_turn[0].ends_stretch
    assert next_turn[0].at_ns - turn[-1].at_ns > 250_000_000  # 6 samples at 20 Hz would have fitted


def test_times_never_go_back_where_the_runs_clock_was_paused() -> None:
    answers = iter([50, 40, 60])
    session = ProbeSession(FAST, lambda at_ns: next(answers, 100))
    session.go()
    rows = of(drain_until(session, lambda rows: len(of(rows, "host")) >= 3), "host")
    session.close()
    assert [row.at_ns for row in rows[:3]] == [50, 50, 60]


def test_a_sampler_that_dies_is_a_note_and_what_it_sent_stays() -> None:
    sent = r"""{"at_ns":7,"rows":[{"source":"sampler","values":{"cpu_s":0.5,"held":0}}]}"""
    program = f"import sys; print('{sent}'); sys.stdout.flush(); sys.exit('out of luck')"
    session = ProbeSession(FAST, lambda at_ns: at_ns, command=(sys.executable, "-c", program))
    deadline = time.monotonic() + PATIENCE_S
    rows: list[CounterRow] = []
    while not session.notes and time.monotonic() < deadline:
        rows += session.drain()
        time.sleep(0.01)
    for order in (session.go, session.hold, session.close, session.close):
        order()
    assert rows == [CounterRow(7, "sampler", {"cpu_s": 0.5, "held": 0})]
    assert session.notes == ["the sampler failed: it ended by itself (out of luck)"]
    assert session.own_cpu_s >= 0.5


def test_a_sampler_that_is_not_there_is_a_note() -> None:
    session = ProbeSession(FAST, lambda at_ns: at_ns, command=("/no/such/program",))
    session.go()
    session.close()
    assert session.notes == ["the sampler could not be started (No such file or directory): no counters"]
    assert session.drain() == []


def test_a_sampler_that_takes_no_orders_is_killed_and_noted() -> None:
    program = "import time; time.sleep(1000)"
    session = ProbeSession(FAST, lambda at_ns: at_ns, command=(sys.executable, "-c", program))
    for _ in range(40_000):  # more than the 64 KiB that a pipe holds, and as many that are kept
        session.go()
    assert session.notes == ["the sampler failed: it takes no orders, and was killed"]
    assert session.drain() == []


def test_nothing_is_left_behind() -> None:
    own = psutil.Process()
    children, descriptors = set(own.children()), set(os.listdir("/proc/self/fd"))
    session = ProbeSession(FAST, lambda at_ns: at_ns)
    session.go()
    assert len(set(own.children()) - children) == 1
    session.close()
    assert set(own.children()) <= children
    assert set(os.listdir("/proc/self/fd")) <= descriptors


def test_rows_of_another_machine_are_marked() -> None:
    sample = {"at_ns": 1000, "rows": [{"source": "gpu0", "values": {"power_w": None}, "missing": {"power_w": "lost"}}]}
    (row,) = counter_rows(sample, lambda at_ns: at_ns + 5, prefix="node1/")
    assert row == CounterRow(1005, "node1/gpu0", {"power_w": None}, {"power_w": "lost"})
