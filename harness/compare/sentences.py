"""What the figures say, in sentences computed from them. No verdicts: those need repeated blocks and a test."""

from __future__ import annotations

from collections.abc import Callable

from harness.compare import numbers
from harness.compare.experiments import Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.growth import Growth
from harness.compare.learning_findings import answers, learning_details
from harness.compare.off_policy import off_policy_findings
from harness.compare.pairs import paired_difference
from harness.compare.sweep_tables import sweep_findings, sweep_points
from harness.compare.transports import sync_findings
from harness.core.trace import Stage

RISE_WORTH_SAYING = 1.2  # of response length, last over first
FALL_WORTH_SAYING = 0.1  # of validation reward, from best to last
PEAK_WORTH_SAYING = 10.0  # of gradient norm, over its median

Read = Callable[[RunFigures], float | None]


def findings(experiment: Experiment) -> list[str]:
    """Return what the experiment shows: the answers, then time, cost and gain of each, syncs, lag, KL, upsets."""
    if sweep_points(experiment):
        return sweep_findings(experiment)
    base, *others = experiment.variants
    said = [*answers(experiment), *_largest_stage(experiment), *(_against(base, other) for other in others)]
    said += [*sync_findings(experiment), *off_policy_findings(experiment)]
    for variant in experiment.variants:
        said += [*_gain(variant), *_kl(variant), *_upsets(variant)]
    return [*said, *_length(experiment), *learning_details(experiment)]


def _largest_stage(experiment: Experiment) -> list[str]:
    """Name the stage with the largest share of the loop in each variant, variants of the same stage together."""
    largest: dict[Stage, list[str]] = {}
    for variant in experiment.variants:
        shares = _mean_shares(variant)
        if shares:
            stage = max(shares, key=lambda item: shares[item])
            several = ", added over lanes" if shares[stage] > 1 else ""
            largest.setdefault(stage, []).append(f"{variant.name} ({100 * shares[stage]:.0f}% of the loop{several})")
    if not largest:
        return []
    parts = [f"{stage.value} in {numbers.listed(names)}" for stage, names in largest.items()]
    return [f"The largest stage is {', '.join(parts)}."]


def _mean_shares(variant: Variant) -> dict[Stage, float]:
    stages = [stage for stage in Stage if not stage.is_wait]
    totals = {
        stage: sum(run.stages[stage].share for run in variant.runs if stage in run.stages) / len(variant.runs)
        for stage in stages
    }
    return {stage: share for stage, share in totals.items() if share > 0}


def _against(base: Variant, other: Variant) -> str:
    """Set a variant beside the first one: cost, reward with its length, clip fraction, time to the target."""
    clauses = [
        _cost(base, other),
        _pair(base, other, last_reward, "last validation reward {} against {}", _two) + _interval(base, other),
        _pair(base, other, _last_length, "response length {} against {} tokens", numbers.number),
        _pair(base, other, lambda run: run.mean("clip_fraction"), "clip fraction {} against {}", _two),
        _pair(base, other, lambda run: run.optimizer_steps, "{} against {} optimizer steps", numbers.count),
        _target(base, other),
    ]
    return f"{other.name} against {base.name}: {'; '.join(clause for clause in clauses if clause)}."


def _cost(base: Variant, other: Variant) -> str:
    mine, theirs = other.spread(lambda run: run.step_s), base.spread(lambda run: run.step_s)
    if mine is None or theirs is None or theirs.mean <= 0:
        return ""
    times = f"{numbers.mean_range(mine, numbers.number)} s against {numbers.mean_range(theirs, numbers.number)} s"
    return f"{mine.mean / theirs.mean:.2f} times the seconds per step ({times})"


def _pair(base: Variant, other: Variant, read: Read, words: str, form: numbers.Format) -> str:
    mine, theirs = other.spread(read), base.spread(read)
    if mine is None or theirs is None:
        return ""
    return words.format(numbers.mean_range(mine, form), numbers.mean_range(theirs, form))


def _interval(base: Variant, other: Variant) -> str:
    """Give the difference of the last rewards with its interval, where there are seeds enough to pair."""
    found = paired_difference(base, other, last_reward)
    if found is None:
        return ""
    ends = f"{found.low:+.3f} to {found.high:+.3f}"
    return f" (difference {found.mean:+.3f}, 95% interval {ends}, t over n = {found.seeds} paired seeds)"


def _target(base: Variant, other: Variant) -> str:
    named = {run.reward_target for run in (*base.runs, *other.runs)}
    if len(named) != 1 or None in named:
        return ""
    target = named.pop()
    mine, theirs = (variant.spread(lambda run: run.seconds_to_target) for variant in (other, base))
    if mine is None and theirs is None:
        return f"neither reached reward {target:g}"
    times = [f"{numbers.mean_range(item, numbers.number)} s" if item else "never" for item in (mine, theirs)]
    return f"reward {target:g} after {times[0]} against {times[1]}".replace("after never", "never")


