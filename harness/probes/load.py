"""Probe profile files: found by name or path, checked; errors say what, where and what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

import harness
from harness.errors import UserError
from harness.probes.profile import ProbeProfile
from harness.scenario.parse import parse_document, parse_yaml
from harness.scenario.problems import Path as KeyPath
from harness.scenario.problems import Problem, as_user_error, dotted, nearest, shown

_SUFFIXES = (".yaml", ".yml")
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping of `key: value` lines",
    "model_type": "a mapping of `key: value` lines",
    "model_attributes_type": "a mapping of `key: value` lines",
}


def load_profile(path_or_name: str | Path) -> ProbeProfile:
    """Load a probe profile and check it.

    Args:
        path_or_name: a YAML file, or the name of one in a profiles folder.

    Raises:
        UserError: the file is missing or not YAML, or says something wrong; one error names every problem.
    """
    path = find_profile(path_or_name)
    text, subject = _read(path), _display(path)
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


def profile_folders() -> tuple[Path, ...]:
    """Return the folders in which names are looked up: the current one's, then the project's own."""
    here, own = Path("profiles"), Path(harness.__file__).resolve().parents[1] / "profiles"
    return (here,) if here.resolve() == own else (here, own)


def profile_files() -> list[Path]:
    """Return every profile file by name; the current folder's hide the project's own of the same name."""
    by_name: dict[str, Path] = {}
    for folder in profile_folders():
        for path in sorted(folder.glob("*")):
            if path.suffix in _SUFFIXES:
                by_name.setdefault(path.stem, path)
    return [by_name[name] for name in sorted(by_name)]


def find_profile(path_or_name: str | Path) -> Path:
    """Return the file for a path or a name.

    Raises:
        UserError: there is none; the message lists the nearest names.
    """
    path = Path(path_or_name)
    if path.suffix in _SUFFIXES or len(path.parts) > 1:
        if path.is_file():
            return path
        folder = "no such folder" if not path.parent.is_dir() else "no such file"
        raise _not_found(f"no probe profile {path} ({folder})", path.stem, _display(path.parent))
    for file in profile_files():
        if file.stem == str(path_or_name):
            return file
    folders = " and ".join(_display(folder) for folder in profile_folders())
    raise _not_found(f"no probe profile called {str(path_or_name)!r}", str(path_or_name), folders)


def _not_found(what: str, name: str, where: str) -> UserError:
    names = [file.stem for file in profile_files()]
    close = nearest(name, names, 3)
    return UserError(
        what, where, f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(names) or 'none'}"
    )


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
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return Problem(f"`{key}` is {shown(value)}, must be {words} {context[name]}", _meaning(path), (path,))
    expected = _EXPECTED.get(kind)
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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"the file is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x})"
        raise UserError(what, _display(path), "save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read the file: {error.strerror}", _display(path), "check its permissions") from None


def _display(path: Path) -> str:
    resolved = path.resolve()
    return str(resolved.relative_to(Path.cwd())) if resolved.is_relative_to(Path.cwd()) else str(path)
