"""Writes the reference pages from what they are about: settings, commands, and the public Python API.

    python docs/site/reference.py            # writes docs/reference/*.md
    python docs/site/reference.py --check    # exit code 1 where a page is not what this would write

Settings come from the schema, commands from their parsers, the API from docstrings. A test compares the pages with it.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference"
PUBLIC = {
    "harness": "For notebooks and scripts.",
    "harness.grpo": "The GRPO maths in plain torch, independent of the rest of the harness.",
    "harness.results": "Reading and writing run folders, below `load_results`.",
    "harness.compare": "Runs in arms, verdicts on them, and what is said of them: what the command `compare` prints.",
    "harness.testing": "Contract tests for your own parts; see docs/extending.md.",
    "harness.core.protocols": "What the loop asks of its parts, an engine, a task and a transport.",
}
"""The modules whose public names the API page shows, with what they are for."""
OWN = "package.module:Name"
"""Stands for the type of a part of the user's own."""
WRITTEN_BY = "<!-- Written by `python docs/site/reference.py`. Do not edit. -->"
SPECIAL = {"s": "seconds", "us": "microseconds", "megabytes": "10^6 bytes", "gib": "GiB"}
"""Units by the end of a setting's name; counts say in their meaning what is counted."""


# ---- settings

Json = Mapping[str, Any]


def settings_page() -> str:
    """Return the page of all settings and rules of a scenario."""
    from harness.scenario.rules import RULES
    from harness.scenario.schema import Scenario

    schema = Scenario.model_json_schema()
    sections: list[str] = []
    plain = list(_walk("", schema, schema["$defs"], sections))
    refused: dict[str, list[str]] = {}
    for rule in RULES:
        refused.setdefault(rule.name, []).append(re.sub(r"\{.*?\}", "…", rule.what))
    rules = [f"| `{name}` | {_cell('; '.join(dict.fromkeys(sentences)))} |" for name, sentences in refused.items()]
    return "\n".join(
        [
            "# Settings of a scenario",
            "",
            WRITTEN_BY,
            "",
            "Every key that a scenario may have. On the command line a setting is changed by its dotted key:",
            "`--set loss.kl.coefficient=0.05`. `python -m harness validate NAME --resolved` prints the settings of",
            "a scenario with all defaults, and `python -m harness validate --schema` this page as JSON schema, for",
            "editors.",
            "A file may begin with `extends: NAME`, the scenario that it starts from; its `arms` replace that one's,",
            "and `arms+` come beside them.",
            "",
            "A section may be left out, or given in part. [Rules](#rules) about several settings together are",
            "at the end; an error names the rule that was broken.",
            "",
            "## Top level",
            "",
            *_table(plain),
            *sections,
            "## Rules",
            "",
            "| rule | what it refuses (… stands for a value) |",
            "|---|---|",
            *rules,
            "",
        ]
    )


def _walk(prefix: str, schema: Json, defs: Json, sections: list[str]) -> Iterator[str]:
    """Yield a row for each plain setting, and add the sections among the settings to ``sections``."""
    for name, setting in schema["properties"].items():
        key = f"{prefix}{name}"
        options = _sections_in(setting, defs)
        if not options:
            yield _row(key, setting, name in schema.get("required", ()))
            continue
        meaning = setting.get("description") or options[0]["description"]  # pydantic leaves out what says the same
        if "default" in setting and setting["default"] is None:
            meaning += " Default: null."
        if _items(setting):
            yield _row(key, setting, name in schema.get("required", ()))
        _add_section(key, meaning, options, setting, defs, sections)


def _add_section(
    key: str, meaning: str, options: Sequence[Json], setting: Json, defs: Json, sections: list[str]
) -> None:
    depth = "#" * min(4, 2 + key.count("."))
    below: list[str] = []
    if len(options) == 1:
        rows = list(_walk(f"{key}.", options[0], defs, below))
        about = options[0].get("description", "").strip()
        told = meaning if _items(setting) is None else f"A list of these: {about}"
        sections += [f"{depth} `{key}`", "", _text(told), "", *_table(rows), *below]
        return
    types = [option["properties"]["type"].get("const", OWN) for option in options]
    usual = (setting.get("default") or {}).get("type")
    choices = ", ".join(f"`{each}`" + (" (default)" if each == usual else "") for each in types)
    sections += [f"{depth} `{key}`", "", f"{_text(meaning)} `{key}.type` is one of {choices}.", ""]
    for kind, option in zip(types, options, strict=True):
        rest = {**option, "properties": {k: v for k, v in option["properties"].items() if k != "type"}}
        rows = list(_walk(f"{key}.", rest, defs, below))
        about = f"{option['properties']['type']['description']} {option.get('description', '')}"
        sections += [f"{depth}# `{key}.type: {kind}`", "", _text(about), "", *_table(rows), *below]
        below = []


