"""What a policy is asked: prompt templates, each with the strings that end a response to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TemplateName = Literal["r1_zero", "question_only"]

THINK_END, ANSWER_BEGIN, ANSWER_END = "</think>", "<answer>", "</answer>"


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A text with one place for the question.

    Attributes:
        name: how scenarios call it.
        before: the text in front of the question.
        after: the text behind it.
        stop: strings that end a response; engines keep them as a part of it (``SamplingParams.stop``).
    """

    name: TemplateName
    before: str
    after: str
    stop: tuple[str, ...] = ()

    def render(self, question: str) -> str:
        """Return the prompt for a question. Nothing in the question is special, braces included."""
        return f"{self.before}{question.strip()}{self.after}"


R1_ZERO = PromptTemplate(
    name="r1_zero",
    before=(
        "The following is a conversation between a User and an Assistant. The User asks a question and the Assistant "
        "solves it. First the Assistant thinks the question through, then it gives the User the answer. Thoughts "
        "stand between <think> and </think>, the answer alone between <answer> and </answer>, as in "
        "<think> the thoughts </think> <answer> the answer </answer>.\n"
        "User: "
    ),
    after="\nAssistant: <think>",
    stop=(ANSWER_END,),
)
"""Thoughts, then an answer in tags: the idea of DeepSeek-R1-Zero (arXiv 2501.12948, table 1), in words of our own.

The prompt ends with the opening tag, so that a response begins inside of the thoughts.
"""

QUESTION_ONLY = PromptTemplate(name="question_only", before="", after="")
"""The question and nothing else, as in "Understanding R1-Zero-Like Training" (arXiv 2503.20783)."""

PROMPT_TEMPLATES: dict[str, PromptTemplate] = {template.name: template for template in (R1_ZERO, QUESTION_ONLY)}
"""The templates by name."""
