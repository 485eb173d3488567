"""What the samples of one counter tell about the time between two moments. Between samples it changes evenly."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from statistics import median

from harness.core.intervals import Interval
from harness.results.counters import CounterRow, Sample, stretches


class Sampled:
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
        covered_ns = self.covered_ns(window)
        if covered_ns:
            return self.area(window) / covered_ns
        inside = self.inside(window)
        return sum(inside) / len(inside) if inside else None

    def peak(self, window: Interval) -> float | None:
        """Return the largest sample in the window; None without any."""
        return max(self.inside(window), default=None)

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


def sampled(rows: Iterable[CounterRow], source: str, name: str) -> Sampled:
    """Return one counter of one source."""
    return Sampled(stretches(rows, source, name))
