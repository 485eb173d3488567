"""Verdicts on an experiment: every variant against the baseline, in step time and in each stage.

The unit of replication is the block, in which every arm ran once on the same prompts and seed, under the same weather.
Steps are sub-samples of a block, so there is never a verdict from one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.compare.caveats import differences
from harness.compare.experiments import Experiment, Variant, is_called
from harness.compare.figures import RunFigures
from harness.compare.numbers import NOTHING, change
from harness.compare.stats import (
    STAGE_THRESHOLD,
    STEP,
    STEP_THRESHOLD,
    BlockSummary,
    Drift,
    Effect,
    PairedBlock,
    Verdict,
    judge_apart,
    judge_stages,
    judge_step,
    speed_drift,
    summarise,
)
from harness.compare.step_columns import UNFLAGGED_WARMUP, StepSeries
from harness.compare.tables import Table
from harness.core.errors import UserError
from harness.core.trace import Stage

OFTEN = 0.5  # a stage that runs in a smaller share of the steps, such as a checkpoint, is not compared
UNLIKE_IS_MEANT = ("commit",)  # two versions of the code are what a comparison may be about
TOKENS = "response_tokens"  # generated in a step, added up over the steps
UNEQUAL_WORK = 0.05  # difference in tokens per step that is worth saying
SET_BY_ARMS = ("threads",)  # within an experiment, what the arms' own settings decide
_SETTINGS_OF_A_RUN = (
    "name",
    "description",
    "arms",
    "sweep",
    "endpoint",
    "blocks",
    "interleaving",
    "stop_at_half_width",
    "seed",
)


@dataclass(frozen=True)
class Judgement:
    """One variant against the baseline.

    Attributes:
        base, other: the variants' names; of a stored baseline with its experiment.
        step: the primary endpoint.
        stages: every stage that both ran in most steps, corrected for their number.
        alternated: whether the arms took turns by step; None where the two were not interleaved at all.
        noise_floor: the baseline against an arm of the same settings, where the experiment has one (A/A).
        cautions: what to know beside the figures.
        too_unstable: why no gate may rest on this: the machine's speed went astray; None where it did not.
        is_noise_floor: whether this is the baseline against an arm of its own settings.
        unfinished: runs of the two that did not get to their end, and count only where step is set against step.
        summary: more figures of the step's blocks; None where the two were not interleaved.
    """

    base: str
    other: str
    step: Effect
    stages: tuple[Effect, ...]
    alternated: bool | None
    noise_floor: Effect | None = None
    cautions: tuple[str, ...] = ()
    too_unstable: str | None = None
    is_noise_floor: bool = False
    unfinished: int = 0
    summary: BlockSummary | None = None


@dataclass(frozen=True)
class Baseline:
    """What the others are set against: a variant of an experiment."""

    experiment: Experiment
    variant: Variant


def judgements(
    experiment: Experiment,
    baseline: str | None = None,
    threshold: float = STEP_THRESHOLD,
    allowed: Sequence[str] = (),
) -> list[Judgement]:
    """Set every variant of an experiment against one of them.

    Args:
        experiment: its variants; blocks are paired by (seed, block).
        baseline: the variant's name; None takes the first one.
        threshold: the relative change of the step time that counts in practice.
        allowed: differences of the environment that do not stand in the way of a verdict: ``machine``, ``versions``,
            ``threads``, ``commit``.

    Raises:
        UserError: the experiment has no such variant.
    """
    base, drift = variant_named(experiment, baseline), speed_drift(_speeds(experiment.runs))
    others = [variant for variant in experiment.variants if variant is not base]
    judged = {other.name: _judge(base, other, threshold, allowed, drift) for other in others}
    twin = next((other.name for other in others if is_same(base, other)), None)
    if twin is None:
        return list(judged.values())
    return [
        replace(judgement, is_noise_floor=True) if name == twin else replace(judgement, noise_floor=judged[twin].step)
        for name, judgement in judged.items()
    ]


def judge_against(
    baseline: Baseline, experiment: Experiment, threshold: float, allowed: Sequence[str]
) -> list[Judgement]:
    """Set the variants of an experiment against a stored baseline, which ran in another command.

    A variant is set against the baseline's of the same name if there is one, else against the named one. The blocks of
    the two were not interleaved, so drift of the machine shows as a difference: intervals are Welch's, and a machine
    whose machine speed says that it has changed gives no verdict.
    """
    judged = []
    for other in experiment.variants:
        namesakes = (variant for variant in baseline.experiment.variants if is_called(variant.name, other.name))
        same = next(namesakes, baseline.variant)
        reasons = []
        if experiment.scenario != baseline.experiment.scenario:
            reasons.append(f"they are runs of the scenarios {baseline.experiment.scenario} and {experiment.scenario}")
        reasons += _environment_reasons(same.runs, other.runs, allowed)
        name = f"{same.name} of {baseline.experiment.scenario}/{baseline.experiment.name}"
        judged.append(replace(_judge_apart(same, other, threshold, reasons), base=name))
    return judged


def _judge_apart(base: Variant, other: Variant, threshold: float, reasons: Sequence[str]) -> Judgement:
    """Judge two variants that did not take turns: their blocks are two groups, and not pairs."""
    drift, reasons = speed_drift(_speeds([*base.runs, *other.runs])), list(reasons)
    if drift is not None and drift.unstable and drift.sentence:
        reasons.append(f"the two did not take turns, and the {drift.sentence}")
    step = judge_apart(_whole_runs(base.runs), _whole_runs(other.runs), threshold, not_comparable=reasons)
    return Judgement(base.name, other.name, step, (), alternated=None, unfinished=_unfinished(base, other))


def variant_named(experiment: Experiment, name: str | None) -> Variant:
    """Return a variant by its name; None is the first one.

    Raises:
        UserError: there is none of that name.
    """
    if name is None:
        return experiment.variants[0]
    for variant in experiment.variants:
        if is_called(variant.name, name):
            return variant
    names = ", ".join(variant.name for variant in experiment.variants)
    raise UserError(
        f"{experiment.scenario}/{experiment.name} has no arm called {name!r}", "--baseline", f"it has {names}"
    )


def paired_blocks(base: Variant, other: Variant, alternated: bool) -> dict[str, list[PairedBlock]]:
    """Return the blocks of two variants, for the step and for each stage that both ran in most steps.

    A run that was cut short counts where its steps are neighbours of the other's, and not as a whole.
    """
    pairs = _pairs(base, other, with_unfinished=alternated)
    blocks: dict[str, list[PairedBlock]] = {}
    for name in (STEP, *(stage.value for stage in _common_stages(pairs))):
        paired = [_paired(before, after, name, alternated) for before, after in pairs]
        blocks[name] = [block for block in paired if block is not None]
    return blocks


def _judge(base: Variant, other: Variant, threshold: float, allowed: Sequence[str], drift: Drift | None) -> Judgement:
    reasons = _environment_reasons(base.runs, other.runs, (*allowed, *SET_BY_ARMS))
    in_blocks = base.runs[0].manifest.block is not None
    if not in_blocks and not _same_points(base, other):  # the points of a sweep, one after the other
        return _judge_apart(base, other, threshold, reasons)
    unstable = drift.sentence if drift is not None else None
    by_step = {run.manifest.interleaving for run in (*base.runs, *other.runs)} == {"step"}
    alternated = by_step and _same_points(base, other)
    blocks = paired_blocks(base, other, alternated)
    steps = blocks.pop(STEP)
    return Judgement(
        base.name,
        other.name,
        step=judge_step(steps, threshold, not_comparable=reasons),
        stages=judge_stages(blocks, max(threshold, STAGE_THRESHOLD), not_comparable=reasons),
        alternated=alternated,
        cautions=(*([unstable] if unstable else ()), *_unequal_work(base, other)),
        too_unstable=unstable if drift is not None and drift.refuses_gate else None,
        unfinished=_unfinished(base, other),
        summary=summarise(steps),
    )


def _unequal_work(base: Variant, other: Variant) -> list[str]:
    """Say where an arm may be faster because it generated less, or slower because it generated more."""

    def tokens_per_step(run: RunFigures) -> float | None:
        total = run.mean(TOKENS)
        return None if total is None or not run.steps else total / run.steps

    mine, theirs = other.spread(tokens_per_step), base.spread(tokens_per_step)
    if mine is None or theirs is None or not theirs.mean or abs(mine.mean / theirs.mean - 1) < UNEQUAL_WORK:
        return []
    tokens = f"{other.name} generated {change(mine.mean / theirs.mean)} tokens per step against {base.name}"
    return [f"{tokens}, so they did not do equal work; sampling.pinned_lengths makes them"]


def is_same(one: Variant, other: Variant) -> bool:
    """Whether two variants have the same settings, all of them known."""
    mine, theirs = settings_of(one.runs[0]), settings_of(other.runs[0])
    return bool(mine) and mine == theirs


def settings_of(run: RunFigures) -> dict[str, object]:
    """Return what a run's arm decides of its settings; empty where they were not saved."""
    return {key: value for key, value in run.settings.items() if key not in _SETTINGS_OF_A_RUN}


