"""The host probe on made-up kernel files: each number by hand, each missing file a reason, never 0."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from harness.probes.host import (
    HostProbe,
    KernelFile,
    ProcessProbe,
    core_times,
    find_cpu_stat,
    network_bytes,
    pressure_totals,
    process_figures,
    source_pids,
    throttling,
)
from harness.probes.reading import Reading, Unknown
from harness.results.counters import HOST_COUNTERS, PROCESS_COUNTERS

TICK = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
# user nice system idle iowait irq softirq steal guest guest_nice, in ticks: proc(5)
STAT = "cpu  1000 20 300 5000 400 5 6 70 99 9\ncpu0 500 10 150 2500 200 3 3 35 50 5\nintr 1\n"
PRESSURE = (
    "some avg10=1.61 avg60=1.03 avg300=1.06 total=5894225\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n"
)
NETWORK = """Inter-|   Receive  |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs ...
    lo: 777 8 0 0 0 0 0 0 777 8 0 0 0 0 0 0
  eth0:1000 8 0 0 0 0 0 0 200 8 0 0 0 0 0 0
   ib0: 50 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def process_stat(name: str = "python") -> str:
    """Fields of proc(5): 14-17 are user, system and children's ticks, 20 the threads, 24 the resident pages."""
    fields = {1: "42", 2: f"({name})", 3: "S", 14: "250", 15: "50", 16: "30", 17: "20", 20: "7", 24: "1000"}
    return " ".join(fields.get(number, "0") for number in range(1, 53))


@pytest.fixture
def machine(tmp_path: Path) -> HostProbe:
    proc = write(
        tmp_path / "proc",
        {
            "stat": STAT,
            "loadavg": "0.61 0.30 1.05 1/93 4633\n",
            "meminfo": "MemTotal:       1000 kB\nMemFree: 5 kB\nMemAvailable:    300 kB\n",
            "net/dev": NETWORK,
            "pressure/cpu": PRESSURE,
            "pressure/memory": PRESSURE,
            "pressure/io": PRESSURE,
            "self/cgroup": "0::/slice/job\n",
        },
    )
    text = "usage_usec 9\nnr_periods 5\nnr_throttled 3\nthrottled_usec 2500000\n"
    cgroup = write(tmp_path / "cgroup", {"slice/job/cpu.stat": text})
    return HostProbe(proc, cgroup, tmp_path)


def test_every_counter_of_the_machine(machine: HostProbe, tmp_path: Path) -> None:
    reading = machine.read()
    folder = os.statvfs(tmp_path)
    shared = reading.values.pop("shared_memory_bytes")
    assert shared == pytest.approx((folder.f_blocks - folder.f_bfree) * folder.f_frsize, rel=0.01)  # others write too
    assert reading.missing == {}
    assert reading.values == {
        "cpu_busy_s": pytest.approx((1000 + 20 + 300 + 5 + 6) * TICK),
        "cpu_idle_s": pytest.approx((5000 + 400) * TICK),
        "cpu_steal_s": pytest.approx(70 * TICK),
        "load_1min": 0.61,
        "pressure_cpu_some_s": 5.894225,
        "pressure_memory_some_s": 5.894225,
        "pressure_memory_full_s": 1.5,
        "pressure_io_some_s": 5.894225,
        "pressure_io_full_s": 1.5,
        "throttled_s": 2.5,
        "throttled_periods": 3,
        "network_received_bytes": 1050,
        "network_sent_bytes": 205,
        "loopback_bytes": 777,
        "memory_available_bytes": 300 * 1024,
    }
    (tmp_path / "proc/loadavg").write_text("2.50 0.30 1.05 1/93 4633\n")
    assert machine.read().values["load_1min"] == 2.5  # files are read anew each time


def test_a_machine_that_tells_nothing_is_null_with_reasons_and_never_0(tmp_path: Path) -> None:
    reading = HostProbe(tmp_path / "proc", tmp_path / "cgroup", tmp_path / "shm").read()
    assert reading.values == dict.fromkeys(HOST_COUNTERS)
    assert reading.missing == dict.fromkeys(HOST_COUNTERS, "not_found")


def test_files_of_an_unknown_form_are_null_with_a_reason(tmp_path: Path) -> None:
    names = ["stat", "loadavg", "meminfo", "net/dev", "pressure/cpu", "pressure/memory", "pressure/io"]
    asked = ("cpu_busy_s", "load_1min", "pressure_cpu_some_s", "pressure_io_full_s", "memory_available_bytes")
    for text in ("", "nonsense\n", "cpu  1 2\n", "some\n", "lo: 1\n" * 4):
        reading = HostProbe(write(tmp_path, dict.fromkeys(names, text)), tmp_path, tmp_path).read()
        assert [reading.values[name] for name in asked] == [None] * 5
        assert {reading.missing[name] for name in asked} <= {"unreadable", "not_found"}


def test_what_no_permission_and_other_errors_are_called() -> None:
    errors = [PermissionError(13, "no"), FileNotFoundError(2, "no"), OSError(95, "no"), OSError(5, "no"), ValueError()]
    reading = Reading("host")

    def fail(error: Exception) -> tuple[float]:
        raise error

    for number, error in enumerate(errors):
        reading.take((str(number),), partial(fail, error))
    reasons = ["no_permission", "not_found", "not_supported", "errno_5", "unreadable"]
    assert list(reading.missing.values()) == reasons


