"""Arms that were read from other trainers' logs: one run each, so that only steps tell a difference from chance."""

from __future__ import annotations

from dataclasses import replace

from harness.compare.experiment import Experiment, Member
from harness.compare.stats.bootstrap import ratio_over_steps
from harness.compare.stats.verdicts import STEP, Effect, Verdict

NOT_REPEATED = "one run each: not repeated"


def is_of_logs(experiment: Experiment) -> bool:
    """Whether the arms of an experiment are one imported run each."""
    arms = experiment.arms.values()
    return len(arms) > 1 and all(len(members) == 1 and members[0].figures["is_imported"] for members in arms)


def over_steps(effect: Effect, base: Member, other: Member) -> Effect:
    """Return the effect of one run's seconds per step against another's, with an interval over their steps.

    There is still no verdict: other runs of the same arms may lie further apart.
    """
    if effect.name != STEP:
        return effect
    interval = ratio_over_steps(*(each.table.wall_s[each.table.is_measured].tolist() for each in (base, other)))
    effect = replace(effect, reason=NOT_REPEATED) if effect.verdict is Verdict.INCONCLUSIVE else effect
    if interval is None:
        return effect
    return replace(effect, ratio=interval.value, low=interval.low, high=interval.high)
