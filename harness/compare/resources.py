"""What a run used, and what stood in its way: figures from its counters, and sentences on contention.

A window is (start, end) in nanoseconds of the run's clock, such as ``loop_window`` returns. What the counters do not
tell is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import numpy as np
from msgspec import structs

from harness.compare.numbers import number, percent
from harness.core.intervals import Interval
from harness.results.counters import HOST, SAMPLER, CounterRow, Sample, reasons, sources, split_source, stretches


class InterpolatedCounter:
    """The known stretches of one counter of one source, in time order. What lies between them is not counted.

    Args:
        known: as from ``harness.results.counters.stretches``.
    """

    def __init__(self, known: Sequence[Sequence[Sample]]) -> None:
        self._samples = [sample for stretch in known for sample in stretch]
        pieces = [(*one, *two) for stretch in known for one, two in pairwise(stretch) if two[0] > one[0]]
        self._pieces = np.array(pieces, dtype=np.float64).reshape(-1, 4).T

    def covered_ns(self, window: Interval) -> float:
        """Return how much of the window lies within stretches."""
        return self._within(window)[2]

    def growth(self, window: Interval) -> float | None:
        """Return by how much a growing counter grew within the stretches of the window; None where it has none."""
        growth, _, covered_ns = self._within(window)
        return max(0.0, growth) if covered_ns else None

    def mean(self, window: Interval) -> float | None:
        """Return the mean over the window's stretches; a single sample in it is its own mean; None without any."""
        _, area, covered_ns = self._within(window)
        inside = self._inside(window)
        return area / covered_ns if covered_ns else fmean(inside) if inside else None

    def peak(self, window: Interval) -> float | None:
        """Return the largest sample in the window; None without any."""
        return max(self._inside(window), default=None)

    def share_above_zero(self, window: Interval) -> float | None:
        """Return the share of the samples in the window that are above 0; None without any."""
        inside = self._inside(window)
        return sum(value > 0 for value in inside) / len(inside) if inside else None

    def _inside(self, window: Interval) -> list[float]:
        """Return the samples in the window, both ends included."""
        return [value for at_ns, value in self._samples if window[0] <= at_ns <= window[1]]

    def _within(self, window: Interval) -> tuple[float, float, float]:
        """Return (growth, integral over nanoseconds, covered nanoseconds) of the window."""
        start, first, end, last = self._pieces
        low, high = np.clip(window[0], start, end), np.clip(window[1], start, end)
        rise = (last - first) / (end - start)
        before, after = first + rise * (low - start), first + rise * (high - start)
        area = (high - low) * (before + after) / 2
        return float((after - before).sum()), float(area.sum()), float((high - low).sum())


def interpolated(rows: Iterable[CounterRow], source: str, name: str) -> InterpolatedCounter:
    """Return one counter of one source."""
    return InterpolatedCounter(stretches(rows, source, name))


NOT_SAMPLED = "not_sampled"
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """What a process of the run used within a window; ``source`` is its lanes joined by ``+``, or ``driver``.

    ``cores`` is a mean over the time in which it was sampled; of a peak between two samples nothing is seen.
    """

    source: str
    cpu_s: float | None
    cores: float | None
    peak_rss_bytes: float | None
    peak_threads: float | None


def process_figures(rows: Sequence[CounterRow], window: Interval) -> list[ProcessFigures]:
    """Return the figures of each process of the run, the sampler not among them."""
    figures = []
    for source in sources(rows):
        name = split_source(source)[1]
        if name in (HOST, SAMPLER) or name.startswith("gpu") or ":" in name:
            continue
        cpu, memory, threads = (interpolated(rows, source, counter) for counter in ("cpu_s", "rss_bytes", "threads"))
        cpu_s = cpu.growth(window)
        cores = None if cpu_s is None else cpu_s * 1e9 / cpu.covered_ns(window)
        figures.append(ProcessFigures(source, cpu_s, cores, memory.peak(window), threads.peak(window)))
    return figures


def sampling_cpu_s(rows: Sequence[CounterRow], window: Interval) -> float | None:
    """Return the CPU seconds of the sampler on the run's own machine; None where nothing was sampled."""
    return interpolated(rows, SAMPLER, "cpu_s").growth(window)


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """What a GPU did within a window, for whomever; ``energy_j`` is by the board's own counter.

    Utilisation is the share of the time in which any kernel was resident, ``throttled_share`` that in which something
    held its clock down.
    """

    source: str
    mean_utilisation: float | None
    peak_memory_bytes: float | None
    mean_power_w: float | None
    energy_j: float | None
    throttled_share: float | None


