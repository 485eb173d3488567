"""Verdicts on an experiment: every arm against the baseline, in what decides, in the whole step and in each stage.

The unit of replication is the block, in which every arm ran once on the same prompts and seed, under the same weather.
Steps are sub-samples of a block, so there is never a verdict from one block. Waits are no stages here: they follow from
what other lanes do, and would only cost the stages power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import log, log1p
from statistics import fmean

import numpy as np

from harness.compare.endpoint import ENDPOINTS, SECONDS_PER_STEP, Endpoint, endpoint_of
from harness.compare.environment import unlike, unlike_threads, why_not_comparable
from harness.compare.experiment import Experiment, Member, arm_named
from harness.compare.fairness import NOTHING_UNEQUAL, Draft, Fairness, Pools, draft_of
from harness.compare.imported import is_of_logs, over_steps
from harness.compare.numbers import listed
from harness.compare.occasions import Baseline
from harness.compare.stats.drift import speed_drift
from harness.compare.stats.estimates import FEWEST_BLOCKS, Estimate, of_blocks, of_occasions
from harness.compare.stats.verdicts import (
    STAGE_THRESHOLD,
    STEP,
    STEP_THRESHOLD,
    Comparison,
    Effect,
    Verdict,
    blocks_needed,
    judge,
)
from harness.compare.steadiness import steadiness_notes, warm_up_reasons
from harness.core.experiment import EXPERIMENT_SETTINGS
from harness.core.trace import in_order, stage_named
from harness.results.rows import SPEED_PROBE

Members = Sequence[Member]
CANNOT_TELL = "cannot tell"
ONE_OCCASION = (
    "the baseline has one occasion, so how far occasions lie apart is unknown: name the folders of 3 at least, better 5"
)
WORTH_JUDGING = 0.001
"""Share of a step that a stage takes in one of two arms at least, where it is judged."""
NOT_EVERYWHERE = "it was not measured on every occasion"
NOT_IN_TURN = (
    "they ran one after the other, and what the machine did meanwhile counts as a change too: repeat in blocks"
)


@dataclass(frozen=True)
class Judgement:
    """One arm against the baseline.

    Attributes:
        effects: what decides first, then the whole step and every stage that either spent time in.
        alternated: whether the arms took turns by step; None where the two were not interleaved at all.
        noise_floor: the baseline against an arm of the same settings, where the experiment has one (A/A).
        no_gate: why no gate may rest on this for the arms' own settings, such as unlike threads; None where it may.
        is_noise_floor: whether this is the baseline against an arm of its own settings.
        unfinished: runs of the two that did not get to their end, and count only where step is set against step.
        fairness: what was unequal between the two.
    """

    base: str
    other: str
    effects: tuple[Effect, ...]
    alternated: bool | None = None
    noise_floor: Effect | None = None
    cautions: tuple[str, ...] = ()
    no_gate: str | None = None
    is_noise_floor: bool = False
    unfinished: int = 0
    fairness: Fairness = NOTHING_UNEQUAL

    @property
    def primary(self) -> Effect:
        """What decides between the arms."""
        return self.effects[0]

    @property
    def step(self) -> Effect:
        """Seconds per training step."""
        return next(effect for effect in self.effects if effect.name == STEP)


def judgements(
    experiment: Experiment,
    baseline: str | None = None,
    threshold: float = STEP_THRESHOLD,
    allowed: Sequence[str] = (),
    endpoint: Endpoint | None = None,
) -> list[Judgement]:
    """Set every arm of an experiment against one of them; all together, so that chance is corrected for once.

    An arm of the baseline's own settings is no candidate for a difference: it is the noise floor, judged by itself.

    Args:
        baseline: the arm's name; None takes the first one.
        threshold: the relative change of the step time that counts in practice.
        allowed: differences that do not stand in the way of a verdict, as of ``why_not_comparable``.
        endpoint: what decides between the arms; None: what the scenario names.

    Raises:
        UserError: the experiment has no such arm.
    """
    deciding, base = endpoint or endpoint_of(experiment.members), arm_named(experiment, baseline)
    drift = speed_drift(_speeds(experiment.members))
    unstable = [] if drift is None or drift.sentence is None else [drift.sentence]
    drafts = [
        _draft(experiment, base, other, threshold, allowed, deciding, unstable)
        for other in experiment.arms
        if other != base
    ]
    arms = iter(_judged([draft for draft in drafts if not draft.judgement.is_noise_floor]))
    judged = [_judged([draft])[0] if draft.judgement.is_noise_floor else next(arms) for draft in drafts]
    if is_of_logs(experiment):
        runs = {arm: members[0] for arm, members in experiment.arms.items()}
        judged = [
            replace(item, effects=tuple(over_steps(effect, runs[base], runs[item.other]) for effect in item.effects))
            for item in judged
        ]
    floor = next((item.primary for item in judged if item.is_noise_floor), None)
    return [item if item.is_noise_floor else replace(item, noise_floor=floor) for item in judged]


def fastest_in_turns(experiment: Experiment, judged: Sequence[Judgement]) -> str | None:
    """Return the fastest synchronous arm, where asynchronous ones are set against a synchronous baseline that it is
    shown to be faster than; None where there is none."""

    def in_turns(arm: str) -> bool:
        return arm in experiment.arms and experiment.arms[arm][0].settings.get("max_lag") == 0

    if not judged or not in_turns(judged[0].base) or all(in_turns(item.other) for item in judged):
        return None
    faster = {
        item.other: item.step.ratio or 1.0
        for item in judged
        if in_turns(item.other) and fair_direction(item) == "faster"
    }
    return min(faster, key=lambda arm: faster[arm], default=None)


@dataclass(frozen=True)
class _Draft:
    """A judgement without its effects, the runs of both arms, and what is to be judged of them."""

    judgement: Judgement
    before: Members
    after: Members
    comparisons: Sequence[Comparison]
    fairness: Draft


def _judged(drafts: Sequence[_Draft]) -> list[Judgement]:
    """Judge the drafts as one family: the arms' primary endpoints, and everything else of all arms."""
    primary = [draft.comparisons[0] for draft in drafts]
    deciding, rest = judge(primary, [item for draft in drafts for item in draft.comparisons[1:]])
    # families of their own, as they take back what is said of the step and claim nothing more
    of_tokens = iter(judge([draft.fairness.per_token for draft in drafts if draft.fairness.per_token])[0])
    of_work = iter(judge([draft.fairness.equal_work for draft in drafts if draft.fairness.equal_work])[0])
    judged, left = list[Judgement](), iter(rest)
    for draft, first in zip(drafts, deciding, strict=True):
        effects = [first, *islice(left, len(draft.comparisons) - 1)]
        effects = [_as_far_as_they_got(effect, draft.before, draft.after) for effect in effects]
        per_token, equal_work = (
            None if item is None else _as_far_as_they_got(next(found), draft.before, draft.after)
            for item, found in ((draft.fairness.per_token, of_tokens), (draft.fairness.equal_work, of_work))
        )
        fairness = replace(
            draft.fairness.fairness,
            per_token=per_token,
            equal_work=equal_work,
            share=None if equal_work is None or equal_work.low is None else draft.fairness.fairness.share,
            smallest=None if effects[0].p_adjusted is None else effects[0].minimum_effect,
            blocks_needed=blocks_needed(effects[0]),
        )
        unfinished = sum(not member.is_completed for member in (*draft.before, *draft.after))
        judged.append(replace(draft.judgement, effects=tuple(effects), unfinished=unfinished, fairness=fairness))
    return judged


