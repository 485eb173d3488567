"""Whether two answers mean the same: by exact rules first, after that by math-verify in a process of its own.

Model output can keep a computer algebra system busy for ever, or eat all memory. So the comparison runs in one process
beside this one, which is killed and replaced at its time limit or when it has died, and which ends with this one.
"""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from dataclasses import dataclass
from functools import cache

from harness.core.child_process import ChildProcess
from harness.core.errors import UserError
from harness.core.extras import how_to_install
from harness.tasks.maths.answers import agree_exactly, comparable, separate_parts, split_parts
from harness.tasks.maths.spelling import compiled, rewritten
from harness.tasks.maths.units import DEGREE, take_off_unit

SYMBOLIC_TIMEOUT_S = 2.0
"""Seconds that one comparison may take; then the answer counts as wrong."""
MAX_SYMBOLIC_CHARS = 300
"""A longer text is wrong without asking."""
MAX_DEPTH = 20
"""So is one whose brackets are nested deeper."""
REMEMBERED = 4096
"""Verdicts kept, so that a group that repeats an answer asks once."""

_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")
_OWN_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
_FUNCTIONS = "sin|cos|tan|cot|sec|csc|log|ln|exp|arcsin|arccos|arctan|sinh|cosh|tanh|min|max|gcd|lcm"
_AS_LATEX = compiled(
    (r"(?<![\d.}])(\d+)\s*\\frac\s*\{(\d+)\}\s*\{(\d+)\}", r"(\1+\\frac{\2}{\3})"),  # algebra reads a product
    (r"\*\*", "^"),
    (r"\*", r"\\cdot "),
    (r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"(?<![\\a-zA-Z])(?:pi|Pi|PI)(?![a-zA-Z])", r"\\pi "),
    (r"(?<![\\a-zA-Z])(?:infinity|inf|oo)(?![a-zA-Z])", r"\\infty "),
    (rf"(?<![\\a-zA-Z])({_FUNCTIONS})(?![a-zA-Z])", r"\\\1"),
    (r"<=", r"\\le "),
    (r">=", r"\\ge "),
    (r"(?<!\\)%", r"\\%"),
    (DEGREE, r" \\cdot \\pi / 180 "),
    (r"[$\n\r]", " "),
)
_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")
_NAME_OF_A_VALUE = re.compile(r"(?![-+])(?:\\(?!sqrt|log|ln|frac)|[^\d^=|\\]|_\{?\d+\}?)+")
_NUMERAL_WITH_BASE = re.compile(r"[\d)]\s*_")
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{[a-zA-Z]{1,8}\}|\\[a-zA-Z]+")


@dataclass
class Counts:
    """What became of the comparisons.

    Attributes:
        asked: sent to the process.
        remembered: told from an earlier one.
        refused: too long, too deep or prose: wrong without asking.
        timed_out: given up at the limit.
        died: the process died of it.
        started: processes started.
        longest_s: seconds of the longest one, the start of the process not counted.
    """

    asked: int = 0
    remembered: int = 0
    refused: int = 0
    timed_out: int = 0
    died: int = 0
    started: int = 0
    longest_s: float = 0.0


