"""An experiment as tables of text: where the time went, what came of the runs, lag. The report draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from harness.compare import numbers
from harness.compare.caveats import groups, legend, letters_of
from harness.compare.experiments import MOST_WITH_SPANS, SIMULATED, Experiment, Variant
from harness.compare.figures import RunFigures, StageFigures
from harness.compare.numbers import Format, count, number, percent, plural, reward, spread, spread_of
from harness.compare.rewards import target_times
from harness.compare.step_times import MARK, mark, steadiness_notes
from harness.core.trace import Stage
from harness.results import in_pipeline_order
from harness.results.occupancy import LaneAccount
from harness.results.rows import LedgerFigures, Rollouts

NEARLY_ALL = 0.8  # in an asynchronous run a stage may end twice in one step's window and not in the next

Read = Callable[[RunFigures], float | None]


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


def columns_apart(table: Table, per_part: int) -> list[Table]:
    """Split a table into parts of at most ``per_part`` columns beside the first, so that each fits the screen."""
    per_part = max(1, per_part)
    slices = [slice(start, start + per_part) for start in range(1, len(table.header), per_part)]
    parts = [
        Table(table.title, (table.header[0], *table.header[part]), tuple((row[0], *row[part]) for row in table.rows))
        for part in slices
    ]
    return [*parts[:-1], replace(parts[-1], notes=table.notes)]


def seed_note(variants: Sequence[Variant]) -> tuple[str, ...]:
    """Explain the brackets where a variant has several runs."""
    most = max(len(variant.runs) for variant in variants)
    return (f"Mean [lowest, highest] over {most} runs that differ in the seed.",) if most > 1 else ()


def spans_note(runs: Sequence[RunFigures]) -> tuple[str, ...]:
    """Say of how many runs the figures are that need spans, where some runs have none or theirs were not read."""
    known, of = sum(bool(run.lanes) for run in runs), len(runs)
    if not 0 < known < of:
        return ()
    which = "that kept their spans" if of <= MOST_WITH_SPANS else "whose spans were read; --all reads them all"
    return (f"Lanes, idle ratios and what the lag bound held back are means over the {known} of {of} runs {which}.",)


def stage_table(experiment: Experiment) -> Table:
    """Return seconds per training step and share of the measured window of each stage, one column for each variant."""
    stages = [stage for stage in Stage if not stage.is_wait and any(_ran(run, stage) for run in experiment.runs)]
    rows = [_stage_row(stage.value, experiment, lambda run, stage=stage: run.stages.get(stage)) for stage in stages]  # type: ignore[misc]
    rows.append(_stage_row("all stages", experiment, lambda run: run.all_stages))
    rows.append(("whole step", *(_whole_step(variant) for variant in experiment.variants)))
    rows.append(("median of single steps, p10 to p90", *(_single_steps(variant) for variant in experiment.variants)))
    notes = [
        f"Means over {window_words(experiment.runs)}: seconds of these steps, evaluations included, over their number."
    ]
    if any(run.all_stages.share > 1.005 for run in experiment.runs):
        notes.append("Lanes ran at the same time, so their stages add up to more than the step.")
    notes += [f"{MARK} {note}" for note in steadiness_notes(experiment.variants)]
    return Table(
        title="Stage times: seconds per training step, and share of it",
        header=("stage", *(variant.name for variant in experiment.variants)),
        rows=tuple(rows),
        notes=(*notes, *seed_note(experiment.variants)),
        divisible=True,
    )


def _ran(run: RunFigures, stage: Stage) -> bool:
    return stage in run.stages and run.stages[stage].steps > 0


def _stage_row(name: str, experiment: Experiment, get: Callable[[RunFigures], StageFigures | None]) -> tuple[str, ...]:
    by_variant = [[get(run) for run in variant.runs] for variant in experiment.variants]
    measured = zip((item for items in by_variant for item in items), experiment.runs, strict=True)
    counts = {(figures.steps, run.measured_steps) for figures, run in measured if figures is not None}
    if any(steps < NEARLY_ALL * total for steps, total in counts):
        (steps, total), *others = counts
        name += " (not in every step)" if others else f" ({steps} of {total} steps)"
    cells = []
    for items in by_variant:
        seconds = spread_of([item.mean_s if item else None for item in items])
        share = sum(item.share if item else 0.0 for item in items) / len(items)
        cells.append(f"{spread(seconds, number)} {percent(share):>6}" if any(items) else numbers.NOTHING)
    return (name, *cells)


def step_cell(variant: Variant) -> str:
    """Write a variant's seconds per step, with a mark where a run of it keeps no one level."""
    return spread(variant.spread(lambda run: run.step_s), number) + mark(variant)


