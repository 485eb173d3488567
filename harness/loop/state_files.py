"""A ``LoopState`` as two files: what is known of the rollouts as JSON, their tokens in one safetensors file.

A batch that a run keeps to recompute it (``KeptBatch``) has the same form.

Neither can run code when it is read. Everything is checked on the way in: the type of each value, that lengths fit one
another, that no array has more or less than the rollouts that stand in the JSON. Whether the bytes are those that were
written, the folder's manifest says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from harness.core.checkpoints import WrittenFile, write_file
from harness.core.errors import UserError
from harness.core.types import Completion, GroupData, Prompt, RolloutGroup
from harness.loop.state import FORMAT, LoopState

STATE, TOKENS = "loop.json", "loop.safetensors"
"""The files in the folder of a checkpoint."""
BATCH, BATCH_TOKENS = "batch.json", "batch.safetensors"
"""Those in the folder of a training step that was kept."""

_DTYPES: dict[str, Any] = {
    "prompt_token_ids": np.int64,
    "token_ids": np.int64,
    "log_probs": np.float32,
    "versions": np.int64,
}
"""Of all rollouts behind one another; ``versions`` of those only whose tokens have one each."""


@dataclass(frozen=True, slots=True)
class _Response:
    """A response without its arrays: ``tokens`` of them belong to it."""

    text: str
    finish_reason: Literal["stop", "length"]
    tokens: int
    has_versions: bool


@dataclass(frozen=True, slots=True)
class _Texts:
    """A group without its arrays."""

    prompt: str
    ground_truth: str
    row: dict[str, Any] | None
    prompt_tokens: int
    responses: tuple[_Response, ...]
    turns: tuple[tuple[str, str], ...] | None = None


class HasGroups(Protocol):
    """What holds groups: a ``LoopState``, a ``KeptBatch``. Its field ``format`` is looked at before anything else."""

    def with_data(self, change: Callable[[Any], Any]) -> Self:
        """Return it with ``change(data)`` for the data of each group, in an order that is always the same."""


H = TypeVar("H", bound=HasGroups)


@dataclass(frozen=True, slots=True)
class KeptBatch:
    """What a training step was given.

    Attributes:
        step: the training step, which is the version of the policy before it.
        parts: the groups of each call of the Learner: of ``accumulate``, and at last of ``update``.
    """

    step: int
    parts: tuple[tuple[RolloutGroup, ...], ...]
    format: int = FORMAT

    @property
    def groups(self) -> tuple[RolloutGroup, ...]:
        """All groups."""
        return tuple(group for part in self.parts for group in part)

    def with_data(self, change: Callable[[Any], Any]) -> KeptBatch:
        """See ``HasGroups``."""
        return replace(
            self, parts=tuple(tuple(replace(it, data=change(it.data)) for it in part) for part in self.parts)
        )


def write_batch(batch: KeptBatch, folder: Path) -> tuple[WrittenFile, ...]:
    """Write the two files of a batch into a folder that is there; its groups have ``GroupData``.

    Raises:
        OSError: they cannot be written, or are there already.
    """
    document, arrays = encode(batch)
    return write_file(folder, BATCH, [document]), write_file(folder, BATCH_TOKENS, [arrays])


def read_batch(folder: Path) -> KeptBatch:
    """Read the two files of a batch.

    Raises:
        UserError: a file is missing or is not what it must be, with its name.
    """
    batch = _read(folder, BATCH, BATCH_TOKENS, KeptBatch)
    for group in batch.groups:
        lengths = tuple(len(each.token_ids) for each in group.data.completions)
        if group.rewards is None or len(group.rewards) != len(group.lengths) or lengths != group.lengths:
            what = f"{BATCH} is damaged: {_named(group)} has not a reward and the tokens of each of its rollouts"
            raise UserError(what, str(folder))
    return batch


def write_state(state: LoopState, folder: Path) -> tuple[WrittenFile, ...]:
    """Write the two files into a folder that is there; return what the folder's manifest has to know of them.

    Args:
        state: the data of its groups are ``GroupData``, or nothing (in a simulated run).
        folder: without these files.

    Raises:
        OSError: they cannot be written, or are there already.
    """
    document, arrays = encode(state)
    return write_file(folder, STATE, [document]), write_file(folder, TOKENS, [arrays])


def read_state(folder: Path) -> LoopState:
    """Read the two files; the data of the groups are ``GroupData`` or nothing.

    Raises:
        UserError: a file is missing or is not what it must be, with its name.
    """
    state = _read(folder, STATE, TOKENS, LoopState)
    try:
        _check(state)
    except UserError as error:
        raise UserError(error.what, str(folder), error.fix) from None
    return state


def _read(folder: Path, state: str, tokens: str, kind: type[H]) -> H:
    try:
        return _decoded((folder / state).read_bytes(), (folder / tokens).read_bytes(), kind, f"{state} or {tokens}")
    except OSError as error:
        raise UserError(f"the checkpoint cannot be read ({error.strerror})", str(error.filename)) from None
    except UserError as error:
        raise UserError(error.what, str(folder), error.fix) from None


def encode(state: HasGroups) -> tuple[bytes, bytes]:
    """Return what stands in the two files: in ``state`` the data of each group is its number in ``texts``."""
    table: list[GroupData] = []

    def number(data: GroupData) -> int:
        table.append(data)
        return len(table) - 1

    document = {"state": state.with_data(number), "texts": tuple(map(_texts, table))}
    completions = [completion for data in table for completion in data.completions]
    arrays: dict[str, Sequence[npt.NDArray[Any]]] = {
        "prompt_token_ids": [data.prompt_token_ids for data in table],
        "token_ids": [completion.token_ids for completion in completions],
        "log_probs": [completion.log_probs for completion in completions],
        "versions": [completion.versions for completion in completions if completion.versions is not None],
    }
    joined = {name: np.concatenate([np.empty(0, _DTYPES[name]), *arrays[name]]) for name in _DTYPES}
    return json.dumps(msgspec.to_builtins(document, str_keys=True)).encode(), save(joined)


def _texts(data: GroupData) -> _Texts:
    responses = [
        _Response(each.text, each.finish_reason, len(each.token_ids), each.versions is not None)
        for each in data.completions
    ]
    row = None if data.prompt.row is None else dict(data.prompt.row)
    prompt = data.prompt
    return _Texts(prompt.text, prompt.ground_truth, row, len(data.prompt_token_ids), tuple(responses), prompt.turns)


def decode(document: bytes, arrays: bytes) -> LoopState:
    """Return the state from what stands in the two files.

    Raises:
        UserError: it is not what ``encode`` writes.
    """
    state = _decoded(document, arrays, LoopState, f"{STATE} or {TOKENS}")
    _check(state)
    return state


def _decoded(document: bytes, arrays: bytes, kind: type[H], files: str) -> H:
    try:
        raw = json.loads(document)
        saved = raw["state"]["format"]
        if saved != FORMAT:
            raise UserError(f"{files} has format {saved}, this version of the harness reads {FORMAT}")
        read = msgspec.convert(raw["state"], kind, str_keys=True)
        all_texts = msgspec.convert(raw["texts"], tuple[_Texts, ...], str_keys=True)
        tokens = _Tokens(load(arrays), files)
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError, msgspec.ValidationError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{files} is damaged: {error}") from None
    table = [tokens.group(texts) for texts in all_texts]
    tokens.check_used_up()
    due = iter(range(len(table)))

    def data(number: object) -> GroupData:
        if number != next(due, None):
            raise UserError(f"{files} is damaged: group data {number} is not in its place among {len(table)}")
        assert isinstance(number, int)
        return table[number]

    state = read.with_data(data)
    if (left := next(due, None)) is not None:
        raise UserError(f"{files} is damaged: group data {left} belongs to no group")
    return state


class _Tokens:
    """The arrays, handed out from their beginning."""

    def __init__(self, arrays: dict[str, npt.NDArray[Any]], files: str) -> None:
        self._files = files
        for name, dtype in _DTYPES.items():
            if name not in arrays or arrays[name].dtype != dtype or arrays[name].ndim != 1:
                raise UserError(f"{self._files} is damaged: {name} is missing, or not a row of {np.dtype(dtype)}")
        self._arrays, self._used = arrays, dict.fromkeys(_DTYPES, 0)

    def _next(self, name: str, tokens: int) -> npt.NDArray[Any]:
        first = self._used[name]
        part = self._arrays[name][first : first + tokens]
        if tokens < 0 or len(part) != tokens:
            raise UserError(
                f"{self._files} is damaged: {name} has {len(self._arrays[name])}, {first + tokens} are needed"
            )
        self._used[name] += tokens
        return part.copy()  # else one group would keep the arrays of all in memory

    def group(self, texts: _Texts) -> GroupData:
        """Return the next group."""
        prompt = Prompt(texts.prompt, texts.ground_truth, texts.row, texts.turns)
        return GroupData(
            prompt, self._next("prompt_token_ids", texts.prompt_tokens), tuple(map(self._completion, texts.responses))
        )

    def _completion(self, response: _Response) -> Completion:
        token_ids, log_probs = self._next("token_ids", response.tokens), self._next("log_probs", response.tokens)
        versions = self._next("versions", response.tokens) if response.has_versions else None
        return Completion(token_ids, log_probs, response.text, response.finish_reason, versions)

    def check_used_up(self) -> None:
        """Check that nothing is left.

        Raises:
            UserError: something is.
        """
        for name, used in self._used.items():
            if used != len(self._arrays[name]):
                raise UserError(f"{self._files} is damaged: {name} has {len(self._arrays[name])}, {used} are in use")


def _check(state: LoopState) -> None:
    """Check what types do not say.

    Raises:
        UserError: a value is out of its bounds.
    """
    numbers = {"version": state.version, "issued": state.issued, "replaced": state.replaced, "shards": state.shards - 1}
    numbers["failed_batches"] = state.failed_batches
    for name, value in numbers.items():
        if value < 0:
            raise UserError(f"{STATE} is damaged: {name} is {value}")
    if not -1 <= state.evaluated <= state.version:
        raise UserError(
            f"{STATE} is damaged: version {state.evaluated} was evaluated, the Learner's is {state.version}"
        )
    scored = [group for part in state.waiting for group in part.groups]
    scored += [group for shard in state.open_shards for group in shard.kept.values()]
    scored += [entry.group for entry in (state.replay.entries if state.replay else ())]
    sampled = [group for _, groups in state.unscored for group in groups]
    for group in scored + sampled:
        _check_group(group, state)
    for group in scored:
        if group.rewards is None:
            raise UserError(f"{STATE} is damaged: {_named(group)} waits among the scored and has no rewards")
    places = [*state.pending, *(item for item, _ in state.unscored), *(part.item for part in state.waiting)]
    keys = [(item.step, item.shard, item.attempt) for item in places]
    for key in set(keys):
        if keys.count(key) > 1:
            raise UserError(f"{STATE} is damaged: shard {key[1]} of batch {key[0]}, attempt {key[2]}, is there twice")


def _check_group(group: RolloutGroup, state: LoopState) -> None:
    rewards, data = group.rewards, group.data
    if not 0 <= group.min_version <= group.max_version <= state.version:
        versions = f"{group.min_version} to {group.max_version}"
        raise UserError(f"{STATE} is damaged: {_named(group)} is of versions {versions} at version {state.version}")
    if len(group.lengths) != state.group_size or (rewards is not None and len(rewards) != state.group_size):
        raise UserError(f"{STATE} is damaged: {_named(group)} has not {state.group_size} rollouts with their rewards")
    if data is not None and tuple(len(each.token_ids) for each in data.completions) != group.lengths:
        raise UserError(f"{STATE} is damaged: {_named(group)} has other tokens than its lengths {group.lengths}")


def _named(group: RolloutGroup) -> str:
    return f"the group of prompt {group.prompt_id}, batch {group.step},"