class SymbolicComparer:
    """Compares answers by algebra; any thread may call it, and one comparison runs at a time.

    The process starts at the first comparison. It is killed when this object goes, and ends with this process.

    Args:
        timeout_s: seconds that one comparison may take. Neither the start of the process counts nor the wait for
            another thread's comparison.

    Attributes:
        counts: what became of the comparisons.
    """

    def __init__(self, timeout_s: float = SYMBOLIC_TIMEOUT_S) -> None:
        self.timeout_s, self.counts = timeout_s, Counts()
        self._lock = threading.Lock()
        self._verdicts: dict[tuple[str, str], bool] = {}  # those asked for last at the end
        self._running: list[ChildProcess] = []
        weakref.finalize(self, _kill_all, self._running)

    def __call__(self, answer: str, ground_truth: str) -> bool:
        """Return whether algebra shows that the answers agree; False where it cannot tell within the limits.

        Raises:
            UserError: the process cannot be started.
        """
        asked = as_latex(answer, ground_truth)
        with self._lock:
            if asked is None:
                self.counts.refused += 1
                return False
            self.counts.remembered += asked in self._verdicts
            verdict = self._verdicts.pop(asked) if asked in self._verdicts else self._ask(*asked)
            self._verdicts[asked] = verdict
            if len(self._verdicts) > REMEMBERED:
                del self._verdicts[next(iter(self._verdicts))]
            return verdict

    def _ask(self, answer: str, truth: str) -> bool:
        process = self._started()
        self.counts.asked += 1
        began = time.monotonic()
        process.send({"number": self.counts.asked, "answer": answer, "truth": truth}, self.timeout_s)
        reply = {}
        try:
            reply = process.receive(began + self.timeout_s)
        except TimeoutError:
            self.counts.timed_out += 1
        except ConnectionError:
            self.counts.died += 1
        self.counts.longest_s = max(self.counts.longest_s, time.monotonic() - began)
        is_trusted = reply.get("number") == self.counts.asked
        if not is_trusted or reply.get("last"):
            _kill_all(self._running)
        return is_trusted and reply.get("equal") is True

    def _started(self) -> ChildProcess:
        if self._running:
            return self._running[0]
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | _OWN_ENVIRONMENT
        process = ChildProcess("harness.tasks.maths.symbolic_process:prepare_comparisons", environment)
        self._running.append(process)
        self.counts.started += 1
        try:
            process.wait_until_ready()
        except ConnectionError as error:
            _kill_all(self._running)
            raise UserError(
                f"the process that compares answers by algebra {str(error)[:200]}",
                where="harness.tasks.maths.symbolic",
                fix=f"install the harness again, math-verify included: {how_to_install('train')}",
            ) from None
        return process

    def forget(self) -> None:
        """Forget earlier verdicts."""
        with self._lock:
            self._verdicts.clear()

    def close(self) -> None:
        """End the process; the next comparison starts another."""
        with self._lock:
            _kill_all(self._running)


def as_latex(answer: str, ground_truth: str) -> tuple[str, str] | None:
    """Return both answers as the LaTeX that is compared; None where they are not worth asking about.

    Plain spellings (``sqrt(2)``, ``2*x``, ``x**2``, ``pi``) become LaTeX. Prose is refused: algebra reads a word as a
    product of letters, in which their order is no matter. So are numerals with a base, which algebra ignores.
    """
    plain = (separate_parts(_without_units(measured.value)) for measured in comparable(answer, ground_truth))
    given, truth = (rewritten(text, _AS_LATEX).strip() for text in plain)
    return (given, truth) if _worth_asking(given) and _worth_asking(truth) and _names_fit(given, truth) else None


def _names_fit(given: str, truth: str) -> bool:
    """Return False where one is an equation that does not name its value: algebra takes ``2x=10`` for 10."""
    if ("=" in given) == ("=" in truth):
        return True
    return any(_NAME_OF_A_VALUE.fullmatch(side.strip()) for side in (given if "=" in given else truth).split("=", 1))


def _without_units(text: str) -> str:
    """Return a list or a point without the units of its parts; the exact rules have compared them."""
    split = split_parts(text)
    if split is None:
        return text
    inside = ", ".join(take_off_unit(part).value for part in split.parts)
    begin, end = (r"\{", r"\}") if split.brackets == "{}" else (split.brackets[:1], split.brackets[1:])
    return begin + inside + end


def _worth_asking(text: str) -> bool:
    if not 0 < len(text) <= MAX_SYMBOLIC_CHARS or not text.isascii() or _PROSE.search(_COMMAND.sub(" ", text)):
        return False
    if _NUMERAL_WITH_BASE.search(text):
        return False
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest <= MAX_DEPTH


def _kill_all(running: list[ChildProcess]) -> None:
    while running:
        running.pop().kill()


class AnswerGrader:
    """Compares answers; any thread may call it.

    Attributes:
        symbolic: compares what exact rules cannot decide, and counts what became of it.
    """

    def __init__(self, symbolic_timeout_s: float = SYMBOLIC_TIMEOUT_S) -> None:
        self.symbolic = SymbolicComparer(symbolic_timeout_s)

    def __call__(self, answer: str, ground_truth: str) -> bool:
        """Return whether the answer means the same as the ground truth; False where nobody can tell."""
        verdict = agree_exactly(answer, ground_truth)
        return self.symbolic(answer, ground_truth) if verdict is None else verdict

    def close(self) -> None:
        """End the process of the symbolic comparison; the next one starts another."""
        self.symbolic.close()


shared_grader = cache(AnswerGrader)
"""Returns this process's grader, for reward functions that are called without one."""
