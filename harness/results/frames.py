"""Runs as pandas frames: what a notebook reads of a results folder in one line. Loads no torch and no Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from harness.results.reader import DamagedRun, Run, find_runs
from harness.results.rows import StoredMetrics, read_metric

if TYPE_CHECKING:
    import pandas as pd

NANO = 1e-9


@dataclass(frozen=True)
class Results:
    """Every run of a results folder, and what they recorded as frames.

    The frames share their first columns: ``scenario``, ``experiment`` (when its command was started), ``arm``,
    ``block``, ``seed``, the values of a sweep by their dotted keys, and ``run``, the place of the run in ``runs``.
    Metrics stand under their own names, each as its value: a mean, sum, maximum or minimum over what the step counted.

    Attributes:
        runs: in the order of their folders; see ``Run`` for what each says of itself.
        damaged: folders that could not be read, and why.
    """

    runs: tuple[Run, ...]
    damaged: tuple[DamagedRun, ...] = ()

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row for each training step: its seconds, ``timing_s/<stage>`` and its metrics.

        ``is_warmup`` and ``is_profiled`` mark steps that are in no figure of a comparison.
        """
        return self._frame(_steps)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """One row for each evaluation of a policy version, with its metrics."""
        return self._frame(
            lambda run: (
                {"version": row.version, "step": row.step, "elapsed_s": row.elapsed_s, **_values(row.metrics)}
                for row in run.evaluations
            )
        )

    @cached_property
    def spans(self) -> pd.DataFrame:
        """One row for each span: lane, stage, step, version, and its start and end in seconds of the run's clock."""
        return self._frame(
            lambda run: (
                {
                    "lane": span.lane,
                    "stage": str(span.stage),
                    "step": span.step,
                    "version": span.version,
                    "start_s": span.start_ns * NANO,
                    "end_s": span.end_ns * NANO,
                }
                for span in run.spans()
            )
        )

    @cached_property
    def rollouts(self) -> pd.DataFrame:
        """One row for each rollout that was kept with its text, which a model wrote: treat it as untrusted."""
        return self._frame(lambda run: map(asdict, run.rollouts()))

    @cached_property
    def syncs(self) -> pd.DataFrame:
        """One row for each timed weight sync of a transport sweep; see ``SyncRow``."""
        return self._frame(lambda run: map(asdict, run.syncs))

    def _frame(self, rows_of: Callable[[Run], Iterable[dict[str, Any]]]) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame.from_records(
            [
                {**head, **row}
                for number, run in enumerate(self.runs)
                for head in [_head(run, number)]
                for row in rows_of(run)
            ]
        )

    def __repr__(self) -> str:
        """Return a line for each experiment: what ran in it."""
        lines = [f"{len(self.runs)} runs" + (f", {len(self.damaged)} folders damaged" if self.damaged else "")]
        experiments: dict[tuple[str, str], list[Run]] = {}
        for run in self.runs:
            experiments.setdefault((run.manifest.scenario, run.manifest.experiment), []).append(run)
        for (scenario, started), runs in experiments.items():
            arms = dict.fromkeys(run.manifest.arm for run in runs if run.manifest.arm)
            said = f", arms {', '.join(arms)}" if arms else ""
            lines.append(
                f"  {scenario} of {started}: {len(runs)} runs{said}, {sum(len(run.steps) for run in runs)} steps"
            )
        return "\n".join(lines)


def load_results(folder: str | Path) -> Results:
    """Read every run at or below a folder.

    Raises:
        UserError: there is no such folder, or no run in it.
    """
    runs, damaged = find_runs(Path(folder))
    return Results(tuple(runs), tuple(damaged))


def _head(run: Run, number: int) -> dict[str, Any]:
    about = run.manifest
    named = {"scenario": about.scenario, "experiment": about.experiment, "arm": about.arm, "block": about.block}
    return {**named, "seed": about.seed, **about.point, "run": number}


def _steps(run: Run) -> Iterator[dict[str, Any]]:
    for row in run.steps:
        yield {
            "step": row.step,
            "version": row.version,
            "wall_s": row.wall_s,
            "elapsed_s": row.elapsed_s,
            "optimizer_steps": row.optimizer_steps,
            "is_warmup": row.warmup,
            "is_profiled": row.profiled,
            **{f"timing_s/{stage}": seconds for stage, seconds in row.stages_s.items()},
            **_values(row.metrics),
        }


def _values(metrics: StoredMetrics) -> Mapping[str, float]:
    found = {name: read_metric(metrics, name) for name in metrics}
    return {name: metric.value for name, metric in found.items() if metric is not None}
