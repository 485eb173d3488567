"""Hostile responses for the maths grader, made from a seed: none may crash it, outlast its limit or be right."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator

from harness.tasks.maths.reward import question_only_reward_fn, r1_zero_reward_fn
from harness.tasks.maths.symbolic import AnswerGrader
from tests.benchmarks.runner import counted, parser

EXAMPLE = "python -m tests.benchmarks.fuzz_grader --count 10000 --limit 0.5"
TRUTHS = [
    "18",
    "1,000",
    r"\frac{1}{2}",
    "x^2+2x+1",
    r"2\sqrt{2}",
    "(1,2)",
    "[0,1)",
    r"\{1,2\}",
    "Tuesday",
    "25\\%",
    "x<2",
]
TOKENS = [
    *r"\frac \dfrac \sqrt \sum \int \prod \lim \binom \log_ \sin \cos^{-1} \pi \infty \pm \cdot \times \div".split(),  # noqa: SIM905
    *r"\left( \right) \{ \} \begin{pmatrix} \end{pmatrix} & \\ \text{ \boxed{ \le \ge \ne \in \cup \to".split(),  # noqa: SIM905
    *r"{ } ( ) [ ] ^ ^{ _ _{ + - * / = < > ! % , . ; : | $ ' x y n a b i e d 0 1 2 3 7 10 12 99 10^9 dx".split(),  # noqa: SIM905
]  # fmt: skip
PIECES = [
    "</think>",
    "<answer>",
    "</answer>",
    "<think>",
    " ",
    "\n",
    "answer is ",
    "####",
    r"\boxed{",
    "}",
    "18",
    "$",
    "\x00",
]
BOMBS = [
    "9^{9^{9^{%d}}}", "(%d00000000)!", "%d!!!", r"\int_0^{%d} e^{-x^{x^x}} dx", r"\sum_{k=1}^{10^{%d}} \frac{1}{k^k}",
    "(x+y+z+a+b+c)^{%d00}", r"\prod_{k=1}^{%d00000} (x+k)", r"\operatorname{eye}(%d000000)", r"\sqrt[%d]{10^{10^{10}}}",
    r"\binom{10^{%d}}{10^5}", r"\lim_{x \to 0} \frac{\sin^{%d} x}{x^{%d}}",
]  # fmt: skip


def in_tags(answer: str) -> str:
    """Return a response in the right format."""
    return f"Hm. </think> <answer> {answer} </answer>"


def unicode_text(rng: random.Random) -> str:
    """Any characters at all, halves of surrogate pairs among them."""
    return in_tags("".join(chr(rng.randrange(0x110000)) for _ in range(rng.randrange(200))))


def nested(rng: random.Random) -> str:
    """Brackets in brackets, closed or not."""
    begin, end = rng.choice([("{", "}"), ("(", ")"), (r"\frac{1}{", "}"), (r"\sqrt{", "}"), ("[", ")"), ("2^{", "}")])
    depth = rng.choice([5, 50, 200, 10_000])
    return in_tags(begin * depth + "1" + end * (depth - rng.randrange(2)))


def huge_number(rng: random.Random) -> str:
    """Numbers with many digits, large exponents, fractions of them."""
    digits = "".join(rng.choices("0123456789", k=rng.choice([30, 99, 101, 400, 5000])))
    forms = [
        "{}",
        "1e{}",
        "{0}/{0}7",
        r"\frac{{{0}}}{{{0}1}}",
        "10^{{{}}}",
        "{}%",
        "0.{}",
        "-{}",
        "{}!",
        r"\sqrt{{{}}}",
    ]
    return in_tags(rng.choice(forms).format(digits))


def bomb(rng: random.Random) -> str:
    """What would keep algebra busy for ever, or eat all memory."""
    form = rng.choice(BOMBS)
    return in_tags(form.replace("%d", str(rng.randrange(2, 100))))


def formula(rng: random.Random) -> str:
    """LaTeX of random tokens."""
    return in_tags(" ".join(rng.choices(TOKENS, k=rng.randrange(1, 30))))


def pieces(rng: random.Random) -> str:
    """Tags and boxes in any order."""
    return "".join(rng.choices(PIECES, k=rng.randrange(1, 60)))


def damaged(rng: random.Random) -> str:
    """A right answer with a few characters removed, doubled or changed."""
    text = list(in_tags(rng.choice(TRUTHS)))
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(text))
        text[at] = rng.choice(["", text[at] * 2, chr(rng.randrange(32, 127))])
    return "".join(text)


def megabyte(rng: random.Random) -> str:
    """A megabyte of something, in tags or not."""
    unit = rng.choice([r"\boxed{", "{", "</think> <answer>", "1", "9,", " ", "x+", "answer is 1. ", "\\", "\U0001f600"])
    text = unit * (1_000_000 // len(unit))
    return in_tags(text) if rng.random() < 0.5 else text


MAKERS: dict[Callable[[random.Random], str], int] = {
    unicode_text: 15, nested: 15, huge_number: 15, formula: 25, pieces: 10, damaged: 15, megabyte: 3, bomb: 2,
}  # fmt: skip
"""What makes a response, and how often, in percent."""


def hostile_responses(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Yield responses with ground truths, the same ones for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        (make,) = rng.choices(list(MAKERS), weights=list(MAKERS.values()))
        yield make(rng), rng.choice(TRUTHS)


def grade_all(grader: AnswerGrader, responses: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Grade with both reward functions; return how many were right, and the longest seconds of one."""
    right = longest_s = 0.0
    for response, truth in responses:
        for function in (r1_zero_reward_fn, question_only_reward_fn):
            began, started = time.monotonic(), grader.symbolic.counts.started
            rewards = function(response, truth, agree=grader)
            assert set(rewards.values()) <= {0.0, 1.0}
            right += rewards["reward"]
            if grader.symbolic.counts.started == started:
                longest_s = max(longest_s, time.monotonic() - began)
    return {"right": right, "longest_s": longest_s}


def main() -> None:
    made = parser(__doc__, EXAMPLE)
    made.add_argument("--count", type=int, default=10_000)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--limit", type=float, default=0.5, help="seconds that a symbolic comparison may take")
    options = made.parse_args()
    responses = counted(hostile_responses(options.seed, options.count), options.count, "responses")
    grader, began = AnswerGrader(options.limit), time.monotonic()
    outcome = grade_all(grader, responses)
    grader.close()
    print(f"{options.count} responses, both reward functions: {time.monotonic() - began:.0f} s")
    print(f"{outcome}\n{grader.symbolic.counts}")


if __name__ == "__main__":
    main()
