"""Policies of warm starts kept on disk, each in a folder named by its content key.

An entry is a checkpoint of step 0: see ``core.checkpoints``.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from harness.core.checkpoints import begin, commit, newest_whole, written_file
from harness.core.errors import HarnessError
from harness.core.file_locks import holding
from harness.models.storage import load_policy, save_policy

REPORT = "report.json"


def read_entry(entry: Path) -> tuple[nn.Module, PreTrainedTokenizerBase, dict[str, Any]] | None:
    """Return model, tokenizer and report of an entry; None if it is not there or damaged (with a warning)."""
    if not entry.is_dir():
        return None
    found, refused = newest_whole(entry)
    if found is not None:
        return *load_policy(found.folder), json.loads((found.folder / REPORT).read_text(encoding="utf-8"))
    if refused:
        told = "; ".join(map(str, refused))
        warnings.warn(f"the cached warm start {entry.name} is damaged ({told}); it is trained again", stacklevel=2)
    return None


def write_entry(entry: Path, model: nn.Module, tokenizer: PreTrainedTokenizerBase, report: dict[str, Any]) -> None:
    """Keep a policy; of two processes that finish the same one the first wins.

    Where the folder cannot be written it warns, and the policy is trained again next time.
    """
    try:
        entry.mkdir(parents=True, exist_ok=True)
        with holding(entry, wait=True):
            if newest_whole(entry)[0] is None:
                draft = begin(entry, 0)
                save_policy(model, tokenizer, draft)
                (draft / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
                commit(draft, [written_file(file) for file in draft.iterdir()], keep=1)
    except (OSError, HarnessError) as error:
        warnings.warn(f"the warm start cannot be kept as {entry.name} in the cache folder: {error}", stacklevel=2)