def _sections_in(setting: Json, defs: Json) -> list[Json]:
    """Return the sections that a setting may be: several where it has a ``type``."""
    parts = list(_alternatives(setting))
    parts += [part["items"] for part in parts if isinstance(part.get("items"), Mapping)]
    found = [defs[part["$ref"].rpartition("/")[2]] for part in parts if "$ref" in part]
    return [each for each in found if "properties" in each]


def _alternatives(setting: Json) -> Iterator[Json]:
    """Yield what a setting may be, itself first, those within others too."""
    yield setting
    for part in (*setting.get("oneOf", ()), *setting.get("anyOf", ())):
        yield from _alternatives(part)


def _items(setting: Json) -> Json | None:
    return next((part for part in _alternatives(setting) if part.get("type") == "array"), None)


def _row(key: str, setting: Json, required: bool) -> str:
    default = "required" if required else _value(setting["default"]) if "default" in setting else "none"
    cells = (f"`{key}`", _type(setting), default, _bounds(setting), setting["description"])
    unit = SPECIAL.get(key.rpartition(".")[2].rpartition("_")[2])
    if unit:
        cells = (cells[0], cells[1].replace("number", f"number of {unit}", 1), *cells[2:])
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _table(rows: Sequence[str]) -> list[str]:
    if not rows:
        return []
    return ["| setting | type, unit | default | bounds | meaning |", "|---|---|---|---|---|", *rows, ""]


def _value(value: object) -> str:
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if isinstance(value, list | dict) and not value:
        return "none"
    return f"`{json.dumps(value)}`"


def _type(schema: Json) -> str:
    options = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if options:
        names = [_type(option) for option in options if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(names)) + (", null" if len(names) < len(options) else "")
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "object" if "$ref" in schema else "any value")
    if kind == "array":
        if "prefixItems" in schema:
            return f"list of {len(schema['prefixItems'])}: {_type(schema['prefixItems'][0])}"
        return f"list of {_type(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        names = schema.get("propertyNames", {})
        keys = f" (names: {_type(names)})" if "enum" in names else ""
        return f"mapping of {_type(schema['additionalProperties'])}{keys}"
    words = {"integer": "whole number", "boolean": "true or false", "string": "text", "object": "mapping"}
    return words.get(kind, kind)


def _bounds(schema: Json) -> str:
    from harness.settings.base import FORMS

    said = []
    if "minimum" in schema and "maximum" in schema:
        said.append(f"{_number(schema['minimum'])} to {_number(schema['maximum'])}")
    else:
        signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
        said += [f"{sign} {_number(schema[name])}" for name, sign in signs.items() if name in schema]
    if "pattern" in schema:
        said.append(FORMS.get(schema["pattern"], f"of the form `{schema['pattern']}`"))
    elif schema.get("minLength"):
        said.append("not empty")
    if schema.get("minItems") and "prefixItems" not in schema:
        said.append("not empty" if schema["minItems"] == 1 else f"at least {schema['minItems']}")
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("prefixItems", ())[:1]]
    parts += [part for part in (schema.get("items"), schema.get("additionalProperties")) if isinstance(part, Mapping)]
    return ", ".join(dict.fromkeys([*said, *filter(None, map(_bounds, parts))]))


def _number(value: float) -> str:
    if isinstance(value, int) and value > 10**6:
        return {2**32 - 1: "2^32 - 1", 10**9: "10^9"}.get(value, f"{value:,}")
    return f"{value:g}" if value < 1e5 else f"{value:,.0f}"


# ---- commands


def commands_page() -> str:
    """Return the page of all commands, with every argument and the examples of their help."""
    from harness.cli import COMMANDS, command_parser

    lines = [
        "# Commands",
        "",
        WRITTEN_BY,
        "",
        "`grpo-harness COMMAND` and `python -m harness COMMAND` are the same; `--help` after either prints",
        "this reference. Exit codes: 0 fine; 1 the run had to stop, and its message has the figures; 2 bad input, with",
        "the place and the fix; 130 interrupted. `compare --fail-on` has",
        "[codes of its own](../measuring.md#a-gate-for-ci).",
        "",
        "| command | what it does |",
        "|---|---|",
        *(f"| [`{name}`](#{name}) | {_cell(purpose)} |" for name, (_, purpose, _) in COMMANDS.items()),
        "",
    ]
    first = {module: name for name, (module, _, _) in reversed(COMMANDS.items())}
    for name, (module, _, _) in COMMANDS.items():
        short_for = None if first[module] == name else first[module]
        lines += [f"## {name}", "", *_command(name, command_parser(name), short_for)]
    return "\n".join(lines)


