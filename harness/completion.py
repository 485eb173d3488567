"""What a shell offers behind TAB, by argcomplete: commands, options, scenarios, profiles, settings and their values.

Each press of the key starts the program, so that names are those of the current folder; what a word does not need is
not imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import argcomplete
from argcomplete.completers import DirectoriesCompleter, FilesCompleter

from harness.core.named_files import SCENARIOS, SUFFIXES, NamedFiles


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell that asks, which ends the process."""
    for action in _actions(parser):
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        completer = _COMPLETERS.get(metavar, FilesCompleter() if action.type is Path else _nothing)
        if not action.choices:
            action.completer = completer  # type: ignore[attr-defined]  # argcomplete's own attribute
    argcomplete.autocomplete(parser, always_complete_options="long")


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
        else:
            yield action


def _nothing(**_: object) -> list[str]:
    return []


def _scenarios(prefix: str, **_: object) -> list[str]:
    return _names(SCENARIOS, prefix)


def _machines(prefix: str, **_: object) -> list[str]:
    from harness.simulate.machine import MACHINES

    return _names(MACHINES, prefix)


def _names(kind: NamedFiles, prefix: str) -> list[str]:
    names = [path.stem for path in kind.files() if path.stem.startswith(prefix)]
    return names + list(FilesCompleter(SUFFIXES)(prefix))


def _settings(prefix: str, **_: object) -> list[str]:
    """Settings that begin so, with ``=``; behind that the values, where they can be listed."""
    from harness.scenario.keys import choices_of, dotted_keys
    from harness.scenario.schema import Scenario

    key, equals, _value = prefix.partition("=")
    if equals:
        return [f"{key}={choice}" for choice in choices_of(key, Scenario)]
    names = list(dotted_keys(Scenario))
    sections = {name.rpartition(".")[0] for name in names}
    return [f"{name}=" for name in names if name.startswith(prefix) and name not in sections]


_COMPLETERS: dict[str, Callable[..., object]] = {
    "SCENARIO": _scenarios,
    "PROFILE": _machines,
    "KEY=VALUE": _settings,
    "DIR": DirectoriesCompleter(),
}
"""By what an argument is called in the help; others take files where they are paths, else nothing."""
