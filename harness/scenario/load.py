"""Scenario files: found by name or path, laid over what they extend, overridden, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.errors import UserError
from harness.scenario.axes import try_expand
from harness.scenario.check import parse_scenario
from harness.scenario.named_files import SUFFIXES, NamedFiles, display, read_text
from harness.scenario.parse import parse_document, parse_yaml
from harness.scenario.problems import as_user_error
from harness.scenario.schema import Scenario
from harness.scenario.tree import Tree, paths_in, tree_of_key

SCENARIOS = NamedFiles("scenario", "scenarios", "(`python -m harness list` shows them all)")
_OWN_KEYS = ("name", "description")


def load_scenario(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Load a scenario and check it, each of its arms and each point of its sweep.

    Args:
        path_or_name: a YAML file, or the name of one in a scenarios folder.
        overrides: ``key=value`` with dotted keys and YAML values, laid over the file in this order.

    Raises:
        UserError: the file is missing or not YAML, or says something wrong; one error names every problem.
    """
    path = find_scenario(path_or_name)
    tree = _file_tree(path, ())
    tree = Tree({"name": _name_of(path), **tree.data}, tree.origins, tree.problems)
    for override in overrides:
        tree = tree.overlaid(_override_tree(override))
    return _checked(tree, display(path))


def check_data(data: Mapping[str, Any], subject: str) -> Scenario:
    """Check a scenario that was put together from others, each of its arms and each point of its sweep.

    Args:
        data: plain values.
        subject: what to call it in messages.

    Raises:
        UserError: it says something wrong; one error names every problem.
    """
    return _checked(Tree(dict(data), dict.fromkeys(paths_in(data), subject)), subject)


def scenario_folders() -> tuple[Path, ...]:
    """Return the folders in which scenarios are looked up by name."""
    return SCENARIOS.folders()


def scenario_files() -> list[Path]:
    """Return every scenario file by name."""
    return SCENARIOS.files()


def find_scenario(path_or_name: str | Path) -> Path:
    """Return the file for a path or a name.

    Raises:
        UserError: there is none; the message lists the nearest names.
    """
    return SCENARIOS.find(path_or_name)


def _checked(tree: Tree, subject: str) -> Scenario:
    scenario, problems = parse_scenario(tree)
    if scenario is not None:
        _, problems = try_expand(scenario, tree.origins)
    if problems or scenario is None:
        raise as_user_error(problems, subject)
    return scenario


def _file_tree(path: Path, chain: tuple[Path, ...]) -> Tree:
    """Return the data of a file laid over what it extends. A name and a description are not inherited."""
    tree = parse_document(read_text(path), display(path))
    base_name = tree.data.get("extends")
    if base_name is None:
        return tree.without("extends")
    where = tree.origins[("extends",)]
    if not isinstance(base_name, str):
        raise UserError(f"`extends` is {base_name!r}, expected one name or path", where, "write `extends: sync_k1`")
    base_path = _base_path(base_name, path, where)
    chain = (*chain, path.resolve())
    if base_path.resolve() in chain:
        names = [link.stem for link in chain[chain.index(base_path.resolve()) :]] + [base_path.stem]
        raise UserError(f"scenarios extend each other: {' -> '.join(names)}", where, "let one of them stand alone")
    base = _file_tree(base_path, chain).without(*_OWN_KEYS)
    return base.overlaid(tree.without("extends"))


def _base_path(name: str, path: Path, where: str) -> Path:
    beside = [path.parent / name, *(path.parent / f"{name}{suffix}" for suffix in SUFFIXES)]
    for candidate in beside:
        if candidate.is_file():
            return candidate
    try:
        return find_scenario(name)
    except UserError as error:
        raise UserError(f"`extends`: {error.what}", where, error.fix) from None


def _override_tree(override: str) -> Tree:
    key, sign, text = override.partition("=")
    origin = f"--set {override}"
    if not sign or not key.strip() or not all(key.strip().split(".")):
        raise UserError(
            f"--set takes key=value, got {override!r}", None, "write for example --set optimizer.learning_rate=1e-4"
        )
    if key.strip().split(".")[0] == "extends":
        raise UserError("`extends` cannot be overridden", origin, "run the other scenario, or write it into the file")
    return tree_of_key(key.strip(), parse_yaml(text, origin), origin)


def _name_of(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_.+=,-]+", "-", path.stem).lstrip("-.+=,")[:100] or "unnamed"
