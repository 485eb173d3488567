"""What a run used, and what stood in its way: figures from its counters, and sentences on contention.

A window is (start, end) in nanoseconds of the run's clock, such as ``loop_window`` returns. What the counters do not
tell is None, never 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median

from harness.compare.numbers import number, percent
from harness.core.intervals import Interval, clip
from harness.core.trace import Span, Stage
from harness.results.counters import HOST, SAMPLER, CounterRow, Sample, reasons, sources, split_source, stretches


class InterpolatedCounter:
    """The known stretches of one counter of one source, in time order. What lies between them is not counted.

    Args:
        known: as from ``harness.results.counters.stretches``.
    """

    def __init__(self, known: Sequence[Sequence[Sample]]) -> None:
        pieces = [piece for stretch in known for piece in pairwise(stretch) if piece[1][0] > piece[0][0]]
        self._samples = [sample for stretch in known for sample in stretch]
        self._pieces = pieces
        self._starts = [start for (start, _), _ in pieces]
        self._growths = [0.0, *accumulate(last - first for (_, first), (_, last) in pieces)]
        self._areas = [0.0, *accumulate((end - start) * (first + last) / 2 for (start, first), (end, last) in pieces)]
        self._lengths = [0, *accumulate(end - start for (start, _), (end, _) in pieces)]

    @property
    def period_ns(self) -> float:
        """Usual time between two samples of a stretch; 0 where no stretch has two."""
        return median(end - start for (start, _), (end, _) in self._pieces) if self._pieces else 0.0

    def covered_ns(self, window: Interval) -> float:
        """Return how much of the window lies within stretches."""
        return self._until(window[1])[2] - self._until(window[0])[2]

    def growth(self, window: Interval) -> float | None:
        """Return by how much a growing counter grew within the stretches of the window; None where it has none."""
        if not self.covered_ns(window):
            return None
        return max(0.0, self._until(window[1])[0] - self._until(window[0])[0])

    def area(self, window: Interval) -> float:
        """Return the integral of the value over the window's stretches, in units times nanoseconds."""
        return self._until(window[1])[1] - self._until(window[0])[1]

    def mean(self, window: Interval) -> float | None:
        """Return the mean over the window's stretches; a single sample in it is its own mean; None without any."""
        if covered_ns := self.covered_ns(window):
            return self.area(window) / covered_ns
        inside = self.inside(window)
        return fmean(inside) if inside else None

    def peak(self, window: Interval) -> float | None:
        """Return the largest sample in the window; None without any."""
        return max(self.inside(window), default=None)

    def share_above_zero(self, window: Interval) -> float | None:
        """Return the share of the samples in the window that are above 0; None without any."""
        inside = self.inside(window)
        return sum(value > 0 for value in inside) / len(inside) if inside else None

    def inside(self, window: Interval) -> list[float]:
        """Return the samples in the window, both ends included."""
        return [value for at_ns, value in self._samples if window[0] <= at_ns <= window[1]]

    def _until(self, at_ns: float) -> tuple[float, float, float]:
        """Return (growth, area, covered nanoseconds) from the first sample to a moment."""
        place = bisect_right(self._starts, at_ns) - 1
        if place < 0:
            return 0.0, 0.0, 0.0
        (start, first), (end, last) = self._pieces[place]
        part_ns = min(at_ns, end) - start
        rise = (last - first) * part_ns / (end - start)
        area = part_ns * (first + rise / 2)
        return self._growths[place] + rise, self._areas[place] + area, self._lengths[place] + part_ns


