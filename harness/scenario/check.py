"""Plain data to checked settings: pydantic's errors in this project's words, with the nearest key that there is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from harness.core.named_files import nearest
from harness.scenario.keys import SectionClass, below, classes_at, dotted_keys, of_type, type_of
from harness.scenario.meanings import NOT_OFFERED, SETTING_OF
from harness.scenario.problems import MOST_TOLD, Path, Problem, dotted, odd_letter, shown
from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario
from harness.settings.base import BUILT_IN, FORMS, OWN
from harness.settings.task import FORMS_OF_REWARD

if TYPE_CHECKING:
    from harness.scenario.yaml_files import Tree

_ALIKE, _ALMOST = 0.6, 0.85
"""How much like a key a word has to be to mean it; more where a key of another section is called exactly so."""
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping of `key: value` lines",
    "model_type": "a mapping of `key: value` lines",
    "model_attributes_type": "a mapping of `key: value` lines",
}
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


def parse_scenario(tree: Tree) -> tuple[Scenario | None, list[Problem]]:
    """Check the keys, types and bounds of a scenario.

    Returns:
        the scenario (None where there are problems) and every problem, with the place where it was written.
    """
    problems, scenario = list(tree.problems), None
    try:
        scenario = Scenario.model_validate(tree.data)
    except ValidationError as error:
        problems += problems_of(error, Scenario)
    return (None if problems else scenario), [problem.located(tree.origins) for problem in problems]


def check_variant(tree: Tree) -> tuple[Scenario | None, list[Problem]]:
    """Check a scenario without arms and sweep: keys, types and bounds, then the rules."""
    scenario, problems = parse_scenario(tree)
    if scenario is not None:
        problems = [problem.located(tree.origins) for problem in broken_rules(scenario)]
    return (None if problems else scenario), problems


def problems_of(error: ValidationError, root: SectionClass) -> list[Problem]:
    """Return what pydantic found wrong with the settings of a ``root``; where they were written is not known yet.

    What is beyond the problems that are told is only counted: to look for the nearest key takes milliseconds each.
    """
    found = error.errors(include_url=False)
    told = [_Translation(details, root).problem() for details in found[:MOST_TOLD]]
    return told + [Problem(details["msg"]) for details in found[MOST_TOLD:]]


class _Translation:
    """One of pydantic's errors: ``path`` in the data, and the classes that the section around its last key may have."""

    def __init__(self, details: ErrorDetails, root: SectionClass) -> None:
        self.details, self.root, self.value = details, root, details["input"]
        self.path, self.owners = _data_path(details["loc"], root)
        self.key, self.name = dotted(self.path), self.path[-1] if self.path else ""
        self.field = _field_at(self.owners, next((part for part in reversed(self.path) if isinstance(part, str)), ""))

    def problem(self) -> Problem:
        kind, context = self.details["type"], self.details.get("ctx", {})
        if kind == "extra_forbidden":
            return self._problem(f"unknown key `{self.key}`{odd_letter(self.name)}", self._known_keys())
        if kind == "missing":
            return self._missing()
        if kind in ("union_tag_invalid", "literal_error"):
            return self._not_a_choice(context)
        if kind in _BOUNDS:
            name, words = _BOUNDS[kind]
            return self._problem(f"`{self.key}` is {shown(self.value)}, must be {words} {context[name]}")
        if kind in _EXPECTED:
            what = f"`{self.key}` is {shown(self.value)}, expected {_EXPECTED[kind]}"
            return self._problem(what, self._rewritten(_EXPECTED[kind]))
        return self._problem(f"`{self.key}` is {shown(self.value)}: {_in_words(self.details)}")

    def _problem(self, what: str, fix: str | None = None, path: Path | None = None) -> Problem:
        path = self.path if path is None else path
        return Problem(what, fix or self._meaning(), (path,) if path else ())

    def _meaning(self) -> str | None:
        """Say what the setting is, with its default: the fix where no better one is known."""
        field = self.field
        if field is None or not field.description:
            return None
        default = str(field.default).lower() if isinstance(field.default, bool) else field.default
        plain = isinstance(default, int | float | str) and default != ""
        name = next(part for part in reversed(self.path) if isinstance(part, str))
        return f"{name}: {field.description}" + (f" (default: {default})" if plain else "")

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
        by_leaf = {key.rsplit(".", 1)[-1]: key for key in reversed(keys)}
        if kinds := self._other_types(word):
            chosen = " or ".join(type_of(owner) for owner in self.owners)
            return f"leave it out: it is a setting of `{section}.type: {kinds}`, and not of `{chosen}`"
        if "." in word and word in keys:
            top = word.split(".")[0]
            return f"dotted keys are for --set, arms and sweep; here write `{top}:` and the rest below it"
        found = nearest(word.rsplit(".", 1)[-1], by_leaf)
        if not found:
            return f"valid here: {', '.join(known)}"
        key, kinds = by_leaf[found[0]], self._other_types(found[0])
        return f"did you mean `{key}`" + (f", of `{section}.type: {kinds}`?" if kinds else "?")

    def _other_types(self, key: str) -> str:
        """Return the types, other than the chosen one, with which the section of the last key has a key."""
        found = [other for other in classes_at(self.path[:-1], self.root) if other not in self.owners]
        return ", ".join(type_of(other) for other in found if {key, "type"} <= other.model_fields.keys())

    def _missing(self) -> Problem:
        above = self.path[:-1]
        if isinstance(self.name, int):
            return self._problem(f"`{dotted(above)}` has {self.name} items, must have more", path=above)
        purpose = (self.field.description if self.field else None) or "it has no default"
        typed = any("type" in owner.model_fields for owner in self.owners)
        what, fix = f"`{self.key}` is missing: {purpose}", f"add `{self.key}`"
        return self._problem(what, fix, (*above, "type") if typed else above)

    def _not_a_choice(self, context: dict[str, Any]) -> Problem:
        path, value, expected = self.path, self.value, context.get("expected")
        if expected is None:  # the tag of a section
            path, value, expected = (*self.path, "type"), context["tag"], context["expected_tags"]
        choices = re.findall(r"'([^']*)'", expected)
        if BUILT_IN in self.details["loc"]:
            choices.append("package.module:Name")
        found = nearest(value, choices) if isinstance(value, str) else []
        guess = f"did you mean `{found[0]}`? " if found else ""
        what = f"`{dotted(path)}` is {shown(value)}, which is none of its values"
        return self._problem(what, f"{guess}valid: {', '.join(choices)}", path)

    def _rewritten(self, expected: str) -> str | None:
        """Return how to write the value that was probably meant."""
        value = self.value
        if expected == "true or false" and isinstance(value, str):
            return "write true or false, without quotes (yes, no, on and off are text)"
        if expected.endswith("number") and isinstance(value, str) and value.isascii() and _is_number(value):
            return f"leave the quotes out: {self.name}: {value}"
        if expected == "a list" and not isinstance(value, dict) and value is not None:
            return f"put it in brackets: {self.name}: [{value}]"
        if expected == "text" and not isinstance(value, list | dict) and value is not None:
            return f"put it in quotes: {self.name}: '{shown(value)}'"
        if expected.startswith("a mapping"):
            return self._below_it(value)
        return None

    def _below_it(self, value: object) -> str | None:
        """Return how to write what was given for a whole section: its type, or the one key that it may have meant."""
        section = below(self.owners, self.name)
        if not section or self.root is not Scenario:
            return None
        types = [name for model in section if "type" in model.model_fields for name in _names(model)]
        if isinstance(value, str) and (close := nearest(value, types)):
            return f"write `{self.key}.type={close[0]}` with --set, or `{self.name}: {{type: {close[0]}}}` in a file"
        if self.key == "model" and isinstance(value, str):
            named = f"{{type: folder, path: {value}}}"
            return f"for a Hugging Face model write `model={named}`, for one of the project's own `model.preset=small`"
        keys = list(dict.fromkeys(name for model in section for name in model.model_fields))
        return f"it has keys of its own: {', '.join(keys)}; write for example `{self.key}.{keys[0]}=VALUE`"


