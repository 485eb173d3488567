"""YAML that people write, as plain data that know where each value was written, and layers of them over one another.

All problems of a text are told at once. Scalars follow YAML 1.2: ``1e-5`` is a number; ``yes``, ``off``, ``1:30`` and
dates are text. Size, depth, values, digits and aliases are bounded: a text is read or refused within a second.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)

from harness.core.errors import UserError
from harness.scenario.keys import Path, SectionClass, foreign_keys, lapsed_keys
from harness.scenario.problems import Problem, dotted, shown

MOST_BYTES = 256 * 2**10
"""Five times the largest file of ours, a machine profile."""
MOST_VALUES = 20_000
"""Keys and values of a text."""
MOST_LEVELS = 32
"""Mappings and lists within each other, and parts of a dotted key; ours have under 10."""
MOST_NUMBER = 1e30
"""Whatever is computed with settings fits into float32."""
MOST_DIGITS = 64
"""Characters of a number; the longest float has 24."""
MOST_REPEATED = 10_000
"""Values that the aliases of a text may repeat. Aliases of aliases multiply: nine levels of ten make 10^9."""
NUMBER_PATTERNS = {
    "int": r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$",
    "float": r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
}
_KINDS = {
    "null": r"^(?:null|Null|NULL|~|)$",
    "bool": r"^(?:true|True|TRUE|false|False|FALSE)$",
    **NUMBER_PATTERNS,
}
_READ: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() == "true",
    "int": lambda text: int(text, 0 if text[:2] in ("0o", "0x") else 10),
    "float": lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    "str": str,
}


@dataclass(frozen=True, slots=True)
class Tree:
    """Plain data, the place where each value was written, and what was wrong with the text itself."""

    data: dict[str, Any]
    origins: dict[Path, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any], origin: str) -> Tree:
        """Return data of which every value comes from one place."""
        return cls(dict(data), dict.fromkeys(paths_in(dict(data)), origin))

    def overlaid(self, root: SectionClass, *tops: Tree) -> Tree:
        """Return this tree with one layer of settings laid over it: mappings merge, anything else is replaced.

        Where the layer names another ``type`` for a section, the keys that only the old type has are dropped, and where
        it makes something else of it, the values that held for the old kind (``HoldsFor``). It keeps what it sets.

        Args:
            root: class of the whole.
            tops: the layer, in order: a file, or what all of ``--set``, or an arm and its point, change.
        """
        layer = frozenset(path for top in tops for path in paths_in(top.data))
        data, origins, problems = self.data, self.origins, self.problems
        for top in tops:
            kept = {
                path: origins[path]
                for path in top.origins
                if path in origins
                and isinstance(value_at(data, path), dict)
                and isinstance(value_at(top.data, path), dict)
            }
            data, origins = _merged(root, data, top.data, (), layer), {**origins, **top.origins, **kept}
            problems += top.problems
        return Tree(data, origins, problems)

    def without(self, *keys: str) -> Tree:
        """Return this tree without some of its top-level keys."""
        return Tree({key: value for key, value in self.data.items() if key not in keys}, self.origins, self.problems)


def tree_of_key(key: str, value: Any, origin: str) -> Tree:
    """Return the tree in which only the dotted ``key`` is set; below ``sweep`` and an arm's name the rest is one key.

    >>> tree_of_key("loss.kl.coefficient", 1, "").data, tree_of_key("arms.k4.loss.type", "naive", "").data
    ({'loss': {'kl': {'coefficient': 1}}}, {'arms': {'k4': {'loss.type': 'naive'}}})
    """
    path = tuple(key.split(".", {"sweep": 1, "arms": 2}.get(key.split(".", 1)[0], -1)))
    if len(path) > MOST_LEVELS:
        what = f"the key {key[:20]}... has {len(path)} parts, must have at most {MOST_LEVELS}"
        raise UserError(what, origin, "write a setting's dotted key, such as loss.kl.coefficient")
    data: Any = copy.deepcopy(value)
    for part in reversed(path):
        data = {part: data}
    blocks = (path[:length] for length in range(1, len(path)))
    return Tree(data, dict.fromkeys([*blocks, *paths_in(value, path)], origin))


def paths_in(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of a value and of everything in it."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths_in(item, (*path, key))


def value_at(value: Any, path: Path) -> Any:
    """Return what stands at a path of nested mappings, or None."""
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _merged(
    root: SectionClass, base: dict[str, Any], top: dict[str, Any], path: Path, layer: frozenset[Path]
) -> dict[str, Any]:
    dropped = foreign_keys(path, top["type"], root) if "type" in top else frozenset()
    dropped |= {key for key in lapsed_keys(path, base, {**base, **top}, root) if (*path, key) not in layer}
    merged = {key: value for key, value in base.items() if key not in dropped}
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = _merged(root, below, value, (*path, key), layer)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def parse_yaml(text: str, source: str) -> Any:
    """Return the plain value of one YAML document, such as the value in ``--set key=value``.

    Raises:
        UserError: the text is not YAML, or a key is written twice in one block.
    """
    reader = _Reader(text, source)
    value = reader.document()
    if reader.problems:
        first = reader.problems[0]
        raise UserError(first.what, first.where, first.fix)
    return value


def parse_document(text: str, source: str, kind: str = "scenario", example: str = "steps: 60") -> Tree:
    """Return the mapping in a file; twice-written keys are among the tree's problems.

    Args:
        text: of the file.
        source: its name, as errors give it.
        kind: of file, as an error names it.
        example: a line that such a file may have.

    Raises:
        UserError: the text is not YAML, or its top is not a mapping.
    """
    reader = _Reader(text, source)
    data = reader.document()
    if not isinstance(data, dict):
        found = "nothing: the file is empty" if data is None else shown(data)
        raise UserError(f"a {kind} is a mapping of `key: value` lines, found {found}", source, f"write `{example}`")
    return Tree(data, reader.origins, tuple(reader.problems))


class _Reader:
    """The events of a text to plain values; notes where each one stands and which keys were written twice."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.origins: dict[Path, str] = {}
        self.problems: list[Problem] = []
        self._events: Iterator[Any] = iter(())
        self._text = text
        self._anchors: dict[str, tuple[Path, Any] | None] = {}  # None while the value is read
        self._values = self._repeated = 0

    def document(self) -> Any:
        try:
            self._events = iter(yaml.parse(self._text, Loader=yaml.CSafeLoader))
            next(self._events)
            if isinstance(next(self._events), StreamEndEvent):
                return None
            value = self._value(next(self._events), (), 0)
            next(self._events)
            other = next(self._events)
        except yaml.MarkedYAMLError as error:
            details = ", ".join(part for part in (error.context, error.problem) if part)
            raise self._syntax_error(details, error.problem_mark or error.context_mark) from None
        except (yaml.YAMLError, UnicodeError) as error:
            raise UserError(f"YAML syntax error: {error}", self.source, "save the file as plain UTF-8 text") from None
        if not isinstance(other, StreamEndEvent):
            raise self._syntax_error("expected a single document, found another one", other.start_mark)
        return value

    def _syntax_error(self, details: str, mark: Any) -> UserError:
        lines = self._text.split("\n")
        line, column = (mark.line, mark.column) if mark.line < len(lines) else (len(lines) - 1, len(lines[-1]))
        fix = "check the indentation, the colons and the quotes up to there; indent with spaces, never tabs"
        place = f"{self.source}, line {line + 1}, column {column + 1}"
        return UserError(f"YAML syntax error: {details}", place, fix)

    def _place(self, event: Any) -> str:
        return f"{self.source}, line {event.start_mark.line + 1}"

    def _refusal(self, event: Any, what: str, fix: str) -> UserError:
        return UserError(what, self._place(event), fix)

    def _value(self, event: Any, path: Path, level: int) -> Any:
        self._count(event)
        if level > MOST_LEVELS:
            what = f"mappings and lists are nested more than {MOST_LEVELS} deep"
            raise self._refusal(event, what, "write fewer levels")
        if isinstance(event, AliasEvent):
            return self._repeat(event, path)
        if path:
            self.origins.setdefault(path, self._place(event))
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, ScalarEvent):
            value = self._scalar(event)
        elif isinstance(event, MappingStartEvent):
            value = self._mapping(path, level)
        else:
            value = []
            while not isinstance(event_of_item := next(self._events), SequenceEndEvent):
                value.append(self._value(event_of_item, (*path, len(value)), level + 1))
        if event.anchor is not None:
            self._anchors[event.anchor] = path, value
        return value

    def _repeat(self, alias: AliasEvent, path: Path) -> Any:
        """Return the value that an alias stands for, with the places where it was written."""
        if alias.anchor not in self._anchors:
            raise self._syntax_error(f"found undefined alias {alias.anchor!r}", alias.start_mark)
        anchored = self._anchors[alias.anchor]
        if anchored is None:
            raise self._refusal(alias, "an alias contains itself", "write the value out")
        origin, value = anchored
        for below in paths_in(value):
            self._repeated += 1
            if self._repeated > MOST_REPEATED:
                what = f"aliases repeat more than {MOST_REPEATED:,} values"
                raise self._refusal(alias, what, "write fewer of them, and none within another")
            self.origins.setdefault((*path, *below), self.origins[(*origin, *below)])
        return copy.deepcopy(value)

    def _count(self, event: NodeEvent) -> None:
        self._values += 1
        if self._values > MOST_VALUES:
            raise self._refusal(event, f"keys and values are more than {MOST_VALUES:,}", "write fewer")

    def _mapping(self, path: Path, level: int) -> dict[str, Any]:
        data: dict[str, Any] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            self._count(event)
            if not isinstance(event, ScalarEvent):
                raise self._refusal(event, "a key must be one word", "write `key: value`")
            key = self._text_of(event)
            here = (*path, key)
            if key in data:
                what = f"`{dotted(here)}` is written twice (first: {self.origins[here]})"
                self.problems.append(Problem(what, "keep one of them", where=self._place(event)))
            self.origins.setdefault(here, self._place(event))
            data.setdefault(key, self._value(next(self._events), here, level + 1))
        return data

    def _scalar(self, event: ScalarEvent) -> Any:
        text, kind = self._text_of(event), "str"
        if event.tag not in (None, "!"):
            kind = event.tag.removeprefix("tag:yaml.org,2002:")
        elif event.implicit[0] and event.tag is None:
            kind = next((kind for kind, pattern in _KINDS.items() if re.match(pattern, text)), "str")
        if kind in NUMBER_PATTERNS and len(text) > MOST_DIGITS:
            what = f"the number {text[:20]}... has {len(text)} characters, must have at most {MOST_DIGITS}"
            raise self._refusal(event, what, "write a plain number")
        if kind not in _READ:
            raise self._refusal(event, f"the YAML tag {event.tag} is not supported", "leave it out")
        try:
            value = _READ[kind](text)
        except ValueError:
            raise self._refusal(event, f"{text[:40]!r} is no number", "write a plain number") from None
        if isinstance(value, int | float) and abs(value) > MOST_NUMBER and not text.lstrip("+-").startswith("."):
            raise self._refusal(event, f"the number {text} is beyond {MOST_NUMBER:g}", "write a smaller one")
        return value

    def _text_of(self, event: ScalarEvent) -> str:
        text = str(event.value)
        if "\0" in text:
            what = f"the text {text[: text.index(chr(0))][-20:]!r} is followed by U+0000, which no text may hold"
            raise self._refusal(event, what, "leave it out")
        return text
