"""What an evaluation asks: which rows make which task, and which arguments are refused."""

import hashlib
import sys
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.evaluate.questions import read_questions
from harness.tasks.maths.prompts import prompt_template
from harness.tasks.scoring import DirectRewards, TimedRewards

GSM8K = '{"question": "Two and two?", "answer": "2+2=<<2+2=4>>4\\n#### 4"}\n'
MATH = '{"problem": "Half of one?", "solution": "It is $\\\\boxed{\\\\frac{1}{2}}$."}\n'
KEYWORDS = '{"prompt": "Write a sentence that includes the words: apple, red.", "answer": "The red apple fell."}\n'


def written(folder: Path, content: str) -> Path:
    path = folder / "data.jsonl"
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("content", "question", "truth"), [(GSM8K, "Two and two?", "4"), (MATH, "Half of one?", r"\frac{1}{2}")]
)
def test_maths_rows_are_told_by_their_fields(tmp_path: Path, content: str, question: str, truth: str) -> None:
    found = read_questions(written(tmp_path, content), None, None, None)
    assert (found.name, found.task) == ("data.jsonl", "maths")
    assert (found.template, found.stop) == (prompt_template("r1_zero"), ("</answer>",))
    assert found.sha256 == hashlib.sha256(content.encode()).hexdigest()
    assert [prompt.ground_truth for prompt in found.prompts] == [truth]
    assert question in found.prompts[0].text
    right = f" easy </think> <answer>{truth}</answer>"
    assert found.reward(right, truth) == {"reward": 1.0, "format_reward": 1.0, "answer_reward": 1.0}
    assert isinstance(found.rewards(lambda: False), DirectRewards)


def test_a_users_own_template_asks_and_says_how_answers_are_found(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("Think. {question} It is:\n")
    found = read_questions(written(tmp_path, GSM8K), None, str(own), "question_only")
    assert (found.task, found.prompts[0].text, found.stop) == ("maths", "Think. Two and two? It is:", ())
    bare = read_questions(written(tmp_path, GSM8K), None, "question_only", None)
    assert (bare.template, bare.stop, bare.prompts[0].text) == (prompt_template("question_only"), (), "Two and two?")
    assert found.reward("#### 4", "4")["reward"] == 1.0
    tagged = read_questions(written(tmp_path, GSM8K), None, str(own), "r1_zero")
    assert (tagged.reward("#### 4", "4")["reward"], tagged.stop) == (0.0, ("</answer>",))
    for template, reward, said in ((str(own), None, "no reward is named"), ("r2", "r1_zero", "'r2'")):
        with pytest.raises(UserError, match=said):
            read_questions(written(tmp_path, GSM8K), None, template, reward)


def test_keyword_rows_are_rewarded_for_the_prompts_keywords(tmp_path: Path) -> None:
    found = read_questions(written(tmp_path, KEYWORDS), "keywords", None, None)
    assert [prompt.ground_truth for prompt in found.prompts] == ["apple, red"]
    assert found.reward("A RED pineapple.", "apple, red")["reward"] == 1.0


def test_a_users_reward_function_works_in_a_process_of_its_own(tmp_path: Path) -> None:
    found = read_questions(written(tmp_path, KEYWORDS), None, None, "docs.examples.own_task.reward:score")
    assert (found.task, found.prompts[0].ground_truth) == ("own", "The red apple fell.")
    rewards = found.rewards(lambda: False)
    assert isinstance(rewards, TimedRewards)
    rewards.close()


def test_a_broken_reward_function_is_told_before_anything_is_sampled(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "broken_reward_of_evaluate.py").write_text("def score(response, truth):\n    return 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UserError, match="ZeroDivisionError"):
        read_questions(written(tmp_path, KEYWORDS), None, None, "broken_reward_of_evaluate:score")


def test_built_in_prompts_are_the_held_out_ones_and_arithmetic_stops_at_the_answer() -> None:
    found = read_questions(None, "keywords", None, None)
    assert (found.name, found.sha256, len(found.prompts)) == ("keywords", None, 1024)
    found = read_questions(None, "arithmetic", None, None)
    assert (found.name, found.template) == ("arithmetic", prompt_template("r1_zero_reworded"))
    assert (found.stop, len(found.prompts)) == (("</answer>",), 1024)


@pytest.mark.parametrize(
    ("content", "task", "template", "reward", "expected"),
    [
        (None, None, None, None, "nothing to ask"),
        (None, "maths", None, None, "--task maths"),
        (GSM8K, "arithmetic", None, None, "--task arithmetic"),
        (None, "keywords", "r1_zero", None, "--prompt is for maths"),
        (KEYWORDS, "own", None, None, "--task own and --reward go together"),
        (KEYWORDS, "keywords", None, "a.b:c", "--task own and --reward go together"),
        (KEYWORDS, None, None, None, "the rows have 'answer', 'prompt'"),
        ("", None, None, None, "the rows have no field"),
        ("{", None, None, None, "not JSON"),
        (GSM8K + '{"question": "?", "answer": "none"}\n', None, None, None, "1 of 2 lines are bad"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path, content, task, template, reward, expected) -> None:
    data = None if content is None else written(tmp_path, content)
    with pytest.raises(UserError) as refused:
        read_questions(data, task, template, reward)
    assert expected in refused.value.what
    assert refused.value.fix


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        read_questions(tmp_path / "none.jsonl", None, None, None)