def _whole_step(variant: Variant) -> str:
    return f"{step_cell(variant)} {percent(1.0):>6}" if any(run.step_s for run in variant.runs) else numbers.NOTHING


def _single_steps(variant: Variant) -> str:
    found = [run.single_steps for run in variant.runs if run.single_steps is not None]
    if not found:
        return numbers.NOTHING
    low, middle, high = (fmean(values) for values in zip(*((s.p10_s, s.median_s, s.p90_s) for s in found), strict=True))
    return f"{number(middle)}, {number(low)} to {number(high)}"


def window_words(runs: Sequence[RunFigures]) -> str:
    """Name the measured window: which training steps of how many, and what was left out of them."""
    windows = {(run.window.first, run.window.last, run.window.all_steps) for run in runs if run.window}
    counted = _range([run.measured_steps for run in runs], "step")
    if len(windows) == 1:
        ((first, last, total),) = windows
        steps = f"steps {first} to {last} of {total}" if last > first else f"step {first} of {total}"
    else:
        steps = f"{counted} of each run"
    left_out = {"warm-up": [run.warmup_steps for run in runs], "profiled": [run.profiled_steps for run in runs]}
    parts = [_range(counts, f"{why} step") for why, counts in left_out.items() if any(counts)]
    if not any(run.steps > run.measured_steps for run in runs):
        return f"{steps}{', all of them warm-up or profiled' if parts else ''}"
    return f"{steps} ({' and '.join(parts)} left out)"


def _range(counts: Sequence[int], noun: str) -> str:
    """Write ``1 step``, ``60 steps`` or ``23 to 60 steps``."""
    low, high = min(counts), max(counts)
    return plural(high, noun) if low == high else f"{low} to {plural(high, noun)}"


def lane_table(experiment: Experiment) -> Table:
    """Return how each lane's wall-clock divides into stages, waits and time in no stage and no wait."""
    rows = []
    for variant in experiment.variants:
        for lane in in_pipeline_order({lane for run in variant.runs for lane in run.lanes}):
            accounts = [run.lanes[lane] for run in variant.runs if lane in run.lanes]
            rows.append((variant.name, lane, *_lane_cells(accounts)))
    notes: tuple[str, ...] = ("No spans were kept with these runs.",)
    if rows:
        notes = spans_note(experiment.runs) or seed_note(experiment.variants)
    return Table(
        title=f"Lanes: seconds of {window_words(experiment.runs)}, and their shares",
        header=("variant", "lane", "seconds", "in stages", "waiting", "unattributed"),
        rows=tuple(rows),
        notes=notes,
        words=2,
    )


def rank_table(experiment: Experiment) -> Table:
    """Return what each rank of a Learner had to do in a training step, and how long it computed and waited."""
    rows = []
    for variant in experiment.variants:
        steps = [of_ranks for run in variant.runs for of_ranks in run.rank_steps]
        for rank in range(max(map(len, steps), default=0)):
            own = [of_ranks[rank] for of_ranks in steps if rank < len(of_ranks)]
            seconds = [[getattr(step, name) for step in own] for name in _RANK_SECONDS]
            cells = ["" if None in column else number(fmean(column)) for column in seconds]
            computing_s = sum(step.computing_s or 0.0 for step in own)
            speed = computing_s * 1e6 / max(1, sum(step.tokens for step in own))
            tokens = number(fmean(step.tokens for step in own))
            rows.append((variant.name, str(rank), tokens, cells[0], number(speed) if cells[0] else "", *cells[1:]))
    return Table(
        title="Ranks of the Learner: means of a training step, after all were there",
        header=("variant", "rank", "tokens", "computing, s", "us a token", "no CPU, s", "in collectives, s", "late, s"),
        rows=tuple(rows),
        notes=("A cell is empty where it cannot be measured: on a GPU, and where the system does not say.",),
        words=2,
    )


