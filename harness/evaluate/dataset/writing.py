"""The folder of a data set, which appears whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.core.errors import UserError
from harness.evaluate.dataset.keywords import Row

FACTS = "dataset.json"


def check_target(folder: Path) -> None:
    """Refuse a folder that holds something, or cannot be made. Nothing is left behind.

    Raises:
        UserError: why.
    """
    if folder.resolve() == Path.cwd():
        raise UserError("the data set's folder is the current one; it must be new", str(folder), "-o FOLDER")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UserError("the folder is not empty, and a data set is never overwritten", str(folder), "-o FOLDER")
        existing = next(each for each in (folder, *folder.resolve().parents) if each.exists())
        with tempfile.TemporaryDirectory(dir=existing):
            pass
    except OSError as error:
        raise _cannot_write(folder, error) from error


def write_dataset(folder: Path, splits: Mapping[str, Sequence[Row]], facts: Mapping[str, Any]) -> None:
    """Write a JSONL file for each split and what is known about them; the folder appears when all is written.

    Raises:
        UserError: it cannot be written, or holds something by now.
    """
    folder = folder.resolve()
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.draft")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        contents = {f"{split}.jsonl": _lines(rows) for split, rows in splits.items()}
        files = {name: {"rows": content.count(b"\n"), "sha256": _digest(content)} for name, content in contents.items()}
        described = json.dumps({**facts, "files": files}, indent=2, allow_nan=False).encode() + b"\n"
        for name, content in {**contents, FACTS: described}.items():
            (draft / name).write_bytes(content)
        os.replace(draft, folder)  # takes the place of an empty folder, never of a full one
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _lines(rows: Sequence[Row]) -> bytes:
    return b"".join(json.dumps(asdict(row), ensure_ascii=False).encode() + b"\n" for row in rows)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _cannot_write(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write the data set: {error.strerror or error}", str(folder), "give another folder: -o FOLDER"
    )
