"""What an experiment answers: which arm is faster, and which has the higher final reward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, log, log1p
from statistics import fmean

from harness.compare.endpoint import REWARD_THRESHOLD, effect_in_words, endpoint_of_effect
from harness.compare.environment import DIFFER_IN, DIFFERENCES
from harness.compare.experiment import FEWEST_SEEDS, SIMULATED, Experiment, Member
from harness.compare.imported import NOT_REPEATED
from harness.compare.judging import (
    CANNOT_TELL,
    NOT_IN_TURN,
    Judgement,
    direction,
    fair_direction,
    fastest_in_turns,
    judgements,
)
from harness.compare.numbers import count, listed, number, over_runs, percent, plural, some
from harness.compare.remarks.syncs import sweep_points, sweep_sentences
from harness.compare.stats.estimates import FEWEST_BLOCKS
from harness.compare.stats.intervals import CONFIDENCE, POWER, t_interval, t_quantile
from harness.compare.stats.verdicts import STEP, Effect, Verdict, blocks_needed
from harness.core.experiment import MOST_BLOCKS
from harness.results.manifest import VALIDATION_PROMPTS

MOST_ARMS = 4
"""That are set against the baseline in sentences; of more, those that differ most."""
ALIKE = 0.0005
"""A smaller change is written as 0.0%."""
NEEDS_BLOCKS = f"A verdict needs {FEWEST_BLOCKS} blocks"
NOISY = 2.0
"""An interval that reaches a change by this factor says nothing."""


def answer(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Set each arm against the baseline, in time and reward; say of a single arm how fast it is."""
    if points := sweep_points(experiment):
        yield sweep_sentences(points)[0]
        return
    arms = [item for item in judged if not item.is_noise_floor] or list(judged)
    known = [item for item in arms if item.primary.ratio is not None or item.primary.verdict is Verdict.NOT_COMPARABLE]
    shown = sorted(known, key=lambda item: -abs(log(item.primary.ratio or 1.0)))[:MOST_ARMS]
    yield from (_against(experiment, item) for item in known if item in shown)
    if len(known) > len(shown):
        yield f"The table has more: these {len(shown)} of {len(known)} arms differ most."
    if arms and not known:
        silent = [arm for arm in experiment.arms if experiment.mean(arm, "step_s") is None]
        of = f" of {listed(some(silent))}" if silent else " of arms that share a block"
        why = _unfinished(experiment, arms[0]) or f"no {endpoint_of_effect(arms[0].primary).words} are known{of}"
        yield f"Cannot tell which arm is faster: {why}."
    if not arms:
        yield from (_alone(experiment, arm) for arm in [*experiment.arms][:MOST_ARMS])


