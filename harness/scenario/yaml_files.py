"""YAML that people write, read in one place: scenarios, probe profiles and machine profiles.

Every value remembers its line, and all problems of a file are told at once. Scalars follow YAML 1.2: ``1e-5`` is a
number; ``yes``, ``no``, ``on``, ``off``, ``1:30`` and dates are text. Size, depth, values, digits and aliases are
bounded, so that a text is refused within a second or read within one.
(ruamel.yaml takes three times as long on our files, stops at the first key written twice and bounds no aliases.)
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from harness.core.errors import UserError
from harness.core.named_files import NamedFiles, display
from harness.core.regular_files import read_regular
from harness.scenario.check import problems_of
from harness.scenario.keys import foreign_keys, lapsed_keys
from harness.scenario.problems import Path as KeyPath
from harness.scenario.problems import Problem, as_user_error, dotted, shown
from harness.scenario.schema import Scenario

MOST_BYTES = 256 * 2**10
"""Five times the largest file of ours, a machine profile. The parser takes 4 s for a MB."""
MOST_VALUES = 20_000
"""Keys and values of a text; the parser takes 20 us for each."""
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
_TAG = "tag:yaml.org,2002:"
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
Model = TypeVar("Model", bound=BaseModel)


# ---- files, by name or path


def read_tree(files: NamedFiles, path: Path) -> Tree:
    """Return what stands in a file.

    Raises:
        UserError: it cannot be read, is no UTF-8 or no YAML, or its top is no mapping.
    """
    return parse_document(read_text(path), display(path), files.kind, files.example)


def load_checked(
    files: NamedFiles, path_or_name: str | Path, model: type[Model], broken_rules: Callable[[Model], list[Problem]]
) -> Model:
    """Load a file of settings and check it; its name is the file's where it gives none.

    Args:
        files: the kind of file.
        path_or_name: a YAML file, or the name of one.
        model: class of its settings.
        broken_rules: returns a problem for each rule that the settings break.

    Raises:
        UserError: the file is missing or not YAML, or says something wrong; one error names every problem.
    """
    path = files.find(path_or_name)
    tree = read_tree(files, path)
    problems = list(tree.problems)
    try:  # as JSON, whose lists are tuples too
        checked = model.model_validate_json(json.dumps({"name": path.stem, **tree.data}))
        problems += broken_rules(checked)
    except ValidationError as error:
        problems += problems_of(error, model)
    if problems:
        raise as_user_error([problem.located(tree.origins) for problem in problems], display(path))
    return checked


def read_text(path: Path) -> str:
    """Return the text of a file that a person wrote.

    Raises:
        UserError: it is not UTF-8, far too large, or cannot be read.
    """
    try:
        return read_regular(path, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"the file is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x})"
        raise UserError(what, display(path), "save it as UTF-8") from None
    except OSError as error:
        fix = "name a file of settings that may be read"
        raise UserError(f"cannot read the file: {error.strerror}", display(path), fix) from None


# ---- settings laid over one another: files, ``extends``, arms, sweep points and ``--set``


@dataclass(frozen=True, slots=True)
class Tree:
    """Plain data, the place where each value was written, and what was wrong with the text itself."""

    data: dict[str, Any]
    origins: dict[KeyPath, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def overlaid(self, *tops: Tree) -> Tree:
        """Return this tree with one layer of settings laid over it: mappings merge, anything else is replaced.

        Where the layer names another ``type`` for a section, the keys that only the old type has are dropped, and where
        it makes something else of it, the values that held for the old kind (``HoldsFor``). It keeps what it sets.

        Args:
            tops: the layer, in order: a file, or what all of ``--set``, or an arm and its point, change.
        """
        layer = frozenset(path for top in tops for path in paths_in(top.data))
        tree = self
        for top in tops:
            tree = tree._overlaid(top, layer)
        return tree

    def _overlaid(self, top: Tree, layer: frozenset[KeyPath]) -> Tree:
        data = _merged(self.data, top.data, (), layer)
        kept = {path: self.origins[path] for path in top.origins if path in self.origins and self._merges(top, path)}
        return Tree(data, {**self.origins, **top.origins, **kept}, self.problems + top.problems)

    def _merges(self, top: Tree, path: KeyPath) -> bool:
        return isinstance(value_at(self.data, path), dict) and isinstance(value_at(top.data, path), dict)

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


def paths_in(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of a value and of everything in it."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths_in(item, (*path, key))


def value_at(value: Any, path: KeyPath) -> Any:
    """Return what stands at a path of nested mappings, or None."""
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _merged(base: dict[str, Any], top: dict[str, Any], path: KeyPath, layer: frozenset[KeyPath]) -> dict[str, Any]:
    dropped = foreign_keys(path, top["type"], Scenario) if "type" in top else frozenset()
    dropped |= {key for key in lapsed_keys(path, base, {**base, **top}, Scenario) if (*path, key) not in layer}
    merged = {key: value for key, value in base.items() if key not in dropped}
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = _merged(below, value, (*path, key), layer)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


# ---- text to values


def parse_yaml(text: str, source: str) -> Any:
    """Return the plain value of one YAML document, such as the value in ``--set key=value``.

    Raises:
        UserError: the text is not YAML, or a key is written twice in one block.
    """
    builder = _Builder(source)
    value = builder.build(_compose(text, source), ())
    if builder.problems:
        first = builder.problems[0]
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
    builder = _Builder(source)
    data = builder.build(_compose(text, source), ())
    if not isinstance(data, dict):
        found = "nothing: the file is empty" if data is None else shown(data)
        raise UserError(f"a {kind} is a mapping of `key: value` lines, found {found}", source, f"write `{example}`")
    return Tree(data, builder.origins, tuple(builder.problems))


class _Composer(Reader, Scanner, Parser, Composer, BaseResolver):
    """Text to nodes, with YAML 1.2's idea of what a plain scalar is."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self._levels = self._values = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Compose a value and what is in it, as far as the bounds go.

        Raises:
            _TooMuch: there are too many levels or values.
        """
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._values += 1
        if self._values > MOST_VALUES:
            raise _TooMuch(f"keys and values are more than {MOST_VALUES:,}", mark, "write fewer")
        if self._levels > MOST_LEVELS:
            raise _TooMuch(f"mappings and lists are nested more than {MOST_LEVELS} deep", mark, "write fewer levels")
        self._levels += 1
        node: Node | None = super().compose_node(parent, index)
        self._levels -= 1
        return node


class _TooMuch(Exception):
    """A text goes beyond a bound: what, where and the fix."""


_Composer.add_implicit_resolver(_TAG + "bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Composer.add_implicit_resolver(_TAG + "null", re.compile("^(?:null|Null|NULL|~|)$"), ["n", "N", "~", ""])
_Composer.add_implicit_resolver(_TAG + "int", re.compile(NUMBER_PATTERNS["int"]), list("-+0123456789"))
_Composer.add_implicit_resolver(_TAG + "float", re.compile(NUMBER_PATTERNS["float"]), list("-+.0123456789"))


def _compose(text: str, source: str) -> Node | None:
    try:
        return _Composer(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
        details = ", ".join(part for part in (error.context, error.problem) if part)
        fix = "check the indentation, the colons and the quotes up to there; indent with spaces, never tabs"
        raise UserError(f"YAML syntax error: {details}", place, fix) from None
    except yaml.YAMLError as error:
        raise UserError(f"YAML syntax error: {error}", source, "save the file as plain UTF-8 text") from None
    except _TooMuch as error:
        what, mark, fix = error.args
        raise UserError(what, f"{source}, line {mark.line + 1}", fix) from None


class _Builder:
    """Nodes to plain values; notes where each one stands and which keys were written twice."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.origins: dict[KeyPath, str] = {}
        self.problems: list[Problem] = []
        self._open: set[int] = set()
        self._built: set[int] = set()
        self.repeated = 0

    def build(self, node: Node | None, path: KeyPath) -> Any:
        if node is None:
            return None
        self.repeated += id(node) in self._built
        if self.repeated > MOST_REPEATED:
            what = f"aliases repeat more than {MOST_REPEATED:,} values"
            raise UserError(what, self._place(node), "write fewer of them, and none within another")
        self._built.add(id(node))
        if path:
            self.origins.setdefault(path, self._place(node))
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        if id(node) in self._open:
            raise UserError("an alias contains itself", self._place(node), "write the value out")
        self._open.add(id(node))
        value = self._mapping(node, path) if isinstance(node, MappingNode) else self._sequence(node, path)
        self._open.discard(id(node))
        return value

    def _place(self, node: Node) -> str:
        return f"{self.source}, line {node.start_mark.line + 1}"

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                raise UserError("a key must be one word", self._place(key_node), "write `key: value`")
            key = self._text(key_node)
            here = (*path, key)
            if key in data:
                what = f"`{dotted(here)}` is written twice (first: {self.origins[here]})"
                self.problems.append(Problem(what, "keep one of them", where=self._place(key_node)))
                continue
            self.origins[here] = self._place(key_node)
            data[key] = self.build(value_node, here)
        return data

    def _sequence(self, node: Node, path: KeyPath) -> list[Any]:
        assert isinstance(node, SequenceNode)
        return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]

    def _scalar(self, node: ScalarNode) -> Any:
        text, kind = self._text(node), node.tag.removeprefix(_TAG)
        if kind in NUMBER_PATTERNS and len(text) > MOST_DIGITS:
            what = f"the number {text[:20]}... has {len(text)} characters, must have at most {MOST_DIGITS}"
            raise UserError(what, self._place(node), "write a plain number")
        value = self._value(node, kind, text)
        if isinstance(value, int | float) and abs(value) > MOST_NUMBER and not text.lstrip("+-").startswith("."):
            raise UserError(f"the number {text} is beyond {MOST_NUMBER:g}", self._place(node), "write a smaller one")
        return value

    def _value(self, node: ScalarNode, kind: str, text: str) -> Any:
        try:
            match kind:
                case "null":
                    return None
                case "bool":
                    return text.lower() == "true"
                case "int":
                    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
                case "float":
                    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
                case "str":
                    return text
                case _:
                    raise UserError(f"the YAML tag {node.tag} is not supported", self._place(node), "leave it out")
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{text[:40]!r} is no number", self._place(node), "write a plain number") from None

    def _text(self, node: ScalarNode) -> str:
        """Return a scalar's text, which files and commands can take: without null bytes and halves of pairs."""
        text = str(node.value)
        odd = _NO_TEXT.search(text)
        if odd is not None:
            what = f"the text {text[: odd.start()][-20:]!r} is followed by U+{ord(odd[0]):04X}, which no text may hold"
            raise UserError(what, self._place(node), "leave it out; characters beyond U+FFFF are written as they are")
        return text
