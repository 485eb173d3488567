"""What runs learned, in sentences: final rewards and their order, divergence, the reward target."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from harness.compare.experiments import CONFIDENCE, FEWEST_SEEDS, Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.learning import Cause
from harness.compare.numbers import listed, percent, plural
from harness.compare.rewards import (
    FinalRewards,
    final_rewards,
    reward_difference,
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
    """Say after how many training steps and seconds each variant was first seen at the reward target."""
    times = {variant.name: target_times(variant) for variant in experiment.variants}
    known = {name: each for name, each in times.items() if each is not None}
    if len(targets := {each.target for each in known.values()}) != 1:
        return ""
    (target,) = targets
    if not any(each.reached for each in known.values()):
        return f"No variant was seen at validation reward {target:g}."
    texts = [f"{name}, {each.text()}" for name, each in known.items()]
    return f"Reached validation reward {target:g}: {'; '.join(texts)}."


def target_clause(experiment: Experiment, base: Variant, other: Variant) -> str:
    """Set the times to the reward target of two variants side by side; nothing where evaluations are too few to know
    one of them."""
    mine, theirs = target_times(other), target_times(base)
    if mine is None or theirs is None or mine.target != theirs.target or mine.within or theirs.within:
        return ""
    if not mine.reached and not theirs.reached:
        return f"neither reached reward {mine.target:g}"
    return f"reached reward {mine.target:g}: {mine.text()} against {theirs.text()}"
