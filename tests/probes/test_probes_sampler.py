"""The sampler: its pace, its orders, its channel, and that it ends with whoever started it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.probes.nvml import GpuProbe
from harness.probes.reading import Reading
from harness.probes.sampler import Channel, Sample, Sampler
from tests.stand_ins.fake_nvml import LIBRARY_NOT_FOUND, FakeDevice, FakeNvml, NVMLError

MS = 1_000_000
COMMAND = [sys.executable, "-m", "harness.probes.sampler", "--hz", "20"]
PATIENCE_S = 60.0


class Clock:
    """A clock set by hand, in milliseconds."""

    def __init__(self, ms: int = 0) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms * MS


def no_gpus() -> GpuProbe:
    return GpuProbe(FakeNvml(init=NVMLError(LIBRARY_NOT_FOUND)))


def sampler(
    clock: Callable[[], int], open_gpus: Callable[[], GpuProbe] = no_gpus, hz: float = 5
) -> tuple[Sampler, list[Sample]]:
    samples: list[Sample] = []

    def take(sample: Sample) -> bool:
        samples.append(sample)
        return True

    return Sampler(hz, os.getpid(), take, clock_ns=clock, cpu_s=lambda: 0.25, open_gpus=open_gpus), samples


def rows(sample: Sample) -> dict[str, Reading]:
    return {row.source: row for row in sample[1]}


def test_the_pace_is_one_sample_a_period_from_the_start_of_the_stretch() -> None:
    clock = Clock(10)
    taker, samples = sampler(clock)
    assert taker.sample_if_due() is None  # a held pace wants none
    taker.obey("go")
    due = []
    for clock.ms in (10, 11, 215, 1250):  # 5 ms late: the next one is not; those at 410, 610, 810 and 1010 are missed
        due.append(taker.sample_if_due())
        taker.obey("go")  # changes nothing
    assert due == pytest.approx([0.2, 0.199, 0.195, 0.160])
    assert [at_ns // MS for at_ns, _ in samples] == [10, 215, 1250]
    taker.obey("hold")
    clock.ms = 1500
    assert taker.sample_if_due() is None


def test_turns_that_are_shorter_than_half_a_period_do_not_hasten_the_pace() -> None:
    clock = Clock()
    taker, samples = sampler(clock)
    for _ in range(100):  # a second of turns, 5 ms on and 5 ms off
        taker.obey("go")
        taker.sample_if_due()
        clock.ms += 5
        taker.sample_if_due()
        taker.obey("hold")
        clock.ms += 5
    full = [sample for sample in samples if "host" in rows(sample)]
    assert len(full) == 10  # one each 100 ms, half a period of 5 Hz
    assert len(samples) - len(full) == 100 - sum(rows(sample)["sampler"].values["held"] or 0 for sample in full)


def test_a_stretch_has_a_sample_at_both_ends_and_the_last_one_says_so() -> None:
    clock = Clock()
    taker, samples = sampler(clock)
    assert taker.sample_if_due() is None
    taker.obey("go")
    assert taker.sample_if_due() == pytest.approx(0.2)
    clock.ms = 150
    assert taker.sample_if_due() == pytest.approx(0.05)
    taker.obey("hold")
    taker.obey("hold")
    clock.ms = 900
    assert taker.sample_if_due() is None
    taker.close()
    ends = [(sample[0] // MS, rows(sample)["sampler"].values["held"]) for sample in samples]
    assert ends == [(0, 0), (150, 1)]


def test_a_sample_has_the_sampler_first_then_machine_processes_and_gpus() -> None:
    device = FakeDevice(script={"utilisation": [87], "energy": [9_000_250]})
    nvml = FakeNvml([device, FakeDevice("GPU-1")])
    taker, _ = sampler(Clock(), lambda: GpuProbe(nvml))
    assert nvml.opened == 0
    taker.obey({"processes": {"learner": os.getppid(), "scorer": os.getpid()}})
    sample = taker.sample()
    assert [row.source for row in sample[1]] == ["sampler", "host", "driver", "learner", "gpu0", "gpu1"]
    assert rows(sample)["sampler"].values == {"cpu_s": 0.25, "held": 0}
    values = rows(sample)["gpu0"].values  # whole or rounded to six digits
    assert (values["energy_j"], values["utilisation"], str(values["temperature_c"])) == (9000.25, 0.87, "40")
    taker.sample()
    assert nvml.opened == 1
    taker.close()
    assert nvml.opened == 0


def test_without_a_driver_one_row_says_why_and_only_once() -> None:
    taker, _ = sampler(Clock())
    assert rows(taker.sample())["gpu"] == Reading("gpu", {}, {"gpu": "no_driver"})
    assert [source for source in rows(taker.sample()) if source.startswith("gpu")] == []


def test_orders() -> None:
    taker, samples = sampler(Clock())
    orders = ["go", "no such order", {"processes": {"learner": os.getppid()}}, 7, None]
    assert [taker.obey(order) for order in orders] == [True] * 5
    taker.sample_if_due()
    assert [row.source for row in samples[0][1]] == ["sampler", "host", "driver", "learner", "gpu"]
    assert taker.obey("stop") is False


def channels() -> tuple[Channel, Channel]:
    one, other = socket.socketpair()
    return Channel(one), Channel(other)


def test_orders_arrive_whole_and_in_order_and_the_end_is_told() -> None:
    run, there = channels()
    assert there.receive() == []
    for message in ("go", {"processes": {}}, "hold"):
        run.send(message)
    assert there.receive() == ["go", {"processes": {}}, "hold"]
    run.send("stop")
    there.send("never read")
    run.close()
    assert there.receive() == ["stop"]
    assert there.ended
    assert there.send("nobody reads this")
    there.close()


def test_a_channel_never_waits_and_loses_nothing() -> None:
    taker, run = channels()
    samples = [[number, ["x" * 10_000]] for number in range(300)]  # far more than a socket holds
    samples[7] = [7, ["x" * 3_000_000]]  # one of any length
    for sample in samples:
        assert taker.send(sample)
    received: list[Any] = []
    while len(received) < 300:
        taker.push()
        received += run.receive()
    assert received == samples
    for sample in samples:
        taker.send(sample)
    with ThreadPoolExecutor() as threads:
        finished = threads.submit(taker.finish)
        received = []
        while len(received) < 300:
            received += run.receive()
        finished.result()
    assert received == samples
    for sample in samples:
        taker.send(sample)
    taker.finish(patience_s=0.01)  # nobody reads: it does not wait for ever
    taker.close()
    run.close()


def test_samples_that_nobody_reads_are_left_out_and_counted() -> None:
    taker, run = channels()
    assert [taker.send("x" * 100_000) for _ in range(400)].count(False) > 0
    clock = Clock()
    sampler = Sampler(5, os.getpid(), taker.send, clock_ns=clock, open_gpus=no_gpus)
    assert "left_out" not in rows(sampler.sample())["sampler"].values
    for clock.ms in (0, 1000, 2000):  # each has a sample and the mark of its end
        sampler.obey("go")
        sampler.sample_if_due()
        sampler.obey("hold")
    assert rows(sampler.sample())["sampler"].values["left_out"] == 6
    taker.close()
    run.close()


def test_the_process_ends_with_a_killed_driver_even_if_a_child_holds_its_input_open(tmp_path: Path) -> None:
    """The driver forks a child, which inherits the pipe, and is killed."""
    program = f"""
import os, socket, subprocess, sys, time
here, there = socket.socketpair()
process = subprocess.Popen({COMMAND!r}, stdin=there.fileno())
there.close(); here.send(b'"go"\\n'); here.recv(100_000)
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