def _environment_reasons(
    before: Sequence[RunFigures], after: Sequence[RunFigures], allowed: Sequence[str]
) -> list[str]:
    """Say which parts of machine and software differ between the two, beyond what is allowed."""
    unlike: dict[str, None] = {}
    for run in after:
        unlike |= dict.fromkeys(differences(before[0].manifest, run.manifest))
    kept = [name for name in unlike if name not in (*allowed, *UNLIKE_IS_MEANT)]
    return [f"they differ in {' and '.join(kept)}"] if kept else []


def _same_points(one: Variant, other: Variant) -> bool:
    """Whether the two are arms of one point, which took turns; the points of a sweep ran one after the other."""
    return _point(one) == _point(other)


def _point(variant: Variant) -> dict[str, object]:
    return {key: value for key, value in variant.runs[0].manifest.point.items() if key != "seed"}


def _whole_runs(runs: Sequence[RunFigures]) -> list[list[float]]:
    """Return the measured step seconds of the runs that got to their end; a time of 0 is an unknown one."""
    whole = [run.series.measured(UNFLAGGED_WARMUP) for run in runs if run.series is not None and run.is_completed]
    times = [[seconds for seconds in series.wall_s if seconds > 0] for series in whole]
    return [seconds for seconds in times if seconds]


