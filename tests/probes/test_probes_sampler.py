"""The sampler: its pace, its orders, and the process: what it sends, and that it ends with whoever started it."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.probes.nvml import GpuProbe
from harness.probes.sampler import Inbox, Outbox, PacedSampling, Sampling, SamplingThread, Throttle, obey
from tests.stand_ins.fake_nvml import LIBRARY_NOT_FOUND, FakeDevice, FakeNvml, NVMLError

MS = 1_000_000
COMMAND = [sys.executable, "-m", "harness.probes.sampler", "--hz", "20"]
PATIENCE_S = 60.0


class Clock:
    """A clock set by hand, in milliseconds."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms * MS


def no_gpus() -> GpuProbe:
    return GpuProbe(FakeNvml(init=NVMLError(LIBRARY_NOT_FOUND)))


def sampling(clock: Callable[[], int], open_gpus: Callable[[], GpuProbe] = no_gpus) -> Sampling:
    return Sampling(os.getpid(), clock, lambda: 0.25, open_gpus)


def rows(sample: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["source"]: row for row in sample["rows"]}


def test_the_pace_is_one_sample_a_period_from_the_start_of_the_stretch() -> None:
    pace = Throttle(5)
    pace.go(10 * MS)
    assert pace.due_in_s(10 * MS) == 0
    pace.sampled(10 * MS)
    assert pace.due_in_s(11 * MS) == pytest.approx(0.199)
    pace.sampled(215 * MS)  # 5 ms late: the next one is not
    assert pace.due_in_s(215 * MS) == pytest.approx(0.195)


def test_missed_samples_are_not_made_up_for() -> None:
    pace = Throttle(5)
    pace.go(0)
    pace.sampled(0)
    pace.sampled(1050 * MS)  # those at 200, 400, 600, 800 and 1000 ms
    assert pace.due_in_s(1050 * MS) == pytest.approx(0.150)


def test_a_held_pace_wants_no_sample_and_going_twice_changes_nothing() -> None:
    pace = Throttle(5)
    assert (pace.is_going, pace.due_in_s(0)) == (False, None)
    pace.go(0)
    pace.sampled(0)
    pace.go(50 * MS)
    assert pace.due_in_s(100 * MS) == pytest.approx(0.1)
    pace.hold()
    assert (pace.is_going, pace.due_in_s(150 * MS)) == (False, None)


def test_turns_that_are_shorter_than_half_a_period_do_not_hasten_the_pace() -> None:
    clock, samples = Clock(), list[dict[str, Any]]()
    station = PacedSampling(sampling(clock), 5, samples.append, clock)
    for _ in range(100):  # a second of turns, 5 ms on and 5 ms off
        station.go()
        station.sample_if_due()
        clock.ms += 5
        station.sample_if_due()
        station.hold()
        clock.ms += 5
    full = [sample for sample in samples if "host" in rows(sample)]
    assert len(full) == 10  # one each 100 ms, half a period of 5 Hz
    assert len(samples) - len(full) == 100 - sum(rows(sample)["sampler"]["values"]["held"] for sample in full)


