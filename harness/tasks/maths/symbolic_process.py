"""What the process of the symbolic comparison does: the one place where sympy and math-verify are loaded.

    asked      {"number": 7, "answer": "...", "truth": "..."}
    answered   {"number": 7, "equal": true, "last": false}; after "last" the process is to end

math-verify has two readers. The one for plain expressions hands text to sympy's ``parse_expr``, and so to Python's
``eval``; it is not used. The one for LaTeX (latex2sympy) has a grammar, and builds expressions out of what that finds;
yet a number found by it goes through ``sympy.Number`` to the same ``eval``. So the process is confined before it sees
any text, and evaluated text may name nothing but a few of sympy's numbers: see ``confine``.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CodeType
from typing import Any

from harness.core.child_process import Message

MEMORY_BYTES = 1 << 30
"""Address space of the process; what asks for more gets a MemoryError, and its answer is wrong."""
KEPT_BYTES = 512 << 20
"""A process that has grown beyond this is replaced after its answer."""

NAMES_IN_TEXT = frozenset({"sympy", "Integer", "Float", "Rational"})
"""What evaluated text may name: sympy reads a number as ``Integer(3)``, and polynomials (``monomial_``) write code."""

_FORBIDDEN_EVENTS = (
    "socket.", "subprocess.", "ctypes.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.remove",
    "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate", "os.kill",
    "os.putenv", "shutil.", "pty.", "webbrowser.", "urllib.", "pickle.",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_Compare = Callable[[str, str], bool]


class Forbidden(Exception):
    """The process tried what no comparison needs."""


def prepare_comparisons(_messages: Iterator[Message]) -> Callable[[Message], list[Message]]:
    """Load the library, confine the process, and return what answers a question."""
    compare = _load()
    confine()

    def answer(question: Message) -> list[Message]:
        try:
            equal = compare(question["answer"], question["truth"])
        except Exception:  # whatever it is, it is the text's fault: nobody can tell that the answers agree
            equal = False
        return [{"number": question["number"], "equal": equal is True, "last": _resident_bytes() > KEPT_BYTES}]

    return answer


def _resident_bytes() -> int:
    """Return what this process holds now; ``ru_maxrss`` would begin with the peak of the process that started it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as pages:
            return int(pages.read().split()[1]) * resource.getpagesize()
    except OSError:  # no /proc on this system: the limit on addresses still holds
        return 0


def _load() -> _Compare:
    """Import the library, and try it once so that what it imports late is there too."""
    logging.disable(logging.CRITICAL)  # it warns, with the text in the message
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Expr, I, simplify  # type: ignore[import-untyped]

    usual = LatexExtractionConfig().normalization_config
    units_as_they_are = replace(usual, units=False)  # ours are off; what else looks like one may be a variable
    targets = (LatexExtractionConfig(normalization_config=units_as_they_are),)

    def read(text: str) -> list[Any]:
        return parse(f"${text}$", targets, fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[no-any-return]

    def compare(answer: str, truth: str) -> bool:
        # Time limits of its own would need the main thread's signals; ours is the parent's, which kills this process.
        given, wanted = read(answer), read(truth)
        if not given or not wanted:
            return False
        return bool(verify(wanted, given, timeout_seconds=None)) or same_complex(given[0], wanted[0])

    def same_complex(one: object, other: object) -> bool:
        """Return whether two values that hold no letter but ``i`` are the same, ``i`` being the imaginary unit."""
        if not isinstance(one, Expr) or not isinstance(other, Expr):
            return False
        letters = one.free_symbols | other.free_symbols
        if {letter.name for letter in letters} != {"i"}:
            return False
        return bool(simplify((one - other).subs(dict.fromkeys(letters, I))) == 0)

    for answer, truth in (
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("(x+1)^2", "x^2+2x+1"),
        (r"(1,2]\cup[3,4)", "(1,2]"),
        ("x<1", "1>x"),
        (r"\frac{1}{i}", "-i"),
    ):
        compare(answer, truth)
    return compare


def confine() -> None:
    """Give up what no comparison needs: memory, files to write, other processes, the network, a folder, ``eval``.

    An empty folder that is removed at once is the current one: no file can be made in it. Limits on processes do not
    bind a superuser, which is why the audit hook, which cannot be removed again, refuses to start any.
    """
    with tempfile.TemporaryDirectory(prefix="symbolic-") as folder:
        os.chdir(folder)
    for limit, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(limit, (most, most))
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise Forbidden for what no comparison needs."""
    if event == "open":
        refused = bool(arguments[2] & _WRITING)
    elif event == "exec":
        refused = _is_text(arguments[0]) and not all(map(_may_be_named, _names_in(arguments[0])))
    else:
        refused = event.startswith(_FORBIDDEN_EVENTS)
    if refused:
        raise Forbidden(event)


def _is_text(code: CodeType) -> bool:
    """Whether code was compiled from a text, and not read from a module's file."""
    return code.co_filename.startswith("<") and not code.co_filename.startswith("<frozen")


def _may_be_named(name: str) -> bool:
    return name in NAMES_IN_TEXT or name.startswith("monomial_")


def _names_in(code: CodeType) -> set[str]:
    """Return every name that code uses, whether of a variable, a function, an attribute or a module."""
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)
