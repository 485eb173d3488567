"""A user's own reward function, named as ``package.module:function``."""

from __future__ import annotations

import difflib
import importlib
import math
import numbers
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from harness.core.errors import UserError

PARTS = ("reward", "format_reward", "answer_reward")
_EXPECTED = "a finite number, or a dict with the key 'reward' and a finite number"
_WRITE_AS = "write it as package.module:function, for example docs.examples.own_task.reward:score"
_RETURN_FIX = "return a float such as 1.0, or {'reward': 1.0}"


class UserReward:
    """Calls a user's reward function and checks what it returns.

    Args:
        path: ``package.module:function``; imported with the current folder on the import path. The function is called
            as ``fn(response, ground_truth)`` and returns a number or a dict.

    Raises:
        UserError: the path has no colon, the module cannot be imported, or the name is missing or not callable.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._function = _import_function(path)

    def __call__(self, response: str, ground_truth: str) -> dict[str, float]:
        """Return ``reward``, ``format_reward`` and ``answer_reward`` of one response.

        A plain number r counts as reward r, format 1, answer r; the same fills in the parts that a dict leaves out.

        Raises:
            UserError: the function raised or called ``sys.exit``, or returned something that is not a finite number.
        """
        try:
            value = self._function(response, ground_truth)
        except (Exception, SystemExit) as error:  # sys.exit(0) would end a failed run as a success
            raise UserError(
                f"the reward function {self.path} raised {_described(error)} for the response {_short(response)} "
                f"and the ground truth {_short(ground_truth)}",
                where=_last_line(error) or self.path,
                fix="it is called as fn(response: str, ground_truth: str) and must answer for every text, also ''",
            ) from error
        return self._checked(value)

    def __reduce__(self) -> tuple[type[UserReward], tuple[str]]:
        """Pickle by name: another process imports the function again."""
        return UserReward, (self.path,)

    def _checked(self, value: Any) -> dict[str, float]:
        if not isinstance(value, Mapping):
            value = {"reward": value}
        elif "reward" not in value:
            raise self._returned(dict(value), "which lacks the key 'reward'")
        unknown = [key for key in value if key not in PARTS]
        if unknown:
            raise self._returned(dict(value), f"whose key {unknown[0]!r} is none of {', '.join(PARTS)}")
        reward = value["reward"]
        parts = {"reward": reward, "format_reward": 1.0, "answer_reward": reward} | dict(value)
        return {name: self._number(name, part) for name, part in parts.items()}

    def _number(self, name: str, value: Any) -> float:
        if not isinstance(value, numbers.Real):
            raise self._returned(value, f"of type {type(value).__name__}, as its {name}")
        if not math.isfinite(value):
            raise self._returned(value, f"as its {name}")
        return float(value)

    def _returned(self, value: Any, detail: str) -> UserError:
        return UserError(
            f"the reward function {self.path} returned {_short(value)}, {detail}; expected {_EXPECTED}",
            where=self.path,
            fix=_RETURN_FIX,
        )


def _import_function(path: str) -> Callable[[str, str], Any]:
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name or "/" in path or module_name.endswith(".py"):
        raise UserError(f"the reward {path!r} does not name a function", where="task.reward", fix=_WRITE_AS)
    module = _import_module(path, module_name)
    function = getattr(module, name, None)
    if function is None:
        near = difflib.get_close_matches(name, [known for known in vars(module) if not known.startswith("_")], n=1)
        raise UserError(
            f"the reward {path!r} cannot be used: the module {module_name} has no {name!r}",
            where="task.reward",
            fix=f"did you mean {module_name}:{near[0]}?" if near else f"define {name} in {module_name}",
        )
    if not callable(function):
        raise UserError(
            f"the reward {path!r} cannot be used: {name} is of type {type(function).__name__}, not a function",
            where="task.reward",
            fix=f"define it as def {name}(response: str, ground_truth: str) -> float",
        )
    return function  # type: ignore[no-any-return]


def _import_module(path: str, module_name: str) -> ModuleType:
    """Import with the current folder first on the import path, where it stays: the function may import later."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        reason = "there is no such module" if missing else f"importing it raised {_described(error)}"
        raise UserError(
            f"the reward {path!r} cannot be imported: {reason}",
            where="task.reward" if missing else _last_line(error) or "task.reward",
            fix=f"{_WRITE_AS}, and run from the folder that holds {module_name.partition('.')[0]}"
            if missing
            else f"make `python -c 'import {module_name}'` work in this folder",
        ) from error


def _described(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _short(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _last_line(error: BaseException) -> str | None:
    """Return ``file:line`` where the error was raised in the user's own code, relative to the current folder."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{os.path.relpath(error.filename)}:{error.lineno}"
    trace, found = error.__traceback__, None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(os.getcwd()) and file != __file__ and "site-packages" not in file:
            found = f"{os.path.relpath(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
