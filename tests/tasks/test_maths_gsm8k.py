"""Answers of GSM8K's format, right and perturbed: of the whole test set where its file is named, of a sample always.

    HARNESS_GSM8K_TEST=test.jsonl pytest tests/tasks/test_maths_gsm8k.py

The file is that of arXiv 2110.14168, with 1,319 problems. It is no part of this project.
"""

import os
from pathlib import Path

import pytest

from harness.core.types import Prompt
from harness.tasks.maths.reward import question_only_reward_fn, r1_zero_reward_fn
from harness.tasks.maths.symbolic import AnswerGrader
from harness.tasks.maths.task import read_problems

SAMPLE = Path(__file__).parents[1] / "data" / "maths" / "gsm8k_sample.jsonl"
TEST_SET = os.environ.get("HARNESS_GSM8K_TEST")
WAYS = [
    "{}",
    " {}. ",
    "${}$",
    r"\boxed{{{}}}",
    r"\${}",
    "{} dollars",
    r"{}\text{{ eggs}}",
    "x = {}",
    r"\frac{{{}}}{{1}}",
]
"""Ways to write an answer: as it is, and with what people put around."""


@pytest.fixture(
    scope="module",
    params=[
        "sample",
        pytest.param(
            "test set",
            marks=pytest.mark.skipif(TEST_SET is None, reason="HARNESS_GSM8K_TEST names no file with GSM8K's test set"),
        ),
    ],
)
def problems(request: pytest.FixtureRequest) -> tuple[Prompt, ...]:
    return read_problems(TEST_SET if TEST_SET and request.param == "test set" else SAMPLE, "gsm8k").prompts


def r1_zero(answer: str) -> str:
    return f" Let me see. </think> <answer> {answer} </answer>"


def other_numbers(truth: str) -> set[str]:
    """Return perturbed numbers: one more or less, shifted, negated, half as much more, a digit changed or doubled."""
    whole = truth.replace(",", "")
    value = float(whole)
    digits = [at for at, character in enumerate(whole) if character.isdecimal()]
    changed = {whole[:at] + str((int(whole[at]) + 3) % 10) + whole[at + 1 :] for at in digits}
    doubled = {whole[: at + 1] + whole[at:] for at in digits}
    moved = {f"{number:.10g}" for number in (value + 1, value - 1, value * 10, value / 10, -value, value + 0.5)}
    return {text for text in changed | doubled | moved if float(text) != value}


def other_texts(truth: str) -> set[str]:
    """Return what is no answer, although it holds the right number, or no number at all."""
    around = ("{0} or {0}1", "{0}, {0}", "{0} thousand", "1{0}/2{0}", "{0}x", "not {0}", "{0} + 1", "-({0})", "")
    return {text.format(truth.replace(",", "")) for text in around}


def test_every_right_answer_is_accepted_without_algebra(problems: tuple[Prompt, ...]) -> None:
    grader = AnswerGrader()
    right = [(way.format(problem.ground_truth), problem.ground_truth) for problem in problems for way in WAYS]
    assert [pair for pair in right if r1_zero_reward_fn(r1_zero(pair[0]), pair[1], agree=grader)["reward"] != 1.0] == []
    assert grader.symbolic.counts.started == 0
    truths = [problem.ground_truth for problem in problems]
    assert [truth for truth in truths if question_only_reward_fn(f"So.\n#### {truth}", truth)["reward"] != 1.0] == []


def test_every_perturbed_answer_is_rejected(problems: tuple[Prompt, ...]) -> None:
    grader = AnswerGrader(600.0)
    format_only = {"reward": 0.0, "format_reward": 1.0, "answer_reward": 0.0}
    wrong = [(text, problem.ground_truth) for problem in problems for text in other_numbers(problem.ground_truth)]
    wrong += [(text, problem.ground_truth) for problem in problems[:40] for text in other_texts(problem.ground_truth)]
    accepted = [pair for pair in wrong if r1_zero_reward_fn(r1_zero(pair[0]), pair[1], agree=grader) != format_only]
    grader.close()
    assert len(wrong) >= 200
    assert accepted == []
