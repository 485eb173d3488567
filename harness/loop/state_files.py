"""A ``LoopState`` as two files: dataclasses as JSON, by their types, and their arrays in one safetensors file.

A batch that a run keeps to recompute it (``KeptBatch``) has the same form. In the JSON an array is its place in that
file: ``[dtype, first, end]``. Neither file can run code when it is read. Whether the bytes are those that were written,
the folder's manifest says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from harness.core.checkpoints import WrittenFile, write_file
from harness.core.errors import UserError
from harness.core.types import Completion, GroupData, Prompt, RolloutGroup
from harness.loop.state import FORMAT, LoopState, with_data

STATE, TOKENS = "loop.json", "loop.safetensors"
"""The files in the folder of a checkpoint."""
BATCH, BATCH_TOKENS = "batch.json", "batch.safetensors"
"""Those in the folder of a training step that was kept."""
S = TypeVar("S")


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
        return tuple(group for part in self.parts for group in part)


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
    return _read(folder, BATCH, BATCH_TOKENS, KeptBatch)


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
    return _read(folder, STATE, TOKENS, LoopState)


def encode(state: LoopState | KeptBatch) -> tuple[bytes, bytes]:
    """Return what stands in the two files."""
    arrays: dict[str, list[npt.NDArray[Any]]] = {"int64": [], "float32": []}
    ends = dict.fromkeys(arrays, 0)

    def place(array: npt.NDArray[Any]) -> tuple[str, int, int]:
        dtype, first = array.dtype.name, ends[array.dtype.name]
        arrays[dtype].append(array)
        ends[dtype] += len(array)
        return dtype, first, ends[dtype]

    def portable(data: GroupData) -> GroupData:
        """Without the path of the data file, and with a plain row."""
        row = None if data.prompt.row is None else dict(data.prompt.row)
        return replace(data, prompt=replace(data.prompt, row=row, where=None))

    document = msgspec.to_builtins(with_data(state, portable), enc_hook=place, str_keys=True)
    joined = {dtype: np.concatenate([np.empty(0, dtype), *parts]) for dtype, parts in arrays.items()}
    return json.dumps(document).encode(), save(joined)


def decode(document: bytes, arrays: bytes, kind: type[S], files: str = f"{STATE} or {TOKENS}") -> S:
    """Return what ``encode`` was given, from what stands in the two files.

    Raises:
        UserError: it is of another format, or not what ``encode`` writes.
    """
    try:
        raw, tokens = json.loads(document), load(arrays)
        saved = raw.get("format", 1)
        if saved != FORMAT:
            what = f"{files} has format {saved}, this version of the harness reads {FORMAT}"
            raise UserError(what, None, "continue with the version of the harness that wrote it, or start a new run")

        def array(dtype: str, first: int, end: int) -> npt.NDArray[Any]:
            return tokens[dtype][first:end].copy()  # else one group would keep the arrays of all in memory

        def completion(token_ids: Any, log_probs: Any, versions: Any, **others: Any) -> Completion:
            return Completion(
                token_ids=array(*token_ids),
                log_probs=array(*log_probs),
                versions=None if versions is None else array(*versions),
                **others,
            )

        def data(saved: Any) -> GroupData:
            completions = tuple(completion(**each) for each in saved["completions"])
            return GroupData(msgspec.convert(saved["prompt"], Prompt), array(*saved["prompt_token_ids"]), completions)

        return with_data(msgspec.convert(raw, kind, str_keys=True), data)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{files} is damaged: {error}") from None


def _read(folder: Path, state: str, tokens: str, kind: type[S]) -> S:
    try:
        document, arrays = (folder / state).read_bytes(), (folder / tokens).read_bytes()
        return decode(document, arrays, kind, f"{state} or {tokens}")
    except OSError as error:
        raise UserError(f"the checkpoint cannot be read ({error.strerror})", str(error.filename)) from None
    except UserError as error:
        raise UserError(error.what, str(folder), error.fix) from None
