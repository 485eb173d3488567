"""The step times of one run that comparisons rest on: a table, a verdict and a picture use the same steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from harness.core.trace import Stage
from harness.results import StepRow

UNFLAGGED_WARMUP = 2
"""First steps that count as warm-up in verdicts where the recorder flagged none, as in runs of before it did."""


@dataclass(frozen=True, slots=True)
class StepSeries:
    """Times of the training steps without an evaluation, in order: one value for each step in every tuple.

    Steps in whose time an evaluation ended are left out; where every step had one, all are in.

    Attributes:
        steps: their numbers.
        wall_s: wall-clock seconds, since the previous step row.
        stages_s: seconds by stage and wait, added over lanes; 0.0 in a step in which it did not end. A stage that ran
            in none of these steps is missing.
        warmup: whether the recorder flagged the step as warm-up.
        profiled: whether a profiler ran in the step.
        flagged: whether any step of the run is flagged as warm-up; False in runs of before it was written.
        evaluated: how many steps were left out for their evaluation.
    """

    steps: tuple[int, ...]
    wall_s: tuple[float, ...]
    stages_s: dict[Stage, tuple[float, ...]]
    warmup: tuple[bool, ...]
    profiled: tuple[bool, ...]
    flagged: bool
    evaluated: int

    def measured(self, unflagged_warmup: int = 0) -> StepSeries:
        """Return the series without warm-up and profiled steps.

        Args:
            unflagged_warmup: how many of the run's first steps count as warm-up where none is flagged; figures take 0,
                verdicts ``UNFLAGGED_WARMUP``.
        """
        first = 0 if self.flagged else unflagged_warmup
        keep = [
            not warm and not profiled and step >= first
            for step, warm, profiled in zip(self.steps, self.warmup, self.profiled, strict=True)
        ]
        return StepSeries(
            steps=tuple(compress(self.steps, keep)),
            wall_s=tuple(compress(self.wall_s, keep)),
            stages_s={stage: tuple(compress(seconds, keep)) for stage, seconds in self.stages_s.items()},
            warmup=tuple(compress(self.warmup, keep)),
            profiled=tuple(compress(self.profiled, keep)),
            flagged=self.flagged,
            evaluated=self.evaluated,
        )


def is_measured(row: StepRow) -> bool:
    """Whether a step is neither warm-up nor profiled, and so belongs in statistics."""
    return not (row.warmup or row.profiled)


def stage_columns(rows: Sequence[StepRow]) -> dict[Stage, list[float]]:
    """Return the seconds of each stage and wait in every step, in the order of ``Stage``; 0.0 where it did not end."""
    windows = [row.stages_s for row in rows]
    named = set().union(*windows)
    names = {stage: stage.value for stage in Stage if stage.value in named}
    return {stage: [stages_s.get(name, 0.0) for stages_s in windows] for stage, name in names.items()}


def step_series(rows: Sequence[StepRow], columns: Mapping[Stage, Sequence[float]] | None = None) -> StepSeries | None:
    """Return the series of a run's steps; None for a run without any.

    Args:
        columns: ``stage_columns`` of the rows, where the caller has them.
    """
    if not rows:
        return None
    columns = stage_columns(rows) if columns is None else columns
    evaluated = columns.get(Stage.EVALUATE, ())
    keep = [not seconds for seconds in evaluated] if evaluated and not all(evaluated) else [True] * len(rows)
    kept = list(compress(rows, keep))
    stages_s = {stage: tuple(compress(seconds, keep)) for stage, seconds in columns.items()}
    return StepSeries(
        steps=tuple([row.step for row in kept]),
        wall_s=tuple([row.wall_s for row in kept]),
        stages_s={stage: seconds for stage, seconds in stages_s.items() if any(seconds)},
        warmup=tuple([row.warmup for row in kept]),
        profiled=tuple([row.profiled for row in kept]),
        flagged=any(row.warmup for row in rows),
        evaluated=len(rows) - len(kept),
    )
