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

from harness.scenario.keys import dotted_keys
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
    """Return the value of a dotted key."""
    value: object = attrgetter(key)(scenario)
    return value


def given(scenario: Scenario, *keys: str) -> dict[str, str] | None:
    """Return those of the keys that are not at their default, as ``given``, with ``are``; None if all are."""
    there = [key for key in keys if not _is_default(scenario, key)]
    return {"given": " and ".join(there), "are": "are" if len(there) > 1 else "is"} if there else None


def _is_default(scenario: Scenario, key: str) -> bool:
    section: Any = attrgetter(key.rpartition(".")[0])(scenario)
    name = key.rpartition(".")[2]
    return bool(getattr(section, name) == _default(section.__class__, name))


@cache
def _default(kind: Any, name: str) -> object:
    return kind.model_fields[name].default


def only_with(name: str, key: str, other: str, *values: str, why: str = "") -> Rule:
    """Return the rule that a setting means something only where another one has one of these values."""
    usual = written(value_of(Scenario(), key))
    return Rule(
        name,
        lambda scenario: value_of(scenario, other) not in values and given(scenario, key),
        f"{key} is {{{key}}}, must be {usual} with {other} {{{other}}}{why}",
        f"set {other} to {any_of(values)}, or leave {key} out",
    )


def any_of(values: Iterable[object]) -> str:
    """Return ``2, 4 or 8``."""
    *rest, last = map(str, values)
    return f"{', '.join(rest)} or {last}" if rest else last
