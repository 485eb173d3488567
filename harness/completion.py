"""What a shell offers behind TAB, by argcomplete: commands, options, scenarios, profiles, settings and their values.

Each press of the key starts the program, so that names are those of the current folder; what a word does not need is
not imported.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import argcomplete
from argcomplete.completers import ChoicesCompleter, DirectoriesCompleter, FilesCompleter

from harness.core.named_files import SCENARIOS, SUFFIXES


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell that asks, which ends the process; by what an argument is called in the help."""
    completers = {
        "SCENARIO": _names,
        "PROFILE": _names,
        "KEY=VALUE": _settings,
        "DIR": DirectoriesCompleter(),
    }
    actions = list(parser._actions)
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):
            actions += [each for below in action.choices.values() for each in below._actions]
        elif not action.choices:
            other = FilesCompleter() if action.type is Path else ChoicesCompleter({})
            action.completer = completers.get(str(action.metavar), other)  # type: ignore[attr-defined]  # argcomplete's
    argcomplete.autocomplete(parser, always_complete_options="long")


def _names(prefix: str, action: argparse.Action, **_: object) -> list[str]:
    kind = SCENARIOS
    if action.metavar == "PROFILE":
        from harness.simulate.machine import MACHINES as kind
    return [path.stem for path in kind.files() if path.stem.startswith(prefix)] + list(FilesCompleter(SUFFIXES)(prefix))


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
