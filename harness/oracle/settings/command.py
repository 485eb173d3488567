"""``python -m harness oracle --settings NAME FILE`` and ``--settings-for NAME SCENARIO``."""

from __future__ import annotations

import argparse
import json
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.core.errors import UserError
from harness.core.named_files import display
from harness.core.terminal_text import plain
from harness.oracle.settings.of_open_instruct import OPEN_INSTRUCT
from harness.oracle.settings.of_prime_rl import PRIME_RL
from harness.oracle.settings.of_trl import TRL
from harness.oracle.settings.of_verl import VERL
from harness.oracle.settings.reading import read_settings
from harness.oracle.settings.table import Table
from harness.oracle.settings.translating import Lost, nested, scenario_of, to_ours, to_theirs
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario

TABLES = {"trl": TRL, "verl": VERL, "open-instruct": OPEN_INSTRUCT, "prime-rl": PRIME_RL}
"""The trainers whose settings are translated, by the names that the command takes."""
TASK = {"task.type": "jsonl", "task.train": "train.jsonl", "task.reward": "rewards:reward"}
"""Stands for data and reward, which are written otherwise elsewhere."""
ASSUMED = "data and reward, as `task` below: name yours there"
_WIDTH, _LONGEST = 110, 1000


def translate(options: argparse.Namespace) -> int:
    """Print the translation of a file.

    Raises:
        UserError: the trainer is not known, or the file cannot be read or translated.
    """
    name = options.settings or options.settings_for
    if options.settings and options.settings_for:
        raise UserError("--settings and --settings-for go in two directions", None, "give one of them")
    if options.step is not None or (options.settings and options.set):
        raise UserError("--step is for a run, --set for a scenario", None, "leave it out, or change what is printed")
    if options.run is None:
        raise UserError("no file was named", None, "name the file of settings, or the scenario")
    if name not in TABLES:
        raise UserError(f"{name!r} has no table", "--settings", f"name one of {', '.join(TABLES)}")
    if options.settings:
        print(scenario_text(TABLES[name], options.run), end="")
    else:
        print(settings_text(TABLES[name], load_scenario(str(options.run), options.set)), end="")
    return 0


def scenario_text(table: Table, path: Path) -> str:
    """Return the scenario that a trainer's file means as YAML, with what is lost, assumed and refused in comments.

    Raises:
        UserError: the file cannot be read, or has what the trainer does not take.
    """
    where = display(path)
    translated = to_ours(table, read_settings(path, table.style != "hydra"), where)
    ours = {"description": f"Settings of {table.name}, from {path.name}"} | translated.ours | TASK
    lines = _head(table, f"translated from {path.name}", translated.lost)
    try:
        scenario_of(ours, where)
    except UserError as error:
        problems = [line for line in str(error).splitlines() if not line.strip().startswith("where:")]
        lines += _comment("Refused here, so that you have to change it:", problems)
    lines += _comment(f"{translated.given} of its keys were translated, and {translated.assumed} that it leaves out.")
    lines += _comment("Assumed, since no file of its settings says it:", (*table.assumes, ASSUMED))
    lines += _comment("Not known here, so not translated:", translated.unknown) if translated.unknown else []
    ordered = sorted(nested(ours).items(), key=lambda item: list(Scenario.model_fields).index(item[0]))
    return "\n".join([*lines, *_yaml(dict(ordered), translated.origin, ()), ""])


def settings_text(table: Table, scenario: Scenario) -> str:
    """Return a trainer's settings that mean a scenario, with what they leave out in comments."""
    theirs, lost = to_theirs(table, scenario)
    lines = _head(table, f"the settings of {scenario.name}", lost)
    lines += _comment("Model, data and reward are not translated, but for the model's path.")
    if scenario.arms or scenario.sweep:
        lines += _comment("Its arms and sweep are left out: --set KEY=VALUE sets what one of them changes.")
    match table.style:
        case "yaml":
            written = yaml.safe_dump(nested(theirs), sort_keys=False, allow_unicode=True).splitlines()
        case "hydra":
            written = [f"{key}={_word(value)}" for key, value in theirs.items()]
        case "flags":
            written = [f"--{key} {_word(value)}" for key, value in theirs.items()]
        case _:
            written = [f"{key} = {json.dumps(value)}" for key, value in theirs.items() if value is not None]
    return "\n".join([*lines, *written, ""])


def _head(table: Table, what: str, lost: Sequence[Lost]) -> list[str]:
    checked = "" if table.loss else ", not checked by its code"
    lines = _comment(f"{table.name} {table.version}{checked}: {what}.")
    of_loss, others = ([f"{each.what}: {each.why}" for each in lost if each.loss is loss] for loss in (True, False))
    if of_loss:
        lines += _comment("No counterpart, and the loss or its data differ by it:", of_loss)
    if others:
        lines += _comment("No counterpart, without an effect on the loss:", others)
    return lines if of_loss else lines + _comment("All of the loss has a counterpart.")


def _comment(title: str, items: Sequence[str] = ()) -> list[str]:
    """Return lines of a comment; what is quoted of files is made safe to print."""
    wrapped = textwrap.wrap(plain(title, _LONGEST), _WIDTH)
    for item in items:
        wrapped += textwrap.wrap(f"- {plain(item.strip(), _LONGEST)}", _WIDTH, subsequent_indent="  ")
    return [f"# {line}" for line in wrapped]


def _yaml(data: Mapping[str, Any], origin: Mapping[str, str], path: tuple[str, ...]) -> Iterator[str]:
    indent = "  " * len(path)
    for key, value in data.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _yaml(value, origin, (*path, key))
        else:
            of = origin.get(".".join((*path, key)))
            yield f"{indent}{key}: {_scalar(value)}" + (f" # {of}" if of else "")


def _scalar(value: Any) -> str:
    is_plain = isinstance(value, str) and value.isidentifier() and yaml.safe_load(value) == value
    return str(value) if is_plain else json.dumps(value)


def _word(value: Any) -> str:
    """Return a value as a shell's word."""
    return shlex.quote(value if isinstance(value, str) else json.dumps(value))
