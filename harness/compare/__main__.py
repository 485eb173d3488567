"""The command ``python -m harness.compare PATH... [--plots DIR]``.

An entry point: it may use the report, which stands above this package. Exit codes: 0 fine, also where single runs are
damaged (they are named); 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from harness.compare.campaigns import Campaign, gather
from harness.errors import UserError
from harness.report.plain import plain
from harness.results import DamagedRun
from harness.results.anonymous import safe_name

WIDTH_WITHOUT_TERMINAL = 120


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the runs below the given folders; return the exit code."""
    options = _parser().parse_args(arguments)
    errors = Console(stderr=True)
    try:
        _compare(options, errors)
    except UserError as error:
        errors.print(Text("\n".join(plain(line) for line in f"error: {error}".splitlines())), soft_wrap=True)
        return 2
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.compare", description="Compare runs from their folders.")
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="results folder, campaign or run folder")
    parser.add_argument("--all", action="store_true", help="show every campaign in detail, not the newest only")
    parser.add_argument("--format", choices=("text", "json", "md"), default="text", help="default: text")
    parser.add_argument("--plots", metavar="DIR", type=Path, help="write pictures of the detailed campaigns there")
    return parser


def _compare(options: argparse.Namespace, errors: Console) -> None:
    everything = options.all or len(options.paths) > 1 or options.format == "json"
    campaigns, damaged = gather(options.paths, brief=not everything)
    detailed = campaigns if everything else _newest_in_full(campaigns, damaged)
    for item in damaged:
        message = f"warning: left out {str(item.folder)!r}: {item.error.what}"
        errors.print(Text(plain(message), style="yellow"), soft_wrap=True)
    if options.format == "json":
        from harness.compare.as_json import comparison

        print(json.dumps(comparison(campaigns, damaged), indent=2, allow_nan=False))
    elif options.format == "md":
        from harness.report.text import markdown

        print(markdown(campaigns, detailed), end="")
    else:
        from harness.report.text import print_comparison

        print_comparison(_Output(), campaigns, detailed)
    if options.plots is not None:
        _draw(detailed, options.plots, sys.stdout if options.format == "text" else sys.stderr)


def _newest_in_full(campaigns: list[Campaign], damaged: list[DamagedRun]) -> list[Campaign]:
    """Read the newest campaign again, spans and all; runs that turn out to be damaged join the others."""
    for campaign in reversed(campaigns):
        try:
            full, bad = gather([campaign.folder])
        except UserError as error:
            damaged.append(DamagedRun(campaign.folder, error))
        else:
            damaged += [item for item in bad if item.folder not in {known.folder for known in damaged}]
            return full
    raise damaged[-1].error


class _Output(Console):
    """Standard output, as wide as the terminal."""

    def __init__(self) -> None:
        has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
        super().__init__(width=None if has_width else WIDTH_WITHOUT_TERMINAL, highlight=False)

    def on_broken_pipe(self) -> None:
        """Leave it to ``main``."""
        raise BrokenPipeError


def _draw(campaigns: Sequence[Campaign], folder: Path, stream: TextIO) -> None:
    from harness.report.pictures import make_pictures

    for campaign in campaigns:
        target = folder if len(campaigns) == 1 else folder / safe_name(campaign.scenario) / safe_name(campaign.name)
        for path in make_pictures(campaign.folder, target):
            print(f"picture: {path}", file=stream)


if __name__ == "__main__":
    sys.exit(main())
