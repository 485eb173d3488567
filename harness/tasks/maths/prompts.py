"""What a policy is asked, and where the answer stands in what it wrote: in tags, in ``\\boxed{...}``, or at the end.

A prompt template brings the strings that end a response to it. Finding the answer is one pass over the text, however
long it is and whatever it holds: a model wrote it.
"""

from __future__ import annotations

import re
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


MAX_ANSWER_CHARS = 1000
"""A longer answer is no answer."""

_BOX = re.compile(r"\\f?box(?:ed)?(?=[\s{\d])")
_TAGGED = re.compile(rf"{THINK_END}\s*{ANSWER_BEGIN}")
_HASHES = "####"
_SAID = re.compile(r"\b(?:answer|result)\s*(?:is|are|:|=)[ \t:=]*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<!\bsq)[.!?](?:\s|$)|\n")
_BOLD = re.compile(r"(?<![\w)}])(?:\*\*|__)(?=\S)|(?<=\S)(?:\*\*|__)(?![a-zA-Z0-9({\\])")
_ITALIC = re.compile(r"(?<![\w)}*])\*([^\s*](?:[^*\n]*[^\s*])?)\*(?![\w({\\*])")
_NUMBER = re.compile(r"[-+]?[$€£]?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?%?")
_TAIL_CHARS = 2 * MAX_ANSWER_CHARS


def tagged_answer(response: str) -> str | None:
    """Return what stands in the answer tags of a response that begins inside of the thoughts, or None.

    The thoughts must be closed, and the answer must follow at once, with nothing but white space between, and be
    closed. What comes after the first answer is not looked at, as an engine that stops there would not have written it.
    """
    begin = _TAGGED.search(response)
    if begin is None:
        return None
    end = response.find(ANSWER_END, begin.end())
    return None if end < 0 else response[begin.end() : end]


def boxed_answer(text: str) -> str | None:
    r"""Return what the last ``\boxed`` of a text holds, with its inner braces, or None.

    ``\boxed 5`` and ``\fbox{5}`` count. A last box that is never closed, or not within ``MAX_ANSWER_CHARS``, is none.
    """
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    found = _BOX.match(text, start) if start >= 0 else None
    if found is None:
        return None
    begin = found.end()
    while begin < len(text) and text[begin].isspace():
        begin += 1
    if not text.startswith("{", begin):
        bare = re.compile(r"[^\s$]{1,100}").match(text, begin)
        return bare.group() if bare else None
    end = closing_brace(text, begin)
    return None if end is None else text[begin + 1 : end]


def closing_brace(text: str, begin: int) -> int | None:
    r"""Return where the brace opened at ``begin`` is closed, within ``MAX_ANSWER_CHARS``; None where it is not.

    Escaped braces (``\{``) do not count.
    """
    depth, at = 0, begin
    end = min(len(text), begin + MAX_ANSWER_CHARS + 2)
    while at < end:
        if text[at] == "\\":
            at += 2
            continue
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at
        at += 1
    return None


def stated_answer(response: str) -> str | None:
    r"""Return the answer of a response that was asked for no format, or None.

    Taken in this order: the last ``\boxed`` (none, if it is never closed); what follows the last ``####``; what follows
    the last "answer is"; the last number of the last line. Apart from boxes, only the last ``2 * MAX_ANSWER_CHARS``
    characters are looked at, and what makes them bold or italic in Markdown is left out.
    """
    if "\\boxed" in response or "\\fbox" in response:
        return boxed_answer(response)
    tail = _ITALIC.sub(r"\1", _BOLD.sub("", response[-_TAIL_CHARS:])).rstrip()
    if _HASHES in tail:
        return tail.rpartition(_HASHES)[2].strip().partition("\n")[0].strip() or None
    said = None
    for said in _SAID.finditer(tail):  # noqa: B007 (the last one is wanted)
        pass
    if said is not None:
        rest = tail[said.end() :]
        end = _SENTENCE_END.search(rest)
        return (rest[: end.start()] if end else rest).strip() or None
    numbers = _NUMBER.findall(tail.rpartition("\n")[2])
    return numbers[-1] if numbers else None
