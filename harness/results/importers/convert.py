"""From the frame of another trainer's log to rows of ``steps.jsonl``.

``collect`` finds the step of each record and counts everything that is no number; ``convert`` makes a column of each
name here and rows of the columns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from harness.core.errors import UserError
from harness.core.types import Metric
from harness.results import EvaluationRow, StepRow, TailRow, store_metrics
from harness.results.importers.logs import STEP, TIME, Log
from harness.results.importers.trainers import DEVICES, GROWTH, REST, STEPS, Crosswalk, Entry, Role, pattern
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
class Points:
    """The numbers of a log.

    Attributes:
        cells: columns ``step`` (as the trainer counts), ``name`` and ``value``; each name once for a step.
        at: step -> when it was logged, in seconds.
        run_totals: numbers of the whole run.
        not_numbers: how often a name came with something else than a number (texts, histograms, tables).
        non_finite: how often a name came as NaN, infinity or null, which is how JSON writers put these.
        replaced: numbers in whose place a later record of the same step put another one.
        without_step: records without a step, left out, by the first of their names.
        backwards: how often the log went back to an earlier step, as a resumed run's does.
        steps_from: what the steps are, where they may be other than the trainer's: empty, ``_step``, or ``rows``.
        foreign: records with no name that the trainer writes, left out where rows are counted.
    """

    cells: pd.DataFrame
    at: pd.Series
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
        return set(self.cells["name"])


def collect(log: Log, crosswalk: Crosswalk, where: str) -> Points:
    """Gather the records by step; what comes later for the same step and name counts.

    Where no record has a step, the training rows are counted, and an evaluation belongs to the row before it.

    Args:
        where: how to name the log in an error.

    Raises:
        UserError: the log has no number of a step.
    """
    raw = log.frame
    own = [name for name in raw if name in (STEP, TIME, *crosswalk.step_names, *crosswalk.clock_names)]
    cells = raw.drop(columns=own).stack().dropna().rename_axis(["record", "raw_name"]).rename("raw").reset_index()
    plain = {
        name: crosswalk.plain_name(crosswalk.name_of_tag(name) if log.has_tags else name)
        for name in cells["raw_name"].unique()
    }
    numbers = [_number(value) for value in cells["raw"]]
    cells["name"] = cells["raw_name"].map(plain)
    cells["is_number"] = np.array([number is not None for number in numbers], bool)
    cells["value"] = np.array([math.nan if number is None else number for number in numbers], float)
    cells = cells[~cells["name"].isin([*crosswalk.step_names, *crosswalk.clock_names])]
    steps, steps_from = _steps(raw, cells, crosswalk)
    found = Points(cells, pd.Series(dtype=float), steps_from=steps_from, foreign=int((steps == -1).sum()))
    first_names = cells.groupby("record")["raw_name"].first()
    found.without_step = Counter(first_names.reindex(steps.index[steps.isna()]).fillna("nothing else"))
    steps = steps[steps >= 0].astype("int64")
    found.backwards = int((steps.diff() < 0).sum())
    clocks = raw.reindex(index=steps.index, columns=[TIME, *crosswalk.clock_names]).map(_finite).bfill(axis=1)
    found.at = clocks.iloc[:, 0].astype(float).dropna().groupby(steps).last()

    cells = cells[cells["record"].isin(steps.index)]
    cells = cells.assign(step=cells["record"].map(steps))
    found.not_numbers = Counter(cells.loc[~cells["is_number"], "name"])
    cells = cells[cells["is_number"]]
    found.non_finite = Counter(cells.loc[~np.isfinite(cells["value"]), "name"])
    of_run = cells["name"].isin(crosswalk.run_totals)
    found.run_totals = dict(zip(cells.loc[of_run, "name"], cells.loc[of_run, "value"].tolist(), strict=True))
    cells = cells.loc[~of_run, ["step", "name", "value"]]
    is_timer = cells["name"].map(crosswalk.is_timer).astype(bool)
    timers = cells[is_timer].groupby(["step", "name"], as_index=False)["value"].sum()
    cells = cells[~is_timer]
    before = cells.groupby(["step", "name"])["value"].shift().where(cells.duplicated(["step", "name"]), cells["value"])
    other = (before != cells["value"]) & ~(before.isna() & cells["value"].isna())
    found.replaced = int((other & ~cells["name"].isin(crosswalk.bookkeeping)).sum())
    found.cells = pd.concat([cells.drop_duplicates(["step", "name"], keep="last"), timers], ignore_index=True)
    if not found.names:
        what = f"the log has no number of a training step ({len(raw)} records)"
        if found.foreign:
            what = f"none of the {found.foreign} records in the log has a step or a name that {crosswalk.title} writes"
        raise UserError(what, where, "name the log of a run that has made a step, or another trainer")
    return found


def _steps(raw: pd.DataFrame, cells: pd.DataFrame, crosswalk: Crosswalk) -> tuple[pd.Series, str]:
    """Return the step of each record, and what it is: NaN where it has none, -1 where rows are counted and it is none.

    The count of Weights & Biases is used where it never differs from another step of the same record.
    """
    names = [STEP, *(name for name in crosswalk.step_names if name != OWN_COUNT)]
    own = raw.reindex(columns=names).map(_whole).bfill(axis=1).iloc[:, 0].astype(float)
    counted = OWN_COUNT in raw and OWN_COUNT in crosswalk.step_names
    counts = raw[OWN_COUNT].map(_whole).astype(float) if counted else pd.Series(math.nan, raw.index)
    if (own.notna() & counts.notna() & (own != counts)).any():
        return _with_timers(own, cells, crosswalk), ""
    steps = own.fillna(counts)
    if steps.notna().any():
        return _with_timers(steps, cells, crosswalk), "" if own.notna().any() else OWN_COUNT
    numbers = cells[cells["is_number"]]
    is_known = raw.index.isin(numbers.loc[numbers["name"].map(crosswalk.writes).astype(bool), "record"])
    is_training = raw.index.isin(numbers.loc[numbers["name"].map(crosswalk.is_training).astype(bool), "record"])
    row = pd.Series(is_known & is_training, raw.index).cumsum().astype(float)
    return row.where(is_known, -1.0), "rows"


def _with_timers(steps: pd.Series, cells: pd.DataFrame, crosswalk: Crosswalk) -> pd.Series:
    """Give records of timers alone the step of the training record after them, of which they are part.

    Not where they may be an evaluation's, whose seconds are one figure: those before an evaluation's record, and where
    that comes between two training records, all up to the next one.
    """
    names = cells["name"]
    is_timer = names.map(crosswalk.is_timer).astype(bool)
    others = cells[~is_timer]
    alone = steps.isna() & steps.index.isin(cells.loc[is_timer, "record"]) & ~steps.index.isin(others["record"])
    if not alone.any():
        return steps
    is_training = steps.index.isin(others.loc[others["name"].map(crosswalk.is_training).astype(bool), "record"])
    trained = steps.where(is_training)
    evaluated = steps.where(steps.index.isin(others["record"]) & ~is_training)
    between = evaluated.notna() & (evaluated != trained.ffill())
    row = trained.notna()[::-1].cumsum()[::-1]
    is_mixed = between.groupby(row).transform("any")
    before_evaluation = evaluated.notna().where(steps.notna()).bfill().fillna(True).astype(bool)
    return steps.where(~alone | is_mixed | before_evaluation, trained.bfill())


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (OverflowError, ValueError):  # an integer beyond float's range, or a text that is no number
        return None


def _finite(value: Any) -> float:
    number = _number(value)
    return math.nan if number is None or not math.isfinite(number) else number


def _whole(value: Any) -> float:
    number = _finite(value)
    is_step = 0 <= number <= MOST_STEP and number == int(number) and not isinstance(value, bool)
    return number if is_step else math.nan


@dataclass
class Converted:
    """The rows of a run, and what became of the names.

    Attributes:
        translated: names of the log that went under a name of ours.
        kept: names that stayed as ``imported/<name>``.
        steps_per_row: training steps that a row stands for, where each row stands for as many.
        bad_seconds: times that were negative or not finite, and were left out.
        seconds_known: whether the log tells how long a step took.
        has_stages: whether it tells the seconds of a stage of the training step.
        missing: those of ``STANDARD`` that got no value -> the names of the log that it could have come from.
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
    has_stages: bool = False
    missing: dict[str, list[str]] = field(default_factory=dict)
    validations: list[str] = field(default_factory=list)
    cautions: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Column:
    """One figure here: its values by step, and in which steps it is; ``lane`` of a stage."""

    role: Role
    ours: str
    values: pd.Series
    there: pd.Series
    lane: str = ""
    reduction: Any = "mean"


