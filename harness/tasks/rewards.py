"""A user's own reward: one function named as ``package.module:function``, or a weighted list of them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.core.errors import UserError
from harness.core.plugins import PluginKind, described, is_ctrl_c, last_line, load_callable
from harness.core.rewards import reward_number

PARTS = ("reward", "format_reward", "answer_reward")
NAMED = "_reward"
"""Ends the key of a part that has a name: ``brevity_reward`` is shown as ``reward/brevity``."""
Row = Mapping[str, Any]
"""A line of a data file, every field of it."""
_EXPECTED = "a finite number, or a dict with the key 'reward' and a finite number"
KIND = PluginKind(
    "reward",
    "task.reward",
    "(response: str, ground_truth: str) -> float",
    "docs.examples.own_task.reward:score",
)
_RETURN_FIX = "return a float such as 1.0, or {'reward': 1.0}"


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """One of a user's reward functions, and how it is called.

    Attributes:
        path: ``package.module:function``.
        weight: its part of the reward is multiplied by it.
        per: called for each ``response``, or once for the ``group`` of responses to one prompt: a list in, a list out.
        takes: its second argument: the ``ground_truth``, or the whole ``row`` of the data file as a dict.
        name: what its part is called in metrics; None takes the function's name.
    """

    path: str
    weight: float = 1.0
    per: Literal["response", "group"] = "response"
    takes: Literal["ground_truth", "row"] = "ground_truth"
    name: str | None = None

    @property
    def label(self) -> str:
        """What its part is called in metrics."""
        return self.name or self.path.rpartition(":")[2]

    @property
    def called_as(self) -> str:
        """How the function is called, in code."""
        first = "response: str" if self.per == "response" else "responses: list[str]"
        return f"fn({first}, {'ground_truth: str' if self.takes == 'ground_truth' else 'row: dict'})"


class UserReward:
    """Calls a user's reward functions and checks what they return.

    With a list of functions the reward is the weighted sum of theirs, and so is the answer's part of it; the format is
    right as far as it is for every function (the least of theirs); and each function's own reward is kept under its
    name, unweighted, as in TRL's ``rewards/<name>``.

    Args:
        reward: ``package.module:function``, called as ``fn(response, ground_truth)`` and returning a number or a dict;
            or functions with their weights. They are imported with the current folder on the import path.

    Attributes:
        needs_rows: whether a function takes whole rows.
        calls_groups: whether a function is called with the responses of a whole group.

    Raises:
        UserError: a path has no colon, a module cannot be imported, or a name is missing or not callable.
    """

    def __init__(self, reward: str | Sequence[RewardFunction]) -> None:
        self._given = reward if isinstance(reward, str) else tuple(reward)
        functions = (RewardFunction(reward),) if isinstance(reward, str) else tuple(reward)
        self._functions = tuple(_Called(function) for function in functions)
        self.needs_rows = any(function.takes == "row" for function in functions)
        self.calls_groups = any(function.per == "group" for function in functions)

    def __call__(self, response: str, ground_truth: str, row: Row | None = None) -> dict[str, float]:
        """Return the rewards of one response, as the only one of its group; see ``of_group``."""
        return next(self.of_group([response], ground_truth, row))

    def of_group(
        self, responses: Sequence[str], ground_truth: str, row: Row | None = None
    ) -> Iterator[dict[str, float]]:
        """Call what is called per group at once, and return the rewards of each response in turn as they are asked for.

        A plain number r counts as reward r, format 1, answer r; the same fills in the parts that a dict leaves out.

        Args:
            responses: to one prompt.
            ground_truth: the prompt's.
            row: of the data file; each call gets a copy of its own.

        Yields:
            ``reward``, ``format_reward`` and ``answer_reward``; with a list of functions ``<name>_reward`` of each.

        Raises:
            UserError: a function raised or called ``sys.exit``, or returned something that is not a finite number, or
                not one for each response.
        """
        at_once = {
            index: called.with_group(responses, ground_truth, row)
            for index, called in enumerate(self._functions)
            if called.function.per == "group"
        }

        def parts(place: int, response: str) -> list[dict[str, float]]:
            return [
                at_once[index][place] if index in at_once else called.with_response(response, ground_truth, row)
                for index, called in enumerate(self._functions)
            ]

        return (self._summed(parts(place, response)) for place, response in enumerate(responses))

    def try_out(self, ground_truth: str, row: Row | None = None) -> None:
        """Call every function once, with an empty response, or where it takes groups with two; raises as they do."""
        list(self.of_group(["", ""] if self.calls_groups else [""], ground_truth, row))

    def _summed(self, parts: Sequence[dict[str, float]]) -> dict[str, float]:
        if isinstance(self._given, str):
            return parts[0]
        functions = [called.function for called in self._functions]
        weighted = {
            key: sum(function.weight * part[key] for function, part in zip(functions, parts, strict=True))
            for key in ("reward", "answer_reward")
        }
        named = {f"{function.label}{NAMED}": part["reward"] for function, part in zip(functions, parts, strict=True)}
        least = min(part["format_reward"] for part in parts)
        return {
            "reward": weighted["reward"],
            "format_reward": least,
            "answer_reward": weighted["answer_reward"],
            **named,
        }

    def __reduce__(self) -> tuple[type[UserReward], tuple[str | tuple[RewardFunction, ...]]]:
        """Pickle by name: another process imports the functions again."""
        return UserReward, (self._given,)


class _Called:
    """One imported function."""

    def __init__(self, function: RewardFunction) -> None:
        self.function = function
        self._call: Callable[..., Any] = load_callable(function.path, KIND)

    def with_response(self, response: str, ground_truth: str, row: Row | None) -> dict[str, float]:
        """Return the three parts of one response."""
        value = self._returned_for(response, f"the response {_short(response)}", ground_truth, row)
        return self._checked(value, "")

    def with_group(self, responses: Sequence[str], ground_truth: str, row: Row | None) -> list[dict[str, float]]:
        """Return the three parts of each response."""
        asked = f"{len(responses)} responses, the first {_short(responses[0])},"
        values = self._returned_for(list(responses), asked, ground_truth, row)
        if hasattr(values, "tolist"):  # of numpy or torch
            values = values.tolist()
        if not isinstance(values, list | tuple):
            raise self._returned(
                values, f"of type {type(values).__name__}; expected a list of {len(responses)} rewards", self._list_fix
            )
        if len(values) != len(responses):
            what = f"{len(values)} rewards for {len(responses)} responses; expected one for each, in their order"
            raise self._wrong(f"returned {what}", self._list_fix)
        return [self._checked(value, f" for response {number} of the group") for number, value in enumerate(values, 1)]

    def _returned_for(self, first: str | list[str], asked: str, ground_truth: str, row: Row | None) -> Any:
        takes_row = self.function.takes == "row"
        second: Any = copy.deepcopy(dict(row or {})) if takes_row else ground_truth
        try:
            value = self._call(first, second)
        except BaseException as error:  # sys.exit(0) would end a failed run as a success
            if is_ctrl_c(error):
                raise
            beside = f"the row {_short(dict(row or {}))}" if takes_row else f"the ground truth {_short(ground_truth)}"
            raise UserError(
                f"the reward function {self.function.path} raised {described(error)} for {asked} and {beside}",
                where=last_line(error) or self.function.path,
                fix=f"it is called as {self.function.called_as} and must answer for every text, also ''",
            ) from error
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()  # else Python warns that it was never awaited
            fix = "make it a plain function (def), which may call asyncio.run"
            raise self._wrong(f"returned a {type(value).__name__}: it is async, and rewards are not awaited", fix)
        return value

    def _checked(self, value: Any, which: str) -> dict[str, float]:
        if not isinstance(value, Mapping):
            value = {"reward": value}
        elif "reward" not in value:
            raise self._returned(dict(value), f"which lacks the key 'reward'{which}; expected {_EXPECTED}")
        unknown = [key for key in value if key not in PARTS]
        if unknown:
            known = ", ".join(PARTS)
            detail = f"whose key {unknown[0]!r} is none of {known}{which}; expected {_EXPECTED}"
            raise self._returned(dict(value), detail)
        reward = value["reward"]
        parts = {"reward": reward, "format_reward": 1.0, "answer_reward": reward} | dict(value)
        return {name: self._number(name, part, which) for name, part in parts.items()}

    def _number(self, name: str, value: Any, which: str) -> float:
        try:
            return reward_number(value)
        except ValueError as error:
            what = f"{error}, " if str(error) else ""
            raise self._returned(value, f"{what}as its {name}{which}; expected {_EXPECTED}") from None

    def _returned(self, value: Any, detail: str, fix: str = _RETURN_FIX) -> UserError:
        return self._wrong(f"returned {_short(value)}, {detail}", fix)

    def _wrong(self, what: str, fix: str) -> UserError:
        return UserError(f"the reward function {self.function.path} {what}", where=self.function.path, fix=fix)

    @property
    def _list_fix(self) -> str:
        return f"it is called as {self.function.called_as}: return a list of as many rewards as there are responses"


def _short(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
