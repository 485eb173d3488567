"""What a policy is asked: the prompt templates of the package, and those of a user's own.

A template is a text with ``{question}`` where the question goes. Those of the package lie in ``templates/``, with their
sources beside them.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.core.errors import UserError

TEMPLATES = ("r1_zero", "question_only", "r1_zero_reworded")
"""Names of the package's templates."""
QUESTION = "{question}"
MAX_TEMPLATE_BYTES = 65_536
"""A longer file is no template."""

_FOLDER = Path(__file__).with_name("templates")
_BRACES = re.compile(r"\{[A-Za-z_]{1,30}\}")


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A text with one place or more for the question.

    Attributes:
        name: one of ``TEMPLATES``, or the path of a user's file.
        text: what the policy reads, ``{question}`` included. Other braces are plain text.
    """

    name: str
    text: str

    def render(self, question: str) -> str:
        """Return the prompt for a question. Nothing in the question is special, braces included."""
        return self.text.replace(QUESTION, question.strip())

    @property
    def sha256(self) -> str:
        """Digest of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def prompt_template(name_or_file: str) -> PromptTemplate:
    """Return one of the package's templates, or read a user's own.

    Args:
        name_or_file: one of ``TEMPLATES``; anything else is the path of a UTF-8 file, from the current folder. A line
            break at the file's end is not part of the prompt.

    Raises:
        UserError: there is no such template and no such file, or the file is too large, no UTF-8, or has no place for
            the question.
    """
    if name_or_file in TEMPLATES:
        return _of_the_package(name_or_file)
    return PromptTemplate(name_or_file, _checked_text(_read(name_or_file), name_or_file))


@cache
def _of_the_package(name: str) -> PromptTemplate:
    return PromptTemplate(name, _checked_text((_FOLDER / f"{name}.txt").read_bytes(), name))


def _read(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(MAX_TEMPLATE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        missing = isinstance(error, FileNotFoundError)
        reason = "neither a template nor a file" if missing else getattr(error, "strerror", None) or str(error)
        near = difflib.get_close_matches(file, TEMPLATES, n=1) if missing else []
        guess = f"did you mean {near[0]}? " if near else ""
        raise UserError(
            f"the prompt template {file!r} cannot be read: {reason}",
            where="task.prompt",
            fix=f"{guess}write {', '.join(TEMPLATES)}, or the path of a text file with {QUESTION} in it; "
            "a relative one counts from the folder the command is run in",
        ) from error


def _checked_text(content: bytes, file: str) -> str:
    """Return the text of a template; raises as ``prompt_template`` does."""
    if len(content) > MAX_TEMPLATE_BYTES:
        raise UserError(
            f"the prompt template has more than {MAX_TEMPLATE_BYTES:,} bytes",
            where=file,
            fix="shorten it: the policy reads all of it before each question",
        )
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"byte {error.start + 1} of the prompt template (0x{content[error.start]:02x}) is not UTF-8",
            where=file,
            fix="save the file as UTF-8",
        ) from error
    text = text.removesuffix("\n").removesuffix("\r")
    if QUESTION not in text:
        found = _BRACES.search(text)
        raise UserError(
            f"the prompt template has no {QUESTION}" + (f", though it has {found.group()}" if found else ""),
            where=file,
            fix=f"write {QUESTION} where the question goes",
        )
    return text
