"""From the frame of another trainer's log to rows of ``steps.jsonl``; what is left out on the way is told in words."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from harness.core.errors import UserError
from harness.core.types import Metric
from harness.results import EvaluationRow, StepRow, TailRow, store_metrics
from harness.results.importers.logs import STEP, TIME, Log
from harness.results.importers.trainers import ASYNC_SIGNS, CROSSWALKS, STANDARD, VERL_ASYNC, Crosswalk, Entry
from harness.results.rows import MOST_SECONDS

KEPT = "imported/"
MOST_STEP = 10**12
"""A record of a later step counts as one without a step."""
OWN_COUNT = "_step"
"""Where Weights & Biases counts the records that it gets, which are not always the trainer's steps."""
CLOCKS = (TIME, "_timestamp", "_runtime")
"""Columns with the time of a record in seconds, used where no step's seconds are in the log."""
RECORDS_COUNTED = "the steps are _step, with which Weights & Biases counts records; they may differ from training steps"
ROWS_COUNTED = (
    "no record has a step: the rows are counted from 1, and each may stand for several training steps; the "
    "trainer_state.json or the tracker's files have the real ones"
)


@dataclass
class Converted:
    """The rows of a run, and what became of its log.

    Attributes:
        notes: what came of the names, and what was left out, one sentence each.
        crosswalk: by which it was read; verl's two differ in what generation time means.
        translated, kept: names of the log that went under a name of ours, and that stayed as ``imported/<name>``.
        steps_per_row: training steps that a row stands for, where each row stands for as many.
        seconds_known: whether the log tells how long a step took.
        run_totals: numbers of the whole run.
    """

    log: Log
    crosswalk: Crosswalk
    rows: list[StepRow | EvaluationRow | TailRow] = field(default_factory=list)
    translated: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    steps_per_row: int | None = None
    seconds_known: bool = False
    run_totals: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str, holds: object = True) -> None:
        """Note a sentence, if there is one, where something holds."""
        self.notes += [text] * bool(text and holds)


def convert(
    log: Log, trainer: str, where: str, *, asynchronous: bool = False, validation: str | None = None
) -> Converted:
    """Return the rows: for each step its training row, then its evaluation.

    The trainers count the first training step as 1, which is step 0 here; one that starts at 0 is taken as it is.

    Args:
        where: how to name the log in an error.
        asynchronous: verl only: its generation time is the trainer's wait for the next batch.
        validation: the name in the log that is the validation reward, where several could be.

    Raises:
        UserError: the log has no number of a step, no name that the trainer writes, or none that is ``validation``.
    """
    done = Converted(log, CROSSWALKS[trainer])
    cells, at = _collect(done, where)
    names = set(cells.index.unique("name"))
    if trainer == "verl" and (asynchronous or any(name.startswith(ASYNC_SIGNS) for name in names)):
        done.crosswalk = VERL_ASYNC
    crosswalk = done.crosswalk
    entries, choices = _choose_validation(crosswalk, validation, names)
    values, there = cells.unstack("name"), pd.Series(True, cells.index).unstack("name", fill_value=False)
    training = values.index[there[[name for name in values if crosswalk.is_training(name)]].any(axis=1)]
    covers = (
        training.to_series().diff().fillna(1).astype("int64")
    )  # one who logs at every tenth step writes their means
    if len(covers) > 1:  # the first row stands for as many steps as the second, or for fewer where it comes earlier
        covers.iloc[0] = max(1, min(training[0], covers.iloc[1]))
    covers = covers.reindex(values.index, fill_value=0)
    timers = [name for name in values if name.startswith(crosswalk.timers)]
    values[timers] = values[timers].div(covers, axis=0)  # of a row; here, as of everything else, of a step
    figures, is_unknown = _translate(values, there, entries, done)
    if not done.translated:
        what = f"none of the {len(names)} names in the log is one that {trainer} writes"
        fix = "name the trainer that wrote it: verl, trl or open-instruct; a file of TensorBoard's after its tag"
        raise UserError(f"{what}: {', '.join(sorted(names)[:4])}", where, fix)
    _add_rows(figures, is_unknown, covers, at.reindex(values.index), where, done)

    each = set(covers[training])
    done.steps_per_row = int(each.pop()) if len(each) == 1 else None
    filled = {ours for _, ours, _ in figures} | ({"validation/reward"} if choices else set())
    looked = {ours: [name for entry in entries if entry.ours == ours for name in entry.theirs] for ours in STANDARD}
    missing = "; ".join(f"{ours} ({_first(names)})" for ours, names in looked.items() if ours not in filled)
    has_stages = any(entry.lane and ours != "evaluate" for entry, ours, _ in figures)
    kept = f" ({_first(sorted(done.kept))})" if done.kept else ""
    done.notes.insert(0, f"{len(done.translated)} names translated, {len(done.kept)} kept as imported/<name>{kept}")
    done.note(f"not in the log, with the names that were looked for: {missing}", missing)
    what = f"{len(choices)} validation figures, none taken as validation/reward: {_first(choices, 5)}"
    done.note(f"{what}; --validation NAME chooses", choices)
    what = f"each row is the mean over {done.steps_per_row} training steps, as the log has it"
    done.note(what, (done.steps_per_row or 1) > 1)
    what = "the log does not tell how long a step took: its seconds are 0 here, which means unknown"
    done.note(what, not done.seconds_known)
    done.note(crosswalk.no_timers, not has_stages)
    done.notes += [f"left out: {what}" for what in log.left_out]
    done.note(crosswalk.assumption)
    return done


