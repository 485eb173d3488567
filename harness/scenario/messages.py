"""What is wrong with settings, in a reader's words: pydantic's errors, with the nearest key that there is."""

from __future__ import annotations

import math
import re
from collections.abc import Sized
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from harness.core.named_files import nearest
from harness.scenario.foreign_names import NOT_OFFERED, SETTING_OF
from harness.scenario.keys import Path, SectionClass, below, classes_at, dotted_keys, of_type, type_of
from harness.scenario.problems import MOST_TOLD, Problem, dotted, odd_letter, shown
from harness.scenario.schema import Scenario
from harness.settings.base import BUILT_IN, FORMS, PLUGIN
from harness.settings.removed import INSTEAD
from harness.settings.task import FORMS_OF_REWARD

_ALIKE, _ALMOST = 0.6, 0.85
"""How much like a key a word has to be to mean it; more where a key of another section is called exactly so."""
_MAPPING = "a mapping of `key: value` lines"
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
}
_BOUNDS = {
    "greater_than": ", must be above {gt}",
    "greater_than_equal": ", must be at least {ge}",
    "less_than": ", must be below {lt}",
    "less_than_equal": ", must be at most {le}",
    "too_short": ": has {items} items, must have at least {min_length}",
    "too_long": ": has {items} items, must have at most {max_length}",
}


def problems_of(error: ValidationError, root: SectionClass) -> list[Problem]:
    """Return what pydantic found wrong with the settings of a ``root``; where they were written is not known yet.

    What is beyond the problems that are told is only counted: to look for the nearest key takes milliseconds each.
    """
    errors = error.errors(include_url=False)
    told = [_Message(details, root).problem() for details in errors[:MOST_TOLD]]
    return told + [Problem(details["msg"]) for details in errors[MOST_TOLD:]]


