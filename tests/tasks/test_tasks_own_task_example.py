"""The example of docs/own_task.md: the page shows the files as they are, and they do what it says."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from harness.scenario.load import load_scenario
from harness.tasks import JsonlTask
from harness.tasks.make import make_task
from harness.tasks.scoring import DirectRewards

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


def test_page_shows_the_files_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.iterdir() if file.is_file()}
    assert code_blocks("python") == [texts[name].partition('"""\n\n')[2] for name in ("reward.py", "parts.py")]
    assert [texts["prompts.jsonl"].startswith(shown) for shown in code_blocks("json")] == [True]
    tasks = [yaml.safe_load(texts[name])["task"] for name in ("parts.yaml", "own_task.yaml")]
    assert [yaml.safe_load(block)["task"] for block in code_blocks("yaml")[:2]] == tasks
    (command,) = code_blocks("bash")
    assert (ROOT / command.split()[-1]).samefile(FOLDER / "own_task.yaml")
    monkeypatch.chdir(ROOT)
    scenario = load_scenario(FOLDER / "own_task.yaml")
    assert (scenario.name, scenario.task.type, scenario.model.preset) == ("own_task", "jsonl", "tiny")


def test_rewards_of_several_parts_are_the_weighted_sum_that_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    task = make_task(load_scenario(FOLDER / "parts.yaml").task)
    assert isinstance(task, JsonlTask)
    prompt = next(prompt for prompt in task.train_prompts if prompt.ground_truth == "apple red")
    said = ["The red apple fell.", "The red apple fell.", f"{prompt.text} No"]
    found = DirectRewards(task.reward, lambda: False)(said, prompt.ground_truth, prompt.row)
    # 1 for both words and a full stop; the third names both and has none: its answer is 1 and its reward 0. The first
    # two differ from one of two others, the third from both. Words: 4, 4, and those of the prompt and one more.
    words = len(prompt.text.split()) + 1
    assert found == [
        {
            "reward": pytest.approx(score - 0.5 * copied + 0.2 * variety + 0.1 * short),
            "format_reward": ended,
            "answer_reward": pytest.approx(1.0 - 0.5 * copied + 0.2 * variety + 0.1 * short),
            "score_reward": score,
            "copied_reward": copied,
            "variety_reward": variety,
            "shortness_reward": short,
        }
        for score, ended, copied, variety, short in [
            (1.0, 1.0, 0.0, 0.5, 1 / 5),
            (1.0, 1.0, 0.0, 0.5, 1 / 5),
            (0.0, 0.0, 1.0, 1.0, 1 / (1 + words)),
        ]
    ]


def test_a_quarter_of_the_120_prompts_is_held_out(task: JsonlTask) -> None:
    rows = [json.loads(line) for line in (FOLDER / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert (len(rows), len(task.train_prompts), len(task.validation_prompts)) == (120, 90, 30)
    texts = {prompt.text: prompt.ground_truth for prompt in (*task.train_prompts, *task.validation_prompts)}
    assert texts == {row["prompt"]: row["answer"] for row in rows}


def test_reward_is_what_the_page_says(task: JsonlTask) -> None:
    expected = {
        "The red apple fell.": (1.0, 1.0, 1.0),
        "The green apple fell.": (0.5, 1.0, 0.5),
        "The red apple fell": (0.0, 0.0, 1.0),
        "Two apples, both reddish.": (0.0, 1.0, 0.0),  # whole words only, unlike the built-in task
        "": (0.0, 0.0, 0.0),
    }
    assert {response: tuple(task.reward(response, "apple red").values()) for response in expected} == expected
