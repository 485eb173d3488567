"""An experiment as tables of text: where the time went, what came of the runs, lag. The report draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from harness.compare import numbers
from harness.compare.attribution import in_pipeline_order
from harness.compare.caveats import groups, legend, letters_of
from harness.compare.experiments import MOST_WITH_SPANS, SIMULATED, Experiment, Variant
from harness.compare.figures import RunFigures, StageFigures
from harness.compare.learning import Evaluated
from harness.compare.numbers import Spread
from harness.core.trace import Stage
from harness.results import LedgerFigures

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


_KL_LINES = {
    "kl/reference_k3": "KL to the reference policy, k3 per token, last step",
    "kl/reference_k1": "KL to the reference policy, k1 per token, last step",
    "kl/reference_k1_sum": "KL to the reference policy, k1 per response, last step",
    "kl/previous_k3": "KL to the previous policy, k3 per token, last step",
    "kl/previous_k1": "KL to the previous policy, k1 per token, last step",
    "kl/previous_k1_sum": "KL to the previous policy, k1 per response, last step",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of a run.

    Attributes:
        key: its name in JSON.
        label: its name in a table, with the unit.
        form: how it is written.
        get: reads it; None where the run does not have it.
        in_table: whether it is for people too, or for programs only.
    """

    key: str
    label: str
    form: numbers.Format
    get: Callable[[RunFigures], float | None]
    in_table: bool = True


def _at_end(name: str, label: str) -> Line:
    in_table = not name.endswith("_k1")  # k1 per token is noisier than k3 and says the same
    return Line(name, label, numbers.number, lambda run: run.at_end(name), in_table)


def _idle(kind: str) -> Callable[[RunFigures], float | None]:
    return lambda run: run.idle_ratio(kind)


def _evaluated(which: str, figure: str) -> Callable[[RunFigures], float | None]:
    def get(run: RunFigures) -> float | None:
        evaluated: Evaluated | None = getattr(run, which)
        return None if evaluated is None else getattr(evaluated, figure)

    return get


def _learned(figure: str) -> Callable[[RunFigures], float | None]:
    def get(run: RunFigures) -> float | None:
        return None if run.learning is None else getattr(run.learning, figure)

    return get


def _memory(where: str, figure: str) -> Callable[[RunFigures], float | None]:
    """Read GiB of what the manifest says of memory; None in runs of before it did, and where nothing was planned."""

    def get(run: RunFigures) -> float | None:
        found: Any = run.manifest.outcome.get("memory")
        for key in (where, figure):
            found = found.get(key) if isinstance(found, dict) else None
        return found / 2**30 if isinstance(found, int | float) else None

    return get


def _diverged_step(run: RunFigures) -> float | None:
    found = run.learning.divergence if run.learning else None
    return None if found is None else found.step


OUTCOME_LINES = (
    Line("reward_first", "validation reward, first", numbers.reward, _evaluated("first", "reward")),
    Line("reward_best", "validation reward, best", numbers.reward, _evaluated("best", "reward")),
    Line("reward_best_step", "  at step", numbers.count, _evaluated("best", "step")),
    Line("reward_last", "validation reward, last", numbers.reward, _evaluated("last", "reward")),
    Line("length_first", "response length, first, tokens", numbers.number, _evaluated("first", "length")),
    Line("length_last", "response length, last, tokens", numbers.number, _evaluated("last", "length")),
    Line("seconds_to_target", "seconds to reward", numbers.number, lambda run: run.seconds_to_target),
    Line("target_step", "  at step", numbers.count, _learned("target_step")),
    Line("clip_fraction", "clip fraction, mean", numbers.number, lambda run: run.mean("clip_fraction")),
    Line("grad_norm", "gradient norm, median", numbers.number, lambda run: run.grad_norm),
    Line("grad_norm_p95", "gradient norm, 95th percentile", numbers.number, _learned("grad_norm_p95")),
    Line("scaled_down", "steps with a gradient scaled down", numbers.percent, _learned("scaled_down")),
    Line("diverged_step", "diverged at step", numbers.count, _diverged_step),
    *(_at_end(name, label) for name, label in _KL_LINES.items()),
    *(
        Line(f"idle_{kind}", f"idle ratio, {kind.capitalize()}", numbers.percent, _idle(kind))
        for kind in ("generator", "scorer", "learner")
    ),
    Line(
        "engine_mismatch_max",
        "engine mismatch, largest log-prob gap",
        numbers.number,
        lambda run: run.mean("engine_mismatch/max"),
    ),
    Line("failed_groups", "groups without a reward", numbers.count, lambda run: run.mean("score/failed_groups")),
    Line("replaced", "parts replaced", numbers.count, lambda run: run.replaced or None),
    Line("steps", "training steps", numbers.count, lambda run: run.steps),
    Line("optimizer_steps", "optimizer steps", numbers.count, lambda run: run.optimizer_steps or None),
    Line("tokens_per_s", "generated tokens per second, median", numbers.number, lambda run: run.throughput),
    Line("startup_s", "start-up, seconds", numbers.number, lambda run: run.manifest.startup_s),
    Line("loop_s", "loop, seconds", numbers.number, lambda run: run.loop_s),
    *(
        Line(f"{where}_memory_{key}_gib", f"{name} memory, {key}, GiB", numbers.number, _memory(where, f"{key}_bytes"))
        for where, name in (("gpu", "GPU"), ("main", "main"))
        for key in ("planned", "peak")
    ),
)


