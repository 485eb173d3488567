"""Scenarios: found by name or path, laid over what they extend, overridden, put side by side, and written out."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from harness.core.errors import UserError
from harness.core.experiment import EXPERIMENT_SETTINGS, NAMING, USUAL_BLOCKS
from harness.core.named_files import SCENARIOS, SUFFIXES, VERSUS, NamedFiles, display
from harness.core.regular_files import read_regular
from harness.scenario.axes import expand, parse_scenario
from harness.scenario.messages import problems_of
from harness.scenario.problems import Problem, as_user_error
from harness.scenario.schema import Scenario
from harness.scenario.tree import MOST_BYTES, NUMBER_PATTERNS, Tree, parse_document, parse_yaml, tree_of_key
from harness.settings.removed import without_removed

Model = TypeVar("Model", bound=BaseModel)
AGAIN = "again"
MORE_ARMS = "arms+"
MOST_EXTENDED = 20
"""Scenarios in a row of which each extends the next."""
MOST_OVERRIDES, _LONGEST_ORIGIN = 1000, 200


def load_scenario(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Load a scenario and check it, each of its arms and each point of its sweep.

    Args:
        path_or_name: a YAML file, or the name of one in a scenarios folder.
        overrides: ``key=value`` with dotted keys and YAML values, laid over the file in this order; ``arms={...}``
            replaces all arms.

    Raises:
        UserError: the file is missing or not YAML, or says something wrong; one error names every problem.
    """
    path = SCENARIOS.find(path_or_name)
    tree = _file_tree(path, ())
    tree = Tree({"name": _name_of(path), **tree.data}, tree.origins, tree.problems)
    if len(overrides) > MOST_OVERRIDES:
        what = f"--set is given {len(overrides):,} times, must be at most {MOST_OVERRIDES:,}"
        raise UserError(what, None, "write a scenario file with these settings")
    tops: list[Tree] = []
    for override in overrides:
        if override.partition("=")[0].strip() == "arms":
            tree, *tops = (each.without("arms") for each in (tree, *tops))
        tops.append(_override_tree(override))
    return _checked(tree.overlaid(Scenario, *tops), display(path))


def check_data(data: Mapping[str, Any], subject: str) -> Scenario:
    """Check a scenario that was put together from others, each of its arms and each point of its sweep.

    Args:
        data: plain values.
        subject: what to call it in messages.

    Raises:
        UserError: it says something wrong; one error names every problem.
    """
    return _checked(Tree.of(data, subject), subject)


def _checked(tree: Tree, subject: str) -> Scenario:
    scenario, problems = parse_scenario(tree)
    if scenario is None:
        raise as_user_error(problems, subject)
    expand(scenario, tree.origins, subject)
    return scenario


def _file_tree(path: Path, chain: tuple[Path, ...]) -> Tree:
    """Return the data of a file laid over what it extends.

    What names a scenario is not inherited. ``arms`` replace those of the base, and ``arms+`` come beside them.
    """
    tree = _read(SCENARIOS, path)
    if path.name.endswith(".resolved.yaml"):  # of a run that was made, perhaps by the release before
        tree = Tree(without_removed(tree.data), tree.origins, tree.problems)
    base_name = tree.data.get("extends")
    if base_name is None:
        return tree.without("extends")
    where = tree.origins[("extends",)]
    if not isinstance(base_name, str):
        raise UserError(f"`extends` is {base_name!r}, expected one name or path", where, "write `extends: sync_k1`")
    base_path = _base_path(base_name, path, where)
    chain = (*chain, path.resolve())
    if len(chain) > MOST_EXTENDED:
        what = f"more than {MOST_EXTENDED} scenarios extend each other in a row"
        raise UserError(what, where, "extend a scenario nearer to the first")
    if base_path.resolve() in chain:
        names = [link.stem for link in chain[chain.index(base_path.resolve()) :]] + [base_path.stem]
        raise UserError(f"scenarios extend each other: {' -> '.join(names)}", where, "let one of them stand alone")
    replaced = (*NAMING, "arms") if "arms" in tree.data else NAMING
    whole = _file_tree(base_path, chain).without(*replaced).overlaid(Scenario, tree.without("extends", MORE_ARMS))
    if tree.data.get(MORE_ARMS) is None:
        return whole
    origins = {("arms", *path[1:]): place for path, place in tree.origins.items() if path[0] == MORE_ARMS}
    return whole.overlaid(Scenario, Tree({"arms": tree.data[MORE_ARMS]}, origins))


def _base_path(name: str, path: Path, where: str) -> Path:
    beside = [path.parent / name, *(path.parent / f"{name}{suffix}" for suffix in SUFFIXES)]
    for candidate in beside:
        if os.path.isfile(candidate):  # Path's raises where a name is too long
            return candidate
    try:
        return SCENARIOS.find(name)
    except UserError as error:
        raise UserError(f"`extends`: {error.what}", where, error.fix) from None


def _override_tree(override: str) -> Tree:
    key, sign, text = override.partition("=")
    origin = f"--set {override if len(override) <= _LONGEST_ORIGIN else override[: _LONGEST_ORIGIN - 3] + '...'}"
    if not sign or not key.strip() or not all(key.strip().split(".")):
        what = f"--set takes key=value, got {override[:_LONGEST_ORIGIN]!r}"
        raise UserError(what, None, "write for example --set optimizer.learning_rate=1e-4")
    if key.strip().split(".")[0] == "extends":
        raise UserError("`extends` cannot be overridden", origin, "run the other scenario, or write it into the file")
    return tree_of_key(key.strip(), parse_yaml(text, origin), origin)


