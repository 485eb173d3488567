"""What the figures say, in sentences computed from them. No verdicts: those need repeated blocks and a test.

Each sentence is made once, here or in ``learning_findings``, and every output shows the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, permutations
from statistics import fmean
from typing import Any

from harness.compare.attribution import overlap_bound
from harness.compare.checkpoints import checkpoint_sentence
from harness.compare.experiments import FEWEST_SEEDS, Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.kl import kl_sentence
from harness.compare.learning_findings import (
    divergence_sentences,
    final_reward_sentence,
    for_all,
    ranking,
    rewards_clause,
    signal_sentence,
    target_clause,
    target_sentence,
)
from harness.compare.numbers import Format, count, listed, mean_range, number, percent, reward
from harness.compare.ranks import find_straggler
from harness.compare.replay import replay_sentence
from harness.compare.rewards import final_reward, reward_difference
from harness.compare.stats import STEP_THRESHOLD
from harness.compare.step_times import ratio_of_medians, steadiness_notes, step_ratio, uneven_sentence
from harness.compare.sync_tables import sweep_findings, sweep_points, sync_findings
from harness.compare.tables import Read, blocked_s, is_off_policy, mean_length, mean_of, rollout_share
from harness.compare.verdicts import judgements, settings_of
from harness.core.trace import Stage
from harness.results.reader import flat_settings

RISE_WORTH_SAYING = 1.2  # of response length, last over first
FALL_WORTH_SAYING = 0.1  # of validation reward, from best to last
PEAK_WORTH_SAYING = 10.0  # of gradient norm, over its median
GAIN_WORTH_SAYING = 1.05  # of the loop's speed
LAG_SETTINGS = ("max_lag", "lag_control", "replay", "placement")
"""What may differ where lag is what two variants differ in; lagged parts need cores of their own."""

CORES = (
    "model.threads",
    *(f"placement.{part}.{what}" for part in ("generator", "scorer", "learner") for what in ("cpus", "threads")),
)
"""Settings that say how many cores an arm has."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence.

    Attributes:
        name: what it is about, such as ``kl``; the same for every variant.
    """

    name: str
    text: str


def findings(experiment: Experiment) -> list[Finding]:
    """Return what the experiment shows: rewards, divergence, time, cost and gain of each, syncs, lag, KL, upsets."""
    if sweep_points(experiment):
        return _named("sweep", sweep_findings(experiment))
    variants = experiment.variants
    base, *others = variants
    several = len(others) > 0
    found = [
        *(_named("final_reward", [final_reward_sentence(experiment)]) if several else []),
        *_named("ranking", ranking(experiment)),
        *_named("divergence", divergence_sentences(experiment)),
        *_named("signal", map(signal_sentence, variants)),
        *_named("failed", map(failed_sentence, variants)),
        *_named("dynamic_sampling", map(_discarded, variants)),
        *_named(
            "largest_stage", [_largest_stage("The largest stage", {arm.name: stage_shares(arm) for arm in variants})]
        ),
        *_named("ranks", map(_straggler, variants)),
        *_named("checkpoints", map(_checkpoints, variants)),
        *_named("steady", steadiness_notes(variants)),
        *_named("single_steps", map(uneven_sentence, variants)),
        *_named("against", [_against(experiment, base, other) for other in others]),
        *_named("cores", _idle_cores(experiment)),
        *_named("sync", sync_findings(experiment)),
        *off_policy_findings(experiment),
    ]
    for variant in variants:
        found += _named("gain", [_gain(variant)])
        found += _named("kl", [kl_sentence(variant)])
        found += _named("upset", _upsets(variant))
    found += _named("length", [_length(experiment)])
    if several or len(base.runs) > 1:
        found += _named("target", [target_sentence(experiment)])
    if several:
        found += _named("gradients", [_gradients(variants)])
        found += _named("importance", [_importance(variants)])
    return found


def exposed_shares(variant: Variant) -> dict[Stage, float]:
    """Return each stage's exposed share of a step, as a mean over the variant's runs that kept their spans."""
    parts = [run.exposed for run in variant.runs if run.exposed]
    stages = [stage for stage in Stage if any(stage in part.stages_ns for part in parts)]
    return {stage: fmean(part.share(part.stages_ns.get(stage, 0)) for part in parts) for stage in stages}


def exposed_finding(experiment: Experiment) -> str:
    """Name the stage with the most exposed time in each variant; empty where no stage has any."""
    shares, more = dict[str, dict[Stage, float]](), []
    for variant in experiment.variants:
        if of_stages := exposed_shares(variant):
            shares[variant.name] = of_stages
            nobodys = fmean(run.exposed.share(run.exposed.nobody_ns) for run in variant.runs if run.exposed)
            if nobodys > max(of_stages.values()):
                more.append(f"{100 * nobodys:.0f}% in {variant.name}")
    text = _largest_stage("What the loop waits for most, its exposed time,", shares)
    return text + (f" Still more of a step belongs to no stage: {', '.join(more)}." if more else "")


def overlap_finding(experiment: Experiment) -> str:
    """Say how short each loop could become if its lanes worked side by side all the time; empty without lanes."""
    parts, speedups = [], []
    for variant in experiment.variants:
        bounds = [bound for run in variant.runs if (bound := overlap_bound(run.parts))]
        if bounds:
            speedups.append(fmean(bound.speedup for bound in bounds))
            shortest, loop = fmean(bound.shortest_s for bound in bounds), fmean(bound.loop_s for bound in bounds)
            work = f"its busiest lane, {bounds[0].lane}, works {number(shortest)} s of {number(loop)} s"
            parts.append(f"{variant.name} {speedups[-1]:.2f} ({work})")
    if not parts:
        return ""
    text = "Greatest speed-up of the loop if lanes overlapped perfectly and no stage took longer: "
    text += f"{'; '.join(parts)}."
    return text if max(speedups) >= GAIN_WORTH_SAYING else f"More overlap would gain almost nothing. {text}"


def _straggler(variant: Variant) -> str:
    """Say which of the Learner's ranks the others wait for, and why; empty where there is none."""
    found = find_straggler([of_ranks for run in variant.runs for of_ranks in run.rank_steps])
    return "" if found is None else f"{variant.name}: {found.sentence}."


