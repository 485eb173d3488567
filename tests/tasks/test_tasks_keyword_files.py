"""Keyword inclusion with prompts from files."""

import json
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.scenario.load import load_scenario
from harness.tasks.keyword_files import KeywordFileTask, keywords_of, read_keyword_prompts

APPLE = ("Write a sentence that includes the words: apple, red.", "The red apple fell from the tree.")
DOG = ("Write a sentence that includes the words: Dog, cat.", "A dog and a CAT slept.")


BOTH = ["task.train=t.jsonl", "task.validation=v.jsonl"]


def written(path: Path, *rows: tuple[str, str]) -> Path:
    lines = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in rows]
    path.write_text("\n".join(lines) + "\n\n")
    return path


def test_keywords_stand_behind_the_last_colon() -> None:
    found = {
        "Use these: apple ,  red": ["apple", "red"],
        "Note: use the words: ice cream.": ["ice cream"],
        "Write a sentence.": [],
        "Use: .": [],
        "Use: a,, b.": ["a", "b"],
    }
    assert {prompt: keywords_of(prompt) for prompt in found} == found


def test_two_files_make_a_task(tmp_path: Path) -> None:
    task = KeywordFileTask(written(tmp_path / "t.jsonl", APPLE), written(tmp_path / "v.jsonl", DOG))
    assert [(prompt.text, prompt.ground_truth) for prompt in task.train_prompts] == [(APPLE[0], "apple, red")]
    assert [prompt.ground_truth for prompt in task.validation_prompts] == ["Dog, cat"]
    whole = {"reward": 1.0, "format_reward": 1.0, "answer_reward": 1.0}
    assert task.reward("My cat ate the dog.", "Dog, cat") == whole


def test_bad_rows_are_named_by_their_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", DOG, ("Write a sentence.", "The red apple."), (APPLE[0], "The green apple."))
    with pytest.raises(UserError) as refused:
        read_keyword_prompts(path)
    assert refused.value.what == (
        "2 of 3 lines are bad\n  line 2: the prompt names no keywords: 'Write a sentence.'\n"
        "  line 3: the answer lacks 'red', which its prompt asks for: 'The green apple.'"
    )
    assert refused.value.where == str(path)


def test_the_same_words_in_another_order_are_no_held_out_prompt(tmp_path: Path) -> None:
    turned = ("Write a sentence that includes the words: Red, apple.", APPLE[1])
    train, validation = written(tmp_path / "t.jsonl", APPLE), written(tmp_path / "v.jsonl", DOG, turned)
    with pytest.raises(UserError, match="1 of 2 validation prompts ask for keywords that a training prompt asks for"):
        KeywordFileTask(train, validation)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["task.train=t.jsonl"], "task.train is t.jsonl, must be null with task.validation null"),
        (["task.validation=v.jsonl"], "task.validation is v.jsonl, must be null with task.train null"),
        ([*BOTH, "task.train_prompts=7"], "task.train_prompts is 7, must be 4096 with task.train t.jsonl"),
        ([*BOTH, "task.seed=1"], "task.seed is 1, must be 0 with task.train"),
    ],
)
def test_a_scenario_names_both_files_and_nothing_that_would_be_ignored(settings: list[str], expected: str) -> None:
    with pytest.raises(UserError, match=expected) as refused:
        load_scenario("quickstart", settings)
    assert "[rule: keyword_files_come_together]" in str(refused.value)


def test_with_files_their_rows_bound_the_evaluation() -> None:
    assert load_scenario("quickstart", [*BOTH, "evaluation.prompts=5000"]).evaluation.prompts == 5000
    with pytest.raises(UserError, match="enough_validation_prompts"):
        load_scenario("quickstart", ["evaluation.prompts=5000"])