def _name_of(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_.+=,-]+", "-", path.stem).lstrip("-.+=,")[:100] or "unnamed"


def _read(files: NamedFiles, path: Path) -> Tree:
    """Return what stands in a file that a person wrote."""
    try:
        text = read_regular(path, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"the file is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x})"
        raise UserError(what, display(path), "save it as UTF-8") from None
    except OSError as error:
        fix = "name a file of settings that may be read"
        raise UserError(f"cannot read the file: {error.strerror}", display(path), fix) from None
    return parse_document(text, display(path), files.kind, files.example)


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
    tree = _read(files, path)
    problems = list(tree.problems)
    try:  # as JSON, whose lists are tuples too
        checked = model.model_validate_json(json.dumps({"name": path.stem, **tree.data}))
        problems += broken_rules(checked)
    except ValidationError as error:
        problems += problems_of(error, model)
    if problems:
        raise as_user_error([problem.located(tree.origins) for problem in problems], display(path))
    return checked


# ---- side by side: ``python -m harness bench A B``


def load_side_by_side(
    names: Sequence[str], overrides: Sequence[str] = (), settings: Mapping[str, Any] | None = None, again: bool = False
) -> Scenario:
    """Load scenarios as the arms of one experiment; the first is the baseline. One alone keeps arms of its own.

    Args:
        names: names or files; the same one twice compares it with itself.
        overrides: ``key=value``, laid over each of them.
        settings: of the experiment, such as ``blocks``; a first scenario without blocks makes ``USUAL_BLOCKS``.
        again: add the first one once more as the arm ``again``: what it differs by is the noise floor.

    Raises:
        UserError: one cannot be loaded, or has arms or a sweep of its own beside others.
    """
    scenarios = [load_scenario(name, overrides) for name in names]
    base, called = scenarios[0], [scenario.name for scenario in scenarios]
    data = base.model_dump(mode="json") | dict(settings or {})
    if data["blocks"] == 1 and "blocks" not in (settings or {}):
        data["blocks"] = USUAL_BLOCKS
    if len(scenarios) > 1:
        arms: dict[str, Any] = {}
        for index, scenario in enumerate(scenarios):
            if kind := "arms" if scenario.arms else "sweep" if scenario.sweep else None:
                what = f"{scenario.name} has {kind} of its own, and cannot be one arm among others"
                fix = f"bench it alone (its arms are compared), or name scenarios without {kind}"
                raise UserError(what, f"scenario {scenario.name}", fix)
            before = called[:index].count(scenario.name)
            arms[f"{scenario.name}-{before + 1}" if before else scenario.name] = _changes(base, scenario)
        data |= {"name": VERSUS.join(dict.fromkeys(called))[:100], "description": f"{' against '.join(arms)}."}
        data |= {"question": "", "minutes": None, "arms": arms}
    if again and AGAIN in data["arms"]:
        what = f"{data['name']} has an arm called {AGAIN!r} already"
        raise UserError(what, f"scenario {data['name']}", "leave --again out")
    if again:
        first = next(iter(data["arms"]), base.name)
        data["arms"] = (data["arms"] or {first: {}}) | {AGAIN: data["arms"].get(first, {})}
    return check_data(data, " ".join(("bench", *names)))


def _changes(base: Scenario, other: Scenario) -> dict[str, Any]:
    """Return what an arm must set so that it is ``other``, laid over ``base``."""
    before, after = base.model_dump(mode="json"), other.model_dump(mode="json")
    changed = {key: value for key, value in after.items() if key not in EXPERIMENT_SETTINGS and value != before[key]}
    if "faults" in changed:  # its delays are laid over the base's one by one
        changed["faults"]["delays"] = dict.fromkeys(base.faults.delays, 0.0) | other.faults.delays
    return changed


# ---- written out


class _Dumper(yaml.CSafeDumper):
    """Quotes text that either version of YAML would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value out."""
        return True


def _text_node(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Escape what YAML readers would fold into a plain line break, such as U+0085."""
    plain = all(character.isprintable() or character == "\n" for character in text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text_node)
for _tag, _pattern in NUMBER_PATTERNS.items():
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list("-+.0123456789"))


def resolved_yaml(scenario: Scenario) -> str:
    """Return the scenario as YAML with every setting written out; loading it gives an equal scenario."""
    return yaml.dump(_plain(scenario), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def scenario_hash(scenario: Scenario) -> str:
    """Return 12 hex digits that depend on what is run, not on what it is called."""
    data = {key: value for key, value in _plain(scenario).items() if key not in NAMING}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]


def _plain(scenario: Scenario) -> dict[str, Any]:
    """Return what is written out: every ``type`` first in its section, and no arms or sweep where there are none."""
    data = scenario.model_dump(mode="json")
    for key, value in data.items():
        if isinstance(value, dict) and "type" in value:
            data[key] = {"type": value["type"], **value}
    return {key: value for key, value in data.items() if key not in ("arms", "sweep") or value}
