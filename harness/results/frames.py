"""Runs as tables: the rows of each run as columns, read once, and those of a folder as pandas frames."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from harness.core.errors import UserError
from harness.core.trace import Stage, in_order, stage_named
from harness.core.types import RankStep, Reduction
from harness.results.jsonl import RESTORE
from harness.results.reader import DamagedRun, Run, load_run, read_each
from harness.results.rows import REDUCTIONS, StoredMetrics, VersionChange

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

NANO = 1e-9
REWARD, LENGTH = "validation/reward", "validation/response_length"
TIMING = "timing_s/"


def stages_in(names: Iterable[str], prefix: str = TIMING) -> list[Stage]:
    """Return the stages that have a column of seconds among these names, in order."""
    return in_order(stage_named(name.removeprefix(prefix)) for name in names if name.startswith(prefix))


"""Begins the names of the columns of stages."""
Numbers = NDArray[np.float64]
_STEP_COLUMNS = {name: name for name in ("step", "version", "wall_s", "elapsed_s", "optimizer_steps")} | {
    "is_warmup": "warmup",
    "is_profiled": "profiled",
}
_ABSENT: Mapping[str, float] = {"count": 0}  # a metric that a row lacks


@dataclass(frozen=True, slots=True)
class Column:
    """One metric over a run's rows.

    Attributes:
        values: one a row; NaN where the row lacks it, and where it was NaN.
        counts: how many values each stands for; 0 where the row lacks it.
    """

    values: Numbers
    counts: Numbers
    reduction: Reduction

    @property
    def is_finite(self) -> NDArray[np.bool_]:
        """Where there is a number that is neither NaN nor infinite."""
        return np.isfinite(self.values) & (self.counts > 0)

    @property
    def non_finite(self) -> int:
        """In how many rows it was NaN or infinite."""
        return int(np.sum((self.counts > 0) & ~np.isfinite(self.values)))

    @property
    def combined(self) -> float | None:
        """The value over all rows where it is finite: a mean weighted by the counts, a sum, a maximum or a minimum."""
        finite = self.is_finite
        values, counts = self.values[finite], self.counts[finite]
        if not len(values):
            return None
        if self.reduction == "mean":
            return float(values @ counts / counts.sum())
        return float(getattr(np, self.reduction)(values))

    @property
    def last(self) -> float | None:
        """The value in the last row that has one; None where that is not finite."""
        rows = np.flatnonzero(self.counts > 0)
        return float(self.values[rows[-1]]) if len(rows) and np.isfinite(self.values[rows[-1]]) else None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The evaluations of a run that have a finite validation reward, in order; shape [evaluations] each.

    Attributes:
        step: training steps made by then.
        prompts: behind each reward.
        length: mean response length in tokens; NaN where unknown.
    """

    step: Numbers
    elapsed_s: Numbers
    reward: Numbers
    prompts: Numbers
    length: Numbers

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class RunTable:
    """One run, its rows as columns. Spans, rollouts and counters are read from its folder when asked for.

    Attributes:
        run: without its rows of steps and evaluations.
        steps: ``step``, ``version``, ``wall_s``, ``elapsed_s``, ``optimizer_steps``, ``is_warmup``, ``is_profiled`` and
            ``timing_s/<stage>`` of each stage that ran; shape [steps] each.
        metrics: over the training steps.
        evaluated: ``version``, ``step`` and ``elapsed_s`` of each evaluation; shape [evaluations] each.
        validation: metrics over the evaluations.
        lags, optimizer_steps, ranks: of each training step, as in ``StepRow``.
        version_changes: in order.
    """

    run: Run
    steps: dict[str, Numbers]
    metrics: dict[str, Column]
    evaluated: dict[str, Numbers]
    validation: dict[str, Column]
    lags: tuple[Mapping[int, int], ...]
    optimizer_steps: tuple[Mapping[str, tuple[float, ...]], ...]
    ranks: tuple[tuple[RankStep, ...], ...]
    version_changes: tuple[VersionChange, ...]

    def __len__(self) -> int:
        return len(self.steps["step"])

    @cached_property
    def is_measured(self) -> NDArray[np.bool_]:
        """Which steps figures of time rest on: no warm-up, not profiled, of known seconds; all where none is left.

        A step of 0 s has unknown seconds in another trainer's log; in a simulated run it takes no time.
        """
        known = (self.steps["wall_s"] > 0) | ("imported" not in self.run.manifest.outcome)
        measured = (self.steps["is_warmup"] == 0) & (self.steps["is_profiled"] == 0) & known
        return measured if measured.any() else np.ones(len(self), dtype=np.bool_)

    @cached_property
    def wall_s(self) -> Numbers:
        """Seconds of each step; the last one ends with the evaluation that ended after it, where one did.

        For the last evaluation of a run in turns lies in the row of its last step, and that of a run with lag after it.
        """
        return self._closed(self.steps["wall_s"], 0.0 if self.closing is None else self.closing.wall_s)

    @property
    def closing(self) -> Any:
        """The tail of the run where it is a part of the last step: with an evaluation in it; else None."""
        tail = self.run.tail
        return tail if len(self) and tail is not None and tail.stages_s.get(Stage.EVALUATE.value) else None

    @cached_property
    def stages_s(self) -> dict[Stage, Numbers]:
        """Seconds of each stage and wait in every step, added over lanes, as the rows have them; see ``wall_s``."""
        tail = {} if self.closing is None else self.closing.stages_s
        zeros = np.zeros(len(self))
        return {
            stage: self._closed(self.steps.get(TIMING + stage, zeros), tail.get(stage.value, 0.0))
            for stage in stages_in([*self.steps, *(TIMING + name for name in tail)])
        }

    def _closed(self, values: Numbers, added: float) -> Numbers:
        return values if not added else np.append(values[:-1], values[-1] + added)

    @cached_property
    def rewards(self) -> Evaluated:
        """The evaluations that have a finite validation reward."""
        rows = len(self.evaluated["step"])
        unknown = Column(np.full(rows, np.nan), np.zeros(rows), "mean")
        reward, length = (self.validation.get(name, unknown) for name in (REWARD, LENGTH))
        lengths, finite = np.where(length.is_finite, length.values, np.nan), reward.is_finite
        columns = self.evaluated["step"], self.evaluated["elapsed_s"], reward.values, reward.counts, lengths
        return Evaluated(*(column[finite] for column in columns))

    def series(self, name: str) -> tuple[Numbers, Numbers]:
        """Return (steps, values) of a metric over the training steps where it is finite."""
        if name not in self.metrics:
            return np.empty(0), np.empty(0)
        column = self.metrics[name]
        return self.steps["step"][column.is_finite], column.values[column.is_finite]


