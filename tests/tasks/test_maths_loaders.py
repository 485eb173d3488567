"""Maths problems from files: both formats, what is told about bad lines, and the task made of them."""

import json
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.core.types import Prompt
from harness.tasks.maths.reward import r1_zero_reward_fn
from harness.tasks.maths.symbolic import AnswerGrader
from harness.tasks.maths.task import MathsTask, read_problems

NEVER_S = 600.0  # a limit that no test reaches
DATA = Path(__file__).parents[1] / "data" / "maths"
MATH = {"problem": "What is half of one?", "solution": r"It is $\boxed{\frac{1}{2}}$."}
GSM8K = {"question": "Two eggs and three?", "answer": "2+3=<<2+3=5>>5\n#### 5"}


def write(folder: Path, *rows: object) -> Path:
    file = folder / "problems.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return file


def refused(file: Path, **options: str) -> UserError:
    with pytest.raises(UserError) as caught:
        read_problems(file, **options)  # type: ignore[arg-type]
    return caught.value


def test_both_formats_are_told_by_their_first_line(tmp_path: Path) -> None:
    assert read_problems(write(tmp_path, GSM8K)).prompts == (Prompt("Two eggs and three?", "5"),)
    assert read_problems(write(tmp_path, MATH)).prompts == (Prompt("What is half of one?", r"\frac{1}{2}"),)


def test_a_given_answer_goes_before_the_solution(tmp_path: Path) -> None:
    assert read_problems(write(tmp_path, MATH | {"answer": "0.5"})).prompts[0].ground_truth == "0.5"


def test_a_repeated_problem_is_kept_once(tmp_path: Path) -> None:
    other = {"problem": "p", "answer": "1"}
    read = read_problems(write(tmp_path, MATH, "", other, MATH))
    assert ([prompt.text for prompt in read.prompts], read.repeated) == ([MATH["problem"], "p"], 1)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"problem": "q"}', "no field 'answer'; it has 'problem'"),
        ('{"question": "q", "answer": "#### 1"}', "no field 'problem'; it has 'question', 'answer'"),
        ('{"problem": "q", "answer": " "}', "the answer has 0 characters; it must have 1 to 1000"),
        ('{"problem": "q", "answer": ["1", "2"]}', "the field 'answer' is no text and no number: ['1', '2']"),
        ('{"problem": "q", "answer": true}', "the field 'answer' is no text and no number: True"),
        (r'{"problem": "q", "solution": "\\boxed{1"}', r"no \boxed{...} that is closed again in the field 'solution'"),
        (
            '{"problem": "What is half of one?", "answer": "2"}',
            "the prompt 'What is half of one?' has the answer '\\\\frac",
        ),
    ],
)
def test_a_bad_line_is_told_with_its_number(tmp_path: Path, line: str, what: str) -> None:
    error = refused(write(tmp_path, MATH, "", line), file_format="math")
    assert error.what.startswith(f"1 of 2 lines are bad\n  line 3: {what}")
    assert error.where == str(tmp_path / "problems.jsonl")
    assert error.fix


def test_a_gsm8k_answer_needs_its_hashes(tmp_path: Path) -> None:
    error = refused(write(tmp_path, GSM8K, {"question": "q", "answer": "5"}))
    assert error.what == "1 of 2 lines are bad\n  line 2: no #### in the field 'answer', behind which the answer stands"


def test_a_file_of_neither_format_is_refused(tmp_path: Path) -> None:
    error = refused(write(tmp_path, {"prompt": "p", "answer": "1"}))
    assert error.what == (
        "neither a field 'problem' (as in MATH) nor a field 'question' (as in GSM8K); it has 'prompt', 'answer'"
    )
    assert refused(write(tmp_path)).what == "the file holds 0 prompts; at least 1 is needed"


def test_a_missing_file_is_named() -> None:
    with pytest.raises(UserError, match="there is no such file") as caught:
        MathsTask("data/MATH/train.jsonl")
    assert caught.value.where == "data/MATH/train.jsonl"


# ---- the task


def test_the_task_asks_through_its_template_and_says_what_ends_a_response() -> None:
    task = MathsTask(DATA / "gsm8k_sample.jsonl", DATA / "math_sample.jsonl")
    assert (len(task.train_prompts), len(task.validation_prompts), task.stop) == (16, 21, ("</answer>",))
    assert task.train_prompts[0].text.endswith("How many candles are left?\nAssistant: <think>")
    assert task.train_prompts[0].ground_truth == "63"
    bare = MathsTask(DATA / "gsm8k_sample.jsonl", validation_fraction=0.25, prompt="question_only")
    assert (len(bare.train_prompts), len(bare.validation_prompts), bare.stop) == (12, 4, ())
    assert bare.reward("#### 63", "63")["reward"] == 1.0
    assert task.reward("#### 63", "63")["reward"] == 0.0


def test_every_template_has_the_same_problems_held_out() -> None:
    """Fails where the split goes by the whole prompt, and arms are validated on different problems."""
    names = ("r1_zero", "question_only", "r1_zero_reworded")
    tasks = [MathsTask(DATA / "gsm8k_sample.jsonl", validation_fraction=0.25, prompt=name) for name in names]
    truths = [[prompt.ground_truth for prompt in task.validation_prompts] for task in tasks]
    assert truths[0] == truths[1] == truths[2]
    assert len({task.validation_prompts[0].text for task in tasks}) == 3


def test_a_held_out_problem_must_not_be_trained_on() -> None:
    with pytest.raises(UserError, match="16 of 16 validation prompts are training prompts too"):
        MathsTask(DATA / "gsm8k_sample.jsonl", DATA / "gsm8k_sample.jsonl")


def test_an_unknown_template_is_refused() -> None:
    with pytest.raises(UserError, match="'r2' cannot be read: neither a template nor a file"):
        MathsTask(DATA / "gsm8k_sample.jsonl", prompt="r2")
    with pytest.raises(UserError, match="the reward is 'r2'"):
        MathsTask(DATA / "gsm8k_sample.jsonl", reward="r2")


# ---- every problem of the sample


def test_each_right_answer_is_accepted_and_those_of_other_problems_are_rejected() -> None:
    truths = [problem.ground_truth for problem in read_problems(DATA / "math_sample.jsonl").prompts]
    assert len(set(truths)) == len(truths)
    grader = AnswerGrader(NEVER_S)
    pairs = [(truths[(at + by) % len(truths)], truth, by == 0) for at, truth in enumerate(truths) for by in range(4)]
    rewards = [
        r1_zero_reward_fn(f"Thoughts. </think> <answer> {answer} </answer>", truth, agree=grader)
        for answer, truth, _ in pairs
    ]
    grader.close()
    judged = [(parts["format_reward"], parts["reward"]) for parts in rewards]
    assert [pair for pair, found in zip(pairs, judged, strict=True) if found != (1.0, float(pair[2]))] == []
