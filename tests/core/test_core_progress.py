"""Progress without a terminal: whole lines with counts, facts and the time left; no control sequences."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from harness.core import progress
from harness.core.progress import is_live, minutes_told, progress_bars


def test_a_terminal_is_live_unless_it_is_dumb_or_only_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for term, expected in (("xterm", True), ("dumb", False), ("unknown", False)):
        monkeypatch.setenv("TERM", term)
        assert is_live(Console(file=io.StringIO(), force_terminal=True)) == expected
    monkeypatch.setenv("TERM", "xterm")
    assert not is_live(Console(file=io.StringIO()))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not is_live(Console(file=io.StringIO()))


def lines_of(out: io.StringIO) -> list[str]:
    assert not set(out.getvalue()) & set("\x1b\r")
    return out.getvalue().splitlines()


def test_each_tenth_is_a_line_with_what_is_done_and_left() -> None:
    out, clock = io.StringIO(), [0.0]
    bars = progress_bars(Console(file=out, width=40), facts=True, tenths=True)
    bars.get_time = lambda: clock[0]
    with bars:
        task = bars.add_task("arm [red]", total=20, facts="starting")
        for step in range(1, 21):
            clock[0] = 100.0 + 10.0 * step  # 100 s of start-up, which say nothing about the steps
            bars.update(task, completed=step, facts=f"{step} tokens/s")
    assert len(lines_of(out)) == 10
    assert lines_of(out)[4] == "arm [red]: 10 of 20, 10 tokens/s, 3 min so far, about 2 min left"  # 10 x 10 s
    assert "left" not in lines_of(out)[-1]


def test_a_line_comes_each_minute_also_while_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.01)
    out = io.StringIO()
    console = Console(file=out)
    with progress_bars(console, facts=True) as bars:
        task = bars.add_task("lag1", total=8, completed=3, facts="starting")
        wait_for(lambda: len(lines_of(out)) >= 2)
        bars.update(task, completed=8)
    assert lines_of(out)[1] == "lag1: 3 of 8, starting, 0 s so far"
    assert "lag1: 8 of 8" not in out.getvalue()
    with minutes_told(console, "the engine starts"):
        wait_for(lambda: "the engine starts: 0 s so far" in lines_of(out))
    wait_for(lambda: "progress" not in {thread.name for thread in threading.enumerate()})


def test_quiet_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.001)
    out = io.StringIO()
    with progress_bars(Console(file=out), quiet=True, tenths=True) as bars, minutes_told(Console(file=out), "x", True):
        bars.advance(bars.add_task("lag1", total=2))
        time.sleep(0.01)
    assert out.getvalue() == ""


def wait_for(happened: Callable[[], bool]) -> None:
    for _ in range(2000):
        if happened():
            return
        time.sleep(0.005)
    raise AssertionError("it did not happen within 10 s")
