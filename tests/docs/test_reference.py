"""The reference pages are what the generator makes of schema, parsers and docstrings, and leave nothing out."""

import importlib.util
import inspect
import re

from harness.cli import COMMANDS, command_parser
from harness.scenario.keys import dotted_keys
from harness.scenario.rules import RULES
from harness.scenario.schema import Scenario
from tests.docs.pages import ROOT

SPEC = importlib.util.spec_from_file_location("reference", ROOT / "docs/site/reference.py")
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)


def test_pages_are_what_the_generator_makes():
    """To write them anew: python docs/site/reference.py."""
    pages = reference.MADE.items()
    assert [name for name, make in pages if (reference.PAGES / name).read_text(encoding="utf-8") != make()] == []


def test_every_setting_is_on_the_page_with_a_meaning():
    page = reference.settings_page()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    meanings = {cells[0].strip("| `"): cells[-1].strip(" |") for cells in rows}
    assert [key for key, meaning in meanings.items() if len(meaning) < 5] == []
    sections = dict(re.findall(r"^#+ `([\w.]+)`\n\n(.+)", page, flags=re.MULTILINE))
    types = {f"{key}.type" for key, about in sections.items() if f"`{key}.type` is one of" in about}
    keys = set(dotted_keys(Scenario))
    assert len(keys) > 180
    assert keys - set(meanings) - set(sections) - types == set()
    assert {rule.name for rule in RULES} <= set(meanings)


def test_every_command_explains_itself_with_an_example():
    for name in COMMANDS:
        parser = command_parser(name)
        examples, _ = reference._examples(parser.epilog)
        assert any(f"harness {name}" in line or f"harness.{name}" in line for line in examples), name
        assert parser.description
        assert [action.dest for action in _actions(parser) if not action.help] == [], name


def _actions(parser):
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for below in action.choices.values():
                yield from _actions(below)
        else:
            yield action


def test_every_public_function_is_documented():
    undocumented = []
    count = 0
    for module in reference.PUBLIC:
        for name, value in reference.public_names(module):
            if not inspect.isclass(value) and not inspect.isfunction(value):
                continue
            parts = {name: value}
            if inspect.isclass(value):
                methods = {key: each for key, each in vars(value).items() if not key.startswith("_")}
                parts |= {f"{name}.{key}": each for key, each in methods.items() if inspect.isfunction(each)}
            count += len(parts)
            undocumented += [f"{module}.{key}" for key, each in parts.items() if not inspect.getdoc(each)]
    assert count > 80
    assert undocumented == []
