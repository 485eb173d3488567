"""Verdicts on an experiment: every variant against the baseline, in step time and in each stage.

The unit of replication is the block, in which every arm ran once on the same prompts and seed, under the same weather.
Steps are sub-samples of a block, so there is never a verdict from one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from harness.compare.block_values import (
    Primary,
    endpoint_comparison,
    log_step_seconds,
    log_values,
    paired_runs,
    paired_seconds,
    stage_comparisons,
    step_comparison,
)
from harness.compare.caveats import unlike
from harness.compare.comparability import as_far_as_they_got, unlike_threads, why_not_comparable
from harness.compare.endpoints import endpoint_of, endpoint_of_effect
from harness.compare.experiments import Experiment, Variant, is_called
from harness.compare.figures import RunFigures
from harness.compare.imported import is_of_logs, over_steps
from harness.compare.numbers import NOTHING, change, listed
from harness.compare.stats import (
    STEP,
    STEP_THRESHOLD,
    Comparison,
    Drift,
    Effect,
    Verdict,
    judge,
    of_occasions,
    speed_drift,
)
from harness.compare.step_times import steadiness_notes, warm_up_reasons
from harness.compare.tables import Table
from harness.core.errors import UserError
from harness.core.experiment import EXPERIMENT_SETTINGS
from harness.results.rows import SPEED_PROBE

TOKENS = "response_tokens"  # generated in a step, added up over the steps
UNEQUAL_WORK = 0.05  # difference in tokens per step that is worth saying
ONE_OCCASION = (
    "the baseline has one occasion, so how far occasions lie apart is unknown: record it on 3 at least, better 5"
)
NOT_IN_TURN = (
    "they ran one after the other, and what the machine did meanwhile counts as a change too: repeat in blocks"
)


@dataclass(frozen=True)
class Judgement:
    """One variant against the baseline.

    Attributes:
        base, other: the variants' names; of a stored baseline with its experiment.
        step: seconds per training step.
        stages: every stage that either spent time in; all comparisons of the experiment are corrected for together.
        alternated: whether the arms took turns by step; None where the two were not interleaved at all.
        noise_floor: the baseline against an arm of the same settings, where the experiment has one (A/A).
        cautions: what to know beside the figures.
        no_gate: why no gate may rest on this for the arms' own settings, such as unlike threads; None where it may.
        is_noise_floor: whether this is the baseline against an arm of its own settings.
        unfinished: runs of the two that did not get to their end, and count only where step is set against step.
        endpoint: what decides between the arms, where that is not the step.
    """

    base: str
    other: str
    step: Effect
    stages: tuple[Effect, ...]
    alternated: bool | None
    noise_floor: Effect | None = None
    cautions: tuple[str, ...] = ()
    no_gate: str | None = None
    is_noise_floor: bool = False
    unfinished: int = 0
    endpoint: Effect | None = None

    @property
    def primary(self) -> Effect:
        """What decides between the arms."""
        return self.step if self.endpoint is None else self.endpoint

    @property
    def effects(self) -> tuple[Effect, ...]:
        """Everything that was compared, the primary endpoint first."""
        return (self.step, *self.stages) if self.endpoint is None else (self.endpoint, self.step, *self.stages)


@dataclass(frozen=True)
class Baseline:
    """What the others are set against: a variant of one experiment, or of several.

    Attributes:
        experiment, variant: of the newest occasion.
        earlier: the experiments of earlier occasions, oldest first.
    """

    experiment: Experiment
    variant: Variant
    earlier: tuple[Experiment, ...] = ()

    @property
    def occasions(self) -> tuple[Experiment, ...]:
        """The experiments, oldest first."""
        return (*self.earlier, self.experiment)

    def variants_of(self, name: str) -> list[Variant]:
        """Return the variant called so of each occasion; where one of them has none, the baseline's own."""
        named = [next((v for v in item.variants if is_called(v.name, name)), None) for item in self.occasions]
        known = [variant for variant in named if variant is not None]
        if len(known) == len(named):
            return known
        return [variant_named(item, self.variant.name) for item in self.occasions]

    def runs_of(self, name: str) -> list[RunFigures]:
        """Return the runs of ``variants_of``, occasion by occasion."""
        return [run for variant in self.variants_of(name) for run in variant.runs]