def read_table(folder: Path, with_metrics: bool = True) -> RunTable:
    """Read one run folder into columns; the metrics of the training steps, most of the work, can be left out.

    Raises:
        UserError: a file is missing, damaged (named with its line) or of an unknown schema version; or a metric is
            reduced in one way in one step and in another in the next.
    """
    return table_of(load_run(folder), with_metrics)


def table_of(run: Run, with_metrics: bool = True) -> RunTable:
    """Return a run's rows as columns.

    Raises:
        UserError: a metric changes its reduction within the run.
    """
    rows, evaluations = run.steps, run.evaluations
    steps = {name: _numbers(map(attrgetter(field), rows)) for name, field in _STEP_COLUMNS.items()}
    stages = dict.fromkeys(chain.from_iterable(row.stages_s for row in rows))
    steps |= {TIMING + stage: _numbers(row.stages_s.get(stage, 0.0) for row in rows) for stage in stages}
    return RunTable(
        run=replace(run, steps=(), evaluations=()),
        steps=steps,
        metrics=_columns([row.metrics for row in rows]) if with_metrics else {},
        evaluated={name: _numbers(map(attrgetter(name), evaluations)) for name in ("version", "step", "elapsed_s")},
        validation=_columns([row.metrics for row in evaluations]),
        lags=tuple(row.lags for row in rows),
        optimizer_steps=tuple(row.optimizer_step_metrics for row in rows),
        ranks=tuple(row.ranks for row in rows),
        version_changes=tuple(run.version_changes),
    )


def _numbers(values: Iterable[float]) -> Numbers:
    return np.fromiter(values, dtype=np.float64)


def _columns(rows: Sequence[StoredMetrics]) -> dict[str, Column]:
    columns = dict[str, Column]()
    for name in dict.fromkeys(chain.from_iterable(rows)):
        stored = _each(rows, name, _ABSENT)
        keys = set().union(*stored)
        reductions = [each for each in REDUCTIONS if each in keys]
        if len(reductions) > 1:
            both = " and ".join(reductions)
            raise UserError(f"the metric {name!r} changes its reduction within steps.jsonl: {both}", fix=RESTORE)
        for reduction in reductions:
            values, counts = _each(stored, reduction, math.nan), _each(stored, "count", 1)
            columns[name] = Column(_numbers(values), _numbers(counts), reduction)
    return columns


def _each(rows: Sequence[Mapping[str, T]], key: str, default: T) -> list[T]:
    try:
        return list(map(itemgetter(key), rows))  # as nearly always, and quicker
    except KeyError:
        return [row.get(key, default) for row in rows]