def _command(name: str, parser: argparse.ArgumentParser, short_for: str | None = None) -> list[str]:
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    below = [action for action in actions if isinstance(action, argparse._SubParsersAction)]
    shown = [action for action in actions if action.help != argparse.SUPPRESS and action not in below]
    lines = [_text(parser.description or ""), ""] if parser.description else []
    if short_for is not None:
        lines += [f"A short name of [`{short_for}`](#{short_for}), with the same arguments.", ""]
    elif shown:
        lines += ["| argument | default | meaning |", "|---|---|---|", *map(_argument, shown), ""]
    for action in below:
        helps = {choice.dest: choice.help for choice in action._choices_actions}
        for sub, subparser in action.choices.items():
            lines += [
                f"### {name} {sub}",
                "",
                f"{_sentence(helps.get(sub) or sub)}.",
                "",
                *_command(f"{name} {sub}", subparser),
            ]
    commands, rest = _examples(parser.epilog or "")
    if commands:
        lines += ["```bash", *commands, "```", ""]
    return lines + ([_text(rest), ""] if rest else [])


def _argument(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices is not None and not value:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    takes = action.nargs != 0
    value = value or (action.dest.upper() if takes else "")
    many = {"*": f"[{value} ...]", "+": f"{value} [{value} ...]", "?": f"[{value}]"}
    value = many.get(str(action.nargs), value) if takes else ""
    names = [f"`{name} {value}`" if value else f"`{name}`" for name in action.option_strings] or [f"`{value}`"]
    told = (action.help or "") % {**vars(action), "prog": "python -m harness"} if action.help else ""
    default = "" if action.default in (None, False, []) or "default" in told else f"`{action.default}`"
    if action.required and action.option_strings:
        default = "required"
    return "| " + " | ".join(map(_cell, (", ".join(names), default, _sentence(told)))) + " |"


def _examples(epilog: str) -> tuple[list[str], str]:
    """Take a help's last part into its command lines and the text around them."""
    commands: list[str] = []
    rest: list[str] = []
    for line in epilog.splitlines():
        words = line.strip().removeprefix("example:").removeprefix("examples:").strip()
        if words.startswith(("python -m harness", "grpo-harness")) or (commands and commands[-1].endswith("\\")):
            commands.append(words)
        elif line.strip() not in ("example:", "examples:"):
            rest.append(line.strip())
    return commands, "\n".join(rest).strip()


# ---- Python


def python_page() -> str:
    """Return the page of the public modules: a line for each name, and where the site puts their docstrings."""
    lines = [
        "# Python API",
        "",
        WRITTEN_BY,
        "",
        "The public names. Everything else in `harness` may change without notice. The site shows whole",
        "docstrings below each table; in the repository they are in the files that are linked.",
        "",
    ]
    for module, purpose in PUBLIC.items():
        lines += [f"## {module}", "", purpose, "", "| name | what it is |", "|---|---|"]
        others: list[str] = []
        for name, value in public_names(module):
            if not callable(value) or not getattr(value, "__module__", "").startswith("harness"):
                others.append(f"`{name}`")
                continue
            source = Path(inspect.getsourcefile(value) or "").resolve().relative_to(ROOT).as_posix()
            lines.append(f"| [`{name}`](../../{source}) | {_cell(_first_paragraph(value))} |")
        lines += ["", f"Types and constants: {', '.join(others)}.", ""] if others else [""]
        lines += [f"<!-- docstrings: {module} -->", ""]
    return "\n".join(lines)


def public_names(module: str) -> list[tuple[str, Any]]:
    """Return the public names of a module with their values: those of ``__all__``, or the classes that it defines."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None)
    if names is None:
        names = [name for name, value in vars(found).items() if getattr(value, "__module__", "") == module]
    return [(name, getattr(found, name)) for name in names if not name.startswith("_")]


# ---- text


def _first_paragraph(value: object) -> str:
    return (inspect.getdoc(value) or "").split("\n\n")[0]


def _text(text: str) -> str:
    """Write a docstring's text as Markdown: its double backticks are single ones there."""
    return "\n".join(line.strip() for line in text.replace("``", "`").strip().splitlines())


def _cell(text: str) -> str:
    return " ".join(_text(text).replace("|", "\\|").split())


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text else ""


MADE = {"settings.md": settings_page, "commands.md": commands_page, "python.md": python_page}
"""The pages, by name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where a page is another one")
    check = parser.parse_args(arguments).check
    stale = []
    for name, make in MADE.items():
        page, text = PAGES / name, make()
        if page.is_file() and page.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            page.write_text(text, encoding="utf-8")
    print("\n".join(f"{'stale' if check else 'written'}: {PAGES / name}" for name in stale) or "nothing has changed")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
