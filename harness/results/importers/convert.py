"""From the frame of another trainer's log to rows of ``steps.jsonl``.

``collect`` finds the step of each record and counts everything that is no number; ``convert`` makes figures of each
name here and rows of the figures. Both note in words what they left out, and what a reader must know.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from harness.core.errors import UserError
from harness.core.types import Metric
from harness.results import EvaluationRow, StepRow, TailRow, store_metrics
from harness.results.importers.logs import STEP, TIME, Log
from harness.results.importers.trainers import DEVICES, GROWTH, REST, STEP_SECONDS, STEPS, Crosswalk, Entry, pattern
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
RECORDS_COUNTED = "the steps are _step, with which Weights & Biases counts records; they may differ from training steps"
ROWS_COUNTED = (
    "no record has a step: the rows are counted from 1, and each may stand for several training steps; the "
    "trainer_state.json or the tracker's files have the real ones"
)


@dataclass
class Points:
    """The numbers of a log.

    Attributes:
        cells: columns ``step`` (as the trainer counts), ``name`` and ``value``; each name once for a step.
        at: step -> when it was logged, in seconds.
        run_totals: numbers of the whole run.
    """

    cells: pd.DataFrame
    at: pd.Series
    run_totals: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

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
    cells["value"] = np.array(numbers, float)
    cells = cells[~cells["name"].isin([*crosswalk.step_names, *crosswalk.clock_names])]
    steps, note = _steps(raw, cells, crosswalk)
    foreign, first_names = int((steps == -1).sum()), cells.groupby("record")["raw_name"].first()
    without_step = first_names.reindex(steps.index[steps.isna()]).fillna("nothing else")
    steps = steps[steps >= 0].astype("int64")
    backwards = int((steps.diff() < 0).sum())
    clocks = raw.reindex(index=steps.index, columns=[TIME, *crosswalk.clock_names]).map(_finite).bfill(axis=1)
    at = clocks.iloc[:, 0].astype(float).dropna().groupby(steps).last()

    cells = cells[cells["record"].isin(steps.index)]
    cells = cells.assign(step=cells["record"].map(steps))
    texts, cells = cells.loc[~cells["is_number"], "name"], cells[cells["is_number"]]
    non_finite = cells.loc[~np.isfinite(cells["value"]), "name"]
    of_run = cells["name"].isin(crosswalk.run_totals)
    run_totals = dict(zip(cells.loc[of_run, "name"], cells.loc[of_run, "value"].tolist(), strict=True))
    cells = cells.loc[~of_run, ["step", "name", "value"]]
    is_timer = cells["name"].map(crosswalk.is_timer).astype(bool)
    timers = cells[is_timer].groupby(["step", "name"], as_index=False)["value"].sum()
    cells = cells[~is_timer]
    again, before = cells.duplicated(["step", "name"]), cells.groupby(["step", "name"])["value"].shift()
    is_other = again & (before != cells["value"]) & ~(before.isna() & cells["value"].isna())
    replaced = int((is_other & ~cells["name"].isin(crosswalk.bookkeeping)).sum())
    cells = pd.concat([cells.drop_duplicates(["step", "name"], keep="last"), timers], ignore_index=True)
    if cells.empty:
        what = f"the log has no number of a training step ({len(raw)} records)"
        if foreign:
            what = f"none of the {foreign} records in the log has a step or a name that {crosswalk.title} writes"
        raise UserError(what, where, "name the log of a run that has made a step, or another trainer")
    notes = {
        note: note,
        _counted(non_finite, "number", "NaN, infinite or null") + "; kept as NaN": len(non_finite),
        "left out: " + _counted(texts, "value", "no number"): len(texts),
        "left out: " + _counted(without_step, "record", "without a step"): len(without_step),
        f"left out: {foreign} records with no name that the trainer writes": foreign,
        f"{replaced} numbers were logged again and otherwise for the same step; the later ones count": replaced,
        f"the log goes back to an earlier step {backwards} times, as that of a resumed run does": backwards,
    }
    return Points(cells, at, run_totals, [text for text, holds in notes.items() if holds])


def _steps(raw: pd.DataFrame, cells: pd.DataFrame, crosswalk: Crosswalk) -> tuple[pd.Series, str]:
    """Return the step of each record (NaN where it has none, -1 where rows are counted and it is none), and a note.

    The count of Weights & Biases is used where it never differs from another step of the same record.
    """
    names = [STEP, *(name for name in crosswalk.step_names if name != OWN_COUNT)]
    own = raw.reindex(columns=names).map(_whole).bfill(axis=1).iloc[:, 0].astype(float)
    counted = OWN_COUNT in raw and OWN_COUNT in crosswalk.step_names
    counts = raw[OWN_COUNT].map(_whole).astype(float) if counted else pd.Series(math.nan, raw.index)
    differ = (own.notna() & counts.notna() & (own != counts)).any()
    steps = own if differ else own.fillna(counts)
    if steps.notna().any():
        return _with_timers(steps, cells, crosswalk), "" if own.notna().any() else RECORDS_COUNTED
    numbers = cells[cells["is_number"]]
    is_known = raw.index.isin(numbers.loc[numbers["name"].map(crosswalk.writes).astype(bool), "record"])
    is_training = raw.index.isin(numbers.loc[numbers["name"].map(crosswalk.is_training).astype(bool), "record"])
    row = pd.Series(is_known & is_training, raw.index).cumsum().astype(float)
    return row.where(is_known, -1.0), ROWS_COUNTED


def _with_timers(steps: pd.Series, cells: pd.DataFrame, crosswalk: Crosswalk) -> pd.Series:
    """Give records of timers alone the step of the training record after them, of which they are part.

    Not where they may be an evaluation's, whose seconds are one figure: those before an evaluation's record, and where
    that comes between two training records, all up to the next one.
    """
    others = cells[~cells["name"].map(crosswalk.is_timer).astype(bool)]
    has_others = steps.index.isin(others["record"])
    alone = steps.isna() & steps.index.isin(cells["record"]) & ~has_others
    is_training = steps.index.isin(others.loc[others["name"].map(crosswalk.is_training).astype(bool), "record"])
    trained = steps.where(is_training)
    evaluated = steps.where(has_others & ~is_training)
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


def _counted(names: Iterable[str], noun: str, what: str) -> str:
    """Say how many there were, with the most frequent names."""
    counter = Counter(names)
    verb = f"{noun} was" if counter.total() == 1 else f"{noun}s were"
    return f"{counter.total()} {verb} {what} ({_first([name for name, _ in counter.most_common()])})"


def _first(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


@dataclass
class Converted:
    """The rows of a run, and what became of the names.

    Attributes:
        translated: names of the log that went under a name of ours.
        kept: names that stayed as ``imported/<name>``.
        steps_per_row: training steps that a row stands for, where each row stands for as many.
        seconds_known: whether the log tells how long a step took.
    """

    rows: list[StepRow | EvaluationRow | TailRow] = field(default_factory=list)
    translated: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    steps_per_row: int | None = None
    seconds_known: bool = False
    notes: list[str] = field(default_factory=list)


class _Figures:
    """The figures of a run by training step of the log.

    Attributes:
        seconds: of stages by lane and stage, and of the step as ``("", STEP_SECONDS)``.
        metrics, validation: of the training row and of the evaluation.
        is_unknown: in which steps a time is negative or not finite, so that their seconds are not known.
    """

    def __init__(self, steps: pd.Index) -> None:
        self.is_unknown = pd.Series(False, steps)
        self.seconds: dict[tuple[str, str], pd.Series] = defaultdict(lambda: pd.Series(math.nan, steps))
        self.metrics: dict[int, dict[str, Metric]] = {step: {} for step in steps}
        self.validation: dict[int, dict[str, Metric]] = {step: {} for step in steps}

    def put(self, entry: Entry, ours: str, known: pd.Series, is_validation: bool) -> None:
        if entry.is_seconds:
            self.seconds[entry.lane, ours] = self.seconds[entry.lane, ours].fillna(known)
            return
        rows = self.validation if is_validation else self.metrics
        for step, value in known.items():
            rows[step][ours] = Metric(float(value), entry.reduction)


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
        UserError: no name is one that the trainer writes, or none is ``validation``.
    """
    done = Converted()
    entries, choices = _choose_validation(crosswalk, validation, points.names)
    values = points.cells.pivot(index="step", columns="name", values="value")
    there = points.cells.assign(value=True).pivot(index="step", columns="name", values="value").notna()
    is_training = there[[name for name in values if crosswalk.is_training(name)]].any(axis=1)
    covers = _steps_per_row(values.index[is_training]).reindex(values.index, fill_value=0)
    for name in filter(crosswalk.is_timer, values):
        values[name] /= covers  # of a row; here, as of everything else, of a step
    figures = _Figures(values.index)
    added = pd.DataFrame(_additions(values, covers, crosswalk, devices), values.index)
    left = _translate(values.join(added), there, entries, figures, done)
    if not done.translated:
        names = sorted(points.names)
        what = f"none of the {len(names)} names in the log is one that {crosswalk.title} writes: {', '.join(names[:4])}"
        fix = "name the trainer that wrote it: verl, trl or open-instruct; a file of TensorBoard's after its tag"
        raise UserError(what, where, fix)
    for name in values.columns[left.any()]:  # what did not simply take another name
        done.kept |= {name} - done.translated
        entry = Entry(KEPT + name, (name,))
        figures.put(entry, entry.ours, values.loc[left[name], name], name.startswith(crosswalk.validation))
    has_stages = any(lane and stage != "evaluate" for lane, stage in figures.seconds)
    _fill_rows(figures, covers, points.at.reindex(values.index), crosswalk, where, done)

    each = set(covers[is_training])
    done.steps_per_row = int(each.pop()) if len(each) == 1 else None
    filled = {name for rows in (figures.metrics, figures.validation) for row in rows.values() for name in row}
    missing = {
        name: [theirs for entry in entries if entry.ours == name for theirs in entry.theirs]
        for name in STANDARD
        if name not in filled and not (choices and name == "validation/reward")
    }
    looked = "; ".join(f"{name} ({_first(theirs) or 'no name of the trainer'})" for name, theirs in missing.items())
    kept = f" ({_first(sorted(done.kept))})" if done.kept else ""
    notes = {
        f"{len(done.translated)} names translated, {len(done.kept)} kept as imported/<name>{kept}": True,
        f"not in the log, with the names that were looked for: {looked}": missing,
        f"{len(choices)} validation figures, none taken as validation/reward: {_first(choices, 5)}; --validation NAME "
        "chooses": choices,
        f"each row is the mean over {done.steps_per_row} training steps, as the log has it": (done.steps_per_row or 1)
        > 1,
        "the log does not tell how long a step took: its seconds are 0 here, which means unknown": (
            not done.seconds_known
        ),
        crosswalk.no_timers: crosswalk.no_timers and not has_stages,
    }
    done.notes[:0] = [text for text, holds in notes.items() if holds]
    return done


