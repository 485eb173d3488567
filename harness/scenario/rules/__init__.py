"""The rules that bind several settings, as tables of rows: a condition, a sentence, a fix.

Bounds of one setting stand beside it in ``harness.settings``; whatever ties two together, in one section or in several,
is a row here, by idea: ``loss``, ``parts``, ``learner``, ``checkpoint``,
``task``. ``rule`` has what a row is made of.
"""

from __future__ import annotations

from harness.scenario.problems import Problem
from harness.scenario.rules import checkpoint, learner, loss, parts, task
from harness.scenario.schema import Scenario

RULES = (*loss.RULES, *parts.RULES, *learner.RULES, *checkpoint.RULES, *task.RULES)


def broken_rules(scenario: Scenario) -> list[Problem]:
    """Return a problem for each rule that the scenario breaks, with the rule's name, the values and what to write."""
    problems: dict[str, Problem] = {}
    for rule in RULES:
        values = rule.breaks(scenario)
        if values and rule.name not in problems:
            problems[rule.name] = rule.problem_of(scenario, values)
    return list(problems.values())