_RANK_SECONDS = ("computing_s", "runnable_s", "blocked_s", "late_s")


def _lane_cells(accounts: Sequence[LaneAccount]) -> tuple[str, ...]:
    return (
        spread(spread_of([account.wall_ns / 1e9 for account in accounts]), number),
        spread(spread_of([account.share(account.busy_ns) for account in accounts]), percent),
        spread(spread_of([account.share(account.waiting_ns) for account in accounts]), percent),
        spread(
            spread_of([account.share(account.unattributed_ns) for account in accounts]),
            lambda share: f"{100 * share:.2f}%",
        ),
    )


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
    form: Format
    get: Read
    in_table: bool = True


def mean_of(name: str) -> Read:
    """Return what reads a metric combined over all steps."""
    return lambda run: run.mean(name)


def rollout_share(kind: Callable[[LedgerFigures], Rollouts]) -> Read:
    """Return what reads the share of the generated rollouts that are of a kind."""
    return lambda run: run.ledger.share(kind(run.ledger)) if run.ledger else None


def mean_length(kind: Callable[[LedgerFigures], Rollouts]) -> Read:
    """Return what reads the mean length of the rollouts of a kind, in tokens."""
    return lambda run: kind(run.ledger).mean_length if run.ledger else None


def blocked_s(run: RunFigures) -> float | None:
    """Return the seconds for which the lag bound made Generators wait."""
    return None if run.blocked_time is None else run.blocked_time.seconds


def _memory(where: str, figure: str) -> Read:
    """Read GiB of what the manifest says of memory; None in runs of before it did, and where nothing was planned."""

    def get(run: RunFigures) -> float | None:
        value: Any = run.manifest.outcome.get("memory")
        for key in (where, figure):
            value = value.get(key) if isinstance(value, dict) else None
        return value / 2**30 if isinstance(value, int | float) else None

    return get


def _kl(name: str, estimator: str, policy: str) -> Line:
    label = f"KL to the {policy} policy, {estimator}, last step"
    # k1 per token is noisier than k3 and says the same
    return Line(name, label, number, lambda run: run.at_end(name), in_table=not name.endswith("_k1"))


def _idle(kind: str) -> Line:
    return Line(f"idle_{kind}", f"idle ratio, {kind.capitalize()}", percent, lambda run: run.idle_ratio(kind))


