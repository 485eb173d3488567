"""The maths grader: answers a second on the exact path, milliseconds on the symbolic one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from harness.tasks.maths.reward import r1_zero_reward_fn
from harness.tasks.maths.symbolic import AnswerGrader
from harness.tasks.maths.task import read_problems

SAMPLE = Path(__file__).parents[1] / "data" / "maths" / "gsm8k_sample.jsonl"
THOUGHTS = "First this, and then that. " * 100  # 2,700 characters, as long as many a response
EXPRESSIONS: dict[str, Callable[[int], tuple[str, str]]] = {
    "a root": lambda n: (rf"\sqrt{{{8 * n * n}}}", rf"{2 * n}\sqrt{{2}}"),
    "a polynomial": lambda n: (f"(x+{n})^2", f"x^2+{2 * n}x+{n * n}"),
    "a fraction": lambda n: (rf"\frac{{{n}}}{{\sqrt{{3}}}}", rf"\frac{{{n}\sqrt{{3}}}}{{3}}"),
    "a wrong polynomial": lambda n: (f"x^2+{n * n}", f"x^2+{2 * n}x+{n * n}"),
}
"""An answer and a ground truth for each round, since parsed texts are remembered."""


@pytest.fixture(scope="module")
def grader() -> Iterator[AnswerGrader]:
    made = AnswerGrader(600.0)
    yield made
    made.close()


def test_the_start_of_the_process(benchmark: BenchmarkFixture, grader: AnswerGrader) -> None:
    """What the first symbolic comparison costs, and the one behind each that was killed; it serves those below."""

    def start() -> bool:
        grader.close()
        grader.symbolic.forget()
        return grader(r"\sqrt{4}", "2")

    assert benchmark.pedantic(start, rounds=3)


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("off_by", [0, 1], ids=["right", "wrong"])
def test_the_exact_path(benchmark: BenchmarkFixture, grader: AnswerGrader, off_by: int) -> None:
    """Sixteen responses in the format of r1_zero with answers of GSM8K's kind; seconds of this process's own work."""
    answers = [problem.ground_truth for problem in read_problems(SAMPLE).prompts]
    given = [str(float(answer.replace(",", "")) + off_by) if off_by else answer for answer in answers]
    rows = [
        (f"{THOUGHTS} </think> <answer> {text} </answer>", answer) for text, answer in zip(given, answers, strict=True)
    ]
    asked = grader.symbolic.counts.asked

    def grade() -> float:
        return sum(r1_zero_reward_fn(response, truth, agree=grader)["reward"] for response, truth in rows)

    benchmark.extra_info |= {"answers": len(rows), "response_characters": len(rows[0][0])}
    assert benchmark(grade) == (0.0 if off_by else len(rows))
    assert grader.symbolic.counts.asked == asked


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_symbolic_path(benchmark: BenchmarkFixture, grader: AnswerGrader, name: str) -> None:
    """One comparison by algebra, process and socket included."""
    numbers = itertools.count(2)

    def arguments() -> tuple[tuple[str, str], dict[str, object]]:
        return EXPRESSIONS[name](next(numbers)), {}

    agree = benchmark.pedantic(grader, setup=arguments, rounds=50, warmup_rounds=3)
    assert agree is not name.startswith("a wrong")
