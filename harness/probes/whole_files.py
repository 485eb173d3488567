"""Files that appear whole or not at all, also where they come from another file system."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def move_whole(draft: Path, file: Path) -> None:
    """Move a finished file into a folder that may be on another file system; whoever looks there finds all of it."""
    beside = file.with_name(f".{file.name}.draft")
    shutil.move(draft, beside)
    os.replace(beside, file)
