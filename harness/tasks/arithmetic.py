"""Arithmetic with verified answers: sums, differences and products that the harness makes up, asked as maths problems.

What is held out is the set of numbers, by a rule that no seed can break: a digest of the numbers of a problem, in
ascending order, puts one set in ten on the side of validation, for ever. So if 17 and 46 stand together in a validation
problem, they are in no training problem and no demonstration of the warm start, whatever is done with them and in
whichever order, while the single columns that a sum is worked out by are all trained on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Literal, NamedTuple

from harness.core.seeds import derive_seed
from harness.core.types import Prompt
from harness.tasks.drawn import distinct_prompts
from harness.tasks.maths.answers import agree_exactly
from harness.tasks.maths.prompts import prompt_template
from harness.tasks.maths.reward import STOP_STRINGS, r1_zero_reward_fn

PROMPT = "r1_zero_reworded"
"""The prompt template: the one that the warm start of the ``maths`` preset is taught with."""
HELD_OUT_ONE_IN = 10
Sign = Literal["+", "-", "*"]
Kind = tuple[Sign, tuple[range, ...]]
_TWO_DIGITS = range(10, 100)
KINDS: tuple[Kind, ...] = (
    ("+", (_TWO_DIGITS, _TWO_DIGITS)),
    ("+", (_TWO_DIGITS, _TWO_DIGITS, range(2, 10))),
    ("-", (_TWO_DIGITS, _TWO_DIGITS)),
    ("*", (_TWO_DIGITS, range(2, 6))),
)
"""The kinds of problem, equally frequent: the sign, and where each number comes from."""
Slip = Callable[[int], int]
"""Takes a column's right result and returns the one that is written."""


def no_slip(result: int) -> int:
    """Write what is right."""
    return result


class Problem(NamedTuple):
    """One problem: its numbers in the order they are asked in. No difference is negative."""

    sign: Sign
    numbers: tuple[int, ...]

    @property
    def question(self) -> str:
        """The problem in words."""
        return f"What is {f' {self.sign} '.join(map(str, self.numbers))}?"

    @property
    def answer(self) -> int:
        """The result."""
        first, *others = self.numbers
        if self.sign == "*":
            return first * others[0]
        return first + sum(others) if self.sign == "+" else first - sum(others)


class Example(NamedTuple):
    """A supervised example of the warm start."""

    prompt: str
    response: str


class ArithmeticTask:
    """Arithmetic problems under the ``r1_zero_reworded`` prompt; see the module's text for what is held out.

    No two prompts of a split are equal.

    Args:
        train_prompts: number of training problems, 1 to 20,000.
        validation_prompts: number of held-out problems, 1 to 2,000.
        seed: draws both splits. The validation problems do not depend on ``train_prompts``, nor the other way round.

    Attributes:
        stop: the string that ends a response to these prompts.

    Raises:
        UserError: a number is out of its bounds.
    """

    stop = STOP_STRINGS["r1_zero"]

    def __init__(self, train_prompts: int = 4096, validation_prompts: int = 256, seed: int = 0) -> None:

        def draw(name: str, count: int, most: int) -> tuple[Prompt, ...]:
            split = name.removesuffix("_prompts")
            problems = problem_stream(derive_seed("arithmetic task", split, seed), held_out=split == "validation")
            return distinct_prompts(name, count, most, ((problem, arithmetic_prompt(problem)) for problem in problems))

        self.train_prompts = draw("train_prompts", train_prompts, 20_000)  # of 69,000 problems: quickly drawn
        self.validation_prompts = draw("validation_prompts", validation_prompts, 2_000)  # of 7,700

    def reward(self, response: str, ground_truth: str) -> dict[str, float]:
        """Return ``reward``, ``format_reward`` and ``answer_reward`` of the ``r1_zero`` format.

        Answers are whole numbers, so exact rules decide and nothing is compared symbolically: 60+3 is not 63 here.
        """
        return r1_zero_reward_fn(response, ground_truth, agree=_is_same_number)


