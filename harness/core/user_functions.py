"""A user's own function, named as ``package.module:function``: a reward, a loss, an advantage."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.core.errors import UserError

_HARNESS = str(Path(__file__).parents[1]) + os.sep


@dataclass(frozen=True, slots=True)
class FunctionKind:
    """What a function of a user is for, in the words of errors.

    Attributes:
        noun: ``reward``, ``loss``, ``advantage``.
        setting: the dotted key that names the function.
        signature: how it is defined, for example ``(response: str, ground_truth: str) -> float``.
        example: a path that there is.
    """

    noun: str
    setting: str
    signature: str
    example: str

    @property
    def write_as(self) -> str:
        """How to write the setting."""
        return f"write it as package.module:function, for example {self.example}"


def import_function(path: str, kind: FunctionKind) -> Callable[..., Any]:
    """Return the function that a path names, imported with the current folder first on the import path.

    Args:
        path: ``package.module:function``.
        kind: what the function is for.

    Raises:
        UserError: the path has no colon, the module cannot be imported, or the name is missing or not callable.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name or "/" in path or module_name.endswith(".py"):
        raise UserError(f"the {kind.noun} {path!r} does not name a function", where=kind.setting, fix=kind.write_as)
    module = _import_module(path, module_name, kind)
    function = getattr(module, name, None)
    if function is None:
        near = difflib.get_close_matches(name, [known for known in vars(module) if not known.startswith("_")], n=1)
        raise UserError(
            f"the {kind.noun} {path!r} cannot be used: the module {module_name} has no {name!r}",
            where=kind.setting,
            fix=f"did you mean {module_name}:{near[0]}?" if near else f"define {name} in {module_name}",
        )
    if not callable(function):
        raise UserError(
            f"the {kind.noun} {path!r} cannot be used: {name} is of type {type(function).__name__}, not a function",
            where=kind.setting,
            fix=f"define it as def {name}{kind.signature}",
        )
    return function  # type: ignore[no-any-return]


def module_hash(path: str) -> str | None:
    """Return the SHA-256 of the file of the module that a path names, in hexadecimal; None where there is no such file.

    Args:
        path: ``package.module:function``.
    """
    _look_here()
    try:
        spec = importlib.util.find_spec(path.partition(":")[0])
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def _look_here() -> None:
    """Put the current folder first on the import path, where it stays: the function may import later."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()


def _import_module(path: str, module_name: str, kind: FunctionKind) -> ModuleType:
    _look_here()
    try:
        return importlib.import_module(module_name)
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        missing = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        reason = "there is no such module" if missing else f"importing it raised {described(error)}"
        raise UserError(
            f"the {kind.noun} {path!r} cannot be imported: {reason}",
            where=kind.setting if missing else last_line(error) or kind.setting,
            fix=f"{kind.write_as}, and run from the folder that holds {module_name.partition('.')[0]}"
            if missing
            else f"make `python -c 'import {module_name}'` work in this folder",
        ) from error


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether what came out of a user's function may be a Ctrl-C, which only the main thread is told of."""
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def described(error: BaseException) -> str:
    """Return the type of an error and its text."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def last_line(error: BaseException) -> str | None:
    """Return ``file:line`` where the error was raised in the user's own code, relative to the current folder."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{os.path.relpath(error.filename)}:{error.lineno}"
    trace, found = error.__traceback__, None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(os.getcwd()) and not file.startswith(_HARNESS) and "site-packages" not in file:
            found = f"{os.path.relpath(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
