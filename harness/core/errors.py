"""The exceptions of the harness.

HarnessError
├── UserError (also a ValueError)   bad input: the message says what, where, the bound and the fix; exit code 2
├── RunStopped                      the run itself cannot go on (broken lag bound, dead Learner): exit code 1
│   ├── Diverged                    its loss or gradient was not finite: to an experiment that is a result
│   └── PartDied                    a part that cannot be replaced
├── Interrupted                     Ctrl-C or SIGTERM, after the results were closed: exit code 130
└── PartReplaced                    a part died; the loop repeats its work on the new one, nobody else sees this

All of them pickle, since they cross process borders.
"""

from __future__ import annotations


class HarnessError(Exception):
    """Base class of every error the harness raises on purpose."""


class UserError(HarnessError, ValueError):
    """Bad input.

    Args:
        what: what is wrong, with the offending value and the bound it breaks.
        where: file, line or key at fault, if one can be named.
        fix: what to type instead.
    """

    def __init__(self, what: str, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what, where, fix)
        self.what, self.where, self.fix = what, where, fix

    def __str__(self) -> str:
        lines = self.what.split("\n")
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(map(_readable, lines))


_LONGEST_LINE = 2000
"""Characters of a line of an error, which may quote a name or a value of any length."""


def _readable(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 105]} ... {line[-100:]}"


def quoted(value: object, limit: int = 80) -> str:
    """Return a value as it is written in code, cut to ``limit`` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class RunStopped(HarnessError):
    """The run had to stop: going on would do silent damage. The message carries every number."""


class Diverged(RunStopped):
    """A loss, a gradient or a log-probability was not finite.

    Args:
        message: with every number.
        step: the training step; None where whoever noticed does not know it.
    """

    def __init__(self, message: str, step: int | None = None) -> None:
        super().__init__(message, step)
        self.message, self.step = message, step

    def __str__(self) -> str:
        return self.message


class PartDied(RunStopped):
    """A part died that cannot be replaced: the Learner, or one of its ranks."""


class PartReplaced(HarnessError):
    """A part died while it worked, and a new one, without weights, stands in its place: load them and repeat the work.

    Args:
        reason: what killed it.
        incarnation: number of the new part on its lane; the first part was 0.
    """

    def __init__(self, reason: str, incarnation: int) -> None:
        super().__init__(reason, incarnation)
        self.reason, self.incarnation = reason, incarnation


class Interrupted(HarnessError):
    """The user asked the run to stop; what was measured so far is on disk."""