def _unfinished(base: Variant, other: Variant) -> int:
    return sum(not run.is_completed for run in (*base.runs, *other.runs))


def _pairs(base: Variant, other: Variant, with_unfinished: bool) -> list[tuple[StepSeries, StepSeries]]:
    """Return the measured steps of the runs that share a block, in the order of the blocks."""

    def by_block(variant: Variant) -> dict[tuple[int, int], RunFigures]:
        runs = [run for run in variant.runs if with_unfinished or run.is_completed]
        return {(-1 if run.manifest.block is None else run.manifest.block, run.manifest.seed): run for run in runs}

    before, after = by_block(base), by_block(other)
    pairs = []
    for key in sorted(before.keys() & after.keys()):
        mine, theirs = before[key].series, after[key].series
        if mine is not None and theirs is not None:
            pairs.append((mine.measured(UNFLAGGED_WARMUP), theirs.measured(UNFLAGGED_WARMUP)))
    return pairs


def _common_stages(pairs: Sequence[tuple[StepSeries, StepSeries]]) -> list[Stage]:
    """Return the stages that ran in most steps of both, in the order of ``Stage``.

    Waits are left out: they follow from what other lanes do, and would only cost the stages power.
    """

    def often(side: int, stage: Stage) -> bool:
        times = [second for pair in pairs for second in pair[side].stages_s.get(stage, ())]
        steps = sum(len(pair[side].steps) for pair in pairs)
        return steps > 0 and sum(second > 0 for second in times) > OFTEN * steps

    return [stage for stage in Stage if not stage.is_wait and often(0, stage) and often(1, stage)]


def _paired(before: StepSeries, after: StepSeries, name: str, alternated: bool) -> PairedBlock | None:
    mine, theirs = _seconds(before, name), _seconds(after, name)
    if before.steps == after.steps and mine and min(mine) > 0 < min(theirs):
        return PairedBlock(mine, theirs, alternated)
    by_step = [dict(zip(series.steps, _seconds(series, name), strict=True)) for series in (before, after)]
    return PairedBlock.from_steps(by_step[0], by_step[1], alternated)


def _seconds(series: StepSeries, name: str) -> tuple[float, ...]:
    """Return a stage's seconds, one for each step; a run without any of the steps has none of its stages either."""
    return series.wall_s if name == STEP else series.stages_s.get(Stage(name), (0.0,) * len(series.steps))