def _gain(variant: Variant) -> list[str]:
    """Say from where to where the validation reward went, with the response length beside it."""
    first, last = variant.spread(lambda run: run.first.reward if run.first else None), variant.spread(last_reward)
    if first is None or last is None or max(run.last.step if run.last else 0 for run in variant.runs) == 0:
        return []
    steps = sorted({run.last.step for run in variant.runs if run.last})
    after = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    rewards = f"{numbers.mean_range(first, _two)} to {numbers.mean_range(last, _two)}"
    text = f"{variant.name}: validation reward {rewards} in {after} steps"
    lengths = variant.spread(lambda run: run.first.length if run.first else None), variant.spread(_last_length)
    if lengths[0] and lengths[1]:
        text += f", response length {numbers.mean_range(lengths[0], numbers.number)}"
        text += f" to {numbers.mean_range(lengths[1], numbers.number)} tokens"
    return [text + "."]


def _length(experiment: Experiment) -> list[str]:
    """Warn where responses grew together with the reward."""
    grown = []
    for variant in experiment.variants:
        ends = [(run.first, run.last) for run in variant.runs if run.first and run.last]
        ratios = [last.length / first.length for first, last in ends if first.length and last.length]
        gains = [last.reward - first.reward for first, last in ends]
        if ratios and sum(ratios) / len(ratios) >= RISE_WORTH_SAYING and sum(gains) > 0:
            grown.append(variant.name)
    if not grown:
        return []
    return [f"Responses grew longer as the reward rose in {numbers.listed(grown)}: part of the gain may be length."]


def _kl(variant: Variant) -> list[str]:
    """Say how KL to the reference grew, from the first run that monitored it."""
    run = next((run for run in variant.runs if run.kl is not None), None)
    if run is None or run.kl is None:
        return []
    kl, end = run.kl, run.at_end(run.kl.name)
    reference = {"frozen": "the initial policy", "reclone": "the re-cloned reference"}.get(
        str(kl.reference), "the reference"
    )
    estimator = kl.name.rpartition("_")[2]
    text = f"{variant.name}: KL of the sampling policy to {reference} ({estimator}, per token)"
    if end is not None:
        text += f" ends at {numbers.number(end)}"
    if kl.growth is not None:
        text += f" and {_shape(kl.growth)}"
    if kl.with_reward is not None:
        value, pairs = kl.with_reward
        text += f"; correlation with validation reward {value:+.2f} over {pairs} evaluations"
    if len(variant.runs) > 1:
        text += f"; seed {run.manifest.seed} only, of {len(variant.runs)}"
    if run.behaviour_is_older:
        text += "; biased, since the sampling policy is an older one"
    return [text + "."]


def _shape(found: Growth) -> str:
    curve, line = _two(found.r_squared), _two(found.linear_r_squared)
    return {
        "linear": f"grows about linearly (R2 {line})",
        "exponential": f"bends upwards (exponential fit: R2 {curve}; line: {line})",
        "saturating": f"levels off (saturating fit: R2 {curve}; line: {line})",
        "falling": f"falls over the run (best fit: R2 {curve})",
        "no clear trend": f"shows no clear trend (best fit: R2 {curve})",
    }[found.shape]


def _upsets(variant: Variant) -> list[str]:
    """Name metrics that were not finite, gradient norms far above the median, and lost reward."""
    said = []
    for run in variant.runs:
        name = variant.name if len(variant.runs) == 1 else f"{variant.name}, seed {run.manifest.seed}"
        said += [f"{name}: {metric} was not finite in {bad} steps." for metric, bad in sorted(run.non_finite.items())]
        if run.grad_norm and run.grad_norm_peak and run.grad_norm_peak[0] > PEAK_WORTH_SAYING * run.grad_norm:
            peak, step = run.grad_norm_peak
            times = numbers.count(peak / run.grad_norm)
            said.append(
                f"{name}: the gradient norm peaked at {numbers.number(peak)}, {times} times its median, at step {step}."
            )
        diverged = run.learning is not None and run.learning.divergence is not None  # which is said elsewhere
        if not diverged and run.best and run.last and run.best.reward - run.last.reward >= FALL_WORTH_SAYING:
            best = f"{_two(run.best.reward)} at step {run.best.step}"
            said.append(f"{name}: the reward fell from {best} to {_two(run.last.reward)} at step {run.last.step}.")
    return said


def last_reward(run: RunFigures) -> float | None:
    """Return the validation reward of the last evaluation."""
    return run.last.reward if run.last else None


def _last_length(run: RunFigures) -> float | None:
    return run.last.length if run.last else None


def _two(value: float) -> str:
    return f"{value:.2f}"
