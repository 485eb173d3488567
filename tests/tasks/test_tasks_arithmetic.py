"""The arithmetic task: its problems, how they are worked out, what is held out."""

import itertools
import re
from collections import Counter

import pytest

from harness.core.errors import UserError
from harness.tasks.arithmetic import (
    ArithmeticTask,
    Problem,
    is_held_out,
    problem_stream,
    worked_columns,
    worked_examples,
    worked_response,
)

TASK = ArithmeticTask(2000, 500, seed=3)


def numbers_of(text: str) -> tuple[int, ...]:
    """The numbers of the question at the end of a prompt, in ascending order."""
    question = re.search(r"What is (.*)\?\nAssistant: <think>$", text)
    assert question is not None, text
    return tuple(sorted(map(int, re.findall(r"\d+", question[1]))))


BY_HAND = [
    (Problem("+", (17, 46)), "What is 17 + 46?", ("7+6=13", "1+4+1=6"), 63),
    (Problem("+", (95, 87)), "What is 95 + 87?", ("5+7=12", "9+8+1=18"), 182),
    (Problem("+", (17, 46, 8)), "What is 17 + 46 + 8?", ("7+6=13", "13+8=21", "1+4+2=7"), 71),
    (Problem("-", (63, 52)), "What is 63 - 52?", ("3-2=1", "6-5-0=1"), 11),
    (Problem("-", (63, 58)), "What is 63 - 58?", ("13-8=5", "6-5-1=0"), 5),
    (Problem("*", (23, 5)), "What is 23 * 5?", ("3*5=15", "2*5+1=11"), 115),
]
SLIPS = [  # every result is one too large; what is carried, and the answer, follow from what stands there
    (Problem("+", (17, 46)), " 7+6=14, 1+4+1=7 </think> <answer> 74 </answer>"),
    (Problem("+", (17, 42, 8)), " 7+2=10, 10+8=19, 1+4+1=7 </think> <answer> 79 </answer>"),
    (Problem("-", (63, 18)), " 13-8=6, 6-1-1=5 </think> <answer> 56 </answer>"),
    (Problem("*", (23, 3)), " 3*3=10, 2*3+1=8 </think> <answer> 80 </answer>"),
]


def test_problems_by_hand() -> None:
    for problem, question, columns, answer in BY_HAND:
        assert (problem.question, worked_columns(problem), problem.answer) == (question, columns, answer)
        assert worked_response(problem) == f" {', '.join(columns)} </think> <answer> {answer} </answer>"
    assert [worked_response(problem, lambda result: result + 1) for problem, _ in SLIPS] == [text for _, text in SLIPS]


def test_every_worked_column_is_true_and_leads_to_the_answer() -> None:
    for problem in itertools.islice(problem_stream(0, held_out=False), 3000):
        columns = [column.split("=") for column in worked_columns(problem)]
        assert all(value_of(left) == int(result) for left, result in columns)
        ones, tens = int(columns[-2][1]), int(columns[-1][1])
        assert problem.answer == 10 * tens + ones % 10


def value_of(text: str) -> int:
    """The value of up to three numbers with signs between them, from left to right."""
    value, *rest = re.split(r"([+*-])", text)
    total = int(value)
    for sign, number in zip(rest[::2], map(int, rest[1::2]), strict=True):
        total = {"+": total + number, "-": total - number, "*": total * number}[sign]
    return total


def test_slips_are_as_frequent_as_asked_and_off_by_one() -> None:
    right = list(itertools.islice(worked_examples(5), 2000))
    careless = list(itertools.islice(worked_examples(5, slip_rate=0.3), 2000))
    assert [example.prompt for example in careless] == [example.prompt for example in right]
    errors = []
    for example in careless:
        for left, result in re.findall(r"([\d+*-]+)=(\d+)", example.response):
            errors.append(int(result) - value_of(left))
    assert set(errors) == {-1, 0, 1}
    assert abs(sum(error != 0 for error in errors) / len(errors) - 0.3) < 0.04  # 4500 columns: sd 0.007