def judgements(
    experiment: Experiment,
    baseline: str | None = None,
    threshold: float = STEP_THRESHOLD,
    allowed: Sequence[str] = (),
    endpoint: Primary | None = None,
) -> list[Judgement]:
    """Set every variant of an experiment against one of them; all together, so that chance is corrected for once.

    An arm of the baseline's own settings is no candidate for a difference: it is the noise floor, judged by itself.
    Asynchronous arms have to beat the fastest synchronous one: where that is not the baseline, they are told.

    Args:
        experiment: its variants; blocks are paired by (seed, block).
        baseline: the variant's name; None takes the first one.
        threshold: the relative change of the step time that counts in practice.
        allowed: differences of the environment that do not stand in the way of a verdict: ``machine``, ``versions``,
            ``threads``, ``commit``.
        endpoint: what decides between the arms; None: what the scenario names.

    Raises:
        UserError: the experiment has no such variant.
    """
    endpoint = endpoint or endpoint_of(experiment.runs).primary
    base, drift = variant_named(experiment, baseline), speed_drift(_speeds(experiment.runs))
    drafts = [
        _draft(base, other, threshold, allowed, endpoint, drift) for other in experiment.variants if other is not base
    ]
    arms = iter(_judged([draft for draft in drafts if not draft.is_noise_floor]))
    found = [_judged([draft])[0] if draft.is_noise_floor else next(arms) for draft in drafts]
    if is_of_logs(experiment):
        arms_of_logs = [variant for variant in experiment.variants if variant is not base]
        found = [
            replace(item, step=over_steps(item.step, base, arm)) for item, arm in zip(found, arms_of_logs, strict=True)
        ]
    floor = next((item.primary for item in found if item.is_noise_floor), None)
    found = [item if item.is_noise_floor else replace(item, noise_floor=floor) for item in found]
    is_in_turns = [draft.after[0].settings.get("max_lag") == 0 for draft in drafts]
    if base.runs[0].settings.get("max_lag") != 0 or all(is_in_turns):
        return found
    said = tuple(
        f"{item.other} is synchronous too, and faster than {item.base} ({change(item.step.ratio)}): what lag brings "
        f"against it shows --baseline {item.other}"
        for item, in_turns in zip(found, is_in_turns, strict=True)
        if in_turns and item.step.verdict is Verdict.DIFFERENT and item.step.ratio is not None and item.step.ratio < 1
    )
    return [
        item if in_turns else replace(item, cautions=(*item.cautions, *said))
        for item, in_turns in zip(found, is_in_turns, strict=True)
    ]


def judge_against(
    baseline: Baseline, experiment: Experiment, threshold: float, allowed: Sequence[str]
) -> list[Judgement]:
    """Set the variants of an experiment against a stored baseline, which ran in other commands.

    A variant is set against the baseline's of the same name if there is one, else against the named one. What the
    machine did on one occasion and not on another is a difference too, so the interval comes from the spread between
    the baseline's occasions. With a single one there is no verdict.
    """
    return _judged([_draft_against(baseline, experiment, other, threshold, allowed) for other in experiment.variants])


@dataclass(frozen=True)
class _Draft:
    """What is to be judged of two variants.

    Attributes:
        before, after: the runs of the two; the others are those of ``Judgement``.
    """

    base: str
    other: str
    before: Sequence[RunFigures]
    after: Sequence[RunFigures]
    step: Comparison
    stages: Sequence[Comparison] = ()
    endpoint: Comparison | None = None
    alternated: bool | None = None
    cautions: tuple[str, ...] = ()
    no_gate: str | None = None
    is_noise_floor: bool = False


def _judged(drafts: Sequence[_Draft]) -> list[Judgement]:
    """Judge the drafts as one family: the arms' primary endpoints, and everything else of all arms."""
    primary = [draft.endpoint or draft.step for draft in drafts]
    others = [[*([draft.step] if draft.endpoint else []), *draft.stages] for draft in drafts]
    deciding, rest = judge(primary, [item for items in others for item in items])
    found, left = [], iter(rest)
    for draft, deciding_effect in zip(drafts, deciding, strict=True):
        effect = as_far_as_they_got(deciding_effect, draft.before, draft.after)
        step = as_far_as_they_got(next(left), draft.before, draft.after) if draft.endpoint else effect
        judgement = Judgement(
            draft.base,
            draft.other,
            step,
            tuple(as_far_as_they_got(next(left), draft.before, draft.after) for _ in draft.stages),
            draft.alternated,
            cautions=draft.cautions,
            no_gate=draft.no_gate,
            is_noise_floor=draft.is_noise_floor,
            unfinished=sum(not run.is_completed for run in (*draft.before, *draft.after)),
            endpoint=effect if draft.endpoint else None,
        )
        found.append(judgement)
    return found