def test_a_file_that_cannot_be_opened_is_tried_once(tmp_path: Path) -> None:
    file = KernelFile(tmp_path / "later", lambda text: (float(text),))
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            file()
        (tmp_path / "later").write_text("now")


def test_this_machines_own_files_are_understood() -> None:
    reading = HostProbe().read()
    assert all((reading.values[name] or 0) > 0 for name in ("cpu_busy_s", "cpu_idle_s"))
    assert set(reading.values) == set(HOST_COUNTERS)
    assert "unreadable" not in reading.missing.values()


def test_throttling_of_both_versions() -> None:
    assert throttling(b"nr_periods 9\nnr_throttled 4\nthrottled_time 1500000000\n") == (1.5, 4)  # version 1: ns
    assert throttling(b"usage_usec 1\nnr_throttled 4\nthrottled_usec 1500000\n") == (1.5, 4)  # version 2: us
    with pytest.raises(Unknown):
        throttling(b"usage_usec 1\nuser_usec 1\n")  # the root of version 2 has no limit


@pytest.mark.parametrize(
    ("membership", "file", "found"),
    [
        ("0::/a/b\n", "a/b/cpu.stat", "a/b/cpu.stat"),
        ("0::/a/b\n", "a/cpu.stat", "a/cpu.stat"),  # the controller is on further up only
        ("0::/host/path\n", "cpu.stat", "cpu.stat"),  # a container sees its own cgroup as the root
        ("1:cpu:/a\n0::/\n", "cpu/a/cpu.stat", "cpu/a/cpu.stat"),
        ("4:cpu,cpuacct:/a\n", "cpu/a/cpu.stat", "cpu/a/cpu.stat"),
        ("4:cpu,cpuacct:/a\n", "cpu,cpuacct/a/cpu.stat", "cpu,cpuacct/a/cpu.stat"),
        ("1:cpu:/\n0::/x\n", "cpu/cpu.stat", "cpu/cpu.stat"),
        ("0::/a\n", "b/cpu.stat", None),
        ("", "cpu.stat", None),
    ],
)
def test_the_cgroups_file(tmp_path: Path, membership: str, file: str, found: str | None) -> None:
    write(tmp_path, {f"cgroup/{file}": "", "cgroup-list": membership})
    path = find_cpu_stat(tmp_path / "cgroup-list", tmp_path / "cgroup")
    assert path == (tmp_path / "cgroup" / found if found else None)


def test_lines_that_a_kernel_may_not_have_and_a_process_whatever_its_name() -> None:
    with pytest.raises(ValueError, match="first line"):
        core_times(b"intr 1 2 3 4 5 6 7 8 9\n")
    assert network_bytes(b"a\nb\n") == (0, 0, 0)
    assert pressure_totals(PRESSURE.splitlines()[0].encode()) == (5.894225,)  # old ones have no line full
    for name in ("python", "a) S 1 (b", "ray::IDLE worker", ""):
        figures = process_figures(process_stat(name).encode())
        assert figures == pytest.approx((300 * TICK, 50 * TICK, 1000 * PAGE, 7)), name


def test_lanes_of_one_process_are_one_source_and_the_drivers_lanes_are_the_driver() -> None:
    lanes = {"learner": 5, "generator0": 7, "generator1": 7, "scorer": 1}
    assert source_pids(lanes, driver=1) == {"driver": 1, "learner": 5, "generator0+generator1": 7}
    assert source_pids({}, driver=1) == {"driver": 1}


def test_processes_by_source_one_that_is_not_there_and_one_that_was_replaced(tmp_path: Path) -> None:
    new = process_stat().replace(" 250 ", " 950 ")
    write(tmp_path, {"1/stat": process_stat(), "5/stat": process_stat(), "7/stat": new})
    probe = ProcessProbe(driver=1, proc=tmp_path)
    probe.watch({"learner": 5, "scorer": 6})
    driver, learner, scorer = probe.read()
    assert [reading.source for reading in (driver, learner, scorer)] == ["driver", "learner", "scorer"]
    assert learner.values == {
        "cpu_s": pytest.approx(3.0 * 100 * TICK),
        "children_cpu_s": pytest.approx(0.5 * 100 * TICK),
        "rss_bytes": 1000 * PAGE,
        "threads": 7,
    }
    assert scorer.values == dict.fromkeys(PROCESS_COUNTERS)
    assert scorer.missing == dict.fromkeys(PROCESS_COUNTERS, "not_found")
    assert probe.pids == {1, 5, 6}
    probe.watch({"learner": 7})
    seconds = [(reading.source, reading.values["cpu_s"]) for reading in probe.read()]
    assert seconds == [("driver", pytest.approx(300 * TICK)), ("learner", pytest.approx(1000 * TICK))]


def test_a_process_that_has_ended_is_gone_even_if_its_number_is_taken_again() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    probe = ProcessProbe(driver=os.getpid())
    probe.watch({"scorer": process.pid})
    assert probe.read()[1].missing == {}  # running, or a zombie, which still has its figures
    process.wait()
    assert probe.read()[1].missing == dict.fromkeys(PROCESS_COUNTERS, "gone")