def _as_far_as_they_got(effect: Effect, before: Members, after: Members) -> Effect:
    """Take back what runs that did not get to their end cannot show: that they are alike; and where no run of a side
    got to its end, how far the two lie apart."""
    dead = [runs for runs in (before, after) if not any(run.is_completed for run in runs)]
    unfinished = [run for run in (*before, *after) if not run.is_completed]
    if effect.verdict is Verdict.NOT_COMPARABLE or not unfinished:
        return effect
    if effect.verdict is Verdict.DIFFERENT and not dead:
        return effect
    of = len(before) + len(after)
    reason = f"{len(unfinished)} of {of} runs did not finish"
    more = f"; {effect.reason}" if effect.reason and effect.verdict is Verdict.INCONCLUSIVE else ""
    left = replace(effect, verdict=Verdict.INCONCLUSIVE, reason=reason + more, p=None, p_adjusted=None)
    return replace(left, low=None, high=None, minimum_effect=None) if dead else left


def _draft(
    experiment: Experiment,
    base: str,
    other: str,
    threshold: float,
    allowed: Sequence[str],
    endpoint: Endpoint,
    unstable: Sequence[str],
) -> _Draft:
    """Prepare two arms of one experiment."""
    before, after = experiment.arms[base], experiment.arms[other]
    refused = tuple(why_not_comparable(before, after, allowed, one_command=True))
    cautions = (*unstable, *steadiness_notes(experiment, [base, other]))
    judgement = Judgement(
        *(base, other, ()),
        cautions=cautions,
        no_gate=unlike_threads(before, after, allowed),
        is_noise_floor=is_same(before, after),
    )
    of_one_point = _point(before) == _point(after)
    if before[0].manifest.block is None and not of_one_point:  # points of a sweep, one after the other
        values = [_logs(members, SECONDS_PER_STEP) for members in (before, after)]
        apart = of_occasions(*([own] if own else [] for own in values))
        step = Comparison(STEP, apart, threshold, not_comparable=refused, undecided=NOT_IN_TURN)
        fairness = draft_of(before, after, _one_pool(before, after), of_blocks, step, allowed, one_command=True)
        return _Draft(judgement, before, after, [step], fairness)
    alternated = of_one_point and {member.manifest.interleaving for member in (*before, *after)} == {"step"}
    pairs = paired_runs(before, after, with_unfinished=alternated)
    blocks = _blocks(pairs, alternated)
    warming = warm_up_reasons({base: before, other: after})
    undecided = "; ".join([*_unmeasured(len(blocks), len(pairs)), *warming]) or None
    comparisons = _step_and_stages(blocks, threshold)
    comparisons = [replace(item, not_comparable=refused, undecided=undecided) for item in comparisons]
    counted = [(*pair, *counted_steps(*pair, alternated)) for pair in pairs]
    pools = [([(mine, own)], [(theirs, other)]) for mine, theirs, own, other in counted if own.any() and other.any()]
    fairness = draft_of(before, after, pools, of_blocks, comparisons[0], allowed, one_command=True)
    if not endpoint.is_step:
        # a run that diverged has its last reward, and no time
        judged = paired_runs(before, after, with_unfinished=True) if endpoint.is_difference else pairs
        measured = [(endpoint.value(mine), endpoint.value(theirs)) for mine, theirs in judged]
        ratios = [log(theirs / mine) for mine, theirs in measured if mine is not None and theirs is not None]
        reasons = [*_unmeasured(len(ratios), len(judged)), *([] if endpoint.is_difference else warming)]
        reason = "; ".join(reasons) or None
        comparisons.insert(0, Comparison(endpoint.name, of_blocks(ratios), endpoint.threshold, False, refused, reason))
    return _Draft(replace(judgement, alternated=alternated), before, after, comparisons, fairness)


