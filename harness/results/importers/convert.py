"""From the records of another trainer's log to rows of ``steps.jsonl``.

``collect`` makes one set of numbers for each step, with a count of everything that is no number; ``Converter`` makes
rows of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from harness.core.errors import UserError
from harness.core.types import Metric, Metrics
from harness.results import EvaluationRow, StepRow, TailRow, store_metrics
from harness.results.importers.logs import Log
from harness.results.importers.text_logs import Record
from harness.results.importers.trainers import DEVICES, GROWTH, STEPS, Crosswalk, Entry, Role, pattern
from harness.results.rows import MOST_SECONDS

KEPT = "imported/"
MOST_STEP = 10**12
"""A record of a later step counts as one without a step."""
OWN_COUNT = "_step"
"""Where Weights & Biases counts the records that it gets, which are not always the trainer's steps."""
STANDARD = (
    "reward/total",
    "validation/reward",
    "response_length",
    "truncated_fraction",
    "token_entropy",
    "clip_fraction",
    "grad_norm",
    "learning_rate",
)
"""Figures that the import names where a log lacks them."""


@dataclass
class Point:
    """The numbers that a log has for one step, as the trainer counts it; ``at`` is when, in seconds, if known."""

    step: int
    values: dict[str, float] = field(default_factory=dict)
    at: float | None = None


@dataclass
class Points:
    """All steps of a log, in order.

    Attributes:
        run_totals: numbers of the whole run.
        not_numbers: how often a name came with something else than a number (texts, histograms, tables).
        non_finite: how often a name came as NaN, infinity or null, which is how JSON writers put these.
        replaced: numbers in whose place a later record of the same step put another one.
        without_step: records without a step, left out, by the first of their names.
        backwards: how often the log went back to an earlier step, as a resumed run's does.
        steps_from: what the steps are, where they may be other than the trainer's: empty, ``_step``, or ``rows``.
        foreign: records with no name that the trainer writes, left out where rows are counted.
    """

    points: list[Point]
    run_totals: dict[str, float] = field(default_factory=dict)
    not_numbers: Counter[str] = field(default_factory=Counter)
    non_finite: Counter[str] = field(default_factory=Counter)
    replaced: int = 0
    without_step: Counter[str] = field(default_factory=Counter)
    backwards: int = 0
    steps_from: str = ""
    foreign: int = 0

    @property
    def names(self) -> set[str]:
        """Every name that came with a number."""
        return {name for point in self.points for name in point.values}


def collect(log: Log, crosswalk: Crosswalk, where: str) -> Points:
    """Gather the records by step; what comes later for the same step and name counts.

    Where no record has a step, the training rows are counted, and an evaluation belongs to the row before it.

    Args:
        where: how to name the log in an error.

    Raises:
        UserError: the log has no number of a step.
    """
    found = Points([])
    by_step: dict[int, Point] = {}
    last = -1
    name_of = _names(log, crosswalk)
    steps = _steps(log, crosswalk, name_of, found)
    for record, step in zip(log.records, steps, strict=True):
        values = _values(record)
        if step is None:
            own = {*crosswalk.step_names, *crosswalk.clock_names}
            found.without_step[next((name for name in values if name not in own), "nothing else")] += 1
            continue
        if step < 0:
            found.foreign += 1
            continue
        found.backwards += step < last
        last = step
        _add(values, by_step.setdefault(step, Point(step)), found, crosswalk, name_of)
        _set_clock(by_step[step], record, values, crosswalk)
    found.points = [by_step[step] for step in sorted(by_step)]
    if not found.names:
        raise _nothing_found(log, found, crosswalk, where)
    return found


def _names(log: Log, crosswalk: Crosswalk) -> Callable[[str], str]:
    """Return what makes the trainer's own name of one in this log."""
    if log.has_tags:
        return lambda name: crosswalk.plain_name(crosswalk.name_of_tag(name))
    return crosswalk.plain_name


def _values(record: Record) -> Mapping[str, Any]:
    """Return the values; verl's file logger keeps them one level down."""
    inner = record.values.get("data")
    return inner if isinstance(inner, dict) else record.values


