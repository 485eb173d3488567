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


FILES: dict[type, tuple[str, str]] = {
    LoopState: ("loop.json", "loop.safetensors"),  # in the folder of a checkpoint
    KeptBatch: ("batch.json", "batch.safetensors"),  # in that of a training step that was kept
}


def write_files(value: LoopState | KeptBatch, folder: Path) -> tuple[WrittenFile, ...]:
    """Write the two files into a folder that is there; return what the folder's manifest has to know of them.

    The data of its groups are ``GroupData``, or nothing (in a simulated run).

    Raises:
        OSError: they cannot be written, or are there already.
    """
    return tuple(write_file(folder, name, [part]) for name, part in zip(FILES[type(value)], encode(value), strict=True))


def read_files(folder: Path, kind: type[S]) -> S:
    """Read the two files; the data of the groups are ``GroupData`` or nothing.

    Raises:
        UserError: a file is missing or is not what it must be, with its name.
    """
    try:
        document, arrays = ((folder / name).read_bytes() for name in FILES[kind])
        return decode(document, arrays, kind)
    except OSError as error:
        raise UserError(f"the checkpoint cannot be read ({error.strerror})", str(error.filename)) from None
    except UserError as error:
        raise UserError(error.what, str(folder), error.fix) from None


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


def decode(document: bytes, arrays: bytes, kind: type[S]) -> S:
    """Return what ``encode`` was given, from what stands in the two files.

    Raises:
        UserError: it is of another format, or not what ``encode`` writes.
    """
    files = " or ".join(FILES[kind])
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