def _unmeasured(blocks: int, of: int) -> list[str]:
    """Say that a figure was not measured in every block that both arms have; the others alone are no verdict."""
    return [f"it was not measured in {of - blocks} of {of} blocks"] if blocks < of else []


def judge_against(
    baseline: Baseline, experiment: Experiment, threshold: float, allowed: Sequence[str]
) -> list[Judgement]:
    """Set the arms of an experiment against a baseline that ran in other commands.

    What the machine did on one occasion and not on another is a difference too, so the interval comes from the spread
    between the baseline's occasions. With a single one there is no verdict.
    """
    return _judged([_draft_against(baseline, experiment, other, threshold, allowed) for other in experiment.arms])


def _draft_against(
    baseline: Baseline, experiment: Experiment, other: str, threshold: float, allowed: Sequence[str]
) -> _Draft:
    """Prepare an arm and the occasions of a baseline."""
    measured, after = baseline.runs_for(other), experiment.arms[other]
    before = [member for members in measured for member in members]
    scenarios = list(dict.fromkeys([*(occasion.scenario for occasion in baseline.occasions), experiment.scenario]))
    reasons = [f"they are runs of the scenarios {listed(scenarios)}"] if len(scenarios) > 1 else []
    refused = (*reasons, *why_not_comparable(before, after, allowed, one_command=False))
    undecided = [ONE_OCCASION] if len(measured) < 2 else warm_up_reasons({"the baseline": before, other: after})
    comparisons = []
    for endpoint in dict.fromkeys((endpoint_of(experiment.members), SECONDS_PER_STEP)):
        *old, new = values = [_logs(members, endpoint) for members in (*measured, after)]
        estimate = of_occasions([own for own in old if own], [new] if new else [])
        reason = "; ".join([*([] if all(values) else [NOT_EVERYWHERE]), *undecided]) or None
        name, limit = (STEP, threshold) if endpoint.is_step else (endpoint.name, endpoint.threshold)
        comparisons.append(Comparison(name, estimate, limit, False, refused, reason))
    newest, earlier = baseline.occasions[-1], len(baseline.occasions) - 1
    name = f"{baseline.arms_for(other)[-1]} of {newest.scenario}/{newest.name}"
    name += f" and {earlier} earlier" if earlier else ""
    pools = [pool for members in measured for pool in _one_pool(members, after)]
    over = partial(_over_occasions, blocks=min(map(len, (*measured, after))))
    fairness = draft_of(before, after, pools, over, comparisons[-1], allowed, one_command=False)
    said = [item.kind for item in fairness.fairness.accidents]
    cautions = (*baseline.cautions(), *unlike([*before, *after], said), *steadiness_notes(experiment, [other]))
    return _Draft(Judgement(name, other, (), cautions=cautions), before, after, comparisons, fairness)