def _steps(log: Log, crosswalk: Crosswalk, name_of: Callable[[str], str], found: Points) -> list[int | None]:
    """Return the step of each record: None where it has none, -1 where rows are counted and it is none.

    The count of Weights & Biases is used where it never differs from another step of the same record.
    """
    own, counts = list[int | None](), list[int | None]()
    for record in log.records:
        known = [record.step, *(record.values.get(name) for name in crosswalk.step_names if name != OWN_COUNT)]
        own.append(next((whole for item in known if (whole := _whole(item)) is not None), None))
        counts.append(_whole(record.values.get(OWN_COUNT)) if OWN_COUNT in crosswalk.step_names else None)
    both = [(step, count) for step, count in zip(own, counts, strict=True) if step is not None and count is not None]
    if any(step != count for step, count in both):
        return own
    steps = [count if step is None else step for step, count in zip(own, counts, strict=True)]
    if any(step is not None for step in own):
        return steps
    if any(step is not None for step in steps):
        found.steps_from = OWN_COUNT
        return steps
    found.steps_from, row = "rows", 0
    for place, record in enumerate(log.records):
        names = [name_of(name) for name, raw in _values(record).items() if _number(raw) is not None]
        if any(map(crosswalk.writes, names)):
            row += any(map(crosswalk.is_training, names))
            steps[place] = row
        else:
            steps[place] = -1
    return steps


def _whole(value: Any) -> int | None:
    number = None if value is None else _number(value)
    if number is None or isinstance(value, bool) or not 0 <= number <= MOST_STEP:
        return None
    return int(number) if number == int(number) else None


def _add(
    values: Mapping[str, Any], point: Point, found: Points, crosswalk: Crosswalk, name_of: Callable[[str], str]
) -> None:
    for raw_name, raw in values.items():
        name = name_of(raw_name)
        if raw_name in crosswalk.step_names or name in crosswalk.step_names or name in crosswalk.clock_names:
            continue
        value = _number(raw)
        if value is None:
            found.not_numbers[name] += 1
            continue
        if not math.isfinite(value):
            found.non_finite[name] += 1
        if name in crosswalk.run_totals:
            found.run_totals[name] = value
            continue
        before = point.values.get(name, value)
        same = before == value or (math.isnan(before) and math.isnan(value))
        found.replaced += not same and name not in crosswalk.bookkeeping
        point.values[name] = value


def _number(value: Any) -> float | None:
    if value is None:
        return math.nan
    if not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (OverflowError, ValueError):  # an integer beyond float's range, or a text that is no number
        return None


def _set_clock(point: Point, record: Record, values: Mapping[str, Any], crosswalk: Crosswalk) -> None:
    times = [record.at, *(values.get(name) for name in crosswalk.clock_names)]
    known = (number for at in times if (number := _number(at)) is not None and math.isfinite(number))
    point.at = next(known, point.at)


def _nothing_found(log: Log, found: Points, crosswalk: Crosswalk, where: str) -> UserError:
    what = f"the log has no number of a training step ({len(log.records)} records)"
    if found.foreign:
        what = f"none of the {found.foreign} records in the log has a step or a name that {crosswalk.title} writes"
    return UserError(what, where=where, fix="name the log of a run that has made a step, or another trainer")


@dataclass
class Converted:
    """The rows of a run, and what became of the names.

    Attributes:
        translated: names of the log that went under a name of ours.
        kept: names that stayed as ``imported/<name>``.
        steps_per_row: training steps that a row stands for, where each row stands for as many.
        bad_seconds: times that were negative or not finite, and were left out.
        seconds_known: whether the log tells how long a step took.
        filled: names of ours that got a value.
        missing: those of ``STANDARD`` that got none -> the names of the log that it could have come from.
        validations: names that could be the validation reward, where they are several and none was chosen.
        cautions: what a reader must know of a value.
    """

    rows: list[StepRow | EvaluationRow | TailRow] = field(default_factory=list)
    steps: int = 0
    evaluations: int = 0
    last_step: int = 0
    elapsed_s: float = 0.0
    translated: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    steps_per_row: int | None = None
    bad_seconds: int = 0
    seconds_known: bool = False
    filled: set[str] = field(default_factory=set)
    missing: dict[str, list[str]] = field(default_factory=dict)
    validations: list[str] = field(default_factory=list)
    cautions: set[str] = field(default_factory=set)


@dataclass
class _Translation:
    """What one step's values became."""

    step_s: float | None = None
    lanes: dict[str, dict[str, float]] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)
    validation: Metrics = field(default_factory=dict)


