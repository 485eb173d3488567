"""The folder of a run's checkpoints: each appears whole or not at all, and nothing that was damaged is read.

::

    checkpoints/
        latest                      which one counts
        step_40/                    what many processes wrote: a Learner's ranks, the loop
            manifest.json           written last: name, bytes and checksum of every other file
            ...
        step_60.tmp/                being written, or left by a process that died; never read

A save goes through three calls. ``begin`` makes ``step_N.tmp``; each process writes its files with ``write_file``,
which hashes what it writes and returns when it is on the disk; ``commit`` writes the manifest, renames the folder and
then lets ``latest`` name it, each on the disk before the next. The renamed pointer is the moment from which the new
checkpoint counts: after a kill before it the former one is read. ``manifest.json`` and ``latest`` carry a checksum of
themselves.

Names of files are those of one folder; there are no folders within. Checksums are xxh3 (128 bits): they find accidents,
and are no defence against a change made to go unnoticed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from harness.core.atomic_files import sync
from harness.core.errors import UserError
from harness.core.regular_files import open_regular, read_regular

MANIFEST, LATEST, FORMAT = "manifest.json", "latest", 1
_CHUNK, _MOST_BYTES = 1 << 23, 1 << 24
_STEP, _DRAFT = "step_", ".tmp"
Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of a checkpoint: its name in the folder, its size and the checksum of its bytes, ``xxh3_128:hex``."""

    name: str
    num_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Refused:
    """What is not read, and why.

    Attributes:
        checkpoint: ``step_N``, or empty where it is the pointer.
        file: the one at fault.
        reason: what is wrong with it, with both values.
    """

    checkpoint: str
    file: str
    reason: str

    def __str__(self) -> str:
        return f"{'/'.join(filter(None, (self.checkpoint, self.file)))}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose every byte is as it was written.

    Attributes:
        folder: where it is.
        step: training steps that were done.
        files: by name, without the manifest.
    """

    folder: Path
    step: int
    files: Mapping[str, WrittenFile]


def begin(checkpoints: Path, step: int) -> Path:
    """Make the folder that a checkpoint is written into, and remove those that were left unfinished.

    Args:
        checkpoints: made with its parents where it is missing.
        step: training steps that are done.
    """
    checkpoints.mkdir(parents=True, exist_ok=True)
    for left in checkpoints.glob(f"*{_DRAFT}"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    draft = checkpoints / f"{_STEP}{step}{_DRAFT}"
    draft.mkdir()
    return draft


def step_of(draft: Path) -> int:
    """Return the training step of a folder that ``begin`` has made."""
    return int(draft.name.removeprefix(_STEP).removesuffix(_DRAFT))


def write_file(folder: Path, name: str, chunks: Iterable[Bytes]) -> WrittenFile:
    """Write a new file, hash what is written, and return when it is on the disk.

    Raises:
        OSError: it is there already, or cannot be written.
    """
    hashed, num_bytes = xxhash.xxh3_128(), 0
    with (folder / name).open("xb", buffering=0) as stream:
        for chunk in chunks:
            whole = memoryview(chunk).cast("B")
            num_bytes += len(whole)
            for start in range(0, len(whole), _CHUNK):
                part = whole[start : start + _CHUNK]
                hashed.update(part)
                while len(part):
                    part = part[stream.write(part) :]
        os.fsync(stream.fileno())
    return WrittenFile(name, num_bytes, f"xxh3_128:{hashed.hexdigest()}")


def written_file(path: Path) -> WrittenFile:
    """Return what is to be listed of a file that something else wrote, when it is on the disk."""
    sync(path)
    hashed, num_bytes = _hashed(path)
    return WrittenFile(path.name, num_bytes, hashed)


def commit(draft: Path, files: Sequence[WrittenFile], keep: int) -> Checkpoint:
    """Let a written checkpoint count, and remove all but the newest few.

    A checkpoint of the same step is replaced; those of later steps, of a history that this one does not go on from, are
    removed.

    Args:
        draft: from ``begin``.
        files: all that was written into it.
        keep: how many checkpoints stay, at least 1.

    Raises:
        UserError: other files are in the folder than were written.
        OSError: the disk is full.
    """
    checkpoints, name = draft.parent, draft.name.removesuffix(_DRAFT)
    step, by_name = step_of(draft), {file.name: file for file in files}
    found = {path.name: path.stat().st_size for path in draft.iterdir()}
    wanted = {file.name: file.num_bytes for file in files}
    if len(files) != len(by_name) or found != wanted:
        raise UserError(f"{draft} has the files {found}, written were {wanted}", "checkpoints")
    listed = {file.name: {"bytes": file.num_bytes, "checksum": file.checksum} for file in files}
    write_file(draft, MANIFEST, [_sealed({"format": FORMAT, "step": step, "files": listed})])
    sync(draft)
    final = draft.with_name(name)
    if final.exists():
        os.replace(final, checkpoints / f"{name}.replaced{_DRAFT}")
    os.replace(draft, final)
    sync(checkpoints)
    write_file(checkpoints, f"{LATEST}{_DRAFT}", [_sealed({"checkpoint": name})])
    os.replace(checkpoints / f"{LATEST}{_DRAFT}", checkpoints / LATEST)
    sync(checkpoints)
    stay = sorted((number for number in steps_in(checkpoints) if number <= step), reverse=True)[: max(1, keep)]
    for number in steps_in(checkpoints):
        if number not in stay:  # half a removed folder must not look like a damaged checkpoint
            os.replace(checkpoints / f"{_STEP}{number}", checkpoints / f"{_STEP}{number}.removed{_DRAFT}")
    for left in checkpoints.glob(f"*{_DRAFT}"):
        shutil.rmtree(left)
    return Checkpoint(final, step, by_name)


def newest_whole(checkpoints: Path) -> tuple[Checkpoint | None, tuple[Refused, ...]]:
    """Return the checkpoint to go on from, and what was refused on the way to it; every byte of it is read.

    That is the one that ``latest`` names, else the one before it. Checkpoints newer than ``latest`` come last: they
    were written whole, and the process ended before they counted.

    Returns:
        None where there is no checkpoint, or none that is whole.
    """
    refused, steps = [], steps_in(checkpoints)
    named = max(steps, default=0)
    try:
        named = int(_unsealed(checkpoints / LATEST)["checkpoint"].removeprefix(_STEP))
        if named not in steps:
            refused.append(Refused("", LATEST, f"it names {_STEP}{named}, which is not there"))
    except FileNotFoundError:
        if steps:
            refused.append(Refused("", LATEST, "it is missing"))
    except (ValueError, KeyError, AttributeError, OSError) as error:
        refused.append(Refused("", LATEST, str(error)))
    for step in sorted(steps, key=lambda number: (number > named, -number)):
        checkpoint = read(checkpoints / f"{_STEP}{step}")
        if isinstance(checkpoint, Checkpoint):
            return checkpoint, tuple(refused)
        refused.append(checkpoint)
    return None, tuple(refused)


def read(folder: Path) -> Checkpoint | Refused:
    """Return a checkpoint if every byte of it is as it was written, else the first file that is not."""
    found = listed(folder)
    if isinstance(found, Refused):
        return found
    return next(differing(found), None) or found


def listed(folder: Path) -> Checkpoint | Refused:
    """Return a checkpoint as its manifest has it, none of whose files was looked into, or what is wrong with that."""
    try:
        said = _unsealed(folder / MANIFEST)
        step, names, form = said["step"], said["files"], said["format"]
        files = {name: WrittenFile(name, each["bytes"], each["checksum"]) for name, each in names.items()}
    except FileNotFoundError:
        return Refused(folder.name, MANIFEST, "it is missing")
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        return Refused(folder.name, MANIFEST, str(error))
    if (form, f"{_STEP}{step}") != (FORMAT, folder.name):
        what = f"it is of format {form} and step {step}, not of format {FORMAT} and {folder.name}"
        return Refused(folder.name, MANIFEST, what)
    return Checkpoint(folder, step, files)


def differing(checkpoint: Checkpoint) -> Iterator[Refused]:
    """Yield each file of a checkpoint that is not as it was written, or that nobody wrote."""
    folder = checkpoint.folder
    for extra in sorted({path.name for path in folder.iterdir()} - checkpoint.files.keys() - {MANIFEST}):
        yield Refused(folder.name, extra, "it is not in the manifest")
    for file in checkpoint.files.values():
        reason = _what_differs(folder / file.name, file)
        if reason:
            yield Refused(folder.name, file.name, reason)


def _what_differs(path: Path, file: WrittenFile) -> str:
    try:
        found, num_bytes = _hashed(path)
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return str(error)
    if num_bytes != file.num_bytes:
        return f"it has {num_bytes} bytes, {file.num_bytes} were written"
    return "" if found == file.checksum else f"its checksum is {found}, that of what was written {file.checksum}"


def _hashed(path: Path) -> tuple[str, int]:
    """Return the checksum and the size of a file."""
    hashed, num_bytes = xxhash.xxh3_128(), 0
    with open_regular(path) as stream:
        buffer = memoryview(bytearray(_CHUNK))
        while count := stream.readinto(buffer):
            hashed.update(buffer[:count])
            num_bytes += count
    return f"xxh3_128:{hashed.hexdigest()}", num_bytes


def steps_in(checkpoints: Path) -> list[int]:
    """Return the steps whose checkpoints are there, whole or not."""
    names = [path.name for path in checkpoints.iterdir()] if checkpoints.is_dir() else []
    return [int(name.removeprefix(_STEP)) for name in names if re.fullmatch(rf"{_STEP}(0|[1-9]\d*)", name)]


def _sealed(said: Mapping[str, Any]) -> bytes:
    """Return JSON with a checksum of the rest in it."""
    checksum = f"xxh3_128:{xxhash.xxh3_128_hexdigest(json.dumps(said, sort_keys=True).encode())}"
    return (json.dumps({**said, "checksum": checksum}, sort_keys=True, indent=1) + "\n").encode()


def _unsealed(path: Path) -> dict[str, Any]:
    """Return what ``_sealed`` was given, from its file.

    Raises:
        ValueError: a byte is another one.
        OSError: there is no such file, or it cannot be read.
    """
    raw = read_regular(path, _MOST_BYTES)
    try:
        said = json.loads(raw)
        if not isinstance(said, dict):
            raise ValueError("it holds no object")
        told = said.pop("checksum", None)
        sealed = _sealed(said)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not the JSON that was written: {error}") from None
    if sealed != raw:
        raise ValueError(f"its own checksum does not hold: it says {told}")
    return said
