"""Where text goes: standard output, as wide as the terminal, or of a fixed width where there is none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 120


class Output(Console):
    """Standard output."""

    def __init__(self) -> None:
        has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
        super().__init__(width=None if has_width else WIDTH_WITHOUT_TERMINAL, highlight=False)

    def on_broken_pipe(self) -> None:
        """Leave it to the command."""
        raise BrokenPipeError


def shown_path(path: Path) -> str:
    """Return the path relative to the current folder where it lies below it, else as it is."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