def convert(
    points: Points, crosswalk: Crosswalk, where: str, devices: int | None = None, validation: str | None = None
) -> Converted:
    """Return the rows: for each step its training row, then its evaluation.

    The trainers count the first training step as 1, which is step 0 here; one that starts at 0 is taken as it is.

    Args:
        where: how to name the log in an error.
        devices: on which the run ran; None where it is not known.
        validation: the name in the log that is the validation reward, where several could be.

    Raises:
        UserError: no name is one that the trainer writes.
    """
    done = Converted()
    values = points.cells.pivot(index="step", columns="name", values="value")
    there = points.cells.assign(value=True).pivot(index="step", columns="name", values="value").notna()
    of_training = [name for name in values if crosswalk.is_training(name)]
    is_training = there[of_training].any(axis=1)
    covers = _steps_per_row(values.index[is_training]).reindex(values.index, fill_value=0)
    sizes = set(covers[is_training])
    done.steps_per_row = int(sizes.pop()) if len(sizes) == 1 else None
    for name in filter(crosswalk.is_timer, values):
        values[name] /= covers  # of a row; here, as of everything else, of a step
    entries, done.validations = _choose_validation(crosswalk.entries, validation, points.names)
    columns, left = _columns(values, there, _additions(values, covers, crosswalk, devices), entries, done)
    if not done.translated:
        names = sorted(points.names)
        what = f"none of the {len(names)} names in the log is one that {crosswalk.title} writes: {', '.join(names[:4])}"
        fix = "name the trainer that wrote it: verl, trl or open-instruct; a file of TensorBoard's after its tag"
        raise UserError(what, where, fix)
    for name in values.columns[left.any()]:  # what did not simply take another name
        done.kept |= {name} - done.translated
        role = Role.VALIDATION if name.startswith(crosswalk.validation) else Role.METRIC
        columns.append(_Column(role, KEPT + name, values[name], left[name]))
    _fill_rows(columns, covers, points.at.reindex(values.index), crosswalk, where, done)
    filled = {column.ours for column in columns} | ({"validation/reward"} if done.validations else set())
    done.missing = {
        name: [theirs for entry in entries if entry.ours == name for theirs in entry.theirs]
        for name in STANDARD
        if name not in filled
    }
    return done