def arithmetic_prompt(problem: Problem) -> Prompt:
    """Return the problem under the template ``PROMPT``, with its answer."""
    return Prompt(text=prompt_template(PROMPT).render(problem.question), ground_truth=str(problem.answer))


@cache
def is_held_out(numbers: tuple[int, ...]) -> bool:
    """Whether a problem of these numbers belongs to validation: the same in every process and for every seed."""
    return derive_seed("arithmetic split", *sorted(numbers)) % HELD_OUT_ONE_IN == 0


def problem_stream(seed: int, *, held_out: bool) -> Iterator[Problem]:
    """Draw problems of one side of the split without end; they may repeat."""
    rng = random.Random(seed)
    while True:
        sign, ranges = rng.choice(KINDS)
        numbers = [rng.choice(numbers) for numbers in ranges]
        if sign == "-":
            numbers.sort(reverse=True)
        if is_held_out(tuple(numbers)) is held_out:
            yield Problem(sign, tuple(numbers))


def worked_columns(problem: Problem, slip: Slip = no_slip) -> tuple[str, ...]:
    """Return the problem worked out by columns, ones before tens, each with what is carried from the one before.

    17 + 46 gives ``7+6=13`` and ``1+4+1=6``; with + 8 behind it, ``7+6=13``, ``13+8=21`` and ``1+4+2=7``; 63 - 18,
    which borrows, ``13-8=5`` and ``6-1-1=4``; 23 * 5 gives ``3*5=15`` and ``2*5+1=11``.

    Args:
        problem: the problem.
        slip: is given the right result of each column and returns the one to write; the work goes on from that.
    """
    first, second, *third = problem.numbers
    (tens, ones), (other_tens, other_ones) = divmod(first, 10), divmod(second, 10)
    if problem.sign == "*":
        written = slip(ones * second)
        carried = written // 10
        return f"{ones}*{second}={written}", f"{tens}*{second}+{carried}={slip(tens * second + carried)}"
    if problem.sign == "-":
        borrowed = int(ones < other_ones)
        ones += 10 * borrowed
        in_tens = f"{tens}-{other_tens}-{borrowed}={slip(tens - other_tens - borrowed)}"
        return f"{ones}-{other_ones}={slip(ones - other_ones)}", in_tens
    columns, written = [f"{ones}+{other_ones}={(both := slip(ones + other_ones))}"], both
    for number in third:
        columns.append(f"{both}+{number}={(written := slip(both + number))}")
    carried = written // 10
    return *columns, f"{tens}+{other_tens}+{carried}={slip(tens + other_tens + carried)}"


def worked_response(problem: Problem, slip: Slip = no_slip) -> str:
    """Return a response in the ``r1_zero`` format: the columns as thoughts, then the answer that they come to."""
    columns = worked_columns(problem, slip)
    *_, ones, tens = (int(column.split("=")[1]) for column in columns)
    return f" {', '.join(columns)} </think> <answer> {10 * tens + ones % 10} </answer>"


def worked_examples(seed: int, slip_rate: float = 0.0) -> Iterator[Example]:
    """Draw training problems with their worked responses, without end.

    Args:
        seed: of the problems and slips.
        slip_rate: share of the columns whose result is wrong by one; the rest follows from it, so the answer is wrong.
    """
    rng = random.Random(derive_seed("slips", seed))

    def slip(result: int) -> int:
        return result if rng.random() >= slip_rate else result + (rng.choice((-1, 1)) if result else 1)

    for problem in problem_stream(derive_seed("arithmetic examples", seed), held_out=False):
        yield Example(arithmetic_prompt(problem).text, worked_response(problem, slip))


def _is_same_number(answer: str, ground_truth: str) -> bool:
    return agree_exactly(answer, ground_truth) is True