# ---- from records to numbers of steps


def _collect(done: Converted, where: str) -> tuple[pd.Series, pd.Series]:
    """Return the numbers by step and name, of which the last counts, and when each step was logged, in seconds.

    Where no record has a step, the training rows are counted, and an evaluation belongs to the row before it.
    """
    raw, crosswalk = done.log.frame, done.crosswalk
    own = [name for name in raw if name in (STEP, OWN_COUNT, *CLOCKS, *crosswalk.step_names)]
    cells = raw.drop(columns=own).stack().dropna().rename_axis(["record", "name"]).rename("raw").reset_index()
    cells["name"] = cells["name"].map({name: crosswalk.plain_name(name) for name in cells["name"].unique()})
    numbers = [_number(value) for value in cells["raw"]]
    cells["value"] = np.array(numbers, float)
    cells["is_number"] = np.array([number is not None for number in numbers], bool)
    steps, what = _steps(raw, cells[cells["is_number"]], done)
    clocks = raw.reindex(columns=CLOCKS).map(_finite).bfill(axis=1).iloc[:, 0].astype(float)
    cells["step"] = cells["record"].map(steps)
    lost = cells.loc[cells["step"].isna()].drop_duplicates("record")["name"]
    cells = cells.dropna(subset=["step"]).astype({"step": "int64"})
    texts, cells = cells.loc[~cells["is_number"], "name"], cells[cells["is_number"]]
    not_finite = cells.loc[~np.isfinite(cells["value"]), "name"]
    of_run = cells["name"].isin(crosswalk.run_totals)
    done.run_totals = dict(zip(cells.loc[of_run, "name"], cells.loc[of_run, "value"].tolist(), strict=True))
    is_timer = cells["name"].str.startswith(crosswalk.timers).astype(bool)
    timers = cells[is_timer].groupby(["step", "name"])["value"].sum()
    cells = cells[~of_run & ~is_timer].set_index(["step", "name"])["value"]
    again = cells[cells.index.duplicated(keep=False)].groupby(level=["step", "name"]).nunique(dropna=False) > 1
    replaced = sum(name not in crosswalk.bookkeeping for _, name in again.index[again])
    cells = pd.concat([cells[~cells.index.duplicated(keep="last")], timers])
    if cells.empty:
        what = f"none of the {len(raw)} records in the log has a step and a number, or a name that"
        raise UserError(
            f"{what} {crosswalk.trainer} writes",
            where,
            "name the log of a run that has made a step, or another trainer",
        )
    done.note(_counted(not_finite, "number", "NaN, infinite or null") + "; kept as NaN", len(not_finite))
    done.note("left out: " + _counted(texts, "value", "no number"), len(texts))
    done.note("left out: " + _counted(lost, "record", what), len(lost))
    done.note(f"{replaced} numbers were logged again and otherwise for the same step; the last ones count", replaced)
    return cells, clocks.groupby(steps).last()


def _steps(raw: pd.DataFrame, numbers: pd.DataFrame, done: Converted) -> tuple[pd.Series, str]:
    """Return the step of each record, NaN where it has none, and in words what such a record lacks.

    The count of Weights & Biases is used where it never differs from another step of the same record.
    """
    crosswalk = done.crosswalk
    whole = raw.reindex(columns=[OWN_COUNT, STEP, *crosswalk.step_names]).map(_whole).astype(float)
    counts, own = whole[OWN_COUNT], whole.drop(columns=OWN_COUNT).bfill(axis=1).iloc[:, 0]
    differ = (own.notna() & counts.notna() & (own != counts)).any()
    steps = own if differ else own.fillna(counts)
    if steps.notna().any():
        done.note(RECORDS_COUNTED, own.isna().all())
        return _with_timers(steps, numbers, crosswalk), "without a step"
    done.note(ROWS_COUNTED)
    is_known = raw.index.isin(numbers.loc[numbers["name"].map(crosswalk.writes).astype(bool), "record"])
    row = (is_known & _has_training(raw, numbers, crosswalk)).cumsum()
    return pd.Series(row, raw.index, float).where(is_known), "without a name that the trainer writes"


