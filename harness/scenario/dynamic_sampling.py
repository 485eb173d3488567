"""Sampling groups without spread again, with the rules that bind it."""

from __future__ import annotations

from harness.core.rewards import SIGNAL_WITHOUT_SPREAD
from harness.scenario.problems import Problem, broken
from harness.scenario.schema import Scenario


def discarded_groups_teach_nothing(scenario: Scenario) -> Problem | None:
    """Groups are discarded only if equal rewards give an advantage of 0."""
    delta = scenario.advantage.delta_for(scenario.loss.type)
    if not scenario.dynamic_sampling.attempts:
        return None
    if scenario.group_size < 2:
        what = f"group_size is {scenario.group_size} with dynamic_sampling: one reward is always equal to itself"
        return broken(what, "set group_size to 2 or more", "group_size", "dynamic_sampling.attempts")
    if delta not in SIGNAL_WITHOUT_SPREAD:
        return None
    by_loss = scenario.advantage.delta is None
    cause, value = ("loss.type", scenario.loss.type) if by_loss else ("advantage.delta", delta)
    what = (
        f"dynamic_sampling with {cause} {value}, where groups of equal rewards have an advantage and are worth keeping"
    )
    fix = "set advantage.delta to another one, such as centered_rewards, or dynamic_sampling.attempts to 0"
    return broken(what, fix, "dynamic_sampling.attempts", cause)


def rollouts_are_equal(scenario: Scenario) -> Problem | None:
    """How many rollouts dynamic sampling generates is not known beforehand."""
    if not scenario.dynamic_sampling.attempts or scenario.endpoint != "reward_at_rollouts":
        return None
    what = "endpoint is reward_at_rollouts with dynamic_sampling, which generates rollouts that are never used"
    fix = "set endpoint to seconds_per_step, or dynamic_sampling.attempts to 0"
    return broken(what, fix, "endpoint", "dynamic_sampling.attempts")


DYNAMIC_SAMPLING_RULES = (discarded_groups_teach_nothing, rollouts_are_equal)
