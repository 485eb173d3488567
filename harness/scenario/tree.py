"""Scenario data before it is checked: plain mappings, and where each value was written.

Files, ``extends``, arms, sweep points and ``--set`` are all laid over one another in this form.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.scenario.keys import foreign_keys
from harness.scenario.problems import Path, Problem


@dataclass(frozen=True, slots=True)
class Tree:
    """Plain data, the place where each value was written, and what was wrong with the text itself."""

    data: dict[str, Any]
    origins: dict[Path, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def overlaid(self, top: Tree) -> Tree:
        """Return this tree with ``top`` laid over it: mappings merge, anything else is replaced.

        Where ``top`` names another ``type`` for a section, the keys that only the old type has are dropped.
        """
        data = _merged(self.data, top.data, ())
        kept = {path: self.origins[path] for path in top.origins if path in self.origins and self._merges(top, path)}
        return Tree(data, {**self.origins, **top.origins, **kept}, self.problems + top.problems)

    def _merges(self, top: Tree, path: Path) -> bool:
        return isinstance(_value_at(self.data, path), dict) and isinstance(_value_at(top.data, path), dict)

    def without(self, *keys: str) -> Tree:
        """Return this tree without some of its top-level keys."""
        return Tree({key: value for key, value in self.data.items() if key not in keys}, self.origins, self.problems)


def split_key(key: str) -> tuple[str, ...]:
    """Split a dotted key; below ``sweep`` and below an arm's name the rest is one key.

    >>> split_key("loss.kl.coefficient"), split_key("sweep.loss.type"), split_key("arms.k4.loss.type")
    (('loss', 'kl', 'coefficient'), ('sweep', 'loss.type'), ('arms', 'k4', 'loss.type'))
    """
    whole = {"sweep": 1, "arms": 2}.get(key.split(".", 1)[0], -1)
    return tuple(key.split(".", whole))


def tree_of_key(key: str, value: Any, origin: str) -> Tree:
    """Return the tree in which only the dotted ``key`` is set."""
    path = split_key(key)
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


def _value_at(value: Any, path: Path) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _merged(base: dict[str, Any], top: dict[str, Any], path: Path) -> dict[str, Any]:
    dropped = foreign_keys(path, top["type"]) if "type" in top else frozenset()
    merged = {key: value for key, value in base.items() if key not in dropped}
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = _merged(below, value, (*path, key))
        else:
            merged[key] = copy.deepcopy(value)
    return merged