def _over_occasions(ratios: Sequence[float], blocks: int) -> Estimate | None:
    """Estimate from the log-ratios of one new occasion to each old one, of so many blocks at least each; their spread
    is that of occasions."""
    estimate = of_occasions([[-ratio] for ratio in ratios], [[0.0]] if ratios else [])
    return None if estimate is None else replace(estimate, blocks=blocks)


def _one_pool(before: Members, after: Members) -> Pools:
    """Return all steps of two arms as one pool of each; none where an arm has no step that was measured."""
    sides = [[(run, kept) for run in runs if (kept := _timed(run)).any()] for runs in (before, after)]
    return [(sides[0], sides[1])] if all(sides) else []


def _timed(member: Member) -> np.ndarray:
    return member.table.is_measured & (member.table.wall_s > 0)


def _logs(members: Members, endpoint: Endpoint) -> list[float]:
    """Return the log of an endpoint's value of each run that has one, in the order in which they ran; of the time of a
    step, only of runs that got to their end."""
    runs = sorted(members, key=lambda member: member.manifest.started_at)
    values = [endpoint.value(member) for member in runs if member.is_completed or not endpoint.is_step]
    return [log(value) for value in values if value]


def paired_runs(before: Members, after: Members, with_unfinished: bool) -> list[tuple[Member, Member]]:
    """Return the runs of two arms that share seed and block, in the order in which the blocks ran."""
    mine, theirs = (
        {
            (member.manifest.block, member.manifest.seed): member
            for member in members
            if with_unfinished or member.is_completed
        }
        for members in (before, after)
    )
    pairs = [(mine[key], theirs[key]) for key in mine if key in theirs]
    return sorted(pairs, key=lambda pair: (pair[0].manifest.started_at, pair[0].manifest.block or 0))