def _draft(
    base: Variant,
    other: Variant,
    threshold: float,
    allowed: Sequence[str],
    endpoint: Primary | None,
    drift: Drift | None,
) -> _Draft:
    """Prepare two variants of one experiment."""
    refused = tuple(why_not_comparable(base.runs, other.runs, allowed, one_command=True))
    step = Comparison(STEP, None, threshold, not_comparable=refused)
    draft = _Draft(
        base.name,
        other.name,
        base.runs,
        other.runs,
        step,
        no_gate=unlike_threads(base.runs, other.runs, allowed),
        is_noise_floor=is_same(base, other),
    )
    if base.runs[0].manifest.block is None and not _same_points(base, other):  # points of a sweep, one after the other
        apart = of_occasions(*([values] if values else [] for values in map(log_step_seconds, (base, other))))
        cautions = tuple(steadiness_notes([base, other]))
        return replace(draft, step=replace(step, estimate=apart, undecided=NOT_IN_TURN), cautions=cautions)
    by_step = {run.manifest.interleaving for run in (*base.runs, *other.runs)} == {"step"}
    alternated = by_step and _same_points(base, other)
    pairs = paired_runs(base, other, with_unfinished=alternated)
    blocks = paired_seconds(pairs, alternated)
    unstable = drift.sentence if drift is not None else None
    warming = warm_up_reasons(base, other)
    undecided = "; ".join([*_unmeasured(len(blocks), len(pairs)), *warming]) or None
    deciding = None
    if endpoint is not None:
        # a run that diverged has its last reward, and no time
        judged = pairs if endpoint.is_timed else paired_runs(base, other, with_unfinished=True)
        deciding = endpoint_comparison(endpoint, judged, refused)
        measured = 0 if deciding.estimate is None else deciding.estimate.blocks
        reasons = [*_unmeasured(measured, len(judged)), *(warming if endpoint.is_timed else [])]
        deciding = replace(deciding, undecided="; ".join(reasons) or None)
    return replace(
        draft,
        alternated=alternated,
        step=replace(step_comparison(blocks, threshold, refused), undecided=undecided),
        stages=[replace(stage, undecided=undecided) for stage in stage_comparisons(blocks, threshold, refused)],
        endpoint=deciding,
        cautions=(*([unstable] if unstable else ()), *steadiness_notes([base, other]), *_unequal_work(base, other)),
    )


def _unmeasured(blocks: int, of: int) -> list[str]:
    """Say that a figure was not measured in every block that both arms have; the others alone are no verdict."""
    return [f"it was not measured in {of - blocks} of {of} blocks"] if blocks < of else []


def _draft_against(
    baseline: Baseline, experiment: Experiment, other: Variant, threshold: float, allowed: Sequence[str]
) -> _Draft:
    """Prepare a variant and the occasions of a stored baseline."""
    stored = baseline.variants_of(other.name)
    before = baseline.runs_of(other.name)
    reasons = []
    scenarios = list(dict.fromkeys([*(occasion.scenario for occasion in baseline.occasions), experiment.scenario]))
    if len(scenarios) > 1:
        reasons.append(f"they are runs of the scenarios {listed(scenarios)}")
    reasons += why_not_comparable(before, other.runs, allowed, one_command=False)
    known = [seconds for seconds in map(log_step_seconds, stored) if seconds]
    new = [seconds for seconds in [log_step_seconds(other)] if seconds]
    together = Variant(stored[-1].name, tuple(before))
    undecided = [ONE_OCCASION] if len(known) < 2 else warm_up_reasons(together, other)
    step = Comparison(
        STEP,
        of_occasions(known, new),
        threshold,
        not_comparable=tuple(reasons),
        undecided="; ".join(undecided) or None,
    )
    deciding, endpoint = None, endpoint_of(experiment.runs).primary
    if endpoint is not None:
        values = [log_values(variant, endpoint) for variant in (*stored, other)]
        missing = [] if all(values) else ["it was not measured on every occasion"]
        deciding = Comparison(
            endpoint.name,
            of_occasions(values[:-1], values[-1:]) if all(values) else None,
            endpoint.threshold,
            not_comparable=tuple(reasons),
            undecided="; ".join([*missing, *undecided]) or None,
        )
    name = f"{stored[-1].name} of {baseline.experiment.scenario}/{baseline.experiment.name}"
    name += f" and {len(baseline.earlier)} earlier" if baseline.earlier else ""
    cautions = (*unlike([*before, *other.runs]), *steadiness_notes([together, other]))
    return _Draft(name, other.name, before, other.runs, step, endpoint=deciding, cautions=cautions)


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
    return {key: value for key, value in run.settings.items() if key not in EXPERIMENT_SETTINGS}


def _same_points(one: Variant, other: Variant) -> bool:
    """Whether the two are arms of one point, which took turns; the points of a sweep ran one after the other."""
    return _point(one) == _point(other)


def _point(variant: Variant) -> dict[str, object]:
    return {key: value for key, value in variant.runs[0].manifest.point.items() if key != "seed"}


def _speeds(runs: Sequence[RunFigures]) -> list[float]:
    """Return the mean seconds of the speed probe in each block, in the order in which they ran."""
    by_block: dict[tuple[str, int | None], list[float]] = {}
    for run in sorted(runs, key=lambda run: run.manifest.started_at):
        seconds = run.mean(SPEED_PROBE)
        if seconds is not None:
            by_block.setdefault((run.manifest.experiment, run.manifest.block), []).append(seconds)
    return [fmean(seconds) for seconds in by_block.values()]


