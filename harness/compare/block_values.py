"""The blocks of two variants as pairs of numbers: seconds per step, of the whole step, of each stage, of an endpoint.

Waits are no stages here: they follow from what other lanes do, and would only cost the stages power.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from math import log, log1p

from harness.compare.experiments import Variant
from harness.compare.figures import RunFigures
from harness.compare.stats import STAGE_THRESHOLD, STEP, Comparison, of_blocks
from harness.compare.step_columns import StepSeries
from harness.core.trace import Stage

Runs = tuple[RunFigures, RunFigures]


@dataclass(frozen=True, slots=True)
class Primary:
    """A primary endpoint other than the time of a step.

    Attributes:
        name: for tables.
        threshold: relative change that counts.
        value: of a run, one for each block: above 0, larger where the run is worse, None where it was not measured.
        is_timed: whether it is a time, so that a run that is still warming up says nothing of it.
    """

    name: str
    threshold: float
    value: Callable[[RunFigures], float | None]
    is_timed: bool = True


@dataclass(frozen=True, slots=True)
class BlockSeconds:
    """Seconds per measured step of one run in one block.

    Attributes:
        step: wall-clock.
        stages: each stage that took any time; a step in which it did not run counts as 0, so that stages add up.
    """

    step: float
    stages: dict[Stage, float]


def paired_runs(base: Variant, other: Variant, with_unfinished: bool) -> list[Runs]:
    """Return the runs of two variants that share a block, in the order in which the blocks ran.

    Args:
        with_unfinished: also runs that did not get to their end.
    """

    def by_block(variant: Variant) -> dict[tuple[int, int], RunFigures]:
        return {_block(run): run for run in variant.runs if with_unfinished or run.is_completed}

    before, after = by_block(base), by_block(other)
    pairs = [(before[key], after[key]) for key in sorted(before.keys() & after.keys())]
    return sorted(pairs, key=lambda pair: pair[0].manifest.started_at)


def paired_seconds(pairs: Sequence[Runs], alternated: bool) -> list[tuple[BlockSeconds, BlockSeconds]]:
    """Return the seconds per step of each block; a block without a measured step is left out.

    Args:
        alternated: whether the arms took turns by step: only steps that both have count then.
    """
    found = []
    for before, after in pairs:
        if before.series is None or after.series is None:
            continue
        block = block_seconds(before.series.measured(), after.series.measured(), alternated)
        if block is not None:
            found.append(block)
    return found


def block_seconds(before: StepSeries, after: StepSeries, alternated: bool) -> tuple[BlockSeconds, BlockSeconds] | None:
    """Return the seconds per step of two arms in one block; None where no step is left.

    Args:
        before, after: measured steps of the baseline and of the arm.
        alternated: whether the arms took turns by step: then only the steps that both have count, so that the two
            means share the machine's slow moments.
    """
    kept = [_timed_steps(before), _timed_steps(after)]
    if alternated:
        kept = [kept[0] & kept[1]] * 2
    return (_seconds(before, kept[0]), _seconds(after, kept[1])) if all(kept) else None


def step_comparison(
    blocks: Sequence[tuple[BlockSeconds, BlockSeconds]], threshold: float, not_comparable: tuple[str, ...]
) -> Comparison:
    """Set the arms' seconds per step against each other."""
    ratios = [log(after.step / before.step) for before, after in blocks]
    return Comparison(STEP, of_blocks(ratios), threshold, not_comparable=not_comparable)


def stage_comparisons(
    blocks: Sequence[tuple[BlockSeconds, BlockSeconds]], threshold: float, not_comparable: tuple[str, ...]
) -> list[Comparison]:
    """Set each stage of two arms against the other's, in the order of ``Stage``.

    A stage that both ran in every block has a ratio. One that either lacks in some block has none: what it adds to a
    step is said in units of the baseline's step, with the step's threshold.
    """
    found = []
    for stage in Stage:
        seconds = [(before.stages.get(stage, 0.0), after.stages.get(stage, 0.0)) for before, after in blocks]
        if stage.is_wait or not any(mine or theirs for mine, theirs in seconds):
            continue
        if all(mine > 0 and theirs > 0 for mine, theirs in seconds):
            ratios = of_blocks([log(theirs / mine) for mine, theirs in seconds])
            at_least = max(threshold, STAGE_THRESHOLD)
            found.append(Comparison(stage.value, ratios, at_least, not_comparable=not_comparable))
            continue
        steps = [before.step for before, _ in blocks]
        added = [_added(theirs - mine, step) for (mine, theirs), step in zip(seconds, steps, strict=True)]
        found.append(Comparison(stage.value, of_blocks(added), threshold, True, not_comparable))
    return found


def endpoint_comparison(primary: Primary, pairs: Sequence[Runs], not_comparable: tuple[str, ...]) -> Comparison:
    """Set an endpoint's values against each other; a block in which either was not measured is left out."""
    ratios = []
    for before, after in pairs:
        mine, theirs = primary.value(before), primary.value(after)
        if mine is not None and theirs is not None and mine > 0 < theirs:
            ratios.append(log(theirs / mine))
    return Comparison(primary.name, of_blocks(ratios), primary.threshold, not_comparable=not_comparable)


def log_step_seconds(variant: Variant) -> list[float]:
    """Return the log of the seconds per step of each run that got to its end, in the order in which they ran."""
    runs = sorted((run for run in variant.runs if run.is_completed), key=lambda run: run.manifest.started_at)
    return [log(before.step) for before, _ in paired_seconds([(run, run) for run in runs], alternated=False)]


def log_values(variant: Variant, primary: Primary) -> list[float]:
    """Return the log of an endpoint's value of each run that has one, in the order in which they ran."""
    runs = sorted(variant.runs, key=lambda run: run.manifest.started_at)
    return [log(value) for value in map(primary.value, runs) if value is not None and value > 0]


def _block(run: RunFigures) -> tuple[int, int]:
    return (-1 if run.manifest.block is None else run.manifest.block, run.manifest.seed)


def _timed_steps(series: StepSeries) -> set[int]:
    """Return the numbers of the steps; one of 0 seconds is of unknown time."""
    return {step for step, seconds in zip(series.steps, series.wall_s, strict=True) if seconds > 0}


def _seconds(series: StepSeries, steps: set[int]) -> BlockSeconds:
    chosen = [step in steps for step in series.steps]

    def mean(seconds: Sequence[float]) -> float:
        return sum(compress(seconds, chosen)) / len(steps)

    stages = {stage: mean(seconds) for stage, seconds in series.stages_s.items()}
    return BlockSeconds(mean(series.wall_s), {stage: seconds for stage, seconds in stages.items() if seconds > 0})


def _added(seconds: float, step: float) -> float:
    """Return log((step + seconds) / step), and for less than 0 the opposite of what as many more would give."""
    return log1p(seconds / step) if seconds >= 0 else -log1p(-seconds / step)
