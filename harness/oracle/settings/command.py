"""``python -m harness oracle --settings NAME FILE`` and ``--settings-for NAME SCENARIO``."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.core.errors import UserError
from harness.core.named_files import display
from harness.oracle.settings.of_open_instruct import OPEN_INSTRUCT
from harness.oracle.settings.of_prime_rl import PRIME_RL
from harness.oracle.settings.of_trl import TRL
from harness.oracle.settings.of_verl import VERL
from harness.oracle.settings.reading import read_settings
from harness.oracle.settings.table import Table
from harness.oracle.settings.translating import SWITCHES, Lost, Translated, nested, scenario_of, to_ours, to_theirs
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario

TABLES = {"trl": TRL, "verl": VERL, "open-instruct": OPEN_INSTRUCT, "prime-rl": PRIME_RL}
"""The trainers whose settings are translated, by the names that the command takes."""
TASK = {"task.type": "jsonl", "task.train": "train.jsonl", "task.reward": "rewards:reward"}
"""Stands for data and reward, which are written otherwise elsewhere."""
TITLES = (
    (True, "No counterpart, and the loss or its data differ by it:"),
    (False, "No counterpart, without an effect on the loss:"),
)
_PLAIN = re.compile(r"[A-Za-z_](?:[\w./:-]*[\w./-])?")
"""What needs no quotes in YAML, but for the words of ``SWITCHES`` and null."""
_WIDTH = 110


def translate(options: argparse.Namespace) -> int:
    """Print the translation of a file.

    Raises:
        UserError: the trainer is not known, or the file cannot be read or translated.
    """
    name = options.settings or options.settings_for
    if options.settings and options.settings_for:
        raise UserError("--settings and --settings-for go in two directions", None, "give one of them")
    if options.step is not None:
        raise UserError("--step is for a run, and settings have none", "--step", "leave it out")
    if options.run is None:
        raise UserError("no file was named", None, "name the file of settings, or the scenario")
    if name not in TABLES:
        raise UserError(f"{name!r} has no table", "--settings", f"name one of {', '.join(TABLES)}")
    table = TABLES[name]
    if options.settings_for:
        scenario = load_scenario(str(options.run), options.set)
        print(settings_text(table, scenario), end="")
    elif options.set:
        raise UserError(
            "--set changes a scenario, which is not there yet", "--set", "save what is printed, and change it"
        )
    else:
        print(scenario_text(table, options.run), end="")
    return 0


def scenario_text(table: Table, path: Path) -> str:
    """Return the scenario that a trainer's file means as YAML, with what is lost and assumed in comments."""
    where = display(path)
    translated = to_ours(table, read_settings(path, table.style != "hydra"), where)
    ours = {"description": f"Settings of {table.name}, from {path.name}"} | translated.ours | TASK
    scenario_of(ours, where)
    lines = _head(table, f"translated from {path.name}", translated.lost)
    counts = f"{translated.given} of its keys were translated, and {translated.assumed} that it leaves out."
    lines += _comment(
        [counts, "Assumed, since no file of its settings says it:", *(f"- {it}" for it in _assumed(table))]
    )
    if translated.unknown:
        lines += _comment(["Not known here, so not translated:", *(f"- {key}" for key in translated.unknown)])
    ordered = sorted(nested(ours).items(), key=lambda item: list(Scenario.model_fields).index(item[0]))
    return "\n".join([*lines, *_yaml(dict(ordered), translated, ()), ""])


def settings_text(table: Table, scenario: Scenario) -> str:
    """Return a trainer's settings that mean a scenario, with what they leave out in comments."""
    theirs, lost = to_theirs(table, scenario)
    lines = _head(table, f"the settings of {scenario.name}", lost)
    lines += _comment(["Model, data and reward are not translated, but for the model's path."])
    if scenario.arms or scenario.sweep:
        lines += _comment(["Its arms and sweep are left out: --set KEY=VALUE sets what one of them changes."])
    match table.style:
        case "yaml":
            written = yaml.safe_dump(nested(theirs), sort_keys=False, allow_unicode=True).splitlines()
        case "hydra":
            written = [f"{key}={_word(value)}" for key, value in theirs.items()]
        case "flags":
            written = [
                f"--{key} {' '.join(map(_word, value if isinstance(value, list) else [value]))}"
                for key, value in theirs.items()
            ]
        case _:
            written = [f"{key} = {json.dumps(value)}" for key, value in theirs.items() if value is not None]
    return "\n".join([*lines, *written, ""])


def _assumed(table: Table) -> tuple[str, ...]:
    return (*table.assumes, "data and reward, as `task` below: name yours there")


def _head(table: Table, what: str, lost: Sequence[Lost]) -> list[str]:
    checked = "" if table.checked else ", not checked by its code"
    lines = _comment([f"{table.name} {table.version}{checked}: {what}."])
    for of_loss, title in TITLES:
        if those := [each for each in lost if each.loss == of_loss]:
            lines += _comment([title, *(f"- {each.what}: {each.why}" for each in those)])
    if not any(each.loss for each in lost):
        lines += _comment(["All of the loss has a counterpart."])
    return lines


def _comment(sentences: Sequence[str]) -> list[str]:
    return [
        f"# {line}"
        for sentence in sentences
        for line in textwrap.wrap(_printable(sentence), _WIDTH, subsequent_indent="  " if sentence[:2] == "- " else "")
    ]


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)[:1000]


def _yaml(data: Mapping[str, Any], translated: Translated, path: tuple[str, ...]) -> Iterator[str]:
    indent = "  " * len(path)
    for key, value in data.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _yaml(value, translated, (*path, key))
        else:
            origin = translated.origin.get(".".join((*path, key)))
            yield f"{indent}{key}: {_scalar(value)}" + (f" # {_printable(origin)}" if origin else "")


def _scalar(value: Any) -> str:
    plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in (*SWITCHES, "null")
    return str(value) if plain else json.dumps(value)


def _word(value: Any) -> str:
    """Return a value as a shell's word."""
    if isinstance(value, str):
        return shlex.quote(value)
    return (
        "null" if value is None else shlex.quote(json.dumps(value)) if isinstance(value, list | tuple) else str(value)
    )