Seconds = dict[str, float]
"""Mean seconds a step of one run: of the whole ``step``, and of each stage that took any."""


def _blocks(pairs: Sequence[tuple[Member, Member]], alternated: bool) -> list[tuple[Seconds, Seconds]]:
    return [block for pair in pairs if (block := block_seconds(*pair, alternated)) is not None]


def judged_seconds(experiment: Experiment, judgement: Judgement) -> tuple[Seconds, Seconds] | None:
    """Return the mean seconds per step of two arms over what they are judged by: the steps, or the blocks, of both.

    Returns:
        of the baseline and of the other arm; None where they share none, or the baseline ran in another command.
    """
    if judgement.base not in experiment.arms:
        return None
    before, after = (experiment.arms[arm] for arm in (judgement.base, judgement.other))
    alternated = judgement.alternated is True
    blocks = _blocks(paired_runs(before, after, with_unfinished=alternated), alternated)
    if not blocks:
        return None
    names = dict.fromkeys(name for block in blocks for side in block for name in side)
    mine, theirs = (
        {name: fmean(each.get(name, 0.0) for each in side) for name in names} for side in zip(*blocks, strict=True)
    )
    return mine, theirs


def block_seconds(before: Member, after: Member, alternated: bool) -> tuple[Seconds, Seconds] | None:
    """Return the seconds per measured step of two arms in one block; None where no step is left.

    A step in which a stage did not run counts as 0, so that stages add up.
    """
    mine, theirs = counted_steps(before, after, alternated)
    return (_means(before, mine), _means(after, theirs)) if mine.any() and theirs.any() else None