def _speeds(runs: Sequence[RunFigures]) -> dict[str, list[float]]:
    """Return the seconds of the speed probe by kind of work, once for each block, in the order in which they ran."""
    by_block: dict[tuple[str, int | None], dict[str, float]] = {}
    for run in sorted(runs, key=lambda run: run.manifest.started_at):
        if run.manifest.machine_speed:
            by_block.setdefault((run.manifest.experiment, run.manifest.block), run.manifest.machine_speed)
    kinds = dict.fromkeys(kind for seconds in by_block.values() for kind in seconds)
    return {kind: [seconds[kind] for seconds in by_block.values() if kind in seconds] for kind in kinds}


_HEADER = ("time", "ratio", "95% interval", "p", "smallest effect", "verdict")
_HOW = {True: "the arms took turns by step", False: "the arms ran one after the other", None: "not interleaved"}


def verdict_tables(judgements: Sequence[Judgement]) -> list[Table]:
    """Return a table for each arm that has two blocks or more: step time first, then its stages."""
    return [_table(judgement) for judgement in judgements if judgement.step.blocks > 1]


def verdict_sentences(judgements: Sequence[Judgement]) -> list[str]:
    """Return for each arm with two blocks or more what is different, and by how much."""
    sentences = []
    for judgement in judgements:
        if judgement.step.blocks > 1:
            sentences.append(verdict_sentence(judgement))
            if judgement.unfinished:
                runs = f"{judgement.unfinished} runs of {judgement.base} and {judgement.other}"
                sentences.append(f"{runs} did not finish.")
            sentences += [f"{caution.removesuffix('.')}." for caution in judgement.cautions]
    return sentences


def _table(judgement: Judgement) -> Table:
    step, stages = judgement.step, judgement.stages
    title = f"Verdict: {judgement.other} against {judgement.base}, {step.blocks} blocks ({_HOW[judgement.alternated]})"
    needed = f"Different: the interval leaves out 1 and the change is {_percent(step.threshold)} or more"
    needed += f" ({_percent(stages[0].threshold)} for a stage, with p corrected for {len(stages)})" if stages else ""
    notes = [
        f"Ratios are {judgement.other} over {judgement.base}; warm-up steps are left out. The smallest effect is the "
        "change that so many blocks show in 80% of cases, before any correction.",
        f"{needed}.",
    ]
    if judgement.summary is not None and judgement.summary.hodges_lehmann is not None:
        slower, robust = judgement.summary.slower, f"{judgement.summary.hodges_lehmann:.3f}"
        notes.append(
            f"{judgement.other} was the slower one in {slower} of {step.blocks} blocks; Hodges-Lehmann: {robust}."
        )
    if judgement.noise_floor is not None:
        notes.append(f"Noise floor (the baseline against itself): {_interval_words(judgement.noise_floor)}.")
    rows = [_row(effect, step.blocks) for effect in (step, *stages)]
    return Table(title, _HEADER, tuple(rows), tuple(notes))


def _row(effect: Effect, blocks: int) -> tuple[str, ...]:
    name, p = "whole step" if effect.name == STEP else effect.name, effect.p_adjusted
    return (
        name if effect.blocks == blocks else f"{name} ({effect.blocks} blocks)",
        NOTHING if effect.ratio is None else f"{effect.ratio:.3f}",
        NOTHING if effect.low is None else f"{effect.low:.3f} to {effect.high:.3f}",
        NOTHING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}",
        NOTHING if effect.minimum_effect is None else _percent(effect.minimum_effect),
        effect.verdict.value,
    )


def verdict_sentence(judgement: Judgement) -> str:
    """Return the step's verdict with its interval and reason, and the stages that are different."""
    step = judgement.step
    text = f"{judgement.other} against {judgement.base}, step time: {step.verdict.value}, {_interval_words(step)}"
    if step.reason:
        text += f" ({step.reason})"
    stages = [effect for effect in judgement.stages if effect.verdict is Verdict.DIFFERENT]
    if stages:
        changes = ", ".join(f"{effect.name} ({change(effect.ratio)})" for effect in stages)
        text += f". Different stages: {changes}"
    return text + "."


def _interval_words(effect: Effect) -> str:
    if effect.ratio is None:
        return "no figures"
    if effect.low is None or effect.high is None:
        return f"{change(effect.ratio)} in one block"
    return f"{change(effect.ratio)}, 95% interval {change(effect.low)} to {change(effect.high)}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
