"""Files of other trainers' settings as dotted keys: YAML, TOML, and words of a command or of a shell script.

Nothing is executed. Of a shell script its assignments, ``${NAME:-default}``, and sums and products of whole numbers are
followed; a value that only a shell can tell is ``UNREAD``.
"""

from __future__ import annotations

import math
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.core.errors import UserError, quoted
from harness.core.named_files import display
from harness.core.regular_files import read_regular
from harness.scenario.problems import as_user_error
from harness.scenario.tree import MOST_BYTES, MOST_LEVELS, MOST_VALUES, parse_document, parse_yaml

UNREAD = "(computed by the shell)"
_SUM = re.compile(r"\$\(\(([\w\s+*]+)\)\)")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^{}]*))?\})")
_ASSIGNED = re.compile(r"\(?\+{0,2}([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.DOTALL)
_LONGEST = 2000
"""Characters of one word of a script, its variables filled in."""


def read_settings(path: Path, flags: bool = True) -> dict[str, Any]:
    """Return the settings in a file by their dotted keys: ``.yaml``, ``.toml``, else the words of a command.

    Args:
        path: of the file.
        flags: whether the words are ``--flag value`` of a program; else Hydra's ``key.of.a.setting=value``.

    Raises:
        UserError: it cannot be read, or is not what its name says.
    """
    where = display(path)
    try:
        text = read_regular(path, MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read the file: {what}", where, "name a file of a trainer's settings") from None
    if path.suffix in (".yaml", ".yml"):
        tree = parse_document(text, where, "file of settings", "learning_rate: 1.0e-6")
        if tree.problems:
            raise as_user_error(tree.problems, where)
        read: Any = tree.data
    elif path.suffix == ".toml":
        try:
            read = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise UserError(f"TOML syntax error: {str(error) or 'nested too deep'}", where) from None
    else:
        read = _of_words(text, where, flags)
    found: dict[str, Any] = {}
    for key, value in _flat(read, (), where):
        found[key] = value
        if len(found) > MOST_VALUES:
            raise UserError(f"keys and values are more than {MOST_VALUES:,}", where, "write fewer")
    return found


def _flat(value: Any, path: tuple[str, ...], where: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings; lists of mappings by number."""
    if len(path) > MOST_LEVELS:
        raise UserError(f"mappings are nested more than {MOST_LEVELS} deep", where, "write fewer levels")
    of_mappings = isinstance(value, list) and value and all(isinstance(item, dict) for item in value)
    if isinstance(value, dict) or of_mappings:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(item, (*path, str(key)), where)
    else:
        yield ".".join(path), value


def _of_words(text: str, where: str, flags: bool) -> dict[str, Any]:
    """Return what the words of a script say; flags are those of its last program."""
    text = _SUM.sub(lambda match: "".join(match[0].split()), text.replace("\\\n", " "))
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise UserError(f"it does not read as words of a shell: {error}", where, "close every quote") from None
    start = max((number for number, word in enumerate(words) if word.endswith(".py") or word == "grpo"), default=-1)
    variables: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    flag = ""
    for number, word in enumerate(words):
        if flags and word.startswith("--") and number > start:
            flag, sign, value = word.removeprefix("--").partition("=")
            flag = flag.replace("-", "_")
            found[flag] = [_filled(value, variables)] if sign else []
        elif flag and word not in ("$@", "&&", "||", ";", "|"):
            found[flag].append(_filled(word, variables))
        elif assigned := _ASSIGNED.fullmatch(word):
            key, value = assigned[1], _filled(assigned[2].rstrip(")") if "." in assigned[1] else assigned[2], variables)
            if "." not in key:
                variables[key] = value
            elif not flags:
                found[key] = [value]
    if not found:
        what = f"no setting was found: it has no words {'--flag value' if flags else 'key.of.a.setting=value'}"
        raise UserError(what, where, "name a .yaml or .toml file, or the script that starts the trainer")
    read = {key: [_value(value, where) for value in values] for key, values in found.items()}
    return {key: values[0] if len(values) == 1 else values or True for key, values in read.items()}


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """Return a word with its variables and sums, or ``UNREAD``."""
    for _ in range(3 if len(text) < _LONGEST else 0):
        text = _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], match[3] or UNREAD), text)[:_LONGEST]
    text = _SUM.sub(lambda match: _sum(match[1], variables), text)
    return UNREAD if "$" in text or "`" in text or UNREAD in text else text


def _sum(text: str, variables: Mapping[str, str]) -> str:
    terms = [[variables.get(name.strip(), name) for name in term.split("*")] for term in text.split("+")]
    try:
        return str(sum(math.prod(map(int, term)) for term in terms))
    except ValueError:
        return UNREAD


def _value(text: str, where: str) -> Any:
    """Return a word's value as Hydra and dataclass parsers read it: numbers, booleans and null, else text."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return None if text in ("None", "null", "") else parse_yaml(text, where)
    except UserError:
        return text if len(text) < _LONGEST else quoted(text)
