"""Where the time went, as tables of text; how they are drawn is left to the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness.compare import numbers
from harness.compare.experiments import MOST_WITH_SPANS, SIMULATED, Experiment, Spread, Variant
from harness.compare.figures import RunFigures, StageFigures
from harness.compare.lanes import in_pipeline_order
from harness.core.trace import Stage

NEARLY_ALL = 0.8  # in an asynchronous run a stage may end twice in one step's window and not in the next


@dataclass(frozen=True, slots=True)
class Table:
    """Cells to show.

    Attributes:
        title: what one sees, with the unit.
        header: column names; the first column names the row.
        notes: sentences to print below.
        words: how many columns from the left hold words; the others hold figures.
        divisible: whether the columns beside the first may be shown in several parts.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    words: int = 1
    divisible: bool = False


def marked(tables: Sequence[Table], experiment: Experiment) -> list[Table]:
    """Return an experiment's tables, each with a title that says so where its runs were simulated."""
    if experiment.simulated is None:
        return list(tables)
    return [replace(table, title=table.title + SIMULATED) for table in tables]


def stage_table(experiment: Experiment) -> Table:
    """Return median seconds and share of the loop's time of each stage, one column for each variant."""
    stages = [stage for stage in Stage if not stage.is_wait and any(stage in run.stages for run in experiment.runs)]
    rows = [_stage_row(stage.value, experiment, partial(_stage_of, stage)) for stage in stages]
    rows.append(_stage_row("all stages", experiment, lambda run: run.all_stages))
    rows.append(_stage_row("whole step", experiment, lambda run: run.whole_step))
    notes = [f"Medians over {_step_note(experiment)}; {_evaluation_note(experiment)}."]
    if any(run.all_stages.share > 1.005 for run in experiment.runs):
        notes.append("Lanes ran at the same time, so their stages add up to more than the loop.")
    return Table(
        title="Stage times: median seconds per training step, and share of the loop's time",
        header=("stage", *(variant.name for variant in experiment.variants)),
        rows=tuple(rows),
        notes=(*notes, *seed_note(experiment.variants)),
        divisible=True,
    )


def lane_table(experiment: Experiment) -> Table:
    """Return how each lane's wall-clock divides into stages, waits and time under no span."""
    rows = []
    for variant in experiment.variants:
        for lane in in_pipeline_order({lane for run in variant.runs for lane in run.lanes}):
            rows.append((variant.name, lane, *_lane_cells(variant, lane)))
    return Table(
        title="Lanes: wall-clock after start-up in seconds, and its shares",
        header=("variant", "lane", "seconds", "in stages", "waiting", "unattributed"),
        rows=tuple(rows),
        notes=_lane_notes(experiment) if rows else ("No spans were kept with these runs.",),
        words=2,
    )


def _lane_notes(experiment: Experiment) -> tuple[str, ...]:
    runs, known = len(experiment.runs), sum(bool(run.lanes) for run in experiment.runs)
    if known == runs or runs <= MOST_WITH_SPANS:
        return seed_note(experiment.variants)
    return (f"Mean [lowest, highest] over the {known} of {runs} runs whose spans were read; --all reads them all.",)


def columns_apart(table: Table, per_part: int) -> list[Table]:
    """Split a table into parts of at most ``per_part`` columns beside the first, so that each fits the screen."""
    starts = range(1, len(table.header), max(1, per_part))
    slices = [slice(start, start + max(1, per_part)) for start in starts]
    parts = [
        Table(table.title, (table.header[0], *table.header[part]), tuple((row[0], *row[part]) for row in table.rows))
        for part in slices
    ]
    return [*parts[:-1], Table(table.title, parts[-1].header, parts[-1].rows, table.notes)]


def seed_note(variants: Sequence[Variant]) -> tuple[str, ...]:
    """Explain the brackets where a variant has several runs."""
    most = max(len(variant.runs) for variant in variants)
    return (f"Mean [lowest, highest] over {most} runs that differ in the seed.",) if most > 1 else ()