OUTCOME_LINES = (
    Line("reward_first", "validation reward, first", reward, lambda run: run.first.reward if run.first else None),
    Line("reward_best", "validation reward, best", reward, lambda run: run.best.reward if run.best else None),
    Line("reward_best_step", "  at step", count, lambda run: run.best.step if run.best else None),
    Line("reward_last", "validation reward, last", reward, lambda run: run.last.reward if run.last else None),
    Line("length_first", "response length, first, tokens", number, lambda run: run.first.length if run.first else None),
    Line("length_last", "response length, last, tokens", number, lambda run: run.last.length if run.last else None),
    Line("seconds_to_target", "reached reward {}", number, lambda run: run.seconds_to_target),
    Line(
        *("target_step", "steps to the target", count),
        lambda run: run.learning.target_step if run.learning else None,
        in_table=False,
    ),
    Line("reward_train", "training reward, last tenth of the steps", reward, lambda run: run.training_reward),
    Line("length_train", "response length in training, tokens", number, mean_of("response_length")),
    Line("clip_fraction", "clip fraction, mean", number, mean_of("clip_fraction")),
    Line("grad_norm", "gradient norm, median", number, lambda run: run.grad_norm),
    Line(
        *("grad_norm_p95", "gradient norm, 95th percentile", number),
        lambda run: run.learning.grad_norm_p95 if run.learning else None,
    ),
    Line(
        *("scaled_down", "steps with a gradient scaled down", percent),
        lambda run: run.learning.scaled_down if run.learning else None,
    ),
    Line("diverged_step", "diverged at step", count, lambda run: run.divergence.step if run.divergence else None),
    *(
        _kl(f"kl/{policy}_{name}", estimator, policy)
        for policy in ("reference", "previous")
        for name, estimator in (("k3", "k3 per token"), ("k1", "k1 per token"), ("k1_sum", "k1 per response"))
    ),
    *(_idle(kind) for kind in ("generator", "scorer", "learner")),
    Line("engine_mismatch_max", "engine mismatch, largest log-prob gap", number, mean_of("engine_mismatch/max")),
    Line("failed_groups", "groups without a reward", count, mean_of("score/failed_groups")),
    Line("replaced", "parts replaced", count, lambda run: run.replaced or None),
    Line("step_s", "seconds per step", number, lambda run: run.step_s, in_table=False),
    Line("median_step_s", "median of single steps, seconds", number, lambda run: run.median_step_s, in_table=False),
    Line("steps", "training steps", count, lambda run: run.steps),
    Line("optimizer_steps", "optimizer steps", count, lambda run: run.optimizer_steps or None),
    Line("tokens_per_s", "generated tokens per second", number, lambda run: run.throughput),
    Line(
        *("processed_tokens_per_s", "tokens per second, prompts included", number),
        mean_of("perf/processed_tokens_per_s"),
    ),
    Line("startup_s", "start-up, seconds", number, lambda run: run.manifest.startup_s),
    Line("loop_s", "loop, seconds", number, lambda run: run.loop_s),
    *(
        Line(f"{where}_memory_{key}_gib", f"{name} memory, {key}, GiB", number, _memory(where, f"{key}_bytes"))
        for where, name in (("gpu", "GPU"), ("main", "main"))
        for key in ("planned", "peak")
    ),
)

OFF_POLICY_LINES = (
    Line("lag_mean", "lag, mean, versions", number, mean_of("off_policy/mean")),
    Line("lag_max", "lag, highest, versions", count, mean_of("off_policy/max")),
    Line("lag_token_mean", "lag of a token, mean, versions", number, mean_of("off_policy/token_mean")),
    Line("held_back_s", "held back by the bound, seconds", number, blocked_s),
    Line("dropped_share", "dropped, share of generated rollouts", percent, rollout_share(lambda it: it.dropped)),
    Line("generated_length", "length of a generated rollout, tokens", number, mean_length(lambda it: it.generated)),
    Line("dropped_length", "length of a dropped rollout, tokens", number, mean_length(lambda it: it.dropped)),
    Line("trained_length", "length of a trained rollout, tokens", number, mean_length(lambda it: it.trained)),
    Line("unused_share", "never trained on, share of generated rollouts", percent, rollout_share(lambda it: it.unused)),
)


def outcome_table(experiment: Experiment) -> Table:
    """Return reward, length, cost and health of each variant, one column each; lines that no run has are left out."""
    variants = experiment.variants
    status = ("status", *(_statuses(map(_status, variant.runs)) for variant in variants))
    notes = [*seed_note(variants), *spans_note(experiment.runs)]
    prompts = [run.last.prompts for run in experiment.runs if run.last and not run.is_imported]
    if prompts:
        error = 0.5 / min(prompts) ** 0.5  # the largest standard error of a mean of values in [0, 1]
        what = f"Validation rewards are means over {min(prompts)} prompts"
        notes.insert(0, f"{what}: a standard error of up to {error:.3f} where rewards lie between 0 and 1.")
    header = ("figure", *(variant.name for variant in variants))
    return Table("Outcome", header, (status, *line_rows(OUTCOME_LINES, variants)), tuple(notes), divisible=True)


def is_off_policy(experiment: Experiment) -> bool:
    """Whether any run trains on rollouts of older policies."""
    return any(run.behaviour_is_older for run in experiment.runs)


