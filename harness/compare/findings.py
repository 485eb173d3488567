"""What the figures say, in sentences computed from them. No verdicts: those need repeated blocks and a test."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.compare import numbers
from harness.compare.experiments import CONFIDENCE, FEWEST_SEEDS, Experiment, Variant, paired_difference
from harness.compare.figures import RunFigures
from harness.compare.learning import Growth
from harness.compare.stats import t_interval
from harness.compare.sync_tables import sweep_findings, sweep_points, sync_findings
from harness.compare.tables import blocked_s, is_off_policy, mean_of, of_ledger, targets
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
        _target_times(base, other),
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


def _target_times(base: Variant, other: Variant) -> str:
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


@dataclass(frozen=True)
class _Standing:
    """The final rewards of a variant by run key, of the runs that came to their end without diverging."""

    variant: Variant
    rewards: dict[tuple[int, int | None], float]

    @property
    def mean(self) -> float:
        return fmean(self.rewards.values())


def learning_details(experiment: Experiment) -> list[str]:
    """Return what stands behind the answers: the target, gradients, importance weights; nothing for one variant."""
    if len(experiment.variants) < 2:
        return []
    return [*_target(experiment), *_gradients(experiment), *_importance(experiment)]


def answers(experiment: Experiment) -> list[str]:
    """Return the final rewards in order, how far that order is shown, and what diverged: what an experiment asks.

    Of a single variant, there is nothing to say but what diverged.
    """
    if len(experiment.variants) < 2:
        return divergence_findings(experiment)
    standings = sorted(filter(lambda item: item.rewards, map(_standing, experiment.variants)), key=_highest_first)
    all_equal = len(standings) > 1 and len({item.mean for item in standings}) == 1  # as of parts that only sleep
    return [*([] if all_equal else _final(standings)), *_ranking(standings), *divergence_findings(experiment)]


def divergence_findings(experiment: Experiment) -> list[str]:
    """Say which runs diverged at which training step, and how that shows."""
    found = [(run, _run_name(variant, run)) for variant in experiment.variants for run in variant.runs]
    at = [(run, name, run.learning.divergence) for run, name in found if run.learning and run.learning.divergence]
    stopped = [f"{name} at step {item.step}" for _, name, item in at if item.stopped]
    collapsed = [f"{name} at step {item.step}" for _, name, item in at if not item.stopped]
    said = []
    if stopped:
        said.append(f"Diverged: {numbers.listed(stopped)}. There a number was not finite, and the run had to stop.")
    if collapsed:
        finite = not any(run.non_finite for run, _, item in at if not item.stopped)
        said.append(
            f"Diverged: {numbers.listed(collapsed)}. From there to the end every reward, of training and validation, "
            "was at most a tenth of the run's best validation reward."
            + (" All numbers stayed finite." if finite else "")
        )
    return said


def _run_name(variant: Variant, run: RunFigures) -> str:
    if len(variant.runs) == 1:
        return variant.name
    manifest = run.manifest
    return f"{variant.name} (seed {manifest.seed})"


def _standing(variant: Variant) -> _Standing:
    rewards = {
        (run.manifest.seed, run.manifest.block): run.last.reward
        for run in variant.runs
        if run.is_completed and run.last is not None and not _diverged(run)
    }
    return _Standing(variant, rewards)


def _highest_first(standing: _Standing) -> float:
    return -standing.mean


def _diverged(run: RunFigures) -> bool:
    return run.learning is not None and run.learning.divergence is not None


def _final(standings: Sequence[_Standing]) -> list[str]:
    if not standings:
        return []
    said = [f"{item.variant.name} {_mean(item)}" for item in standings]
    seeds = "" if any(len(item.rewards) > 1 for item in standings) else " (one seed each: figures, not a verdict)"
    return [f"Final validation reward, highest first: {'; '.join(said)}{seeds}."]


def _mean(standing: _Standing) -> str:
    """The mean with its interval over seeds, or the range of too few of them."""
    values = list(standing.rewards.values())
    text = f"{standing.mean:.2f}"
    left_out = len(standing.variant.runs) - len(values)
    of_all = f", without {left_out} that diverged or did not finish" if left_out else ""
    if len(values) == 1:
        return text + (f" (one run{of_all})" if left_out else "")
    found = t_interval(values, CONFIDENCE) if len(values) >= FEWEST_SEEDS else None
    if found is None:
        return f"{text} ({min(values):.2f} to {max(values):.2f} over {len(values)} runs{of_all})"
    return f"{text} (95% interval {found.low:.2f} to {found.high:.2f} over {len(values)} runs{of_all})"


def _ranking(standings: Sequence[_Standing]) -> list[str]:
    """Set the best against each other variant, over the seeds that both have.

    With Bonferroni's level for all pairs of variants, not only those shown: which one is the best was read from the
    same rewards, so any pair could have been among them, and the level of the pairs shown would rank equal variants
    more often than it says.
    """
    if len(standings) < 2:
        return []
    best, *others = standings
    pairs_of_variants = math.comb(len(standings), 2)
    level = 1 - (1 - CONFIDENCE) / pairs_of_variants
    shown, open_ = list[str](), list[str]()
    for other in others:
        pairs = [best.rewards[key] - other.rewards[key] for key in best.rewards if key in other.rewards]
        found = t_interval(pairs, level) if len(pairs) >= FEWEST_SEEDS else None
        if found is None:
            continue
        if found.low > 0:
            shown.append(f"{other.variant.name} (by {found.point:.2f}, {found.low:.2f} to {found.high:.2f})")
        else:
            open_.append(f"{other.variant.name} ({found.point:+.2f}, {found.low:+.2f} to {found.high:+.2f})")
    said = []
    if shown:
        said.append(
            f"The final reward of {best.variant.name} is shown to be higher than that of {numbers.listed(shown)}."
        )
    if open_:
        said.append(f"No difference is shown between {best.variant.name} and {numbers.listed(open_)}.")
    if said:
        for_what = "the comparison" if pairs_of_variants == 1 else f"all {pairs_of_variants} pairs of variants together"
        said[-1] += f" (Paired by seed; 95% intervals for {for_what}.)"
    return said


def _target(experiment: Experiment) -> list[str]:
    """Say at which step and after how many seconds each variant first had the reward target."""
    named = targets(experiment.runs)
    if len(named) != 1:
        return []
    reached, never = list[str](), list[str]()
    for variant in experiment.variants:
        steps = variant.spread(lambda run: run.learning.target_step if run.learning else None)
        seconds = variant.spread(lambda run: run.seconds_to_target)
        if steps is None or seconds is None:
            never.append(variant.name)
            continue
        some = f", {steps.known} of {steps.runs} runs" if steps.known < steps.runs else ""
        step, second = numbers.mean_range(steps, numbers.count), numbers.mean_range(seconds, numbers.number)
        reached.append(f"{variant.name} at step {step} ({second} s{some})")
    if not reached:
        return [f"No variant was seen at validation reward {named[0]:g}."]
    missed = f"; never in {numbers.listed(never)}" if never else ""
    return [f"Validation reward {named[0]:g} was first seen in {'; '.join(reached)}{missed}."]


def _gradients(experiment: Experiment) -> list[str]:
    """Say how large gradients were, and how often they were scaled down."""
    said, bounds = list[str](), set[float]()
    for variant in experiment.variants:
        middle = variant.spread(lambda run: run.grad_norm)
        high = variant.spread(lambda run: run.learning.grad_norm_p95 if run.learning else None)
        cut = variant.spread(lambda run: run.learning.scaled_down if run.learning else None)
        if middle is None or high is None:
            continue
        text = f"{variant.name} {numbers.number(middle.mean)} and {numbers.number(high.mean)}"
        if cut is not None:
            text += f", scaled down in {100 * cut.mean:.0f}% of the steps"
        bounds |= {run.learning.max_grad_norm for run in variant.runs if run.learning and run.learning.max_grad_norm}
        said.append(text)
    if not said:
        return []
    bound = f" (bound {bounds.pop():g})" if len(bounds) == 1 else ""
    return [f"Gradient norm before clipping{bound}, median and 95th percentile: {'; '.join(said)}."]


def _importance(experiment: Experiment) -> list[str]:
    """Say how far engine and Learner were apart, and how often a bound on the importance weights acted."""
    said = []
    for variant in experiment.variants:
        bounded = variant.spread(lambda run: run.mean("importance/truncated_fraction"))
        masked = variant.spread(lambda run: run.mean("importance/masked_fraction"))
        gap = variant.spread(lambda run: run.mean("engine_mismatch/kl"))
        if bounded is None or masked is None:
            continue
        apart = f"KL {numbers.number(gap.mean)} per token, " if gap is not None else ""
        said.append(f"{variant.name} {apart}bounded {_share(bounded.mean)}, of these left out {_share(masked.mean)}")
    if not said:
        return []
    return [f"Importance weights of the response tokens, Learner over engine: {'; '.join(said)}."]


def _share(value: float) -> str:
    return f"{100 * value:.2g}%"


def off_policy_findings(experiment: Experiment) -> list[str]:
    """Say whether the lag bound bit, what working side by side gained, and what lag the last reward came with."""
    if not is_off_policy(experiment):
        return []
    bites = [text for variant in experiment.variants for text in (_held_back(variant), _dropped(variant)) if text]
    gains = [text for variant in experiment.variants if (text := _overlap(variant))]
    return [*bites, *gains, *_lag_and_reward(experiment)]


def _held_back(variant: Variant) -> str:
    seconds = variant.spread(blocked_s)
    batches = variant.spread(lambda run: run.blocked_time.batches if run.blocked_time else None)
    bound = variant.spread(lambda run: run.blocked_time.bound_batches if run.blocked_time else None)
    share = variant.spread(
        lambda run: run.blocked_time.seconds / run.loop_s if run.blocked_time and run.loop_s else None
    )
    if not (seconds and batches and bound and share):
        return ""
    limit = f"the lag bound of {variant.runs[0].max_lag}"
    if batches.high == 0:
        return f"{variant.name}: {limit} never held a Generator back."
    return (
        f"{variant.name}: {limit} held a Generator back before {numbers.mean_range(batches, numbers.count)} of "
        f"{numbers.count(bound.mean)} batches, for {numbers.mean_range(seconds, numbers.number)} s "
        f"({numbers.mean_range(share, numbers.percent)} of the loop)."
    )


def _dropped(variant: Variant) -> str:
    share = variant.spread(of_ledger(lambda ledger: ledger.share(ledger.dropped)))
    if variant.runs[0].lag_control != "drop" or share is None:
        return ""
    if share.high == 0:
        return f"{variant.name}: no rollout became too old and was dropped."
    gone = numbers.mean_range(share, numbers.percent)
    text = f"{variant.name}: {gone} of the generated rollouts were dropped as too old"
    dropped = variant.spread(of_ledger(lambda ledger: ledger.dropped.mean_length))
    trained = variant.spread(of_ledger(lambda ledger: ledger.trained.mean_length))
    if dropped and trained:
        text += (
            f", {numbers.mean_range(dropped, numbers.number)} tokens long on average against "
            f"{numbers.mean_range(trained, numbers.number)} of those trained on"
        )
    return text + "."


def _overlap(variant: Variant) -> str:
    worked, saved, together, loop = (
        variant.spread(lambda run, name=name: getattr(run.overlap, name) if run.overlap else None)  # type: ignore[misc]
        for name in ("worked_s", "saved_s", "together_s", "loop_s")
    )
    if not (worked and saved and together and loop and loop.mean > 0):
        return ""
    idle = [
        f"{name} {numbers.mean_range(ratio, numbers.percent)}"
        for kind, name in (("generator", "Generator"), ("scorer", "Scorer"), ("learner", "Learner"))
        if (ratio := variant.spread(lambda run, kind=kind: run.idle_ratio(kind)))  # type: ignore[misc]
    ]
    return (
        f"{variant.name}: the lanes worked {_s(worked.mean)} in a loop of {_s(loop.mean)}, at least two at once "
        f"for {numbers.percent(together.mean / loop.mean)} of it: {_s(saved.mean)} less than one after the other, if "
        f"stages took as long then; idle: {', '.join(idle)}."
    )


def _lag_and_reward(experiment: Experiment) -> list[str]:
    parts = []
    for variant in experiment.variants:
        lag = variant.spread(mean_of("off_policy/mean"))
        reward = variant.spread(lambda run: run.last.reward if run.last else None)
        if lag and reward:
            shown = numbers.mean_range(reward, numbers.reward)
            parts.append(f"{variant.name} {numbers.mean_range(lag, numbers.number)} and {shown}")
    return [f"Mean lag in versions and last validation reward: {'; '.join(parts)}."] if len(parts) > 1 else []


def _s(seconds: float) -> str:
    return f"{numbers.number(seconds)} s"