def _additions(
    values: pd.DataFrame, covers: pd.Series, crosswalk: Crosswalk, devices: int | None
) -> dict[str, pd.Series | float]:
    """Return the columns that entries may ask for beside those of the log; NaN where a step has none."""
    added: dict[str, pd.Series | float] = {STEPS: covers.where(covers > 0).astype(float)}
    if devices is not None:
        added[DEVICES] = float(devices)
    for name in values.columns.intersection(crosswalk.cumulative):
        counts = values.loc[covers > 0, name]
        growth = counts.diff()
        if len(counts) and counts.index[0] == covers[counts.index[0]]:
            growth.iloc[0] = counts.iloc[0]  # since the run's start
        added[GROWTH + name] = growth.replace([math.inf, -math.inf], math.nan)
    for name, parts in crosswalk.within.items():
        if name in values:
            inside = values[values.columns.intersection(parts)].fillna(0.0).sum(axis=1)
            added[REST + name] = (values[name] - inside).clip(lower=0.0)
    return added


def _translate(
    values: pd.DataFrame, there: pd.DataFrame, entries: Iterable[Entry], figures: _Figures, done: Converted
) -> pd.DataFrame:
    """Put what the entries make of the log; return where its names are left that did not simply take another one.

    Of the entries for one figure, the first whose names are all there counts.
    """
    all_there = there.join(values[values.columns.difference(there.columns)].notna())
    nowhere = pd.Series(False, values.index)
    filled: dict[str, pd.Series] = defaultdict(lambda: nowhere)
    renamed: dict[str, pd.Series] = defaultdict(lambda: nowhere)
    bad_seconds = 0
    for entry in entries:
        for theirs, ours in _matches(entry, values.columns):
            inputs = values[[*theirs]]
            use = all_there[[*theirs]].all(axis=1) & ~filled[ours]
            if entry.compute is None:
                value = inputs[theirs[0]]
                use &= ~renamed[theirs[0]]
            else:
                value = entry.compute(*(inputs[name] for name in theirs))
                use &= np.isfinite(value) | ~np.isfinite(inputs).all(axis=1)  # else it was divided by 0
            if entry.is_seconds:
                bad = use & ~value.between(0.0, MOST_SECONDS)
                bad_seconds += int(bad.sum())
                use &= ~bad
                figures.is_unknown |= bad
            if not use.any():
                continue
            figures.put(entry, ours, value[use], entry.is_validation)
            filled[ours] = filled[ours] | use
            done.translated |= {name.removeprefix(REST) for name in theirs} & set(there)
            done.notes += [entry.caution] * bool(entry.caution)
            if entry.compute is None:
                renamed[theirs[0]] = renamed[theirs[0]] | use
    if bad_seconds:
        steps = int(figures.is_unknown.sum())
        done.notes.append(
            f"{bad_seconds} times were negative or not finite: the seconds of {steps} steps count as unknown"
        )
    return there & ~pd.DataFrame(renamed, values.index).reindex(columns=there.columns, fill_value=False)


