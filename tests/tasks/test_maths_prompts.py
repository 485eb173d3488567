"""Prompt templates: the package's are the texts of their sources, and a user's own is read with bounds."""

import hashlib
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.settings.task import PROMPT_TEMPLATES
from harness.tasks.arithmetic import ArithmeticTask
from harness.tasks.maths.prompts import MAX_TEMPLATE_BYTES, TEMPLATES, prompt_template
from harness.tasks.maths.reward import reward_of
from harness.tasks.maths.task import MathsTask
from tests.messages import facts

DATA = Path(__file__).parents[1] / "data" / "maths"


def own(folder: Path, content: str | bytes) -> str:
    file = folder / "own.txt"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(file)


def refused(name: str) -> UserError:
    with pytest.raises(UserError) as caught:
        prompt_template(name)
    return caught.value


# ---- the package's


def test_r1_zero_is_the_text_of_its_source_letter_for_letter() -> None:
    """Fails on the paraphrase that bore this name before.

    The digest is of ``apply_r1_template("{question}")`` in train_zero_math.py of sail-sg/understand-r1-zero, commit
    14046dcaa53d47b3a5e3217c63e649d8862147d9.
    """
    template = prompt_template("r1_zero")
    assert prompt_template("question_only").render("What is 1 + 1?\n") == "What is 1 + 1?"
    assert template.sha256 == "56213732da87e12ace60a2b88a16df0af18280fb0563a957cbecc938a6a2ac0e"
    assert template.text.startswith("A conversation between User and Assistant. The User asks a question, and the ")
    assert template.render(" What is {1} + {question}? ").endswith(
        "<answer> answer here </answer>.\nUser: What is {1} + {question}?\nAssistant: <think>"
    )


def test_arithmetic_keeps_the_prompt_that_its_warm_start_was_taught_with() -> None:
    """The digest is that of the text called ``r1_zero`` up to commit 2612a08; a policy knows no other prompt."""
    template = prompt_template("r1_zero_reworded")
    assert template.sha256 == "90449ebfcd33c99d63d8ef5c07ad2829ce6579a7c6de78265fe29c87d453fbb7"
    task = ArithmeticTask(train_prompts=1, validation_prompts=1)
    question = task.train_prompts[0].text.partition("\nUser: ")[2].partition("\n")[0]
    assert task.train_prompts[0].text == template.render(question)


def test_scenarios_and_tasks_know_the_same_templates() -> None:
    assert PROMPT_TEMPLATES == TEMPLATES
    assert [reward_of(name) for name in TEMPLATES] == ["r1_zero", "question_only", "r1_zero"]
    folder = Path(__file__).parents[2] / "harness" / "tasks" / "maths" / "templates"
    assert {file.stem for file in folder.glob("*.txt")} == set(TEMPLATES)
    listed = (folder / "README.md").read_text(encoding="utf-8")
    assert [name for name in TEMPLATES if f"| `{name}.txt` |" not in listed] == []


# ---- a user's own


def test_an_own_template_puts_the_question_at_each_place_and_nothing_else_is_special(tmp_path: Path) -> None:
    template = prompt_template(own(tmp_path, "{x} {{question}} {question}\n{0}%s\n\n"))
    assert template.render("{question} }{") == "{x} {{question} }{} {question} }{\n{0}%s\n"
    assert template.sha256 == hashlib.sha256(b"{x} {{question}} {question}\n{0}%s\n").hexdigest()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Q: {question}\nA:", "Q: {question}\nA:"),
        ("Q: {question}\nA:\n", "Q: {question}\nA:"),  # as editors end a file
        ("Q: {question}\nA:\r\n", "Q: {question}\nA:"),
        ("Q: {question}\n\n", "Q: {question}\n"),
        (b"\xef\xbb\xbf{question}", "{question}"),
        ("Ünï 🙂 {question}", "Ünï 🙂 {question}"),
    ],
)
def test_a_line_break_at_the_end_is_the_files_and_not_the_prompts(tmp_path: Path, content, text: str) -> None:
    assert prompt_template(own(tmp_path, content)).text == text


def test_what_is_no_template_is_refused(tmp_path: Path) -> None:
    errors = {
        "an unknown name": refused("r1_zer0"),
        "another placeholder": refused(own(tmp_path, "Solve {problem}")),
        "an empty file": refused(own(tmp_path, "")),
        "no UTF-8": refused(own(tmp_path, b"{question} caf\xe9")),
    }
    longest = "{question}" + "x" * (MAX_TEMPLATE_BYTES - 10)
    assert len(prompt_template(own(tmp_path, longest)).text) == MAX_TEMPLATE_BYTES
    errors["too long"] = refused(own(tmp_path, longest + "x"))
    fixes = ["did you mean r1_zero?", *["write {question}"] * 2, "UTF-8", "shorten it"]
    assert [fix for fix, error in zip(fixes, errors.values(), strict=True) if fix not in (error.fix or "")] == []
    assert "{problem}" in errors["another placeholder"].what
    assert [error.where for error in errors.values()] == ["task.prompt", *[str(tmp_path / "own.txt")] * 4]
    assert [facts(error.what) for error in errors.values()] == ["1 0", "", "", "15 0 9 8", "65,536"]
    assert [refused(name).where for name in (str(tmp_path), "a\0b")] == ["task.prompt"] * 2


def test_a_task_asks_through_an_own_template_and_finds_answers_as_it_is_told(tmp_path: Path) -> None:
    file = own(tmp_path, "{question}\nPut your final answer within \\boxed{}.\n")
    task = MathsTask(DATA / "gsm8k_sample.jsonl", prompt=file, reward="question_only")
    assert task.train_prompts[0].text.endswith("?\nPut your final answer within \\boxed{}.")
    assert (task.stop, task.reward(r"\boxed{63}", "63")["reward"]) == ((), 1.0)
    tagged = MathsTask(DATA / "gsm8k_sample.jsonl", prompt=file, reward="r1_zero")
    assert (tagged.stop, tagged.reward("</think> <answer>63</answer>", "63")["reward"]) == (("</answer>",), 1.0)
    with pytest.raises(UserError) as caught:
        MathsTask(DATA / "gsm8k_sample.jsonl", prompt=file)
    assert caught.value.where == "task.reward"
    other_way = MathsTask(DATA / "gsm8k_sample.jsonl", prompt="r1_zero", reward="question_only")
    assert (other_way.stop, other_way.reward("#### 63", "63")["reward"]) == ((), 1.0)
