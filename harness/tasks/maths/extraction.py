"""Where the answer stands in what a policy wrote: in tags, in ``\\boxed{...}``, or at the end.

Finding it is one pass over the text, however long it is and whatever it holds: a model wrote it.
"""

from __future__ import annotations

import re

THINK_END, ANSWER_BEGIN, ANSWER_END = "</think>", "<answer>", "</answer>"
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
