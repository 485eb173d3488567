"""What arms are compared by: a value of each run, in the runs of a block that are a pair.

Larger is worse, so that what is said of a ratio holds for all endpoints. Rewards may be 0 and are compared by their
difference: their value is exp(-reward), whose log-ratio between two arms *is* the difference of their rewards, with its
sign turned round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, expm1, log

from harness.compare.experiment import Member
from harness.compare.numbers import change, plural
from harness.compare.stats.verdicts import STEP, STEP_THRESHOLD, Effect, Verdict
from harness.compare.syncs import sync_seconds

REWARD_THRESHOLD = 0.03
"""Difference of validation reward that counts in practice."""
SYNC_THRESHOLD = 0.05
TIMES = 2.0
"""From this ratio on one says how many times as long something takes."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What decides between arms: its name in a scenario's ``endpoint``, and in words.

    Attributes:
        limit: what counts in practice: a relative change, or a difference of rewards.
        value: of one run, above 0 and larger where the run is worse; None where it was not measured.
        is_difference: whether arms are compared by the difference of what is read, not by a ratio.
    """

    name: str
    words: str
    limit: float
    value: Callable[[Member], float | None]
    is_difference: bool = False

    @property
    def threshold(self) -> float:
        """The relative change of ``value`` that counts."""
        return expm1(self.limit) if self.is_difference else self.limit

    @property
    def is_step(self) -> bool:
        """Whether it is the time of a step, which every experiment has."""
        return self.name == "seconds_per_step"

    def change(self, ratio: float) -> str:
        """Write a ratio of values as a person reads it: ``+5.0%``, or ``-0.031`` for rewards."""
        return f"{-log(ratio):+.3f}" if self.is_difference else change(ratio)

    def ends(self, effect: Effect) -> str | None:
        """Write the ends of an effect's interval, in rising order; None where it has none."""
        if effect.low is None or effect.high is None:
            return None
        low, high = (effect.high, effect.low) if self.is_difference else (effect.low, effect.high)
        return f"{self.change(low)} to {self.change(high)}"


SECONDS_PER_STEP = Endpoint(
    "seconds_per_step", "seconds per step", STEP_THRESHOLD, lambda member: member.figures.get("step_s")
)
WEIGHT_SYNC_SECONDS = Endpoint("weight_sync_seconds", "seconds of a weight sync", SYNC_THRESHOLD, sync_seconds)
REWARD_AT_ROLLOUTS = Endpoint(
    "reward_at_rollouts",
    "validation reward at equal rollouts",
    REWARD_THRESHOLD,
    lambda member: None if (final := member.figures.get("reward_final")) is None else exp(-final),
    is_difference=True,
)
"""Runs have the same number of rollouts at their end; one that diverged counts with its last reward."""
ENDPOINTS = {endpoint.name: endpoint for endpoint in (SECONDS_PER_STEP, WEIGHT_SYNC_SECONDS, REWARD_AT_ROLLOUTS)}


def endpoint_of(members: Sequence[Member]) -> Endpoint:
    """Return what decides between the runs of an experiment: as its scenario says, else the step time."""
    named = (member.settings.get("endpoint") for member in members)
    return next((ENDPOINTS[name] for name in named if name in ENDPOINTS), SECONDS_PER_STEP)


def endpoint_of_effect(effect: Effect) -> Endpoint:
    """Return how an effect is written: that of an endpoint by its rules, any other as a ratio of seconds."""
    return ENDPOINTS.get(effect.name, SECONDS_PER_STEP)


def effect_in_words(effect: Effect, base: str, other: str) -> str:
    """Say an effect the way a person does: ``lag1 is 30% faster per step than sync (28 to 32%, 12 blocks)``."""
    endpoint, ratio, verdict = endpoint_of_effect(effect), effect.ratio, effect.verdict
    if endpoint.is_difference:
        if ratio is None:
            return f"no reward of both {other} and {base} is known"
        ends = endpoint.ends(effect)
        shown = f"{endpoint.change(ratio)}{f', {ends}' if ends else ''}, {effect.blocks} blocks"
        if verdict is Verdict.DIFFERENT:
            return f"the reward of {other} is {'higher' if ratio < 1 else 'lower'} than that of {base} ({shown})"
        if verdict is Verdict.EQUIVALENT:
            return f"the rewards of {other} and {base} are the same ({shown})"
        return f"no difference in reward shown between {other} and {base} ({shown})"
    what = "per step" if effect.name in (STEP, SECONDS_PER_STEP.name) else f"in {endpoint.words}"
    if ratio is None:
        return f"{other} and {base} cannot be compared {what}"
    low, high, ends = effect.low, effect.high, ""
    if low is not None and high is not None:
        near, far = sorted((abs(low - 1), abs(high - 1)))
        ends = f"{near:.0%} to {far:.0%}, ".replace("% to", " to", 1)
        ends = ends if low > 1 or high < 1 else f"{change(low)} to {change(high)}, "
    blocks = plural(effect.blocks, "block")
    if verdict is Verdict.DIFFERENT and ratio >= TIMES:
        times = "" if low is None or high is None else f"{low:.1f} to {high:.1f}, "
        return f"{other} takes {ratio:.1f} times as long {what} as {base} ({times}{blocks})"
    if verdict is Verdict.DIFFERENT:
        by = f"{abs(ratio - 1):.{0 if abs(ratio - 1) >= 0.095 else 1}%} {'faster' if ratio < 1 else 'slower'}"
        return f"{other} is {by} {what} than {base} ({ends}{blocks})"
    if verdict is Verdict.EQUIVALENT:
        return f"{other} and {base} take the same {what}: {change(ratio)} ({ends}{blocks})"
    return f"cannot tell whether {other} is faster {what} than {base}: {change(ratio)} ({ends}{blocks})"