def gpu_figures(rows: Sequence[CounterRow], window: Interval) -> tuple[list[GpuFigures], str | None]:
    """Return the figures of each GPU; none, and why, where there is no GPU to be read."""
    figures = []
    for source in sources(rows):
        name = split_source(source)[1]
        if name.startswith("gpu") and name != "gpu":
            used, memory, power, energy, throttled = (
                interpolated(rows, source, counter)
                for counter in ("utilisation", "memory_used_bytes", "power_w", "energy_j", "throttled")
            )
            means = used.mean(window), memory.peak(window), power.mean(window)
            figures.append(GpuFigures(source, *means, energy.growth(window), throttled.share_above_zero(window)))
    return figures, None if figures else reasons(rows, "gpu").get("gpu", NOT_SAMPLED)


def contention(rows: Sequence[CounterRow], window: Interval) -> list[str]:
    """Say in sentences what stood in the run's way, or may have; nothing where nothing did."""
    split = [(row, *split_source(row.source)) for row in rows]
    sentences = []
    for machine in dict.fromkeys(split_source(source)[0] for source in sources(rows)):
        own = [
            structs.replace(row, source=name) if machine else row for row, prefix, name in split if prefix == machine
        ]
        where = f"{machine.removesuffix('/')}: " if machine else ""
        for each in (_pressure, _taken_cores, _throttling, _on_gpus):
            sentences += [where + sentence for sentence in each(own, window)]
    return sentences


_PRESSURE = (
    ("pressure_cpu_some_s", 0.05, "some thread of the machine waited for a core"),
    ("pressure_memory_some_s", 0.01, "some thread of the machine waited for memory"),
    ("pressure_io_some_s", 0.05, "some thread of the machine waited for a disk"),
)
"""Counter, share of the time from which on it is worth saying, what it says."""


def _pressure(rows: Sequence[CounterRow], window: Interval) -> Iterable[str]:
    for name, worth_saying, words in _PRESSURE:
        counter = interpolated(rows, HOST, name)
        growth = counter.growth(window)
        share = 0.0 if growth is None else min(1.0, growth * 1e9 / counter.covered_ns(window))
        if share >= worth_saying:
            yield f"For {percent(share)} of the time {words}."


def _taken_cores(rows: Sequence[CounterRow], window: Interval) -> Iterable[str]:
    host = {name: interpolated(rows, HOST, f"cpu_{name}_s") for name in ("busy", "idle", "steal")}
    busy, idle, steal = (counter.growth(window) for counter in host.values())
    if busy is None or idle is None or steal is None:
        return
    if steal >= 0.01 * (busy + idle + steal):
        yield f"The hypervisor gave {percent(steal / (busy + idle + steal))} of the cores' time to other machines."
    processes = process_figures(rows, window)
    own = [figures.cpu_s for figures in processes] + [sampling_cpu_s(rows, window)]
    known = [cpu_s for cpu_s in own if cpu_s is not None]
    ended_s = sum(interpolated(rows, each.source, "children_cpu_s").growth(window) or 0.0 for each in processes)
    others = (busy - sum(known) - ended_s) * 1e9 / host["busy"].covered_ns(window)
    if len(known) == len(own) and others >= 0.1:
        yield f"Processes that are no part of the run, or serve Ray, used {number(others)} cores on average."


def _throttling(rows: Sequence[CounterRow], window: Interval) -> Iterable[str]:
    if seconds := interpolated(rows, HOST, "throttled_s").growth(window):
        yield f"The CPU limit of the cgroup held it back for {number(seconds)} s, added over cores."


def _on_gpus(rows: Sequence[CounterRow], window: Interval) -> Iterable[str]:
    for gpu in gpu_figures(rows, window)[0]:
        if others := interpolated(rows, gpu.source, "other_processes").peak(window):
            memory = interpolated(rows, gpu.source, "other_memory_bytes").peak(window)
            held = f", which held up to {number(memory / _GIB)} GiB" if memory is not None else ""
            yield f"{gpu.source} was shared with other processes, up to {others:.0f} at a time{held}."
        if gpu.throttled_share:
            names = sorted({name for row in rows if row.source == gpu.source for name in row.values})
            shares = {
                name.removeprefix("throttle/"): share
                for name in names
                if name.startswith("throttle/")
                and (share := interpolated(rows, gpu.source, name).share_above_zero(window))
            }
            longest = sorted(shares.items(), key=lambda item: -item[1])
            why = ", ".join(f"{name} {percent(share)}" for name, share in longest)
            yield f"The clock of {gpu.source} was held down in {percent(gpu.throttled_share)} of the samples: {why}."