def test_reward_is_for_the_right_number_in_the_format() -> None:
    for problem in itertools.islice(problem_stream(1, held_out=False), 300):
        assert set(TASK.reward(worked_response(problem), str(problem.answer)).values()) == {1.0}
    assert TASK.reward(" 7+6=13 </think> <answer> 60+3 </answer>", "63") == {  # the sum is asked for, not another sum
        **{"reward": 0.0, "format_reward": 1.0, "answer_reward": 0.0}
    }
    assert TASK.reward(" 7+6=13 </think> <answer> 63", "63")["format_reward"] == 0.0
    assert TASK.stop == ("</answer>",)


def test_no_numbers_of_validation_stand_together_in_training_whatever_the_seeds() -> None:
    held_out = {
        numbers_of(prompt.text) for seed in range(3) for prompt in ArithmeticTask(1, 500, seed).validation_prompts
    }
    trained = {numbers_of(prompt.text) for seed in range(3) for prompt in ArithmeticTask(2000, 1, seed).train_prompts}
    shown = {numbers_of(example.prompt) for example in itertools.islice(worked_examples(4), 2000)}
    assert min(len(held_out), len(trained), len(shown)) > 500
    assert held_out.isdisjoint(trained | shown)


def test_order_and_sign_do_not_move_a_problem_to_the_other_side() -> None:
    assert {is_held_out(order) for order in itertools.permutations((17, 46, 8))} in ({True}, {False})
    # the rule stands still: these were computed from derive_seed once, and every saved run relies on them
    assert [number for number in range(10, 100) if is_held_out((17, number))] == [30, 42, 43, 60, 65, 66, 79, 81, 90]


def test_each_kind_comes_equally_often_and_stays_in_its_ranges() -> None:
    problems = list(itertools.islice(problem_stream(7, held_out=False), 4000))
    kinds = Counter((problem.sign, len(problem.numbers)) for problem in problems)
    assert set(kinds) == {("+", 2), ("+", 3), ("-", 2), ("*", 2)}
    assert all(abs(count - 1000) < 120 for count in kinds.values())  # binomial: standard deviation 27
    for sign, numbers in problems:
        assert all(10 <= number <= 99 for number in numbers[: 1 if sign == "*" else 2])
        assert sign != "*" or 2 <= numbers[1] <= 5
        assert len(numbers) < 3 or 2 <= numbers[2] <= 9
    assert all(problem.answer >= 0 for problem in problems)


def test_splits_are_drawn_from_the_seed_independently_of_each_other() -> None:
    again = ArithmeticTask(2000, 500, seed=3)
    assert again.train_prompts == TASK.train_prompts
    assert ArithmeticTask(50, 500, seed=3).train_prompts == TASK.train_prompts[:50]
    assert ArithmeticTask(50, 500, seed=3).validation_prompts == TASK.validation_prompts
    assert ArithmeticTask(2000, 20, seed=3).train_prompts == TASK.train_prompts
    assert ArithmeticTask(2000, 500, seed=4).train_prompts != TASK.train_prompts
    for prompts in (TASK.train_prompts, TASK.validation_prompts):
        assert len({prompt.text for prompt in prompts}) == len(prompts)


def test_numbers_out_of_bounds_are_refused() -> None:
    assert len(ArithmeticTask(20_000, 2_000).train_prompts) == 20_000  # the most there may be can be drawn
    for counts, what, fix in [
        ((0, 1), "train_prompts is 0; it must be 1 to 20000", "task.train_prompts to 1"),
        ((20_001, 1), "train_prompts is 20001; it must be 1 to 20000", "task.train_prompts to 20000"),
        ((1, 2_001), "validation_prompts is 2001; it must be 1 to 2000", "task.validation_prompts to 2000"),
    ]:
        with pytest.raises(UserError, match=what) as caught:
            ArithmeticTask(*counts)
        assert fix in str(caught.value.fix)