def _has_training(raw: pd.DataFrame | pd.Series, numbers: pd.DataFrame, crosswalk: Crosswalk) -> Any:
    return raw.index.isin(numbers.loc[numbers["name"].map(crosswalk.is_training).astype(bool), "record"])


def _with_timers(steps: pd.Series, numbers: pd.DataFrame, crosswalk: Crosswalk) -> pd.Series:
    """Give records of timers alone the step of the training record after them, of which they are part.

    Not where they may be an evaluation's, whose seconds are one figure: those before an evaluation's record, and where
    that comes between two training records, all up to the next one.
    """
    is_timer = numbers["name"].str.startswith(crosswalk.timers).astype(bool)
    others = numbers[~is_timer]
    alone = steps.isna() & steps.index.isin(numbers["record"]) & ~steps.index.isin(others["record"])
    is_training = _has_training(steps, others, crosswalk)
    trained = steps.where(is_training)
    is_evaluation = steps.notna() & ~is_training & steps.index.isin(others["record"])
    is_between = is_evaluation & (steps != trained.ffill())
    is_mixed = is_between.groupby(trained.notna()[::-1].cumsum()).transform("any")
    is_before_training = is_evaluation.where(steps.notna()).bfill().eq(False)
    return steps.where(~alone | is_mixed | ~is_before_training, trained.bfill())


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


# ---- from numbers of steps to rows


def _choose_validation(crosswalk: Crosswalk, name: str | None, names: set[str]) -> tuple[tuple[Entry, ...], list[str]]:
    """Return the entries with one name as the validation reward, and the names that could be where none is chosen."""
    rewards = [entry for entry in crosswalk.entries if entry.ours == "validation/reward"]
    others = tuple(entry for entry in crosswalk.entries if entry not in rewards)
    if name is None:
        fitting = next(filter(None, (sorted(each for (each,), _ in entry.matches(names)) for entry in rewards)), [])
        if len(fitting) != 1:
            return others if fitting else crosswalk.entries, fitting
        (name,) = fitting
    elif name not in names:
        known = sorted(each for each in names if each.startswith(crosswalk.validation))
        fix = f"one of {len(known)}: {_first(known, 5)}" if known else "leave it out: the log has no evaluations"
        raise UserError(f"the log has no {name!r}", where="--validation", fix=fix)
    return (Entry("validation/reward", (name,)), *others), []


Figure = tuple[Entry, str, pd.Series]
"""What an entry makes: it, the name here, and the values by step."""


def _translate(
    values: pd.DataFrame, there: pd.DataFrame, entries: Iterable[Entry], done: Converted
) -> tuple[list[Figure], pd.Series]:
    """Return what the entries make of the log, then its other names as they are, and in which steps a time is bad.

    Of the entries for one figure, the first whose names are all there counts.
    """
    figures: list[Figure] = []
    is_unknown, bad = pd.Series(False, values.index), 0
    filled: dict[str, pd.Series] = defaultdict(lambda: pd.Series(False, values.index))
    left = there.copy()
    for entry in entries:
        for theirs, ours in entry.matches(values.columns):
            use = there[[*theirs]].all(axis=1) & ~filled[ours]
            value = values[theirs[0]]
            if entry.compute is not None:
                inputs = values[[*theirs]]
                value = entry.compute(*(inputs[name] for name in theirs))
                use &= np.isfinite(value) | ~np.isfinite(inputs).all(axis=1)  # else it was divided by 0
            elif entry.less:
                inner = values[values.columns.intersection(entry.less)]
                value = (value - inner.fillna(0.0).sum(axis=1)).clip(lower=0.0)
            else:
                use &= left[theirs[0]]  # a name becomes one other
            if entry.is_seconds:
                is_bad = use & ~value.between(0.0, MOST_SECONDS)
                bad, use = bad + int(is_bad.sum()), use & ~is_bad
                is_unknown |= is_bad
            if use.any():
                figures.append((entry, ours, value[use]))
                filled[ours] |= use
                done.translated |= set(theirs)
                done.note(entry.caution)
                if entry.compute is None and not entry.less:
                    left[theirs[0]] &= ~use
    what = f"{bad} times were negative or not finite: the seconds of {is_unknown.sum()} steps count as unknown"
    done.note(what, bad)
    for name in values.columns[left.any()]:
        done.kept |= {name} - done.translated
        figures.append((Entry(KEPT + name, (name,)), KEPT + name, values.loc[left[name], name]))
    return figures, is_unknown


