"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from harness.core.errors import UserError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a draft beside ``path``, which takes its place when the block ends well; nothing stays of it otherwise.

    Raises:
        OSError: it cannot be written. What was at ``path`` is as it was.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        with draft.open("wb") as stream:
            yield stream
        os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def overwrite(path: Path, content: bytes) -> None:
    """Write over a file where it lies, which takes no room on a full disk but for what it is longer than before.

    Raises:
        OSError: it cannot be written. What was at ``path`` is as it was, as far as the disk still takes that.
    """
    with path.open("r+b", buffering=0) as file:
        before = file.read()
        try:
            for start, piece in ((len(before), content[len(before) :]), (0, content[: len(before)])):
                file.seek(start)
                while piece:  # first what needs room
                    piece = piece[file.write(piece) :]
            file.truncate(len(content))
        except OSError:
            file.truncate(len(before))
            file.seek(0)
            file.write(before)
            raise


def move_whole(draft: Path, file: Path) -> None:
    """Move a finished file into a folder that may be on another file system; whoever looks there finds all of it."""
    beside = file.with_name(f".{file.name}.draft")
    shutil.move(draft, beside)
    os.replace(beside, file)


def sync(path: Path) -> None:
    """Return when the disk has taken a file, or the names in a folder.

    Raises:
        OSError: it cannot, or there is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_replaceable(path: Path, kind: str, is_ours: Callable[[Path], bool]) -> None:
    """Refuse to write a file where it cannot be, or in place of one that is not of its kind.

    Args:
        kind: what the command writes, in a word.
        is_ours: whether a file is one of those.

    Raises:
        UserError: with what is in the way.
    """
    if path.is_dir():
        raise UserError(f"{str(path)!r} is a folder", str(path), f"name the file of the {kind} with -o FILE")
    if not path.parent.is_dir():
        what = f"there is no folder {str(path.parent)!r} for the {kind}"
        fix = f"make it first (mkdir -p {shlex.quote(str(path.parent))}), or name another file"
        raise UserError(what, str(path), fix)
    if os.path.lexists(path) and not is_ours(path):
        what = f"{str(path)!r} is there already, and is no {kind} of this command"
        raise UserError(what, str(path), "name another file with -o FILE, or remove that one")


def check_writable(path: Path) -> None:
    """Refuse a folder that cannot be made or written to. Nothing is left behind, not even the folder.

    Raises:
        UserError: with the reason the system gives.
    """
    try:
        existing = next(folder for folder in (path, *path.resolve().parents) if folder.exists())
        with tempfile.TemporaryDirectory(dir=existing):
            pass
    except OSError as error:
        reason = "it is a file" if os.path.isfile(path) else error.strerror or error
        what = f"cannot write results to {path} ({reason})"
        raise UserError(what, f"--out {path}", "give a folder you may write to: --out DIR") from None