def outcome_table(experiment: Experiment) -> Table:
    """Return reward, length, cost and health of each variant, one column each; lines that no run has are left out."""
    variants = experiment.variants
    rows = [("status", *(statuses(variant.runs) for variant in variants)), *line_rows(OUTCOME_LINES, variants)]
    notes = (evaluation_note(experiment), *seed_note(variants))
    header = ("figure", *(variant.name for variant in variants))
    return Table("Outcome", header, tuple(rows), tuple(note for note in notes if note), divisible=True)


def line_rows(lines: Sequence[Line], variants: Sequence[Variant]) -> tuple[tuple[str, ...], ...]:
    """Return a row for each line that is shown and that some run has: its label and a cell for each variant."""
    rows = []
    for line in lines:
        cells = [_cell(line, variant) for variant in variants]
        if line.in_table and any(cell != numbers.NOTHING for cell in cells):
            rows.append((_label(line, variants), *cells))
    return tuple(rows)


def overview_table(experiments: Sequence[Experiment]) -> Table:
    """Return one line for each experiment; ranges run over all its runs.

    Where not all were made on one kind of machine with the same versions and threads, a letter says which group each
    belongs to, and the notes say what sets the groups apart.
    """
    found = groups(experiments)
    header: tuple[str, ...] = (
        "scenario",
        "experiment",
        "runs",
        "status",
        "steps",
        "s per step",
        "last reward",
        "length",
    )
    rows = [_overview_row(experiment) for experiment in experiments]
    if len(found) > 1:
        header = (*header[:2], "in", *header[2:])
        rows = [
            (*row[:2], letters_of(experiment, found), *row[2:])
            for row, experiment in zip(rows, experiments, strict=True)
        ]
    words = 2 if len(found) < 2 else 3
    return Table("Experiments, oldest first", header, tuple(rows), legend(found), words)


def statuses(runs: Sequence[RunFigures]) -> str:
    """Say how the runs ended: ``completed``, ``interrupted at step 23 of 60``, or counts where they differ."""
    said = [_status(run) for run in runs]
    if len(set(said)) == 1:
        return said[0]
    return ", ".join(f"{said.count(text)} {text}" for text in dict.fromkeys(said))


def targets(runs: Sequence[RunFigures]) -> list[float]:
    """Return the distinct reward targets of the runs."""
    return sorted({run.reward_target for run in runs if run.reward_target is not None})


def evaluation_note(experiment: Experiment) -> str:
    """Say how many prompts stand behind a validation reward, and what sampling them is worth."""
    prompts = [run.last.prompts for run in experiment.runs if run.last and not run.is_imported]
    if not prompts:
        return ""
    fewest = min(prompts)
    error = 0.5 / fewest**0.5  # the largest standard error of a mean of values in [0, 1]
    what = f"Validation rewards are means over {fewest} prompts"
    return f"{what}: a standard error of up to {error:.3f} where rewards lie between 0 and 1."


def _status(run: RunFigures) -> str:
    if run.status == "completed":
        return run.status
    planned = f" of {run.planned_steps}" if run.planned_steps else ""
    diverged = run.learning.divergence if run.learning else None
    if diverged is not None:  # which for an experiment is no failure
        return f"diverged at step {diverged.step}{planned}"
    return f"{run.status} at step {run.steps}{planned}"


def _label(line: Line, variants: Sequence[Variant]) -> str:
    if line.key != "seconds_to_target":
        return line.label
    named = targets([run for variant in variants for run in variant.runs])
    return f"{line.label} {' / '.join(f'{target:g}' for target in named)}"


