"""A user's own reward: one function named as ``package.module:function``, or a weighted list of them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.core.errors import UserError, quoted
from harness.core.plugins import PluginKind, described, is_ctrl_c, last_line, load_callable
from harness.core.rewards import reward_number

if TYPE_CHECKING:  # pydantic would double the time in which the process of a reward starts
    from harness.settings.task import RewardFunctionSettings

PARTS = ("reward", "format_reward", "answer_reward")
NAMED = "_reward"
"""Ends the key of a part that has a name: ``brevity_reward`` is shown as ``reward/brevity``."""
Row = Mapping[str, Any]
"""A line of a data file, every field of it."""
KIND = PluginKind(
    "reward", "task.reward", "(response: str, ground_truth: str) -> float", "docs.examples.own_task.reward:score"
)
_EXPECTED = "expected a finite number, or a dict with the key 'reward' and a finite number"


class UserReward:
    """Calls a user's reward functions and checks what they return.

    With a list of functions the reward is the weighted sum of theirs, and so is the answer's part of it; the format is
    right as far as it is for every function (the least of theirs); and each function's own reward is kept under its
    name, unweighted, as in TRL's ``rewards/<name>``. A plain number r counts as reward r, format 1, answer r; the same
    fills in the parts that a dict leaves out.

    Args:
        reward: ``package.module:function``, called as ``fn(response, ground_truth)`` and returning a number or a dict;
            or functions with their weights. They are imported with the current folder on the import path, and pickle by
            their names.

    Attributes:
        needs_rows: whether a function takes whole rows.
        calls_groups: whether a function is called with the responses of a whole group.

    Raises:
        UserError: a path has no colon, a module cannot be imported, or a name is missing or not callable.
    """

    def __init__(self, reward: str | Sequence[RewardFunctionSettings]) -> None:
        self._given = reward if isinstance(reward, str) else tuple(reward)
        if isinstance(reward, str):
            self._functions = [_Function(reward)]
        else:
            self._functions = [_Function(each.function, each.per, each.takes) for each in reward]
        self.needs_rows = any(function.takes == "row" for function in self._functions)
        self.calls_groups = any(function.per == "group" for function in self._functions)

    def __call__(self, response: str, ground_truth: str, row: Row | None = None) -> dict[str, float]:
        """Return the rewards of one response, as the only one of its group; see ``of_group``."""
        return next(self.of_group([response], ground_truth, row))

    def of_group(
        self, responses: Sequence[str], ground_truth: str, row: Row | None = None
    ) -> Iterator[dict[str, float]]:
        """Call what is called per group at once, and return the rewards of each response in turn as they are asked for.

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
        parts = [function.of_group(responses, ground_truth, row) for function in self._functions]
        return map(self._summed, zip(*parts, strict=True))

    def try_out(self, ground_truth: str, row: Row | None = None) -> None:
        """Call every function once, with an empty response, or where it takes groups with two; raises as they do."""
        list(self.of_group(["", ""] if self.calls_groups else [""], ground_truth, row))

    def _summed(self, parts: Sequence[dict[str, float]]) -> dict[str, float]:
        if isinstance(self._given, str):
            return parts[0]
        each = list(zip(self._given, parts, strict=True))
        return {
            "reward": sum(settings.weight * part["reward"] for settings, part in each),
            "format_reward": min(part["format_reward"] for part in parts),
            "answer_reward": sum(settings.weight * part["answer_reward"] for settings, part in each),
            **{f"{settings.label}{NAMED}": part["reward"] for settings, part in each},
        }

    def __reduce__(self) -> tuple[type[UserReward], tuple[str | tuple[RewardFunctionSettings, ...]]]:
        return UserReward, (self._given,)


class _Function:
    """One imported function; ``per`` and ``takes`` as in its settings."""

    def __init__(self, path: str, per: str = "response", takes: str = "ground_truth") -> None:
        self.path, self.per, self.takes = path, per, takes
        self._call = load_callable(path, KIND)
        first = "response: str" if per == "response" else "responses: list[str]"
        self._called_as = f"it is called as fn({first}, {'row: dict' if takes == 'row' else 'ground_truth: str'})"

    def of_group(self, responses: Sequence[str], ground_truth: str, row: Row | None) -> Iterator[dict[str, float]]:
        """Return the three parts of each response, made now where the function takes groups, else as they are asked."""
        if self.per == "group" and responses:
            asked = f"{len(responses)} responses, the first {quoted(responses[0])},"
            values = self._as_list(self._returned(list(responses), asked, ground_truth, row), len(responses))
            numbered = enumerate(values, 1)
            return iter([self._parts(value, f" for response {number} of the group") for number, value in numbered])
        return (
            self._parts(self._returned(response, f"the response {quoted(response)}", ground_truth, row))
            for response in responses
        )

    def _returned(self, first: str | list[str], asked: str, ground_truth: str, row: Row | None) -> Any:
        second: Any
        if self.takes == "row":
            second, beside = copy.deepcopy(dict(row or {})), f"the row {quoted(dict(row or {}))}"
        else:
            second, beside = ground_truth, f"the ground truth {quoted(ground_truth)}"
        try:
            value = self._call(first, second)
        except BaseException as error:  # sys.exit(0) would end a failed run as a success
            if is_ctrl_c(error):
                raise
            raise UserError(
                f"the reward function {self.path} raised {described(error)} for {asked} and {beside}",
                where=last_line(error) or self.path,
                fix=f"{self._called_as} and must answer for every text, also ''",
            ) from error
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()  # else Python warns that it was never awaited
            fix = "make it a plain function (def), which may call asyncio.run"
            raise self._wrong(f"a {type(value).__name__}: it is async, and rewards are not awaited", fix)
        return value

    def _as_list(self, values: Any, count: int) -> Sequence[Any]:
        fix = f"{self._called_as}: return a list of as many rewards as there are responses"
        if hasattr(values, "tolist"):  # of numpy or torch
            values = values.tolist()
        if not isinstance(values, list | tuple):
            kind = f"of type {type(values).__name__}; expected a list of {count} rewards"
            raise self._wrong(f"{quoted(values)}, {kind}", fix)
        if len(values) != count:
            raise self._wrong(
                f"{len(values)} rewards for {count} responses; expected one for each, in their order", fix
            )
        return values

    def _parts(self, value: Any, which: str = "") -> dict[str, float]:
        """Return the three parts; ``which`` of the group's responses the value is for is told in errors."""
        given = dict(value) if isinstance(value, Mapping) else {"reward": value}
        unknown = [key for key in given if key not in PARTS]
        if "reward" not in given:
            raise self._wrong(f"{quoted(given)}, which lacks the key 'reward'{which}; {_EXPECTED}")
        if unknown:
            detail = f"whose key {unknown[0]!r} is none of {', '.join(PARTS)}{which}"
            raise self._wrong(f"{quoted(given)}, {detail}; {_EXPECTED}")
        parts: dict[str, float] = {}
        for name, part in ({"reward": None, "format_reward": 1.0, "answer_reward": given["reward"]} | given).items():
            try:
                parts[name] = reward_number(part)
            except ValueError as error:
                what = f"{error}, " if str(error) else ""
                raise self._wrong(f"{quoted(part)}, {what}as its {name}{which}; {_EXPECTED}") from None
        return parts

    def _wrong(self, what: str, fix: str = "return a float such as 1.0, or {'reward': 1.0}") -> UserError:
        return UserError(f"the reward function {self.path} returned {what}", where=self.path, fix=fix)