def _checkpoints(variant: Variant) -> str:
    """Say what checkpoints cost in the last run that made any; empty where there is none."""
    costs = [(run, run.checkpoints) for run in variant.runs if run.checkpoints is not None]
    if not costs:
        return ""
    run, cost = costs[-1]
    return checkpoint_sentence(variant.name, cost, run.settings["checkpoint"].get("hours_between_failures"))


def _named(name: str, texts: Iterable[str]) -> list[Finding]:
    return [Finding(name, text) for text in texts if text]


def _largest_stage(lead: str, shares: Mapping[str, Mapping[Stage, float]]) -> str:
    """Name the stage with the largest share of a step in each variant, variants of the same stage together."""
    largest: dict[Stage, list[str]] = {}
    for name, by_stage in shares.items():
        if by_stage:
            stage = max(by_stage, key=lambda item: by_stage[item])
            added = ", added over lanes" if by_stage[stage] > 1 else ""
            largest.setdefault(stage, []).append(f"{name} ({100 * by_stage[stage]:.0f}% of a step{added})")
    parts = [f"{stage.value} in {listed(names)}" for stage, names in largest.items()]
    return f"{lead} is {', '.join(parts)}." if parts else ""


def stage_shares(variant: Variant) -> dict[Stage, float]:
    """Return each stage's share of a step, as a mean over the variant's runs that made one, of stages that ran."""
    measured = [run.stages for run in variant.runs if run.measured_steps]
    means = {
        stage: sum(stages[stage].share for stages in measured if stage in stages) / max(1, len(measured))
        for stage in Stage
        if not stage.is_wait
    }
    return {stage: share for stage, share in means.items() if share > 0}


def _against(experiment: Experiment, base: Variant, other: Variant) -> str:
    """Set a variant beside the first one: cost, reward with its length, clip fraction, time to the target."""

    def pair(read: Read, words: str, form: Format) -> str:
        mine, theirs = other.spread(read), base.spread(read)
        return words.format(mean_range(mine, form), mean_range(theirs, form)) if mine and theirs else ""

    clauses = [
        _cost(base, other),
        rewards_clause(experiment, base, other),
        pair(_last_length, "response length {} against {} tokens", number),
        pair(lambda run: run.mean("clip_fraction"), "clip fraction {} against {}", _two),
        pair(lambda run: run.optimizer_steps, "{} against {} optimizer steps", count),
        target_clause(experiment, base, other),
    ]
    return f"{other.name} against {base.name}: {'; '.join(clause for clause in clauses if clause)}."


