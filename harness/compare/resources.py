"""What a run used, and what stood in its way: figures from its counters, and sentences on contention.

A window is (start, end) in nanoseconds of the run's clock, such as ``harness.compare.lanes.loop_window`` returns. What
the counters do not tell is None, never 0, and ``missing`` says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.compare.numbers import number, percent
from harness.compare.sampled import Sampled, sampled
from harness.core.intervals import Interval
from harness.results.counters import DRIVER, HOST, SAMPLER, CounterRow, reasons, sources, split_source

NOT_SAMPLED = "not_sampled"
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """What a process of the run used within a window.

    Attributes:
        source: its lanes joined by ``+``, or ``driver``.
        cpu_s: CPU seconds of all its threads.
        cores: on average, over the time in which it was sampled.
        peak_rss_bytes: of the samples; what came and went between two of them is not seen.
    """

    source: str
    cpu_s: float | None
    cores: float | None
    peak_rss_bytes: float | None
    peak_threads: float | None
    missing: Mapping[str, str]

    @property
    def lanes(self) -> tuple[str, ...]:
        """Its lanes; none for the driver, which has every lane that no other process has."""
        name = split_source(self.source)[1]
        return () if name == DRIVER else tuple(name.split("+"))


def process_figures(rows: Sequence[CounterRow], window: Interval) -> list[ProcessFigures]:
    """Return the figures of each process of the run, the sampler not among them."""
    return [_process(rows, source, window) for source in _processes(rows)]


def sampling_cpu_s(rows: Sequence[CounterRow], window: Interval) -> float | None:
    """Return the CPU seconds of the sampler on the run's own machine; None where nothing was sampled."""
    return sampled(rows, SAMPLER, "cpu_s").growth(window)


def _processes(rows: Iterable[CounterRow]) -> list[str]:
    named = [(source, split_source(source)[1]) for source in sources(rows)]
    return [source for source, name in named if name not in (HOST, SAMPLER) and not name.startswith("gpu")]


def _process(rows: Sequence[CounterRow], source: str, window: Interval) -> ProcessFigures:
    cpu = sampled(rows, source, "cpu_s")
    cpu_s = cpu.growth(window)
    figures = {
        "cpu_s": cpu_s,
        "cores": None if cpu_s is None else cpu_s * 1e9 / cpu.covered_ns(window),
        "peak_rss_bytes": sampled(rows, source, "rss_bytes").peak(window),
        "peak_threads": sampled(rows, source, "threads").peak(window),
    }
    counters = {"cpu_s": "cpu_s", "cores": "cpu_s", "peak_rss_bytes": "rss_bytes", "peak_threads": "threads"}
    return ProcessFigures(source, **figures, missing=_missing(rows, source, figures, counters))


def _missing(
    rows: Sequence[CounterRow], source: str, figures: Mapping[str, float | None], counters: Mapping[str, str]
) -> dict[str, str]:
    """Return the reason of each figure that is None: that of the counter it is made from."""
    known = reasons(rows, source)
    return {name: known.get(counters[name], NOT_SAMPLED) for name, value in figures.items() if value is None}


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """What a GPU did within a window, for whomever.

    Attributes:
        mean_utilisation: share of the time in which any kernel was resident, in [0, 1].
        energy_j: by the board's energy counter.
        integrated_j: its power over the same time, added up: a check of the counter.
        throttled_share: of the time in which something held its clock down.
    """

    source: str
    mean_utilisation: float | None
    peak_memory_bytes: float | None
    mean_power_w: float | None
    energy_j: float | None
    integrated_j: float | None
    throttled_share: float | None
    missing: Mapping[str, str]

    @property
    def discrepancy(self) -> float | None:
        """Integrated power against the energy counter: 0.02 means 2% more; None where one of them is missing."""
        if not self.energy_j or self.integrated_j is None:
            return None
        return self.integrated_j / self.energy_j - 1


_GPU_FIGURES = {
    "mean_utilisation": "utilisation",
    "peak_memory_bytes": "memory_used_bytes",
    "mean_power_w": "power_w",
    "energy_j": "energy_j",
    "integrated_j": "power_w",
    "throttled_share": "throttled",
}


def gpu_figures(rows: Sequence[CounterRow], window: Interval) -> tuple[list[GpuFigures], str | None]:
    """Return the figures of each GPU; none, and why, where there is no GPU to be read."""
    named = [(source, split_source(source)[1]) for source in sources(rows)]
    found = [source for source, name in named if name.startswith("gpu") and name != "gpu"]
    if found:
        return [_gpu(rows, source, window) for source in found], None
    return [], reasons(rows, "gpu").get("gpu", NOT_SAMPLED)


