"""Scenario files: found by name or path, laid over what they extend, overridden, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
from harness.errors import UserError
from harness.scenario.axes import try_expand
from harness.scenario.check import parse_scenario
from harness.scenario.parse import parse_document, parse_yaml
from harness.scenario.problems import as_user_error, nearest
from harness.scenario.schema import Scenario
from harness.scenario.tree import Tree, paths_in, tree_of_key

_SUFFIXES = (".yaml", ".yml")
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
    return _checked(tree, _display(path))


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
    """Return the folders in which names are looked up: the current one's, then the project's own."""
    own = Path(harness.__file__).resolve().parents[1] / "scenarios"
    here = Path("scenarios")
    return (here,) if here.resolve() == own else (here, own)


def scenario_files() -> list[Path]:
    """Return every scenario file by name; the current folder's hide the project's own of the same name."""
    by_name: dict[str, Path] = {}
    for folder in scenario_folders():
        for path in sorted(folder.glob("*")):
            if path.suffix in _SUFFIXES:
                by_name.setdefault(path.stem, path)
    return [by_name[name] for name in sorted(by_name)]


def find_scenario(path_or_name: str | Path) -> Path:
    """Return the file for a path or a name.

    Raises:
        UserError: there is none; the message lists the nearest names.
    """
    path = Path(path_or_name)
    if path.suffix in _SUFFIXES or len(path.parts) > 1:
        if path.is_file():
            return path
        folder = "no such folder" if not path.parent.is_dir() else "no such file"
        raise _not_found(f"no scenario file {path} ({folder})", path.stem, _display(path.parent))
    for file in scenario_files():
        if file.stem == str(path_or_name):
            return file
    folders = " and ".join(_display(folder) for folder in scenario_folders())
    raise _not_found(f"no scenario called {str(path_or_name)!r}", str(path_or_name), folders)


def _not_found(what: str, name: str, where: str) -> UserError:
    names = [file.stem for file in scenario_files()]
    close = nearest(name, names, 3)
    guess = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(names) or 'none'}"
    return UserError(what, where, f"{guess} (`python -m harness list` shows them all)")


def _checked(tree: Tree, subject: str) -> Scenario:
    scenario, problems = parse_scenario(tree)
    if scenario is not None:
        _, problems = try_expand(scenario, tree.origins)
    if problems or scenario is None:
        raise as_user_error(problems, subject)
    return scenario


def _file_tree(path: Path, chain: tuple[Path, ...]) -> Tree:
    """Return the data of a file laid over what it extends. A name and a description are not inherited."""
    tree = parse_document(_read(path), _display(path))
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
    beside = [path.parent / name, *(path.parent / f"{name}{suffix}" for suffix in _SUFFIXES)]
    for candidate in beside:
        if candidate.is_file():
            return candidate
    try:
        return find_scenario(name)
    except UserError as error:
        raise UserError(f"`extends`: {error.what}", where, error.fix) from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"the file is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x})"
        raise UserError(what, _display(path), "save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read the file: {error.strerror}", _display(path), "check its permissions") from None


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


def _display(path: Path) -> str:
    resolved = path.resolve()
    return str(resolved.relative_to(Path.cwd())) if resolved.is_relative_to(Path.cwd()) else str(path)