def _matches(entry: Entry, names: Iterable[str]) -> list[tuple[tuple[str, ...], str]]:
    """Return (names in the log, name here) for each way in which the entry fits."""
    if len(entry.theirs) > 1 or "*" not in entry.theirs[0]:
        return [(entry.theirs, entry.ours)] if set(entry.theirs) <= set(names) else []
    fitting = [match for name in names if (match := pattern(entry.theirs[0]).fullmatch(name))]
    return [((match[0],), entry.ours.replace("*", match[1])) for match in fitting]


def _fill_rows(
    figures: _Figures, covers: pd.Series, at: pd.Series, crosswalk: Crosswalk, where: str, done: Converted
) -> None:
    """Make the rows. The stages of a step without a training row (an evaluation's) belong to the next row."""
    is_row = covers > 0
    step_s = figures.seconds.pop(("", STEP_SECONDS), covers * math.nan)
    row = is_row.shift(fill_value=False).cumsum()  # number of the row that a step belongs to
    by_row = pd.DataFrame(figures.seconds, covers.index).groupby(row).sum(min_count=1)
    lanes = [_by_lane(record) for record in by_row.to_dict("records")]
    evaluate_s = row.map(by_row.loc[:, [name for name in by_row if name[1] == "evaluate"]].sum(axis=1))
    times = at[is_row]
    clock_s = (times - times.ffill().shift()).reindex(covers.index)
    clock_s = clock_s.where(clock_s >= 0) / covers
    wall_s = (step_s + evaluate_s / covers).fillna(clock_s).where(is_row)
    wall_s = wall_s.where(~figures.is_unknown)
    done.seconds_known = bool(wall_s.notna().any())
    wall_s = wall_s.fillna(0.0)
    elapsed_s = (wall_s * covers).cumsum()
    if (too_long := elapsed_s[elapsed_s > MOST_SECONDS]).size:
        what = f"the log's steps take {too_long.iloc[0]:g} s by step {too_long.index[0]}, at most {MOST_SECONDS:g}"
        raise UserError(what, where, "name a log whose times are in seconds")
    first = 0 if is_row.any() and is_row.idxmax() == 0 else 1
    empty_evaluations = 0
    for step, covered, number in zip(covers.index, covers.tolist(), row.tolist(), strict=True):
        if covered:
            done.rows.append(
                StepRow(
                    step=step - first,
                    version=step - first + 1,
                    wall_s=float(wall_s[step]),
                    elapsed_s=float(elapsed_s[step]),
                    optimizer_steps=crosswalk.optimizer_steps * covered,
                    lanes=lanes[number],
                    metrics=store_metrics(figures.metrics[step]),
                )
            )
        validation = figures.validation[step]
        if any(math.isfinite(metric.value) for metric in validation.values()):
            done.rows.append(EvaluationRow(step, step, float(elapsed_s[step]), store_metrics(validation)))
        elif validation:
            empty_evaluations += 1
    if empty_evaluations:
        done.notes.append(f"{empty_evaluations} evaluations without a single finite figure are left out")
    if len(lanes) > is_row.sum() and lanes[-1]:
        tail_s = sum(seconds for by_stage in lanes[-1].values() for seconds in by_stage.values())
        done.rows.append(TailRow(tail_s, float(elapsed_s.iloc[-1]) + tail_s, lanes[-1]))


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