def counted_steps(before: Member, after: Member, alternated: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return which steps of two arms count in one block; one of 0 seconds is of unknown time.

    Where the arms took turns by step, only steps that both have, so that the means share the machine's slow moments.
    """
    mine, theirs = _timed(before), _timed(after)
    if alternated:
        steps, others = before.table.steps["step"], after.table.steps["step"]
        mine, theirs = mine & np.isin(steps, others[theirs]), theirs & np.isin(others, steps[mine])
    return mine, theirs


def _means(member: Member, kept: np.ndarray) -> Seconds:
    columns = {STEP: member.table.wall_s} | {
        stage.value: seconds for stage, seconds in member.stages_s.items() if not stage.is_wait
    }
    return {name: mean for name, seconds in columns.items() if (mean := float(seconds[kept].mean())) > 0}


def _step_and_stages(blocks: Sequence[tuple[Seconds, Seconds]], threshold: float) -> list[Comparison]:
    """Set the whole step and each stage of two arms against the other's, in the order of the stages.

    A stage that both ran in every block has a ratio. One that either lacks in some block has none: what it adds to a
    step is said in units of the baseline's step, with the step's threshold. One below ``WORTH_JUDGING`` in both is not
    judged: whatever becomes of it, nobody would turn a knob for it, and every row costs the others power.
    """
    comparisons, arms = [], list(zip(*blocks, strict=True))
    names = {stage_named(name) for block in blocks for side in block for name in side if name != STEP}
    for name in (STEP, *(stage.value for stage in in_order(names))):
        shares = [sum(side.get(name, 0.0) for side in arm) / sum(side[STEP] for side in arm) for arm in arms]
        if name != STEP and max(shares, default=0.0) < WORTH_JUDGING:
            continue
        seconds = [(before.get(name, 0.0), after.get(name, 0.0)) for before, after in blocks]
        if name == STEP or (seconds and all(mine > 0 and theirs > 0 for mine, theirs in seconds)):
            limit = threshold if name == STEP else max(threshold, STAGE_THRESHOLD)
            ratios = of_blocks([log(theirs / mine) for mine, theirs in seconds])
            comparisons.append(Comparison(name, ratios, limit))
        elif any(mine or theirs for mine, theirs in seconds):
            added = [
                (theirs - mine) / before[STEP] for (mine, theirs), (before, _) in zip(seconds, blocks, strict=True)
            ]
            # less than 0 is the opposite of what as many more seconds would give
            logs = [log1p(share) if share >= 0 else -log1p(-share) for share in added]
            comparisons.append(Comparison(name, of_blocks(logs), threshold, True))
    return comparisons


def is_same(one: Members, other: Members) -> bool:
    """Whether two arms have the same settings, all of them known."""
    mine, theirs = settings_of(one[0]), settings_of(other[0])
    return bool(mine) and mine == theirs


def settings_of(member: Member) -> dict[str, object]:
    """Return what a run's arm decides of its settings; empty where they were not saved."""
    return {key: value for key, value in member.settings.items() if key not in EXPERIMENT_SETTINGS}


def _point(members: Members) -> dict[str, object]:
    return {key: value for key, value in members[0].manifest.point.items() if key != "seed"}


def _speeds(members: Members) -> list[float]:
    """Return the mean seconds of the speed probe in each block, in the order in which they ran."""
    by_block: dict[tuple[str, int | None], list[float]] = {}
    for member in sorted(members, key=lambda member: member.manifest.started_at):
        seconds = member.figures.get(f"mean/{SPEED_PROBE}")
        if seconds is not None:
            by_block.setdefault((member.manifest.experiment, member.manifest.block), []).append(seconds)
    return [fmean(seconds) for seconds in by_block.values()]


def direction(effect: Effect) -> str:
    """Return which way an effect goes: ``faster``, ``slower`` (``better``, ``worse`` of rewards), ``same``, or ``cannot
    tell``."""
    if effect.verdict is Verdict.EQUIVALENT:
        return "same"
    if effect.verdict is not Verdict.DIFFERENT or effect.ratio is None:
        return CANNOT_TELL
    endpoint = ENDPOINTS.get(effect.name)
    words = ("better", "worse") if endpoint is not None and endpoint.is_difference else ("faster", "slower")
    return words[effect.ratio > 1]


def fair_direction(judgement: Judgement) -> str:
    """Return which way the seconds of a step go, as far as they say something of speed: where one arm had more to do by
    accident, faster and slower have to show at equal work too."""
    word, fairness = direction(judgement.step), judgement.fairness
    if fairness.has_equal_work or word not in ("faster", "slower"):
        return word
    at_equal_work = None if fairness.equal_work is None else direction(fairness.equal_work)
    return word if at_equal_work == word else CANNOT_TELL


def effect_word(effect: Effect, judgement: Judgement) -> str:
    """Return which way an effect of a judgement goes: its step as ``fair_direction`` has it."""
    is_step = effect.name == STEP and any(effect is own for own in judgement.effects)
    return fair_direction(judgement) if is_step else direction(effect)


def why_open(effect: Effect) -> str:
    """Return in two words why one cannot tell which way an effect goes; empty where one can, and of few blocks, whose
    number is in the answer."""
    if effect.verdict in (Verdict.DIFFERENT, Verdict.EQUIVALENT):
        return ""
    if effect.verdict is Verdict.NOT_COMPARABLE:
        return "unlike runs"
    if effect.blocks < FEWEST_BLOCKS:
        return ""
    if effect.p_adjusted is None or effect.ratio is None:
        return "see above"  # what is missing for a verdict, which the answer says
    if not effect.shows:
        return "holds 0"
    is_large = abs(log(effect.ratio)) >= log1p(effect.threshold)
    return "chance?" if is_large else f"under {effect.threshold:.0%}"
