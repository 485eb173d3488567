"""What came of the runs, line by line: reward, length, cost, health. One list feeds the tables and the JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.compare import numbers
from harness.compare.evaluations import Evaluated
from harness.compare.experiments import Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.groups import groups, legend, letters_of
from harness.compare.tables import Table, seed_note

KL_NAMES = {
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


LINES = (
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
    *(_at_end(name, label) for name, label in KL_NAMES.items()),
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
    rows = [("status", *(statuses(variant.runs) for variant in variants)), *line_rows(LINES, variants)]
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