def _additions(
    values: pd.DataFrame, covers: pd.Series, crosswalk: Crosswalk, devices: int | None
) -> dict[str, pd.Series]:
    """Return the columns that entries may ask for beside those of the log; NaN where a step has none."""
    steps = covers.where(covers > 0).astype(float)
    added = {STEPS: steps}
    if devices is not None:
        added[DEVICES] = pd.Series(float(devices), values.index)
    for name in values.columns.intersection(crosswalk.cumulative):
        counts = values.loc[covers > 0, name]
        growth = counts.diff()
        if len(counts) and counts.index[0] == covers[counts.index[0]]:
            growth.iloc[0] = counts.iloc[0]  # since the run's start
        added[GROWTH + name] = growth.reindex(values.index).replace([math.inf, -math.inf], math.nan)
    for name, parts in crosswalk.within.items():
        if name in values:
            inside = values[values.columns.intersection(parts)].fillna(0.0).sum(axis=1)
            added[REST + name] = (values[name] - inside).clip(lower=0.0)
    return added


def _columns(
    values: pd.DataFrame,
    there: pd.DataFrame,
    added: Mapping[str, pd.Series],
    entries: Sequence[Entry],
    done: Converted,
) -> tuple[list[_Column], pd.DataFrame]:
    """Return what the entries make of the log, and where its names are left that did not simply take another one.

    Of the entries for one figure, the first whose names are all there counts.
    """
    columns: list[_Column] = []
    nowhere = pd.Series(False, values.index)
    filled: dict[tuple[Role, str], pd.Series] = {}
    renamed: dict[str, pd.Series] = {}
    for entry in entries:
        for theirs, ours in _matches(entry, [*values.columns, *added]):
            inputs = [values[name] if name in values else added[name] for name in theirs]
            use = ~filled.get((entry.role, ours), nowhere)
            for name, column in zip(theirs, inputs, strict=True):
                use &= there[name] if name in there else column.notna()
            if entry.compute is None:
                value = inputs[0]
                use &= ~renamed.get(theirs[0], nowhere)
            else:
                value = entry.compute(*inputs)
                known = np.logical_and.reduce([np.isfinite(column) for column in inputs])
                use &= ~(known & ~np.isfinite(value))  # divided by 0
            if entry.role in (Role.STEP, Role.STAGE):
                bad = use & ~value.between(0.0, MOST_SECONDS)
                done.bad_seconds += int(bad.sum())
                use &= ~bad
            if not use.any():
                continue
            columns.append(_Column(entry.role, ours, value, use, entry.lane, entry.reduction))
            filled[entry.role, ours] = filled.get((entry.role, ours), nowhere) | use
            done.cautions |= {entry.caution} - {""}
            done.translated |= {name.removeprefix(REST) for name in theirs} & set(values)
            if entry.compute is None:
                renamed[theirs[0]] = renamed.get(theirs[0], nowhere) | use
    return columns, there & ~pd.DataFrame(renamed, values.index).reindex(columns=there.columns, fill_value=False)


