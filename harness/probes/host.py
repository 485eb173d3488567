"""The machine and the run's processes, as the kernel tells of them. Linux; the same files as psutil reads.

The files stay open and are read again from their start, which costs 1 to 10 microseconds each: psutil opens three
files for one process and builds objects, ten times as much, and knows neither pressure nor throttling, so that these
files would be read here all the same. All totals are the kernel's own counters.

Sources: proc(5), https://docs.kernel.org/accounting/psi.html, https://docs.kernel.org/admin-guide/cgroup-v2.html.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.probes.reading import Reading, Unknown
from harness.results.counters import DRIVER, HOST, PROCESS_COUNTERS

_BUFFER = 1 << 16
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class KernelFile:
    """Figures in a file of the kernel's, which is opened at its first reading and read from its start each time."""

    def __init__(self, path: Path, parse: Callable[[bytes], tuple[float, ...]]) -> None:
        self._path, self._parse = path, parse
        self._descriptor: int | None = None
        self._error: OSError | None = None

    def __call__(self) -> tuple[float, ...]:
        """Return the figures.

        Raises:
            OSError: it cannot be opened or read. One that could not be opened is not tried again.
        """
        if self._error is not None:
            raise self._error
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                self._error = error
                raise
        return self._parse(os.pread(self._descriptor, _BUFFER, 0))

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


