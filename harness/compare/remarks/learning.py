"""How learning went: whether there was anything to learn from, whether it was stable, and how far the policy moved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

import numpy as np

from harness.compare.experiment import Experiment, Member
from harness.compare.judging import Judgement
from harness.compare.numbers import count, listed, number, over_runs, percent, plural, some
from harness.compare.remarks.answer import named_runs, only_sleeps
from harness.compare.signal import Cause
from harness.results.frames import Numbers

MOSTLY = 0.5
"""Share of steps, or of responses, without a signal above which it is said."""
RISE = 1.2
"""Of response length, last over first, from which on it is worth saying."""
FALL = 0.1
"""Of validation reward, from best to last."""
PEAK = 10.0
"""Of the gradient norm, over its median."""
CAUSES: dict[Cause, str] = {
    "failed": "no group had a reward",
    "equal": "within every group the rewards were equal, so that every advantage was 0",
    "cut": "every response was cut at max_tokens and left out of the loss",
    "weight": "every response had the advantage 0 or was left out of the loss",
    "gradient": "the gradient was 0, although advantages were not",
}


def no_signal(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say where most training steps, or most rollouts, had nothing to learn from, and why."""
    for arm, members in experiment.arms.items():
        known = [member.figures["signal"] for member in members if not only_sleeps(member)]
        without = [signal for signal in known if signal is not None and signal.missing > MOSTLY]
        weighed = [signal.weighed for signal in known if signal is not None and signal.weighed is not None]
        if without:
            causes = dict.fromkeys(cause for signal in without for cause in signal.causes)
            shares = sorted({f"{100 * end(signal.missing for signal in without):.0f}" for end in (min, max)}, key=int)
            steps = "every training step" if shares == ["100"] else f"{' to '.join(shares)}% of its training steps"
            which = "" if len(members) == 1 else f" ({len(without)} of {len(members)} runs)"
            why = " or ".join(CAUSES[cause] for cause in causes)
            text = f"{arm} had nothing to learn from in {steps}{which}: there, {why}."
            moved = sum(signal.moved for signal in without)
            yield text + (f" In {moved} of them the optimizer moved the weights all the same." if moved else "")
        elif weighed and fmean(weighed) < 1 - MOSTLY:
            yield (
                f"{arm} learned from {percent(fmean(weighed))} of the responses that it trained on: the others had the "
                "advantage 0, as in groups of equal rewards, or were left out of the loss."
            )