def _matches(entry: Entry, names: Sequence[str]) -> list[tuple[tuple[str, ...], str]]:
    """Return (names in the log, name here) for each way in which the entry fits."""
    if len(entry.theirs) > 1 or "*" not in entry.theirs[0]:
        return [(entry.theirs, entry.ours)] if set(entry.theirs) <= set(names) else []
    fitting = [match for name in names if (match := pattern(entry.theirs[0]).fullmatch(name))]
    return [((match[0],), entry.ours.replace("*", match[1])) for match in fitting]


def _fill_rows(
    columns: Sequence[_Column], covers: pd.Series, at: pd.Series, crosswalk: Crosswalk, where: str, done: Converted
) -> None:
    """Make the rows. The stages of a step without a training row (an evaluation's) belong to the next row."""
    is_row = covers > 0
    step_s = pd.Series(math.nan, covers.index)
    stages: dict[tuple[str, str], pd.Series] = {}
    metrics: dict[int, dict[str, Metric]] = {step: {} for step in covers.index}
    validation: dict[int, dict[str, Metric]] = {step: {} for step in covers.index}
    for column in columns:
        known = column.values[column.there]
        if column.role is Role.STEP:
            step_s = step_s.combine_first(known)
        elif column.role is Role.STAGE:
            stages[column.lane, column.ours] = stages.get((column.lane, column.ours), step_s * math.nan).fillna(known)
        else:
            target = metrics if column.role is Role.METRIC else validation
            for step, value in known.items():
                target[step][column.ours] = Metric(float(value), column.reduction)
    done.has_stages = any(stage != "evaluate" for _, stage in stages)
    row = is_row.shift(fill_value=False).cumsum()  # number of the row that a step belongs to
    by_row = pd.DataFrame(stages, covers.index).groupby(row).sum(min_count=1)
    lanes = [_by_lane(record) for record in by_row.to_dict("records")]
    evaluate_s = row.map(by_row.loc[:, [name for name in by_row if name[1] == "evaluate"]].sum(axis=1))
    times = at[is_row]
    clock_s = (times - times.ffill().shift()).reindex(covers.index)
    clock_s = clock_s.where(clock_s >= 0) / covers
    wall_s = (step_s + evaluate_s / covers).fillna(clock_s).where(is_row)
    done.seconds_known = bool(wall_s.notna().any())
    wall_s = wall_s.fillna(0.0)
    elapsed_s = (wall_s * covers).cumsum()
    if (too_long := elapsed_s[elapsed_s > MOST_SECONDS]).size:
        what = f"the log's steps take {too_long.iloc[0]:g} s by step {too_long.index[0]}, at most {MOST_SECONDS:g}"
        raise UserError(what, where, "name a log whose times are in seconds")
    first = 0 if is_row.any() and is_row.idxmax() == 0 else 1
    for step, covered, number in zip(covers.index, covers.tolist(), row.tolist(), strict=True):
        done.elapsed_s = float(elapsed_s[step])
        if covered:
            done.last_step = step - first + 1
            done.rows.append(
                StepRow(
                    step=step - first,
                    version=done.last_step,
                    wall_s=float(wall_s[step]),
                    elapsed_s=done.elapsed_s,
                    optimizer_steps=crosswalk.optimizer_steps * covered,
                    lanes=lanes[number],
                    metrics=store_metrics(metrics[step]),
                )
            )
        figures = validation[step]
        if any(math.isfinite(metric.value) for metric in figures.values()):
            done.rows.append(EvaluationRow(step, step, done.elapsed_s, store_metrics(figures)))
        elif figures:
            done.cautions.add("an evaluation without a single finite figure is left out")
    if len(lanes) > is_row.sum() and lanes[-1]:
        tail_s = sum(seconds for by_stage in lanes[-1].values() for seconds in by_stage.values())
        done.elapsed_s += tail_s
        done.rows.append(TailRow(tail_s, done.elapsed_s, lanes[-1]))
    done.steps = sum(isinstance(item, StepRow) for item in done.rows)
    done.evaluations = sum(isinstance(item, EvaluationRow) for item in done.rows)


