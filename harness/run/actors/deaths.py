"""What Ray raises when an actor dies or its method fails, in a few words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError

from harness.core.errors import HarnessError, RunStopped
from harness.probes.memory import is_full_gpu

DEATHS = (RayActorError, OutOfMemoryError)
"""What a call raises whose actor is dead."""
_MEANINGS = (  # what Ray says, and what it means
    (r"connection error code 2", "its process ended without a word: it was killed, crashed or ran out of memory"),
    (r"exit code (\d+)", r"its process ended with exit code \1"),
    (r"was (\S+) used / (\S+) limit", r"Ray killed it since memory ran low: \1 of \2 were in use"),
    (r"\n([\w.]+(?:Error|Exception): .*)", r"it could not be set up: \1"),
    (r"killed by .ray\.kill", "Ray ended it, as it does with both sides of a weight transfer that breaks off"),
    (r"(?:is dead|died) because (.*)", r"\1"),
)


@contextmanager
def ends_the_run(what: str) -> Iterator[None]:
    """Raise what Ray raises in the block as the end of the run.

    Raises:
        RunStopped: with ``what`` and Ray's reason.
    """
    try:
        yield
    except DEATHS as error:
        raise RunStopped(f"{what}: {cause_of_death(error)}") from None
    except RayError as error:
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]  # of a remote stack it is the error
        raise RunStopped(f"{what}: {last}") from None


def own_error(error: RayTaskError) -> BaseException:
    """Return the error that the method raised: Ray wraps it in one of its own, with the remote stack as its text.

    Those that the driver can put in words are returned as they are: the harness's own, and of a GPU that is full.
    """
    cause = error.cause
    while isinstance(cause, RayTaskError):
        cause = cause.cause
    if isinstance(cause, HarnessError) or is_full_gpu(cause):
        return cause
    if isinstance(cause, RayError):
        return RunStopped(f"an object is gone with the actor that owned it: {first_line(cause)}")
    return RunStopped(f"an actor failed with {type(cause).__name__}: {cause}\n{error}")  # whose text is the stack


def cause_of_death(error: RayError) -> str:
    """Return in a few words what Ray knows of a death."""
    for pattern, words in _MEANINGS:
        if found := re.search(pattern, str(error)):
            return found.expand(words).strip(" .")
    return type(error).__name__


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