def _cell(line: Line, variant: Variant) -> str:
    nothing = numbers.NOTHING
    if line.key == "seconds_to_target" and targets(variant.runs):
        nothing = "not reached"
    return numbers.spread(variant.spread(line.get), line.form, nothing)


def _overview_row(experiment: Experiment) -> tuple[str, ...]:
    runs = experiment.runs
    rewards = _over_runs([run.last.reward for run in runs if run.last], numbers.reward)
    lengths = _over_runs([run.last.length for run in runs if run.last and run.last.length is not None], numbers.number)
    seconds = _over_runs([run.step_s for run in runs if run.step_s is not None], numbers.number)
    steps = _over_runs([float(run.steps) for run in runs], numbers.count)
    head = (experiment.title, experiment.name, str(len(runs)), overall_status(runs))
    return (*head, steps, seconds, rewards, lengths)


def overall_status(runs: Sequence[RunFigures]) -> str:
    """Say how many runs ended how: ``completed``, or ``3 completed, 1 failed``."""
    said = [run.status for run in runs]
    if len(set(said)) == 1:
        return said[0]
    return ", ".join(f"{said.count(text)} {text}" for text in dict.fromkeys(said))


def _over_runs(values: list[float], form: numbers.Format) -> str:
    if not values:
        return numbers.NOTHING
    low, high = form(min(values)), form(max(values))
    return low if low == high else f"{low} to {high}"


Read = Callable[[RunFigures], float | None]


def mean_of(name: str) -> Read:
    return lambda run: run.mean(name)


def of_ledger(read: Callable[[LedgerFigures], float | None]) -> Read:
    return lambda run: None if run.ledger is None else read(run.ledger)


def blocked_s(run: RunFigures) -> float | None:
    return None if run.blocked_time is None else run.blocked_time.seconds


OFF_POLICY_LINES = (
    Line("lag_mean", "lag, mean, versions", numbers.number, mean_of("off_policy/mean")),
    Line("lag_max", "lag, highest, versions", numbers.count, mean_of("off_policy/max")),
    Line("lag_token_mean", "lag of a token, mean, versions", numbers.number, mean_of("off_policy/token_mean")),
    Line("held_back_s", "held back by the bound, seconds", numbers.number, blocked_s),
    Line(
        "dropped_share",
        "dropped, share of generated rollouts",
        numbers.percent,
        of_ledger(lambda ledger: ledger.share(ledger.dropped)),
    ),
    Line(
        "generated_length",
        "length of a generated rollout, tokens",
        numbers.number,
        of_ledger(lambda ledger: ledger.generated.mean_length),
    ),
    Line(
        "dropped_length",
        "length of a dropped rollout, tokens",
        numbers.number,
        of_ledger(lambda ledger: ledger.dropped.mean_length),
    ),
    Line(
        "trained_length",
        "length of a trained rollout, tokens",
        numbers.number,
        of_ledger(lambda ledger: ledger.trained.mean_length),
    ),
    Line(
        "unused_share",
        "never trained on, share of generated rollouts",
        numbers.percent,
        of_ledger(lambda ledger: ledger.share(ledger.unused)),
    ),
    Line("replay_size", "replay buffer, mean, groups", numbers.number, mean_of("replay/size")),
    Line("replay_age", "age of a replayed group, mean, versions", numbers.number, mean_of("replay/age_mean")),
    Line("replay_uses", "uses of a replayed group, mean", numbers.number, mean_of("replay/uses_mean")),
)
_OFF_POLICY_NOTES = (
    "A rollout's lag is the policy version of the training step minus that of its oldest token.",
    "Never trained on: left over at the end, or pushed out of the replay buffer unused; what was dropped is not in it.",
)


def is_off_policy(experiment: Experiment) -> bool:
    """Whether any run trains on rollouts of older policies."""
    return any(run.behaviour_is_older for run in experiment.runs)


def off_policy_table(experiment: Experiment) -> Table | None:
    """Return lag, dropping and replay, one column for each variant; None where every run is on-policy."""
    if not is_off_policy(experiment):
        return None
    header = ("figure", *(variant.name for variant in experiment.variants))
    rows = line_rows(OFF_POLICY_LINES, experiment.variants)
    return Table("Off-policy", header, rows, (*_OFF_POLICY_NOTES, *seed_note(experiment.variants)), divisible=True)
