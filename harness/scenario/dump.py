"""A scenario written out: the resolved YAML, and the hash of what it says."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import yaml

from harness.scenario.parse import NUMBER_PATTERNS
from harness.scenario.schema import Scenario


class _Dumper(yaml.SafeDumper):
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
    """Return 12 hex digits that depend on what is run, not on its name or description."""
    data = {key: value for key, value in _plain(scenario).items() if key not in ("name", "description")}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]


def _plain(scenario: Scenario) -> dict[str, Any]:
    data = scenario.model_dump(mode="json")
    return {key: _type_first(value) for key, value in data.items() if key not in ("arms", "sweep") or value}


def _type_first(value: Any) -> Any:
    return {"type": value["type"], **value} if isinstance(value, dict) and "type" in value else value