class HostProbe:
    """Reads the machine's counters; see ``harness.results.counters.HOST_COUNTERS``.

    Args:
        proc, cgroup, shared_memory: the folders; others in tests.
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroup: Path = Path("/sys/fs/cgroup"),
        shared_memory: Path = Path("/dev/shm"),
    ) -> None:
        cpu_stat = find_cpu_stat(proc / "self/cgroup", cgroup) or proc / "no cpu.stat"
        pressure = proc / "pressure"
        self._reads: dict[tuple[str, ...], Callable[[], tuple[float, ...]]] = {
            ("cpu_busy_s", "cpu_idle_s", "cpu_steal_s"): KernelFile(proc / "stat", core_times),
            ("load_1min",): KernelFile(proc / "loadavg", lambda text: (float(text.split()[0]),)),
            ("pressure_cpu_some_s",): KernelFile(pressure / "cpu", lambda text: pressure_totals(text)[:1]),
            ("pressure_memory_some_s", "pressure_memory_full_s"): KernelFile(pressure / "memory", pressure_totals),
            ("pressure_io_some_s", "pressure_io_full_s"): KernelFile(pressure / "io", pressure_totals),
            ("throttled_s", "throttled_periods"): KernelFile(cpu_stat, throttling),
            ("network_received_bytes", "network_sent_bytes", "loopback_bytes"): KernelFile(
                proc / "net/dev", network_bytes
            ),
            ("shared_memory_bytes",): lambda: used_bytes(os.statvfs(shared_memory)),
            ("memory_available_bytes",): KernelFile(proc / "meminfo", available_memory),
        }

    def read(self) -> Reading:
        reading = Reading(HOST)
        for names, read in self._reads.items():
            reading.take(names, read)
        return reading


def used_bytes(system: os.statvfs_result) -> tuple[float]:
    return ((system.f_blocks - system.f_bfree) * system.f_frsize,)


def core_times(stat: bytes) -> tuple[float, float, float]:
    """Return seconds in which cores worked, had nothing to do, and were given to other machines; from /proc/stat.

    Guests' time is part of user time already, and is not added again.
    """
    name, *fields = stat.split(b"\n", 1)[0].split()
    if name != b"cpu":
        raise ValueError("the first line is not that of all cores")
    user, nice, system, idle, waiting, irq, soft_irq, steal = (int(ticks) / _TICKS for ticks in fields[:8])
    return user + nice + system + irq + soft_irq, idle + waiting, steal


def pressure_totals(pressure: bytes) -> tuple[float, ...]:
    """Return the seconds of the lines ``some`` and, where there is one, ``full`` of a file in /proc/pressure."""
    if not pressure.startswith(b"some "):
        raise ValueError("there is no line `some`")
    return tuple(int(line.rpartition(b"total=")[2]) / 1e6 for line in pressure.splitlines())


def throttling(cpu_stat: bytes) -> tuple[float, float]:
    """Return (seconds, periods) in which the cgroup was held back, from its ``cpu.stat``: version 1 or 2."""
    fields = dict(line.split() for line in cpu_stat.splitlines())
    if b"throttled_usec" in fields:
        return int(fields[b"throttled_usec"]) / 1e6, int(fields[b"nr_throttled"])
    if b"throttled_time" in fields:
        return int(fields[b"throttled_time"]) / 1e9, int(fields[b"nr_throttled"])
    raise Unknown("not_found")  # the root cgroup of version 2 has no limit, and so no such lines


def network_bytes(net_dev: bytes) -> tuple[float, float, float]:
    """Return bytes (received, sent, through the loopback interface), added over interfaces; from /proc/net/dev."""
    received = sent = loopback = 0
    for line in net_dev.splitlines()[2:]:
        name, _, text = line.partition(b":")
        fields = text.split()
        if name.strip() == b"lo":
            loopback += int(fields[0])
        else:
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent, loopback


def available_memory(meminfo: bytes) -> tuple[float]:
    """Return the bytes of MemAvailable in /proc/meminfo."""
    _, found, rest = meminfo.partition(b"MemAvailable:")
    if not found:
        raise Unknown("not_found")
    return (int(rest.split(None, 1)[0]) * 1024,)


def find_cpu_stat(membership: Path, cgroup: Path) -> Path | None:
    """Return the ``cpu.stat`` of this process's own cgroup, or of the nearest one above it that has one; else None.

    Args:
        membership: /proc/self/cgroup. Its line ``0::/path`` is of version 2; one with ``cpu`` among its controllers is
            of version 1, and comes first where both are.
        cgroup: /sys/fs/cgroup.
    """
    try:
        lines = [line.split(":", 2) for line in membership.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        return None
    roots = [(cgroup / "cpu", path) for _, names, path in lines if "cpu" in names.split(",")]
    roots += [(cgroup / names, path) for _, names, path in lines if names == "cpu,cpuacct"]
    roots += [(cgroup, path) for number, names, path in lines if number == "0" and not names]
    for root, path in roots:
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):  # a container may see its own cgroup as the root, under another path
            if folder.is_relative_to(root) and (folder / "cpu.stat").is_file():
                return folder / "cpu.stat"
    return None


class ProcessProbe:
    """Reads the run's processes; see ``harness.results.counters.PROCESS_COUNTERS``.

    Args:
        driver: pid of the process that holds the lanes without one of their own.
        proc: another folder in tests.
    """

    def __init__(self, driver: int, proc: Path = Path("/proc")) -> None:
        self._proc, self._driver = proc, driver
        self._reads: dict[tuple[str, int], Callable[[], tuple[float, ...]]] = {}
        self.watch({})

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(pid for _, pid in self._reads)

    def watch(self, processes: Mapping[str, int]) -> None:
        """Read these, by lane, from now on, and the driver. Lanes in one process are one source."""
        reads = self._reads
        self._reads = {
            (source, pid): reads.get((source, pid)) or KernelFile(self._proc / str(pid) / "stat", process_figures)
            for source, pid in source_pids(processes, self._driver).items()
        }

    def read(self) -> list[Reading]:
        """Read them all; one that has ended stays, with its values missing.

        One that had ended before its first reading has no file, and so is ``not_found``.
        """
        readings = []
        for (source, _), read in self._reads.items():
            readings.append(Reading(source))
            readings[-1].take(tuple(PROCESS_COUNTERS), read)
        return readings


def source_pids(processes: Mapping[str, int], driver: int) -> dict[str, int]:
    """Return source to pid: lanes of one process are joined by ``+``, those of the driver are ``driver``."""
    lanes: dict[int, list[str]] = {driver: []}
    for lane, pid in processes.items():
        lanes.setdefault(pid, []).append(lane)
    return {DRIVER if pid == driver else "+".join(names): pid for pid, names in lanes.items()}


def process_figures(stat: bytes) -> tuple[float, float, float, float]:
    """Return CPU seconds, those of ended children, resident bytes and threads; from /proc/<pid>/stat.

    The command's name stands in brackets and may hold anything, brackets and spaces among it.
    """
    if not stat:
        raise ProcessLookupError(3, "ended")
    fields = stat[stat.rindex(b")") + 2 :].split()  # the first is field 3 of proc(5)
    user, system, children_user, children_system = (int(ticks) / _TICKS for ticks in fields[11:15])
    return user + system, children_user + children_system, int(fields[21]) * _PAGE, int(fields[17])
