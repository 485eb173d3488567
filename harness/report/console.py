"""Where text goes: standard output, as wide as the terminal, or of a fixed width where there is none."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console
from rich.text import Text

from harness.core.terminal_text import plain
from harness.results.reader import DamagedRun, references_left_out

WIDTH_WITHOUT_TERMINAL = 120


class Output(Console):
    """Standard output; lines of a pipe or a file end with their text, where tables are as wide as their widest line."""

    def __init__(self) -> None:
        is_terminal, has_width = sys.stdout.isatty(), os.environ.get("COLUMNS", "0").strip("0") != ""
        super().__init__(
            file=None if is_terminal else cast(IO[str], _WithoutSpacesAtEnds()),
            width=None if is_terminal or has_width else WIDTH_WITHOUT_TERMINAL,
            highlight=False,
            color_system=None if os.environ.get("NO_COLOR") else "auto",  # rich alone would leave bold and dim
        )

    def on_broken_pipe(self) -> None:
        """Leave it to the command."""
        raise BrokenPipeError


class _WithoutSpacesAtEnds:
    """Standard output as it is at the time, for whole lines, as rich writes them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)

    def write(self, text: str) -> int:
        return sys.stdout.write(re.sub(r" +$", "", text, flags=re.MULTILINE))


def warn_of_left_out(damaged: Sequence[DamagedRun], paths: Sequence[Path]) -> None:
    """Say on standard error which runs could not be read, and which reference runs were not asked for."""
    errors = Console(stderr=True)
    for item in damaged:
        message = f"warning: left out {str(item.folder)!r}: {item.error.what}"
        errors.print(Text(plain(message), style="yellow"), soft_wrap=True)
    for line in references_left_out(paths):
        errors.print(Text(plain(line)), soft_wrap=True)


def file_size(count: int) -> str:
    """Write a file's bytes: ``812 bytes``, ``35 kB`` or ``1.24 MB``."""
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1e3:,.0f} kB" if count < 1e6 else f"{count / 1e6:,.2f} MB"


def shown_path(path: Path) -> str:
    """Return the path relative to the current folder where it lies below it, else as it is."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
