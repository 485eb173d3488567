"""The task that is made of maths problems from files, and every problem of the samples."""

from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.tasks.maths.reward import r1_zero_reward_fn
from harness.tasks.maths.symbolic import AnswerGrader
from harness.tasks.maths.task import MathsTask, read_problems

NEVER_S = 600.0  # a limit that no test reaches
DATA = Path(__file__).parents[1] / "data" / "maths"


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
