"""Files of other trainers' settings as dotted keys: YAML, TOML, and words of a command or of a shell script.

Nothing is executed. Of a shell script its assignments, ``${NAME:-default}`` and sums of whole numbers are followed; a
value that only a shell can tell is ``UNREAD``.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.core.errors import UserError, quoted
from harness.core.named_files import display
from harness.core.regular_files import read_regular
from harness.scenario.problems import as_user_error
from harness.scenario.tree import MOST_BYTES, MOST_LEVELS, MOST_VALUES, parse_document, parse_yaml

UNREAD = "(computed by the shell)"
_SUMS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
}  # fmt: skip
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()$`]|\([^()$`]*\))*)\)\)")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^{}]*))?\})")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
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
    text = _ARITHMETIC.sub(lambda match: "".join(match[0].split()), text.replace("\\\n", " "))
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise UserError(f"it does not read as words of a shell: {error}", where, "close every quote") from None
    start = max((number for number, word in enumerate(words) if word.endswith(".py") or word == "grpo"), default=-1)
    variables: dict[str, str] = {}
    found: dict[str, Any] = {}
    flag, values = "", list[str]()

    def close() -> None:
        if flag:
            read = [_value(value, where) for value in values]
            found[flag] = (read[0] if len(read) == 1 else read) if read else True

    for number, word in enumerate(words):
        if made := None if flags else _OVERRIDE.fullmatch(word.lstrip("(")):
            found[made[1]] = _value(_filled(made[2].rstrip(")"), variables), where)
        elif flags and word.startswith("--") and number > start:
            close()
            name, sign, value = word.removeprefix("--").partition("=")
            flag, values = name.replace("-", "_"), [_filled(value, variables)] if sign else []
        elif flag and word not in ("$@", "&&", "||", ";", "|"):
            values.append(_filled(word, variables))
        elif assigned := _ASSIGNED.fullmatch(word):
            variables[assigned[1]] = _filled(assigned[2], variables)
    close()
    if not found:
        what = f"no setting was found: it has no words {'--flag value' if flags else 'key.of.a.setting=value'}"
        raise UserError(what, where, "name a .yaml or .toml file, or the script that starts the trainer")
    return found


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """Return a word with its variables and sums, or ``UNREAD``."""
    for _ in range(3 if len(text) < _LONGEST else 0):
        text = _VARIABLE.sub(lambda match: _of_variable(match, variables), text)[:_LONGEST]
    text = _ARITHMETIC.sub(lambda match: _sum(match[1], variables), text)
    return UNREAD if "$" in text or "`" in text or UNREAD in text else text


def _of_variable(match: re.Match[str], variables: Mapping[str, str]) -> str:
    name, usual = match[1] or match[2], match[3]
    return variables.get(name, UNREAD if usual is None else usual)


def _sum(text: str, variables: Mapping[str, str]) -> str:
    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return int(variables[name])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _SUMS:
                return _SUMS[type(op)](value(left), value(right))
            case _:
                raise ValueError

    try:
        return str(value(ast.parse(text.strip(), mode="eval").body))
    except (ValueError, KeyError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        return UNREAD


def _value(text: str, where: str) -> Any:
    """Return a word's value as Hydra and dataclass parsers read it: numbers, booleans and null, else text."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return None if text in ("None", "null", "") else parse_yaml(text, where)
    except UserError:
        return text if len(text) < _LONGEST else quoted(text)