def _cost(base: Variant, other: Variant) -> str:
    mine, theirs = other.spread(lambda run: run.step_s), base.spread(lambda run: run.step_s)
    ratio, of_medians = step_ratio(base, other), ratio_of_medians(base, other)
    if mine is None or theirs is None or ratio is None:
        return ""
    times = f"{mean_range(mine, number)} s against {mean_range(theirs, number)} s"
    single = f"; {of_medians:.2f} times in the median of single steps" if of_medians is not None else ""
    return f"{ratio:.2f} times the seconds per step ({times}{single})"


def _idle_cores(experiment: Experiment) -> list[str]:
    """Say where an arm with more CPUs or threads than another of the same settings is not faster, by the interval of
    the ratio of their seconds per step."""
    alike: dict[str, list[tuple[Variant, dict[str, Any]]]] = {}
    for variant in experiment.variants:
        settings = flat_settings(settings_of(variant.runs[0]))
        cores = {key: settings.pop(key, None) for key in CORES}
        alike.setdefault(repr(sorted(settings.items())), []).append((variant, cores))
    texts = []
    for (fewer, given), (more, wanted) in chain.from_iterable(permutations(arms, 2) for arms in alike.values()):
        unlike = {key: (given[key], wanted[key]) for key in CORES if given[key] != wanted[key]}
        if not unlike or not all(low is not None and high is not None and low < high for low, high in unlike.values()):
            continue
        (step,) = (item.step for item in judgements(experiment, fewer.name) if item.other == more.name)
        if step.ratio is None or step.low is None or step.high is None or step.high < 1:
            continue
        what = ", ".join(f"{key} {high} against {low}" for key, (low, high) in unlike.items())
        is_not = "is not" if step.low > 1 - STEP_THRESHOLD else "is not shown to be"
        texts.append(
            f"{more.name} {is_not} faster than {fewer.name}, which has the same settings and fewer cores ({what}): "
            f"{step.ratio:.3f} times the seconds per step, 95% interval {step.low:.3f} to {step.high:.3f}."
        )
    return texts


def _gain(variant: Variant) -> str:
    """Say from where to where the validation reward went, with the response length beside it."""
    first, last = (
        variant.spread(lambda run: run.first.reward if run.first else None),
        variant.spread(lambda run: run.last.reward if run.last else None),
    )
    steps = sorted({run.last.step for run in variant.runs if run.last})
    if first is None or last is None or steps[-1] == 0:
        return ""
    after = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    text = f"{variant.name}: validation reward {mean_range(first, _two)} to {mean_range(last, _two)} in {after} steps"
    shorter, longer = variant.spread(lambda run: run.first.length if run.first else None), variant.spread(_last_length)
    if shorter and longer:
        text += f", response length {mean_range(shorter, number)} to {mean_range(longer, number)} tokens"
    return text + "."


def _length(experiment: Experiment) -> str:
    """Warn where responses grew together with the reward."""
    grown = []
    for variant in experiment.variants:
        ends = [(run.first, run.last) for run in variant.runs if run.first and run.last]
        ratios = [last.length / first.length for first, last in ends if first.length and last.length]
        gains = [last.reward - first.reward for first, last in ends]
        if ratios and sum(ratios) / len(ratios) >= RISE_WORTH_SAYING and sum(gains) > 0:
            grown.append(variant.name)
    if not grown:
        return ""
    return f"Responses grew longer as the reward rose in {listed(grown)}: part of the gain may be length."


