"""What the README says about scenarios, stages and files is so."""

import re
from pathlib import Path

import yaml

from harness.core.trace import Stage
from harness.scenario import Scenario, expand, load_scenario

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_scenario_shown_loads(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(blocks("yaml")[0])
    variants = expand(load_scenario(tmp_path / "mine.yaml"))
    # 2 arms x 3 seeds; the group size is the arm's
    assert [variant.scenario.group_size for variant in variants] == [4, 16, 4, 16, 4, 16]
    assert [variant.scenario.seed for variant in variants] == [0, 0, 1, 1, 2, 2]


def test_the_task_shown_is_a_valid_section() -> None:
    task = Scenario.model_validate(yaml.safe_load(blocks("yaml")[1])).task
    assert (task.type, task.train, task.reward) == ("jsonl", "prompts.jsonl", "my_package.my_module:my_reward")


def test_every_stage_is_explained_once() -> None:
    rows = [line.split("|")[1] for line in README.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row)]
    assert [named.count(stage.value) for stage in Stage] == [1] * len(Stage)


def test_every_scenario_named_on_a_command_line_is_there() -> None:
    named = re.findall(r"SCENARIO=([a-z0-9_]+)\s", README) + re.findall(r"harness run ([a-z0-9_]+)", README)
    assert {"sync_k", "quickstart"} <= set(named)
    assert [name for name in named if not (Path(__file__).parents[2] / "scenarios" / f"{name}.yaml").exists()] == []