class _Message:
    """One of pydantic's errors: ``path`` in the data, and the classes that the section around its last key may have."""

    def __init__(self, details: ErrorDetails, root: SectionClass) -> None:
        self.details, self.root, self.value = details, root, details["input"]
        self.context: dict[str, Any] = details.get("ctx", {})
        self.path, self.owners = _data_path(details["loc"], root)
        self.key, self.name = dotted(self.path), self.path[-1] if self.path else ""
        self.last = next((part for part in reversed(self.path) if isinstance(part, str)), "")
        fields = (owner.model_fields[self.last] for owner in self.owners if self.last in owner.model_fields)
        self.field = next(fields, None)

    def problem(self) -> Problem:
        kind, named = self.details["type"], f"`{self.key}` is {shown(self.value)}"
        if kind == "extra_forbidden":
            return self._unknown_key()
        if kind == "missing":
            return self._missing()
        if kind in ("union_tag_invalid", "literal_error"):
            return self._not_a_choice()
        if kind in _BOUNDS:
            items = len(self.value) if isinstance(self.value, Sized) else 1
            return self._problem(named + _BOUNDS[kind].format(**self.context, items=items))
        if kind in _EXPECTED:
            return self._problem(f"{named}, expected {_EXPECTED[kind]}", self._rewritten(_EXPECTED[kind]))
        if kind == "string_pattern_mismatch":
            return self._problem(f"{named}: must be {FORMS.get(self.context['pattern'], self.context['pattern'])}")
        return self._problem(f"{named}: {re.sub('^[A-Z][a-z]+ should ', 'must ', self.details['msg'])}")

    def _problem(self, what: str, fix: str | None = None, path: Path | None = None) -> Problem:
        path = self.path if path is None else path
        return Problem(what, fix or self._meaning(), (path,) if path else ())

    def _meaning(self) -> str | None:
        """Say what the setting is, with its default: the fix where no better one is known."""
        if self.field is None or not self.field.description:
            return None
        default = self.field.default
        default = str(default).lower() if isinstance(default, bool) else default
        plain = isinstance(default, int | float | str) and default != ""
        return f"{self.last}: {self.field.description}" + (f" (default: {default})" if plain else "")

    def _unknown_key(self) -> Problem:
        if self.root is Scenario and self.key in INSTEAD and self.key not in dotted_keys(Scenario):
            return self._problem(f"`{self.key}` is no longer offered", INSTEAD[self.key])
        return self._problem(f"unknown key `{self.key}`{odd_letter(self.name)}", self._known_keys())

    def _known_keys(self) -> str:
        word, section = str(self.name), dotted(self.path[:-1])
        known = [name for owner in self.owners for name in owner.model_fields]
        keys = list(dotted_keys(self.root))
        elsewhere = [key for key in keys if not section and key.endswith(f".{word}")]
        close = nearest(word, known, 2, _ALMOST if elsewhere else _ALIKE)
        leaf = word.rpartition(".")[2].lower().replace("-", "_")
        if self.root is Scenario and not (section and close) and leaf in NOT_OFFERED | SETTING_OF:
            return NOT_OFFERED.get(leaf) or f"did you mean `{SETTING_OF[leaf]}`?"
        if close and "." not in word:
            here = section + "." if section else ""
            meant = [f"{here}{name}" for name in close] + (elsewhere if len(elsewhere) == 1 else [])
            return "did you mean " + " or ".join(f"`{key}`" for key in meant) + "?"
        if kinds := self._other_types(word):
            chosen = " or ".join(type_of(owner) for owner in self.owners)
            return f"leave it out: it is a setting of `{section}.type: {kinds}`, and not of `{chosen}`"
        if "." in word and word in keys:
            return (
                f"dotted keys are for --set, arms and sweep; here write `{word.split('.')[0]}:` and the rest below it"
            )
        by_leaf = {key.rpartition(".")[2]: key for key in reversed(keys)}
        similar = nearest(word.rpartition(".")[2], by_leaf)
        if not similar:
            return f"valid here: {', '.join(known)}"
        kinds = self._other_types(similar[0])
        return f"did you mean `{by_leaf[similar[0]]}`" + (f", of `{section}.type: {kinds}`?" if kinds else "?")

    def _other_types(self, key: str) -> str:
        """Return the types, other than the chosen one, with which the section of the last key has a key."""
        others = [other for other in classes_at(self.path[:-1], self.root) if other not in self.owners]
        return ", ".join(type_of(other) for other in others if {key, "type"} <= other.model_fields.keys())

    def _missing(self) -> Problem:
        above = self.path[:-1]
        if isinstance(self.name, int):
            return self._problem(f"`{dotted(above)}` has {self.name} items, must have more", path=above)
        purpose = (self.field.description if self.field else None) or "it has no default"
        typed = any("type" in owner.model_fields for owner in self.owners)
        what, fix = f"`{self.key}` is missing: {purpose}", f"add `{self.key}`"
        return self._problem(what, fix, (*above, "type") if typed else above)

    def _not_a_choice(self) -> Problem:
        path, value, expected = self.path, self.value, self.context.get("expected")
        if expected is None:  # the tag of a section
            path, value, expected = (*self.path, "type"), self.context["tag"], self.context["expected_tags"]
        choice = f"{dotted(path)}={value}"
        if self.root is Scenario and choice in INSTEAD:
            return self._problem(f"`{choice}` is no longer offered", INSTEAD[choice], path)
        choices = re.findall(r"'([^']*)'", expected)
        if BUILT_IN in self.details["loc"]:
            choices.append("package.module:Name")
        similar = nearest(value, choices) if isinstance(value, str) else []
        guess = f"did you mean `{similar[0]}`? " if similar else ""
        what = f"`{dotted(path)}` is {shown(value)}, which is none of its values"
        return self._problem(what, f"{guess}valid: {', '.join(choices)}", path)

    def _rewritten(self, expected: str) -> str | None:
        """Return how to write the value that was probably meant."""
        value = self.value
        if expected == _MAPPING:
            return self._below_it(value)
        if isinstance(value, str) and expected == "true or false":
            return "write true or false, without quotes (yes, no, on and off are text)"
        if isinstance(value, str) and expected.endswith("number") and value.isascii() and _is_number(value):
            return f"leave the quotes out: {self.name}: {value}"
        if value is None or isinstance(value, dict):
            return None
        if expected == "a list":
            words = str(value).split() if str(self.name).endswith("command") else [str(value)]
            return f"put it in brackets: {self.name}: [{', '.join(words)}]"
        if expected == "text" and not isinstance(value, list | tuple):
            return f"put it in quotes: {self.name}: '{shown(value)}'"
        return None

    def _below_it(self, value: object) -> str | None:
        """Return how to write what was given for a whole section: its type, or the one key that it may have meant."""
        section = below(self.owners, self.name)
        if not section or self.root is not Scenario:
            return None
        typed: list[Any] = [model.model_fields["type"].annotation for model in section if "type" in model.model_fields]
        types = [name for annotation in typed for name in get_args(annotation)]
        if isinstance(value, str) and (close := nearest(value, types)):
            return f"write `{self.key}.type={close[0]}` with --set, or `{self.name}: {{type: {close[0]}}}` in a file"
        if self.key == "model" and isinstance(value, str):
            named = f"{{type: folder, path: {value}}}"
            return f"for a Hugging Face model write `model={named}`, for one of the project's own `model.preset=small`"
        keys = list(dict.fromkeys(name for model in section for name in model.model_fields))
        return f"it has keys of its own: {', '.join(keys)}; write for example `{self.key}.{keys[0]}=VALUE`"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _data_path(location: tuple[str | int, ...], root: SectionClass) -> tuple[Path, tuple[SectionClass, ...]]:
    """Translate the place of a pydantic error, which also names the chosen ``type`` of sections that have several."""
    path: Path = ()
    owners: tuple[SectionClass, ...] = ()
    classes: tuple[SectionClass, ...] = (root,)
    parts = [part for part in location if part not in ("[key]", BUILT_IN, *FORMS_OF_REWARD)]
    while parts:
        part = parts.pop(0)
        if part == PLUGIN:  # of a name; that of a section is taken with the section
            continue
        path, owners = (*path, part), owners if isinstance(part, int) else classes
        classes = below(classes, part)
        if len(classes) > 1 and parts:
            classes = of_type(classes, parts.pop(0))
    return path, owners