def _gpu(rows: Sequence[CounterRow], source: str, window: Interval) -> GpuFigures:
    power, energy = sampled(rows, source, "power_w"), sampled(rows, source, "energy_j")
    figures = {
        "mean_utilisation": sampled(rows, source, "utilisation").mean(window),
        "peak_memory_bytes": sampled(rows, source, "memory_used_bytes").peak(window),
        "mean_power_w": power.mean(window),
        "energy_j": energy.growth(window),
        "integrated_j": power.area(window) / 1e9 if power.covered_ns(window) else None,
        "throttled_share": share_above_zero(sampled(rows, source, "throttled"), window),
    }
    return GpuFigures(source, **figures, missing=_missing(rows, source, figures, _GPU_FIGURES))


def share_above_zero(counter: Sampled, window: Interval) -> float | None:
    """Return the share of the samples in the window that are above 0; None without any."""
    inside = counter.inside(window)
    return sum(value > 0 for value in inside) / len(inside) if inside else None


def contention(rows: Sequence[CounterRow], window: Interval) -> list[str]:
    """Say in sentences what stood in the run's way, or may have; nothing where nothing did."""
    machines = dict.fromkeys(split_source(source)[0] for source in sources(rows))
    return [said for machine in machines for said in _on_machine(_rows_of(rows, machine), window, machine)]


def _rows_of(rows: Iterable[CounterRow], machine: str) -> list[CounterRow]:
    """Return the rows of one machine, with its name left out."""
    split = ((row, *split_source(row.source)) for row in rows)
    return [
        CounterRow(row.at_ns, name, row.values, row.missing) if machine else row
        for row, prefix, name in split
        if prefix == machine
    ]


def _on_machine(rows: Sequence[CounterRow], window: Interval, machine: str) -> Iterable[str]:
    said = (*_pressure(rows, window), *_taken_cores(rows, window), *_throttling(rows, window), *_on_gpus(rows, window))
    return [f"{machine.removesuffix('/')}: {sentence}" if machine else sentence for sentence in said]


_PRESSURE = (
    ("pressure_cpu_some_s", 0.05, "some thread of the machine waited for a core"),
    ("pressure_memory_some_s", 0.01, "some thread of the machine waited for memory"),
    ("pressure_io_some_s", 0.05, "some thread of the machine waited for a disk"),
)
"""Counter, share of the time from which on it is worth saying, what it says."""


def _pressure(rows: Sequence[CounterRow], window: Interval) -> Iterable[str]:
    for name, worth_saying, words in _PRESSURE:
        share = _share_of_time(sampled(rows, HOST, name), window)
        if share is not None and share >= worth_saying:
            yield f"For {percent(share)} of the time {words}."


def _share_of_time(counter: Sampled, window: Interval) -> float | None:
    growth = counter.growth(window)
    return None if growth is None else min(1.0, growth * 1e9 / counter.covered_ns(window))


def _taken_cores(rows: Sequence[CounterRow], window: Interval) -> Iterable[str]:
    host = {name: sampled(rows, HOST, f"cpu_{name}_s") for name in ("busy", "idle", "steal")}
    busy, idle, steal = (counter.growth(window) for counter in host.values())
    if busy is None or idle is None or steal is None:
        return
    if steal >= 0.01 * (busy + idle + steal):
        yield f"The hypervisor gave {percent(steal / (busy + idle + steal))} of the cores' time to other machines."
    own = [figures.cpu_s for figures in process_figures(rows, window)] + [sampling_cpu_s(rows, window)]
    known = [cpu_s for cpu_s in own if cpu_s is not None]
    others = (busy - sum(known)) * 1e9 / host["busy"].covered_ns(window)
    if len(known) == len(own) and others >= 0.1:
        yield f"Processes that are no part of the run, or serve Ray, used {number(others)} cores on average."


def _throttling(rows: Sequence[CounterRow], window: Interval) -> Iterable[str]:
    seconds = sampled(rows, HOST, "throttled_s").growth(window)
    if seconds:
        yield f"The CPU limit of the cgroup held it back for {number(seconds)} s, added over cores."


def _on_gpus(rows: Sequence[CounterRow], window: Interval) -> Iterable[str]:
    for gpu in gpu_figures(rows, window)[0]:
        others = sampled(rows, gpu.source, "other_processes").peak(window)
        if others:
            memory = sampled(rows, gpu.source, "other_memory_bytes").peak(window)
            held = f", which held up to {number(memory / _GIB)} GiB" if memory is not None else ""
            yield f"{gpu.source} was shared with other processes, up to {others:.0f} at a time{held}."
        if gpu.throttled_share:
            names = ", ".join(_slowed_by(rows, gpu.source, window))
            yield f"The clock of {gpu.source} was held down in {percent(gpu.throttled_share)} of the samples: {names}."


def _slowed_by(rows: Sequence[CounterRow], source: str, window: Interval) -> list[str]:
    found = {name for row in rows if row.source == source for name in row.values if name.startswith("throttle/")}
    active = {name: share_above_zero(sampled(rows, source, name), window) or 0.0 for name in found}
    order = sorted((name for name in found if active[name]), key=lambda name: (-active[name], name))
    return [f"{name.removeprefix('throttle/')} {percent(active[name])}" for name in order]