def off_policy_table(experiment: Experiment) -> Table | None:
    """Return lag and dropping, one column for each variant; None where every run is on-policy."""
    if not is_off_policy(experiment):
        return None
    header = ("figure", *(variant.name for variant in experiment.variants))
    notes = (
        "A rollout's lag is the policy version of the training step minus that of its oldest token.",
        "Never trained on: left over at the end, or pushed out of the replay buffer unused; what was dropped is not in "
        "it.",
        *seed_note(experiment.variants),
        *spans_note(experiment.runs),
    )
    return Table("Off-policy", header, tuple(line_rows(OFF_POLICY_LINES, experiment.variants)), notes, divisible=True)


def line_rows(lines: Sequence[Line], variants: Sequence[Variant]) -> list[tuple[str, ...]]:
    """Return a row for each line that is shown and that some run has: its label and a cell for each variant."""
    rows = []
    for line in lines:
        label = line.label
        cells = [spread(variant.spread(line.get), line.form) for variant in variants]
        if line.key == "seconds_to_target":
            named = targets([run for variant in variants for run in variant.runs])
            label = label.format(" / ".join(f"{target:g}" for target in named))
            cells = [times.text() if times else numbers.NOTHING for times in map(target_times, variants)]
        if line.in_table and any(cell != numbers.NOTHING for cell in cells):
            rows.append((label, *cells))
    return rows


def targets(runs: Sequence[RunFigures]) -> list[float]:
    """Return the distinct reward targets of the runs."""
    return sorted({run.reward_target for run in runs if run.reward_target is not None})


def _status(run: RunFigures) -> str:
    """Return how a run ended: ``completed``, ``interrupted at step 23 of 60``."""
    if run.is_completed:
        return run.status
    planned = f" of {run.planned_steps}" if run.planned_steps else ""
    if run.divergence is not None:  # which for an experiment is no failure
        return f"diverged at step {run.divergence.step}{planned}"
    return f"{run.status} at step {run.steps}{planned}"


def _statuses(statuses: Iterable[str]) -> str:
    """Return what all runs share, or how many there are of each: ``3 completed, 1 failed``."""
    every = list(statuses)
    each = list(dict.fromkeys(every))
    return each[0] if len(each) == 1 else ", ".join(f"{every.count(status)} {status}" for status in each)


def overview_table(experiments: Sequence[Experiment]) -> Table:
    """Return one line for each experiment, with the status where not all runs are complete; ranges are over its runs.

    Where not all were made on one kind of machine with the same versions and threads, a letter says which group each
    belongs to, and the notes say what sets the groups apart.
    """
    environments = groups(experiments)
    is_odd = any(run.status != "completed" for experiment in experiments for run in experiment.runs)
    header = ("runs", *(("status",) if is_odd else ()), "steps", "s per step", "last reward")
    header = ("scenario", "experiment", *(("in",) if len(environments) > 1 else ()), *header)
    rows = []
    for experiment in experiments:
        runs = experiment.runs
        letters = (letters_of(experiment, environments),) if len(environments) > 1 else ()
        rows.append(
            (
                *(experiment.title, experiment.name, *letters, str(len(runs))),
                *((_statuses(run.status for run in runs),) if is_odd else ()),
                _over_runs([run.steps for run in runs], count),
                _over_runs([run.step_s for run in runs], number) + "".join(sorted({*map(mark, experiment.variants)})),
                _over_runs([run.last.reward if run.last else None for run in runs], reward),
            )
        )
    words = 3 if len(environments) > 1 else 2
    unsteady = any(mark(variant) for experiment in experiments for variant in experiment.variants)
    notes = (
        *legend(environments),
        *((f"{MARK} Step times that do not keep one level after warm-up.",) if unsteady else ()),
    )
    return Table("Experiments, oldest first", header, tuple(rows), notes, words)


def _over_runs(values: Iterable[float | None], form: Format) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return numbers.NOTHING
    low, high = form(min(known)), form(max(known))
    return low if low == high else f"{low} to {high}"
