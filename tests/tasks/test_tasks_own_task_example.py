"""The example of docs/own_task.md: the page shows the files as they are, and they do what it says."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from harness.scenario import load_scenario
from harness.tasks import JsonlTask

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own_task.md").read_text(encoding="utf-8")
FOLDER = ROOT / "docs" / "examples" / "own_task"


def code_blocks(language: str) -> list[str]:
    return [part.split("```")[0] for part in PAGE.split(f"```{language}\n")[1:]]


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> JsonlTask:
    """The task of the example's scenario, built in the repository's root as the page says."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(ROOT))])
    settings = yaml.safe_load((FOLDER / "own_task.yaml").read_text(encoding="utf-8"))["task"]
    return JsonlTask(settings["train"], settings["reward"], validation_fraction=settings["validation_fraction"])


def test_page_shows_the_reward_function_as_it_is() -> None:
    (shown,) = code_blocks("python")
    _, _, code = (FOLDER / "reward.py").read_text(encoding="utf-8").partition('"""\n\n')
    assert shown == code


def test_page_shows_the_first_prompt_as_it_is() -> None:
    (shown,) = code_blocks("json")
    assert (FOLDER / "prompts.jsonl").read_text(encoding="utf-8").startswith(shown)


def test_page_shows_the_task_of_the_scenario_as_it_is() -> None:
    shown = yaml.safe_load(code_blocks("yaml")[0])["task"]
    assert shown == yaml.safe_load((FOLDER / "own_task.yaml").read_text(encoding="utf-8"))["task"]


def test_page_names_the_scenario_that_is_there() -> None:
    (command,) = code_blocks("bash")
    assert (ROOT / command.split()[-1]).samefile(FOLDER / "own_task.yaml")


def test_scenario_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    scenario = load_scenario(FOLDER / "own_task.yaml")
    assert (scenario.name, scenario.task.type, scenario.model.preset) == ("own_task", "jsonl", "tiny")


def test_a_quarter_of_the_120_prompts_is_held_out(task: JsonlTask) -> None:
    rows = [json.loads(line) for line in (FOLDER / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert (len(rows), len(task.train_prompts), len(task.validation_prompts)) == (120, 90, 30)
    texts = {prompt.text: prompt.ground_truth for prompt in (*task.train_prompts, *task.validation_prompts)}
    assert texts == {row["prompt"]: row["answer"] for row in rows}


@pytest.mark.parametrize(
    ("response", "rewards"),
    [
        ("The red apple fell.", (1.0, 1.0, 1.0)),
        ("The green apple fell.", (0.5, 1.0, 0.5)),
        ("The red apple fell", (0.0, 0.0, 1.0)),
        ("Two apples, both reddish.", (0.0, 1.0, 0.0)),  # whole words only, unlike the built-in task
        ("", (0.0, 0.0, 0.0)),
    ],
)
def test_reward_is_what_the_page_says(task: JsonlTask, response: str, rewards: tuple[float, ...]) -> None:
    assert tuple(task.reward(response, "apple red").values()) == rewards
