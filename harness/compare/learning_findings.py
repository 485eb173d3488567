"""What runs learned, in sentences: final rewards and their order, divergence, the reward target, KL and its onset."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from harness.compare.experiments import CONFIDENCE, FEWEST_SEEDS, Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.learning import REFERENCE_NAMES, Cause, KlFigures, correlation_interval
from harness.compare.numbers import count, listed, number, percent, plural
from harness.compare.rewards import (
    FinalRewards,
    TargetTimes,
    final_rewards,
    reward_difference,
    target_log_rank,
    target_times,
)
from harness.compare.stats import t_interval

MOSTLY = 0.5
"""Share of steps without a signal above which it is said."""


def final_reward_sentence(experiment: Experiment) -> str:
    """Return the final rewards in order, each with its interval over seeds, and what became of the other seeds."""
    finals = _highest_first(experiment)
    if not finals or (len(finals) > 1 and len({item.mean for item in finals}) == 1):  # as of parts that only sleep
        return ""
    alone = "" if any(len(item.by_seed) > 1 for item in finals) else " (one seed each: figures, not a verdict)"
    text = f"Final validation reward, highest first: {'; '.join(map(_final, finals))}{alone}."
    counted = {item.variant.name for item in finals}
    cut = [run for item in finals for run in item.cut]
    cut += [run for variant in experiment.variants if variant.name not in counted for run in variant.runs]
    parts = [f"{_run_name(experiment, run)} ({_until(run)})" for run in cut if run.last is not None]
    return text + (f" Cut before the end, and not counted: {'; '.join(parts)}." if parts else "")


def _highest_first(experiment: Experiment) -> list[FinalRewards]:
    return sorted(final_rewards(experiment), key=lambda item: -item.mean)


def _final(item: FinalRewards) -> str:
    """The mean with its interval over seeds, or the range of too few of them, and how many diverged."""
    values, seeds = list(item.by_seed.values()), len(item.by_seed)
    parts = []
    interval = t_interval(values, CONFIDENCE) if seeds >= FEWEST_SEEDS else None
    if interval is not None:
        parts.append(f"95% interval {interval.low:.2f} to {interval.high:.2f} over {seeds} seeds")
    elif seeds > 1:
        parts.append(f"{min(values):.2f} to {max(values):.2f} over {seeds} seeds")
    parts += _lost(item)
    return f"{item.variant.name} {item.mean:.2f}" + (f" ({', '.join(parts)})" if parts else "")


def _lost(item: FinalRewards) -> list[str]:
    """Say how many seeds diverged, and in which way."""
    found = [run.divergence for run in item.variant.runs if run.divergence and run.manifest.seed in item.by_seed]
    of_all = f"of {plural(len(item.by_seed), 'seed')}"
    counts = {
        "collapsed": sum(not divergence.stopped for divergence in found),
        "stopped at a number that was not finite": sum(divergence.stopped for divergence in found),
    }
    return [f"{seeds} {of_all} {what}" for what, seeds in counts.items() if seeds]


def _run_name(experiment: Experiment, run: RunFigures) -> str:
    variant = next(item for item in experiment.variants if run in item.runs)
    return variant.name if len(variant.runs) == 1 else f"{variant.name}, seed {run.manifest.seed}"


def _until(run: RunFigures) -> str:
    return f"{run.last.reward:.2f} at step {run.last.step}" if run.last else ""


def ranking(experiment: Experiment) -> list[str]:
    """Set the best variant against each other one, over the seeds that both ended with."""
    finals = _highest_first(experiment)
    if not finals:
        return []
    best, *others = finals
    shown, unclear, unequal, pairs = list[str](), list[str](), list[str](), 1
    for other in others:
        name = other.variant.name
        if best.by_seed.keys() != other.by_seed.keys():
            unequal.append(f"{name} ({_seeds(other)})")
            continue
        found = reward_difference(experiment, other.variant, best.variant)
        if found is None:
            continue
        pairs = found.pairs
        if found.low > 0:
            shown.append(f"{name} (by {found.mean:.2f}, {found.low:.2f} to {found.high:.2f})")
        else:
            unclear.append(f"{name} ({found.mean:+.2f}, {found.low:+.2f} to {found.high:+.2f})")
    texts = []
    if shown:
        texts.append(f"The final reward of {best.variant.name} is shown to be higher than that of {listed(shown)}.")
    if unclear:
        texts.append(f"No difference is shown between {best.variant.name} and {listed(unclear)}.")
    if texts:
        texts[-1] += f" (Paired by seed; 95% intervals{for_all(pairs) or ' for the comparison'}.)"
    if unequal:
        texts.append(
            f"No order is claimed between {best.variant.name} ({_seeds(best)}) and {listed(unequal)}: they did not end "
            "with the same seeds."
        )
    return texts


def _seeds(item: FinalRewards) -> str:
    seeds = sorted(item.by_seed)
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"


def for_all(pairs: int) -> str:
    """Say for how many pairs of variants an interval holds, where there are several."""
    return f" for all {pairs} pairs of variants together" if pairs > 1 else ""


def rewards_clause(experiment: Experiment, base: Variant, other: Variant) -> str:
    """Set the final rewards of two variants side by side, with their difference where seeds allow it."""
    by_name = {item.variant.name: item for item in final_rewards(experiment)}
    before, after = by_name.get(base.name), by_name.get(other.name)
    if before is None or after is None:
        return ""
    text = f"final validation reward {_range(after)} against {_range(before)}"
    found = reward_difference(experiment, base, other)
    if found is None:
        return text
    ends = f"{found.low:+.3f} to {found.high:+.3f}{for_all(found.pairs)}"
    return f"{text} (difference {found.mean:+.3f}, 95% interval {ends}, t over n = {found.seeds} paired seeds)"


def _range(item: FinalRewards) -> str:
    low, high = f"{min(item.by_seed.values()):.2f}", f"{max(item.by_seed.values()):.2f}"
    return low if low == high else f"{item.mean:.2f} [{low}, {high}]"


def divergence_sentences(experiment: Experiment) -> list[str]:
    """Say which runs diverged at which training step, and how that shows."""
    stopped, collapsed, finite = list[str](), list[str](), True
    for variant in experiment.variants:
        for run in variant.runs:
            if run.divergence is not None:
                name = variant.name if len(variant.runs) == 1 else f"{variant.name} (seed {run.manifest.seed})"
                (stopped if run.divergence.stopped else collapsed).append(f"{name} at step {run.divergence.step}")
                finite = finite and (run.divergence.stopped or not run.non_finite)
    texts = []
    if stopped:
        texts.append(f"Diverged: {listed(stopped)}. There a number was not finite, and the run had to stop.")
    if collapsed:
        texts.append(
            f"Diverged: {listed(collapsed)}. From there to the end every reward, of training and validation, "
            f"was at most a tenth of the run's best validation reward.{' All numbers stayed finite.' if finite else ''}"
        )
    return texts


CAUSES: dict[Cause, str] = {
    "failed": "no group had a reward",
    "equal": "within every group the rewards were equal, so that every advantage was 0",
    "cut": "every response was cut at max_tokens and left out of the loss",
    "weight": "every response had the advantage 0 or was left out of the loss",
    "gradient": "the gradient was 0, although advantages were not",
}


def signal_sentence(variant: Variant) -> str:
    """Say where most training steps, or most rollouts, had nothing to learn from, and why."""
    known = [(run, run.learning.signal) for run in variant.runs if run.learning and run.learning.signal]
    said = [found for _, found in known if found.missing > MOSTLY]
    if not said:
        return _few_weighed(variant, [found.weighed for _, found in known if found.weighed is not None])
    why = " or ".join(CAUSES[cause] for cause in dict.fromkeys(cause for found in said for cause in found.causes))
    moved = sum(found.moved for found in said)
    still = ""
    if moved:
        still = f" In {plural(moved, 'such step')} the optimizer moved the weights all the same: by its averages of "
        still += "earlier gradients, by weight decay, or for KL or entropy."
    if all(found.missing == 1.0 for found in said):
        which = variant.name if len(said) == len(variant.runs) else f"{variant.name}, {_of_seeds(said, variant)},"
        return f"{which} had nothing to learn from: in every training step, {why}.{still}"
    shares = [100 * found.missing for found in said]
    much = f"{min(shares):.0f}%" if len(shares) == 1 else f"{min(shares):.0f} to {max(shares):.0f}%"
    which = "" if len(variant.runs) == 1 else f" ({_of_seeds(said, variant)})"
    return f"{variant.name} had nothing to learn from in {much} of its training steps{which}: there, {why}.{still}"


def _few_weighed(variant: Variant, shares: Sequence[float]) -> str:
    if not shares or fmean(shares) >= 1 - MOSTLY:
        return ""
    return (
        f"{variant.name} learned from {percent(fmean(shares))} of the responses that it trained on: the others had the "
        "advantage 0, as in groups of equal rewards, or were left out of the loss."
    )


def _of_seeds(runs: Sequence[object], variant: Variant) -> str:
    return f"{len(runs)} of {plural(len(variant.runs), 'seed')}"


def target_sentence(experiment: Experiment) -> str:
    """Say after how many seconds and training steps each variant was first seen at the reward target."""
    found = [(variant.name, target_times(variant)) for variant in experiment.variants]
    known: list[tuple[str, TargetTimes]] = [(name, times) for name, times in found if times is not None]
    if len({times.target for _, times in known}) != 1:
        return ""
    target = known[0][1].target
    if not any(times.reached for _, times in known):
        return f"No variant was seen at validation reward {target:g}."
    seconds = "; ".join(f"{name} {times.text()}" for name, times in known)
    steps = "; ".join(
        f"{name} {times.text(seconds=False, with_counts=False)}"
        for name, times in known
        if times.reached and times.within is None
    )
    text = f"Seconds until validation reward {target:g} was first seen: {seconds}."
    return f"{text} In training steps: {steps}." if steps else text


def target_clause(experiment: Experiment, base: Variant, other: Variant) -> str:
    """Set the times to the reward target of two variants side by side, with a test where there are seeds enough;
    nothing where evaluations are too few to know one of them."""
    mine, theirs = target_times(other), target_times(base)
    if mine is None or theirs is None or mine.target != theirs.target or mine.within or theirs.within:
        return ""
    if not mine.reached and not theirs.reached:
        return f"neither reached reward {mine.target:g}"
    text = f"seconds to reward {mine.target:g}: {mine.text()} against {theirs.text()}"
    test, comparisons = target_log_rank(base, other), len(experiment.variants) - 1
    if test is None:
        return text
    corrected = f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
    return f"{text} (log-rank p = {min(1.0, comparisons * test.p):.2g}{corrected})"


def kl_sentence(variant: Variant) -> str:
    """Say how KL to the reference grew, from the first run that monitored it."""
    for run in variant.runs:
        if run.kl is not None:
            break
    else:
        return ""
    kl, end = run.kl, run.at_end(run.kl.name)
    reference, estimator = REFERENCE_NAMES.get(str(kl.reference), "reference"), kl.name.rpartition("_")[2]
    text = f"{variant.name}: KL of the policy to the {reference} ({estimator}, per token)"
    if end is not None:
        text += f" ends at {number(end)}"
    if kl.growth is not None:
        curve, line = f"{kl.growth.r_squared:.2f}", f"{kl.growth.linear_r_squared:.2f}"
        shapes = {
            "linear": f"grows about linearly (R2 {line})",
            "exponential": f"bends upwards (exponential fit: R2 {curve}; line: {line})",
            "saturating": f"levels off (saturating fit: R2 {curve}; line: {line})",
            "falling": f"falls over the run (best fit: R2 {curve})",
            "no clear trend": f"shows no clear trend (best fit: R2 {curve})",
        }
        text += f" and {shapes[kl.growth.shape]}"
    if kl.with_reward is not None:
        value, pairs = kl.with_reward
        low, high = correlation_interval(value, pairs)
        text += f"; correlation with validation reward {value:+.2f} (95% interval {low:+.2f} to {high:+.2f}) over "
        text += f"{pairs} evaluations"
    if len(variant.runs) > 1:
        text += f"; seed {run.manifest.seed} only, of {len(variant.runs)}"
    if run.behaviour_is_older:
        text += "; biased, since the sampling policy is an older one"
    return text + "."


def onset_sentence(variant: Variant) -> str:
    """Say from which step on KL grew faster, over the seeds, and what the validation reward did from there on."""
    judged = [run.kl for run in variant.runs if run.kl is not None and run.kl.judged]
    onsets = [kl.onset for kl in judged if kl.onset is not None]
    if not judged:
        return ""
    of_all = f" in {len(onsets)} of {plural(len(judged), 'seed')}" if len(variant.runs) > 1 else ""
    if 0 < len(judged) < len(variant.runs):
        of_all += " that can be judged"
    if not onsets:
        return f"{variant.name}: no onset of faster growth of KL was found{of_all}; smooth curves describe it as well."
    steps = [onset.step for onset in onsets]
    when = f"step {count(steps[0])}" if len(steps) == 1 else f"step {sum(steps) / len(steps):.1f} on average"
    faster = [number(min(onset.after / onset.before, 1e6)) for onset in onsets if onset.before > 0]
    times = f", {faster[0]} times as fast as before" if len(onsets) == 1 and faster else ""
    return (
        f"{variant.name}: KL grows faster from {when}{_interval(steps, '.1f')} on{of_all}{times}. {_after(judged)}"
    ).rstrip()


def _after(judged: Sequence[KlFigures]) -> str:
    """Say how the reward of the evaluations after the onset compares with the best one before it."""
    changes = [kl.reward_after for kl in judged if kl.reward_after is not None]
    if not changes:
        return "There is no evaluation on both sides of it."
    values = [change for change, _ in changes]
    seeds = f" of {len(values)} seeds" if len(values) > 1 else ""
    looks = f"{plural(sum(looks for _, looks in changes), 'evaluation')} after it{seeds}"
    mean = sum(values) / len(values)
    return f"Validation reward of the {looks} less the best one before: {mean:+.3f}{_interval(values, '+.3f')}."


def _interval(values: Sequence[float], form: str) -> str:
    """The 95% interval of the mean over seeds, or why there is none; nothing for a single one."""
    if len(values) < 2:
        return ""
    interval = t_interval(values, CONFIDENCE) if len(values) >= FEWEST_SEEDS else None
    if interval is None:
        return f" (from {format(min(values), form)} to {format(max(values), form)}; too few seeds for an interval)"
    return f" (95% interval {format(interval.low, form)} to {format(interval.high, form)})"
