"""Plain data to a checked Scenario; pydantic's errors in this project's words."""

from __future__ import annotations

import math
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from harness.scenario.keys import SectionClass, data_path, dotted_keys, field_at, section_classes
from harness.scenario.problems import Path, Problem, dotted, nearest, shown
from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario
from harness.scenario.sections import FORMS
from harness.scenario.tree import Tree

EXPECTED = {
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
BOUNDS = {
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
    problems = list(tree.problems)
    scenario = None
    try:
        scenario = Scenario.model_validate(tree.data)
    except ValidationError as error:
        problems += [_as_problem(details) for details in error.errors(include_url=False)]
    problems = [problem.located(tree.origins) for problem in problems]
    return (None if problems else scenario), problems


def check_variant(tree: Tree) -> tuple[Scenario | None, list[Problem]]:
    """Check a scenario without arms and sweep: keys, types and bounds, then the rules."""
    scenario, problems = parse_scenario(tree)
    if scenario is not None:
        problems = [problem.located(tree.origins) for problem in broken_rules(scenario)]
    return (None if problems else scenario), problems


def _as_problem(details: ErrorDetails) -> Problem:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    path, owners = data_path(details["loc"])
    key = dotted(path)
    if kind == "extra_forbidden":
        return _unknown_key(path, owners, value)
    if kind == "missing" and isinstance(path[-1], int):
        what = f"`{dotted(path[:-1])}` has {path[-1]} items, must have more"
        return Problem(what, _meaning(owners, path), (path[:-1],))
    if kind == "missing":
        return Problem(f"`{key}` is missing: {_purpose(owners, path)}", f"add `{key}`", ((*path[:-1], "type"),))
    if kind == "union_tag_invalid":
        choices = [choice.strip(" '") for choice in str(context["expected_tags"]).split(",")]
        return _not_a_choice((*path, "type"), context["tag"], choices)
    if kind == "literal_error":
        return _not_a_choice(path, value, [str(choice) for choice in _choices(owners, path)])
    if kind in BOUNDS:
        name, words = BOUNDS[kind]
        return Problem(f"`{key}` is {shown(value)}, must be {words} {context[name]}", _meaning(owners, path), (path,))
    if kind in EXPECTED:
        return _wrong_type(path, owners, value, EXPECTED[kind])
    return Problem(
        f"`{key}` is {shown(value)}: {_other(kind, details['msg'], context)}", _meaning(owners, path), (path,)
    )


def _unknown_key(path: Path, owners: tuple[SectionClass, ...], value: object) -> Problem:
    key, word = dotted(path), str(path[-1])
    known = [name for owner in owners for name in owner.model_fields]
    here = dotted(path[:-1]) + "." if len(path) > 1 else ""
    fix = "did you mean " + " or ".join(f"`{here}{name}`" for name in nearest(word, known, 2)) + "?"
    if "." in word or not nearest(word, known):
        fix = _elsewhere(path, word) or f"valid here: {', '.join(known)}"
    return Problem(f"unknown key `{key}`", fix, (path,))


def _elsewhere(path: Path, word: str) -> str | None:
    for other in section_classes(path[:-1]):
        if word in other.model_fields and "type" in other.model_fields:
            section = dotted(path[:-1])
            return (
                f"it belongs to `{section}.type: {other.model_fields['type'].default}`: set that type, or leave it out"
            )
    if "." in word and word in set(dotted_keys()):
        return f"dotted keys are for --set, arms and sweep; here write `{word.split('.')[0]}:` and the rest below it"
    by_leaf: dict[str, str] = {}
    for key in dotted_keys():
        by_leaf.setdefault(key.rsplit(".", 1)[-1], key)
    found = nearest(word.rsplit(".", 1)[-1], by_leaf)
    return f"did you mean `{by_leaf[found[0]]}`?" if found else None


def _not_a_choice(path: Path, value: object, choices: list[str]) -> Problem:
    found = nearest(value, choices) if isinstance(value, str) else []
    guess = f"did you mean `{found[0]}`? " if found else ""
    what = f"`{dotted(path)}` is {shown(value)}, which is none of its values"
    return Problem(what, f"{guess}valid: {', '.join(choices)}", (path,))


def _wrong_type(path: Path, owners: tuple[SectionClass, ...], value: object, expected: str) -> Problem:
    key = dotted(path)
    fix = _meaning(owners, path)
    if expected == "true or false" and isinstance(value, str):
        fix = "write true or false, without quotes (yes, no, on and off are text)"
    elif expected.endswith("number") and isinstance(value, str) and _is_number(value):
        fix = f"leave the quotes out: {path[-1]}: {value}"
    elif expected == "a list" and not isinstance(value, dict) and value is not None:
        fix = f"put it in brackets: {path[-1]}: [{value}]"
    elif expected == "text" and not isinstance(value, list | dict) and value is not None:
        fix = f"put it in quotes: {path[-1]}: '{shown(value)}'"
    return Problem(f"`{key}` is {shown(value)}, expected {expected}", fix, (path,))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _other(kind: str, message: str, context: dict[str, Any]) -> str:
    match kind:
        case "too_short" | "too_long":
            bound = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
            return f"has {context['actual_length']} items, must have {bound}"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters"
        case "string_pattern_mismatch":
            return f"must be {FORMS.get(context['pattern'], context['pattern'])}"
    return message


def _purpose(owners: tuple[SectionClass, ...], path: Path) -> str:
    field = field_at(owners, path[-1])
    return (field.description if field else None) or "it has no default"


def _meaning(owners: tuple[SectionClass, ...], path: Path) -> str | None:
    """Say what a setting is, with its default: the fix where no better one is known."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    field = field_at(owners, path[-1]) if path else None
    if field is None or not field.description:
        return None
    plain = isinstance(field.default, int | float | str) and field.default != ""
    default = f" (default: {_yaml_scalar(field.default)})" if plain else ""
    return f"{path[-1]}: {field.description}{default}"


def _yaml_scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _choices(owners: tuple[SectionClass, ...], path: Path) -> tuple[object, ...]:
    field = field_at(owners, path[-1])
    return get_args(field.annotation) if field else ()
