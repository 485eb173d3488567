"""Maths in the words of school books, made up: what the maths preset's tokenizer learns its merges from.

It holds worked arithmetic under both prompts, word problems, and the LaTeX of competition problems. The texts say
nothing true or false that a policy is trained on; only their letters matter.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from harness.tasks.arithmetic import PROMPT, problem_stream, worked_response
from harness.tasks.maths.prompts import prompt_template
from harness.tasks.words import ANIMALS, FOOD, PEOPLE, PLACES, THINGS

WORD_PROBLEMS = (
    "A {who} has {a} {thing}s and buys {b} more each day. How many {thing}s does the {who} have after {c} days?",
    "Each {thing} costs ${a} and there is a discount of {b}%. How much money does the {who} pay for {c} {thing}s?",
    "The {who} sells {a} {food}s in the morning, and half as many in the afternoon. How many does she sell in total?",
    "There are {a} {animal}s at the {place}. If {b} of them leave, what is the number of {animal}s that are left?",
    "It takes the {who} {a} minutes to walk to the {place}, and {b} hours to get back. How long is that altogether?",
    "He gives {a} of his {thing}s to his friends, who share them equally. What fraction does each one of them get?",
    "They drive {a} miles per hour for {b} hours every week. What is the average distance in a month, or in a year?",
    "A box holds {a} pounds of {food}, twice as much as a bag, and three times as much as a cup. How much do {b} hold?",
    "Let her first earn ${a} for every {b} {food}s; then she would need to save {c} dollars more than her brother.",
)
FORMULAS = (
    r"Find the value of $x$ such that $\frac{{{a}}}{{x}} = {b} + \sqrt{{{c}}}$.",
    r"Let $f(x) = {a}x^2 - {b}x + {c}$ for all real numbers. Compute $f(n)$, and express the answer in simplest form.",
    r"The sum of two positive integers $m \cdot n \le {a}$ is \boxed{{{b}}}.",
    r"In triangle $ABC$, the angle at $A$ is ${a}^\circ$ and the area of the circle is $\pi r^2$. What is the length?",
    r"How many different prime numbers, multiples and factors are there between {a} and {b}? So \(p = {c}\) is even.",
    r"What is the probability that both are odd? We have $\left( \frac{{{a}}}{{{b}}} \right)$, so the answer is {c}.",
    "Since {a} + {b} = {c}, we get {c} / {a} and {b} * {c}; therefore their total, difference and product follow.",
)


def maths_texts(seed: int) -> Iterator[str]:
    """Make up texts without end: in turn a prompt, a worked response, a word problem and a formula."""
    rng = random.Random(seed)
    for problem in problem_stream(rng.getrandbits(32), held_out=False):
        yield prompt_template(PROMPT).render(problem.question)
        yield worked_response(problem)
        for text in (rng.choice(WORD_PROBLEMS), rng.choice(FORMULAS)):
            yield text.format(
                who=rng.choice(PEOPLE),
                thing=rng.choice(THINGS),
                food=rng.choice(FOOD),
                animal=rng.choice(ANIMALS),
                place=rng.choice(PLACES),
                **{name: rng.randint(1, 999) for name in "abc"},
            )