def _add_rows(
    figures: Sequence[Figure], is_unknown: pd.Series, covers: pd.Series, at: pd.Series, where: str, done: Converted
) -> None:
    """Make the rows. The stages of a step without a training row (an evaluation's) belong to the next row."""
    seconds: dict[tuple[str, str], pd.Series] = {("", "wall_s"): pd.Series(math.nan, covers.index)}
    metrics: dict[tuple[int, bool], dict[str, Metric]] = defaultdict(dict)
    for entry, ours, series in figures:
        if entry.is_seconds:
            before = seconds.get((entry.lane, ours))
            seconds[entry.lane, ours] = (series if before is None else before.fillna(series)).reindex(covers.index)
        else:
            of_evaluation = ours.startswith("validation/") or entry.theirs[0].startswith(done.crosswalk.validation)
            for step, value in series.items():
                metrics[step, of_evaluation][ours] = Metric(float(value), entry.reduction)
    is_row = covers > 0
    step_s = seconds.pop(("", "wall_s"))
    row = is_row.shift(fill_value=False).cumsum()  # number of the row that a step belongs to
    by_step = pd.DataFrame(seconds, covers.index)
    by_row = by_step.groupby(row).sum(min_count=1)
    of_row = pd.Series(covers[is_row].to_numpy()).reindex(by_row.index, method="ffill")  # after the last, as before it
    evaluations = [name for name in by_row if name[1] == "evaluate"]
    by_row[evaluations] = by_row[evaluations].div(of_row, axis=0)  # other seconds are means over its steps
    within_s = by_step[evaluations].sum(axis=1)
    if _holds_evaluations(step_s, by_step.drop(columns=evaluations), within_s):
        step_s -= within_s
        done.note("a step's seconds hold the evaluation in it, as the rest of such steps shows: they are parted here")
    lanes = [_by_lane(record) for record in by_row.to_dict("records")]
    evaluate_s = row.map(by_row[evaluations].sum(axis=1))
    times = at[is_row]
    clock_s = (times - times.ffill().shift()).reindex(covers.index)
    clock_s = clock_s.where(clock_s >= 0) / covers
    wall_s = (step_s + evaluate_s).fillna(clock_s).where(is_row & ~is_unknown)
    done.seconds_known = bool(wall_s.notna().any())
    wall_s = wall_s.fillna(0.0)
    elapsed_s = (wall_s * covers).cumsum()
    if (total := float(elapsed_s.iloc[-1])) > MOST_SECONDS:
        what = f"the log's steps take {total:g} s together, at most {MOST_SECONDS:g}"
        raise UserError(what, where, "name a log whose times are in seconds")
    first = 0 if covers.iloc[0] and covers.index[0] == 0 else 1
    empty_evaluations = 0
    for step, covered, number in zip(covers.index, covers.tolist(), row.tolist(), strict=True):
        elapsed = float(elapsed_s[step])
        if covered:
            optimizer_steps = done.crosswalk.optimizer_steps * covered
            stored = store_metrics(metrics[step, False])
            fields = (step - first, step - first + 1, float(wall_s[step]), elapsed, optimizer_steps, lanes[number])
            done.rows.append(StepRow(*fields, metrics=stored))
        validation = metrics[step, True]
        if any(math.isfinite(metric.value) for metric in validation.values()):
            done.rows.append(EvaluationRow(step, step, elapsed, store_metrics(validation)))
        elif validation:
            empty_evaluations += 1
    done.note(f"{empty_evaluations} evaluations without a single finite figure are left out", empty_evaluations)
    if len(lanes) > is_row.sum() and lanes[-1]:
        tail_s = sum(seconds for by_stage in lanes[-1].values() for seconds in by_stage.values())
        done.rows.append(TailRow(tail_s, float(elapsed_s.iloc[-1] + tail_s * of_row.iloc[-1]), lanes[-1]))


def _holds_evaluations(step_s: pd.Series, stages: pd.DataFrame, evaluate_s: pd.Series) -> bool:
    """Whether the seconds of a step hold those of an evaluation in it, as in logs of older versions of verl: what its
    stages leave of a step is then longer by most of an evaluation in steps that have one."""
    rest, is_evaluated = step_s - stages.sum(axis=1), evaluate_s > 0
    more = rest[is_evaluated].median() - rest[~is_evaluated].median()
    return bool(stages.size and more > evaluate_s[is_evaluated].median() / 2)


def _by_lane(stages: dict[Any, float]) -> dict[str, dict[str, float]]:
    lanes: dict[str, dict[str, float]] = defaultdict(dict)
    for (lane, stage), seconds in stages.items():
        if not math.isnan(seconds):
            lanes[lane][stage] = seconds
    return dict(lanes)