def test_a_stretch_has_a_sample_at_both_ends_and_the_last_one_says_so() -> None:
    clock, samples = Clock(), list[dict[str, Any]]()
    station = PacedSampling(sampling(clock), 5, samples.append, clock)
    assert station.sample_if_due() is None
    station.go()
    assert station.sample_if_due() == pytest.approx(0.2)
    clock.ms = 150
    assert station.sample_if_due() == pytest.approx(0.05)
    station.hold()
    station.hold()
    clock.ms = 900
    assert station.sample_if_due() is None
    station.close()
    assert [(sample["at_ns"] // MS, rows(sample)["sampler"]["values"]["held"]) for sample in samples] == [
        (0, 0),
        (150, 1),
    ]


def test_a_sample_has_the_sampler_first_then_machine_processes_and_gpus() -> None:
    taker = sampling(Clock(), lambda: GpuProbe(FakeNvml([FakeDevice(), FakeDevice("GPU-1")])))
    taker.watch({"learner": os.getppid(), "scorer": os.getpid()})
    sample = taker.sample()
    assert [row["source"] for row in sample["rows"]] == ["sampler", "host", "driver", "learner", "gpu0", "gpu1"]
    assert rows(sample)["sampler"]["values"] == {"cpu_s": 0.25, "held": 0}
    assert rows(sample)["gpu0"]["values"]["energy_j"] == 1000
    assert json.loads(json.dumps(sample)) == sample


def test_without_a_driver_one_row_says_why_and_only_once() -> None:
    taker = sampling(Clock())
    assert rows(taker.sample())["gpu"] == {"source": "gpu", "values": {}, "missing": {"gpu": "no_driver"}}
    assert [source for source in rows(taker.sample()) if source.startswith("gpu")] == []


def test_gpus_are_let_go_at_the_end() -> None:
    nvml = FakeNvml([FakeDevice()])
    taker = sampling(Clock(), lambda: GpuProbe(nvml))
    assert nvml.opened == 0
    taker.sample()
    taker.sample()
    assert nvml.opened == 1
    taker.close()
    assert nvml.opened == 0


def test_orders() -> None:
    clock, samples = Clock(), list[dict[str, Any]]()
    station = PacedSampling(sampling(clock), 5, samples.append, clock)
    orders = ["go", "no such order", {"processes": {"learner": os.getppid()}}, 7, None]
    assert [obey(station, order) for order in orders] == [True] * 5
    station.sample_if_due()
    assert [row["source"] for row in samples[0]["rows"]] == ["sampler", "host", "driver", "learner", "gpu"]
    assert obey(station, "stop") is False


def test_orders_arrive_in_pieces_and_the_end_of_the_input_is_none() -> None:
    reading, writing = os.pipe()
    inbox = Inbox(reading)
    assert inbox.wait(0) == []
    os.write(writing, b'"go"\n{"proc')
    assert inbox.wait(PATIENCE_S) == ["go"]
    os.write(writing, b'esses": {}}\n"hold"\n')
    assert inbox.wait(PATIENCE_S) == [{"processes": {}}, "hold"]
    os.close(writing)
    assert inbox.wait(PATIENCE_S) is None
    os.close(reading)


def test_an_outbox_never_waits_and_loses_nothing() -> None:
    reading, writing = os.pipe()
    outbox = Outbox(writing)
    samples = [{"at_ns": number, "rows": ["x" * 1000]} for number in range(300)]  # far more than a pipe of 64 KiB
    for sample in samples:
        outbox.add(sample)
    received = b""
    while received.count(b"\n") < 300:
        outbox.push()
        received += os.read(reading, 1 << 16)
    assert [json.loads(line) for line in received.splitlines()] == samples
    for sample in samples:
        outbox.add(sample)
    with ThreadPoolExecutor() as threads:
        finished = threads.submit(outbox.finish)
        received = b""
        while received.count(b"\n") < 300:
            received += os.read(reading, 1 << 16)
        finished.result()
    assert [json.loads(line) for line in received.splitlines()] == samples
    for sample in samples:
        outbox.add(sample)
    outbox.finish(patience_s=0.01)  # nobody reads: it does not wait for ever
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        outbox.add(samples[0])
    os.close(writing)


def start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def order(process: subprocess.Popen[bytes], what: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(what).encode() + b"\n")


def sample_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([process.stdout], [], [], PATIENCE_S)[0], "no sample came"
        line += process.stdout.read(1)
    sample: dict[str, Any] = json.loads(line)
    return sample


def test_the_process_samples_on_the_clock_of_this_one_and_says_what_it_costs() -> None:
    before_ns = time.perf_counter_ns()
    with start() as process:
        order(process, {"processes": {"learner": process.pid}})
        order(process, "go")
        samples = [sample_of(process) for _ in range(4)]
        after_ns = time.perf_counter_ns()
        order(process, "stop")
        rest = process.communicate(timeout=PATIENCE_S)[0].splitlines()
    times = [sample["at_ns"] for sample in samples]
    assert before_ns < times[0]
    assert times == sorted(set(times))
    assert times[-1] < after_ns
    costs = [rows(sample)["sampler"]["values"]["cpu_s"] for sample in samples]
    assert costs == sorted(costs)
    assert costs[0] > 0
    assert rows(samples[0])["driver"]["values"]["rss_bytes"] > 2**20  # this process, which started it
    assert rows(samples[0])["learner"]["values"]["threads"] >= 1
    assert process.returncode == 0
    assert json.loads(rest[-1])["rows"][0]["values"]["held"] == 1


def test_the_process_yields_to_the_run_and_loads_no_heavy_library() -> None:
    program = "import sys, harness.probes.sampler; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = {"torch", "ray", "numpy", "pandas", "pydantic", "psutil", "pynvml", "scipy"}
    assert heavy & set(done.stdout.split()) == set()
    with start() as process:
        order(process, "go")
        sample_of(process)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 5
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("going", [True, False])
def test_the_process_ends_when_its_input_does(going: bool) -> None:
    with start() as process:
        if going:
            order(process, "go")
            sample_of(process)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def test_the_process_ends_with_a_killed_driver_even_if_a_child_holds_its_input_open(tmp_path: Path) -> None:
    """The driver forks a child, which inherits the pipe, and is killed."""
    program = f"""
import os, subprocess, sys, time
process = subprocess.Popen({COMMAND!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
process.stdin.write(b'"go"\\n'); process.stdin.flush(); process.stdout.readline()
child = os.fork()
if child == 0:
    time.sleep({PATIENCE_S})
    os._exit(0)
print(process.pid, child, flush=True)
time.sleep({PATIENCE_S})
"""
    driver = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    sampler, child = (int(pid) for pid in driver.stdout.readline().split())
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    try:
        deadline = time.monotonic() + PATIENCE_S / 2
        while is_running(sampler) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not is_running(sampler)
        assert is_running(child)
    finally:
        os.kill(child, signal.SIGKILL)
        driver.stdout.close()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_thread_samples_as_well() -> None:
    thread = SamplingThread(hz=20)
    thread.order({"processes": {"learner": os.getpid()}})
    thread.order("go")
    samples: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(samples) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
        samples += thread.drain()
    thread.close()
    samples += thread.drain()
    assert len(samples) >= 4
    assert [rows(sample)["sampler"]["values"]["held"] for sample in samples] == [0] * (len(samples) - 1) + [1]
    assert {"sampler", "host", "driver"} <= set(rows(samples[0]))
