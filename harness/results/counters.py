"""Counters of a run, sampled beside it: ``counters.jsonl``, one row for each source and sample.

A source is ``host``, ``gpu0`` (the first GPU that the run may use), ``sampler`` (the probe itself), a process (its
lane, several joined by ``+``, or ``driver``, which holds every other lane), or a user's own probe by its
``package.module:Name``; of another machine, with its name and ``/`` in front. What could not be read is null, with the
reason under ``missing``. What was counted between a ``sampler`` row with ``held`` 1 and the next row is not the run's.
``left_out`` of a ``sampler`` row, where it is there, counts samples that are missing since nobody read them in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from msgspec import Meta

from harness.results.jsonl import read_rows
from harness.results.rows import COUNTERS, MOST_WHOLE, Row, Whole

HOST, SAMPLER, DRIVER = "host", "sampler", "driver"
HELD, LEFT_OUT = "held", "left_out"


class Counter(NamedTuple):
    """What a counter's values are; one that ``grows`` counts up from an origin that is not the run's."""

    unit: str
    meaning: str
    grows: bool = False


PROCESS_COUNTERS = {
    "cpu_s": Counter("s", "CPU time of the process, over all its threads", grows=True),
    "children_cpu_s": Counter("s", "CPU time of its children that have ended", grows=True),
    "rss_bytes": Counter("bytes", "resident memory"),
    "threads": Counter("", "threads"),
}
HOST_COUNTERS = {
    "cpu_busy_s": Counter("s", "time in which cores worked, added over cores", grows=True),
    "cpu_idle_s": Counter("s", "time in which cores had nothing to do, or waited for a disk", grows=True),
    "cpu_steal_s": Counter("s", "time that the hypervisor gave to other machines, added over cores", grows=True),
    "load_1min": Counter("", "threads that ran or wanted to, over about a minute"),
    "pressure_cpu_some_s": Counter("s", "time in which some thread waited for a core", grows=True),
    "pressure_memory_some_s": Counter("s", "time in which some thread waited for memory", grows=True),
    "pressure_memory_full_s": Counter("s", "time in which every thread waited for memory", grows=True),
    "pressure_io_some_s": Counter("s", "time in which some thread waited for a disk", grows=True),
    "pressure_io_full_s": Counter("s", "time in which every thread waited for a disk", grows=True),
    "throttled_s": Counter("s", "time in which the cgroup's CPU limit held it back", grows=True),
    "throttled_periods": Counter("", "periods in which the cgroup's CPU limit held it back", grows=True),
    "network_received_bytes": Counter("bytes", "received by all interfaces but the loopback", grows=True),
    "network_sent_bytes": Counter("bytes", "sent by all interfaces but the loopback", grows=True),
    "loopback_bytes": Counter("bytes", "passed through the loopback interface", grows=True),
    "shared_memory_bytes": Counter("bytes", "in use in /dev/shm"),
    "memory_available_bytes": Counter("bytes", "memory that could be had without swapping"),
}
GPU_COUNTERS = {
    "utilisation": Counter("share", "time in which any kernel was resident, over the driver's last window"),
    "memory_used_bytes": Counter("bytes", "device memory in use, by whomever"),
    "sm_clock_mhz": Counter("MHz", "clock of the multiprocessors"),
    "temperature_c": Counter("degrees Celsius", "of the GPU"),
    "power_w": Counter("W", "of the board; where the driver averages, over about a second"),
    "energy_j": Counter("J", "of the board, since the driver was loaded", grows=True),
    "throttled": Counter("", "reasons that hold its clock down"),
    "processes": Counter("", "processes that hold a context on it"),
    "other_processes": Counter("", "of these, not the run's"),
    "other_memory_bytes": Counter("bytes", "device memory of processes that are not the run's"),
}
"""Beside these, ``throttle/<reason>`` is 1 while that reason holds the clock down, and 0 after it has been seen."""

_REASONS = {
    "not_supported": "this device or kernel does not tell it",
    "no_permission": "this user may not read it",
    "not_found": "it is not there",
    "lost": "the GPU has fallen off the bus",
    "reset_required": "the GPU has to be reset",
    "version_mismatch": "the driver and its library are of different versions",
    "no_driver": "no NVIDIA driver is loaded",
    "not_installed": "nvidia-ml-py is not installed",
    "timeout": "the driver did not answer in time",
    "gone": "the process has ended",
    "unreadable": "its form is not known",
    "other_pid_namespace": "the driver names processes that cannot be seen from this container",
    "not_sampled": "it was not sampled",
}


def explain(reason: str) -> str:
    """Return the reason why a value is missing, in words; one that is not known is returned as it is."""
    return _REASONS.get(reason, reason)


class CounterRow(Row, frozen=True):
    """One reading of one source, at a time of the run's clock."""

    file: ClassVar[str] = COUNTERS
    at_ns: Annotated[int, Meta(ge=0, le=MOST_WHOLE)]
    source: str
    values: Mapping[str, Whole | Annotated[float, Meta(ge=-MOST_WHOLE, le=MOST_WHOLE)] | None]
    missing: Mapping[str, str] = {}

    @property
    def ends_stretch(self) -> bool:
        """Whether what is counted from here to the next row is not the run's."""
        return split_source(self.source)[1] == SAMPLER and self.values.get(HELD) == 1


def read_counters(folder: Path) -> list[CounterRow]:
    """Read the counters of a run's folder; empty where none were sampled or the file was left out.

    Raises:
        UserError: the file is damaged (named with its line) or of an unknown schema version.
    """
    return read_rows(folder, CounterRow)


def is_growing(name: str) -> bool:
    """Whether a counter counts up from an origin that is not the run's."""
    return any(table[name].grows for table in (HOST_COUNTERS, GPU_COUNTERS, PROCESS_COUNTERS) if name in table)


def split_source(source: str) -> tuple[str, str]:
    """Return the machine's prefix, empty for the run's own, and the source on it: ``("node1/", "gpu0")``."""
    machine, slash, name = source.rpartition("/")
    if name.isdecimal():  # learner/0 is a rank of the Learner
        machine, slash, part = machine.rpartition("/")
        name = f"{part}/{name}"
    return machine + slash, name


def sources(rows: Iterable[CounterRow]) -> list[str]:
    """Return the sources in the order in which they first appear."""
    return list(dict.fromkeys(row.source for row in rows))


def reasons(rows: Iterable[CounterRow], source: str) -> dict[str, str]:
    """Return why values of a source are missing: the last reason of each name."""
    return {name: reason for row in rows if row.source == source for name, reason in row.missing.items()}


Sample = tuple[int, float]
"""(at_ns, value)."""


def stretches(rows: Iterable[CounterRow], source: str, name: str) -> list[list[Sample]]:
    """Return the known values of a counter as unbroken stretches; none is empty.

    A stretch ends where the run was held, where a value is missing, and where a growing counter fell: it wrapped
    around or began anew, so that a difference across that place means nothing.
    """
    grows, sampler = is_growing(name), split_source(source)[0] + SAMPLER
    found: list[list[Sample]] = [[]]
    broken = ends = False
    for row in rows:
        if row.source == sampler:  # the first row of each sample
            broken, ends = broken or ends, row.ends_stretch
        if row.source != source or name not in row.values:
            continue
        value, last = row.values[name], found[-1]
        if last and (broken or value is None or (grows and value < last[-1][1])):
            found.append([])
        broken = False
        if value is not None:
            found[-1].append((row.at_ns, value))
    return [stretch for stretch in found if stretch]