def _upsets(variant: Variant) -> list[str]:
    """Name metrics that were not finite, gradient norms far above the median, and lost reward."""
    texts = []
    for run in variant.runs:
        name = variant.name if len(variant.runs) == 1 else f"{variant.name}, seed {run.manifest.seed}"
        texts += [f"{name}: {metric} was not finite in {bad} steps." for metric, bad in sorted(run.non_finite.items())]
        if run.grad_norm and run.grad_norm_peak and run.grad_norm_peak[0] > PEAK_WORTH_SAYING * run.grad_norm:
            peak, step = run.grad_norm_peak
            times = f"{count(peak / run.grad_norm)} times its median"
            texts.append(f"{name}: the gradient norm peaked at {number(peak)}, {times}, at step {step}.")
        if run.divergence is None and run.best and run.last and run.best.reward - run.last.reward >= FALL_WORTH_SAYING:
            best = f"{_two(run.best.reward)} at step {run.best.step}"
            texts.append(f"{name}: the reward fell from {best} to {_two(run.last.reward)} at step {run.last.step}.")
    return texts


def _gradients(variants: Sequence[Variant]) -> str:
    """Say how large gradients were, and how often they were scaled down."""
    parts, bounds = list[str](), set[float]()
    for variant in variants:
        middle = variant.spread(lambda run: run.grad_norm)
        high = variant.spread(lambda run: run.learning.grad_norm_p95 if run.learning else None)
        cut = variant.spread(lambda run: run.learning.scaled_down if run.learning else None)
        if middle is None or high is None:
            continue
        scaled = f", scaled down in {100 * cut.mean:.0f}% of the steps" if cut is not None else ""
        parts.append(f"{variant.name} {number(middle.mean)} and {number(high.mean)}{scaled}")
        bounds |= {run.learning.max_grad_norm for run in variant.runs if run.learning and run.learning.max_grad_norm}
    bound = f" (bound {bounds.pop():g})" if len(bounds) == 1 else ""
    return f"Gradient norm before clipping{bound}, median and 95th percentile: {'; '.join(parts)}." if parts else ""


def _importance(variants: Sequence[Variant]) -> str:
    """Say how far engine and Learner were apart, and how often a bound on the importance weights acted."""
    parts = []
    for variant in variants:
        bounded = variant.spread(mean_of("importance/truncated_fraction"))
        masked = variant.spread(mean_of("importance/masked_fraction"))
        gap = variant.spread(mean_of("engine_mismatch/kl"))
        if bounded is not None and masked is not None:
            apart = f"KL {number(gap.mean)} per token, " if gap is not None else ""
            shares = f"bounded {100 * bounded.mean:.2g}%, of these left out {100 * masked.mean:.2g}%"
            parts.append(f"{variant.name} {apart}{shares}")
    return f"Importance weights of the response tokens, Learner over engine: {'; '.join(parts)}." if parts else ""


def off_policy_findings(experiment: Experiment) -> list[Finding]:
    """Say whether the lag bound acted, what the replay buffer did, what working side by side gained, and what lag the
    last reward came with."""
    if not is_off_policy(experiment):
        return []
    found = []
    for variant in experiment.variants:
        found += _named("lag_bound", [_blocked(variant), _dropped(variant)])
    found += _named("replay", map(replay_sentence, experiment.variants))
    found += _named("overlap", map(_overlap, experiment.variants))
    return found + _named("lag", [_lag(experiment)])


def _blocked(variant: Variant) -> str:
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
        return f"{variant.name}: {limit} never made a Generator wait."
    return (
        f"{variant.name}: {limit} made a Generator wait before {mean_range(batches, count)} of {count(bound.mean)} "
        f"batches, for {mean_range(seconds, number)} s ({mean_range(share, percent)} of the loop)."
    )


def _discarded(variant: Variant) -> str:
    """Say how many groups dynamic sampling threw away, and how many without spread were trained on all the same."""
    share = variant.spread(rollout_share(lambda ledger: ledger.discarded))
    flat = variant.spread(mean_of("zero_variance_fraction"))
    if share is None or variant.spread(mean_of("sampling/discarded_groups")) is None:
        return ""
    gone = mean_range(share, percent)
    text = f"{variant.name}: dynamic sampling discarded {gone} of the generated groups, whose rewards were all equal"
    return text + (f"; of the groups trained on {mean_range(flat, percent)} still had equal rewards." if flat else ".")


