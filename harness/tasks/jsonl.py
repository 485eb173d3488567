"""A user's own task: prompts from a JSONL file, and a reward function named in the scenario."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.core.errors import UserError, quoted
from harness.core.types import Prompt
from harness.tasks.rewards import UserReward
from harness.tasks.rows import Fields, Prompts, read_prompts, words_of

if TYPE_CHECKING:
    from harness.settings.task import RewardFunctionSettings


class JsonlTask:
    """Prompts from JSONL files, rewarded by a user's function.

    The reward function is tried once while the task is built, on the first prompt with an empty response, so that a
    broken one is reported before any model is loaded.

    Args:
        train: file with one JSON object a line, or an array of them.
        reward: ``package.module:function``, or functions with their weights, see ``UserReward``.
        validation: file with the held-out prompts; None splits them off ``train``.
        validation_fraction: share of ``train`` that is split off, above 0 and below 1; unused with a validation file.
        fields: where prompt and ground truth stand, which the reward function gets beside the response as text.

    Attributes:
        notes: what is to be said about the files when a run begins.

    Raises:
        UserError: a file is missing or empty, rows are bad (named by their numbers), a prompt has two answers or is in
            both splits, or the reward function cannot be used.
    """

    def __init__(
        self,
        train: str | Path,
        reward: str | Sequence[RewardFunctionSettings],
        validation: str | Path | None = None,
        validation_fraction: float = 0.1,
        fields: Fields | None = None,
    ) -> None:
        self.reward = UserReward(reward)
        fields = replace(fields or Fields(), with_rows=self.reward.needs_rows)
        parts = read_parts(train, validation, validation_fraction, lambda file: read_prompts(file, fields))
        self.train_prompts, self.validation_prompts, self.notes = parts
        first = self.train_prompts[0]
        self.reward.try_out(first.ground_truth, first.row)


class Parts(NamedTuple):
    """What a task trains on, what it holds out, and what is to be said about its files."""

    train: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()


def read_parts(
    train: str | Path, validation: str | Path | None, validation_fraction: float, read: Callable[[str | Path], Prompts]
) -> Parts:
    """Read a task's two files with ``read``, or one that is split; the others as in ``JsonlTask``.

    Raises:
        UserError: a file cannot be read, cannot be split, or a prompt is in both.
    """
    files = {file: read(file) for file in (train, validation) if file is not None}
    notes = tuple(
        f"{file}: {'1 row repeats' if found.repeated == 1 else f'{found.repeated:,} rows repeat'} an earlier prompt "
        f"with the same answer; {len(found.prompts):,} prompts"
        for file, found in files.items()
        if found.repeated
    )
    if validation is None:
        return Parts(*split_prompts(files[train].prompts, validation_fraction, str(train)), notes)
    parts = Parts(files[train].prompts, files[validation].prompts, notes)
    trained_on = {words_of(prompt.text) for prompt in parts.train}
    shared = [prompt for prompt in parts.validation if words_of(prompt.text) in trained_on]
    if shared:
        raise UserError(
            f"{len(shared)} of {len(parts.validation)} validation prompts are training prompts too, "
            f"the first is {quoted(shared[0].text)}; held-out prompts must not be trained on",
            where=f"{train} and {validation}",
            fix="remove them from one of the two files, or set task.validation to null to split the first",
        )
    return parts


def split_prompts(
    prompts: tuple[Prompt, ...], validation_fraction: float, where: str
) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Split into (train, validation), each in the file's order.

    The validation part are the ``ceil(fraction * n)`` prompts whose texts have the smallest digests, and those that
    differ from one of them in white space alone. It depends neither on a seed nor on the order of the lines, and adding
    lines moves few prompts.

    Raises:
        UserError: the fraction is not between 0 and 1, or a part would be empty.
    """
    if not 0 < validation_fraction < 1:
        raise UserError(
            f"validation_fraction is {validation_fraction}; it must be above 0 and below 1",
            where="task.validation_fraction",
            fix="set task.validation_fraction to 0.1, or name a file in task.validation",
        )
    count = math.ceil(validation_fraction * len(prompts))
    if count >= len(prompts):
        what = f"{len(prompts)} prompts, of which {count} would be held out for validation, leave 0 to train on"
        raise UserError(what, where, "add prompts, or lower task.validation_fraction")
    by_digest = sorted((prompt.text for prompt in prompts), key=_digest)
    held_out = set(map(words_of, by_digest[:count]))
    train = tuple(prompt for prompt in prompts if words_of(prompt.text) not in held_out)
    if not train:
        what = f"{len(prompts)} prompts that differ in white space alone cannot be split"
        raise UserError(what, where, "name a file in task.validation")
    return train, tuple(prompt for prompt in prompts if words_of(prompt.text) in held_out)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