class Converter:
    """Turns points into rows.

    The trainers count the first training step as 1, which is step 0 here; one that starts at 0 is taken as it is.

    Args:
        devices: on which the run ran; None where it is not known.
        validation: the name in the log that is the validation reward, where several could be.
    """

    def __init__(self, crosswalk: Crosswalk, devices: int | None = None, validation: str | None = None) -> None:
        self._crosswalk, self._devices, self._validation = crosswalk, devices, validation
        self._entries = crosswalk.entries
        self._previous: dict[str, float] = {}

    def convert(self, points: Points, where: str) -> Converted:
        """Return the rows: for each step its training row, then its evaluation.

        Args:
            where: how to name the log in an error.

        Raises:
            UserError: no name is one that the trainer writes.
        """
        done = Converted()
        self._entries, done.validations = _choose_validation(self._crosswalk.entries, self._validation, points.names)
        training = [point.step for point in points.points if self._is_training(point)]
        covers = _steps_per_row(training)
        first = 0 if training and training[0] == 0 else 1
        sizes = set(covers.values())
        done.steps_per_row = sizes.pop() if len(sizes) == 1 else None
        carried: dict[str, dict[str, float]] = {}  # stages of steps that have no training row
        clock: float | None = None
        for point in points.points:
            covered = covers.get(point.step, 0)
            result = self._translate(point, covered, done)
            if covered:
                _merge(result.lanes, carried)
                carried = {}
                wall_s = self._wall_s(result, point, clock, covered, done)
                clock = point.at if point.at is not None else clock
                done.elapsed_s += wall_s * covered
                if done.elapsed_s > MOST_SECONDS:
                    what = f"the log's steps take {done.elapsed_s:g} s by step {point.step}, at most {MOST_SECONDS:g}"
                    raise UserError(what, where, "name a log whose times are in seconds")
                self._append_step(point.step - first, wall_s, covered, result, done)
            else:
                _merge(carried, result.lanes)
            if any(math.isfinite(metric.value) for metric in result.validation.values()):
                self._append_evaluation(point.step, result, done)
            elif result.validation:
                done.cautions.add("an evaluation without a single finite figure is left out")
        if not done.translated:
            raise _wrong_trainer(points, self._crosswalk, where)
        if carried:
            self._append_tail(carried, done)
        done.kept -= done.translated
        done.missing = {
            name: [theirs for entry in self._entries if entry.ours == name for theirs in entry.theirs]
            for name in STANDARD
            if name not in done.filled | ({"validation/reward"} if done.validations else set())
        }
        return done

    def _is_training(self, point: Point) -> bool:
        return any(map(self._crosswalk.is_training, point.values))

    def _append_step(self, step: int, wall_s: float, covered: int, result: _Translation, done: Converted) -> None:
        done.rows.append(
            StepRow(
                step=step,
                version=step + 1,
                wall_s=wall_s,
                elapsed_s=done.elapsed_s,
                optimizer_steps=self._crosswalk.optimizer_steps * covered,
                lanes=result.lanes,
                metrics=store_metrics(result.metrics),
            )
        )
        done.steps += 1
        done.last_step = step + 1

    def _append_tail(self, lanes: dict[str, dict[str, float]], done: Converted) -> None:
        wall_s = sum(seconds for stages in lanes.values() for seconds in stages.values())
        done.elapsed_s += wall_s
        done.rows.append(TailRow(wall_s, done.elapsed_s, lanes))

    def _append_evaluation(self, step: int, result: _Translation, done: Converted) -> None:
        done.rows.append(EvaluationRow(step, step, done.elapsed_s, store_metrics(result.validation)))
        done.evaluations += 1

    def _wall_s(self, result: _Translation, point: Point, clock: float | None, covered: int, done: Converted) -> float:
        """Return the seconds of one step, evaluation included; 0 where nothing tells them."""
        evaluate_s = sum(stages.get("evaluate", 0.0) for stages in result.lanes.values())
        if result.step_s is not None:
            done.seconds_known = True
            return result.step_s + evaluate_s / covered
        if point.at is None or clock is None or point.at < clock:
            return 0.0
        done.seconds_known = True
        return (point.at - clock) / covered

    def _translate(self, point: Point, covered: int, done: Converted) -> _Translation:
        values = self._with_additions(point, covered)
        result = _Translation()
        renamed: set[str] = set()
        filled: set[tuple[Role, str]] = set()
        for entry in self._entries:
            for theirs, ours in _matches(entry, values):
                if (entry.role, ours) in filled or (entry.is_renaming and theirs[0] in renamed):
                    continue
                try:
                    value = entry.compute(*(values[name] for name in theirs))
                except ZeroDivisionError:
                    continue
                if not self._store(entry, ours, value, result, done):
                    continue
                filled.add((entry.role, ours))
                done.filled.add(ours)
                done.cautions |= {entry.caution} - {""}
                done.translated |= {name for name in theirs if name in point.values}
                renamed |= set(theirs) if entry.is_renaming else set()
        self._keep(point, renamed, result, done)
        return result

    def _with_additions(self, point: Point, covered: int) -> dict[str, float]:
        """Return the values with those that the entries may ask for besides; see ``entry``."""
        added = dict(point.values)
        if self._devices is not None:
            added[DEVICES] = float(self._devices)
        if covered:
            added[STEPS] = float(covered)
            for name in self._crosswalk.cumulative:
                value = added.get(name, math.nan)
                before = self._previous.get(name, 0.0 if point.step == covered else math.nan)
                if math.isfinite(value) and math.isfinite(before):
                    added[GROWTH + name] = value - before
                self._previous[name] = value
        return added

    def _store(self, entry: Entry, ours: str, value: float, result: _Translation, done: Converted) -> bool:
        if entry.role in (Role.STEP, Role.STAGE):
            if not 0.0 <= value <= MOST_SECONDS:
                done.bad_seconds += 1
                return False
            if entry.role is Role.STEP:
                result.step_s = value
            else:
                result.lanes.setdefault(entry.lane, {})[ours] = value
            return True
        target = result.validation if entry.role is Role.VALIDATION else result.metrics
        target[ours] = Metric(value, entry.reduction)
        return True

    def _keep(self, point: Point, renamed: set[str], result: _Translation, done: Converted) -> None:
        """Keep under its own name whatever did not simply take another one."""
        for name, value in point.values.items():
            if name in renamed:
                continue
            target = result.validation if self._crosswalk.is_validation(name) else result.metrics
            target[KEPT + name] = Metric(value)
            done.kept.add(name)


