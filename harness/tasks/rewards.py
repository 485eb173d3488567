"""A user's own reward function, named as ``package.module:function``."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

from harness.core.errors import UserError
from harness.core.user_functions import FunctionKind, described, import_function, last_line

PARTS = ("reward", "format_reward", "answer_reward")
_EXPECTED = "a finite number, or a dict with the key 'reward' and a finite number"
KIND = FunctionKind(
    "reward",
    "task.reward",
    "(response: str, ground_truth: str) -> float",
    "docs.examples.own_task.reward:score",
)
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
        self._function = import_function(path, KIND)

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
                f"the reward function {self.path} raised {described(error)} for the response {_short(response)} "
                f"and the ground truth {_short(ground_truth)}",
                where=last_line(error) or self.path,
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


def _short(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
