"""Maths problems from JSONL files in the format of MATH or of GSM8K, asked through a prompt template.

    MATH     {"problem": "...", "solution": "... so it is $\\boxed{\\frac{1}{2}}$.", "level": "Level 2", "type": "..."}
             {"problem": "...", "answer": "\\frac{1}{2}", "level": 2, "subject": "..."}
    GSM8K    {"question": "...", "answer": "She sells 9 eggs for $2 each.\\n#### 18"}

Hendrycks et al. (arXiv 2103.03874) and Cobbe et al. (arXiv 2110.14168). Responses are rewarded for verified answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness.core.errors import UserError
from harness.core.installation import how_to_install
from harness.core.types import Prompt
from harness.tasks.jsonl import checked_text, parse_object, read_lines, refuse_shared, split_prompts
from harness.tasks.maths.extraction import MAX_ANSWER_CHARS, boxed_answer
from harness.tasks.maths.prompts import PromptTemplate, prompt_template
from harness.tasks.maths.reward import STOP_STRINGS, MathsReward, reward_of
from harness.tasks.maths.symbolic import SYMBOLIC_TIMEOUT_S

FileFormat = Literal["auto", "gsm8k", "math"]
MOST_BAD_LINES_TOLD = 10
HASHES = "####"
EXAMPLES = {
    "gsm8k": '{"question": "...", "answer": "... #### 18"}',
    "math": '{"problem": "...", "solution": "... \\\\boxed{18}"}',
}


class MathsProblem(NamedTuple):
    """One problem.

    Attributes:
        question: its text, without white space around it.
        answer: the right answer alone, as the file writes it.
        level: how hard it is, where the file says so.
        subject: what it is about, where the file says so.
    """

    question: str
    answer: str
    level: str | None = None
    subject: str | None = None


def read_problems(file: str | Path, file_format: FileFormat = "auto") -> tuple[MathsProblem, ...]:
    """Read one problem a line, in the file's order. A problem that comes again with the same answer is kept once.

    Args:
        file: JSONL; blank lines are skipped.
        file_format: which fields a line has; ``auto`` goes by the first line.

    Raises:
        UserError: the file cannot be read or holds no problem, its format cannot be told, or lines are bad: all are
            counted, and the first ``MOST_BAD_LINES_TOLD`` named by their numbers.
    """
    lines = read_lines(file)
    if not lines:
        raise UserError(
            "the file holds 0 problems; at least 1 is needed",
            where=str(file),
            fix=f"write one JSON object a line: {EXAMPLES['math']} or {EXAMPLES['gsm8k']}",
        )
    chosen = _detect(file, lines[0]) if file_format == "auto" else file_format
    problems: dict[str, MathsProblem] = {}
    bad: list[tuple[int, UserError]] = []
    for number, line in lines:
        try:
            problem = parse_problem(line, f"{file}, line {number}", chosen)
            _refuse_contradiction(problem, problems.setdefault(problem.question, problem))
        except UserError as error:
            bad.append((number, error))
    if bad:
        raise _bad_lines(file, len(lines), bad)
    return tuple(problems.values())


def _detect(file: str | Path, first: tuple[int, bytes]) -> Literal["gsm8k", "math"]:
    number, line = first
    where = f"{file}, line {number}"
    row = parse_object(line, where, f"{EXAMPLES['math']} or {EXAMPLES['gsm8k']}")
    if "problem" in row:
        return "math"
    if "question" in row:
        return "gsm8k"
    raise UserError(
        "neither a field 'problem' (as in MATH) nor a field 'question' (as in GSM8K); the line has "
        f"{', '.join(map(repr, row)) or 'no field at all'}",
        where=where,
        fix=f"write lines as {EXAMPLES['math']} or {EXAMPLES['gsm8k']}",
    )


def parse_problem(line: bytes, where: str, file_format: Literal["gsm8k", "math"]) -> MathsProblem:
    """Return the problem on a line.

    Raises:
        UserError: the line is no JSON object, a field is missing, or the answer cannot be found in it.
    """
    row = parse_object(line, where, EXAMPLES[file_format])
    question = _needed(row, {"gsm8k": "question", "math": "problem"}[file_format], where, file_format).strip()
    answer = _ANSWERS[file_format](row, where).strip()
    if not answer or len(answer) > MAX_ANSWER_CHARS:
        raise UserError(
            f"the answer has {len(answer)} characters; it must have 1 to {MAX_ANSWER_CHARS}",
            where=where,
            fix="write the answer alone",
        )
    return MathsProblem(question, answer, _optional(row, "level"), _optional(row, "subject") or _optional(row, "type"))


def _gsm8k_answer(row: dict[str, Any], where: str) -> str:
    text = _needed(row, "answer", where, "gsm8k")
    if HASHES not in text:
        raise UserError(
            f"no {HASHES} in the field 'answer', behind which the answer stands",
            where=where,
            fix='end the field with the answer, as in "... #### 18"',
        )
    return text.rpartition(HASHES)[2]


def _math_answer(row: dict[str, Any], where: str) -> str:
    given = row.get("answer")
    if isinstance(given, (int, float)) and not isinstance(given, bool) and math.isfinite(given):
        return str(given)
    if given is not None:
        return checked_text(given, "answer", where)
    boxed = boxed_answer(_needed(row, "solution", where, "math"))
    if boxed is None:
        raise UserError(
            r"no \boxed{...} that is closed again in the field 'solution', and no field 'answer'",
            where=where,
            fix=r'box the answer in the solution, as in "... $\\boxed{18}$", or add the field "answer"',
        )
    return boxed


_ANSWERS: dict[str, Callable[[dict[str, Any], str], str]] = {"gsm8k": _gsm8k_answer, "math": _math_answer}


def _needed(row: dict[str, Any], name: str, where: str, file_format: str) -> str:
    if name not in row:
        raise UserError(
            f"no field {name!r}; the line has {', '.join(map(repr, row)) or 'no field at all'}",
            where=where,
            fix=f"write lines as {EXAMPLES[file_format]}, or set task.format to the format that they have",
        )
    text = checked_text(row[name], name, where)
    if not text.strip():
        raise UserError(f"the field {name!r} is empty", where=where, fix="fill it in, or remove the line")
    return text


def _optional(row: dict[str, Any], name: str) -> str | None:
    value = row.get(name)
    return str(value) if isinstance(value, (str, int)) else None


def _refuse_contradiction(problem: MathsProblem, first: MathsProblem) -> None:
    if problem.answer != first.answer:
        raise UserError(
            f"the problem has come before with the answer {first.answer[:40]!r}, and now has {problem.answer[:40]!r}",
            fix="remove one of the two lines",
        )


def _bad_lines(file: str | Path, count: int, bad: list[tuple[int, UserError]]) -> UserError:
    told = [f"line {number}: {error.what}" for number, error in bad[:MOST_BAD_LINES_TOLD]]
    more = len(bad) - len(told)
    rest = [f"and {more} more"] if more else []
    return UserError(
        f"{len(bad)} of {count} lines are bad\n  " + "\n  ".join(told + rest),
        where=str(file),
        fix=bad[0][1].fix,
    )


class MathsTask:
    """Maths problems from files in the format of MATH or GSM8K.

    Args:
        train: file with the training problems, see ``read_problems``.
        validation: file with the held-out problems; None splits them off ``train``.
        validation_fraction: share of ``train`` that is split off, above 0 and below 1; unused with a validation file.
        format: which fields the lines have; ``auto`` goes by a file's first line.
        prompt: name of a prompt template of the package, or the path of a user's own.
        reward: how the answer is found in a response, ``r1_zero`` or ``question_only``; None: as the template of the
            package asks for it.
        symbolic_timeout_s: seconds that the symbolic comparison of one answer may take; then the answer is wrong.

    Attributes:
        reward: the reward function, with a grader of its own; it pickles without the prompts.
        stop: strings that end a response to these prompts; ``sampling.stop`` may add others.

    Raises:
        UserError: a file is missing, empty or has bad lines, a problem is in both splits, the template cannot be
            used, a user's own comes without ``reward``, or math-verify is not installed.
    """

    def __init__(
        self,
        train: str | Path,
        validation: str | Path | None = None,
        validation_fraction: float = 0.1,
        format: FileFormat = "auto",
        prompt: str = "r1_zero",
        symbolic_timeout_s: float = SYMBOLIC_TIMEOUT_S,
        reward: str | None = None,
    ) -> None:
        template, graded = prompt_template(prompt), reward_of(prompt, reward)
        check_installed()
        trained = bare_prompts(train, format)
        if validation is None:
            trained, held_out = split_prompts(trained, validation_fraction, str(train))
        else:
            held_out = bare_prompts(validation, format)
            refuse_shared(trained, held_out, str(train), str(validation))
        self.train_prompts, self.validation_prompts = asked(trained, template), asked(held_out, template)
        self.stop = STOP_STRINGS[graded]
        self.reward = MathsReward(graded, symbolic_timeout_s)


def bare_prompts(file: str | Path, file_format: FileFormat) -> tuple[Prompt, ...]:
    """Return the problems of a file as prompts that are the question alone, in its order.

    They are split before a template is around them, so that every template has the same problems held out.

    Raises:
        UserError: see ``read_problems``.
    """
    return tuple(Prompt(problem.question, problem.answer) for problem in read_problems(file, file_format))


def asked(prompts: Sequence[Prompt], template: PromptTemplate) -> tuple[Prompt, ...]:
    """Return bare prompts as a template asks them."""
    return tuple(replace(prompt, text=template.render(prompt.text)) for prompt in prompts)


def check_installed() -> None:
    """Refuse to run without the library, since what only algebra can judge could not be graded.

    Raises:
        UserError: math-verify is not installed.
    """
    if find_spec("math_verify") is None:
        raise UserError(
            "math-verify is not installed, which compares answers by algebra",
            where="task.type: maths",
            fix=how_to_install("train"),
        )
