"""YAML text to plain data that remembers the line of each value.

Scalars follow YAML 1.2: ``1e-5`` is a number; ``yes``, ``no``, ``on``, ``off``, ``1:30`` and dates are text.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from harness.core.errors import UserError
from harness.scenario.problems import Path, Problem, dotted, shown
from harness.scenario.tree import Tree

_PREFIX = "tag:yaml.org,2002:"
MOST_REPEATED = 10_000
"""Values that the aliases of a text may repeat. Aliases of aliases multiply: nine levels of ten make 10^9."""
NUMBER_PATTERNS = {
    "int": r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$",
    "float": r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
}


class _Composer(Reader, Scanner, Parser, Composer, BaseResolver):
    """Text to nodes, with YAML 1.2's idea of what a plain scalar is."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)


_Composer.add_implicit_resolver(_PREFIX + "bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Composer.add_implicit_resolver(_PREFIX + "null", re.compile("^(?:null|Null|NULL|~|)$"), ["n", "N", "~", ""])
_Composer.add_implicit_resolver(_PREFIX + "int", re.compile(NUMBER_PATTERNS["int"]), list("-+0123456789"))
_Composer.add_implicit_resolver(_PREFIX + "float", re.compile(NUMBER_PATTERNS["float"]), list("-+.0123456789"))


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
    except RecursionError:
        raise UserError("YAML nested too deeply", source, "write fewer levels") from None


class _Builder:
    """Nodes to plain values; notes where each one stands and which keys were written twice."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.origins: dict[Path, str] = {}
        self.problems: list[Problem] = []
        self._open: set[int] = set()
        self._built: set[int] = set()
        self.repeated = 0

    def build(self, node: Node | None, path: Path) -> Any:
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

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                raise UserError("a key must be one word", self._place(key_node), "write `key: value`")
            key = str(key_node.value)
            here = (*path, key)
            if key in data:
                what = f"`{dotted(here)}` is written twice (first: {self.origins[here]})"
                self.problems.append(Problem(what, "keep one of them", where=self._place(key_node)))
                continue
            self.origins[here] = self._place(key_node)
            data[key] = self.build(value_node, here)
        return data

    def _sequence(self, node: Node, path: Path) -> list[Any]:
        assert isinstance(node, SequenceNode)
        return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]

    def _scalar(self, node: ScalarNode) -> Any:
        text = str(node.value)
        try:
            match node.tag.removeprefix(_PREFIX):
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
