"""Where the harness keeps on this machine what it would otherwise make again."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_folder() -> Path:
    """Return the harness' folder in the user's cache: below ``XDG_CACHE_HOME`` if that is absolute, or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "grpo-harness"