def interpolated(rows: Iterable[CounterRow], source: str, name: str) -> InterpolatedCounter:
    """Return one counter of one source."""
    return InterpolatedCounter(stretches(rows, source, name))


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
    """What a GPU did within a window, for whomever.

    Attributes:
        mean_utilisation: share of the time in which any kernel was resident, in [0, 1].
        energy_j: by the board's energy counter.
        throttled_share: of the time in which something held its clock down.
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
            CounterRow(row.at_ns, name, row.values, row.missing) if machine else row
            for row, prefix, name in split
            if prefix == machine
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
                name.removeprefix("throttle/"): interpolated(rows, gpu.source, name).share_above_zero(window) or 0.0
                for name in names
                if name.startswith("throttle/")
            }
            longest = [f"{name} {percent(shares[name])}" for name in sorted(shares, key=lambda name: -shares[name])]
            why = ", ".join(longest[: sum(map(bool, shares.values()))])
            yield f"The clock of {gpu.source} was held down in {percent(gpu.throttled_share)} of the samples: {why}."


TOLD_ALONE_S = 1.0
_COVERED_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class StageEnergy:
    """One stage's part.

    Attributes:
        joules: None where ``reason`` says why it cannot be told.
        seconds: in which the stage was under way on at least one lane.
    """

    joules: float | None
    seconds: float
    reason: str | None


@dataclass(frozen=True, slots=True)
class EnergyAccount:
    """Where a GPU's energy went. ``total_j`` = the stages' joules + ``untold_j`` + ``rest_j``.

    Attributes:
        untold_j: of stages whose own part cannot be told.
        rest_j: while no stage was under way.
    """

    source: str
    total_j: float
    stages: Mapping[Stage, StageEnergy]
    untold_j: float
    rest_j: float


def energy_account(
    rows: Sequence[CounterRow], spans: Iterable[Span], source: str, window: Interval
) -> tuple[EnergyAccount | None, str | None]:
    """Return the account of one GPU, or None and the reason.

    Where several stages are under way at once, they share the energy of that time equally. Waits take no part.

    Args:
        source: such as ``gpu0``.
    """
    counter = interpolated(rows, source, "energy_j")
    total_j = counter.growth(window)
    if total_j is None:
        known = {**reasons(rows, "gpu"), **reasons(rows, source)}
        return None, known.get("energy_j") or known.get("gpu") or NOT_SAMPLED
    work = [span for span in spans if not (span.stage.is_wait or span.stage is Stage.STARTUP)]
    shares = defaultdict[Stage, float](float)  # joules
    lengths, covered = defaultdict[Stage, float](float), defaultdict[Stage, float](float)  # ns under way, and sampled
    for start_ns, end_ns, stages in _pieces(work, window):
        piece = start_ns, end_ns
        joules, covered_ns = counter.growth(piece) or 0.0, counter.covered_ns(piece)
        for stage in stages:
            shares[stage] += joules / len(stages)
            lengths[stage] += end_ns - start_ns
            covered[stage] += covered_ns
    account = {}
    for stage, joules in shares.items():
        each = clip([(span.start_ns, span.end_ns) for span in work if span.stage is stage], window)
        seconds, each_s = lengths[stage] / 1e9, fmean(end - start for start, end in each) / 1e9
        reason = _why_untold(seconds, each_s, covered[stage] / 1e9, counter.period_ns / 1e9)
        account[stage] = StageEnergy(None if reason else joules, seconds, reason)
    untold_j = sum(shares[stage] for stage, part in account.items() if part.joules is None)
    told_j = sum(part.joules for part in account.values() if part.joules is not None)
    return EnergyAccount(source, total_j, account, untold_j, max(0.0, total_j - told_j - untold_j)), None


def _pieces(spans: Sequence[Span], window: Interval) -> Iterator[tuple[int, int, tuple[Stage, ...]]]:
    """Yield the pieces of the window in which the same stages are under way, with at least one of them."""
    edges = []
    for span in spans:
        for start_ns, end_ns in clip([(span.start_ns, span.end_ns)], window):
            edges += [(start_ns, 1, span.stage), (end_ns, -1, span.stage)]
    edges.sort(key=lambda edge: edge[0])
    under_way: dict[Stage, int] = {}
    for (start_ns, change, stage), following in pairwise([*edges, (window[1], 0, Stage.UPDATE)]):
        under_way[stage] = under_way.get(stage, 0) + change
        stages = tuple(stage for stage, count in under_way.items() if count)
        if stages and following[0] > start_ns:
            yield start_ns, following[0], stages


def _why_untold(seconds: float, each_s: float, covered_s: float, period_s: float) -> str | None:
    if covered_s < _COVERED_SHARE * seconds:
        return "the counters do not cover it"
    if each_s < TOLD_ALONE_S and each_s < period_s:
        return f"it lasts {each_s:.2g} s, less than a sampling period of {period_s:.2g} s"
    if seconds < TOLD_ALONE_S:
        return f"it lasts {seconds:.2g} s in all, less than {TOLD_ALONE_S:g} s"
    return None