def failed_sentence(variant: Variant) -> str:
    """Say how many groups had no reward, and in how many training steps none of the batch had one."""
    groups, batches = (variant.spread(mean_of(f"score/failed_{what}")) for what in ("groups", "batches"))
    if groups is None:
        return ""
    share = variant.spread(rollout_share(lambda ledger: ledger.failed))
    of_all = f" ({mean_range(share, percent)} of the generated rollouts)" if share else ""
    text = f"{variant.name}: {mean_range(groups, count)} groups had no reward{of_all}"
    return text + (
        f"; in {mean_range(batches, count)} training steps no group of the batch had one." if batches else "."
    )


def _dropped(variant: Variant) -> str:
    share = variant.spread(rollout_share(lambda ledger: ledger.dropped))
    if variant.runs[0].lag_control != "drop" or share is None:
        return ""
    if share.high == 0:
        return f"{variant.name}: no rollout became too old and was dropped."
    text = f"{variant.name}: {mean_range(share, percent)} of the generated rollouts were dropped as too old"
    dropped = variant.spread(mean_length(lambda ledger: ledger.dropped))
    trained = variant.spread(mean_length(lambda ledger: ledger.trained))
    if dropped and trained:
        text += f", {mean_range(dropped, number)} tokens long on average against {mean_range(trained, number)} of those"
        text += " trained on"
    return text + "."


def _overlap(variant: Variant) -> str:
    worked = variant.spread(lambda run: run.overlap.worked_s if run.overlap else None)
    saved = variant.spread(lambda run: run.overlap.saved_s if run.overlap else None)
    together = variant.spread(lambda run: run.overlap.together_s if run.overlap else None)
    loop = variant.spread(lambda run: run.overlap.loop_s if run.overlap else None)
    if not (worked and saved and together and loop and loop.mean > 0):
        return ""
    idle = []
    for kind in ("generator", "scorer", "learner"):
        if ratio := variant.spread(lambda run, kind=kind: run.idle_ratio(kind)):  # type: ignore[misc]
            idle.append(f"{kind.capitalize()} {mean_range(ratio, percent)}")
    return (
        f"{variant.name}: the lanes worked {number(worked.mean)} s in {number(loop.mean)} s of the loop, at least two "
        f"at once for {percent(together.mean / loop.mean)} of it: {number(saved.mean)} s less than one after the "
        f"other, if stages took as long then; idle: {', '.join(idle)}."
    )


def _lag(experiment: Experiment) -> str:
    """Give lag and last reward of each variant, and whether lag hurt where another differs in lag alone."""
    fresh = [item for item in experiment.variants if not any(run.behaviour_is_older for run in item.runs)]
    parts, too_few_seeds = list[str](), ""
    for variant in experiment.variants:
        lag, last = variant.spread(mean_of("off_policy/mean")), variant.spread(final_reward)
        base = next((item for item in fresh if variant not in fresh and _differs_in_lag_alone(item, variant)), None)
        if last is None or (lag is None and base is None):
            continue
        part = f"{variant.name} {f'{mean_range(lag, number)} and ' if lag else ''}{mean_range(last, reward)}"
        difference = base and reward_difference(experiment, base, variant)
        if base and difference:
            low, high = difference.low, difference.high
            effect = "lag hurt" if high < 0 else "lag did not hurt" if low > 0 else "no difference shown"
            interval = f"95% interval {low:+.3f} to {high:+.3f}{for_all(difference.pairs)}, n = {difference.seeds}"
            part += f" ({difference.mean:+.3f} against {base.name}, {interval}: {effect})"
        elif base:
            too_few_seeds = f" Whether lag hurt cannot be said without {FEWEST_SEEDS} seeds that both completed."
        parts.append(part)
    if len(parts) < 2:
        return ""
    return f"Mean lag in versions and last validation reward: {'; '.join(parts)}.{too_few_seeds}"


def _differs_in_lag_alone(base: Variant, other: Variant) -> bool:
    """Whether two variants have the same settings but for lag, replay, and what these need in order to run."""
    mine, theirs = (
        {key: value for key, value in settings_of(variant.runs[0]).items() if key not in LAG_SETTINGS}
        for variant in (base, other)
    )
    return mine == theirs


def _last_length(run: RunFigures) -> float | None:
    return run.last.length if run.last else None


def _two(value: float) -> str:
    return f"{value:.2f}"
