"""Warm-started policies kept on disk, each in a folder named by its content key.

An entry is written beside its place and renamed into it when it is complete, so that a reader sees all of it or
nothing, and of two processes that finish the same one the first wins. Its report, written last, holds the digest of
every other file; an entry that does not match is put aside with a warning and trained again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from harness.core.errors import HarnessError
from harness.models.storage import load_policy, save_policy

POLICY = "policy"
REPORT = "report.json"


def read_entry(entry: Path) -> tuple[nn.Module, PreTrainedTokenizerBase, dict[str, Any]] | None:
    """Return model, tokenizer and report of an entry; None if it is not there or damaged (with a warning)."""
    if not entry.exists():
        return None
    try:
        stored = json.loads((entry / REPORT).read_text(encoding="utf-8"))
        if _digests(entry / POLICY) != stored["files"]:
            raise ValueError("a file of it was changed or is missing")
        model, tokenizer = load_policy(entry / POLICY)
        return model, tokenizer, dict(stored["report"])
    except (OSError, ValueError, KeyError, TypeError, HarnessError) as error:
        warnings.warn(
            f"the cached warm start {entry.name} is damaged ({type(error).__name__}: {error}); it is trained again",
            stacklevel=2,
        )
        _remove(entry)
        return None


def write_entry(entry: Path, model: nn.Module, tokenizer: PreTrainedTokenizerBase, report: dict[str, Any]) -> None:
    """Keep a policy. Where the folder cannot be written it warns, and the policy is trained again next time."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=entry.parent))
    except OSError as error:
        _warn_not_kept(entry, error)
        return
    try:
        save_policy(model, tokenizer, staging / POLICY)
        stored = {"files": _digests(staging / POLICY), "report": report}
        (staging / REPORT).write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
        _rename_unless_there(staging, entry)
    except (OSError, HarnessError) as error:
        _warn_not_kept(entry, error)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _rename_unless_there(staging: Path, entry: Path) -> None:
    try:
        staging.rename(entry)
    except OSError:
        if not entry.is_dir():
            raise


def _remove(entry: Path) -> None:
    """Rename, then delete: another process never reads an entry that is half deleted."""
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{entry.name}-damaged-", dir=entry.parent))
        entry.rename(aside / entry.name)
        shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        _warn_not_kept(entry, error)


def _warn_not_kept(entry: Path, error: Exception) -> None:
    warnings.warn(f"the warm start cannot be kept as {entry.name} in the cache folder: {error}", stacklevel=3)


def _digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}