def fairest(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Set asynchronous arms against the fastest synchronous one too, where that is not the baseline."""
    best = fastest_in_turns(experiment, judged)
    for item in [] if best is None else judgements(experiment, best):
        if experiment.arms[item.other][0].settings.get("max_lag") != 0 and item.step.low is not None:
            named = replace(item, base=f"{best}, the fastest synchronous arm")
            yield _sentence(_step_words(named) or _verdict_words(item.step, named.base, item.other, brief=True))


def _against(experiment: Experiment, item: Judgement) -> str:
    """Set an arm against the baseline in one sentence: what decides first, then reward or time beside it."""
    decides, names = item.primary, (item.base, item.other)
    if decides.verdict is Verdict.NOT_COMPARABLE:
        return _sentence(f"{item.other} and {item.base} cannot be compared: {_refused(item)}")
    unfinished, is_reward = _unfinished(experiment, item), endpoint_of_effect(decides).is_difference
    rewards = reward_words(experiment, *names, with_names=is_reward)
    verdict = _step_words(item) if decides.name == STEP else ""
    verdict = verdict or _verdict_words(decides, *names, with_reason=not unfinished)
    parts = [rewards or verdict, unfinished] if is_reward else [verdict, unfinished, rewards]
    beside = (effect for effect in item.effects[1:] if effect.name == STEP and direction(effect) != CANNOT_TELL)
    parts += [_step_words(item) or _verdict_words(effect, *names) for effect in beside]
    return _sentence("; ".join(filter(None, parts)))


def _refused(item: Judgement) -> str:
    """Say why two arms cannot be compared; of what the answer begins with, the name alone."""
    reasons = [each for each in item.fairness.refusals if not each.startswith(DIFFER_IN)]
    kinds = [each.kind for each in item.fairness.accidents if each.kind in DIFFERENCES]
    if not kinds or len(reasons) == len(item.fairness.refusals):
        return item.primary.reason or ""
    return "; ".join([f"not the same {listed(kinds)}", *reasons])


def _step_words(item: Judgement) -> str:
    """Say of a difference per step that is none of speed, since work was unequal, what it is; empty of any other."""
    if direction(item.step) not in ("faster", "slower") or fair_direction(item) != CANNOT_TELL:
        return ""
    ratio, ends = item.step.ratio or 1.0, endpoint_of_effect(item.step).ends(item.step)
    more = f"{abs(ratio - 1):.1%} {'more' if ratio > 1 else 'less'}"
    over = f"{ends}, {plural(item.step.blocks, 'block')}"
    return f"{item.other} takes {more} per step than {item.base} ({over}), with unequal work"


def _sentence(text: str) -> str:
    starts_with_arm = not text.startswith((CANNOT_TELL, "no difference"))
    return f"{text[:1] if starts_with_arm else text[:1].upper()}{text[1:]}."


def _unfinished(experiment: Experiment, item: Judgement) -> str:
    """Say which of two arms did not finish; empty where both did."""
    parts = []
    for arm in (item.base, item.other):
        runs = experiment.arms.get(arm, ())
        if cut := sum(not member.is_completed for member in runs):
            parts.append(f"{'' if len(runs) == 1 else f'{cut} of {len(runs)} runs of '}{arm} did not finish")
    return " and ".join(parts)


def _verdict_words(effect: Effect, base: str, other: str, with_reason: bool = True, brief: bool = False) -> str:
    """Say the verdict on what decides; where it is open, why, and unless ``brief`` how many blocks would tell."""
    if effect.verdict is Verdict.NOT_COMPARABLE or effect.ratio is None:
        return f"{other} and {base} cannot be compared: {effect.reason}"
    endpoint = endpoint_of_effect(effect)
    if effect.verdict is not Verdict.INCONCLUSIVE or endpoint.is_difference:
        return effect_in_words(effect, base, other)
    what = "per step" if effect.name == STEP or endpoint.is_step else f"in {endpoint.words}"
    ends, is_of_steps = endpoint.ends(effect), effect.reason == NOT_REPEATED
    if ends is None and base.endswith(SIMULATED) and other.endswith(SIMULATED):
        return f"{other} was {_pace(effect.ratio)} {base} {what} (one run each)"  # of no machine, whose noise there is
    if ends is None or is_of_steps:
        runs = "one run each" if effect.blocks < 2 else f"{effect.blocks} runs each"
        over = f" ({ends} over their steps)" if is_of_steps and ends else ""
        has_reason = effect.blocks > 1 and with_reason and effect.reason not in (None, NOT_IN_TURN)
        why = f"; {effect.reason}" if has_reason else ""
        return f"{CANNOT_TELL} {other} from {base} {what}: {endpoint.change(effect.ratio)}{over} in {runs}{why}"
    text = f"{CANNOT_TELL} whether {other} is faster {what} than {base}"
    if effect.blocks < FEWEST_SEEDS:  # an interval of two says nothing
        return f"{text}: {endpoint.change(effect.ratio)} in {effect.blocks} blocks; {NEEDS_BLOCKS.lower()}"
    if min(effect.low or 0.0, 1 / (effect.high or 1.0)) < 1 / NOISY:
        few = f"; {NEEDS_BLOCKS.lower()}" if effect.blocks < FEWEST_BLOCKS else ""
        return f"{text}: unknown (blocks too noisy){few}"
    is_large = abs(log(effect.ratio)) >= log1p(effect.threshold)
    if effect.shows and not is_large:
        word = "faster" if effect.ratio < 1 else "slower"
        text = f"{CANNOT_TELL} whether {other} is {percent(endpoint.limit)} {word} {what} than {base}"
    text += f": {endpoint.change(effect.ratio)} ({ends}, {effect.blocks} blocks)"
    needed = blocks_needed(effect)
    many = "" if needed is None else f"about {needed}" if needed <= MOST_BLOCKS else f"more than {count(MOST_BLOCKS)}"
    if effect.blocks < FEWEST_BLOCKS:
        more = f", and to tell {percent(endpoint.limit)} with such a spread {many}" if many else ""
        return f"{text}; {NEEDS_BLOCKS.lower()}{more}"
    if effect.p_adjusted is None or effect.minimum_effect is None:
        return f"{text}; {effect.reason}" if with_reason else text
    text += ", which may be chance among so many comparisons" if effect.shows and is_large else ""
    if brief:
        return text if effect.shows else f"{text}; the interval holds 0"
    reach = f"such blocks tell differences from {percent(effect.minimum_effect)} on"
    return f"{text}; {reach}, and {percent(endpoint.limit)} takes {many} of them"


def _pace(ratio: float) -> str:
    if abs(ratio - 1) < ALIKE:
        return "as fast as"
    if 0.5 < ratio < NOISY:
        return f"{abs(ratio - 1):.1%} {'faster' if ratio < 1 else 'slower'} than"
    return f"{max(ratio, 1 / ratio):.1f} times as {'fast' if ratio < 1 else 'slow'} as"


def _alone(experiment: Experiment, arm: str) -> str:
    """Say how long a step of an arm without a baseline takes, and what became of its reward."""
    seconds, members = experiment.range(arm, "step_s"), experiment.arms[arm]
    if seconds is None:
        return f"{arm}: {', '.join(dict.fromkeys(member.run.status for member in members))}, no step was measured."
    text = f"{arm}: {number(seconds.value)} s per step"
    if len(members) > 1:
        text += f" ({number(seconds.low)} to {number(seconds.high)} in {plural(len(members), 'run')})"
    first, last = experiment.mean(arm, "reward_first"), experiment.values(arm, "reward_last")
    if first is not None and experiment.mean(arm, "reward_last_step"):
        prompts = None if members[0].figures["is_imported"] else experiment.mean(arm, "prompts")
        error = interval_words(last) if len(last) > 1 else _of_prompts(last[0], prompts) if prompts else ""
        text += f"; validation reward {first:.2f} to {fmean(last):.2f}{error} in {plural(members[0].steps, 'step')}"
    return text + "."


def _of_prompts(reward: float, prompts: float) -> str:
    """Say how far a reward between 0 and 1 may be off by the draw of its prompts: 1.96 sqrt(r (1 - r) / n) at most."""
    error = 1.96 * math.sqrt(max(0.0, reward * (1 - reward)) / prompts)
    return f" ({count(prompts)} prompts{f': +-{error:.2f}' if error else ''})"


def interval_words(values: Sequence[float]) -> str:
    """Return the 95% interval of a mean over seeds in brackets; the range of two, nothing of one."""
    interval = t_interval(values, CONFIDENCE) if len(values) >= FEWEST_SEEDS else None
    if interval is not None:
        return f" (95% interval {interval.low:.2f} to {interval.high:.2f}, {len(values)} seeds)"
    return f" ({min(values):.2f} to {max(values):.2f}, {len(values)} seeds)" if len(values) > 1 else ""


def noise_floor(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say how far an arm of the baseline's own settings lies from it."""
    for item in judged:
        if item.is_noise_floor and item.primary.ratio is not None and len(judged) > 1:
            endpoint = endpoint_of_effect(item.primary)
            shown, ends = endpoint.change(item.primary.ratio), endpoint.ends(item.primary)
            shown += f" ({ends})" if ends else ""
            yield f"{item.other} has the settings of {item.base}: the {shown} between them is the machine's noise."


# ---- final rewards over seeds


def final_rewards(experiment: Experiment) -> dict[str, dict[int, float]]:
    """Return the final reward of each seed of each arm that has any, the arms in their order.

    A run that diverged counts with what is left of its reward. One that was cut says nothing of what its reward would
    have been.
    """
    finals = {
        arm: {
            member.manifest.seed: reward
            for member in members
            if (reward := member.figures.get("reward_final")) is not None
        }
        for arm, members in experiment.arms.items()
    }
    return {arm: by_seed for arm, by_seed in finals.items() if by_seed}


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean difference of final rewards with the ends of its 95% interval, over ``seeds`` pairs of runs.

    Attributes:
        pairs: of arms for which the intervals hold together.
    """

    mean: float
    low: float
    high: float
    seeds: int
    pairs: int


def reward_difference(experiment: Experiment, base: str, other: str) -> Difference | None:
    """Return the final reward of ``other`` minus that of ``base``, paired by seed; the one source of such claims.

    The interval is Student's for paired samples, at Bonferroni's level for all pairs of arms: which two are set against
    each other is often read from the same rewards. It is not widened for a machine's slow spells, as seeds have none.

    Returns:
        None where the two did not end with the same seeds, or with fewer than ``FEWEST_SEEDS``; and where they were
        validated on different prompts.
    """
    members = [member for arm in (base, other) for member in experiment.arms.get(arm, ())]
    prompts = {known["sha256"] for member in members if (known := member.manifest.inputs.get(VALIDATION_PROMPTS))}
    finals = final_rewards(experiment)
    before, after = finals.get(base, {}), finals.get(other, {})
    if before.keys() != after.keys() or len(before) < FEWEST_SEEDS or len(prompts) > 1:
        return None
    pairs = max(1, math.comb(len(finals), 2))
    interval = t_interval([after[seed] - before[seed] for seed in before], 1 - (1 - CONFIDENCE) / pairs)
    assert interval is not None
    return Difference(interval.value, interval.low, interval.high, len(before), pairs)


def reward_words(experiment: Experiment, base: str, other: str, with_names: bool = True) -> str:
    """Say whether the final rewards of two arms differ, and where that is open how many seeds would tell.

    Empty without an interval, and of rewards that are the same to the last digit, as of parts that only sleep.
    """
    known = reward_difference(experiment, base, other)
    if known is None or known.low == known.high == 0:
        return ""
    shown = f"{known.mean:+.2f}, {known.low:+.2f} to {known.high:+.2f}, {known.seeds} seeds"
    if known.low > 0 or known.high < 0:
        word = "higher" if known.low > 0 else "lower"
        what = f"the final reward of {other} is {word} than that of {base}" if with_names else f"final reward {word}"
        return f"{what} ({shown})"
    between = f" between {other} and {base}" if with_names else ""
    if max(-known.low, known.high) <= REWARD_THRESHOLD:
        return f"same final reward{between} ({shown})"
    # seeds that show a difference of the threshold in 80% of experiments, with this spread
    level = t_quantile(1 - (1 - CONFIDENCE) / known.pairs / 2, known.seeds - 1)
    reach = (1 + t_quantile(POWER, known.seeds - 1) / level) * (known.high - known.low) / 2
    seeds = ceil(known.seeds * (reach / REWARD_THRESHOLD) ** 2)
    needed = f"about {seeds}" if seeds <= MOST_BLOCKS else f"more than {count(MOST_BLOCKS)}"
    return f"no difference in reward shown{between} ({shown}; to see {REWARD_THRESHOLD} takes {needed} seeds)"


def reward_steps(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say where the last validation rewards of the arms are of unlike training steps."""
    steps = {arm: experiment.range(arm, "reward_last_step") for arm in experiment.arms}
    known = {arm: over_runs(at, count) for arm, at in steps.items() if at is not None}
    if len({*known.values()}) > 1:
        words = some([f"{arm} {at}" for arm, at in known.items()])
        yield f"The last validation rewards are of unlike steps: {listed(words)}."


def rewards(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Give the final rewards in order, each with its interval over seeds."""
    finals = final_rewards(experiment)
    means = {arm: fmean(by_seed.values()) for arm, by_seed in finals.items()}
    if len(experiment.arms) == 1 or not finals or (len(finals) > 1 and len({*means.values()}) == 1):
        return
    best, *others = sorted(finals, key=lambda arm: -means[arm])
    words = []
    for arm in (best, *others):
        runs = [each for each in experiment.arms[arm] if each.manifest.seed in finals[arm]]
        lost = sum(each.figures["divergence"] is not None for each in runs)
        error = interval_words([*finals[arm].values()])
        words.append(f"{arm} {means[arm]:.2f}{error}{f', {lost} diverged' if lost else ''}")
    text = f"Final validation reward: {'; '.join(some(words))}"
    text += " (one seed each)" if max(map(len, finals.values())) == 1 else ""
    unequal = [arm for arm in others if finals[arm].keys() != finals[best].keys()]
    if unequal:
        text += f"; {best} and {listed(some(unequal))} did not end with the same seeds, so their order is open"
    yield f"{text}."


def named_runs(experiment: Experiment) -> Iterator[tuple[str, Member]]:
    """Yield each run, named by its arm, and by its seed where the arm has several runs."""
    for arm, members in experiment.arms.items():
        yield from ((arm if len(members) == 1 else f"{arm} (seed {each.manifest.seed})", each) for each in members)


def only_sleeps(member: Member) -> bool:
    """Whether the parts of a run sleep in place of working: then it has no rewards."""
    return bool(member.run.setting("model.type") == "paced")


def target(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say by how many seeds of each arm the reward target was reached, and at which step."""
    targets = {member.figures.get("reward_target") for member in experiment.members}
    (value,) = targets if len(targets) == 1 else (None,)
    if value is None or len(experiment.members) == 1 or all(map(only_sleeps, experiment.members)):
        return
    if not experiment.has("target_step"):
        yield f"No run reached validation reward {value:g}."
        return
    text = f"Validation reward {value:g}: {'; '.join(some([_reached(experiment, arm) for arm in experiment.arms]))}"
    within = [steps for arm in experiment.arms for steps in experiment.values(arm, "target_within")]
    yield text + (f"; evaluations are up to {plural(round(max(within)), 'step')} apart." if within else ".")


def _reached(experiment: Experiment, arm: str) -> str:
    seeds, at = len(experiment.arms[arm]), experiment.range(arm, "target_step")
    text = arm if seeds == 1 else f"{arm} {len(experiment.values(arm, 'target_step'))} of {seeds} seeds"
    if at is None:
        return f"{arm} not reached" if seeds == 1 else text
    steps = f"{at.low:.0f}" if at.low == at.high else f"{at.low:.0f} to {at.high:.0f}"
    return f"{text} {'by' if experiment.values(arm, 'target_within') else 'at'} step {steps}"


def diverged(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say which runs diverged at which training step, and how that shows."""
    runs: dict[bool, list[str]] = {True: [], False: []}
    for name, member in named_runs(experiment):
        if (lost := member.figures["divergence"]) is not None:
            runs[lost.stopped].append(f"{name} at step {lost.step}")
    for stopped, names in runs.items():
        how = "a number was not finite and the run had to stop"
        if not stopped:
            how = "from there on every reward was at most a tenth of the run's best validation reward"
        if names:
            yield f"Diverged: {listed(some(names))}: {how}."