def _step_note(experiment: Experiment) -> str:
    """Say how many training steps the medians are over, and how many were left out of them and why."""
    runs = experiment.runs
    measured = _range([run.measured_steps for run in runs], "step")
    if not any(run.steps > run.measured_steps for run in runs):
        unmeasured = any(run.warmup_steps or run.profiled_steps for run in runs)
        return f"{measured}, {'all of them warm-up or profiled' if unmeasured else 'the first included'}"
    left_out = {
        "warm-up": [run.warmup_steps for run in runs],
        "profiled": [run.profiled_steps for run in runs],
    }
    said = [_range(counts, f"{why} step") for why, counts in left_out.items() if any(counts)]
    return f"{measured} of each run, {' and '.join(said)} left out"


def _range(counts: Sequence[int], noun: str) -> str:
    """Write ``1 step``, ``60 steps`` or ``23 to 60 steps``."""
    low, high = min(counts), max(counts)
    number = f"{low}" if low == high else f"{low} to {high}"
    return f"{number} {noun}" if high == 1 else f"{number} {noun}s"


def _evaluation_note(experiment: Experiment) -> str:
    runs = [run for run in experiment.runs if run.steps]
    if any(run.whole_step.steps < run.measured_steps for run in runs):
        return "those of all stages and the whole step leave out steps with an evaluation"
    if any(Stage.EVALUATE in run.stages and run.stages[Stage.EVALUATE].steps for run in runs):
        return "every step had an evaluation, which is part of its time"
    return "no step had an evaluation"


def _stage_of(stage: Stage, run: RunFigures) -> StageFigures | None:
    return run.stages.get(stage)


def _stage_row(name: str, experiment: Experiment, get: Callable[[RunFigures], StageFigures | None]) -> tuple[str, ...]:
    found = [(figures, run.measured_steps) for run in experiment.runs if (figures := get(run)) is not None]
    return (name + _when(found), *(_stage_cell(variant, get) for variant in experiment.variants))


def _when(found: list[tuple[StageFigures, int]]) -> str:
    """Say in how many steps a stage ran, where that is not nearly all of them."""
    counts = {(figures.steps, steps) for figures, steps in found}
    if all(steps >= NEARLY_ALL * total for steps, total in counts):
        return ""
    if len(counts) > 1:
        return " (not in every step)"
    ((steps, total),) = counts
    return f" ({steps} of {total} steps)" if steps else " (after the last step)"


def _stage_cell(variant: Variant, get: Callable[[RunFigures], StageFigures | None]) -> str:
    def seconds(run: RunFigures) -> float | None:
        figures = get(run)
        return figures.median_s if figures else None

    def share(run: RunFigures) -> float:
        figures = get(run)
        return figures.share if figures else 0.0

    mean_share = variant.spread(share)
    if mean_share is None or not any(get(run) for run in variant.runs):
        return numbers.NOTHING
    return f"{numbers.spread(variant.spread(seconds), numbers.number)} {numbers.percent(mean_share.mean):>6}"


def _lane_cells(variant: Variant, lane: str) -> tuple[str, ...]:
    accounts = [run.lanes[lane] for run in variant.runs if lane in run.lanes]
    busy = [account.share(account.busy_ns) for account in accounts]
    waiting = [account.share(account.waiting_ns) for account in accounts]
    unattributed = [account.share(account.unattributed_ns) for account in accounts]
    wall_s = [account.wall_ns / 1e9 for account in accounts]
    return (
        numbers.spread(_spread(wall_s), numbers.number),
        numbers.spread(_spread(busy), numbers.percent),
        numbers.spread(_spread(waiting), numbers.percent),
        numbers.spread(_spread(unattributed), _two_decimals),
    )


def _two_decimals(share: float) -> str:
    return f"{100 * share:.2f}%"


def _spread(values: list[float]) -> Spread:
    return Spread(sum(values) / len(values), min(values), max(values), len(values), len(values))
