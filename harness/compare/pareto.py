"""Two figures of each variant against each other: points with intervals, the front that none beats, and its knee."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.compare.experiments import Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.numbers import listed, number
from harness.compare.replay import REPLAY_LINES
from harness.compare.stats import t_interval
from harness.compare.tables import OFF_POLICY_LINES, OUTCOME_LINES, Line, Table
from harness.core.errors import UserError
from harness.core.named_files import nearest
from harness.core.trace import Stage

DEFAULT = "step_s,reward_last"
HIGH, LOW = "high", "low"
BETTER_HIGH = frozenset(
    {"reward_first", "reward_best", "reward_last", "reward_train", "tokens_per_s", "processed_tokens_per_s"}
)
FEWEST_FOR_STABILITY = 3
Gains = tuple[float, float]
"""A point's two figures, turned so that more is better in both."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One of the two figures, and whether more of it is better."""

    line: Line
    more_is_better: bool

    @property
    def words(self) -> str:
        """What it is called in a table; lines that need the row above or a target go by their key."""
        label = self.line.label
        return self.line.key if label.startswith(" ") or "{" in label else label

    def gain(self, value: float) -> float:
        """Return the value, turned so that more is better."""
        return value if self.more_is_better else -value


@dataclass(frozen=True, slots=True)
class Value:
    """A figure's mean over runs, and the ends of its 95% interval; None of a single run."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Point:
    """A variant.

    Attributes:
        x, y: its two figures.
        by_run: the same of each run, in the order of the variant's runs.
        beaten_by: the variants that are at least as good in both figures and better in one, by their means; none for a
            point of the front.
    """

    name: str
    x: Value
    y: Value
    by_run: tuple[tuple[float, float], ...]
    beaten_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Front:
    """The points of an experiment.

    Attributes:
        points: in the experiment's order.
        front: names of the points that none beats, from the best x to the best y.
        knee: the one of them that lies farthest beyond the straight line between the front's ends; None where there
            are no three points or none lies beyond it.
        stable: in how many of how many cases the knee is the same if one run of every variant is left out; None where
            variants have fewer than three runs, or not all as many.
        left_out: variants without both figures in each of their runs that ended.
    """

    axes: tuple[Axis, Axis]
    points: tuple[Point, ...]
    front: tuple[str, ...]
    knee: str | None
    stable: tuple[int, int] | None
    left_out: tuple[str, ...]

    def point(self, name: str) -> Point:
        """Return a point by its name."""
        return next(point for point in self.points if point.name == name)


def read_axes(text: str) -> tuple[Axis, Axis]:
    """Read ``X,Y``: two figures by the names that they have in JSON, or stages, each with ``:low`` or ``:high`` or not.

    Raises:
        UserError: there are not two, or there is no such figure.
    """
    stages = [_stage_line(stage) for stage in Stage]
    known = {line.key: line for line in (*OUTCOME_LINES, *OFF_POLICY_LINES, *REPLAY_LINES, *stages)}
    names = [part.strip() for part in text.split(",")]
    if len(names) != 2 and not Path(text).exists():
        what = f"two figures are compared, and {text!r} names {len(names)}"
        raise UserError(what, "--pareto", f"two names with a comma between, as {DEFAULT}")
    axes = []
    for name in names:
        key, _, better = name.partition(":")
        if key not in known:
            near = nearest(key, known)
            fix = f"did you mean {listed(near)}?" if near else f"such as {', '.join(list(known)[:4])}, or a stage"
            if Path(text).exists():
                fix = "put the folders before --pareto, or write --pareto=" + DEFAULT
            raise UserError(f"there is no figure called {key!r}", "--pareto", fix)
        if better not in ("", LOW, HIGH):
            raise UserError(f"{better!r} is no direction", "--pareto", f"{key}:{LOW} or {key}:{HIGH}")
        axes.append(Axis(known[key], better == HIGH if better else key in BETTER_HIGH))
    return axes[0], axes[1]


def _stage_line(stage: Stage) -> Line:
    def seconds(run: RunFigures) -> float | None:
        found = run.stages.get(stage)
        return found.mean_s if found is not None and found.steps else None

    return Line(stage.value, f"{stage.value}, seconds per step", number, seconds)


def pareto(experiment: Experiment, axes: tuple[Axis, Axis]) -> Front:
    """Set two figures of an experiment's variants against each other.

    Runs that were cut before their end do not count: their last reward is not their final one.
    """
    found, left_out = list[Point](), list[str]()
    for variant in experiment.variants:
        values = _values(variant, axes)
        if values:
            x, y = (_value([pair[index] for pair in values]) for index in (0, 1))
            found.append(Point(variant.name, x, y, values))
        else:
            left_out.append(variant.name)
    beaten = beaten_by([_gains(point.x.mean, point.y.mean, axes) for point in found])
    points = [
        Point(point.name, point.x, point.y, point.by_run, tuple(found[index].name for index in by))
        for point, by in zip(found, beaten, strict=True)
    ]
    front = sorted((point for point in points if not point.beaten_by), key=lambda point: -axes[0].gain(point.x.mean))
    knee = _knee_name(points, axes)
    return Front(
        axes, tuple(points), tuple(point.name for point in front), knee, _stable(points, axes), tuple(left_out)
    )


def check_figures(experiments: Sequence[Experiment], axes: tuple[Axis, Axis]) -> None:
    """Refuse two figures that no variant of the experiments has.

    Raises:
        UserError: there is no point to show.
    """
    if any(_values(variant, axes) for experiment in experiments for variant in experiment.variants):
        return
    runs = [run for experiment in experiments for run in experiment.runs]
    lacking = [axis.line.key for axis in axes if all(axis.line.get(run) is None for run in runs)]
    what = "no variant has both figures in every run that ended"
    what += f"; no run has {listed(lacking)}" if lacking else ""
    raise UserError(what, "--pareto", "name two others: compare --json lists what each run has")


def _values(variant: Variant, axes: tuple[Axis, Axis]) -> tuple[tuple[float, float], ...]:
    """Return both figures of each run that ended; nothing where one of them is missing."""
    ended = [run for run in variant.runs if run.is_completed or run.divergence is not None]
    values = []
    for run in ended:
        x, y = (axis.line.get(run) for axis in axes)
        if x is None or y is None:
            return ()
        values.append((float(x), float(y)))
    return tuple(values)


def _value(values: Sequence[float]) -> Value:
    interval = t_interval(values)
    return Value(fmean(values), interval.low if interval else None, interval.high if interval else None)


def _gains(x: float, y: float, axes: tuple[Axis, Axis]) -> Gains:
    return axes[0].gain(x), axes[1].gain(y)


def beaten_by(points: Sequence[Gains]) -> list[list[int]]:
    """Return for each point which others are at least as good in both figures and better in one; none: the front."""
    return [
        [index for index, other in enumerate(points) if other != own and other[0] >= own[0] and other[1] >= own[1]]
        for own in points
    ]


def knee_of(points: Sequence[Gains]) -> int | None:
    """Return which point of a front is its knee: the farthest beyond the straight line between the front's two ends.

    Each figure is first scaled to 0 to 1 between the ends, so that its unit does not matter; the line is then u + v = 1
    (the rule of Satopää and others, "Finding a Kneedle in a Haystack", ICDCS workshops 2011, for few points).

    Args:
        points: at least one, none of which beats another.

    Returns:
        its index; None with fewer than three points, or where none lies beyond the line.
    """
    first, last = max(points), max(points, key=lambda point: point[::-1])
    width, height = first[0] - last[0], last[1] - first[1]
    if len(points) < 3 or not width or not height:
        return None
    beyond = [(x - last[0]) / width + (y - first[1]) / height - 1 for x, y in points]
    best = max(range(len(points)), key=lambda index: beyond[index])
    return best if beyond[best] > 1e-9 else None


def _knee_name(points: Sequence[Point], axes: tuple[Axis, Axis], without: int | None = None) -> str | None:
    """Name the knee of the points, by the means of all runs, or of all but one of each."""
    gains = []
    for point in points:
        kept = [pair for index, pair in enumerate(point.by_run) if index != without]
        gains.append(_gains(fmean(x for x, _ in kept), fmean(y for _, y in kept), axes))
    front = [index for index, by in enumerate(beaten_by(gains)) if not by]
    knee = knee_of([gains[index] for index in front]) if front else None
    return None if knee is None else points[front[knee]].name


def _stable(points: Sequence[Point], axes: tuple[Axis, Axis]) -> tuple[int, int] | None:
    runs = {len(point.by_run) for point in points}
    knee = _knee_name(points, axes)
    if knee is None or len(runs) != 1 or min(runs) < FEWEST_FOR_STABILITY:
        return None
    (count,) = runs
    return sum(_knee_name(points, axes, without) == knee for without in range(count)), count


def pareto_table(front: Front) -> Table:
    """Return a row for each point: its two figures with their intervals, and whether it is on the front."""
    rows = [
        (point.name, _cell(front.axes[0], point.x), _cell(front.axes[1], point.y), _place(front, point))
        for point in front.points
    ]
    notes = ["On the front: no other variant is at least as good in both figures and better in one, by the means."]
    if any(point.x.low is not None for point in front.points):
        notes.append("Mean [95% interval over the runs of the variant, each by itself].")
    if front.left_out:
        notes.append(f"Left out, without both figures in every run that ended: {', '.join(front.left_out)}.")
    header = [f"{axis.words} ({HIGH if axis.more_is_better else LOW} is good)" for axis in front.axes]
    return Table("Two figures against each other", ("variant", *header, "place"), tuple(rows), tuple(notes))


def _cell(axis: Axis, value: Value) -> str:
    mean = axis.line.form(value.mean)
    return mean if value.low is None or value.high is None else f"{mean} [{_range(axis, value.low, value.high)}]"


def _range(axis: Axis, low: float, high: float) -> str:
    return f"{axis.line.form(low)}, {axis.line.form(high)}"


def _place(front: Front, point: Point) -> str:
    if point.beaten_by:
        return f"beaten by {listed(point.beaten_by)}"
    return "front, knee" if point.name == front.knee else "front"


def pareto_sentences(front: Front) -> list[str]:
    """Say in words which points are the front, which one is its knee, and what the ways to it and beyond it cost."""
    if not front.front:
        return []
    said = [f"On the front, from the best {front.axes[0].words} to the best {front.axes[1].words}: "]
    said[0] += f"{', '.join(front.front)}."
    if front.knee is None:
        few = "it has fewer than three points" if len(front.front) < 3 else "it bends nowhere towards the better side"
        return [*said, f"The front has no knee: {few}."]
    knee, first, last = (front.point(name) for name in (front.knee, front.front[0], front.front[-1]))
    told = f"Knee: {knee.name}. From {first.name} to it: {_way(front.axes, first, knee)}."
    told += f" From it on to {last.name}: {_way(front.axes, knee, last)}."
    if front.stable is not None:
        same, count = front.stable
        told += f" With one run of each variant left out, the knee is the same in {same} of {count} cases."
    return [*said, told]


def _way(axes: tuple[Axis, Axis], start: Point, end: Point) -> str:
    changes = ((axes[0], end.x.mean - start.x.mean), (axes[1], end.y.mean - start.y.mean))
    return " and ".join(f"{axis.words} {'+' if by >= 0 else '-'}{axis.line.form(abs(by))}" for axis, by in changes)


def pareto_json(front: Front) -> dict[str, Any]:
    """Return the front as plain values."""
    return {
        "x": _axis_json(front.axes[0]),
        "y": _axis_json(front.axes[1]),
        "points": [asdict(point) for point in front.points],
        "front": list(front.front),
        "knee": front.knee,
        "knee_is_the_same": front.stable,
        "left_out": list(front.left_out),
    }


def _axis_json(axis: Axis) -> dict[str, str]:
    return {"figure": axis.line.key, "better": HIGH if axis.more_is_better else LOW}
