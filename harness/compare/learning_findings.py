"""What variants learned, in sentences computed from their runs: final rewards in order, divergence, target, gradients.

Variants are ranked only as far as a difference is shown: between the best one and another, over seeds that both have,
with intervals widened for the number of pairs. One seed gives figures, not a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.compare import numbers
from harness.compare.experiments import Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.outcome import targets
from harness.compare.pairs import CONFIDENCE, FEWEST_SEEDS
from harness.compare.stats import t_interval


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