def _names(section: SectionClass) -> tuple[str, ...]:
    """Return the names that the ``type`` of a section may have."""
    return get_args(section.model_fields["type"].annotation)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _in_words(details: ErrorDetails) -> str:
    context = details.get("ctx", {})
    match details["type"]:
        case "too_short":
            return f"has {len(details['input'])} items, must have at least {context['min_length']}"
        case "too_long":
            return f"has {len(details['input'])} items, must have at most {context['max_length']}"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters"
        case "string_pattern_mismatch":
            return f"must be {FORMS.get(context['pattern'], context['pattern'])}"
    return details["msg"]


def _data_path(location: tuple[str | int, ...], root: SectionClass) -> tuple[Path, tuple[SectionClass, ...]]:
    """Translate the place of a pydantic error, which also names the chosen ``type`` of sections that have several."""
    path: Path = ()
    owners: tuple[SectionClass, ...] = ()
    classes: tuple[SectionClass, ...] = (root,)
    parts = [part for part in location if part not in ("[key]", BUILT_IN, *FORMS_OF_REWARD)]
    while parts:
        part = parts.pop(0)
        if part == OWN:  # of a name; that of a section is taken with the section
            continue
        path, owners = (*path, part), owners if isinstance(part, int) else classes
        classes = below(classes, part)
        if len(classes) > 1 and parts:
            classes = of_type(classes, parts.pop(0))
    return path, owners


def _field_at(classes: Iterable[SectionClass], key: str) -> FieldInfo | None:
    return next((model.model_fields[key] for model in classes if key in model.model_fields), None)
