"""The command ``python -m harness.report.html.screenshots report.html -o DIR``: pictures of a report, for its readers.

Needs Chromium (Debian: ``apt-get install chromium``). Exit codes: 0 fine; 2 bad input, or no browser.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.core.errors import UserError
from harness.core.plain_text import plain, plain_lines
from harness.report.html.browser import Browser, find_chromium

KINDS = {"light": (1280, False), "dark": (1280, True), "narrow": (390, False)}
"""Width of the screen in CSS pixels, and whether the reader prefers dark colours."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the pictures; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.report.html.screenshots", description="Take pictures of a report in headless Chromium."
    )
    parser.add_argument("report", metavar="FILE", type=Path, help="a file that python -m harness.report wrote")
    parser.add_argument("-o", "--out", metavar="DIR", type=Path, default=Path(), help="default: the current folder")
    parser.add_argument("--height", metavar="PIXELS", type=int, help="of the pictures; default: the whole page")
    options = parser.parse_args(arguments)
    try:
        for path in take(options.report, options.out, options.height):
            print(plain(f"picture: {path}"))
    except UserError as error:
        Console(stderr=True).print(Text(plain_lines(f"error: {error}")), soft_wrap=True)
        return 2
    return 0


def take(report: Path, out: Path, height: int | None = None) -> list[Path]:
    """Write ``report_light.png``, ``report_dark.png``, ``report_narrow.png`` and the printed ``report.pdf``.

    Raises:
        UserError: there is no such file, no browser, or no way to write.
    """
    executable = find_chromium()
    if executable is None:
        raise UserError("there is no Chromium on this machine", fix="install it (Debian: apt-get install chromium)")
    if not report.is_file():
        raise UserError(f"{str(report)!r} is no file", where=str(report), fix="name a file of python -m harness.report")
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # a helper of Chromium's may end late
        with scratch as profile, Browser(executable, Path(profile)) as browser:
            for kind, (width, dark) in KINDS.items():
                browser.screen(width, dark=dark)
                browser.open(report)
                written.append(out / f"{report.stem}_{kind}.png")
                written[-1].write_bytes(browser.picture(height))
            browser.screen(KINDS["light"][0])
            written.append(out / f"{report.stem}.pdf")
            written[-1].write_bytes(browser.printed())
    except OSError as error:
        what = f"cannot write pictures to {str(out)!r}: {error.strerror or error}"
        raise UserError(what, where=str(out), fix="name another folder with -o DIR") from error
    return written


if __name__ == "__main__":
    sys.exit(main())