_HEADER = ("time", "ratio", "95% interval", "p", "smallest effect", "verdict")
_HOW = {True: "the arms took turns by step", False: "the arms ran one after the other", None: "not interleaved"}


def verdict_tables(judgements: Sequence[Judgement]) -> list[Table]:
    """Return a table for each arm that has two blocks or more: what decides first, stages last."""
    return [_table(judgement) for judgement in judgements if judgement.primary.blocks > 1]


def verdict_sentences(judgements: Sequence[Judgement]) -> list[str]:
    """Return for each arm with two blocks or more what is different, and by how much."""
    sentences = []
    for judgement in judgements:
        if judgement.primary.blocks > 1:
            sentences.append(verdict_sentence(judgement))
            if judgement.unfinished:
                runs = f"{judgement.unfinished} runs of {judgement.base} and {judgement.other}"
                sentences.append(f"{runs} did not finish.")
            sentences += [f"{caution.removesuffix('.')}." for caution in judgement.cautions]
    return sentences


def _table(judgement: Judgement) -> Table:
    primary, effects = judgement.primary, judgement.effects
    title = f"Verdict: {judgement.other} against {judgement.base}, {primary.blocks} blocks"
    notes = [
        f"Ratios are {judgement.other} over {judgement.base}, of mean seconds per measured step. Different: p is "
        "at most 0.05, corrected for all comparisons of the experiment, and the change reaches the threshold: "
        f"{_thresholds(effects)}.",
        "The smallest effect is the change found different in 80% of cases with as many blocks, after all corrections.",
    ]
    if primary.correlation is not None:
        notes.append(
            f"Neighbouring blocks correlate by {primary.correlation:+.2f}; the interval of {primary.label} is "
            f"{primary.widening:.2f} times as wide as that of independent blocks, for what their number leaves open."
        )
    if any(effect.of_step for effect in effects):
        notes.append("In steps: a stage that one of the two lacks, as what it adds to a step of the baseline.")
    if judgement.noise_floor is not None:
        floor = endpoint_of_effect(judgement.noise_floor).interval(judgement.noise_floor)
        notes.append(f"Noise floor (the baseline against itself): {floor}.")
    rows = [_row(effect, primary.blocks) for effect in effects]
    return Table(f"{title} ({_HOW[judgement.alternated]})", _HEADER, tuple(rows), tuple(notes))


def _thresholds(effects: Sequence[Effect]) -> str:
    """Write the thresholds, each with what it holds for."""
    by_threshold: dict[float, list[str]] = {}
    for effect in effects:
        by_threshold.setdefault(effect.threshold, []).append(effect.label)
    return ", ".join(f"{_percent(threshold)} for {listed(names)}" for threshold, names in by_threshold.items())


def _row(effect: Effect, blocks: int) -> tuple[str, ...]:
    p, endpoint = effect.p_adjusted, endpoint_of_effect(effect)
    ratio = NOTHING if effect.ratio is None else f"{effect.ratio:.3f}"
    ends = NOTHING if effect.low is None else f"{effect.low:.3f} to {effect.high:.3f}"
    if endpoint.is_difference:
        ratio, ends = endpoint.point_and_ends(effect)
    return (
        effect.label if effect.blocks == blocks else f"{effect.label} ({effect.blocks} blocks)",
        ratio,
        ends,
        NOTHING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}",
        NOTHING if effect.minimum_effect is None else _percent(effect.minimum_effect),
        effect.verdict.value,
    )


def verdict_sentence(judgement: Judgement) -> str:
    """Return the verdict on what decides with its interval and reason, and everything else that is different."""
    primary = judgement.primary
    endpoint = endpoint_of_effect(primary)
    what = "step time" if primary.name == STEP else endpoint.words
    interval = endpoint.interval(primary)
    text = f"{judgement.other} against {judgement.base}, {what}: {primary.verdict.value}, {interval}"
    if primary.reason and not endpoint.is_difference:  # reasons speak of ratios
        text += f" ({primary.reason})"
    different = [effect for effect in judgement.effects[1:] if effect.verdict is Verdict.DIFFERENT]
    if different:
        text += f". Also different: {', '.join(map(_change_words, different))}"
    return text + "."


def _change_words(effect: Effect) -> str:
    if effect.of_step and effect.ratio is not None:
        share = max(effect.ratio, 1 / effect.ratio) - 1
        return f"{effect.name} ({'adds' if effect.ratio > 1 else 'saves'} {share:.1%} of a step)"
    return f"{effect.label} ({change(effect.ratio)})"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
