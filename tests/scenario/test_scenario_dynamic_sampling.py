"""Dynamic sampling as a setting: what its rules refuse, in full, and what the loop is told."""

import pytest

from harness.scenario.loop_plan import loop_plan
from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario
from tests.messages import facts

ON = {"dynamic_sampling": {"attempts": 3}}


def broken(**settings):
    return broken_rules(Scenario.model_validate(settings))


CASES = {
    "equal rewards with an advantage": (
        {**ON, "advantage": {"delta": "max_rewards"}},
        ("discarded_groups_teach_nothing", "", "0"),
        ["dynamic_sampling", "advantage.delta"],
    ),
    "no baseline": (
        {**ON, "loss": {"type": "no_baseline"}},
        ("discarded_groups_teach_nothing", "", "0"),
        ["dynamic_sampling", "loss.type"],
    ),
    "a group of one": (
        {
            **ON,
            "group_size": 1,
            "loss": {"type": "own", "function": "a:b"},
            "advantage": {"delta": "own", "function": "a:b"},
        },
        ("discarded_groups_teach_nothing", "1", "2"),
        ["group_size", "dynamic_sampling"],
    ),
    "equal rollouts": (
        {**ON, "endpoint": "reward_at_rollouts"},
        ("rollouts_are_equal", "", "0"),
        ["endpoint", "dynamic_sampling"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_broken_rule_says_its_name_numbers_fix_and_keys(name, message_is):
    settings, (rule, said, advised), keys = CASES[name]
    (problem,) = broken(**settings)
    what, _, named = problem.what.partition(" [rule: ")
    assert (named, facts(what), facts(problem.fix)) == (f"{rule}]", said, advised)
    assert sorted(".".join(map(str, path)) for path in problem.paths) == sorted(keys)
    message_is(f"{problem.what}\n{problem.fix}")


@pytest.mark.parametrize(
    "settings",
    [
        {"dynamic_sampling": None},
        ON,
        {"dynamic_sampling": {"attempts": 1}},
        {**ON, "advantage": {"delta": "leave_one_out_rewards"}},
        {**ON, "max_lag": 2, "lag_control": "drop", "placement": {"colocated": False}, "replay": {"capacity": 16}},
        {"endpoint": "reward_at_rollouts"},
    ],
)
def test_what_lies_just_inside_is_taken(settings):
    assert broken(**settings) == []


def test_the_loop_is_told_of_the_prompts_that_it_may_draw():
    def told(**settings):
        plan = loop_plan(Scenario.model_validate({"dynamic_sampling": settings}), 100, 10)
        return plan.dynamic_sampling.attempts, plan.num_prompts

    assert told() == (0, 100)
    assert told(attempts=3) == (3, 100)
