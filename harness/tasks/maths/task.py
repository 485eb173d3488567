"""Maths problems from files, asked through a prompt template. Responses are rewarded for verified answers.

    MATH     {"problem": "...", "solution": "... so it is $\\boxed{\\frac{1}{2}}$.", "level": "Level 2", "type": "..."}
             {"problem": "...", "answer": "\\frac{1}{2}", "level": 2, "subject": "..."}
    GSM8K    {"question": "...", "answer": "She sells 9 eggs for $2 each.\\n#### 18"}
    others   {"question": "...", "answer": "18"}, or fields of other names

Hendrycks et al. (arXiv 2103.03874) and Cobbe et al. (arXiv 2110.14168).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from harness.core.errors import UserError, quoted
from harness.core.extras import how_to_install
from harness.core.types import Prompt
from harness.tasks.jsonl import read_parts
from harness.tasks.maths.extraction import MAX_ANSWER_CHARS, boxed_answer
from harness.tasks.maths.prompts import PromptTemplate, prompt_template
from harness.tasks.maths.reward import STOP_STRINGS, MathsReward, reward_of
from harness.tasks.rows import (
    AUTO,
    Fields,
    Prompts,
    Row,
    checked_text,
    prompts_from,
    read_rows,
    turns_as_text,
)

FileFormat = Literal["auto", "gsm8k", "math"]
HASHES = "####"
EXAMPLES = {
    "gsm8k": '{"question": "...", "answer": "... #### 18"}',
    "math": '{"problem": "...", "solution": "... \\\\boxed{18}"}',
}
EXAMPLE = f"{EXAMPLES['math']} or {EXAMPLES['gsm8k']}"


def read_problems(file: str | Path, file_format: FileFormat = "auto", fields: Fields = AUTO) -> Prompts:
    """Read the problems of a file as prompts that are the question alone, without white space around it.

    They are split before a template is around them, so that every template has the same problems held out.

    Args:
        file: JSON Lines or an array, see ``rows``.
        file_format: how the answer stands in a row: ``gsm8k`` behind ``####`` in ``answer``; ``math`` as the field
            ``answer``, else in the box of ``solution``; ``auto`` goes by the first row: behind ``####``, in the box of
            a field named in ``fields``, else as it is.
        fields: ``prompt`` and ``answer`` where they have other names, else "" and None.

    Raises:
        UserError: the file cannot be read or holds no problem, its format cannot be told, or rows are bad.
    """
    rows = read_rows(file, EXAMPLE)
    first = next((row for row in rows if _is_sound(row)), None)
    read = fields.read if first is None else _Problems(first, file_format, fields).read
    return prompts_from(file, rows, read, EXAMPLE)


def _is_sound(row: Row) -> bool:
    with suppress(UserError):
        return isinstance(row.fields, dict)
    return False


class _Problems:
    """How the rows of one file are read, by its first sound row where nothing else says it.

    Raises:
        UserError: that row has neither a problem nor a question.
    """

    def __init__(self, first: Row, file_format: FileFormat, fields: Fields) -> None:
        self._fields, self._is_auto, self._named = fields, file_format == "auto", fields.answer
        self._answer = fields.answer or "answer"
        usual = {"gsm8k": "question", "math": "problem"}.get(file_format)
        self._question = fields.prompt or usual or _detected(first)
        self._style = {"gsm8k": "hashes", "math": "bare"}.get(file_format, "bare")
        text = first.find(self._answer)
        if self._is_auto and isinstance(text, str):
            if HASHES in text:
                self._style = "hashes"
            elif self._named is not None and boxed_answer(text) is not None:
                self._style = "boxed"

    def read(self, row: Row) -> Prompt:
        """Return the problem of a row.

        Raises:
            UserError: a field is missing, or the answer cannot be found in it.
        """
        question, turns = self._fields.asked(row, self._question)
        answer = self._answer_of(row).strip()
        if not answer or len(answer) > MAX_ANSWER_CHARS:
            what = f"the answer has {len(answer)} characters; it must have 1 to {MAX_ANSWER_CHARS}"
            raise UserError(what, row.where, "write the answer alone")
        return Prompt(question.strip(), answer, turns=turns, where=row.where)

    def _answer_of(self, row: Row) -> str:
        name, style = self._answer, self._style
        if self._named is None and style == "bare" and row.find(name) is None and "solution" in row.fields:
            return _in_box(row, "solution", ", and no field 'answer'")
        if style == "boxed":
            return _in_box(row, name)
        value = row.needed(name, "task.answer_field")
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):  # as OlympiadBench has it
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            what = f"the field {name!r} is no text and no number: {quoted(value)}"
            raise UserError(what, row.where, "write the answer as text, or remove the row")
        text = checked_text(value, name, row.where) if isinstance(value, str) else row.answer(name)
        if style == "hashes" and HASHES not in text:
            what = f"no {HASHES} in the field {name!r}, behind which the answer stands"
            fix = 'end the field with the answer, as in "... #### 18", or have bare answers in all rows'
            raise UserError(what, row.where, fix)
        if style == "bare" and HASHES in text and self._is_auto:
            what = f"{HASHES} in the field {name!r}, which that of the first row does not have"
            raise UserError(what, row.where, f"write all answers alone, or all behind {HASHES}")
        return text.rpartition(HASHES)[2] if style == "hashes" else text


def _detected(row: Row) -> str:
    for name in ("problem", "question"):
        if name in row.fields:
            return name
    there = ", ".join(map(repr, row.fields)) or "no field at all"
    what = f"neither a field 'problem' (as in MATH) nor a field 'question' (as in GSM8K); it has {there}"
    raise UserError(what, row.where, row.advice("problem", "task.prompt_field"))


def _in_box(row: Row, name: str, beside: str = "") -> str:
    boxed = boxed_answer(checked_text(row.needed(name, "task.answer_field"), name, row.where))
    if boxed is None:
        what = rf"no \boxed{{...}} that is closed again in the field {name!r}{beside}"
        fix = r'box the answer, as in "... $\\boxed{18}$", or name the field with the answer in task.answer_field'
        raise UserError(what, row.where, fix)
    return boxed


class MathsTask:
    """Maths problems from files.

    Args:
        train: file with the training problems, see ``read_problems``.
        validation: file with the held-out problems; None splits them off ``train``.
        validation_fraction: share of ``train`` that is split off, above 0 and below 1; unused with a validation file.
        format: how answers stand in the rows; ``auto`` goes by a file's first row.
        prompt: name of a prompt template of the package, or the path of a user's own.
        reward: how the answer is found in a response, ``r1_zero`` or ``question_only``; None: as the template of the
            package asks for it.
        fields: see ``read_problems``.

    Attributes:
        reward: the reward function, with a grader of its own; it pickles without the prompts.
        stop: strings that end a response to these prompts; ``sampling.stop`` may add others.
        notes: what is to be said about the files when a run begins.

    Raises:
        UserError: a file is missing, empty or has bad rows, a problem is in both splits, the template cannot be
            used, a user's own comes without ``reward``, or math-verify is not installed.
    """

    def __init__(
        self,
        train: str | Path,
        validation: str | Path | None = None,
        validation_fraction: float = 0.1,
        format: FileFormat = "auto",
        prompt: str = "r1_zero",
        reward: str | None = None,
        fields: Fields = AUTO,
    ) -> None:
        template, graded = prompt_template(prompt), reward_of(prompt, reward)
        check_installed()
        parts = read_parts(train, validation, validation_fraction, lambda file: read_problems(file, format, fields))
        self.train_prompts, self.validation_prompts = asked(parts.train, template), asked(parts.validation, template)
        self.notes = parts.notes
        self.stop = STOP_STRINGS[graded]
        self.reward = MathsReward(graded)


def asked(prompts: Sequence[Prompt], template: PromptTemplate) -> tuple[Prompt, ...]:
    """Return bare prompts as a template asks them; of turns it asks the last one."""

    def one(prompt: Prompt) -> Prompt:
        if prompt.turns is None:
            return replace(prompt, text=template.render(prompt.text))
        *before, (role, content) = prompt.turns
        turns = (*before, (role, template.render(content)))
        return replace(prompt, text=turns_as_text(turns), turns=turns)

    return tuple(map(one, prompts))


def check_installed() -> None:
    """Refuse to run without the library, since what only algebra can judge could not be graded.

    Raises:
        UserError: math-verify is not installed.
    """
    if find_spec("math_verify") is None:
        what = "math-verify is not installed, which compares answers by algebra"
        raise UserError(what, "task.type: maths", how_to_install("train"))
