"""A rule between settings as a row: its name, when it is broken, the sentence that says so, and what to write instead.

In a sentence ``{max_lag}`` stands for the value of that setting. Which settings are at fault is read off it: every
dotted key, every key with an underscore, and every setting whose value is shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from pydantic import BaseModel

from harness.scenario.keys import classes_at, dotted_keys
from harness.scenario.problems import Problem, broken
from harness.scenario.schema import Scenario

_SHOWN = re.compile(r"\{([\w.]+)\}")
_WORD = re.compile(r"\{?[a-z]\w*(?:\.\w+)*")


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table.

    Attributes:
        name: that errors and tests call it by. Of rows with one name a scenario is told the first that it breaks.
        breaks: returns something true for a scenario that breaks it. A mapping has further values for the texts.
        what: the sentence.
        fix: what to write instead.
        also: dotted keys that are at fault too.
    """

    name: str
    breaks: Callable[[Scenario], object]
    what: str
    fix: str
    also: tuple[str, ...] = ()

    def problem_of(self, scenario: Scenario, values: object) -> Problem:
        """Return the problem of a scenario that breaks the rule, with what ``breaks`` returned."""
        known: Mapping[str, Any] = values if isinstance(values, Mapping) else {}

        def own_values(text: str) -> str:
            return _SHOWN.sub(lambda match: written(known[match[1]]) if match[1] in known else match[0], text)

        def filled(text: str) -> str:
            return _SHOWN.sub(lambda match: written(value_of(scenario, match[1])), own_values(text))

        words = _WORD.findall(own_values(self.what))
        named = (word.lstrip("{") for word in words if word.startswith("{") or "." in word or "_" in word)
        keys = dict.fromkeys(word for word in (*named, *self.also) if word in _keys())
        return broken(f"{filled(self.what)} [rule: {self.name}]", filled(self.fix), *keys)


@cache
def _keys() -> frozenset[str]:
    return frozenset(dotted_keys(Scenario))


def written(value: object) -> str:
    """Write a value as a scenario file has it; a section is only said to be set."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, BaseModel):
        return "set"
    return f"{value:g}" if isinstance(value, float) else str(list(value) if isinstance(value, tuple) else value)


def value_of(scenario: Scenario, key: str) -> object:
    """Return the value of a dotted key; the usual one where a section of this ``type`` has no such setting."""
    try:
        value: object = attrgetter(key)(scenario)
    except AttributeError:
        return usual(key)
    return value


@cache
def usual(key: str) -> object:
    """Return the default of a setting."""
    *sections, name = key.split(".")
    fields = [kind.model_fields[name] for kind in classes_at(tuple(sections), Scenario) if name in kind.model_fields]
    return fields[0].get_default(call_default_factory=True)


def given(scenario: Scenario, *keys: str) -> dict[str, str] | None:
    """Return those of the keys that are not at their default, as ``given``, with ``are``; None if all are."""
    there = [key for key in keys if value_of(scenario, key) != usual(key)]
    return {"given": " and ".join(there), "are": "are" if len(there) > 1 else "is"} if there else None


def fits(scenario: Scenario, condition: str) -> bool:
    """Return whether a setting has one of some values, or none of them: ``max_lag 0``, ``loss.type not naive or own``.

    A section that is there has the value ``set``.
    """
    key, values, listed = _parsed(condition)
    return (written(value_of(scenario, key)) in values) == listed


@cache
def _parsed(condition: str) -> tuple[str, list[str], bool]:
    key, _, values = condition.partition(" ")
    return key, values.removeprefix("not ").split(" or "), not values.startswith("not ")


def must(
    name: str,
    key: str,
    bound: str | None,
    beside: str,
    way_out: str = "",
    why: str = "",
    when: Callable[[Scenario], object] = lambda scenario: True,
) -> Rule:
    """Return the rule that a setting has one of some values while another setting fits a condition.

    Args:
        name: of the rule.
        key: the setting that is bound.
        bound: its values, ``float32 or bfloat16``; None for its default.
        beside: the condition on another setting; see ``fits``.
        way_out: what else to set, ``max_lag to 0``; empty for nothing else.
        why: end of the sentence.
        when: a further condition.
    """
    other = beside.partition(" ")[0]
    ways = [f"leave {key} out"] if bound is None else [f"set {key} to {bound}"]
    if way_out:
        ways = [f"set {way_out}", *ways] if bound is None else [*ways, way_out]
    bound = written(usual(key)) if bound is None else bound
    within = f"{key} {bound}"

    def breaks(scenario: Scenario) -> bool:
        return not fits(scenario, within) and fits(scenario, beside) and bool(when(scenario))

    return Rule(name, breaks, f"{key} is {{{key}}}, must be {bound} with {other} {{{other}}}{why}", ", or ".join(ways))


def only_with(name: str, key: str, other: str, *values: str, why: str = "") -> Rule:
    """Return the rule that a setting means something only where another one has one of these values."""
    return must(name, key, None, f"{other} not {' or '.join(values)}", f"{other} to {any_of(values)}", why)


def together(name: str, key: str, example: str, other: str, value: str) -> tuple[Rule, Rule]:
    """Return the rules that a setting without a default is set where another one has a value, and only there."""
    return Rule(
        name,
        lambda scenario: fits(scenario, f"{other} {value}") and value_of(scenario, key) is None,
        f"{other} is {value}, and {key} is null",
        f"set {key} to {example}",
    ), only_with(name, key, other, value)


def any_of(values: Iterable[object]) -> str:
    """Return ``2, 4 or 8``."""
    *rest, last = map(str, values)
    return f"{', '.join(rest)} or {last}" if rest else last