def failed_groups(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say how many groups had no reward, and in how many training steps none of the batch had one."""
    for arm in experiment.arms:
        groups, batches = (experiment.range(arm, f"mean/score/failed_{what}") for what in ("groups", "batches"))
        if groups is None:
            continue
        share = experiment.range(arm, "failed_share")
        of_all = f" ({over_runs(share, percent)} of the generated rollouts)" if share else ""
        steps = f"; in {over_runs(batches, count)} training steps no group of the batch had one" if batches else ""
        yield f"{arm}: {over_runs(groups, count)} groups had no reward{of_all}{steps}."


def length(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Warn where responses grew together with the reward."""
    grown = []
    for arm, members in experiment.arms.items():
        runs = [run for member in members if (run := member.figures).get("reward_last") is not None]
        ratios = [
            run["length_last"] / run["length_first"] for run in runs if run["length_first"] and run["length_last"]
        ]
        if ratios and fmean(ratios) >= RISE and sum(run["reward_last"] - run["reward_first"] for run in runs) > 0:
            grown.append(f"{arm} ({fmean(ratios):.1f} times)")
    if grown:
        yield f"Responses grew longer as the reward rose in {listed(some(grown))}: part of the gain may be length."


def stability(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Name metrics that were not finite, gradient norms far above the median, and reward that was lost again."""
    for name, member in named_runs(experiment):
        run, metrics = member.figures, member.table.metrics
        bad = {metric: column.non_finite for metric, column in sorted(metrics.items()) if column.non_finite}
        parts = [f"{metric} was not finite in {plural(steps, 'step')}" for metric, steps in bad.items()]
        middle, peak = run.get("grad_norm"), run.get("grad_norm_peak")
        if middle and peak and peak > PEAK * middle:
            times, step = f"{count(peak / middle)} times its median", run["grad_norm_peak_step"]
            parts.append(f"the gradient norm peaked at {number(peak)}, {times}, at step {step}")
        best, last = run.get("reward_best"), run.get("reward_last")
        if run["divergence"] is None and best is not None and last is not None and best - last >= FALL:
            best_at, last_at = run["reward_best_step"], run["reward_last_step"]
            parts.append(f"the reward fell from {best:.2f} at step {best_at} to {last:.2f} at step {last_at}")
        if parts:
            yield f"{name}: {'; '.join(parts)}."


def importance(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say how often a bound on the importance weights acted, and how far engine and Learner were apart."""
    parts = []
    for arm in experiment.arms:
        names = ("importance/truncated_fraction", "importance/masked_fraction", "engine_mismatch/kl")
        bounded, masked, gap = (experiment.mean(arm, f"mean/{name}") for name in names)
        if bounded is not None and masked is not None:
            apart = f"KL {number(gap)} per token, " if gap is not None else ""
            parts.append(f"{arm} {apart}bounded {100 * bounded:.2g}%, of these left out {100 * masked:.2g}%")
    if parts:
        yield f"Importance weights of the response tokens, Learner over engine: {'; '.join(some(parts))}."


# ---- KL to the reference

KL_NAMES = ("kl/reference_k3", "kl/reference_k1")  # the first that a run has is described
REFERENCE_NAMES = {
    "frozen": "initial policy",
    "reclone": "re-cloned reference",
    "polyak": "Polyak-averaged reference",
}
"""What the reference policy of each ``loss.kl.reference`` is called in words."""
FEWEST_POINTS, MOST_POINTS = 8, 240
CURVATURES = np.linspace(-8.0, 8.0, 65)


def kl(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say of each arm's first run with KL to the reference how that grew, and whether the reward went along."""
    for arm, members in experiment.arms.items():
        for member in members:
            name = next((name for name in KL_NAMES if len(member.table.series(name)[1])), None)
            if name is not None:
                yield _kl_words(arm, member, name, len(members))
                break


def _kl_words(arm: str, member: Member, name: str, runs: int) -> str:
    steps, values = member.table.series(name)
    reference = REFERENCE_NAMES.get(str(member.run.setting("loss.kl.reference")), "reference")
    text = f"{arm}: KL to the {reference} ({name.rpartition('_')[2]}, per token)"
    shape = growth(steps, values)
    text += f" {shape[0]}" if shape else ""
    text += f", fastest around step {shape[1]:.0f}" if shape and shape[1] is not None else ""
    evaluated = member.table.rewards
    paired = np.isin(evaluated.step, steps)  # training step t measures policy version t
    at = np.searchsorted(steps, evaluated.step[paired])
    known = correlation(values[at], evaluated.reward[paired])
    if known is not None:
        text += f"; its correlation with the validation reward is {known[0]:+.2f} ({known[1]:+.2f} to {known[2]:+.2f}, "
        text += plural(int(paired.sum()), "evaluation") + ")"
    elif shape is None:
        text += f" ends at {number(float(values[-1]))}"
    text += f"; of seed {member.manifest.seed} alone" if runs > 1 else ""
    return text + ("; biased, as the sampling policy is an older one." if member.figures["is_off_policy"] else ".")


def growth(steps: Numbers, values: Numbers) -> tuple[str, float | None] | None:
    """Return how a series grows, and around which step fastest where it bends; None of too few or constant values.

    Least squares of y = a + b (exp(c s) - 1) / c, s running from 0 at the first step to 1 at the last, for c from -8 to
    8; c = 0 is a line. A bend counts where it leaves at most 90% of the line's squared error; where less than half of
    the variance is explained there is no clear trend. Growth is fastest in the middle of the fifth of the points, five
    at least, with the steepest line. Of more than ``MOST_POINTS`` points the means of so many equal parts are taken.
    """
    if len(values) < FEWEST_POINTS or np.ptp(values) == 0:
        return None
    if len(values) > MOST_POINTS:
        steps, values = (np.array([part.mean() for part in np.array_split(x, MOST_POINTS)]) for x in (steps, values))
    s = (steps - steps[0]) / (steps[-1] - steps[0])
    curves = np.array([np.expm1(c * s) / c if c else s for c in CURVATURES])
    curves -= curves.mean(axis=1, keepdims=True)
    centred = values - values.mean()
    explained = (curves @ centred) ** 2 / ((curves**2).sum(axis=1) * (centred @ centred))
    line, best = len(CURVATURES) // 2, int(explained.argmax())
    if 1 - explained[best] > 0.9 * (1 - explained[line]):
        best = line
    if explained[best] < 0.5:
        return "shows no clear trend", None
    if curves[line] @ centred < 0:
        return "falls", None
    if best == line:
        return "grows about linearly", None
    size = max(5, len(values) // 5)
    slopes = np.convolve(values, (size - 1) / 2 - np.arange(size), "valid")
    steepest = int((slopes > 0.999 * slopes.max()).argmax())  # the first of those that differ by rounding
    return "grows exponentially" if best > line else "levels off", float(steps[steepest + size // 2])


def correlation(first: Numbers, second: Numbers) -> tuple[float, float, float] | None:
    """Return Pearson's correlation with its 95% interval; None for fewer than four pairs or a constant series.

    The interval is Fisher's, tanh(atanh(r) +- 1.96 / sqrt(n - 3)). It takes the pairs for independent; those of one run
    are not quite, as both drift while it goes on.
    """
    if len(first) < 4 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    value = float(np.corrcoef(first, second)[0, 1])
    middle, reach = math.atanh(min(max(value, -1 + 1e-15), 1 - 1e-15)), 1.959964 / math.sqrt(len(first) - 3)
    return value, math.tanh(middle - reach), math.tanh(middle + reach)