def _by_lane(stages: Mapping[Any, float]) -> dict[str, dict[str, float]]:
    lanes: dict[str, dict[str, float]] = {}
    for (lane, stage), seconds in stages.items():
        if not math.isnan(seconds):
            lanes.setdefault(lane, {})[stage] = seconds
    return lanes


def _steps_per_row(training: pd.Index) -> pd.Series:
    """Return for each training step of the log how many steps its row stands for.

    A trainer that logs at every tenth step writes the means over ten. The first row stands for as many as the second,
    or for fewer where it comes earlier.
    """
    covers = pd.Series(training, training).diff().fillna(1).astype("int64")
    if len(covers) > 1:
        covers.iloc[0] = max(1, min(training[0], covers.iloc[1]))
    return covers


def devices_of(points: Points, crosswalk: Crosswalk, said: int | None) -> int | None:
    """Return on how many devices a verl run ran: total tokens / (throughput per device x seconds), or what was said.

    Raises:
        UserError: the log's own figures give another number than the one that was said.
    """
    if crosswalk.trainer != "verl":
        return said
    figures = points.cells.pivot(index="step", columns="name", values="value")
    figures = figures.reindex(columns=["perf/total_num_tokens", "perf/throughput", "timing_s/step"])
    tokens, per_device, seconds = (figures[name] for name in figures)
    each = (tokens / (per_device * seconds))[np.isfinite(tokens) & (per_device * seconds > 0)]
    if not len(each):
        return said
    devices = round(each.median())
    if said is not None and said != devices:
        raise UserError(
            f"--devices {said} cannot be: the log's tokens, seconds and throughput per device give {devices}",
            where="--devices",
            fix=f"leave --devices out, or say {devices}",
        )
    return devices or None


def _choose_validation(
    entries: tuple[Entry, ...], name: str | None, names: set[str]
) -> tuple[tuple[Entry, ...], list[str]]:
    """Return the entries with one name as the validation reward, and the names that could be where none is chosen."""
    rewards = [entry for entry in entries if entry.ours == "validation/reward"]
    others = tuple(entry for entry in entries if entry not in rewards)
    if name is None:
        fitting = {entry.theirs[0] for entry in rewards} & names
        fitting = fitting or {each for each in names for entry in rewards if pattern(entry.theirs[0]).fullmatch(each)}
        if len(fitting) > 1:
            return others, sorted(fitting)
        if not fitting:
            return entries, []
        (name,) = fitting
    return (Entry((name,), "validation/reward", Role.VALIDATION), *others), []