def devices_of(points: Points, crosswalk: Crosswalk, given: int | None) -> int | None:
    """Return on how many devices a verl run ran: total tokens / (throughput per device x seconds), or those given.

    Raises:
        UserError: the log's own figures give another number than the given one.
    """
    if crosswalk.trainer != "verl":
        return given
    figures = points.cells.pivot(index="step", columns="name", values="value")
    figures = figures.reindex(columns=["perf/total_num_tokens", "perf/throughput", "timing_s/step"])
    tokens, per_device, seconds = (figures[name] for name in figures)
    each = (tokens / (per_device * seconds))[np.isfinite(tokens) & (per_device * seconds > 0)]
    if not len(each):
        return given
    devices = round(each.median())
    if given is not None and given != devices:
        raise UserError(
            f"--devices {given} cannot be: the log's tokens, seconds and throughput per device give {devices}",
            where="--devices",
            fix=f"leave --devices out, or say {devices}",
        )
    return devices or None


def _choose_validation(crosswalk: Crosswalk, name: str | None, names: set[str]) -> tuple[tuple[Entry, ...], list[str]]:
    """Return the entries with one name as the validation reward, and the names that could be where none is chosen.

    Raises:
        UserError: the log has no such name.
    """
    rewards = [entry for entry in crosswalk.entries if entry.ours == "validation/reward"]
    others = tuple(entry for entry in crosswalk.entries if entry not in rewards)
    if name is None:
        fitting = {entry.theirs[0] for entry in rewards} & names
        fitting = fitting or {each for each in names for entry in rewards if pattern(entry.theirs[0]).fullmatch(each)}
        if len(fitting) > 1:
            return others, sorted(fitting)
        if not fitting:
            return crosswalk.entries, []
        (name,) = fitting
    elif name not in names:
        known = sorted(each for each in names if each.startswith(crosswalk.validation))
        fix = f"one of {len(known)}: {_first(known, 5)}" if known else "leave it out: the log has no evaluations"
        raise UserError(f"the log has no {name!r}", where="--validation", fix=fix)
    return (Entry("validation/reward", (name,)), *others), []
