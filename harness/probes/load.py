"""Probe profile files: found by name or path, checked; errors say what, where and what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from harness.core.errors import UserError
from harness.probes.profile import ProbeProfile
from harness.scenario.check import BOUNDS, EXPECTED
from harness.scenario.named_files import NamedFiles, display, read_text
from harness.scenario.parse import parse_document, parse_yaml
from harness.scenario.problems import Path as KeyPath
from harness.scenario.problems import Problem, as_user_error, dotted, nearest, shown

PROFILES = NamedFiles("probe profile", "profiles")


def load_profile(path_or_name: str | Path) -> ProbeProfile:
    """Load a probe profile and check it.

    Args:
        path_or_name: a YAML file, or the name of one in a profiles folder.

    Raises:
        UserError: the file is missing or not YAML, or says something wrong; one error names every problem.
    """
    path = PROFILES.find(path_or_name)
    text, subject = read_text(path), display(path)
    if not isinstance(parse_yaml(text, subject), dict):
        raise UserError("a probe profile is a mapping of `key: value` lines", subject, "write `sampler_hz: 5`")
    tree = parse_document(text, subject)
    try:
        profile = ProbeProfile.model_validate({"name": path.stem, **tree.data})
    except ValidationError as error:
        problems = [_as_problem(details) for details in error.errors(include_url=False)]
    else:
        problems = _broken_rules(profile)
    if problems:
        raise as_user_error([problem.located(tree.origins) for problem in problems], subject)
    return profile


def _broken_rules(profile: ProbeProfile) -> list[Problem]:
    torch, nsight = profile.torch_profiler, profile.nsight
    if torch is None or nsight is None:
        return []
    what = "`torch_profiler` and `nsight` in one profile: only one of them can listen to the GPU in a process"
    return [Problem(what, "leave one of them out", (("torch_profiler",), ("nsight",)))]


def _as_problem(details: ErrorDetails) -> Problem:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    path: KeyPath = tuple(details["loc"])
    key = dotted(path)
    if kind == "extra_forbidden":
        return _unknown_key(path)
    if kind == "literal_error":
        return _not_a_choice(path, value)
    if kind in BOUNDS:
        name, words = BOUNDS[kind]
        return Problem(f"`{key}` is {shown(value)}, must be {words} {context[name]}", _meaning(path), (path,))
    expected = EXPECTED.get(kind)
    if kind in ("too_short", "string_too_short"):
        return Problem(f"`{key}` must not be empty", _meaning(path), (path,))
    if expected is None:
        return Problem(f"`{key}` is {shown(value)}: {details['msg']}", _meaning(path), (path,))
    fix = _meaning(path)
    if expected == "a list" and isinstance(value, str):
        fix = f"put it in brackets: {path[-1]}: [{value}]"
    elif expected == "true or false" and isinstance(value, str):
        fix = "write true or false, without quotes (yes, no, on and off are text)"
    return Problem(f"`{key}` is {shown(value)}, expected {expected}", fix, (path,))


def _unknown_key(path: KeyPath) -> Problem:
    known = list(_section(path[:-1]).model_fields)
    close = nearest(str(path[-1]), known, 2)
    guess = "did you mean " + " or ".join(f"`{dotted((*path[:-1], name))}`" for name in close) + "?"
    return Problem(f"unknown key `{dotted(path)}`", guess if close else f"valid here: {', '.join(known)}", (path,))


def _not_a_choice(path: KeyPath, value: object) -> Problem:
    field = _field(path)
    choices = [str(choice) for choice in get_args(field.annotation)] if field else []
    close = nearest(value, choices) if isinstance(value, str) else []
    guess = f"did you mean `{close[0]}`? " if close else ""
    what = f"`{dotted(path)}` is {shown(value)}, which is none of its values"
    return Problem(what, f"{guess}valid: {', '.join(choices)}", (path,))


def _meaning(path: KeyPath) -> str | None:
    """Say what a setting is: the fix where no better one is known."""
    words = tuple(part for part in path if isinstance(part, str))
    field = _field(words)
    return f"{words[-1]}: {field.description}" if field is not None and field.description else None


def _field(path: KeyPath) -> FieldInfo | None:
    return _section(path[:-1]).model_fields.get(str(path[-1])) if path else None


def _section(path: KeyPath) -> type[BaseModel]:
    """Return the class of the section at a path; the profile itself where the path leads to none."""
    owner: type[BaseModel] = ProbeProfile
    for part in path:
        field = owner.model_fields.get(str(part))
        kinds = (field.annotation, *get_args(field.annotation)) if field else ()
        owner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), owner)
    return owner