@dataclass(frozen=True)
class Results:
    """The runs of a results folder in the order of their folders, and what they recorded as frames.

    The frames share their first columns: ``scenario``, ``experiment`` (when its command was started), ``arm``,
    ``block``, ``seed``, the values of a sweep by their dotted keys, and ``run``, the place of the run in ``tables``.
    Metrics stand under their own names, each as its value: a mean, sum, maximum or minimum over what the step counted.
    """

    tables: tuple[RunTable, ...]
    damaged: tuple[DamagedRun, ...] = ()

    @property
    def runs(self) -> list[Run]:
        """What each run says of itself, without its rows of steps and evaluations."""
        return [table.run for table in self.tables]

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row for each training step: its seconds, ``timing_s/<stage>`` and its metrics.

        ``is_warmup`` and ``is_profiled`` mark steps that are in no figure of a comparison.
        """
        frame = self._stack(lambda table: table.steps | {name: column.values for name, column in table.metrics.items()})
        whole, flags = ("step", "version", "optimizer_steps"), ("is_warmup", "is_profiled")
        return frame.astype(dict.fromkeys(whole, np.int64) | dict.fromkeys(flags, np.bool_))

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """One row for each evaluation of a policy version, with its metrics."""
        frame = self._stack(
            lambda table: table.evaluated | {name: column.values for name, column in table.validation.items()}
        )
        return frame.astype(dict.fromkeys(("version", "step"), np.int64))

    @cached_property
    def spans(self) -> pd.DataFrame:
        """One row for each span: lane, stage, step, version, and its start and end in seconds of the run's clock."""

        def columns(table: RunTable) -> dict[str, Any]:
            spans = table.run.spans()
            lanes, stages, starts, ends, steps, versions = zip(*spans, strict=True) if spans else ((),) * 6
            times = {"start_s": np.array(starts) * NANO, "end_s": np.array(ends) * NANO}
            return {"lane": lanes, "stage": list(map(str, stages)), "step": steps, "version": versions} | times

        return self._stack(columns)

    @cached_property
    def rollouts(self) -> pd.DataFrame:
        """One row for each rollout that was kept with its text, which a model wrote: treat it as untrusted."""
        return self._stack(lambda table: _by_field(table.run.rollouts()))

    @cached_property
    def syncs(self) -> pd.DataFrame:
        """One row for each timed weight sync of a transport sweep; see ``SyncRow``."""
        return self._stack(lambda table: _by_field(table.run.syncs))

    def _stack(self, columns_of: Callable[[RunTable], Mapping[str, Any]]) -> pd.DataFrame:
        import pandas as pd

        frames, first = list[pd.DataFrame](), dict[str, None]()
        for number, table in enumerate(self.tables):
            about = table.run.manifest
            head = {name: getattr(about, name) for name in ("scenario", "experiment", "arm", "block", "seed")}
            head |= about.point | {"run": number}
            first |= dict.fromkeys(head)
            frames.append(pd.DataFrame(columns_of(table)).assign(**head))
        stacked = pd.concat([frame for frame in frames if len(frame)] or frames, ignore_index=True)
        return stacked[[*first, *(name for name in stacked if name not in first)]]

    def __repr__(self) -> str:
        """Return what ran."""
        arms = Counter((about.scenario, about.experiment, about.arm) for about in (run.manifest for run in self.runs))
        lines = [f"  {' '.join(filter(None, names))}: {runs} runs" for names, runs in arms.items()]
        return "\n".join([f"{len(self.tables)} runs, {len(self.damaged)} folders damaged", *lines])


def load_results(folder: str | Path) -> Results:
    """Read every run at or below a folder.

    Raises:
        UserError: there is no such folder, or no run in it.
    """
    tables, damaged = read_each(Path(folder), read_table)
    return Results(tuple(tables), tuple(damaged))


def _by_field(rows: Iterable[Any]) -> dict[str, list[Any]]:
    records = list(map(asdict, rows))
    return {name: [record[name] for record in records] for name in (records[0] if records else ())}


def over_optimizer_steps(table: RunTable, name: str) -> list[tuple[float, float]]:
    """Return (number of the optimizer step, value) of a metric over the whole run, where it is finite and was kept."""
    points, done = list[tuple[float, float]](), 0
    column = table.metrics.get(name)
    for place, inner in enumerate(table.optimizer_steps):
        made, values = int(table.steps["optimizer_steps"][place]), inner.get(name, ())
        if made == 1 and column is not None and column.counts[place]:
            values = (float(column.values[place]),)
        places = (done + number * made // len(values) for number in range(len(values)))
        points += [(float(at), value) for at, value in zip(places, values, strict=True) if math.isfinite(value)]
        done += made
    return points
