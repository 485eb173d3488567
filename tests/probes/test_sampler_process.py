"""A run's own sampler: rows on the run's clock, turns, deaths, and the price."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from harness.probes.sampler_process import SamplerProcess
from harness.results.counters import CounterRow

FAST = 20.0
PATIENCE_S = 60.0


def drain_until(
    sampler: SamplerProcess, enough: Callable[[list[CounterRow]], bool], clock_at: Callable[[int], int] = int
) -> list[CounterRow]:
    """Drain until there are rows enough, or patience ends."""
    rows: list[CounterRow] = []
    deadline = time.monotonic() + PATIENCE_S
    while not enough(rows) and time.monotonic() < deadline:
        time.sleep(0.01)
        rows += sampler.drain(clock_at)
    return rows


def of(rows: list[CounterRow], source: str) -> list[CounterRow]:
    return [row for row in rows if row.source == source]


def test_off_starts_nothing() -> None:
    sampler = SamplerProcess(0, command=("/no/such/program",))
    sampler.watch({"learner": 1})
    sampler.order("go")
    sampler.order("hold")
    assert (sampler.drain(), sampler.own_cpu_s, sampler.notes) == ([], 0.0, [])
    sampler.close()


def test_rows_come_on_the_runs_clock_in_its_own_turns_and_nothing_is_left_behind() -> None:
    own = psutil.Process()
    children, descriptors = set(own.children()), set(os.listdir("/proc/self/fd"))
    origin_ns = time.perf_counter_ns()

    def clock_at(at_ns: int) -> int:
        return at_ns - origin_ns

    sampler = SamplerProcess(FAST)
    (program,) = set(own.children()) - children
    sampler.watch({"learner": os.getpid(), "scorer": program.pid})
    sampler.order("go")
    rows = drain_until(sampler, lambda rows: len(of(rows, "host")) >= 2, clock_at)
    price_s = sampler.own_cpu_s
    assert program.nice() == own.nice() + 5  # it yields to the run
    maps = Path(f"/proc/{program.pid}/maps").read_text()
    assert [name for name in ("libtorch", "/ray/", "/numpy/", "pydantic_core", "/pandas/") if name in maps] == []
    sampler.order("hold")  # another arm has its turn
    rows += drain_until(sampler, lambda rows: any(row.ends_stretch for row in rows), clock_at)
    time.sleep(0.3)
    assert sampler.drain() == []
    turn = len(rows)
    sampler.order("go")
    rows += drain_until(sampler, lambda rows: len(of(rows, "host")) >= 1, clock_at)
    sampler.close()
    rows += sampler.drain(clock_at)
    assert rows[turn].at_ns - rows[turn - 1].at_ns > 250_000_000  # 6 samples at 20 Hz would have fitted
    assert not rows[turn].ends_stretch
    times = [row.at_ns for row in rows]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < time.perf_counter_ns() - origin_ns
    assert {row.source for row in rows} >= {"sampler", "host", "driver", "scorer"}
    assert min(row.values["threads"] or 0 for source in ("driver", "scorer") for row in of(rows, source)) >= 1
    assert 0 < price_s < sampler.own_cpu_s
    assert rows[-1].at_ns == of(rows, "sampler")[-1].at_ns
    assert of(rows, "sampler")[-1].ends_stretch
    assert sampler.notes == []
    assert set(own.children()) <= children
    assert set(os.listdir("/proc/self/fd")) <= descriptors


def test_samples_that_were_left_out_are_a_note_and_times_never_go_back_where_the_runs_clock_was_paused() -> None:
    answers = iter([50, 40, 60])
    sent = (
        f'[{at},[{{"source":"sampler","values":{{"held":0,"left_out":{at}}}}}]]\\n' for at in (1_000, 12_345, 12_345)
    )
    program = f"import socket; end = socket.socket(fileno=0); end.send(b'{''.join(sent)}'); end.recv(1)"
    sampler = SamplerProcess(FAST, command=(sys.executable, "-S", "-c", program))
    rows = drain_until(sampler, lambda rows: len(rows) == 3, lambda at_ns: next(answers))
    assert [row.at_ns for row in rows] == [50, 50, 60]
    sampler.close()
    assert sampler.notes == ["the sampler left out 12,345 samples, which the run did not read in time"]


def test_a_sampler_that_dies_is_a_note_and_what_it_sent_stays() -> None:
    sent = '[7,[{"source":"sampler","values":{"cpu_s":0.5,"held":0}}]]\\n'
    program = f"import socket, sys; end = socket.socket(fileno=0); end.send(b'{sent}'); sys.exit('out of luck')"
    sampler = SamplerProcess(FAST, command=(sys.executable, "-c", program))
    deadline = time.monotonic() + PATIENCE_S
    rows: list[CounterRow] = []
    while not sampler.notes and time.monotonic() < deadline:
        rows += sampler.drain()
        time.sleep(0.01)
    for order in ("go", "hold"):
        sampler.order(order)
    sampler.close()
    sampler.close()
    assert rows == [CounterRow(7, "sampler", {"cpu_s": 0.5, "held": 0})]
    assert sampler.notes == ["the sampler failed: it ended by itself (out of luck)"]
    assert sampler.own_cpu_s >= 0.5


def test_a_sampler_that_is_not_there_is_a_note() -> None:
    sampler = SamplerProcess(FAST, command=("/no/such/program",))
    sampler.order("go")
    sampler.close()
    assert sampler.notes == ["the sampler could not be started (No such file or directory): no counters"]
    assert sampler.drain() == []


def test_a_sampler_that_takes_no_orders_is_killed_and_noted() -> None:
    program = "import time; time.sleep(1000)"
    sampler = SamplerProcess(FAST, command=(sys.executable, "-c", program))
    for _ in range(400):  # more than the socket holds, and than is kept
        sampler.order("x" * 100_000)
    assert sampler.notes == ["the sampler failed: it takes no orders, and was killed"]
    assert sampler.drain() == []
