"""docs/learner.md leaves no setting, value, rule or scenario of a Learner's ranks out."""

import re
from pathlib import Path
from typing import get_args

from harness.scenario.rules.learner import RULES
from harness.settings.learner import Balance, LearnerSettings, MeshSettings, Publish, Sharding

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "learner.md").read_text(encoding="utf-8")
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
NAMED = set(re.findall(r"[a-z0-9_]+", " ".join(re.findall(r"`([^`]+)`", PROSE))))


def test_the_page_names_every_setting_value_and_rule() -> None:
    wanted = {*LearnerSettings.model_fields, *MeshSettings.model_fields}
    wanted |= {*get_args(Sharding), *get_args(Balance), *get_args(Publish)}
    wanted |= {rule.name for rule in RULES}
    assert sorted(wanted - NAMED) == []


def test_the_page_has_a_row_for_every_scenario_of_ranks() -> None:
    rows = set(re.findall(r"^\| `([a-z0-9_]+)` \|", PAGE, flags=re.MULTILINE))
    files = {path.stem for path in (ROOT / "scenarios").glob("*.yaml") if "ranks: " in path.read_text(encoding="utf-8")}
    assert files - rows == set()
    assert all((ROOT / "scenarios" / f"{name}.yaml").exists() for name in re.findall(r"harness run (\w+)", PAGE))