def devices_of(points: Points, crosswalk: Crosswalk, said: int | None) -> int | None:
    """Return on how many devices a verl run ran: total tokens / (throughput per device x seconds), or what was said.

    Raises:
        UserError: the log's own figures give another number than the one that was said.
    """
    names = ("perf/total_num_tokens", "perf/throughput", "timing_s/step")
    found = []
    for point in points.points:
        tokens, per_device, seconds = (point.values.get(name, math.nan) for name in names)
        if crosswalk.trainer == "verl" and per_device * seconds > 0 and math.isfinite(tokens):
            found.append(tokens / (per_device * seconds))
    if not found:
        return said
    devices = round(median(found))
    if said is not None and said != devices:
        raise UserError(
            f"--devices {said} cannot be: the log's tokens, seconds and throughput per device give {devices}",
            where="--devices",
            fix=f"leave --devices out, or say {devices}",
        )
    return devices or None


def _matches(entry: Entry, values: Mapping[str, float]) -> list[tuple[tuple[str, ...], str]]:
    """Return (names in the log, name here) for each way in which the entry fits."""
    if not entry.is_pattern:
        return [(entry.theirs, entry.ours)] if all(name in values for name in entry.theirs) else []
    fitting = [match for name in values if (match := pattern(entry.theirs[0]).fullmatch(name))]
    return [((match[0],), entry.ours.replace("*", match[1])) for match in fitting]


def _choose_validation(
    entries: tuple[Entry, ...], name: str | None, names: set[str]
) -> tuple[tuple[Entry, ...], list[str]]:
    """Return the entries with one name as the validation reward, and the names that could be where none is chosen."""
    rewards = [entry for entry in entries if entry.ours == "validation/reward"]
    if name is None:
        fitting = {entry.theirs[0] for entry in rewards} & names
        fitting = fitting or {each for each in names for entry in rewards if pattern(entry.theirs[0]).fullmatch(each)}
        if len(fitting) > 1:
            return tuple(entry for entry in entries if entry not in rewards), sorted(fitting)
        if not fitting:
            return entries, []
        (name,) = fitting
    chosen = Entry((name,), "validation/reward", Role.VALIDATION)
    return (chosen, *(entry for entry in entries if entry not in rewards)), []


def _steps_per_row(training: list[int]) -> dict[int, int]:
    """Return for each training step of the log how many steps its row stands for.

    A trainer that logs at every tenth step writes the means over ten. The first row stands for as many as the second,
    or for fewer where it comes earlier.
    """
    gaps = [later - earlier for earlier, later in pairwise(training)]
    if not training:
        return {}
    first = max(1, min(training[0], gaps[0])) if gaps else 1
    return dict(zip(training, [first, *gaps], strict=True))


def _merge(lanes: dict[str, dict[str, float]], more: Mapping[str, Mapping[str, float]]) -> None:
    for lane, stages in more.items():
        mine = lanes.setdefault(lane, {})
        for stage, seconds in stages.items():
            mine[stage] = mine.get(stage, 0.0) + seconds


def _wrong_trainer(points: Points, crosswalk: Crosswalk, where: str) -> UserError:
    names = sorted(points.names)
    return UserError(
        f"none of the {len(names)} names in the log is one that {crosswalk.title} writes: {', '.join(names[:4])}",
        where=where,
        fix="name the trainer that wrote it: verl, trl or open-instruct; a file of TensorBoard's after its tag",
    )
