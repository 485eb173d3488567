"""Whatever the encoding of an output: no error, no other letter, and signs that can be read."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

import pytest
from rich.console import Console
from rich.table import Table

from harness.cli import carry_out, main
from harness.core.terminal_text import write_what_can_be_written

TEXT = "caf\u00e9 \u6570 \U0001f642 2\u00d73 \u00b11 \u2264 \u2192 \u2026 \u2014 \u250c\u2500\u2510 \u2588 \udcff"


def written(stream: TextIO) -> bytes:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue()


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("ascii", "caf\\xe9 \\u6570 \\U0001f642 2x3 +-1 <= -> ... - +-+ # \\udcff"),
        ("latin-1", "caf\u00e9 \\u6570 \\U0001f642 2\u00d73 \u00b11 <= -> ... - +-+ # \\udcff"),
        ("cp1252", "caf\u00e9 \\u6570 \\U0001f642 2\u00d73 \u00b11 <= -> \u2026 \u2014 +-+ # \\udcff"),
        ("utf-8", TEXT[:-1] + "\\udcff"),
    ],
)
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_signs_that_an_output_lacks_are_written_by_others(
    monkeypatch: pytest.MonkeyPatch, encoding: str, expected: str, errors: str
) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors))

    def command() -> int:
        print(TEXT)
        Console(stderr=True, width=80).print(TEXT.replace("\udcff", ""), soft_wrap=True)
        return 0

    assert carry_out(command) == 0
    for stream in (sys.stdout, sys.stderr):
        assert written(stream).decode(encoding).strip() == (
            expected if stream is sys.stdout else expected.removesuffix("\\udcff").strip()
        )


def test_a_choice_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace"))
    assert carry_out(lambda: len("\u00d7") - (print("\u00d7") is None)) == 0
    assert written(sys.stdout) == b"?\n"


def test_tables_have_no_other_lines_than_the_encoding_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))

    def command() -> int:
        table = Table("a \u00d7 b")
        table.add_row("1")
        Console(width=40).print(table)
        return 0

    assert carry_out(command) == 0
    assert b"a x b" in written(sys.stdout)


def test_errors_are_written_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert main(["report", "r\u00e9sults \u6570"]) == 2
    assert b"r\\xe9sults \\u6570" in written(sys.stderr)


def test_a_closed_output_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    write_what_can_be_written()
    with sys.stdout as stream:
        print("x")
        assert (stream.isatty(), stream.name) == (False, os.devnull)
